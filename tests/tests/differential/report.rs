//! Findings of a run: counted, sorted by kind, and written down as they occur.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use anyhow::{Context, Result};

use crate::case::Case;
use crate::judge::{Failure, Verdict, What};

/// Maximum number of seeds listed per kind.
const NAMED: usize = 8;

/// Counts of a run, and one example of each kind of failure.
#[derive(Debug, Default)]
pub(crate) struct Report {
    asked: usize,
    agreed: usize,
    /// Number of agreements with at least one row.
    with_rows: usize,
    out_of_memory: usize,
    both_fail: BTreeMap<String, Seen>,
    unsettled: BTreeMap<String, Seen>,
    failures: BTreeMap<String, Seen>,
    /// File that findings are written to as they occur, in case the run is ended early.
    file: Option<File>,
}

#[derive(Debug, Default)]
struct Seen {
    times: usize,
    seeds: Vec<u64>,
}

impl Seen {
    /// Counts an occurrence; returns true for the first one.
    fn add(&mut self, seed: u64) -> bool {
        self.times += 1;
        if self.seeds.len() < NAMED {
            self.seeds.push(seed);
        }
        self.times == 1
    }
}

impl Report {
    /// Creates a report that is also appended to this file, if one is named.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(crate) fn new(path: Option<&str>) -> Result<Self> {
        let open = |path: &str| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("cannot append to VOLLEY_REPORT={path}"))
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            ..Self::default()
        })
    }

    /// Counts a case's verdict. Failures are counted later, when their kind is known.
    pub(crate) fn count(&mut self, seed: u64, verdict: &Verdict) {
        self.asked += 1;
        match verdict {
            Verdict::Agreed(rows) => {
                self.agreed += 1;
                self.with_rows += usize::from(*rows > 0);
            }
            Verdict::OutOfMemory => self.out_of_memory += 1,
            Verdict::BothFail(text) => {
                if self.both_fail.entry(text.clone()).or_default().add(seed) {
                    self.say(&format!("fails on both sides, seed {seed}: {text}"));
                }
            }
            Verdict::Unsettled(text) => {
                if self.unsettled.entry(text.clone()).or_default().add(seed) {
                    self.say(&format!("unsettled, seed {seed}: {text}"));
                }
            }
            Verdict::Fails(_) => {}
        }
        const OFTEN: usize = 250;
        if self.asked.is_multiple_of(OFTEN) {
            let summary = self.summary();
            self.say(&summary);
        }
    }

    /// Counts a failure, and prints its example if its kind is new.
    pub(crate) fn fails(&mut self, seed: u64, case: &Case, failure: &Failure) {
        let kind = kind(case, failure);
        if self.failures.entry(kind.clone()).or_default().add(seed) {
            let said = example(seed, &kind, case, failure);
            self.say(&said);
        }
    }

    /// Counts a failure of a kind that has enough examples.
    pub(crate) fn fails_again(&mut self, seed: u64, failure: &Failure) {
        let what = match &failure.what {
            What::Difference(kind) => format!("{kind}: not made smaller"),
            What::Hang => "no answer in time: not made smaller".to_owned(),
            What::Error(text) => format!("error: {text}"),
            What::OnlyHere(text) => format!("an answer where DataFusion alone says: {text}"),
        };
        self.failures.entry(what).or_default().add(seed);
    }

    /// Returns the number of kinds of failures so far.
    pub(crate) fn kinds(&self) -> usize {
        self.failures.len()
    }

    /// Summarizes the counts in one line.
    pub(crate) fn summary(&self) -> String {
        let times =
            |seen: &BTreeMap<String, Seen>| seen.values().map(|seen| seen.times).sum::<usize>();
        format!(
            "differential: {} asked, {} agreed ({} with rows), {} fail on both sides, {} unsettled, \
             {} out of memory, {} failures of {} kinds",
            self.asked,
            self.agreed,
            self.with_rows,
            times(&self.both_fail),
            times(&self.unsettled),
            self.out_of_memory,
            times(&self.failures),
            self.failures.len(),
        )
    }

    /// Prints all kinds, the most frequent first.
    pub(crate) fn end(&mut self) {
        let mut said = self.summary();
        for (what, seen) in [
            ("fail on both sides", &self.both_fail),
            ("unsettled", &self.unsettled),
            ("FAILURES", &self.failures),
        ] {
            let mut seen: Vec<_> = seen.iter().collect();
            seen.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.times));
            said += &format!("\n--- {what}");
            for (text, seen) in seen {
                said += &format!(
                    "\n{:6} × {text}\n         seeds {:?}",
                    seen.times, seen.seeds
                );
            }
        }
        self.say(&said);
    }

    /// Prints at once, even where the output of tests is held back until one fails.
    pub(crate) fn say(&mut self, text: &str) {
        writeln!(std::io::stderr().lock(), "{text}").ok();
        if let Some(file) = &mut self.file {
            writeln!(file, "{text}").ok();
        }
    }
}

/// Returns the kind of a failure, which failures with one cause mostly share: the sort of failure, and the keywords
/// of the reduced query.
fn kind(case: &Case, failure: &Failure) -> String {
    let what = match &failure.what {
        What::Error(text) => return format!("error: {text}"),
        What::OnlyHere(text) => return format!("an answer where DataFusion alone says: {text}"),
        What::Hang => "no answer in time",
        What::Difference(kind) => kind,
    };
    let text = case.text();
    let words: Vec<_> = WORDS
        .iter()
        .copied()
        .filter(|word| text.contains(word))
        .collect();
    let formats = case
        .tables
        .iter()
        .map(|table| table.format.ending())
        .filter(|ending| *ending != "csv");
    let settings = case
        .settings
        .iter()
        .map(|setting| setting.key.rsplit('.').next().unwrap_or_default());
    let mut of: Vec<_> = words.into_iter().chain(formats).chain(settings).collect();
    of.dedup();
    format!("{what}: {}", of.join(", "))
}

/// Words that distinguish kinds of queries.
const WORDS: &[&str] = &[
    "COPY",
    "INSERT",
    "CREATE TABLE",
    "CREATE VIEW",
    "PARTITIONED BY",
    "WITH RECURSIVE",
    "UNION ALL",
    "UNION (",
    "INTERSECT",
    "EXCEPT",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "CROSS JOIN",
    " SEMI JOIN",
    " ANTI JOIN",
    " JOIN ",
    " < ",
    " >= ",
    " <> ",
    "NOT DISTINCT FROM",
    "NOT EXISTS",
    "EXISTS",
    "NOT IN (SELECT",
    " IN (SELECT",
    "(SELECT max",
    "(SELECT min",
    "OVER",
    "IGNORE NULLS",
    "FILTER",
    "ROWS",
    "RANGE",
    "GROUPS",
    "GROUP BY",
    "ROLLUP",
    "CUBE",
    "GROUPING SETS",
    "DISTINCT",
    "HAVING",
    "array_agg",
    "unnest",
    "VALUES",
    " ORDER BY ",
    "LIMIT",
    "OFFSET",
];

fn example(seed: u64, kind: &str, case: &Case, failure: &Failure) -> String {
    format!(
        "\n=== {kind}\n=== VOLLEY_SEED={seed} VOLLEY_QUERIES=1\n{}\n{}",
        case.describe(),
        failure.said
    )
}
