//! The signals that stop a command.

use std::future::Future;
use std::io;
use std::ops::ControlFlow;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from its creation on, so that no signal falls between two waits.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// # Errors
    /// When the process cannot listen to signals.
    pub(super) fn listen() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Does the work, unless a signal comes first: then the work is dropped, and what is returned
    /// is the exit code that says which signal, 128 plus its number as in a shell.
    pub(super) async fn stop<T>(&mut self, work: impl Future<Output = T>) -> ControlFlow<u8, T> {
        tokio::select! {
            done = work => ControlFlow::Continue(done),
            _ = self.interrupt.recv() => ControlFlow::Break(130),
            _ = self.terminate.recv() => ControlFlow::Break(143),
        }
    }
}
