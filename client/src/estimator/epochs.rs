//! Epochs of a training, each reported once.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::sleep;
use volley_proto::store::EpochRecord;

use crate::{TrainingEvent, TrainingEvents};

/// Pause between two requests to end training: a scheduler that restarts forgets one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Callback for epochs, and the epochs that it was called with.
pub(super) struct Epochs<F> {
    report: F,
    /// Numbers of these epochs, from 1.
    reported: BTreeSet<usize>,
    /// True once the callback has ended training; it is not called again.
    stopped: bool,
}

impl<F: FnMut(&EpochRecord) -> ControlFlow<()>> Epochs<F> {
    pub(super) fn new(report: F) -> Self {
        Self {
            report,
            reported: BTreeSet::new(),
            stopped: false,
        }
    }

    /// Reports an epoch, unless it was reported before: a training that resumes from a checkpoint repeats epochs.
    pub(super) fn report(&mut self, epoch: &EpochRecord) {
        if !self.stopped && self.reported.insert(epoch.epoch) {
            self.stopped = (self.report)(epoch).is_break();
        }
    }

    /// Reports the epochs of a training as they end, and ends it when the callback says so, until the future is dropped.
    pub(super) async fn follow(&mut self, events: &mut TrainingEvents) -> Infallible {
        while !self.stopped {
            for event in events.next().await {
                if let TrainingEvent::Epoch(epoch) = event {
                    self.report(&epoch);
                }
            }
        }
        loop {
            if let Err(error) = events.stop().await {
                tracing::debug!(%error, "training goes on");
            }
            sleep(INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_reported_once_and_none_after_the_end() {
        let mut reported = Vec::new();
        let mut epochs = Epochs::new(|epoch: &EpochRecord| {
            reported.push(epoch.epoch);
            match reported.len() {
                3 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        for epoch in [1, 3, 3, 1, 2, 4] {
            epochs.report(&EpochRecord {
                epoch,
                ..EpochRecord::default()
            });
        }
        assert_eq!(reported, [1, 3, 2]);
    }
}
