//! Probes: network measurements that the scheduler asks of an executor, for `volley doctor`.
//!
//! ```text
//!   scheduler: Listen ─► this executor takes a port of its ranks for a while
//!   scheduler: Dial ───► another one dials it there, and its Flight service: round trip, bandwidth
//! ```
//!
//! Only clients that send the token are answered, and the data sent has no meaning. [`crate::attendance`] talks to
//! the scheduler.

mod dial;
mod exchange;
mod listen;

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use volley_proto::access::Authorized;
use volley_proto::probe::{Measured, Probe, Probed};

use crate::attendance::{self, Asked};
use crate::{Error, ExecutorConfig, Result};

/// Maximum number of concurrent probes; more are not answered.
const AT_ONCE: usize = 32;
/// Maximum time that an executor listens, whatever the request says.
const MOST: Duration = Duration::from_secs(15 * 60);

/// Number of measured round trips to the scheduler.
const ECHOES: usize = 11;
/// Bytes per echo of the bandwidth measurement, and its duration.
const ECHOED: usize = 1 << 20;
const ECHOING: Duration = Duration::from_millis(300);

/// Answers probes for as long as this is polled; dropping it ends them.
pub(crate) async fn answer(
    config: ExecutorConfig,
    channel: Authorized,
    mut asked: Receiver<Asked>,
) {
    let mut running = JoinSet::new();
    // Listening takes a port, so at most one probe listens.
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
                "probe not run: {AT_ONCE} probes are running already"
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
        Probe::Scheduler => match measure(&config, &channel).await {
            Ok(measured) => Probed::Measured(measured),
            Err(error) => Probed::Failed(error.to_string()),
        },
    };
    if let Err(error) = attendance::probed(&config, channel, id, &probed).await {
        tracing::debug!(id, %error, "cannot report a probe's result to the scheduler");
        return;
    }
    if let Some((listener, token, patience)) = listener {
        listen::serve(listener, &token, patience).await;
    }
}

/// Measures the network to the scheduler, over the existing connection.
async fn measure(config: &ExecutorConfig, channel: &Authorized) -> Result<Measured> {
    let echo = async |bytes: usize, wanted: usize| {
        let started = Instant::now();
        let came = attendance::echo(config, channel.clone(), bytes, wanted).await?;
        Ok::<_, Error>((started.elapsed(), came))
    };
    let mut round_trips = Vec::with_capacity(ECHOES);
    for _ in 0..ECHOES {
        round_trips.push(echo(0, 0).await?.0);
    }
    let started = Instant::now();
    let (mut there, mut back) = (0, 0);
    while started.elapsed() < ECHOING {
        echo(ECHOED, 0).await?;
        there += ECHOED;
    }
    let rate = there as f64 / started.elapsed().as_secs_f64();
    let started = Instant::now();
    while started.elapsed() < ECHOING {
        back += echo(0, ECHOED).await?.1;
    }
    Ok(Measured {
        ports: Vec::new(),
        round_trip: median(round_trips),
        rate: Some(rate),
        rate_back: Some(back as f64 / started.elapsed().as_secs_f64()),
    })
}

/// Returns the median, or the upper of the two middle durations.
pub(crate) fn median(mut durations: Vec<Duration>) -> Option<Duration> {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied()
}

#[cfg(test)]
mod tests;
