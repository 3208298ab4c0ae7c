//! Confusion matrix: numbers of rows by label and by predicted class.

use std::cmp::Reverse;

use super::svg::{Anchor, Svg, figure};
use crate::cli::model_report::html::{percent, shortened};

/// Maximum number of labels and classes with their own row or column.
const SHOWN: usize = 20;
/// Maximum number of characters of a name.
const LETTERS: usize = 16;
const LETTER_WIDTH: f64 = 7.0;

/// Numbers of rows by label and by predicted class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) labels: Vec<String>,
    pub(crate) classes: Vec<String>,
    /// Counts by label, then by class.
    pub(crate) counts: Vec<Vec<u64>>,
}

/// Matrix whose last label or class may stand for several.
#[derive(Debug, PartialEq, Eq)]
struct Merged {
    matrix: Matrix,
    /// Numbers of labels and of classes that are not merged.
    own: (usize, usize),
}

impl Matrix {
    /// Returns the number of rows that have this label, plus the number predicted as this class.
    fn weight(&self, name: &str) -> u64 {
        let label = self.labels.iter().position(|label| label == name);
        let class = self.classes.iter().position(|class| class == name);
        let labelled: u64 = label.map_or(0, |at| self.counts[at].iter().sum());
        let taken: u64 = class.map_or(0, |at| self.counts.iter().map(|row| row[at]).sum());
        labelled + taken
    }

    /// Keeps the `most` names with the most rows, and merges the others into one.
    fn merged(&self, most: usize) -> Merged {
        let unknown = self
            .labels
            .iter()
            .filter(|name| !self.classes.contains(name));
        let mut names: Vec<_> = self.classes.iter().chain(unknown).collect();
        if names.len() > most {
            names.sort_by_cached_key(|name| Reverse(self.weight(name)));
            names.truncate(most);
        }
        let merge = |all: &[String]| {
            let kept = all.iter().filter(|name| names.contains(name));
            let mut kept: Vec<String> = kept.cloned().collect();
            let own = kept.len();
            let place = |name: &String| kept.iter().position(|kept| kept == name).unwrap_or(own);
            let places: Vec<usize> = all.iter().map(place).collect();
            if own < all.len() {
                kept.push(format!("{} others", all.len() - own));
            }
            (kept, places, own)
        };
        let (labels, label_places, own_labels) = merge(&self.labels);
        let (classes, class_places, own_classes) = merge(&self.classes);
        let mut counts = vec![vec![0; classes.len()]; labels.len()];
        for (row, label) in self.counts.iter().zip(label_places) {
            for (count, class) in row.iter().zip(&class_places) {
                counts[label][*class] += count;
            }
        }
        Merged {
            matrix: Self {
                labels,
                classes,
                counts,
            },
            own: (own_labels, own_classes),
        }
    }
}

impl Merged {
    /// Returns whether rows of a label were predicted correctly; `None` if both the label and the class are merged.
    fn is_right(&self, label: usize, class: usize) -> Option<bool> {
        let Matrix {
            labels, classes, ..
        } = &self.matrix;
        match (label < self.own.0, class < self.own.1) {
            (true, true) => Some(labels[label] == classes[class]),
            (false, false) => None,
            _ => Some(false),
        }
    }
}

/// Draws a confusion matrix as a heat map: one row per label, shaded by shares of the label's rows.
pub(crate) fn confusion(matrix: &Matrix) -> String {
    let merged = matrix.merged(SHOWN);
    let Matrix {
        labels,
        classes,
        counts,
    } = &merged.matrix;
    let cell = (460.0 / classes.len().max(1) as f64).clamp(30.0, 72.0);
    let letters = |names: &[String]| {
        let letters = names.iter().map(|name| name.chars().count());
        letters.max().unwrap_or(0).min(LETTERS) as f64 * LETTER_WIDTH
    };
    let lies = letters(classes) <= cell - 4.0;
    let left = 30.0 + letters(labels).max(20.0);
    let top = 24.0 + if lies { 18.0 } else { letters(classes) + 8.0 };
    let width = left + cell * classes.len() as f64 + 8.0;
    let height = top + cell * labels.len() as f64 + 8.0;
    let rows: u64 = counts.iter().flatten().sum();
    let said = format!(
        "Confusion matrix of {rows} rows, {} labels and {} classes; shares are of the rows of a label",
        matrix.labels.len(),
        matrix.classes.len()
    );
    let mut svg = Svg::new(width.max(180.0), height, &said);
    let middle = |start: f64, count: usize| start + cell * count as f64 / 2.0;
    svg.text(
        "",
        Anchor::Middle,
        (middle(left, classes.len()), 13.0),
        "taken for",
    );
    svg.upright(
        "",
        Anchor::Middle,
        (13.0, middle(top, labels.len())),
        "label",
    );
    for (at, class) in classes.iter().enumerate() {
        let (x, name) = (left + cell * (at as f64 + 0.5), shortened(class, LETTERS));
        if lies {
            svg.text("ink", Anchor::Middle, (x, top - 7.0), &name);
        } else {
            svg.upright("ink", Anchor::Start, (x + 4.0, top - 7.0), &name);
        }
    }
    for (at, (label, counts)) in labels.iter().zip(counts).enumerate() {
        let y = top + cell * at as f64;
        let name = shortened(label, LETTERS);
        svg.text(
            "ink",
            Anchor::End,
            (left - 7.0, y + cell / 2.0 + 4.0),
            &name,
        );
        let of_label = counts.iter().sum::<u64>() as f64;
        for (class, count) in counts.iter().enumerate() {
            let x = left + cell * class as f64;
            let share = if of_label > 0.0 {
                *count as f64 / of_label
            } else {
                0.0
            };
            let hue = match merged.is_right(at, class) {
                Some(true) => "one",
                Some(false) => "two",
                None => "three",
            };
            let corners = [(x + 1.0, y + 1.0), (x + cell - 1.0, y + cell - 1.0)];
            let tip = format!(
                "{label} taken for {}: {count} rows, {} of this label",
                classes[class],
                percent(*count as f64, of_label)
            );
            svg.rect("frame", 1.0, corners, "");
            svg.rect(&format!("fill {hue}"), share, corners, &tip);
            if *count == 0 {
                continue;
            }
            let ink = if share > 0.55 { "on" } else { "ink" };
            let (x, y) = (x + cell / 2.0, y + cell / 2.0);
            let has_share = cell >= 48.0;
            let lift = if has_share { -2.0 } else { 4.0 };
            svg.text(ink, Anchor::Middle, (x, y + lift), &brief(*count));
            if has_share {
                let share = percent(*count as f64, of_label);
                svg.text(ink, Anchor::Middle, (x, y + 14.0), &share);
            }
        }
    }
    let mut keys = vec![("one", "right"), ("two", "wrong")];
    if merged.own != (labels.len(), classes.len()) {
        keys.push(("three", "either"));
    }
    figure("Confusion matrix", &keys, svg)
}

/// Formats a count in a few characters.
fn brief(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1000),
        _ => format!("{}M", count / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Mark, marks, near};
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn cells_are_shaded_by_the_shares_of_a_label() {
        let matrix = Matrix {
            labels: names(&["<a>", "b"]),
            classes: names(&["<a>", "b"]),
            counts: vec![vec![6, 2], vec![0, 4]],
        };
        let html = confusion(&matrix);
        let (right, wrong) = (
            marks(&html, "rect", "fill one"),
            marks(&html, "rect", "fill two"),
        );
        let shades = |marks: &[Mark<'_>]| -> Vec<f64> {
            marks
                .iter()
                .map(|mark| mark.number("fill-opacity"))
                .collect()
        };
        assert_eq!(shades(&right), [0.75, 1.0]);
        assert_eq!(shades(&wrong), [0.25, 0.0]);
        // The diagonal goes down to the right, and wrong predictions are beside it.
        let at = |mark: &Mark<'_>| (mark.number("x"), mark.number("y"));
        let ((x, y), (right_x, lower_y)) = (at(&right[0]), at(&right[1]));
        assert!(right_x > x && lower_y > y);
        let (beside, below) = (at(&wrong[0]), at(&wrong[1]));
        assert!(near(beside.0, right_x) && near(beside.1, y));
        assert!(near(below.0, x) && near(below.1, lower_y));
        assert_eq!(
            wrong[0].tip,
            "&lt;a&gt; taken for b: 2 rows, 25.0 % of this label"
        );
        let texts: Vec<_> = marks(&html, "text", "on")
            .iter()
            .map(|mark| mark.text)
            .collect();
        assert_eq!(texts, ["6", "75.0 %", "4", "100.0 %"]);
    }

    #[test]
    fn rare_classes_are_put_together() {
        let classes = names(&["a", "b", "c", "d"]);
        let matrix = Matrix {
            labels: names(&["a", "b", "d", "never seen"]),
            classes,
            counts: vec![
                vec![9, 0, 1, 0],
                vec![0, 1, 0, 1],
                vec![2, 0, 3, 5],
                vec![1, 0, 0, 0],
            ],
        };
        let merged = matrix.merged(2);
        assert_eq!(merged.matrix.labels, ["a", "d", "2 others"]);
        assert_eq!(merged.matrix.classes, ["a", "d", "2 others"]);
        assert_eq!(
            merged.matrix.counts,
            [vec![9, 0, 1], vec![2, 5, 3], vec![1, 1, 1]]
        );
        assert_eq!(merged.is_right(0, 0), Some(true));
        assert_eq!(merged.is_right(0, 2), Some(false));
        assert_eq!(merged.is_right(2, 2), None);
        let whole = matrix.merged(5);
        assert_eq!((whole.matrix, whole.own), (matrix, (4, 4)));
    }

    #[test]
    fn counts_fit_into_their_cells() {
        let written = [0, 9_999, 10_500, 25_000_000].map(brief);
        assert_eq!(written, ["0", "9999", "10k", "25M"]);
    }
}
