//! Heat map of predicted over actual numbers: squares of a grid, shaded by their numbers of rows.

use super::plot::{Axis, Plot};
use super::svg::figure;
use crate::cli::model_report::html::number;

/// Grid of squares over actual and predicted numbers.
#[derive(Debug)]
pub(crate) struct Grid {
    /// Start of the first square, in both directions.
    pub(crate) low: f64,
    /// End of the last square.
    pub(crate) high: f64,
    /// Squares in each direction. The outermost ones also count the rows beyond them.
    pub(crate) squares: u32,
    pub(crate) cells: Vec<Cell>,
}

/// Square that has rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    /// Square's index along the actual axis, from 0.
    pub(crate) actual: u32,
    /// Square's index along the predicted axis, from 0.
    pub(crate) predicted: u32,
    pub(crate) rows: u64,
}

impl Grid {
    /// Returns the start of a square.
    fn start(&self, square: u32) -> f64 {
        self.low + (self.high - self.low) * f64::from(square) / f64::from(self.squares)
    }

    /// Formats the range of a square.
    fn range(&self, square: u32) -> String {
        let (from, to) = (self.start(square), self.start(square + 1));
        let [from, to] = [from, to].map(number);
        match square {
            0 => format!("up to {to}"),
            last if last + 1 == self.squares => format!("from {from} on"),
            _ => format!("{from} to {to}"),
        }
    }
}

/// Draws rows by actual and predicted number, with the line where both are equal. `label` is the predicted column.
pub(crate) fn grid(grid: &Grid, label: &str) -> String {
    let rows: u64 = grid.cells.iter().map(|cell| cell.rows).sum();
    let most = grid.cells.iter().map(|cell| cell.rows).max().unwrap_or(0);
    let said = format!(
        "Predicted vs. actual {label} of {rows} rows, in {} squares with rows",
        grid.cells.len()
    );
    let [actual, predicted] = ["actual", "predicted"].map(|which| format!("{which} {label}"));
    let range = (grid.low, grid.high);
    let (x, y) = (Axis::new(&actual, range), Axis::new(&predicted, range));
    let mut plot = Plot::new(&said, x, y);
    for cell in &grid.cells {
        let corner = |step: u32| {
            let x = grid.start(cell.actual + step);
            plot.at(x, grid.start(cell.predicted + step))
        };
        let corners = [corner(0), corner(1)];
        // Shades grow with the square root, so that squares of a few rows stay visible beside those of many.
        let shade = 0.1 + 0.9 * (cell.rows as f64 / most as f64).sqrt();
        let tip = format!(
            "actual {}, predicted {}: {} rows",
            grid.range(cell.actual),
            grid.range(cell.predicted),
            cell.rows
        );
        plot.svg.rect("fill one", shade, corners, &tip);
    }
    plot.diagonal();
    figure("Predicted vs. actual", &[], plot.svg)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{marks, near};
    use super::*;

    #[test]
    fn squares_are_where_their_rows_are() {
        let cell = |actual, predicted, rows| Cell {
            actual,
            predicted,
            rows,
        };
        let of = Grid {
            low: 10.0,
            high: 20.0,
            squares: 4,
            cells: vec![cell(0, 0, 100), cell(2, 3, 25)],
        };
        let html = grid(&of, "\"Sales\"");
        let even = &marks(&html, "line", "even")[0];
        let [left, bottom, right, top] = ["x1", "y1", "x2", "y2"].map(|name| even.number(name));
        let (width, height) = ((right - left) / 4.0, (bottom - top) / 4.0);
        let squares = marks(&html, "rect", "fill one");
        assert_eq!(squares.len(), 2);
        for (square, (actual, predicted)) in squares.iter().zip([(0.0, 0.0), (2.0, 3.0)]) {
            assert!(
                near(square.number("x"), left + actual * width),
                "{square:?}"
            );
            let lower = square.number("y") + square.number("height");
            assert!(near(lower, bottom - predicted * height), "{square:?}");
            assert!(near(square.number("width"), width), "{square:?}");
            assert!(near(square.number("height"), height), "{square:?}");
        }
        let shades = [0, 1].map(|at: usize| squares[at].number("fill-opacity"));
        assert_eq!(shades, [1.0, 0.55]);
        assert_eq!(
            squares[1].tip,
            "actual 15.000 to 17.500, predicted from 17.500 on: 25 rows"
        );
        assert!(
            squares[0]
                .tip
                .starts_with("actual up to 12.500, predicted up to 12.500")
        );
        assert!(html.contains(">actual &quot;Sales&quot;</text>"));
    }
}
