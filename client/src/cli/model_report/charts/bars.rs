//! Bars from 0, with how sure they are: which features matter.

use super::plot::{Axis, span};
use super::svg::{Anchor, Svg, figure};
use crate::cli::model_report::html::{number, shortened};

const WIDTH: f64 = 640.0;
/// Room for the features' names, and for numbers at the right.
const LEFT: f64 = 180.0;
const RIGHT: f64 = 76.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 44.0;
/// Height of a bar with the room around it.
const ROW: f64 = 24.0;
const LETTERS: usize = 24;

/// How much a feature matters.
#[derive(Debug, Clone)]
pub(crate) struct Importance {
    pub(crate) feature: String,
    /// By how much the score falls without it.
    pub(crate) attribution: f64,
    /// How much repetitions differ from that.
    pub(crate) deviation: f64,
}

impl Importance {
    /// From where to where one standard deviation reaches.
    fn reach(&self) -> [f64; 2] {
        [-1.0, 1.0].map(|side| self.attribution + side * self.deviation)
    }
}

/// Features in the order that is given, as bars with their standard deviations. `score` is what falls.
pub(crate) fn importance(features: &[Importance], score: &str) -> String {
    let reaches = features.iter().flat_map(Importance::reach);
    let name = format!("fall of {score} when its values change places");
    let axis = Axis::new(&name, span(reaches.chain([0.0])));
    let place = |value: f64| axis.place(value, [LEFT, WIDTH - RIGHT]);
    let bottom = TOP + ROW * features.len() as f64;
    let said = features.iter().map(|feature| {
        let attribution = number(Some(feature.attribution));
        format!("; {} {attribution}", feature.feature)
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
    svg.text("", Anchor::Middle, (middle, bottom + 36.0), &name);
    for (at, feature) in features.iter().enumerate() {
        let top = TOP + ROW * at as f64;
        let middle = top + ROW / 2.0;
        let [attribution, deviation] =
            [feature.attribution, feature.deviation].map(|value| number(Some(value)));
        let tip = format!("{}: {attribution}, ± {deviation}", feature.feature);
        let name = shortened(&feature.feature, LETTERS);
        svg.text("ink", Anchor::End, (LEFT - 8.0, middle + 4.0), &name);
        let corners = [
            (place(0.0), top + 4.0),
            (place(feature.attribution), top + ROW - 4.0),
        ];
        svg.rect("fill one", 0.8, corners, &tip);
        let [from, to] = feature.reach().map(place);
        svg.line("whisker", (from, middle), (to, middle));
        for end in [from, to] {
            svg.line("whisker", (end, middle - 4.0), (end, middle + 4.0));
        }
        let right = WIDTH - RIGHT + 8.0;
        svg.text("ink", Anchor::Start, (right, middle + 4.0), &attribution);
    }
    figure("Permutation importance", &[], svg)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{marks, near};
    use super::*;

    #[test]
    fn bars_begin_at_zero_and_reach_their_numbers() {
        let of = |feature: &str, attribution, deviation| Importance {
            feature: feature.to_owned(),
            attribution,
            deviation,
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
        // What is below 0 is to the left of it.
        assert!(near(bars[2].number("width"), 0.1 * unit));
        assert!(near(bars[2].number("x") + bars[2].number("width"), zero));
        assert!(bars[0].number("y") < bars[1].number("y"));
        // A whisker and its two ends for each feature.
        let whiskers = marks(&html, "line", "whisker");
        assert_eq!(whiskers.len(), 9);
        assert!(near(whiskers[0].number("x1"), zero + 0.3 * unit));
        assert!(near(whiskers[0].number("x2"), zero + 0.5 * unit));
        assert!(near(whiskers[0].number("y1"), bars[0].number("y") + 8.0));
        assert_eq!(bars[1].tip, "&lt;b&gt;: 0.20000, ± 0.00000");
        let names = marks(&html, "text", "ink");
        assert_eq!((names[0].text, names[1].text), ("Store", "0.40000"));
    }
}
