//! The listening side of a probe: a port from the ranks' range, open for the duration of the probe.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use volley_proto::address::PortRange;
use volley_proto::probe::Probed;

use super::exchange;
use crate::ExecutorConfig;

/// Number of connections answered at once; more wait in the kernel's queue.
const AT_ONCE: usize = 16;
/// Time limit for one connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens on a port of the ranks' range, unless that could leave a rank without a port.
pub(super) fn bind(config: &ExecutorConfig) -> io::Result<(Option<TcpListener>, Probed)> {
    let ports = config.listen.ports();
    let range = (ports != PortRange::FREE).then(|| ports.to_string());
    // One port for tasks, one for Flight, and one for the rank of each slot.
    let taken = 2 + config.vcores;
    if ports.count().is_some_and(|count| count <= taken) {
        return Ok((None, Probed::Listens { port: None, range }));
    }
    let listener = config.listen.listen()?;
    let port = listener.local_addr()?.port();
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let port = Some(port);
    Ok((Some(listener), Probed::Listens { port, range }))
}

/// Answers clients that send the token, until the time is over.
pub(super) async fn serve(listener: TcpListener, token: &str, patience: Duration) {
    let mut answering = JoinSet::new();
    let mut over = pin!(sleep(patience));
    loop {
        tokio::select! {
            () = &mut over => return,
            accepted = listener.accept(), if answering.len() < AT_ONCE => match accepted {
                Ok((stream, from)) => {
                    let token = token.to_owned();
                    answering.spawn(async move {
                        match timeout(PATIENCE, exchange::answer(stream, &token)).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => tracing::debug!(%from, %error, "dropped a caller"),
                            Err(_) => tracing::debug!(%from, "dropped a caller that is slow"),
                        }
                    });
                }
                Err(error) => tracing::debug!(%error, "a caller of a probe hung up"),
            },
            Some(_) = answering.join_next() => {}
        }
    }
}
