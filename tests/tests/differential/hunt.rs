//! A loop of random questions that continues after failures.
//!
//! The seed of question `n` is the run's seed plus `n`, so that each can be repeated alone with its own seed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::case::Case;
use crate::excused;
use crate::judge::{Failure, Judge, Verdict, What};
use crate::report::Report;
use crate::shrink::shrink;
use crate::witness::Witness;

/// Length of a run, and effort for reducing failures to small examples.
#[derive(Debug)]
pub(crate) struct Hunt {
    /// Seed of the first question.
    pub(crate) seed: u64,
    pub(crate) queries: u64,
    pub(crate) until: Option<Instant>,
    /// Time for reducing one failure.
    pub(crate) shrink: Duration,
    /// Number of failures to reduce per kind, as far as the kind is known before.
    pub(crate) examples: usize,
}

/// Deadline of an answer, which only a hang exceeds.
const DEADLINE: Duration = Duration::from_secs(40);
/// Deadline of an answer while a hang is reduced.
const SHORT_DEADLINE: Duration = Duration::from_secs(8);
/// Number of concurrent questions.
const AT_ONCE: usize = 2;
/// Number of attempts to reproduce a failure.
const TRIES: usize = 3;

impl Hunt {
    /// Asks questions until the end of the run, and returns the number of kinds of failures.
    ///
    /// # Errors
    /// When files or the runtime cannot be created.
    pub(crate) fn run(&self, witness: Option<Witness>, report: Report) -> Result<usize> {
        let judge = Judge::new(witness)?;
        let report = Mutex::new(report);
        let (next, broken) = (AtomicU64::new(0), Mutex::new(None));
        let examples = Mutex::new(HashMap::new());
        std::thread::scope(|scope| {
            let work = || loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let is_over = self.until.is_some_and(|until| Instant::now() >= until);
                if number >= self.queries || is_over {
                    return;
                }
                let seed = self.seed.wrapping_add(number);
                if let Err(error) = self.one(&judge, seed, &report, &examples) {
                    *locked(&broken) = Some(error);
                    next.store(self.queries, Ordering::Relaxed);
                    return;
                }
            };
            for _ in 0..AT_ONCE {
                let thread = std::thread::Builder::new().stack_size(32 << 20);
                thread.spawn_scoped(scope, work).expect("a thread");
            }
        });
        if let Some(error) = broken.into_inner().expect("nobody panics with it") {
            return Err(error);
        }
        let mut report = report.into_inner().expect("nobody panics with it");
        report.end();
        Ok(report.kinds())
    }

    fn one(
        &self,
        judge: &Judge,
        seed: u64,
        report: &Mutex<Report>,
        examples: &Mutex<HashMap<What, usize>>,
    ) -> Result<()> {
        let case = Case::draw(seed);
        let verdict = match (judge.judge(&case, DEADLINE)?, excused::wrong(seed)) {
            (Verdict::Fails(_), Some(why)) => {
                Verdict::Unsettled(format!("DataFusion alone takes {why}"))
            }
            (Verdict::Agreed(_), Some(why)) => Verdict::Fails(Failure {
                what: What::Difference("no difference"),
                said: format!("DataFusion alone does not take {why} any more"),
            }),
            (verdict, _) => verdict,
        };
        locked(report).count(seed, &verdict);
        let Verdict::Fails(failure) = verdict else {
            return Ok(());
        };
        let few = {
            let mut examples = locked(examples);
            let seen = examples.entry(failure.what.clone()).or_default();
            *seen += 1;
            *seen <= self.examples
        };
        if !few {
            locked(report).fails_again(seed, &failure);
            return Ok(());
        }
        let (case, failure) = self.small(judge, &case, failure);
        locked(report).fails(seed, &case, &failure);
        Ok(())
    }

    /// Returns the smallest case found that fails in the same way.
    fn small(&self, judge: &Judge, case: &Case, failure: Failure) -> (Case, Failure) {
        // Each attempt at a hang takes a while.
        let (patience, time) = match failure.what {
            What::Hang => (SHORT_DEADLINE, 3 * self.shrink),
            What::Difference(_) | What::Error(_) | What::OnlyHere(_) => (DEADLINE, self.shrink),
        };
        let deadline = Instant::now() + time;
        let same = |candidate: &Case| match judge.judge(candidate, patience) {
            Ok(Verdict::Fails(other)) => is_alike(&other.what, &failure.what).then_some(other),
            _ => None,
        };
        let again = (0..TRIES).filter(|_| same(case).is_some()).count();
        if again == 0 {
            let said = format!("seen once, and not in {TRIES} more tries\n{}", failure.said);
            return (case.clone(), Failure { said, ..failure });
        }
        // An intermittent failure is given more attempts.
        let tries = if again == TRIES { 1 } else { 2 * TRIES };
        let mut last = None;
        let small = shrink(case, deadline, |candidate| {
            let seen = (0..tries).find_map(|_| same(candidate));
            let fails = seen.is_some();
            last = seen.or_else(|| last.take());
            fails
        });
        let mut failure = last.unwrap_or(failure);
        if again < TRIES {
            failure.said = format!("seen again in {again} of {TRIES} tries\n{}", failure.said);
        }
        (small, failure)
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("nobody panics with it")
}

/// Returns whether one failure may be a smaller example of the other.
fn is_alike(a: &What, b: &What) -> bool {
    match (a, b) {
        (What::Difference(_), What::Difference(_)) => true,
        _ => a == b,
    }
}
