//! Questions that were once answered wrongly, not at all, or refused: the smallest of each kind.
//!
//! Each has its files (made by DataFusion alone), its tables and its query; the answer is compared with DataFusion
//! alone, like that of a random question. All questions are asked before the test reports the failures.

mod clauses;
mod errors;
mod files;
mod joins;
mod subqueries;
mod windows;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use volley_tests::Cluster;

use crate::compare::{Asked, difference};
use crate::settings::Setting;
use crate::sides::{self, Outcome, Rules, Script, ask_reference, ask_volley};
use crate::witness::Witness;

/// Question that was once answered wrongly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    /// Settings for both sides, as `key = value`.
    pub(crate) settings: &'static [&'static str],
    /// Statements that DataFusion alone runs first, to make files below `DIR`.
    pub(crate) files: &'static [&'static str],
    /// Statements that both sides run first; `OUT` is a folder of each side.
    pub(crate) tables: &'static [&'static str],
    pub(crate) query: &'static str,
    /// Equivalent text for DataFusion alone, which fails on the query itself or answers it wrongly.
    pub(crate) means: Option<&'static str>,
    /// Columns that the query orders by.
    pub(crate) order: &'static [&'static str],
    /// Error of both sides, where they must fail.
    pub(crate) error: Option<&'static str>,
    /// Error of Volley where it refuses a query that DataFusion alone answers wrongly.
    pub(crate) refused: Option<&'static str>,
}

/// Empty question, to be completed.
pub(crate) const PLAIN: Known = Known {
    name: "",
    settings: &[],
    files: &[],
    tables: &[],
    query: "",
    means: None,
    order: &[],
    error: None,
    refused: None,
};

/// Deadline of an answer, which only a hang exceeds.
const DEADLINE: Duration = Duration::from_secs(30);
const EXECUTORS: usize = 2;

/// Asks all known questions.
///
/// # Panics
/// When any answer differs from that of DataFusion alone; the message names all of them.
pub(crate) fn all() {
    let wanted = std::env::var("VOLLEY_CASE").unwrap_or_default();
    let known = [
        joins::KNOWN,
        subqueries::KNOWN,
        windows::KNOWN,
        files::KNOWN,
        errors::KNOWN,
        clauses::KNOWN,
    ]
    .concat();
    let known: Vec<_> = known
        .into_iter()
        .filter(|known| known.name.contains(&wanted))
        .collect();
    let mut cluster = Cluster::start(EXECUTORS);
    let witness = Witness::named();
    if witness.is_none() {
        eprintln!("no second witness: VOLLEY_DUCKDB names no Python with duckdb");
    }
    let mut failed = Vec::new();
    for (number, known) in known.iter().enumerate() {
        if let Err(said) = ask(known, &mut cluster, witness.as_ref()) {
            eprintln!("known case {number} ... FAILED: {}\n{said}", known.name);
            failed.push(known.name);
        }
    }
    drop(cluster);
    assert!(
        failed.is_empty(),
        "{} of {} failed: {failed:#?}",
        failed.len(),
        known.len()
    );
}

/// Asks a question; returns a description of the failure if the answer is wrong.
fn ask(known: &Known, cluster: &mut Cluster, witness: Option<&Witness>) -> Result<(), String> {
    let dir = tempfile::Builder::new()
        .prefix("volley-known-")
        .tempdir()
        .unwrap();
    let runtime = sides::runtime().unwrap();
    let runtime = runtime.handle();
    let made = script(known.files, &[], dir.path(), "files");
    if let Outcome::Error(error) = ask_reference(runtime, &made, EXECUTORS, DEADLINE) {
        return Err(format!("the files cannot be made: {error}"));
    }
    let of = |side, query| {
        let statements = [known.tables, &[query]].concat();
        script(&statements, known.settings, dir.path(), side)
    };
    if let Some(due) = known.refused {
        let got = ask_volley(runtime, &of("volley", known.query), cluster, DEADLINE);
        return match got {
            Outcome::Error(said) if said.contains(due) => Ok(()),
            other => Err(format!("{}\nit says {other:?}, not {due:?}", known.query)),
        };
    }
    let alone = of("reference", known.means.unwrap_or(known.query));
    let due = ask_reference(runtime, &alone, EXECUTORS, DEADLINE);
    let got = ask_volley(runtime, &of("volley", known.query), cluster, DEADLINE);
    let due = match (due, known.error) {
        (Outcome::Rows(due), None) => due,
        (Outcome::Error(_), Some(due)) => {
            return match got {
                Outcome::Error(said) if said.contains(due) => Ok(()),
                other => Err(format!("{}\nit says {other:?}, not {due:?}", known.query)),
            };
        }
        (due, _) => return Err(format!("DataFusion alone: {due:?}")),
    };
    let asked = Asked {
        some: None,
        order: known.order.iter().map(ToString::to_string).collect(),
    };
    // Its dialect is another one: where it has no answer, or another one, that is no failure.
    if let Some(told) = witness.and_then(|witness| {
        witness
            .ask(&of("witness", known.query).statements, &due)
            .ok()
    }) && let Some(differs) = difference(&told, &due, &asked)
    {
        eprintln!(
            "{}: DuckDB has {}: {}",
            known.name,
            differs.kind(),
            differs.said()
        );
    }
    let mut said = format!("{}\n", known.query);
    match got {
        Outcome::Rows(rows) => match difference(&due, &rows, &asked) {
            None if known.means.is_some() => {
                let own = of("alone", known.query);
                let own = ask_reference(runtime, &own, EXECUTORS, DEADLINE);
                // Once is not always: where tasks decide, it may be wrong the next time.
                if let Outcome::Rows(own) = own
                    && difference(&due, &own, &asked).is_none()
                {
                    eprintln!(
                        "{}: DataFusion alone has answered it rightly, without its equivalent text",
                        known.name
                    );
                }
                return Ok(());
            }
            None => return Ok(()),
            Some(differs) => {
                let (due, got) = (due.describe(), rows.describe());
                let kind = differs.kind();
                let differs = differs.said();
                write!(
                    said,
                    "{kind}: {differs}\nDataFusion alone: {due}Volley: {got}"
                )
                .unwrap();
            }
        },
        Outcome::Error(error) => write!(said, "error: {error}").unwrap(),
        Outcome::Hang => {
            // Work left running by the question would affect the next one.
            *cluster = Cluster::start(EXECUTORS);
            said += "no answer in time";
        }
    }
    Err(said)
}

fn script(statements: &[&str], settings: &[&str], dir: &Path, side: &str) -> Script {
    let out = dir.join(side);
    std::fs::create_dir_all(&out).unwrap();
    let (dir, out) = (dir.display().to_string(), out.display().to_string());
    let setting = |text: &&str| {
        let (key, value) = text.split_once(" = ").expect("key = value");
        Setting {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    };
    Script {
        settings: settings.iter().map(setting).collect(),
        statements: statements
            .iter()
            .map(|text| text.replace("DIR", &dir).replace("OUT", &out))
            .collect(),
        rules: Rules::Default,
    }
}
