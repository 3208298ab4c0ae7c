//! Training runs as rows of tables.

use url::Url;
use volley_proto::TrainId;
use volley_proto::limits::row_count;
use volley_proto::store::EpochRecord;
use volley_proto::tables::{Epoch, Line, Point, Rank, Run as Row, RunState, millis};

use super::Runs;
use super::events::{Failure, RunEvent as Event};
use super::run::Run;
use crate::control::retained::Ends;

impl Runs {
    /// Returns the rows that `rows` makes of each run, or of one; the newest first.
    fn rows<T>(&self, of: Option<TrainId>, rows: impl Fn(&TrainId, &Run) -> Vec<T>) -> Vec<T> {
        let newest = self.iter().rev();
        let wanted = newest.filter(|(train, _)| of.is_none_or(|of| of == **train));
        wanted.flat_map(|(train, run)| rows(train, run)).collect()
    }

    /// Returns the runs that are over.
    pub(crate) fn over(&self) -> Vec<TrainId> {
        let over = self.iter().filter(|(_, run)| run.is_over());
        over.map(|(train, _)| *train).collect()
    }

    /// Returns the stores that runs publish to.
    pub(crate) fn stores(&self) -> Vec<Url> {
        let stores = self.iter().filter_map(|(_, run)| run.store().cloned());
        let mut stores: Vec<_> = stores.collect();
        stores.sort();
        stores.dedup();
        stores
    }

    /// Returns the rows of the runs.
    pub(crate) fn run_rows(&self, of: Option<TrainId>) -> Vec<Row> {
        self.rows(of, |train, run| vec![run.row(train)])
    }

    /// Returns the rows of their ranks.
    pub(crate) fn rank_rows(&self, of: Option<TrainId>) -> Vec<Rank> {
        self.rows(of, |train, run| {
            let executors = run.executors();
            run.progress()
                .ranks(&train.to_string(), run.generation(), &executors)
        })
    }

    /// Returns the rows of the epochs they have done.
    pub(crate) fn epoch_rows(&self, of: Option<TrainId>) -> Vec<Epoch> {
        self.rows(of, |train, run| run.epoch_rows(train))
    }

    /// Returns the rows of their curves.
    pub(crate) fn point_rows(&self, of: Option<TrainId>) -> Vec<Point> {
        self.rows(of, |train, run| {
            run.progress().points(&train.to_string(), &run.model())
        })
    }

    /// Returns the lines of their logs.
    pub(crate) fn lines(&self, of: Option<TrainId>) -> Vec<Line> {
        self.rows(of, |train, run| run.lines(train))
    }
}

impl Run {
    fn row(&self, train: &TrainId) -> Row {
        let progress = self.progress();
        let last = progress.last().cloned().unwrap_or_default();
        let state = self.state();
        let is_training = state == RunState::Training;
        Row {
            train_id: train.to_string(),
            model: self.model(),
            state,
            generation: self.generation(),
            ranks: self.executors().len() as u64,
            epoch: last.epoch,
            epochs: last.epochs,
            step: last.step,
            steps_per_epoch: last.steps_per_epoch,
            steps: self.steps_done(),
            loss: progress.loss(),
            eval_loss: self.epochs().last().and_then(|epoch| epoch.eval_loss),
            rows_per_second: progress.rate().filter(|_| is_training),
            eta_seconds: progress.eta_seconds().filter(|_| is_training),
            started: progress.started.map(millis),
            reason: self.reason(),
        }
    }

    /// Returns the state of the run.
    fn state(&self) -> RunState {
        let is_done = self.is_trained();
        match (self.is_over(), self.root().is_some()) {
            (true, true) => RunState::Failed,
            (true, false) if is_done => RunState::Finished,
            (true, false) => RunState::Ended,
            (false, _) if !self.has_begun() => RunState::Waiting,
            (false, _) if self.awaits_ranks() => RunState::Regrouping,
            (false, _) if self.progress().is_stepping() => RunState::Training,
            (false, _) => RunState::Loading,
        }
    }

    /// Returns what the run waits for, or why it failed.
    fn reason(&self) -> Option<String> {
        let waits = || match self.events().last() {
            Some(Event::Waiting { reason }) => Some(reason.clone()),
            _ => None,
        };
        let failed = self.root().map(|root| {
            let Failure {
                rank,
                executor,
                error,
            } = root;
            format!("rank {rank} on executor {executor}: {error}")
        });
        failed
            .or_else(|| self.over().map(str::to_owned))
            .or_else(waits)
    }

    fn epochs(&self) -> impl DoubleEndedIterator<Item = &EpochRecord> {
        self.events().iter().filter_map(|(_, event)| match event {
            Event::Epoch(record) => Some(record.as_ref()),
            _ => None,
        })
    }

    fn epoch_rows(&self, train: &TrainId) -> Vec<Epoch> {
        let (train, model) = (train.to_string(), self.model());
        let row = |record| Epoch::of(&train, &model, record);
        self.epochs().map(row).collect()
    }

    fn lines(&self, train: &TrainId) -> Vec<Line> {
        let line = |(at, event): (std::time::SystemTime, &Event)| {
            let (rank, text) = match event {
                Event::Waiting { reason } => (None, format!("waits: {reason}")),
                Event::Started {
                    generation,
                    executors,
                } => {
                    let ranks = executors.len();
                    let noun = if ranks == 1 { "rank" } else { "ranks" };
                    let on = executors.join(", ");
                    (
                        None,
                        format!("generation {generation}: {ranks} {noun} on {on}"),
                    )
                }
                Event::Loaded {
                    rank,
                    rows,
                    seconds,
                } => (
                    Some(*rank),
                    format!("{} loaded in {seconds:.1} s", row_count(*rows)),
                ),
                Event::Epoch(record) => {
                    let eval = record.eval_loss;
                    let eval = eval.map(|loss| format!(", eval_loss {loss:.5}"));
                    let text = format!("epoch {}: loss {:.5}", record.epoch, record.loss);
                    (None, text + &eval.unwrap_or_default())
                }
                Event::Failed(failure) => (Some(failure.rank), failure.error.clone()),
                Event::Note(note) => (None, note.clone()),
            };
            Line {
                at: millis(at),
                job_id: None,
                train_id: Some(train.to_string()),
                executor_id: None,
                rank: rank.map(|rank| rank as u64),
                failure: matches!(event, Event::Failed(_)),
                text,
            }
        };
        self.events().iter().map(line).collect()
    }
}
