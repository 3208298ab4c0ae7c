//! Random questions, asked of a cluster and of DataFusion alone in one process: same text, same files, same rows.
//!
//! ```text
//!   seed ─► tables, settings, question ─┬► files, a cluster of 1 to 4 executors ─┬► compared
//!                                       └► the same files, a SessionContext ─────┘     │
//!                             made smaller, told with its seed ◄── another answer, error, hang
//!
//!   cargo test --workspace --test differential                     known cases, and a fixed budget
//!   VOLLEY_SEED=17 VOLLEY_QUERIES=1 cargo test … a_fixed_budget    one question again
//!   VOLLEY_FUZZ=2h VOLLEY_REPORT=found.txt cargo test … -- --ignored hours
//! ```
//!
//! The fixed budget always has the same seed, so that changes in its result come from changes in the code; `hours`
//! draws a new one. Questions with several right answers are not drawn: see `query/draw`.

#![allow(clippy::unwrap_used)]

mod case;
mod clusters;
mod compare;
mod dice;
mod excused;
mod hunt;
mod judge;
mod known;
mod query;
mod report;
mod settings;
mod shrink;
mod sides;
mod sqllogictests;
mod tables;
mod witness;
mod writes;

use std::str::FromStr;
use std::time::{Duration, Instant};

use hunt::Hunt;
use report::Report;
use witness::Witness;

/// Questions that two cores answer in three minutes.
const BUDGET: u64 = 500;
/// Maximum number of questions in `hours`.
const MANY: u64 = 50_000;
/// Seed of the fixed budget.
const SEED: u64 = 1;

/// Reads an environment variable.
fn said<T: FromStr>(name: &str, example: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    Some(parsed.unwrap_or_else(|| panic!("{name}={value}: expected a value such as {example}")))
}

/// Returns a seed that was not used before.
fn fresh_seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    u64::try_from(now.as_micros() % 1_000_000_000_000).expect("twelve digits fit") * 1_000_000
}

fn report() -> Report {
    let path = std::env::var("VOLLEY_REPORT").ok();
    Report::new(path.as_deref()).unwrap()
}

#[test]
fn a_fixed_budget() {
    let hunt = Hunt {
        seed: said("VOLLEY_SEED", "17").unwrap_or(SEED),
        queries: said("VOLLEY_QUERIES", "1000").unwrap_or(BUDGET),
        until: None,
        shrink: Duration::from_secs(60),
        examples: 2,
    };
    let kinds = hunt.run(None, report()).unwrap();
    let fresh = fresh_seed();
    assert_eq!(
        kinds, 0,
        "kinds of failures, see above; VOLLEY_SEED={fresh} asks what nobody has asked before"
    );
}

#[test]
#[ignore = "it asks 50,000 questions, or those of VOLLEY_FUZZ=2h"]
fn hours() {
    let time = std::env::var("VOLLEY_FUZZ").ok();
    let time = time
        .map(|time| humantime::parse_duration(&time).expect("VOLLEY_FUZZ is a time such as 2h"));
    let seed = said("VOLLEY_SEED", "17").unwrap_or_else(fresh_seed);
    let hunt = Hunt {
        seed,
        queries: said("VOLLEY_QUERIES", "50000").unwrap_or(match time {
            Some(_) => u64::MAX,
            None => MANY,
        }),
        until: time.map(|time| Instant::now() + time),
        shrink: Duration::from_secs(60),
        examples: 4,
    };
    let mut report = report();
    report.say(&format!("differential: VOLLEY_SEED={seed}"));
    let witness = Witness::named();
    if witness.is_none() {
        report.say("no second witness: VOLLEY_DUCKDB names no Python with duckdb");
    }
    let kinds = hunt.run(witness, report).unwrap();
    assert_eq!(kinds, 0, "kinds of failures, see above");
}

#[test]
fn known_cases() {
    known::all();
}

#[test]
#[ignore = "it asks the files of VOLLEY_SQLLOGICTESTS=FOLDER, where the crate datafusion-sqllogictest lies"]
fn sqllogictests() {
    let root = std::env::var("VOLLEY_SQLLOGICTESTS").expect("VOLLEY_SQLLOGICTESTS is a folder");
    let only = std::env::var("VOLLEY_FILES").unwrap_or_default();
    let tally = sqllogictests::ask(root.as_ref(), &only).unwrap();
    assert_eq!(tally.end(), 0, "kinds of failures, see above");
}
