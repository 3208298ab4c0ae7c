//! The report's HTML. Text of the user's is escaped where it is put in.

use std::fmt::Write;

use volley_proto::spec::FeatureKind;
use volley_proto::store::Manifest;

use super::charts;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, 'Segoe UI', Roboto, sans-serif; color: #1b2330; background: #f6f7f9; margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 0 0 .6rem; }
section { background: #fff; border: 1px solid #dfe3e9; border-radius: 10px; padding: 1.1rem 1.3rem; margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; } th { text-align: left; color: #5b6675; font-weight: 500; }
th, td { padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid #e8ebef; vertical-align: top; } tr:last-child td { border: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; } .quiet { color: #5b6675; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } .charts svg { max-width: 100%; height: auto; }
dl { display: flex; flex-wrap: wrap; gap: .4rem 2.2rem; margin: 0; } dt { color: #5b6675; font-size: .82rem; } dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
pre { font-size: .8rem; overflow-x: auto; } .bar { background: #1f5fae; height: .7rem; border-radius: 3px; min-width: 1px; }";

/// A report.
pub(super) struct Page<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) shown: Option<Shown>,
}

/// How well rows were predicted.
pub(super) struct Shown {
    pub(super) total: Group,
    /// Actual and predicted of some of them.
    pub(super) points: Vec<(f64, f64)>,
    /// By columns, the worst groups first.
    pub(super) by: Vec<(String, Vec<Group>)>,
    /// How many groups of a column are shown.
    pub(super) most: usize,
}

/// How far off predictions of some rows are.
pub(super) struct Group {
    pub(super) value: String,
    pub(super) rows: u64,
    pub(super) mae: Option<f64>,
    pub(super) rmspe: Option<f64>,
}

impl Page<'_> {
    /// The page.
    ///
    /// # Errors
    /// When a chart cannot be drawn, or the spec has no JSON form.
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
             <title>{model}, version {version}</title><style>{STYLE}</style></head><body><main>\
             <h1>{model}</h1><p class=\"quiet\">version {version}, published {}, trained by run {}</p>",
            humantime::format_rfc3339_seconds(*published),
            spec.train_id,
        );
        self.summary(&mut html);
        self.training(&mut html)?;
        if let Some(shown) = &self.shown {
            prediction(shown, &mut html)?;
        }
        self.features(&mut html);
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
        let facts = [
            ("predicts", escape(&manifest.spec.label.columns.join(", "))),
            ("parameters", manifest.parameters.to_string()),
            ("rows an epoch", manifest.train_rows.to_string()),
            ("rows evaluated", manifest.eval_rows.to_string()),
            ("ranks", manifest.world_size.to_string()),
            (
                "epoch kept",
                format!("{} of {}", manifest.kept_epoch, manifest.history.len()),
            ),
            ("loss", number(kept.map(|epoch| epoch.loss))),
            (
                "validation loss",
                number(kept.and_then(|epoch| epoch.eval_loss)),
            ),
            ("RMSPE", number(kept.and_then(|epoch| epoch.eval_rmspe))),
            ("training took", format!("{seconds:.1} s")),
        ];
        html.push_str("<section><dl>");
        for (name, value) in facts {
            html.push_str(&format!("<div><dt>{name}</dt><dd>{value}</dd></div>"));
        }
        html.push_str("</dl></section>");
    }

    fn training(&self, html: &mut String) -> anyhow::Result<()> {
        let history = &self.manifest.history;
        let line = |of: &dyn Fn(usize) -> Option<f64>| -> Vec<(f64, f64)> {
            let points = history.iter().enumerate();
            points
                .filter_map(|(at, epoch)| Some((epoch.epoch as f64, of(at)?)))
                .collect()
        };
        let mut lines = vec![("training loss", line(&|at| Some(history[at].loss)))];
        let validation = line(&|at| history[at].eval_loss);
        if !validation.is_empty() {
            lines.push(("validation loss", validation));
        }
        html.push_str("<section><h2>Training</h2><div class=\"charts\">");
        html.push_str(&charts::curves(&lines)?);
        let rmspe = line(&|at| history[at].eval_rmspe);
        if !rmspe.is_empty() {
            html.push_str(&charts::curves(&[("RMSPE of validation", rmspe)])?);
        }
        html.push_str(
            "</div><table><tr><th>Epoch<th class=\"n\">Loss<th class=\"n\">Validation loss\
             <th class=\"n\">RMSPE<th class=\"n\">Seconds<th class=\"n\">Computing<th class=\"n\">Reducing</tr>",
        );
        for epoch in history {
            let share = |part: f64| format!("{:.0} %", 100.0 * part / epoch.seconds.max(1e-9));
            write!(
                html,
                "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{:.1}\
                 <td class=\"n\">{}<td class=\"n\">{}</tr>",
                epoch.epoch,
                number(Some(epoch.loss)),
                number(epoch.eval_loss),
                number(epoch.eval_rmspe),
                epoch.seconds,
                share(epoch.compute_seconds),
                share(epoch.reduce_seconds),
            )?;
        }
        html.push_str("</table></section>");
        Ok(())
    }

    fn features(&self, html: &mut String) {
        html.push_str(
            "<section><h2>Features</h2><table><tr><th>Column<th>Kind<th>Type<th class=\"n\">Distinct values</tr>",
        );
        for feature in &self.manifest.features {
            let kind = match feature.kind {
                FeatureKind::Categorical => "categorical",
                FeatureKind::Continuous => "continuous",
            };
            let values = feature.vocabulary.map(|values| values.to_string());
            html.push_str(&format!(
                "<tr><td>{}<td>{kind}<td>{}<td class=\"n\">{}</tr>",
                escape(&feature.column),
                escape(&feature.data_type),
                values.unwrap_or_default(),
            ));
        }
        html.push_str("</table></section>");
    }

    /// What says that each row was trained on once.
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

fn prediction(shown: &Shown, html: &mut String) -> anyhow::Result<()> {
    let Shown {
        total,
        points,
        by,
        most,
    } = shown;
    write!(
        html,
        "<section><h2>Prediction of {} rows</h2><p>Mean absolute error {}, RMSPE {}. The chart shows {} \
         of them, drawn by chance.</p><div class=\"charts\">{}</div></section>",
        total.rows,
        number(total.mae),
        number(total.rmspe),
        points.len(),
        charts::scatter(points)?,
    )?;
    for (column, groups) in by {
        let worst = groups
            .iter()
            .filter_map(|group| group.rmspe)
            .fold(0.0, f64::max);
        let more = if groups.len() > *most {
            format!(", the worst {most} of {}", groups.len())
        } else {
            String::new()
        };
        write!(
            html,
            "<section><h2>Error by {}{more}</h2><table><tr><th>{0}<th class=\"n\">Rows\
             <th class=\"n\">Mean absolute error<th class=\"n\">RMSPE<th></tr>",
            escape(column),
        )?;
        for group in groups.iter().take(*most) {
            let width = 16.0 * group.rmspe.unwrap_or(0.0) / f64::max(worst, 1e-12);
            write!(
                html,
                "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}\
                 <td><div class=\"bar\" style=\"width: {width:.2}rem\"></div></tr>",
                escape(&group.value),
                group.rows,
                number(group.mae),
                number(group.rmspe),
            )?;
        }
        html.push_str("</table></section>");
    }
    Ok(())
}

/// Four digits, or nothing.
fn number(value: Option<f64>) -> String {
    match value {
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 1.0 => format!("{value:.3}"),
        Some(value) => format!("{value:.5}"),
        None => "–".to_owned(),
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_users_is_no_markup() {
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn numbers_have_the_digits_that_are_read() {
        let shown = [Some(12345.6), Some(1.23456), Some(0.012345), None].map(number);
        assert_eq!(shown, ["12346", "1.235", "0.01235", "–"]);
    }
}
