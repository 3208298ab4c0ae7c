//! Asks one random question after the other, and goes on after a failure.
//!
//! Question `n` of a run has the seed of the run plus `n`: each is asked again, alone, by its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::case::Case;
use crate::judge::{Failure, Judge, Verdict, What};
use crate::report::Report;
use crate::shrink::shrink;

/// How long to hunt, and how much of it goes into small examples.
#[derive(Debug)]
pub(crate) struct Hunt {
    /// The seed of the first question.
    pub(crate) seed: u64,
    pub(crate) queries: u64,
    pub(crate) until: Option<Instant>,
    /// Time for each failure that is made smaller.
    pub(crate) shrink: Duration,
    /// Failures that are made smaller of each kind, as far as it is known before.
    pub(crate) examples: usize,
}

/// An answer takes longer only if it hangs.
const DEADLINE: Duration = Duration::from_secs(40);
/// The same while a hang is made smaller.
const SHORT_DEADLINE: Duration = Duration::from_secs(8);
/// Questions at once.
const AT_ONCE: usize = 2;
/// Tries to see a failure again.
const TRIES: usize = 3;

impl Hunt {
    /// Hunts; how many kinds of failures there were.
    ///
    /// # Errors
    /// When files or the runtime cannot be made.
    pub(crate) fn run(&self, report: Report) -> Result<usize> {
        let judge = Judge::new()?;
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
        let verdict = judge.judge(&case, DEADLINE)?;
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

    /// The smallest case that fails in the same way.
    fn small(&self, judge: &Judge, case: &Case, failure: Failure) -> (Case, Failure) {
        // Each try of a hang takes a while.
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
        // What happens now and then is given as many tries.
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

/// Whether one may be a smaller example of the other.
fn is_alike(a: &What, b: &What) -> bool {
    match (a, b) {
        (What::Difference(_), What::Difference(_)) => true,
        _ => a == b,
    }
}
