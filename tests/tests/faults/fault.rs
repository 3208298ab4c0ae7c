//! A runner of a table of faults: several at once, each on its own cluster, with outcomes printed as soon as they are
//! known.

use std::any::Any;
use std::cell::Cell;
use std::io::Write;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Name of a fault, and its test, which panics on a wrong outcome.
pub(crate) type Fault = (&'static str, fn());

/// Number of faults of a group that run at once: most of their time is spent waiting.
const AT_ONCE: usize = 3;

/// Number of tries of a fault whose target keeps ending before it strikes.
const TRIES: u32 = 6;

thread_local! {
    /// Number of misses of this thread's fault.
    static MISSES: Cell<u32> = const { Cell::new(0) };
}

/// Reason why a fault has missed.
struct Missed(String);

/// Ends a try of a fault whose work was done before the fault struck. The fault is tried again with more work, and
/// fails if it misses each time.
pub(crate) fn missed(why: &str) -> ! {
    resume_unwind(Box::new(Missed(why.to_owned())))
}

/// Returns the factor of work over the first try: it doubles after each miss.
pub(crate) fn effort() -> u64 {
    1 << MISSES.get()
}

/// Runs a fault until it does not miss.
fn until_it_strikes(name: &str, run: fn()) -> Result<(), Box<dyn Any + Send>> {
    for misses in 0..TRIES {
        MISSES.set(misses);
        match catch_unwind(run) {
            Err(why) if why.is::<Missed>() => {
                let why = why.downcast::<Missed>().expect("it is one").0;
                say(&format!("fault {name} ... missed: {why}"));
            }
            ended => return ended,
        }
    }
    Err(Box::new(format!("it missed {TRIES} times")))
}

/// Runs the faults of a group, or those whose names contain `VOLLEY_FAULT`.
///
/// # Panics
/// When any of them has failed, after all have ended.
pub(crate) fn each(group: &str, faults: &[Fault]) {
    let wanted = std::env::var("VOLLEY_FAULT").unwrap_or_default();
    let named = |(name, run): &Fault| (format!("{group}: {name}"), *run);
    let chosen = faults.iter().map(named);
    let chosen: Vec<_> = chosen.filter(|(name, _)| name.contains(&wanted)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            while let Some((name, run)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let ended = until_it_strikes(name, *run);
                let seconds = started.elapsed().as_secs_f64();
                let Err(why) = ended else {
                    say(&format!("fault {name} ... ok in {seconds:.1} s"));
                    continue;
                };
                let text = why.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| why.downcast_ref::<&str>().copied());
                let text = text.unwrap_or("it panicked");
                say(&format!(
                    "fault {name} ... FAILED in {seconds:.1} s: {text}"
                ));
                failed.lock().unwrap().push(format!("{name}: {text}"));
            }
        };
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

/// Prints a line at once, even when the output of tests is captured.
pub(crate) fn say(line: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "{line}").ok();
}

/// Returns the seed of random draws: `VOLLEY_SEED`, or a new one. Prints it, so that a run can be repeated.
pub(crate) fn seed(what: &str) -> u64 {
    let given = std::env::var("VOLLEY_SEED").ok();
    let given = given.map(|seed| seed.parse().expect("VOLLEY_SEED is a whole number"));
    let seed = given.unwrap_or_else(|| {
        let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
        now.as_secs() % 1_000_000
    });
    say(&format!("{what}: VOLLEY_SEED={seed}"));
    seed
}
