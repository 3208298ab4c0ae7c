//! Probes: what the scheduler asks an executor to try of the network, for `volley doctor`.
//!
//! ```text
//!   scheduler: Listen ─► this executor takes a port of its ranks for a while
//!   scheduler: Dial ───► another one dials it there, and its Flight service: round trip, bandwidth
//! ```
//!
//! Only whoever knows the token is answered, and nothing that is sent has a meaning. The wire to the scheduler is for
//! [`crate::attendance`].

mod dial;
mod exchange;
mod listen;

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::task::{AbortHandle, JoinSet};
use volley_proto::access::Authorized;
use volley_proto::probe::{Probe, Probed};

use crate::{ExecutorConfig, attendance};

/// Probes under way at once; more are not answered.
const AT_ONCE: usize = 32;
/// How long an executor listens at most, whatever it is asked.
const MOST: Duration = Duration::from_secs(15 * 60);

/// A probe that the scheduler asks for, by its number.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: u64,
    pub(crate) probe: Probe,
}

/// Answers probes for as long as this is polled; dropping it ends them.
pub(crate) async fn answer(
    config: ExecutorConfig,
    channel: Authorized,
    mut asked: Receiver<Asked>,
) {
    let mut running = JoinSet::new();
    // It takes a port, so there is one at most.
    let mut listening: Option<AbortHandle> = None;
    loop {
        let asked = tokio::select! {
            Some(asked) = asked.recv() => asked,
            Some(_) = running.join_next() => continue,
            else => return std::future::pending().await,
        };
        let listens = matches!(asked.probe, Probe::Listen { .. });
        if (listens || asked.probe == Probe::Stop)
            && let Some(before) = listening.take()
        {
            before.abort();
        }
        if asked.probe == Probe::Stop {
            continue;
        }
        if running.len() >= AT_ONCE {
            tracing::warn!(
                probe = asked.id,
                "not tried: {AT_ONCE} probes are under way"
            );
            continue;
        }
        let answering = running.spawn(answer_one(config.clone(), channel.clone(), asked));
        if listens {
            listening = Some(answering);
        }
    }
}

async fn answer_one(config: ExecutorConfig, channel: Authorized, Asked { id, probe }: Asked) {
    let mut listener = None;
    let probed = match probe {
        Probe::Listen { token, patience } => match listen::bind(&config) {
            Ok((bound, probed)) => {
                listener = bound.map(|bound| (bound, token, patience.min(MOST)));
                probed
            }
            Err(error) => Probed::Failed(format!("cannot listen on {}: {error}", config.listen)),
        },
        Probe::Dial(target) => Probed::Measured(dial::dial(&target, config.tls.as_ref()).await),
        Probe::Stop => return,
        Probe::Scheduler => match attendance::measure(&config, channel.clone()).await {
            Ok(measured) => Probed::Measured(measured),
            Err(error) => Probed::Failed(error.to_string()),
        },
    };
    if let Err(error) = attendance::probed(&config, channel, id, &probed).await {
        tracing::debug!(id, %error, "the scheduler is not told what came of a probe");
        return;
    }
    if let Some((listener, token, patience)) = listener {
        listen::serve(listener, &token, patience).await;
    }
}

/// The middle one of some durations.
pub(crate) fn median(mut durations: Vec<Duration>) -> Option<Duration> {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied()
}

#[cfg(test)]
mod tests;
