//! Charts of the report: HTML figures with SVG.
//!
//! ```text
//! numbers ─► lines, heat, bars, spread ─► Plot: axes, ticks, pixels ─► Svg: elements, escaped ─► figure
//! ```
//!
//! A chart has a title, axes with names and units, and the numbers of each mark in a `<title>`, which browsers show at
//! the pointer. Colours are classes of the page's style sheet, so a chart is light or dark like the page. This module
//! neither computes the numbers nor writes tables of them.

mod bars;
mod heat;
mod lines;
mod matrix;
mod plot;
mod spread;
mod svg;
#[cfg(test)]
mod testing;

pub(super) use bars::{Bar, attributions, importance};
pub(super) use heat::{Cell, Grid, grid};
pub(super) use lines::{Bin, Line, RocPoint, calibration, curves, roc};
pub(super) use matrix::{Matrix, confusion};
pub(super) use spread::{Quantile, Spread, quantiles, range_keys, ranges};
