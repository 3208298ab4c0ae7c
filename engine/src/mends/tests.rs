//! Tests that each mend is still needed, and that each rule it wraps exists: the first look when DataFusion has a new release.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::{env, fs};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::apply::Mended;
use super::list::{Act, MENDS, Mend, Upstream};

/// DataFusion alone, with mends.
fn session(mended: Mended) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(2);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .build();
    let mut logical = mended.first_planned();
    logical.extend(mended.logical(&mended.sent(state.optimizers())));
    let mut physical = mended.first();
    physical.extend(mended.physical(state.physical_optimizers()));
    physical.extend(mended.last_planned());
    physical.extend(mended.task());
    let mut state = SessionStateBuilder::new_from_existing(state)
        .with_optimizer_rules(logical)
        .with_physical_optimizer_rules(physical);
    mended.mend_analyzer(state.analyzer().get_or_insert_default());
    let context = SessionContext::new_with_state(state.build());
    for relations in mended.relations() {
        context.register_relation_planner(relations).unwrap();
    }
    context
}

/// Returns the rows of the last statement as lines of text, or the error.
async fn ask(mended: Mended, script: &str) -> Result<Vec<String>, String> {
    let dir = tempfile::tempdir().unwrap();
    let script = script.replace("DIR", &dir.path().display().to_string());
    let asked = tokio::spawn(async move {
        let context = session(mended);
        let mut rows = vec![];
        for statement in script.split(";\n") {
            let lines = statement.lines().filter(|line| !line.starts_with("--"));
            let statement = lines.collect::<Vec<_>>().join("\n");
            if !statement.trim().is_empty() {
                let state = context.state();
                let dialect = state.config_options().sql_parser.dialect;
                let statement = state.sql_to_statement(&statement, &dialect)?;
                let plan = mended.statement_to_plan(&context, &state, statement);
                let frame = context.execute_logical_plan(plan.await?).await?;
                rows = frame.collect().await?;
            }
        }
        lines(&rows)
    });
    match asked.await {
        Ok(asked) => asked.map_err(|error| error.to_string()),
        Err(panic) => Err(panic.to_string()),
    }
}

fn lines(rows: &[RecordBatch]) -> datafusion::error::Result<Vec<String>> {
    let options = FormatOptions::default();
    let mut lines = vec![];
    for batch in rows {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        lines.extend((0..batch.num_rows()).map(|row| {
            let cells = columns.iter().map(|column| column.value(row).to_string());
            cells.collect::<Vec<_>>().join(",")
        }));
    }
    Ok(lines)
}

/// Returns the right rows of a mend's query.
fn right(mend: &Mend) -> Vec<String> {
    let lines = mend
        .query
        .lines()
        .filter_map(|line| line.strip_prefix("-- "));
    lines.map(str::to_owned).collect()
}

/// Checks whether an answer is the right one.
fn is_right(answer: &Result<Vec<String>, String>, right: &[String]) -> bool {
    match (answer, right) {
        (Err(error), [right]) => right
            .strip_prefix("error: ")
            .is_some_and(|right| error.contains(right)),
        (Ok(rows), right) => rows == right,
        (Err(_), _) => false,
    }
}

/// Number of times that a query is asked without its mend, until its rows are not right.
const TIMES: usize = 4000;
/// Number of times with all mends.
const TIMES_MENDED: usize = 5;

// Which partition is first depends on threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mend_is_still_needed() {
    let mut said = String::new();
    for mend in MENDS {
        let (name, right) = (mend.name, right(mend));
        for _ in 0..TIMES_MENDED {
            let mended = ask(Mended::ALL, mend.query).await;
            if !is_right(&mended, &right) {
                writeln!(
                    said,
                    "{name}: with all mends {mended:?} instead of {right:?}"
                )
                .unwrap();
                break;
            }
        }
        // Which partition comes first decides of some, and is another one now and then.
        let mut without = Ok(right.clone());
        for _ in 0..TIMES {
            without = ask(Mended::without(name), mend.query).await;
            if !is_right(&without, &right) {
                break;
            }
        }
        if is_right(&without, &right) {
            writeln!(said, "{name}: no longer needed, delete it: right without").unwrap();
        } else {
            println!("{name}: without it {without:?}");
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

/// Prints the answer to a file of statements with all mends, and each answer that differs when one mend is left out: a tool
/// to find the smallest query.
#[tokio::test]
#[ignore = "asks the statements of the file VOLLEY_ASK"]
async fn ask_a_file() {
    let script = env::var_os("VOLLEY_ASK").expect("VOLLEY_ASK=a file of statements");
    let script = fs::read_to_string(script).unwrap();
    let mended = ask(Mended::ALL, &script).await;
    println!("with all mends {mended:?}");
    for mend in MENDS {
        let without = ask(Mended::without(mend.name), &script).await;
        if without != mended {
            println!("without {} {without:?}", mend.name);
        }
    }
}

#[test]
fn each_rule_that_a_mend_names_is_there() {
    let state = SessionStateBuilder::new_with_default_features().build();
    let logical = state.optimizers().iter().map(|rule| rule.name());
    let logical: BTreeSet<_> = logical.collect();
    let physical = state.physical_optimizers().iter().map(|rule| rule.name());
    let physical: BTreeSet<_> = physical.collect();
    for mend in MENDS {
        for act in mend.acts {
            let (there, names) = match act {
                Act::AroundLogical(name, _) | Act::BeforeSent(name, _) => (&logical, vec![*name]),
                Act::Around(names, _) => (&physical, names.to_vec()),
                Act::Before(name, _) | Act::After(name, _) => (&physical, vec![*name]),
                Act::Again(before, of, _) => (&physical, vec![*before, *of]),
                _ => continue,
            };
            for name in names {
                assert!(
                    there.contains(name),
                    "{}: DataFusion has no rule {name:?} any more, but {there:?}",
                    mend.name
                );
            }
        }
    }
}

/// As long as there are rules to come, keys of unnested rows are kept away.
#[test]
fn unnested_keys_are_remembered_last() {
    let state = SessionStateBuilder::new_with_default_features().build();
    let rules = Mended::ALL.logical(state.optimizers());
    let names: Vec<_> = rules.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.first(), Some(&"forget_unnested_keys"));
    assert_eq!(names.last(), Some(&"remember_unnested_keys"));
}

/// The marks around the list in the page.
const MARKS: [&str; 2] = [
    "<!-- mends: from engine/src/mends -->\n",
    "<!-- end of mends -->",
];

#[test]
fn the_page_on_correctness_lists_all_mends() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/correctness.md");
    let page = fs::read_to_string(path).unwrap();
    let mut list = String::from("| mend | DataFusion 55 alone | upstream |\n|---|---|---|\n");
    for mend in MENDS {
        let Mend { name, wrong, .. } = mend;
        let folder = format!("../engine/src/mends/{name}");
        let upstream = match mend.upstream {
            Upstream::Thread(thread) => {
                let (repository, number) = thread.split_once('#').unwrap();
                format!("[{thread}](https://github.com/{repository}/issues/{number})")
            }
            Upstream::Report(text) => {
                let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
                assert!(title.is_some(), "{name}: a report begins with its title");
                format!("[report]({folder}/upstream.md), not filed yet")
            }
        };
        writeln!(
            list,
            "| [{name}]({folder}/mod.rs) | {wrong} ([query]({folder}/query.sql)) | {upstream} |"
        )
        .unwrap();
    }
    let [begin, end] = MARKS.map(|mark| page.find(mark).expect("the page has both marks"));
    let begin = begin + MARKS[0].len();
    if page[begin..end] != list {
        if env::var_os("VOLLEY_WRITE_DOCS").is_some() {
            fs::write(path, [&page[..begin], &list, &page[end..]].concat()).unwrap();
            return;
        }
        panic!("docs/correctness.md has another list: VOLLEY_WRITE_DOCS=1 writes this one\n{list}");
    }
}
