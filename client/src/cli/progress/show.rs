//! Display of progress: drawn as bars, written as lines, or written as JSON.
//!
//! The bar of a query is the mean of its stages' shares: of the rows that a stage reads, as far as their number is known or
//! estimated, else of its partitions. The time left follows from the share and the time elapsed; both are estimates, and marked
//! with `~`.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;
use volley_proto::limits::{grouped, row_count};
use volley_proto::notes::epochs_before_refit;
use volley_proto::tables::{Rank, Run, RunState, Stage, StageKind, StageState};

use super::clock::{Clock, Moment, seconds_left};
use super::{Snapshot, short};

/// Interval of progress lines where bars cannot be drawn.
const LINES: Duration = Duration::from_secs(5);
/// Length of the bar of a query, whose position is a share.
const WHOLE: u64 = 1000;
/// Share of the work and time from which the time left is estimated.
const TELLING: (f64, Duration) = (0.05, Duration::from_secs(1));
/// Maximum number of ranks with their own line on a terminal.
const RANKS: usize = 16;

/// Lines of bars. They are cut at the terminal's width: what a line that wraps leaves behind is not cleared.
const BAR: &str = "{prefix:>10} [{bar:20}] {wide_msg}";
const TEXT: &str = "{prefix:>10} {wide_msg}";

/// Style of the progress display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Style {
    /// No progress.
    Off,
    /// Bars that are redrawn.
    Bars,
    /// A line every few seconds.
    Lines,
    /// A line with a JSON object, every few seconds and for each event.
    Json,
}

impl Style {
    /// Returns the style for standard error.
    pub(in super::super) fn of(quiet: bool, json: bool) -> Self {
        match (quiet, json) {
            (true, _) => Self::Off,
            (false, true) => Self::Json,
            (false, false) if stderr().is_terminal() => Self::Bars,
            (false, false) => Self::Lines,
        }
    }
}

/// Display of snapshots and events.
pub(super) struct Show {
    style: Style,
    bars: MultiProgress,
    stages: Option<ProgressBar>,
    run: Option<ProgressBar>,
    /// Line of the run's figures, below its bar.
    figures: Option<ProgressBar>,
    ranks: Vec<ProgressBar>,
    /// Time at which the work began.
    began: Clock,
    /// Time and text of the last line.
    last: (Instant, String),
    /// Number of epochs before a refit that an event has announced.
    before_refit: Option<u64>,
}

impl Show {
    pub(super) fn new(style: Style) -> Self {
        Self {
            style,
            bars: MultiProgress::new(),
            stages: None,
            run: None,
            figures: None,
            ranks: Vec::new(),
            began: Clock::start(),
            last: (Instant::now(), String::new()),
            before_refit: None,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.style != Style::Off
    }

    /// Shows events.
    pub(super) fn events(&mut self, lines: &[String]) {
        for line in lines {
            self.before_refit = epochs_before_refit(line).or(self.before_refit);
            match self.style {
                Style::Off => {}
                Style::Bars => self.bars.suspend(|| eprintln!("{line}")),
                Style::Lines => eprintln!("{line}"),
                Style::Json => eprintln!("{}", json!({ "event": line })),
            }
        }
    }

    /// Shows a snapshot of the progress.
    pub(super) fn snapshot(&mut self, snapshot: &Snapshot) {
        if snapshot.stages.is_empty() && snapshot.run.is_none() {
            return;
        }
        let queries = Queries::of(&snapshot.stages, self.began.elapsed());
        self.began.note(queries.share());
        match self.style {
            Style::Off => {}
            Style::Bars => self.draw(snapshot),
            Style::Lines | Style::Json if self.last.0.elapsed() < LINES => {}
            Style::Lines => {
                let line = line(snapshot, self.before_refit, self.began.elapsed());
                // A line that has not changed, such as one of a waiting job, is not repeated.
                if line != self.last.1 {
                    eprintln!("{line}");
                }
                self.last = (Instant::now(), line);
            }
            Style::Json => {
                let Snapshot {
                    stages,
                    waits,
                    run,
                    ranks,
                    again: _,
                } = snapshot;
                let queries = Queries::of(stages, self.began.elapsed());
                let progress = json!({
                    "stages": queries.stages,
                    "stages_done": queries.stages_done,
                    "partitions": queries.partitions,
                    "partitions_done": queries.done,
                    "rows_read": queries.rows_read,
                    "rows_to_read": queries.rows_to_read,
                    "seconds": queries.moment.elapsed.as_secs_f64(),
                    "seconds_left": queries.left().map(|left| left.as_secs_f64()),
                    "waits": waits,
                    "training": run,
                    "ranks": ranks,
                });
                eprintln!("{}", json!({ "progress": progress }));
                self.last.0 = Instant::now();
            }
        }
    }

    /// Clears the bars.
    pub(super) fn finish(&mut self) {
        if self.style == Style::Bars {
            let bars = [self.stages.take(), self.run.take(), self.figures.take()];
            let bars = bars.into_iter().flatten();
            bars.chain(self.ranks.drain(..))
                .for_each(|bar| bar.finish_and_clear());
        }
    }

    fn draw(&mut self, snapshot: &Snapshot) {
        let Snapshot {
            stages,
            waits,
            run,
            ranks,
            again: _,
        } = snapshot;
        let run = run.as_ref().filter(|run| run.generation > 0);
        let queries = Queries::of(stages, self.began.elapsed());
        let styled = |bar: ProgressBar, template: &str| {
            bar.set_style(
                ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar())
                    .progress_chars("=> "),
            );
            bar
        };
        let add = |template: &str| styled(self.bars.add(ProgressBar::new(1)), template);
        if run.is_none() || !queries.is_done() {
            let bar = self.stages.get_or_insert_with(|| add(BAR));
            bar.set_length(WHOLE);
            bar.set_position((queries.share() * WHOLE as f64) as u64);
            bar.set_prefix("stages");
            bar.set_message(match waits {
                Some(reason) => format!("waits: {reason}"),
                None => queries.to_string(),
            });
        } else if let Some(bar) = self.stages.take() {
            bar.finish_and_clear();
        }
        let Some(run) = run else { return };
        let bar = self.run.get_or_insert_with(|| add(BAR));
        bar.set_length((run.epochs * run.steps_per_epoch).max(1));
        bar.set_position(run.epoch.saturating_sub(1) * run.steps_per_epoch + run.step);
        bar.set_prefix("training");
        bar.set_message(advance(run, self.before_refit));
        let figures = figures(run).join(", ");
        if !figures.is_empty() || self.figures.is_some() {
            let line = self.figures.get_or_insert_with(|| {
                let line = self.bars.insert_after(bar, ProgressBar::new(1));
                styled(line, TEXT)
            });
            line.set_message(figures);
        }
        while self.ranks.len() < ranks.len().min(RANKS) {
            self.ranks.push(add(TEXT));
        }
        for gone in self.ranks.drain(ranks.len().min(self.ranks.len())..) {
            gone.finish_and_clear();
        }
        for (bar, rank) in self.ranks.iter().zip(ranks) {
            bar.set_prefix(format!("rank {}", rank.rank));
            bar.set_message(share(rank));
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Progress of a job's ordinary stages.
#[derive(Debug, Default)]
struct Queries {
    stages: usize,
    stages_done: usize,
    partitions: u64,
    done: u64,
    /// Sum of the stages' shares.
    shares: f64,
    /// Rows that stages have read.
    rows_read: u64,
    /// Rows that they read in all, unless that of one is not known.
    rows_to_read: Option<u64>,
    running: Vec<String>,
    moment: Moment,
}

impl Queries {
    fn of(stages: &[Stage], moment: impl Into<Moment>) -> Self {
        let mut all = Self {
            rows_to_read: Some(0),
            moment: moment.into(),
            ..Self::default()
        };
        for stage in stages.iter().filter(|stage| stage.kind == StageKind::Query) {
            all.stages += 1;
            all.stages_done += usize::from(stage.state == StageState::Succeeded);
            all.partitions += stage.partitions;
            all.done += stage.partitions_done;
            all.shares += share_of(stage);
            all.rows_read += stage.rows_read;
            let to_read = all.rows_to_read.zip(stage.rows_to_read);
            all.rows_to_read = to_read.map(|(all, of_stage)| all + of_stage);
            if stage.running > 0 {
                let operator = stage.operator.split([':', ' ']).next();
                let operator = operator.unwrap_or_default();
                all.running.push(format!("{} {operator}", stage.stage_id));
            }
        }
        all
    }

    fn is_done(&self) -> bool {
        self.stages_done == self.stages
    }

    /// Returns the share of the work that is done.
    fn share(&self) -> f64 {
        self.shares / self.stages.max(1) as f64
    }

    /// Estimates the time that is left, once enough is done to tell.
    fn left(&self) -> Option<Duration> {
        let (least, early) = TELLING;
        let share = self.share();
        let Moment {
            elapsed,
            changed,
            tells,
        } = self.moment;
        let tells = tells && share >= least && elapsed >= early;
        let left = seconds_left(share.max(least), changed);
        let since = elapsed.saturating_sub(changed);
        tells.then(|| Duration::from_secs_f64(left).saturating_sub(since))
    }
}

/// Returns the share of a stage's work that is done.
fn share_of(stage: &Stage) -> f64 {
    let of = |part: u64, whole: u64| (part as f64 / whole.max(1) as f64).min(1.0);
    match stage.rows_to_read {
        _ if stage.state == StageState::Succeeded => 1.0,
        Some(whole @ 1..) => of(stage.rows_read, whole),
        _ => of(stage.partitions_done, stage.partitions),
    }
}

impl std::fmt::Display for Queries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            stages,
            stages_done,
            rows_read,
            running,
            ..
        } = self;
        write!(f, "{}", grouped(*rows_read))?;
        match self.rows_to_read {
            // Filters that files answer by themselves leave fewer rows than are expected, and a lost task reads again.
            Some(rows) if !self.is_done() => {
                write!(f, " of ~{}", grouped(rows.max(*rows_read)))?;
            }
            _ => {}
        }
        write!(f, " rows read, {stages_done} of {stages} stages done")?;
        if !running.is_empty() {
            write!(f, "; now {}", running.join(", "))?;
        }
        write!(f, "; {} s", self.moment.elapsed.as_secs())?;
        if let Some(left) = self.left().filter(|_| !self.is_done()) {
            write!(f, ", ~{} s left", left.as_secs())?;
        }
        Ok(())
    }
}

/// Formats a snapshot as a line; a refit may follow after some epochs.
fn line(snapshot: &Snapshot, before_refit: Option<u64>, elapsed: impl Into<Moment>) -> String {
    match (&snapshot.run, &snapshot.waits) {
        (Some(run), _) if run.generation > 0 => training(run, before_refit),
        (_, Some(reason)) => format!("waits: {reason}"),
        _ => format!("stages: {}", Queries::of(&snapshot.stages, elapsed)),
    }
}

/// Formats the progress of training as a line; a refit may follow after some epochs.
fn training(run: &Run, before_refit: Option<u64>) -> String {
    let mut parts = vec![position(run, before_refit)];
    parts.extend(figures(run));
    parts.extend(left(run));
    parts.join(", ")
}

/// Formats how far training is.
fn advance(run: &Run, before_refit: Option<u64>) -> String {
    let parts = [Some(position(run, before_refit)), left(run)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats the epoch and step of training, or else its state.
fn position(run: &Run, before_refit: Option<u64>) -> String {
    if run.state != RunState::Training {
        let reason = run.reason.as_ref();
        let reason = reason.map(|reason| format!(": {reason}"));
        return format!("{}{}", run.state, reason.unwrap_or_default());
    }
    let Run {
        epoch,
        epochs,
        step,
        steps_per_epoch,
        ..
    } = run;
    // The epochs are those of both, until the refit begins and has as many as were the best.
    let epochs = match before_refit {
        Some(before) if before < *epochs && *epoch <= before => format!("{before} (then a refit)"),
        _ => epochs.to_string(),
    };
    format!("epoch {epoch} of {epochs}, step {step} of {steps_per_epoch}")
}

/// Formats the losses and the speed of training, as far as they are known.
fn figures(run: &Run) -> Vec<String> {
    if run.state != RunState::Training {
        return Vec::new();
    }
    let figures = [
        run.loss.map(|loss| format!("loss {}", short(loss))),
        run.eval_loss
            .map(|loss| format!("validation {}", short(loss))),
        run.rows_per_second.map(|rate| format!("{rate:.0} rows/s")),
    ];
    figures.into_iter().flatten().collect()
}

/// Formats the time that training takes from now on, if it is known.
fn left(run: &Run) -> Option<String> {
    let left = run
        .eta_seconds
        .filter(|_| run.state == RunState::Training)?;
    let left = Duration::from_secs_f64(left.clamp(0.0, 1e9));
    Some(format!("~{} left", HumanDuration(left)))
}

/// Formats the executor and rows of a rank, and the shares of its time since its generation began.
fn share(rank: &Rank) -> String {
    let executor = &rank.executor_id;
    let (Some(rows), Some(load)) = (rank.rows, rank.load_seconds) else {
        return format!("on {executor}: waiting for rows");
    };
    let (compute, reduce) = (rank.compute_seconds, rank.reduce_seconds);
    let told = load + compute + reduce;
    // The scheduler's clock and the rank's differ a little.
    let all = rank.seconds.max(told);
    let percent = |seconds: f64| 100.0 * seconds / all.max(1e-9);
    format!(
        "on {executor}: {}; {:.0} % loading, {:.0} % computing, {:.0} % reducing, {:.0} % other",
        row_count(rows),
        percent(load),
        percent(compute),
        percent(reduce),
        percent(all - told)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(state: RunState) -> Run {
        Run {
            train_id: "t".into(),
            model: "m".into(),
            state,
            generation: 1,
            ranks: 2,
            epoch: 3,
            epochs: 10,
            step: 120,
            steps_per_epoch: 400,
            steps: 920,
            loss: Some(0.01234),
            eval_loss: None,
            rows_per_second: Some(5132.4),
            eta_seconds: Some(130.0),
            started: None,
            reason: None,
        }
    }

    #[test]
    fn training_in_a_line() {
        let line = "epoch 3 of 10, step 120 of 400, loss 0.01234, 5132 rows/s, ~2 minutes left";
        assert_eq!(training(&run(RunState::Training), None), line);
        for (before, due) in [
            (5, "epoch 3 of 5 (then a refit), step 120"),
            (2, "epoch 3 of 10, step"),
        ] {
            let refits = training(&run(RunState::Training), Some(before));
            assert!(refits.starts_with(due), "{refits}");
        }
        assert_eq!(
            advance(&run(RunState::Training), None),
            "epoch 3 of 10, step 120 of 400, ~2 minutes left"
        );
        assert_eq!(
            figures(&run(RunState::Training)),
            ["loss 0.01234", "5132 rows/s"]
        );
        assert_eq!(training(&run(RunState::Loading), None), "loading");
        let waits = Run {
            reason: Some("rank 1 was lost".into()),
            ..run(RunState::Regrouping)
        };
        assert_eq!(training(&waits, None), "regrouping: rank 1 was lost");
    }

    #[test]
    fn stages_in_a_line() {
        let stage = |id, kind, state, done| Stage {
            job_id: "j".into(),
            train_id: None,
            stage_id: id,
            kind,
            state,
            partitions: 4,
            partitions_done: done,
            running: u64::from(state == StageState::Running),
            attempts: 1,
            tasks_failed: 0,
            started: None,
            ended: None,
            bytes_read: None,
            rows_read: 250_000 * done,
            rows_to_read: (id != 3).then_some(1_000_000),
            rows: None,
            rows_written: None,
            bytes: 0,
            spilled_bytes: 0,
            tasks_done: 0,
            seconds: None,
            fastest_seconds: None,
            median_seconds: None,
            slowest_seconds: None,
            task_histogram: Vec::new(),
            executors: Vec::new(),
            inputs: Vec::new(),
            description: String::new(),
            operator: "HashJoinExec: mode=CollectLeft".into(),
            plan: String::new(),
            operators: Vec::new(),
        };
        let stages = vec![
            stage(1, StageKind::Query, StageState::Succeeded, 4),
            stage(2, StageKind::Query, StageState::Running, 1),
            stage(3, StageKind::Training, StageState::Waiting, 0),
        ];
        let mut snapshot = Snapshot {
            stages,
            ..Snapshot::default()
        };
        let at = |snapshot: &Snapshot, seconds| line(snapshot, None, Duration::from_secs(seconds));
        assert_eq!(
            at(&snapshot, 5),
            "stages: 1,250,000 of ~2,000,000 rows read, 1 of 2 stages done; now 2 HashJoinExec; 5 s, ~3 s left"
        );
        // Within a task, too: no partition is done.
        snapshot.stages[1].partitions_done = 0;
        snapshot.stages[1].rows_read = 500_000;
        assert_eq!(Queries::of(&snapshot.stages, Duration::ZERO).share(), 0.75);
        // Of text files nobody knows how many rows they have.
        snapshot.stages[1].rows_to_read = None;
        assert_eq!(
            at(&snapshot, 0),
            "stages: 1,500,000 rows read, 1 of 2 stages done; now 2 HashJoinExec; 0 s"
        );
        assert_eq!(Queries::of(&snapshot.stages, Duration::ZERO).share(), 0.5);
    }

    #[test]
    fn what_a_query_waits_for_in_a_line() {
        let snapshot = Snapshot {
            waits: Some("training m holds both slots".into()),
            ..Snapshot::default()
        };
        assert_eq!(
            line(&snapshot, None, Duration::ZERO),
            "waits: training m holds both slots"
        );
    }

    #[test]
    fn a_rank_in_a_line() {
        let rank = Rank {
            train_id: "t".into(),
            generation: 1,
            rank: 0,
            executor_id: "e-0".into(),
            rows: Some(1000),
            load_seconds: Some(1.0),
            compute_seconds: 8.0,
            reduce_seconds: 1.0,
            seconds: 20.0,
        };
        assert_eq!(
            share(&rank),
            "on e-0: 1,000 rows; 5 % loading, 40 % computing, 5 % reducing, 50 % other"
        );
    }
}
