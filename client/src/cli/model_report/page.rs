//! HTML of the report. Text of the user's is escaped where it is inserted.

use std::fmt::Write;

use volley_proto::store::{EpochRecord, LabelRecord, Manifest};

use super::charts::{self, Line};
use super::features;
use super::html::{escape, number};
use super::judge::Judged;
use super::judged;

const STYLE: &str = include_str!("report.css");
/// Empty icon of the page: without it, a browser requests one.
const ICON: &str = "<link rel=\"icon\" href=\"data:,\">";

/// Page of the report.
pub(super) struct Page<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) judged: Option<Judged>,
}

/// Evaluation metric of an epoch: its name, and a function that returns its value.
type OfEpoch = (&'static str, fn(&EpochRecord) -> Option<f64>);

/// Title of the chart of relative errors.
const RMSPE_CHART: &str = "Validation RMSPE";
/// RMSPE above which labels near 0 dominate it, and there is no chart.
const DRAWN_RMSPE: f64 = 1.0;

/// Charts of evaluation metrics by epoch: title, unit and lines. A task has some of the metrics.
const CHARTS: [(&str, &str, &[OfEpoch]); 5] = [
    (
        "Validation accuracy",
        "share of rows",
        &[
            ("accuracy", |epoch| epoch.eval_accuracy),
            ("most frequent class", |epoch| epoch.eval_majority),
        ],
    ),
    (
        "Validation R²",
        "share of variance",
        &[("R²", |epoch| epoch.eval_r2)],
    ),
    (
        "Validation errors",
        "in the label's unit",
        &[
            ("MAE", |epoch| epoch.eval_mae),
            ("RMSE", |epoch| epoch.eval_rmse),
        ],
    ),
    (
        RMSPE_CHART,
        "share of the label",
        &[("RMSPE", |epoch| epoch.eval_rmspe)],
    ),
    (
        "Validation coverage of the interval",
        "share of labels",
        &[("interval coverage", |epoch| epoch.eval_interval_coverage)],
    ),
];

/// Returns the metrics of all charts.
fn metrics() -> impl Iterator<Item = OfEpoch> {
    CHARTS
        .into_iter()
        .flat_map(|(_, _, metrics)| metrics.iter().copied())
}

impl Page<'_> {
    /// Returns the page.
    ///
    /// # Errors
    /// When the spec cannot be written as JSON.
    pub(super) fn html(&self) -> anyhow::Result<String> {
        let Manifest {
            spec,
            version,
            published,
            ..
        } = self.manifest;
        let model = escape(spec.model.as_str());
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">{ICON}\
             <title>{model}, version {version}</title><style>{STYLE}</style></head><body><main>\
             <h1>{model}</h1><p class=\"quiet\">version {version}, published {}, trained by run {}</p>",
            humantime::format_rfc3339_seconds(*published),
            spec.train_id,
        );
        self.summary(&mut html);
        self.training(&mut html)?;
        if let Some(found) = &self.judged {
            judged::sections(found, self.manifest, &mut html)?;
        }
        features::section(self.manifest, self.judged.as_ref(), &mut html)?;
        self.receipt(&mut html);
        let spec = serde_json::to_string_pretty(spec)?;
        writeln!(
            html,
            "<section><h2>Configuration</h2><details><summary>The spec it was trained by</summary><pre>{}</pre></details></section></main></body></html>",
            escape(&spec)
        )?;
        Ok(html)
    }

    fn summary(&self, html: &mut String) {
        let manifest = self.manifest;
        let kept = manifest.history.get(manifest.kept_epoch.wrapping_sub(1));
        let seconds: f64 = manifest.history.iter().map(|epoch| epoch.seconds).sum();
        let mut facts = vec![
            ("predicts", escape(&manifest.spec.label.columns.join(", "))),
            ("parameters", manifest.parameters.to_string()),
            ("rows an epoch", manifest.train_rows.to_string()),
            ("rows evaluated", manifest.eval_rows.to_string()),
            ("ranks", manifest.world_size.to_string()),
            (
                "epoch kept",
                format!("{} of {}", manifest.kept_epoch, manifest.selection().len()),
            ),
            ("loss", number(kept.map(|epoch| epoch.loss))),
            (
                "validation loss",
                number(kept.and_then(|epoch| epoch.eval_loss)),
            ),
        ];
        for (name, of) in metrics() {
            if let Some(value) = kept.and_then(of) {
                facts.push((name, number(value)));
            }
        }
        if let Some(refit) = &manifest.refit {
            facts.push(("refit on", format!("all {} rows", refit.rows)));
        }
        if let Some(precision) = manifest.precision() {
            facts.push(("precision", precision));
        }
        facts.push(("training took", format!("{seconds:.1} s")));
        html.push_str("<section><dl>");
        for (name, value) in facts {
            html.push_str(&format!("<div><dt>{name}</dt><dd>{value}</dd></div>"));
        }
        html.push_str("</dl></section>");
    }

    fn training(&self, html: &mut String) -> std::fmt::Result {
        let Manifest {
            history,
            kept_epoch,
            ..
        } = self.manifest;
        let kept = *kept_epoch as f64;
        let line = |name: &'static str, of: &dyn Fn(&EpochRecord) -> Option<f64>| {
            // A refit starts anew, on other rows.
            let points = self.manifest.selection().iter();
            let points = points.filter_map(|epoch| Some((epoch.epoch as f64, of(epoch)?)));
            Line {
                name,
                points: points.collect(),
            }
        };
        let is_known = |line: &Line<'_>| !line.points.is_empty();
        let lines = [
            line("training loss", &|epoch| Some(epoch.loss)),
            line("validation loss", &|epoch| epoch.eval_loss),
        ];
        let lines: Vec<_> = lines.into_iter().filter(is_known).collect();
        let kept_rmspe = history.get(kept_epoch.wrapping_sub(1));
        let kept_rmspe = kept_rmspe.and_then(|epoch| epoch.eval_rmspe);
        let is_relative = kept_rmspe.is_some_and(|rmspe| rmspe <= DRAWN_RMSPE);
        html.push_str("<section><h2>Training</h2><div class=\"charts\">");
        html.push_str(&charts::curves("Loss", "loss", &lines, kept));
        for (title, unit, metrics) in CHARTS {
            let lines = metrics.iter().map(|(name, of)| line(name, of));
            let lines: Vec<_> = lines.filter(is_known).collect();
            let is_drawn = title != RMSPE_CHART || is_relative;
            if is_drawn && !lines.is_empty() {
                html.push_str(&charts::curves(title, unit, &lines, kept));
            }
        }
        // Several labels have a chart each, in their own units.
        let labels: &[LabelRecord] = match self.manifest.selection().last() {
            Some(last) if last.eval_loss.is_some() => &last.labels,
            _ => &[],
        };
        for (at, label) in labels.iter().enumerate() {
            let of = |metric: fn(&LabelRecord) -> Option<f64>| {
                move |epoch: &EpochRecord| epoch.labels.get(at).and_then(metric)
            };
            let lines = [
                line("MAE", &of(|label| label.eval_mae)),
                line("RMSE", &of(|label| label.eval_rmse)),
            ];
            let title = format!("Validation errors of {}", label.label);
            html.push_str(&charts::curves(&title, "in the label's unit", &lines, kept));
        }
        let found = metrics().filter(|(_, of)| history.iter().any(|epoch| of(epoch).is_some()));
        let found: Vec<_> = found.collect();
        html.push_str("</div>");
        if let Some(refit) = &self.manifest.refit {
            write!(
                html,
                "<p class=\"quiet\">Epochs from {} on are those of the refit, which the charts leave out.</p>",
                refit.first_epoch
            )?;
        }
        html.push_str(
            "<details><summary>Each epoch</summary><table><tr><th>Epoch<th class=\"n\">Loss\
             <th class=\"n\">Validation loss",
        );
        for (name, _) in &found {
            write!(html, "<th class=\"n\">{name}")?;
        }
        for of in labels {
            let label = escape(&of.label);
            write!(
                html,
                "<th class=\"n\">MAE of {label}<th class=\"n\">R² of {label}"
            )?;
        }
        html.push_str(
            "<th class=\"n\">Seconds<th class=\"n\">Computing<th class=\"n\">Reducing</tr>",
        );
        for epoch in history {
            let share = |part: f64| format!("{:.0} %", 100.0 * part / epoch.seconds.max(1e-9));
            write!(
                html,
                "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}",
                epoch.epoch,
                number(epoch.loss),
                number(epoch.eval_loss),
            )?;
            for (_, of) in &found {
                write!(html, "<td class=\"n\">{}", number(of(epoch)))?;
            }
            for of in epoch.labels.iter().take(labels.len()) {
                let [mae, r2] = [of.eval_mae, of.eval_r2].map(number);
                write!(html, "<td class=\"n\">{mae}<td class=\"n\">{r2}")?;
            }
            write!(
                html,
                "<td class=\"n\">{:.1}<td class=\"n\">{}<td class=\"n\">{}</tr>",
                epoch.seconds,
                share(epoch.compute_seconds),
                share(epoch.reduce_seconds),
            )?;
        }
        html.push_str("</table></details></section>");
        Ok(())
    }

    /// Writes the evidence that each row was trained on once.
    fn receipt(&self, html: &mut String) {
        let manifest = self.manifest;
        html.push_str(&format!(
            "<section><h2>Data receipt</h2><p>{} rows with checksum <code>{}</code> (a sum of hashes of \
             their contents, without an order) were to be trained on in each epoch; {} were evaluated.</p>\
             <table><tr><th>Epoch<th class=\"n\">Rows<th>Checksum<th>By rank</tr>",
            manifest.train_rows,
            escape(&manifest.train_checksum),
            manifest.eval_rows,
        ));
        for epoch in &manifest.history {
            let ranks = epoch
                .ranks
                .iter()
                .map(|rank| format!("{}: {}", rank.rank, rank.rows));
            let mut ranks = ranks.collect::<Vec<_>>().join(", ");
            if let Some(earlier) = &epoch.earlier {
                ranks.push_str(&format!("; before an interruption: {}", earlier.rows));
            }
            html.push_str(&format!(
                "<tr><td>{}<td class=\"n\">{}<td><code>{}</code><td>{ranks}</tr>",
                epoch.epoch,
                epoch.rows,
                escape(&epoch.checksum),
            ));
        }
        html.push_str("</table></section>");
    }
}
