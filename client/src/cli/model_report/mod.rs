//! `volley report MODEL`: one HTML file that says what a model is, how it was trained, and how well it
//! predicts rows that it is shown. It refers to nothing outside itself.

mod charts;
mod page;

use std::ops::ControlFlow;

use anyhow::{Context, bail};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::array_value_to_string;
use volley::{Model, Session};
use volley_proto::store::Manifest;

use self::page::{Group, Page, Shown};
use super::Ended;
use super::config::ModelReport;
use super::engine::Engine;
use super::execute::{collect, write};
use super::progress::Style;
use super::script;
use super::signals::Interrupts;

/// Points of the scatter of predicted over actual.
const POINTS: usize = 2000;
/// Groups that are shown of each column, the worst ones first.
const GROUPS: usize = 20;

/// Writes the report.
///
/// # Errors
/// When there is no such model, the rows cannot be predicted, or the file cannot be written.
pub(super) async fn run(report: &ModelReport) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    let scripts = script::load(&report.sources, &report.defines)?;
    let engine = match interrupts.stop(Engine::open(&report.connection)).await {
        ControlFlow::Continue(engine) => engine?,
        ControlFlow::Break(code) => return Ok(Ended::Interrupted(code)),
    };
    let made = interrupts.stop(async {
        let name = report.model.parse()?;
        let model = Model::load_version(&engine.session, &name, report.version).await?;
        for script in &scripts {
            for (place, statement) in script.parse(&engine.session)? {
                let done = collect(&engine, statement, Style::Off).await;
                done.context(place)?;
            }
        }
        let shown = match &report.rows {
            Some(rows) => Some(show(&engine.session, model.manifest(), rows, &report.by).await?),
            None if !report.by.is_empty() => bail!("--by needs --rows: a query of rows to predict"),
            None => None,
        };
        let page = Page {
            manifest: model.manifest(),
            shown,
        };
        let html = page.html()?;
        std::fs::write(&report.out, html)
            .with_context(|| format!("cannot write {}", report.out.display()))?;
        write(format!("{}\n", report.out.display()).as_bytes()).await?;
        anyhow::Ok(())
    });
    let ended = match made.await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) => Ok(Ended::Interrupted(code)),
    };
    engine.close().await;
    ended
}

/// Predicts rows, and says how far off that is: a sample of points, and errors by groups.
async fn show(
    session: &Session,
    manifest: &Manifest,
    rows: &str,
    by: &[String],
) -> anyhow::Result<Shown> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let label = quoted(manifest.spec.label.column());
    if !manifest.spec.label.several().is_empty() {
        bail!("not supported: --rows of a model with several labels; ask ML.EVALUATE");
    }
    if manifest.classes.is_some() {
        bail!("not supported: --rows of a model that predicts classes; ask ML.EVALUATE");
    }
    let predicted = quoted(&manifest.predicted().name);
    let model = quoted(manifest.spec.model.as_str());
    let rows = rows.trim().trim_end_matches(';');
    let from = format!(
        "(SELECT * FROM ML.PREDICT(MODEL {model}, {}, ({rows}))) AS shown WHERE {label} IS NOT NULL",
        manifest.version
    );
    let errors = format!(
        "count(*) AS n, avg(abs({predicted} - {label})) AS mae, \
         sqrt(avg(CASE WHEN {label} > 0.001 THEN power(({label} - {predicted}) / {label}, 2) END)) AS rmspe"
    );
    let query = async |sql: String| {
        let frame = session.sql(&sql).await.context("--rows")?;
        let batches = frame.collect().await.map_err(volley::Error::from);
        anyhow::Ok(batches.context("--rows")?)
    };
    let all = query(format!("SELECT {errors} FROM {from}")).await?;
    let all = groups(&all, None)?;
    let total = all.into_iter().next().context("--rows gave no rows")?;
    if total.rows == 0 {
        bail!("--rows: none of the rows has a label to compare with");
    }
    let sample = format!(
        "SELECT CAST({label} AS DOUBLE) AS actual, CAST({predicted} AS DOUBLE) AS predicted \
         FROM {from} ORDER BY random() LIMIT {POINTS}"
    );
    let mut points = Vec::new();
    for batch in query(sample).await? {
        let [actual, predicted] = [0, 1].map(|at| batch.column(at).as_primitive::<Float64Type>());
        points.extend(
            actual
                .values()
                .iter()
                .copied()
                .zip(predicted.values().iter().copied()),
        );
    }
    let mut by_column = Vec::new();
    for column in by {
        let name = quoted(column);
        let sql = format!(
            "SELECT {errors}, {name} AS value FROM {from} GROUP BY {name} ORDER BY rmspe DESC, mae DESC"
        );
        by_column.push((column.clone(), groups(&query(sql).await?, Some(3))?));
    }
    Ok(Shown {
        total,
        points,
        by: by_column,
        most: GROUPS,
    })
}

/// Rows of errors, with what they are of.
fn groups(batches: &[RecordBatch], name: Option<usize>) -> anyhow::Result<Vec<Group>> {
    let mut groups = Vec::new();
    for batch in batches {
        let numbers = |at: usize| cast(batch.column(at), &DataType::Float64);
        let columns = [numbers(0)?, numbers(1)?, numbers(2)?];
        for row in 0..batch.num_rows() {
            let number = |at: usize| {
                let column = columns[at].as_primitive::<Float64Type>();
                column.is_valid(row).then(|| column.value(row))
            };
            groups.push(Group {
                value: match name {
                    Some(at) => array_value_to_string(batch.column(at), row)?,
                    None => String::new(),
                },
                rows: number(0).unwrap_or(0.0) as u64,
                mae: number(1),
                rmspe: number(2),
            });
        }
    }
    Ok(groups)
}
