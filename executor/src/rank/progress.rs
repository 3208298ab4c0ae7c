//! Progress from the rank's thread to the scheduler, without making the thread wait.

use tokio::sync::mpsc;
use volley_proto::store::EpochRecord;
use volley_trainer::Observer;

use super::rendezvous::Rendezvous;

/// What a rank tells of itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    /// It has streamed its shards.
    Loaded { rows: u64, seconds: f64 },
    /// An epoch is done.
    Epoch(EpochRecord),
}

/// The rank thread's end: an observer that passes everything on.
#[derive(Debug)]
pub(super) struct Reporter {
    reports: mpsc::UnboundedSender<Report>,
    rank: usize,
}

/// An observer, and the work of sending on what it observes, which ends when it is dropped.
pub(super) fn reporter(
    rendezvous: Rendezvous,
    generation: u64,
    rank: usize,
) -> (Reporter, impl Future<Output = ()>) {
    let (reports, mut receiver) = mpsc::unbounded_channel();
    let send = async move {
        while let Some(report) = receiver.recv().await {
            rendezvous.report(generation, rank, report).await;
        }
    };
    (Reporter { reports, rank }, send)
}

impl Reporter {
    fn send(&self, report: Report) {
        // The receiver is gone when the task is: then nobody is interested.
        self.reports.send(report).ok();
    }
}

impl Observer for Reporter {
    fn loaded(&self, rows: u64, seconds: f64) {
        self.send(Report::Loaded { rows, seconds });
    }

    fn epoch(&self, record: &EpochRecord) {
        if self.rank == 0 {
            self.send(Report::Epoch(record.clone()));
        }
    }
}
