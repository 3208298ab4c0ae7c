//! Epochs of a training, each reported once.

use std::convert::Infallible;

use volley_proto::store::EpochRecord;

use crate::{TrainingEvent, TrainingEvents};

/// Callback for epochs, and the last epoch it was called with.
pub(super) struct Epochs<F> {
    report: F,
    /// Number of the last epoch, from 1; 0 before the first.
    last: usize,
}

impl<F: FnMut(&EpochRecord)> Epochs<F> {
    pub(super) fn new(report: F) -> Self {
        Self { report, last: 0 }
    }

    /// Reports an epoch, unless it was reported before: a training that resumes from a checkpoint repeats epochs.
    pub(super) fn report(&mut self, epoch: &EpochRecord) {
        if epoch.epoch > self.last {
            self.last = epoch.epoch;
            (self.report)(epoch);
        }
    }

    /// Reports the epochs of a training as they end, until the future is dropped.
    pub(super) async fn follow(&mut self, events: &mut TrainingEvents) -> Infallible {
        loop {
            for event in events.next().await {
                if let TrainingEvent::Epoch(epoch) = event {
                    self.report(&epoch);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_reported_once() {
        let mut reported = Vec::new();
        let mut epochs = Epochs::new(|epoch: &EpochRecord| reported.push(epoch.epoch));
        for epoch in [1, 2, 2, 1, 3] {
            epochs.report(&EpochRecord {
                epoch,
                ..EpochRecord::default()
            });
        }
        assert_eq!(reported, [1, 2, 3]);
    }
}
