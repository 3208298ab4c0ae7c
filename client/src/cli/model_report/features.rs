//! Table of features in the report: their values in training, and in the rows that the model was judged by.

use std::fmt::Write;

use volley_proto::spec::FeatureKind;
use volley_proto::store::{FeatureSummary, Manifest, Numbers};

use super::charts::{self, Spread};
use super::html::{escape, number, percent};
use super::judge::{Judged, RowsOfFeature};

/// Writes the table.
///
/// # Errors
/// None: writing to a string does not fail.
pub(super) fn section(
    manifest: &Manifest,
    judged: Option<&Judged>,
    html: &mut String,
) -> std::fmt::Result {
    html.push_str("<section><h2>Features</h2>");
    html.push_str(&format!("<p>{}</p>", charts::range_keys(judged.is_some())));
    html.push_str(
        "<table><tr><th>Column<th>Kind<th>Type<th>Range\
         <th class=\"n\">Mean<th class=\"n\">Values<th class=\"n\">Missing",
    );
    if judged.is_some() {
        html.push_str("<th class=\"n\">Drift");
    }
    html.push_str("</tr>");
    for feature in &manifest.features {
        let rows = judged.and_then(|judged| {
            let mut features = judged.features.iter();
            let rows = features.find(|rows| rows.column == feature.column)?;
            Some((rows, judged.rows as f64))
        });
        row(feature, manifest.train_rows as f64, rows, html)?;
    }
    html.push_str("</table>");
    if judged.is_some() {
        html.push_str(
            "<p class=\"quiet\">Each cell shows training; these rows. Drift is the shift of the mean, in training standard \
             deviations.</p>",
        );
    }
    html.push_str("</section>");
    Ok(())
}

/// Writes the row of a feature: its values in training on `trained` rows, and in other rows.
fn row(
    feature: &FeatureSummary,
    trained: f64,
    rows: Option<(&RowsOfFeature, f64)>,
    html: &mut String,
) -> std::fmt::Result {
    let kind = match feature.kind {
        FeatureKind::Categorical => "categorical",
        FeatureKind::Continuous => "continuous",
    };
    let spread = feature.numbers.as_ref().map(spread);
    let range = spread.map(|trained| {
        let rows = rows.and_then(|(rows, _)| rows.spread);
        charts::ranges(&feature.column, &trained, rows.as_ref())
    });
    write!(
        html,
        "<tr><td>{}<td>{kind}<td>{}<td>{}",
        escape(&feature.column),
        escape(&feature.data_type),
        range.unwrap_or_default(),
    )?;
    let nulls = feature
        .numbers
        .map(|numbers| percent(numbers.nulls as f64, trained));
    let values = feature.vocabulary.map(|values| values.to_string());
    let of_training = [spread.map(|spread| number(spread.mean)), values, nulls];
    let of_rows = rows.map(|(rows, count)| {
        [
            rows.spread.map(|spread| number(spread.mean)),
            rows.values.map(|values| format!("{values:.0}")),
            rows.nulls.map(|nulls| percent(nulls, count)),
        ]
    });
    for (at, trained) in of_training.into_iter().enumerate() {
        let other = of_rows.as_ref().and_then(|of_rows| of_rows[at].as_ref());
        let text = match (trained, other) {
            (None, None) => String::new(),
            (Some(trained), None) => trained,
            (trained, Some(other)) => {
                let trained = trained.unwrap_or_else(|| number(None::<f64>));
                format!("{trained}; {other}")
            }
        };
        write!(html, "<td class=\"n\">{text}")?;
    }
    if let Some((rows, _)) = rows {
        let drift = rows.drift.map(|drift| format!("{drift:.2}"));
        write!(html, "<td class=\"n\">{}", drift.unwrap_or_default())?;
    }
    html.push_str("</tr>");
    Ok(())
}

fn spread(numbers: &Numbers) -> Spread {
    let Numbers {
        min,
        max,
        mean,
        stddev,
        ..
    } = *numbers;
    Spread {
        min,
        max,
        mean,
        stddev,
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::store::Scale;

    use super::*;

    #[test]
    fn names_are_no_markup_and_rows_stand_beside_training() {
        let feature = FeatureSummary {
            column: "<x>".to_owned(),
            kind: FeatureKind::Continuous,
            data_type: "Float64".to_owned(),
            vocabulary: None,
            scale: Scale::IDENTITY,
            quantiles: None,
            bins: vec![],
            numbers: Some(Numbers {
                nulls: 1,
                min: 0.0,
                max: 4.0,
                mean: 2.0,
                stddev: 1.0,
            }),
        };
        let rows = RowsOfFeature {
            column: "<x>".to_owned(),
            spread: Some(Spread {
                min: 1.0,
                max: 6.0,
                mean: 3.0,
                stddev: 1.0,
            }),
            values: None,
            nulls: Some(5.0),
            drift: Some(1.0),
        };
        let mut html = String::new();
        row(&feature, 8.0, Some((&rows, 10.0)), &mut html).unwrap();
        assert!(html.starts_with("<tr><td>&lt;x&gt;<td>continuous<td>Float64<td><svg"));
        let due = "<td class=\"n\">2.000; 3.000<td class=\"n\"><td class=\"n\">12.5 %; 50.0 %<td class=\"n\">1.00</tr>";
        assert!(html.ends_with(due), "{html}");
        html.clear();
        row(&feature, 8.0, None, &mut html).unwrap();
        let due = "<td class=\"n\">2.000<td class=\"n\"><td class=\"n\">12.5 %</tr>";
        assert!(html.ends_with(due), "{html}");
    }
}
