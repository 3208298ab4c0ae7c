//! SVG as text: elements with positions in pixels and escaped text.

use crate::cli::model_report::html::escape;

/// Distance from the left and from the top.
pub(super) type Pixel = (f64, f64);

/// Picture that is being drawn.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    said: String,
    body: String,
}

impl Svg {
    /// Creates an empty picture of this size; `said` describes it for readers who cannot see it.
    pub(super) fn new(width: f64, height: f64, said: &str) -> Self {
        Self {
            width,
            height,
            said: escape(said),
            body: String::new(),
        }
    }

    /// Draws a straight line.
    pub(super) fn line(&mut self, class: &str, (x1, y1): Pixel, (x2, y2): Pixel) {
        self.body.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// Draws a line through points.
    pub(super) fn path(&mut self, class: &str, points: impl IntoIterator<Item = Pixel>) {
        let mut steps = String::new();
        for (x, y) in points {
            let step = if steps.is_empty() { 'M' } else { 'L' };
            steps.push_str(&format!("{step}{x:.1} {y:.1}"));
        }
        if !steps.is_empty() {
            self.body
                .push_str(&format!("<path class=\"{class}\" d=\"{steps}\"/>"));
        }
    }

    /// Draws a rectangle between two corners, filled with opacity `shade`, from 0 to 1.
    pub(super) fn rect(&mut self, class: &str, shade: f64, [from, to]: [Pixel; 2], tip: &str) {
        let (x, y) = (from.0.min(to.0), from.1.min(to.1));
        let (width, height) = ((from.0 - to.0).abs(), (from.1 - to.1).abs());
        self.body.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill-opacity=\"{shade:.3}\">{}</rect>",
            title(tip)
        ));
    }

    /// Draws a circle.
    pub(super) fn dot(&mut self, class: &str, (x, y): Pixel, radius: f64, tip: &str) {
        self.body.push_str(&format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\">{}</circle>",
            title(tip)
        ));
    }

    /// Draws text that starts, is centred or ends at a pixel.
    pub(super) fn text(&mut self, class: &str, anchor: Anchor, (x, y): Pixel, text: &str) {
        self.body.push_str(&format!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{}\">{}</text>",
            anchor.name(),
            escape(text)
        ));
    }

    /// Draws text that reads from bottom to top.
    pub(super) fn upright(&mut self, class: &str, anchor: Anchor, (x, y): Pixel, text: &str) {
        self.body.push_str(&format!(
            "<text class=\"{class}\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"{}\">{}</text>",
            anchor.name(),
            escape(text)
        ));
    }

    /// Returns the picture.
    pub(super) fn html(self) -> String {
        let Self {
            width,
            height,
            said,
            body,
        } = self;
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" \
             aria-label=\"{said}\">{body}</svg>"
        )
    }
}

/// Part of a text that is at its pixel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// Returns the text shown at the pointer, as an element.
fn title(tip: &str) -> String {
    if tip.is_empty() {
        String::new()
    } else {
        format!("<title>{}</title>", escape(tip))
    }
}

/// Returns a figure with a title, a picture and a key of its colours: pairs of class and meaning.
pub(super) fn figure(name: &str, keys: &[(&str, &str)], picture: Svg) -> String {
    let keys = keys.iter().map(|(hue, meaning)| {
        let meaning = escape(meaning);
        format!("<span class=\"key {hue}\">{meaning}</span>")
    });
    format!(
        "<figure><figcaption>{} {}</figcaption>{}</figure>",
        escape(name),
        keys.collect::<String>(),
        picture.html()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_no_markup() {
        let mut svg = Svg::new(10.0, 10.0, "a < \"b\"");
        svg.text("ink", Anchor::End, (1.0, 2.0), "<script>");
        svg.dot("dot", (1.0, 2.0), 3.0, "x > y & z");
        let html = figure("<i>", &[("one", "a<b")], svg);
        for escaped in [
            "aria-label=\"a &lt; &quot;b&quot;\"",
            ">&lt;script&gt;</text>",
            "<title>x &gt; y &amp; z</title>",
            "<figcaption>&lt;i&gt; <span class=\"key one\">a&lt;b</span>",
        ] {
            assert!(html.contains(escaped), "{html}");
        }
    }

    #[test]
    fn rectangles_have_their_corners_in_any_order() {
        let mut svg = Svg::new(100.0, 100.0, "");
        svg.rect("fill one", 0.5, [(30.0, 80.0), (10.0, 90.0)], "");
        let due = "x=\"10.0\" y=\"80.0\" width=\"20.0\" height=\"10.0\" fill-opacity=\"0.500\"";
        assert!(svg.html().contains(due));
    }
}
