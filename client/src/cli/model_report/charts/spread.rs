//! Charts of how numbers are spread: quantiles of errors, and a feature's numbers in training beside those in other
//! rows.

use super::plot::{Axis, span};
use super::svg::{Anchor, Svg, figure};
use crate::cli::model_report::html::number;

/// Share of rows, and the number that they are below.
pub(crate) type Quantile = (f64, f64);

/// Draws five quantiles as a box with whiskers: the box is the middle half of rows, the whiskers end at the outermost
/// quantiles.
pub(crate) fn quantiles(title: &str, name: &str, quantiles: &[Quantile; 5]) -> String {
    const WIDTH: f64 = 460.0;
    const ENDS: [f64; 2] = [16.0, WIDTH - 16.0];
    let values = quantiles.map(|(_, value)| value);
    let axis = Axis::new(name, span(values.into_iter().chain([0.0])));
    let places = values.map(|value| axis.place(value, ENDS));
    let said = quantiles.iter().map(|(share, value)| {
        let value = number(*value);
        format!("; {:.0} % of rows are below {value}", 100.0 * share)
    });
    let said = format!("{title}{}", said.collect::<String>());
    let mut svg = Svg::new(WIDTH, 104.0, &said);
    for (tick, text) in axis.ticks(6.0) {
        let x = axis.place(tick, ENDS);
        svg.line("grid", (x, 8.0), (x, 62.0));
        svg.text("", Anchor::Middle, (x, 77.0), &text);
    }
    svg.text("", Anchor::Middle, (WIDTH / 2.0, 97.0), name);
    let zero = axis.place(0.0, ENDS);
    svg.line("even", (zero, 8.0), (zero, 62.0));
    svg.line("whisker", (places[0], 35.0), (places[1], 35.0));
    svg.line("whisker", (places[3], 35.0), (places[4], 35.0));
    let corners = [(places[1], 18.0), (places[3], 52.0)];
    svg.rect("fill one", 0.45, corners, "the middle half of the rows");
    for (place, (share, value)) in places.into_iter().zip(quantiles) {
        svg.line("whisker", (place, 26.0), (place, 44.0));
        let value = number(*value);
        let tip = format!("{:.0} % of rows are below {value}", 100.0 * share);
        svg.dot("dot one", (place, 35.0), 3.0, &tip);
    }
    figure(title, &[], svg)
}

/// Range, mean and standard deviation of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) stddev: f64,
}

/// Draws a feature's numbers in training, and those of other rows below, as lines from the least to the greatest with a
/// box of one standard deviation around the mean.
pub(crate) fn ranges(feature: &str, trained: &Spread, rows: Option<&Spread>) -> String {
    const WIDTH: f64 = 200.0;
    const ENDS: [f64; 2] = [4.0, WIDTH - 4.0];
    const LANE: f64 = 14.0;
    let lanes = [
        Some(("training", "one", trained)),
        rows.map(|rows| ("these rows", "two", rows)),
    ];
    let lanes: Vec<_> = lanes.into_iter().flatten().collect();
    let ends = lanes.iter().flat_map(|(_, _, of)| [of.min, of.max]);
    let axis = Axis::new("", span(ends));
    let said = |(whose, _, of): &(&str, &str, &Spread)| {
        let [min, max, mean, stddev] = [of.min, of.max, of.mean, of.stddev].map(number);
        format!("{whose}: {min} to {max}, mean {mean}, standard deviation {stddev}")
    };
    let texts: Vec<_> = lanes.iter().map(said).collect();
    let all = format!("{feature}; {}", texts.join("; "));
    let mut svg = Svg::new(WIDTH, 4.0 + LANE * lanes.len() as f64, &all);
    for (at, ((_, hue, of), text)) in lanes.iter().zip(&texts).enumerate() {
        let middle = 2.0 + LANE * (at as f64 + 0.5);
        let place = |value: f64| axis.place(value.clamp(axis.low, axis.high), ENDS);
        svg.line("axis", (place(of.min), middle), (place(of.max), middle));
        let [from, to] = [-1.0, 1.0].map(|side| place(of.mean + side * of.stddev));
        let corners = [(from, middle - 4.0), (to, middle + 4.0)];
        svg.rect(&format!("fill {hue}"), 0.5, corners, text);
        svg.dot(&format!("dot {hue}"), (place(of.mean), middle), 3.5, text);
    }
    svg.html()
}

/// Returns the key of the colours in [`ranges`].
pub(crate) fn range_keys(rows: bool) -> String {
    let keys = [("one", "training"), ("two", "these rows")];
    let keys = keys.into_iter().take(1 + usize::from(rows));
    let keys = keys.map(|(hue, whose)| format!("<span class=\"key {hue}\">{whose}</span> "));
    keys.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{marks, near};
    use super::*;

    #[test]
    fn a_box_is_the_middle_half() {
        let of = [
            (0.05, -2.0),
            (0.25, -1.0),
            (0.5, 0.5),
            (0.75, 1.0),
            (0.95, 3.0),
        ];
        let html = quantiles("Errors", "actual less predicted", &of);
        let zero = marks(&html, "line", "even")[0].number("x1");
        let dots = marks(&html, "circle", "dot one");
        let unit = (dots[4].number("cx") - dots[0].number("cx")) / 5.0;
        for (dot, (_, value)) in dots.iter().zip(of) {
            assert!(near(dot.number("cx"), zero + value * unit), "{dot:?}");
        }
        let middle = &marks(&html, "rect", "fill one")[0];
        assert!(near(middle.number("x"), dots[1].number("cx")));
        assert!(near(middle.number("width"), 2.0 * unit));
        assert_eq!(dots[1].tip, "25 % of rows are below -1.000");
    }

    #[test]
    fn ranges_are_on_one_scale() {
        let trained = Spread {
            min: 0.0,
            max: 10.0,
            mean: 4.0,
            stddev: 1.0,
        };
        let rows = Spread {
            min: 5.0,
            max: 20.0,
            mean: 12.0,
            stddev: 2.0,
        };
        let html = ranges("a<b", &trained, Some(&rows));
        let lines = marks(&html, "line", "axis");
        let [trained_lane, lane_of_rows] = &lines[..] else {
            panic!("{lines:?}")
        };
        let start = trained_lane.number("x1");
        let unit = (lane_of_rows.number("x2") - lane_of_rows.number("x1")) / 15.0;
        assert!(near(trained_lane.number("x2"), start + 10.0 * unit));
        assert!(near(lane_of_rows.number("x1"), start + 5.0 * unit));
        assert!(lane_of_rows.number("y1") > trained_lane.number("y1"));
        let box_of_rows = &marks(&html, "rect", "fill two")[0];
        assert!(near(box_of_rows.number("x"), start + 10.0 * unit));
        assert!(near(box_of_rows.number("width"), 4.0 * unit));
        let mean = &marks(&html, "circle", "dot one")[0];
        assert!(near(mean.number("cx"), start + 4.0 * unit));
        assert!(html.contains("aria-label=\"a&lt;b; training: 0.00000 to 10.000, mean 4.000"));
        let alone = ranges("x", &trained, None);
        assert!(marks(&alone, "rect", "fill two").is_empty());
    }
}
