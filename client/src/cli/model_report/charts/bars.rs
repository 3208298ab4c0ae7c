//! Bar charts with whiskers, from 0: features by permutation importance and by attributions.

use super::plot::{Axis, span};
use super::svg::{Anchor, Svg, figure};
use crate::cli::model_report::html::{number, shortened};

const WIDTH: f64 = 640.0;
/// Margins for the features' names on the left, and for numbers on the right.
const LEFT: f64 = 180.0;
const RIGHT: f64 = 76.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 44.0;
/// Height of a bar and the space around it.
const ROW: f64 = 24.0;
const LETTERS: usize = 24;

/// Importance of a feature.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    pub(crate) feature: String,
    /// End of the bar.
    pub(crate) value: f64,
    /// Ends of the whisker.
    pub(crate) whisker: [f64; 2],
}

/// Draws features by the fall of `score` without them, with whiskers of one standard deviation of the repetitions to
/// each side.
pub(crate) fn importance(features: &[Bar], score: &str) -> String {
    let name = format!("fall of {score} when its values change places");
    bars("Permutation importance", &name, features, |bar| {
        let [from, to] = bar.whisker;
        let [value, deviation] = [bar.value, (to - from) / 2.0].map(number);
        format!("{}: {value}, ± {deviation}", bar.feature)
    })
}

/// Draws features by their mean absolute attribution, with whiskers from the 5 % to the 95 % quantile. `of` names the
/// predicted number.
pub(crate) fn attributions(features: &[Bar], of: &str) -> String {
    let name = format!("mean |attribution| to {of}");
    bars("Integrated gradients", &name, features, |bar| {
        let [low, high] = bar.whisker;
        let [value, low, high] = [bar.value, low, high].map(number);
        format!(
            "{}: mean |attribution| {value}, 5 to 95 % are {low} to {high}",
            bar.feature
        )
    })
}

/// Draws features in the given order; `name` is the axis title, and `tip` describes a bar.
fn bars(title: &str, name: &str, features: &[Bar], tip: impl Fn(&Bar) -> String) -> String {
    let ends = features
        .iter()
        .flat_map(|bar| [bar.value, bar.whisker[0], bar.whisker[1]]);
    let axis = Axis::new(name, span(ends.chain([0.0])));
    let place = |value: f64| axis.place(value, [LEFT, WIDTH - RIGHT]);
    let bottom = TOP + ROW * features.len() as f64;
    let said = features.iter().map(|feature| {
        let value = number(feature.value);
        format!("; {} {value}", feature.feature)
    });
    let said = format!("Features by the {name}{}", said.collect::<String>());
    let mut svg = Svg::new(WIDTH, bottom + BOTTOM, &said);
    for (tick, text) in axis.ticks(6.0) {
        let x = place(tick);
        svg.line("grid", (x, TOP), (x, bottom));
        svg.text("", Anchor::Middle, (x, bottom + 16.0), &text);
    }
    svg.line("axis", (place(0.0), TOP), (place(0.0), bottom));
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    svg.text("", Anchor::Middle, (middle, bottom + 36.0), name);
    for (at, feature) in features.iter().enumerate() {
        let top = TOP + ROW * at as f64;
        let middle = top + ROW / 2.0;
        let name = shortened(&feature.feature, LETTERS);
        svg.text("ink", Anchor::End, (LEFT - 8.0, middle + 4.0), &name);
        let corners = [
            (place(0.0), top + 4.0),
            (place(feature.value), top + ROW - 4.0),
        ];
        svg.rect("fill one", 0.8, corners, &tip(feature));
        let [from, to] = feature.whisker.map(place);
        svg.line("whisker", (from, middle), (to, middle));
        for end in [from, to] {
            svg.line("whisker", (end, middle - 4.0), (end, middle + 4.0));
        }
        let right = WIDTH - RIGHT + 8.0;
        let value = number(feature.value);
        svg.text("ink", Anchor::Start, (right, middle + 4.0), &value);
    }
    figure(title, &[], svg)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{marks, near};
    use super::*;

    #[test]
    fn bars_begin_at_zero_and_reach_their_numbers() {
        let of = |feature: &str, value: f64, deviation: f64| Bar {
            feature: feature.to_owned(),
            value,
            whisker: [value - deviation, value + deviation],
        };
        let features = [
            of("Store", 0.4, 0.1),
            of("<b>", 0.2, 0.0),
            of("c", -0.1, 0.05),
        ];
        let html = importance(&features, "accuracy");
        let zero = marks(&html, "line", "axis")[0].number("x1");
        let bars = marks(&html, "rect", "fill one");
        let unit = bars[0].number("width") / 0.4;
        assert!(near(bars[0].number("x"), zero));
        assert!(near(bars[1].number("x"), zero));
        assert!(near(bars[1].number("width"), 0.2 * unit));
        // A negative bar is to the left of 0.
        assert!(near(bars[2].number("width"), 0.1 * unit));
        assert!(near(bars[2].number("x") + bars[2].number("width"), zero));
        assert!(bars[0].number("y") < bars[1].number("y"));
        // Each feature has a whisker with two ends.
        let whiskers = marks(&html, "line", "whisker");
        assert_eq!(whiskers.len(), 9);
        assert!(near(whiskers[0].number("x1"), zero + 0.3 * unit));
        assert!(near(whiskers[0].number("x2"), zero + 0.5 * unit));
        assert!(near(whiskers[0].number("y1"), bars[0].number("y") + 8.0));
        assert_eq!(bars[1].tip, "&lt;b&gt;: 0.20000, ± 0.00000");
        let names = marks(&html, "text", "ink");
        assert_eq!((names[0].text, names[1].text), ("Store", "0.40000"));
    }

    #[test]
    fn whiskers_of_attributions_are_their_quantiles() {
        let bar = Bar {
            feature: "Store".to_owned(),
            value: 0.5,
            whisker: [-0.75, 0.25],
        };
        let html = attributions(&[bar], "the logarithm of Sales");
        let bar = &marks(&html, "rect", "fill one")[0];
        let unit = bar.number("width") / 0.5;
        let whisker = &marks(&html, "line", "whisker")[0];
        assert!(near(whisker.number("x1"), bar.number("x") - 0.75 * unit));
        assert!(near(whisker.number("x2"), bar.number("x") + 0.25 * unit));
        let due = "Store: mean |attribution| 0.50000, 5 to 95 % are -0.75000 to 0.25000";
        assert_eq!(bar.tip, due);
        assert!(html.contains("mean |attribution| to the logarithm of Sales"));
    }
}
