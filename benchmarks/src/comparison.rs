//! Results of a comparison: cases, each measured several times for several systems on one host in one run, written
//! as JSON, Markdown and a chart.
//!
//! The method of measurement is described in each comparison's own module.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::chart::{Chart, ChartBar};
use crate::report::Report;

/// System that the others are compared with.
pub(crate) const VOLLEY: &str = "Volley";

/// A comparison, with everything needed to read it.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    #[serde(flatten)]
    pub(crate) report: Report,
    pub(crate) cases: Vec<Case>,
}

/// Quantity measured for each system.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// Figures by system, one per round.
    pub(crate) samples: BTreeMap<String, Vec<f64>>,
    /// Targets for Volley.
    pub(crate) bars: Vec<Bar>,
}

/// Unit of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    RowsPerSecond,
    MiB,
    Queries,
}

/// Target for Volley.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    /// Minimum ratio between Volley and another system; above 1, Volley must be better.
    Ratio { against: String, at_least: f64 },
    /// Maximum value, in the case's unit.
    AtMost { value: f64 },
}

impl Unit {
    fn suffix(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::RowsPerSecond => "rows/s",
            Self::MiB => "MiB",
            Self::Queries => "queries",
        }
    }

    /// Returns whether a larger figure is better.
    fn more_is_better(self) -> bool {
        self == Self::RowsPerSecond
    }
}

/// Returns the median of some figures, the mean of the two middle ones if their number is even; NaN if there are
/// none.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns a percentile: the smallest figure that at least this share of the figures does not exceed.
pub(crate) fn percentile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit,
            samples: BTreeMap::new(),
            bars: Vec::new(),
        }
    }

    /// Adds a minimum ratio to another system as a target.
    pub(crate) fn at_least(mut self, at_least: f64, against: &str) -> Self {
        let against = against.to_owned();
        self.bars.push(Bar::Ratio { against, at_least });
        self
    }

    /// Adds a maximum value as a target.
    pub(crate) fn at_most(mut self, value: f64) -> Self {
        self.bars.push(Bar::AtMost { value });
        self
    }

    /// Adds a system's figure of one round.
    pub(crate) fn push(&mut self, system: &str, figure: f64) {
        let samples = self.samples.entry(system.to_owned()).or_default();
        samples.push(figure);
    }

    /// Returns the ratio between Volley's and another system's median; above 1, Volley is better.
    pub(crate) fn ratio(&self, against: &str) -> Option<f64> {
        let of = |system: &str| self.samples.get(system).map(|samples| median(samples));
        let (volley, other) = (of(VOLLEY)?, of(against)?);
        Some(if self.unit.more_is_better() {
            volley / other
        } else {
            other / volley
        })
    }

    fn met(&self, bar: &Bar) -> Option<bool> {
        Some(match bar {
            Bar::Ratio { against, at_least } => self.ratio(against)? >= *at_least,
            Bar::AtMost { value } => median(self.samples.get(VOLLEY)?) <= *value,
        })
    }

    /// Returns the systems in the order of tables and charts: Volley first.
    pub(crate) fn systems(&self) -> Vec<&str> {
        let mut systems: Vec<_> = self.samples.keys().map(String::as_str).collect();
        systems.sort_by_key(|system| *system != VOLLEY);
        systems
    }
}

impl Comparison {
    pub(crate) fn new(name: &'static str, title: &'static str, method: impl Into<String>) -> Self {
        Self {
            report: Report::new(name, title, method),
            cases: Vec::new(),
        }
    }

    /// Records versions that a peer has reported.
    pub(crate) fn note_versions(&mut self, answer: &serde_json::Value) {
        self.report.note_versions(answer);
    }

    /// Adds a remark, unless it is already there.
    pub(crate) fn remark(&mut self, remark: String) {
        self.report.remark(remark);
    }

    /// Writes the comparison into a folder, as JSON, Markdown and a chart.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        self.report
            .write(folder, self, &self.figures(), &self.chart())
    }

    /// Formats one line per case and system, as Markdown.
    fn figures(&self) -> String {
        let mut text = "Medians, with the least and the greatest of all rounds. A ratio is how many \
             times as good Volley is.\n\n| case | system | median | least to greatest | rounds | ratio | \
             bar |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
        for case in &self.cases {
            for system in case.systems() {
                self.line(case, system, &mut text);
            }
        }
        text
    }

    /// Returns a chart of the ratios, for the cases that have them.
    fn chart(&self) -> Chart {
        let mut systems: Vec<&str> = Vec::new();
        let mut bars = Vec::new();
        for case in &self.cases {
            for system in case.systems() {
                if system == VOLLEY {
                    continue;
                }
                let Some(ratio) = case.ratio(system).filter(|ratio| ratio.is_finite()) else {
                    continue;
                };
                if !systems.contains(&system) {
                    systems.push(system);
                }
                let color = systems.iter().position(|known| *known == system);
                bars.push(ChartBar {
                    label: format!("{}, against {system}", case.name),
                    value: ratio,
                    written: format!("{ratio:.2}×"),
                    system: color.unwrap_or_default(),
                });
            }
        }
        Chart {
            said: "how many times as good Volley is; the line is 1",
            line: 1.0,
            bars,
        }
    }

    fn line(&self, case: &Case, system: &str, text: &mut String) {
        let samples = &case.samples[system];
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let of_system = |bar: &&Bar| match bar {
            Bar::Ratio { against, .. } => against == system,
            Bar::AtMost { .. } => system == VOLLEY,
        };
        let bars = case.bars.iter().filter(of_system).map(|bar| {
            let met = match case.met(bar) {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "not measured",
            };
            match bar {
                Bar::Ratio { at_least, .. } => format!("≥ {at_least}: {met}"),
                Bar::AtMost { value } => format!("≤ {value} {}: {met}", case.unit.suffix()),
            }
        });
        let ratio = (system != VOLLEY).then(|| case.ratio(system)).flatten();
        let _ = writeln!(
            text,
            "| {} | {system} | {} {} | {} to {} | {} | {} | {} |",
            case.name,
            number(median(samples)),
            case.unit.suffix(),
            number(least),
            number(greatest),
            samples.len(),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}×")),
            bars.collect::<Vec<_>>().join(", "),
        );
    }
}

/// Formats a value with three significant digits, or all digits of its integer part if there are more.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        middle if middle >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        let figures: Vec<_> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&figures, 0.5), 100.0);
        assert_eq!(percentile(&figures, 0.99), 198.0);
        assert_eq!(percentile(&[3.0], 0.99), 3.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn ratios_are_above_one_where_volley_is_better() {
        let mut seconds = Case::new("a", Unit::Seconds)
            .at_least(2.0, "other")
            .at_most(3.0);
        let mut rows = Case::new("b", Unit::RowsPerSecond).at_least(3.0, "other");
        for figure in [1.0, 9.0, 2.0] {
            seconds.push(VOLLEY, figure);
            seconds.push("other", 2.0 * figure);
            rows.push(VOLLEY, 2.0 * figure);
            rows.push("other", figure);
        }
        assert_eq!(seconds.ratio("other"), Some(2.0));
        assert_eq!(rows.ratio("other"), Some(2.0));
        assert_eq!(rows.ratio("a third"), None);
        let met = |case: &Case| {
            case.bars
                .iter()
                .map(|bar| case.met(bar))
                .collect::<Vec<_>>()
        };
        assert_eq!(met(&seconds), [Some(true), Some(true)]);
        assert_eq!(met(&rows), [Some(false)]);
        assert_eq!(median(&[1.0, 4.0, 2.0, 3.0]), 2.5);
        assert_eq!(rows.systems(), [VOLLEY, "other"]);
    }
}
