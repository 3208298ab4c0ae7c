//! Signals that stop a command.

use std::future::Future;
use std::io;
use std::ops::ControlFlow;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listener for SIGINT and SIGTERM. It listens from its creation on, so that no signal is lost between two waits.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the process cannot listen to signals.
    pub(super) fn listen() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Runs the work until it ends or a signal comes. On a signal, drops the work and returns the exit code for the
    /// signal: 128 plus its number, as in a shell.
    pub(super) async fn stop<T>(&mut self, work: impl Future<Output = T>) -> ControlFlow<u8, T> {
        tokio::select! {
            done = work => ControlFlow::Continue(done),
            _ = self.interrupt.recv() => ControlFlow::Break(130),
            _ = self.terminate.recv() => ControlFlow::Break(143),
        }
    }
}
