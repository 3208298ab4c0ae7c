//! DataFusion's own sqllogictests, asked of both sides: questions that its developers thought of, in addition to
//! random ones.
//!
//! ```text
//!   crate datafusion-sqllogictest ─► files of statements ─► a session of a cluster ──┬► compared
//!                                                        └► a SessionContext ────────┘
//! ```
//!
//! A file is one session of each side, and its statements are asked one after the other, errors or not. The results
//! in the files are not read: DataFusion alone, of the same version and with the same partitions, is asked instead.
//! EXPLAIN statements are skipped, because plans are meant to differ.
//!
//! Files are paragraphs of lines, in which statements are easy to find; the crate `sqllogictest` would add features
//! that rebuild DataFusion.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use datafusion::prelude::{SessionConfig as DfConfig, SessionContext};
use datafusion::sql::parser::{DFParser, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::Statement as SqlStatement;
use tokio::runtime::Runtime;
use volley::{Session, SessionConfig};
use volley_proto::store::ModelStore;
use volley_tests::{Cluster, Setup};

use crate::compare::{Asked, Rows, check_types, difference};
use crate::judge::{describe, without_details};
use crate::sides::{self, Outcome, await_outcome};

/// Deadline of an answer, which only a hang exceeds.
const DEADLINE: Duration = Duration::from_secs(40);
/// Number of files processed at once.
const AT_ONCE: usize = 2;
/// Number of executors, of one slot each.
const EXECUTORS: usize = 2;
/// Number of partitions that the files are written for.
const PARTITIONS: usize = 4;

/// Statement of a file.
#[derive(Debug)]
struct Statement {
    line: usize,
    sql: String,
}

/// Texts of errors for statements that Volley refuses by name.
const REFUSED: &[&str] = &[
    "not supported: Delete on a table in memory",
    "not supported: Update on a table in memory",
    "not supported: user-defined functions in SQL",
    "encrypted Parquet files on a cluster",
    ": it stays on",
    ": it stays off",
    // Its plan is lost on the way to an executor.
    "Invalid function 'file_row_index'",
    "Arrow IPC field metadata cannot encode direct dictionary-of-dictionary",
    "Deregistering new schemas is not supported",
    "whose values cannot name folders",
    "a pattern that is computed: ~ takes regular expressions",
    // Appending to a file.
    "Inserting into a ListingTable backed by a single file is not supported",
];

/// Statements of DataFusion 55.2's files with a known different answer: place, kind of difference and reason.
const OTHERWISE: &[(&str, &str, &str)] = &[
    ("strings.slt:75", COUNT, SIMILAR),
    ("strings.slt:86", COUNT, SIMILAR),
    ("dictionary.slt:492", ROWS, LAYOUT),
    ("insert_to_external.slt:184", ROWS, LAYOUT),
    ("schema_evolution_nested.slt:104", ROWS, LAYOUT),
    ("parquet.slt:430", "other types", LAYOUT),
    ("parquet.slt:477", ROWS, LAYOUT),
    ("functional_dependencies.slt:76", COUNT, UNIQUE),
    ("functional_dependencies.slt:142", "another order", UNIQUE),
    ("functional_dependencies.slt:183", COUNT, UNIQUE),
    (
        "null_aware_anti_join.slt:174",
        COUNT,
        "DataFusion alone takes NULL for false beside OR",
    ),
    ("functional_dependencies.slt:207", NOT_GROUPED, KEYS),
    ("functional_dependencies.slt:228", NOT_GROUPED, KEYS),
    ("group_by.slt:3427", NOT_GROUPED, KEYS),
    ("group_by.slt:3442", NOT_GROUPED, KEYS),
    ("group_by.slt:3454", NOT_GROUPED, KEYS),
    ("group_by.slt:3497", NOT_GROUPED, KEYS),
    ("group_by.slt:3513", NOT_GROUPED, KEYS),
    ("group_by.slt:3541", NOT_GROUPED, KEYS),
    ("group_by.slt:3569", NOT_GROUPED, KEYS),
    ("group_by.slt:3585", NOT_GROUPED, KEYS),
    ("group_by.slt:3644", NOT_GROUPED, KEYS),
    ("group_by.slt:3659", NOT_GROUPED, KEYS),
    ("group_by.slt:3677", NOT_GROUPED, KEYS),
    ("group_by.slt:3707", NOT_GROUPED, KEYS),
    ("group_by.slt:3748", NOT_GROUPED, KEYS),
    ("group_by.slt:4491", NOT_GROUPED, KEYS),
    (
        "subquery.slt:440",
        "error: Correlated scalar subquery must be aggregated",
        KEYS,
    ),
    ("group_by.slt:5190", "another order", TIES),
    ("join_disable_repartition_joins.slt:64", ROWS, TIES),
    ("window.slt:3081", ROWS, "a limit without an order"),
];

/// Errors of DataFusion alone for statements that Volley answers.
const ONLY_HERE: &[&str] = &[
    // A file in place of a table.
    "table 'datafusion.public./",
    // Unbounded files, which Volley treats as bounded: a missing one, and operators that need all rows.
    "No such file or directory",
    "Cannot execute pipeline breaking queries",
    // FETCH FIRST n ROWS ONLY, which Volley treats as LIMIT n.
    "FETCH clause is not supported yet",
    // A comment in place of a statement.
    "No SQL statements were provided",
    // This process has a memory limit, and executors have their own.
    "Additional allocation failed for OrderedPartialAggregateStream",
];

const COUNT: &str = "another number of rows";
const NOT_GROUPED: &str = "must be in GROUP BY or inside an aggregate function";
const ROWS: &str = "other rows";
const TIES: &str = "rows that are equal in what they are ordered by";
const KEYS: &str = "nothing is concluded from keys that are declared";
const SIMILAR: &str = "patterns of SIMILAR TO are of all of a text, as SQL has it";
const LAYOUT: &str =
    "types of files by name: one layout of text and of bytes, and values of dictionaries";
const UNIQUE: &str = "DataFusion alone takes NULL to be there once in a UNIQUE column";

/// Result of a statement.
#[derive(Debug)]
enum Verdict {
    Agreed,
    BothFail,
    /// Volley refuses it by name, and DataFusion alone is not asked.
    Refused,
    /// DataFusion alone fails, or takes too long.
    OnlyHere,
    /// Known to have a different answer.
    Otherwise,
    Fails(String),
}

/// Results of all statements.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    asked: usize,
    agreed: usize,
    both_fail: usize,
    refused: usize,
    only_here: usize,
    otherwise: usize,
    /// Places of failures, by kind.
    failures: BTreeMap<String, Vec<String>>,
}

impl Tally {
    fn count(&mut self, verdict: Verdict, place: String) {
        self.asked += 1;
        match verdict {
            Verdict::Agreed => self.agreed += 1,
            Verdict::BothFail => self.both_fail += 1,
            Verdict::Refused => self.refused += 1,
            Verdict::OnlyHere => self.only_here += 1,
            Verdict::Otherwise => self.otherwise += 1,
            Verdict::Fails(what) => self.failures.entry(what).or_default().push(place),
        }
    }

    /// Prints all kinds of failures, the most frequent first, and returns their number.
    pub(crate) fn end(&self) -> usize {
        const NAMED: usize = 40;
        let mut kinds: Vec<_> = self.failures.iter().collect();
        kinds.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        for (kind, places) in &kinds {
            let some = &places[..places.len().min(NAMED)];
            eprintln!("{:6} × {kind}\n         {}", places.len(), some.join(" "));
        }
        let failures: usize = self.failures.values().map(Vec::len).sum();
        eprintln!(
            "sqllogictests: {} asked, {} agreed, {} fail on both sides, {} refused by name, \
             {} answered only here, {} otherwise as known, {failures} failures",
            self.asked, self.agreed, self.both_fail, self.refused, self.only_here, self.otherwise,
        );
        self.failures.len()
    }
}

/// Asks all files below `root/test_files`; relative paths in them are relative to `root`.
///
/// # Errors
/// When files cannot be read, or sessions cannot begin.
pub(crate) fn ask(root: &Path, only: &str) -> Result<Tally> {
    let root = root.canonicalize().context("VOLLEY_SQLLOGICTESTS")?;
    let all = glob::Pattern::escape(&root.to_string_lossy()) + "/test_files/**/*.slt";
    let mut files: Vec<PathBuf> = glob::glob(&all)?.collect::<Result<_, _>>()?;
    files.retain(|file| name_of(&root, file).to_string_lossy().contains(only));
    ensure!(!files.is_empty(), "no files with {only:?} in their names");
    let runtime = sides::runtime()?;
    let cluster = Cluster::start_with(Setup {
        executors: EXECUTORS,
        ..Setup::default()
    });
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let broken = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let asked = ask_file(&root, file, &runtime, &cluster, &tally);
                    if let Err(error) = asked.with_context(|| file.display().to_string()) {
                        *broken.lock().expect("nobody panics with it") = Some(error);
                        next.store(files.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match broken.into_inner().expect("nobody panics with it") {
        Some(error) => Err(error),
        None => Ok(tally.into_inner().expect("nobody panics with it")),
    }
}

/// Returns the name of a file.
fn name_of<'a>(root: &Path, file: &'a Path) -> &'a Path {
    file.strip_prefix(root.join("test_files")).unwrap_or(file)
}

/// Reads the statements of a file and of the files that it includes.
fn read(path: &Path, statements: &mut Vec<Statement>) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines().enumerate();
    let mut of_others = false;
    while let Some((number, line)) = lines.next() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("include") => {
                let folder = path.parent().unwrap_or(path);
                let pattern = folder.join(words.next().unwrap_or_default());
                let included = glob::glob(&pattern.to_string_lossy())?;
                for path in included {
                    read(&path?, statements)?;
                }
            }
            Some("onlyif") => of_others = true,
            Some("statement" | "query") => {
                let sql: Vec<_> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| !line.trim().is_empty() && *line != "----")
                    .collect();
                if !std::mem::take(&mut of_others) {
                    let (line, sql) = (number + 1, sql.join("\n"));
                    statements.push(Statement { line, sql });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Asks both sides each statement of a file.
fn ask_file(
    root: &Path,
    file: &Path,
    runtime: &Runtime,
    cluster: &Cluster,
    tally: &Mutex<Tally>,
) -> Result<()> {
    let mut statements = Vec::new();
    read(file, &mut statements)?;
    let name = name_of(root, file);
    let scratch = tempfile::Builder::new()
        .prefix("volley-differential-")
        .tempdir()?;
    // Each side writes into its own folder.
    let of_side = |sql: &str, side: &str| {
        let (root, scratch) = (root.display(), scratch.path().join(side));
        sql.replace("'test_files/scratch", &format!("'{}", scratch.display()))
            .replace("'test_files/", &format!("'{root}/test_files/"))
            .replace("'../", &format!("'{root}/../"))
            .replace("'data/", &format!("'{root}/data/"))
    };
    // Types of text and bytes are the cluster's.
    let config = DfConfig::new()
        .with_target_partitions(PARTITIONS)
        .with_information_schema(true)
        .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false)
        .set_bool(
            "datafusion.execution.parquet.schema_force_view_types",
            false,
        );
    let context = Arc::new(SessionContext::new_with_config(config));
    let mut config = SessionConfig::new(
        cluster.address(),
        ModelStore::directory_url(&cluster.store())?,
    );
    config.connect_timeout = Duration::from_secs(20);
    config.settings = [
        (
            "datafusion.execution.target_partitions",
            PARTITIONS.to_string(),
        ),
        // Small tables are distributed too.
        ("volley.single_task_bytes", "0".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    let session = Arc::new(runtime.block_on(Session::connect(config))?);
    for Statement { line, sql } in statements {
        if is_about_plans(&sql) {
            continue;
        }
        let (alone, here) = (of_side(&sql, "alone"), of_side(&sql, "here"));
        let (context, session) = (Arc::clone(&context), Arc::clone(&session));
        let got = await_outcome(runtime.handle(), DEADLINE, async move {
            let mut answer = Rows::default();
            for statement in session.parse(&here)? {
                let output = session.run(statement).await?;
                let schema = output.schema.clone();
                let batches = output.collect().await?;
                check_types(&schema, &batches)?;
                answer = Rows::of(&schema, &batches)?;
            }
            // The paths of Volley's files are replaced by the other side's.
            Ok(answer.replaced("/here/", "/alone/"))
        });
        let place = format!("{}:{line}", name.display());
        // A change that Volley refuses must not be made by DataFusion alone either.
        let verdict = match &got {
            Outcome::Error(error) if is_refused(error) => Verdict::Refused,
            _ => {
                let due = await_outcome(runtime.handle(), DEADLINE, async move {
                    let frame = context.sql(&alone).await?;
                    let schema = frame.schema().inner().clone();
                    Rows::of(&schema, &frame.collect().await?)
                });
                compare(&sql, &place, &due, &got)
            }
        };
        tally
            .lock()
            .expect("nobody panics with it")
            .count(verdict, place);
        if got == Outcome::Hang {
            break;
        }
    }
    Ok(())
}

/// Judges a statement's answers by Volley and by DataFusion alone.
fn compare(sql: &str, place: &str, due: &Outcome, got: &Outcome) -> Verdict {
    let what = match (due, got) {
        (Outcome::Rows(due), Outcome::Rows(got)) => {
            let order = match is_ordered(sql) {
                true => due.names.clone(),
                false => vec![],
            };
            let asked = Asked { order, some: None };
            match difference(due, got, &asked) {
                None => return Verdict::Agreed,
                Some(differs) => differs.kind().to_owned(),
            }
        }
        (Outcome::Error(_), Outcome::Error(_)) => return Verdict::BothFail,
        (_, Outcome::Hang) => "no answer in time".to_owned(),
        (Outcome::Hang, Outcome::Rows(_)) => return Verdict::OnlyHere,
        (Outcome::Error(error), Outcome::Rows(_)) => match is_only_here(error) {
            true => return Verdict::OnlyHere,
            false => format!(
                "an answer where DataFusion alone says: {}",
                without_details(error)
            ),
        },
        (_, Outcome::Error(error)) => format!("error: {}", without_details(error)),
    };
    let is_known = OTHERWISE
        .iter()
        .any(|(known, how, _)| *known == place && what.contains(how));
    let of_session = is_about_the_session(sql) && matches!(got, Outcome::Rows(_));
    if is_known || of_session {
        return Verdict::Otherwise;
    }
    eprintln!(
        "=== {what}\n=== {place}\n{sql}\nDataFusion alone: {}Volley: {}",
        describe(due),
        describe(got)
    );
    Verdict::Fails(what)
}

/// Returns whether a query requests an order.
fn is_ordered(sql: &str) -> bool {
    let statements = DFParser::parse_sql(sql).unwrap_or_default();
    statements.iter().any(|statement| match statement {
        DfStatement::Statement(statement) => {
            matches!(statement.as_ref(), SqlStatement::Query(query) if query.order_by.is_some())
        }
        _ => false,
    })
}

/// Returns whether Volley refuses a statement by name.
fn is_refused(error: &str) -> bool {
    REFUSED.iter().any(|refused| error.contains(refused))
}

/// Returns whether Volley may answer where DataFusion alone fails with this error.
fn is_only_here(error: &str) -> bool {
    ONLY_HERE.iter().any(|known| error.contains(known))
}

/// Checks for questions about the session: its tables, functions and settings differ between the sides.
fn is_about_the_session(sql: &str) -> bool {
    let sql = sql.to_lowercase();
    sql.contains("information_schema") || sql.trim_start().starts_with("show ")
}

/// Checks for EXPLAIN: plans are meant to differ.
fn is_about_plans(sql: &str) -> bool {
    let first = sql.split_whitespace().next().unwrap_or_default();
    first.eq_ignore_ascii_case("explain")
}
