//! Epochs of a training, each reported once.

use std::collections::BTreeSet;
use std::convert::Infallible;

use volley_proto::store::EpochRecord;

use crate::{TrainingEvent, TrainingEvents};

/// Callback for epochs, and the epochs that it was called with.
pub(super) struct Epochs<F> {
    report: F,
    /// Numbers of these epochs, from 1.
    reported: BTreeSet<usize>,
}

impl<F: FnMut(&EpochRecord)> Epochs<F> {
    pub(super) fn new(report: F) -> Self {
        Self {
            report,
            reported: BTreeSet::new(),
        }
    }

    /// Reports an epoch, unless it was reported before: a training that resumes from a checkpoint repeats epochs.
    pub(super) fn report(&mut self, epoch: &EpochRecord) {
        if self.reported.insert(epoch.epoch) {
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
        for epoch in [1, 3, 3, 1, 2] {
            epochs.report(&EpochRecord {
                epoch,
                ..EpochRecord::default()
            });
        }
        assert_eq!(reported, [1, 3, 2]);
    }
}
