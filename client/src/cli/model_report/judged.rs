//! Sections of the report on the rows that a model was judged by.

use std::fmt::Write;

use volley_proto::limits::grouped;
use volley_proto::store::{Classes, Manifest};

use super::charts::{self, Bin, Quantile};
use super::html::{escape, number};
use super::judge::{Fit, Groups, Important, Judge, Judged};

/// Writes metrics, charts of the fit, important features, and groups.
///
/// # Errors
/// None: writing to a string does not fail.
pub(super) fn sections(
    judged: &Judged,
    manifest: &Manifest,
    html: &mut String,
) -> std::fmt::Result {
    write!(
        html,
        "<section><h2>Evaluated on {} labelled {}</h2>",
        grouped(judged.labelled),
        if judged.labelled == 1 { "row" } else { "rows" }
    )?;
    if manifest.refit.is_some() {
        html.push_str(
            "<p class=\"quiet\">This model was refit on all rows of its query: metrics of those rows are optimistic.</p>",
        );
    }
    html.push_str("<dl>");
    for (name, value) in &judged.metrics {
        // For an untransformed label, it equals the mean absolute error.
        let repeats = name == "transformed_mae" && !manifest.exponentiates();
        if name == "rows" || value.is_none() || repeats {
            continue;
        }
        let (name, value) = (escape(metric(name)), number(*value));
        write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>")?;
    }
    html.push_str("</dl><div class=\"charts\">");
    match (&judged.fit, &manifest.classes) {
        (Fit::Numbers { grid, errors }, _) => {
            html.push_str(&charts::grid(grid, manifest.spec.label.column()));
            let (title, name) = ("Errors", "actual less predicted");
            html.push_str(&charts::quantiles(title, name, errors));
            html.push_str("</div>");
            quantile_table(errors, html)?;
        }
        (
            Fit::Classes {
                matrix,
                roc,
                calibration,
            },
            classes,
        ) => {
            let classes = classes.as_ref().map(Classes::texts).unwrap_or_default();
            let positive = match classes.as_slice() {
                [_, second] => Some(second),
                _ => None,
            };
            if let Some(matrix) = matrix {
                html.push_str(&charts::confusion(matrix));
            }
            if let Some(positive) = positive.filter(|_| !roc.is_empty()) {
                let area = judged.metrics.iter().find(|(name, _)| name == "roc_auc");
                let area = area.and_then(|(_, area)| *area);
                html.push_str(&charts::roc(roc, area, positive));
            }
            let of = match positive {
                Some(positive) => format!("predicted probability of {positive}"),
                None => "predicted probability of the likeliest class".to_owned(),
            };
            html.push_str(&charts::calibration(calibration, &of));
            html.push_str("</div>");
            if matrix.is_none() {
                html.push_str("<p class=\"quiet\">A confusion matrix of so many classes is not drawn: ML.CONFUSION_MATRIX has it.</p>");
            }
            calibration_table(calibration, html)?;
        }
    }
    html.push_str("</section>");
    html.push_str("<section><h2>What matters</h2>");
    importance(&judged.important, manifest, html)?;
    attributions(&judged.attributed, &explained(manifest), html)?;
    html.push_str("</section>");
    judged
        .by
        .iter()
        .try_for_each(|groups| by_group(groups, manifest, html))
}

/// Returns the name of a metric for readers.
fn metric(name: &str) -> &str {
    match name {
        "mean_absolute_error" => "mean absolute error",
        "mean_squared_error" => "mean squared error",
        "r2_score" => "R²",
        "rmspe" => "RMSPE",
        "transformed_mae" => "mean absolute error of logarithms",
        "f1_score" => "F1",
        "log_loss" => "log loss",
        "roc_auc" => "area under the ROC curve",
        other => other,
    }
}

fn quantile_table(errors: &[Quantile; 5], html: &mut String) -> std::fmt::Result {
    html.push_str("<details><summary>Errors in numbers</summary><table><tr>");
    for (share, _) in errors {
        write!(html, "<th class=\"n\">{:.0} % are below", 100.0 * share)?;
    }
    html.push_str("</tr><tr>");
    for (_, value) in errors {
        write!(html, "<td class=\"n\">{}", number(*value))?;
    }
    html.push_str("</tr></table></details>");
    Ok(())
}

fn calibration_table(bins: &[Bin], html: &mut String) -> std::fmt::Result {
    html.push_str(
        "<details><summary>Calibration in numbers</summary><table><tr><th class=\"n\">Probability from\
         <th class=\"n\">Rows<th class=\"n\">Mean probability<th class=\"n\">Share that came true</tr>",
    );
    for bin in bins {
        write!(
            html,
            "<tr><td class=\"n\">{:.1}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
            bin.above,
            bin.rows,
            number(bin.mean_probability),
            number(bin.true_share),
        )?;
    }
    html.push_str("</table></details>");
    Ok(())
}

fn importance(important: &Important, manifest: &Manifest, html: &mut String) -> std::fmt::Result {
    let Important { features, rows, .. } = important;
    if features.is_empty() {
        html.push_str(
            "<p class=\"quiet\">These rows do not tell: their labels are all the same.</p>",
        );
        return Ok(());
    }
    let score = match manifest.classes {
        Some(_) => "accuracy",
        None => "R²",
    };
    write!(
        html,
        "<p class=\"quiet\">On {rows} rows{}. Correlated features share importance.</p>\
         <div class=\"charts\">{}</div>",
        first(important),
        charts::importance(features, score)
    )
}

/// Returns the quantity that attributions to a model's predictions add up to.
fn explained(manifest: &Manifest) -> String {
    let label = manifest.spec.label.column();
    let is_logarithm = manifest.exponentiates() || manifest.spec.loss.has_log_link();
    match &manifest.classes {
        Some(classes) if classes.len() == 2 => "the log-odds of the predicted class".to_owned(),
        Some(_) => "the logit of the predicted class".to_owned(),
        None if is_logarithm => format!("the logarithm of predicted {label}"),
        None => format!("predicted {label}"),
    }
}

fn attributions(
    attributed: &Result<Important, String>,
    of: &str,
    html: &mut String,
) -> std::fmt::Result {
    let attributed = match attributed {
        Ok(attributed) => attributed,
        Err(why) => {
            let why = escape(why);
            return write!(html, "<p class=\"quiet\">Without attributions: {why}.</p>");
        }
    };
    write!(
        html,
        "<p class=\"quiet\">Of {} rows{}: what each feature adds to a row's prediction, beside that of a row of means. \
         Bars are means of absolute attributions, lines where 5 to 95 % of attributions are.</p>\
         <div class=\"charts\">{}</div>",
        attributed.rows,
        first(attributed),
        charts::attributions(&attributed.features, of)
    )
}

/// Returns how many of the features are shown, if not all.
fn first(important: &Important) -> String {
    let Important { features, of, .. } = important;
    if (features.len() as u64) < *of {
        format!(", the first {} of {of} features", features.len())
    } else {
        String::new()
    }
}

fn by_group(groups: &Groups, manifest: &Manifest, html: &mut String) -> std::fmt::Result {
    let Groups { column, worst, of } = groups;
    let metrics = Judge::group_metrics(manifest);
    let more = if (worst.len() as u64) < *of {
        format!(", the worst {} of {of}", worst.len())
    } else {
        String::new()
    };
    let column = escape(column);
    write!(
        html,
        "<section><h2>By {column}{more}</h2><table><tr><th>{column}<th class=\"n\">Rows"
    )?;
    for name in metrics {
        write!(html, "<th class=\"n\">{}", metric(name))?;
    }
    html.push_str("<th></tr>");
    let last = metrics.len() - 1;
    let drawn = |metrics: &[Option<f64>]| metrics[last].filter(|drawn| drawn.is_finite());
    let most = worst.iter().filter_map(|group| drawn(&group.metrics));
    let most = most.fold(0.0, f64::max);
    for group in worst {
        let value = escape(&group.value);
        write!(html, "<tr><td>{value}<td class=\"n\">{}", group.rows)?;
        for value in &group.metrics {
            write!(html, "<td class=\"n\">{}", number(*value))?;
        }
        let width = 12.0 * drawn(&group.metrics).unwrap_or(0.0) / f64::max(most, 1e-12);
        write!(
            html,
            "<td><div class=\"bar\" style=\"width: {width:.2}rem\"></div></tr>"
        )?;
    }
    html.push_str("</table></section>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_explained_says_why() {
        let mut html = String::new();
        let refused = Err("not supported: <b>".to_owned());
        attributions(&refused, "", &mut html).unwrap();
        let due = "<p class=\"quiet\">Without attributions: not supported: &lt;b&gt;.</p>";
        assert_eq!(html, due);
    }

    #[test]
    fn features_that_are_not_shown_are_counted() {
        let important = |of| Important {
            features: vec![],
            of,
            rows: 7,
        };
        assert_eq!(first(&important(0)), "");
        assert_eq!(first(&important(9)), ", the first 0 of 9 features");
    }
}
