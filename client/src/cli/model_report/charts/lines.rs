//! Line charts: metrics over epochs, the ROC curve, and calibration.

use super::plot::{Axis, Plot, span};
use super::svg::figure;
use crate::cli::model_report::html::{number, percent};

/// Maximum number of points for which a line marks each one.
const MARKED: usize = 60;
const HUES: [&str; 3] = ["one", "two", "three"];

/// Line over epochs.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    /// Pairs of epoch and value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws at most three lines over epochs; `kept` is the epoch whose weights the model has.
pub(crate) fn curves(title: &str, unit: &str, lines: &[Line<'_>], kept: f64) -> String {
    let points = |line: &Line<'_>| -> Vec<(f64, f64)> {
        let points = line.points.iter().copied();
        points.filter(|(_, value)| value.is_finite()).collect()
    };
    let lines: Vec<_> = lines.iter().map(|line| (line.name, points(line))).collect();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let said = lines.iter().filter_map(|(name, points)| {
        let (first, last) = (points.first()?, points.last()?);
        Some(format!(
            "; {name}: from {} to {} over {} epochs",
            number(first.1),
            number(last.1),
            points.len()
        ))
    });
    let said = format!("{title}{}", said.collect::<String>());
    let x = Axis {
        whole: true,
        ..Axis::new("epoch", span(all().map(|(epoch, _)| *epoch)))
    };
    let y = Axis::new(unit, span(all().map(|(_, value)| *value)));
    let mut plot = Plot::new(&said, x, y);
    if all().any(|(epoch, _)| *epoch == kept) {
        plot.upright(kept);
    }
    for ((name, points), hue) in lines.iter().zip(HUES) {
        let pixels: Vec<_> = points.iter().map(|(x, y)| plot.at(*x, *y)).collect();
        let marked = if pixels.len() <= MARKED {
            &pixels[..]
        } else {
            &[]
        };
        plot.svg
            .path(&format!("curve {hue}"), pixels.iter().copied());
        for (pixel, (epoch, value)) in marked.iter().zip(points) {
            let tip = format!("epoch {epoch}: {name} {}", number(*value));
            plot.svg.dot(&format!("dot {hue}"), *pixel, 3.0, &tip);
        }
    }
    let keys: Vec<_> = HUES
        .into_iter()
        .zip(lines.iter().map(|(name, _)| *name))
        .collect();
    figure(title, &keys, plot.svg)
}

/// Point of a ROC curve: rows whose probability is at least the threshold are taken for the second class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RocPoint {
    pub(crate) threshold: f64,
    pub(crate) recall: f64,
    pub(crate) false_positive_rate: f64,
}

/// Draws a ROC curve, from the greatest threshold on; `positive` is the second class.
pub(crate) fn roc(points: &[RocPoint], area: Option<f64>, positive: &str) -> String {
    let area = number(area);
    let title = format!("ROC curve, area {area}");
    let said = format!("{title}, of {} thresholds", points.len());
    let x = Axis::share("false positive rate");
    let y = Axis::share("recall");
    let mut plot = Plot::new(&said, x, y);
    plot.diagonal();
    let pixels = points
        .iter()
        .map(|point| plot.at(point.false_positive_rate, point.recall));
    let pixels: Vec<_> = pixels.collect();
    // With a threshold above all probabilities, no row is taken for the class.
    let none = plot.at(0.0, 0.0);
    let line = [none].into_iter().chain(pixels.iter().copied());
    plot.svg.path("curve one", line);
    for (pixel, point) in pixels.into_iter().zip(points) {
        let tip = format!(
            "{positive} from probability {}: recall {}, false positive rate {}",
            number(point.threshold),
            number(point.recall),
            number(point.false_positive_rate),
        );
        plot.svg.dot("dot one", pixel, 2.5, &tip);
    }
    figure(&title, &[], plot.svg)
}

/// Rows whose predicted probability is in the same tenth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bin {
    /// Start of the tenth.
    pub(crate) above: f64,
    pub(crate) rows: u64,
    pub(crate) mean_probability: f64,
    /// Share of these rows for which the prediction came true.
    pub(crate) true_share: f64,
}

/// Draws actual shares over predicted probabilities, as circles whose areas grow with the number of rows. `of` names
/// the probability.
pub(crate) fn calibration(bins: &[Bin], of: &str) -> String {
    let rows: u64 = bins.iter().map(|bin| bin.rows).sum();
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(0);
    let said = format!("Calibration of {rows} rows in {} tenths", bins.len());
    let mut plot = Plot::new(&said, Axis::share(of), Axis::share("share that came true"));
    plot.diagonal();
    let pixels = bins
        .iter()
        .map(|bin| plot.at(bin.mean_probability, bin.true_share));
    let pixels: Vec<_> = pixels.collect();
    plot.svg.path("curve one", pixels.iter().copied());
    for (pixel, bin) in pixels.into_iter().zip(bins) {
        let radius = 3.0 + 9.0 * (bin.rows as f64 / most as f64).sqrt();
        let tip = format!(
            "{} rows ({}) from {:.1} on: mean probability {}, came true {}",
            bin.rows,
            percent(bin.rows as f64, rows as f64),
            bin.above,
            number(bin.mean_probability),
            number(bin.true_share),
        );
        plot.svg.dot("dot one", pixel, radius, &tip);
    }
    figure("Calibration", &[], plot.svg)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Mark, marks, near};
    use super::*;

    #[test]
    fn curves_go_through_their_points() {
        let line = |name, values: &[f64]| {
            let points = (1_i32..).map(f64::from).zip(values.iter().copied());
            Line {
                name,
                points: points.collect(),
            }
        };
        let lines = [
            line("training <loss>", &[0.9, 0.5, 0.3]),
            line("validation loss", &[0.8, f64::NAN, 0.6]),
        ];
        let html = curves("Loss", "loss", &lines, 3.0);
        let (first, second) = (
            marks(&html, "circle", "dot one"),
            marks(&html, "circle", "dot two"),
        );
        assert_eq!((first.len(), second.len()), (3, 2));
        let at = |mark: &Mark<'_>| (mark.number("cx"), mark.number("cy"));
        let (start, end) = (at(&first[0]), at(&first[2]));
        // The loss falls: later points are further right and lower.
        assert!(start.0 < end.0 && start.1 < end.1);
        // The middle epoch is halfway between the first and the last.
        assert!(near(at(&first[1]).0, (start.0 + end.0) / 2.0));
        // 0.5 is two thirds of the way from 0.9 to 0.3.
        assert!(near(
            at(&first[1]).1,
            start.1 + (end.1 - start.1) * 2.0 / 3.0
        ));
        // 0.6 is halfway between 0.9 and 0.3, at the last epoch.
        assert!(near(at(&second[1]).1, (start.1 + end.1) / 2.0));
        assert!(near(at(&second[1]).0, end.0));
        assert_eq!(first[1].tip, "epoch 2: training &lt;loss&gt; 0.50000");
        let kept = &marks(&html, "line", "even")[0];
        assert!(near(kept.number("x1"), end.0) && near(kept.number("x2"), end.0));
        assert!(html.contains("<span class=\"key one\">training &lt;loss&gt;</span>"));
    }

    #[test]
    fn a_roc_curve_begins_where_no_row_is_taken() {
        let point = |threshold, recall, false_positive_rate| RocPoint {
            threshold,
            recall,
            false_positive_rate,
        };
        let points = [point(0.9, 0.5, 0.0), point(0.2, 1.0, 1.0)];
        let html = roc(&points, Some(0.75), "yes");
        let even = &marks(&html, "line", "even")[0];
        let [left, bottom, right, top] = ["x1", "y1", "x2", "y2"].map(|name| even.number(name));
        let path = marks(&html, "path", "curve one")[0].attribute("d");
        assert!(
            path.starts_with(&format!("M{left:.1} {bottom:.1}L")),
            "{path}"
        );
        assert!(path.ends_with(&format!("L{right:.1} {top:.1}")), "{path}");
        let dots = marks(&html, "circle", "dot one");
        assert!(near(dots[0].number("cx"), left));
        assert!(near(dots[0].number("cy"), (bottom + top) / 2.0));
        assert!(html.contains("ROC curve, area 0.75000"));
        assert!(
            dots[0]
                .tip
                .starts_with("yes from probability 0.90000: recall 0.50000")
        );
    }

    #[test]
    fn calibrated_tenths_are_on_the_diagonal_and_as_large_as_their_rows() {
        let bin = |above, rows, mean_probability, true_share| Bin {
            above,
            rows,
            mean_probability,
            true_share,
        };
        let bins = [bin(0.2, 25, 0.25, 0.25), bin(0.7, 100, 0.75, 1.0)];
        let html = calibration(&bins, "probability of \"yes\"");
        let even = &marks(&html, "line", "even")[0];
        let [left, bottom, right, top] = ["x1", "y1", "x2", "y2"].map(|name| even.number(name));
        let dots = marks(&html, "circle", "dot one");
        let share = |dot: &Mark<'_>| {
            let x = (dot.number("cx") - left) / (right - left);
            (x, (dot.number("cy") - bottom) / (top - bottom))
        };
        for (dot, due) in dots.iter().zip([(0.25, 0.25), (0.75, 1.0)]) {
            let (x, y) = share(dot);
            assert!(
                (x - due.0).abs() < 1e-3 && (y - due.1).abs() < 1e-3,
                "{dot:?}"
            );
        }
        assert_eq!((dots[0].number("r"), dots[1].number("r")), (7.5, 12.0));
        assert!(dots[0].tip.starts_with("25 rows (20.0 %) from 0.2 on"));
        assert!(html.contains("probability of &quot;yes&quot;</text>"));
    }
}
