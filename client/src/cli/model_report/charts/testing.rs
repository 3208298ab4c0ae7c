//! Parser of the marks in a chart's text, for tests of their positions.

/// Element of a chart.
#[derive(Debug)]
pub(super) struct Mark<'a> {
    tag: &'a str,
    /// Text shown at the pointer.
    pub(super) tip: &'a str,
    /// Text at the start of the element.
    pub(super) text: &'a str,
}

impl<'a> Mark<'a> {
    /// Returns an attribute as a number.
    pub(super) fn number(&self, attribute: &str) -> f64 {
        self.attribute(attribute).parse().unwrap()
    }

    /// Returns an attribute.
    pub(super) fn attribute(&self, attribute: &str) -> &'a str {
        let (_, value) = self.tag.split_once(&format!(" {attribute}=\"")).unwrap();
        value.split_once('"').unwrap().0
    }
}

/// Returns the elements with a name and a class, in drawing order.
pub(super) fn marks<'a>(html: &'a str, name: &str, class: &str) -> Vec<Mark<'a>> {
    let start = format!("<{name} class=\"{class}\" ");
    let found = html.match_indices(&start);
    let marks = found.map(|(at, _)| {
        let (tag, rest) = html[at..].split_once('>').unwrap();
        let tip = rest
            .strip_prefix("<title>")
            .and_then(|tip| tip.split_once("</title>"));
        Mark {
            tag,
            tip: tip.map_or("", |(tip, _)| tip),
            text: rest.split_once('<').map_or("", |(text, _)| text),
        }
    });
    marks.collect()
}

/// Returns whether two positions are equal within rounding of the pixels.
pub(super) fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 0.3
}
