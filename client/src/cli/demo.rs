//! `volley demo rossmann`: the whole example, from seven tables to `submission.csv`, phase by phase.
//!
//! It runs the SQL files of `examples/rossmann` unchanged, each as a user could with `volley -f FILE --define data=…
//! --define out=…`; this module adds nothing to them.

use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use arrow::array::RecordBatch;
use volley_proto::limits::row_count;
use volley_proto::store::Manifest;
use volley_rossmann::sql;

use super::Ended;
use super::config::{Defines, Demo, DemoData, EngineConfig};
use super::engine::Engine;
use super::execute::collect;
use super::format::{Format, Formatter};
use super::progress::Style;
use super::report::{Stdout, cancelled, print};
use super::script::Named;
use super::signals::Interrupts;

/// Name of the model in the SQL files.
const MODEL: &str = "rossmann";

/// SQL of `sql::PREDICT`, except that closed stores sell nothing.
const PREDICT_CLOSED_AS_ZERO: &str = r#"
COPY (
  SELECT "Id", CASE WHEN "Open" IS FALSE THEN 0 ELSE "predicted_Sales" END AS "Sales"
  FROM ML.PREDICT(MODEL rossmann, (SELECT * FROM test_features))
  ORDER BY "Id"
) TO '${out}/submission.csv' STORED AS CSV OPTIONS ('format.has_header' 'true');
"#;

/// Evaluation of the held-out rows, in the scale of the sales themselves.
const EVALUATE: &str = "
SELECT * FROM ML.EVALUATE(MODEL rossmann, (SELECT * FROM training_set WHERE split = 'EVAL'));
";

/// Runs the example.
///
/// # Errors
/// Returns the first error, with the phase and statement where it happened.
pub(super) async fn run(demo: Demo) -> anyhow::Result<Ended> {
    let began = Instant::now();
    let mut interrupts = Interrupts::listen()?;
    make_directory(&demo.out)?;
    print(&format!("{}\n", Plan(&demo)))?;
    let data = provide_data(&demo.data)?;
    let started = Instant::now();
    let engine = match interrupts.stop(Engine::open(&demo.connection)).await {
        ControlFlow::Continue(engine) => engine?,
        ControlFlow::Break(code) => return Ok(cancelled(code)),
    };
    phase(
        "cluster",
        &format!("scheduler at {}", engine.scheduler),
        started,
    )?;
    let defines = defines(&demo, data);
    let ran = interrupts.stop(run_phases(&demo, &defines, &engine)).await;
    engine.close().await;
    match ran {
        ControlFlow::Continue(manifest) => conclude(&demo, &manifest?, began)?,
        ControlFlow::Break(code) => return Ok(cancelled(code)),
    }
    Ok(Ended::Done)
}

async fn run_phases(demo: &Demo, defines: &Defines, engine: &Engine) -> anyhow::Result<Manifest> {
    let predict = if demo.closed_as_zero {
        PREDICT_CLOSED_AS_ZERO
    } else {
        sql::PREDICT
    };
    let phases = [
        ("tables", sql::TABLES),
        ("features", sql::FEATURES),
        ("checks", sql::CHECKS),
        ("train", sql::TRAIN),
        ("evaluate", EVALUATE),
        ("predict", predict),
    ];
    for (name, text) in phases {
        let started = Instant::now();
        let script = Named::new(format!("{name}.sql"), text, defines)?;
        let statements = script.parse(&engine.session)?;
        let count = statements.len();
        let mut rows = Vec::new();
        for (place, statement) in statements {
            let done = collect(engine, statement, Style::of(false, false)).await;
            rows = done.map_err(|error| place.of(error.into()))?;
        }
        phase(
            name,
            &format!("{count} {}", plural(count, "statement")),
            started,
        )?;
        if matches!(name, "checks" | "train" | "evaluate") {
            print(&indented_table(&rows)?)?;
        }
    }
    let name = MODEL.parse().context("the model's name in the SQL files")?;
    Ok(engine.session.store().manifest(&name, None).await?)
}

/// Returns the directory of the tables, and generates them unless the user has them.
fn provide_data(data: &DemoData) -> anyhow::Result<&Path> {
    let started = Instant::now();
    match data {
        DemoData::At(dir) if !dir.is_dir() => bail!("{} is not a directory", dir.display()),
        DemoData::At(dir) => Ok(dir),
        DemoData::Generate(generate) => {
            let tables = super::generate::write(generate)?.tables;
            let rows: u64 = tables.iter().map(|table| table.rows).sum();
            let (count, dir) = (tables.len(), generate.out.display());
            phase(
                "generate",
                &format!("{count} tables of {} in {dir}", row_count(rows)),
                started,
            )?;
            Ok(&generate.out)
        }
    }
}

fn defines(demo: &Demo, data: &Path) -> Defines {
    let values = [
        ("data", data.display().to_string()),
        ("out", demo.out.display().to_string()),
        ("batch_size", demo.batch_size.to_string()),
        ("epochs", demo.epochs.to_string()),
        ("ranks", demo.ranks.to_string()),
        ("seed", demo.seed.to_string()),
    ];
    // The values stand inside SQL's quotes.
    values
        .into_iter()
        .map(|(name, value)| (name.into(), value.replace('\'', "''")))
        .collect()
}

fn conclude(demo: &Demo, manifest: &Manifest, began: Instant) -> anyhow::Result<()> {
    let kept = manifest
        .history
        .iter()
        .find(|record| record.epoch == manifest.kept_epoch);
    let rmspe = kept.and_then(|record| record.eval_rmspe);
    let model = demo
        .out
        .join("store/models")
        .join(MODEL)
        .join(manifest.version.to_string());
    let submission = demo.out.join("submission.csv");
    if !submission.exists() {
        bail!("{} was not written", submission.display());
    }
    let outcome = format!(
        "\neval_rmspe {}, epoch {} of {}, {} ranks, {} parameters\n",
        rmspe.map_or_else(|| "unknown".into(), |rmspe| format!("{rmspe:.5}")),
        manifest.kept_epoch,
        manifest.selection().len(),
        manifest.world_size,
        manifest.parameters
    );
    let places = format!(
        "model       {}\nhistory     {} (or ML.TRAINING_INFO(MODEL {MODEL}))\nsubmission  {}\n",
        model.display(),
        model.join("manifest.json").display(),
        submission.display()
    );
    let total = began.elapsed().as_secs_f64();
    print(&format!("{outcome}{places}total       {total:.1} s\n"))?;
    Ok(())
}

/// Plan of the demo, in one line.
struct Plan<'a>(&'a Demo);

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Demo {
            epochs,
            ranks,
            batch_size,
            connection,
            ..
        } = self.0;
        write!(
            f,
            "Rossmann: {epochs} {} on {ranks} ranks, ",
            plural(*epochs, "epoch")
        )?;
        write!(f, "batch {batch_size} per rank, on ")?;
        match &connection.engine {
            EngineConfig::Embedded(e) => write!(f, "{} executors in this process", e.executors),
            EngineConfig::Scheduler(address) | EngineConfig::Found(address) => {
                write!(f, "the cluster at {address}")
            }
        }
    }
}

fn phase(name: &str, what: &str, started: Instant) -> Result<(), Stdout> {
    let seconds = started.elapsed().as_secs_f64();
    print(&format!("{name:<10}  {seconds:>7.1} s  {what}\n"))
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 {
        noun.to_owned()
    } else {
        format!("{noun}s")
    }
}

fn indented_table(rows: &[RecordBatch]) -> anyhow::Result<String> {
    let mut formatter = Formatter::new(Format::Table);
    let mut text = Vec::new();
    for batch in rows {
        text.append(&mut formatter.push(batch)?);
    }
    text.append(&mut formatter.finish()?);
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().map(|line| format!("    {line}\n")).collect())
}

fn make_directory(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}
