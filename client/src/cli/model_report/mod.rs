//! `volley report MODEL`: one HTML file about a model, its training, and the quality of its predictions on given rows.
//! The file refers to nothing outside itself.
//!
//! ```text
//! manifest ───────────────────────────────┐
//! --rows, --by ─► judge: ML functions ─► Judged ─► page, judged, features ─► HTML with charts
//! ```

mod answer;
mod charts;
mod features;
mod html;
mod judge;
mod judged;
mod page;

use std::ops::ControlFlow;

use anyhow::{Context, bail};
use volley::Model;

use self::judge::Judge;
use self::page::Page;
use super::Ended;
use super::config::ModelReport;
use super::engine::Engine;
use super::execute::{collect, write};
use super::progress::Style;
use super::report::cancelled;
use super::script;
use super::signals::Interrupts;

/// Writes the report.
///
/// # Errors
/// When there is no such model, the rows cannot be predicted, or the file cannot be written.
pub(super) async fn run(report: &ModelReport) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    let scripts = script::load(&report.sources, &report.defines)?;
    if let Some(note) = report.connection.note() {
        eprintln!("{note}");
    }
    let engine = match interrupts.stop(Engine::open(&report.connection)).await {
        ControlFlow::Continue(engine) => engine?,
        ControlFlow::Break(code) => return Ok(cancelled(code)),
    };
    let made = interrupts.stop(async {
        let session = &engine.session;
        let name = report.model.parse()?;
        let model = Model::load_version(session, &name, report.version).await?;
        for script in &scripts {
            for (place, statement) in script.parse(session)? {
                let done = collect(&engine, statement, Style::Off).await;
                done.map_err(|error| place.of(error.into()))?;
            }
        }
        let manifest = model.manifest();
        let judged = match &report.rows {
            Some(rows) => {
                let judge = Judge {
                    session,
                    manifest,
                    rows,
                };
                Some(judge.judged(&report.by).await?)
            }
            None if !report.by.is_empty() => bail!("--by needs --rows: a query of rows to predict"),
            None => None,
        };
        let html = Page { manifest, judged }.html()?;
        std::fs::write(&report.out, &html)
            .with_context(|| format!("cannot write {}", report.out.display()))?;
        write(format!("{}\n", report.out.display()).as_bytes()).await?;
        if report.publish {
            let store = session.store();
            let (name, version) = (&manifest.spec.model, manifest.version);
            store.keep_report(name, version, html).await?;
        }
        anyhow::Ok(())
    });
    let ended = match made.await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) => Ok(cancelled(code)),
    };
    engine.close().await;
    ended
}
