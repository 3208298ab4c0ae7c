//! The executor's notices: its own warnings and errors, and its libraries', sent to the scheduler as lines of the
//! cluster's log.
//!
//! ```text
//!   tracing ──► Collector ──► a bounded queue ──► Notices ──► the scheduler, which keeps the newest
//!                 finds the job in the task's span
//! ```
//!
//! Nothing waits for delivery: notices that find the queue full are only in the process's own log.

use std::convert::Infallible;
use std::fmt::{self, Write};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::attendance::{Notice, tell};
use crate::ballista::connect;
use crate::{ExecutorConfig, Result};

/// Capacity of the queue, for notices that wait while the scheduler does not answer.
const QUEUE: usize = 256;
/// Maximum number of notices in one request.
const AT_ONCE: usize = 64;
/// Pause between two attempts to send.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns a tracing layer that collects warnings and errors, and the receiver of the collected notices.
pub fn notices() -> (Collector, Notices) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Collector { sender }, Notices { receiver })
}

/// Collecting layer. Add it with a filter for warnings and errors, so that it does not see other events and spans.
#[derive(Debug)]
pub struct Collector {
    sender: mpsc::Sender<Notice>,
}

/// Sender of the collected notices.
#[derive(Debug)]
pub struct Notices {
    receiver: mpsc::Receiver<Notice>,
}

impl Notices {
    /// Sends notices to the scheduler for as long as this is polled.
    pub async fn tell(mut self, config: ExecutorConfig) -> Infallible {
        let mut notices = Vec::new();
        loop {
            if self.receiver.recv_many(&mut notices, AT_ONCE).await == 0 {
                return std::future::pending().await;
            }
            // Not logged as a warning, which would itself become a notice.
            while let Err(error) = send(&config, &notices).await {
                tracing::debug!(%error, "cannot report warnings to the scheduler");
                sleep(PAUSE).await;
            }
            notices.clear();
        }
    }
}

async fn send(config: &ExecutorConfig, notices: &[Notice]) -> Result<()> {
    let channel = connect(config).await?;
    tell(config, channel, notices).await
}

/// Attempt that a span belongs to.
struct AttemptId(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut words = Words::default();
        attributes.record(&mut words);
        if let (Some(attempt), Some(span)) = (words.attempt, context.span(id)) {
            span.extensions_mut().insert(AttemptId(attempt));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        let of_span = || {
            let mut spans = context.event_scope(event)?;
            spans.find_map(|span| Some(span.extensions().get::<AttemptId>()?.0.clone()))
        };
        let notice = Notice {
            at: SystemTime::now(),
            job: words.attempt.take().or_else(of_span),
            failure: *event.metadata().level() == Level::ERROR,
            text: words.text(),
        };
        self.sender.try_send(notice).ok();
    }
}

/// Fields of an event or a span.
#[derive(Default)]
struct Words {
    attempt: Option<String>,
    message: String,
    others: String,
}

impl Words {
    fn text(self) -> String {
        self.message + &self.others
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "attempt" => {
                self.attempt = Some(format!("{value:?}"));
                Ok(())
            }
            // The scheduler knows whose attempt it is.
            "job" => Ok(()),
            "message" => write!(self.message, "{value:?}"),
            // Source location of a record of the `log` crate.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.others, ", {name}: {value:?}"),
        };
        debug_assert!(written.is_ok(), "a string takes what is written");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::prelude::*;

    use super::*;

    #[test]
    fn warnings_know_their_job() {
        let (collector, mut notices) = notices();
        let layer = collector.with_filter(LevelFilter::WARN);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not worth telling");
            tracing::warn!(peers = 2, "alone");
            let span = tracing::error_span!("task", job = "j1", attempt = %"j1");
            let _entered = span.enter();
            tracing::error!(error = %"no room", "task failed");
        });
        let mut next = || {
            let Notice {
                job, failure, text, ..
            } = notices.receiver.try_recv().ok()?;
            Some((job, failure, text))
        };
        assert_eq!(next(), Some((None, false, "alone, peers: 2".into())));
        let failed = (
            Some("j1".into()),
            true,
            "task failed, error: no room".into(),
        );
        assert_eq!(next(), Some(failed));
        assert_eq!(next(), None);
    }
}
