//! The report's charts, as figures of HTML with SVG in them.
//!
//! ```text
//! numbers ─► lines, heat, bars, spread ─► Plot: axes, ticks, pixels ─► Svg: elements, escaped ─► figure
//! ```
//!
//! A chart has a title, axes with names and units, and on each mark the numbers that it stands for (`<title>`, which
//! browsers show at the pointer). Colours are classes of the page's style sheet, so a chart is light or dark as
//! the page is. Not here: where numbers come from, and tables of them.

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
