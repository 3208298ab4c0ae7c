//! Scores of all tables and their evaluation: targets for Volley's defaults, tables as Markdown, and a chart.
//!
//! It runs nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::peer::{System, Table};
use super::score::{Score, deviation, mean};
use super::volley::Variant;
use crate::chart::{Chart, ChartBar};
use crate::comparison::VOLLEY;
use crate::report::Report;

/// Maximum difference of the scores, with each seed, at which linear models count as equal.
const EQUAL_WITHIN: f64 = 0.0005;

/// Results of the comparison.
#[derive(Debug, Serialize)]
pub(super) struct Board {
    #[serde(flatten)]
    pub(super) report: Report,
    pub(super) tables: Vec<Scored>,
    /// Bars, set by [`Board::judge`].
    pub(super) bars: Vec<Bar>,
}

/// Table with the scores of every system.
#[derive(Debug, Serialize)]
pub(super) struct Scored {
    pub(super) table: Table,
    /// Scores by system, one per seed.
    pub(super) scores: BTreeMap<&'static str, Vec<Score>>,
    /// Scores of Volley's linear model and of scikit-learn's.
    pub(super) linear: [Vec<Score>; 2],
}

/// Statement with the tables on which it holds; a target if it must hold on a share of them.
#[derive(Debug, Serialize)]
pub(super) struct Bar {
    what: String,
    /// Required share of tables, if the bar is a target.
    to_reach: Option<f64>,
    holds_on: Vec<String>,
    fails_on: Vec<String>,
}

impl Bar {
    fn tables(&self) -> usize {
        self.holds_on.len() + self.fails_on.len()
    }

    fn met(&self) -> Option<bool> {
        let share = self.holds_on.len() as f64 / self.tables() as f64;
        Some(share >= self.to_reach?)
    }
}

impl Scored {
    pub(super) fn new(table: Table) -> Self {
        Self {
            table,
            scores: BTreeMap::new(),
            linear: [vec![], vec![]],
        }
    }

    /// Adds a system's score with one seed.
    pub(super) fn push(&mut self, system: &'static str, score: Score) {
        self.scores.entry(system).or_default().push(score);
    }

    /// Returns the mean and the standard deviation of a system's scores over the seeds.
    fn of(&self, system: &str) -> Option<(f64, f64)> {
        let scores = scores(self.scores.get(system)?);
        Some((mean(&scores), deviation(&scores)))
    }

    /// Returns a variant's scores minus those of the defaults, one per seed.
    fn differences(&self, variant: Variant) -> Option<Vec<f64>> {
        let pairs = self
            .scores
            .get(variant.name())?
            .iter()
            .zip(self.scores.get(VOLLEY)?);
        Some(pairs.map(|(of, from)| of.score - from.score).collect())
    }

    /// Returns the figures to compare linear models by: log loss for classes, which is finer than accuracy, or r².
    fn linear(&self) -> [Vec<f64>; 2] {
        let of = |score: &Score| score.log_loss.unwrap_or(score.score);
        self.linear
            .each_ref()
            .map(|all| all.iter().map(of).collect())
    }

    /// Returns the largest difference between the linear models over the seeds.
    fn linear_difference(&self) -> f64 {
        let [volley, other] = self.linear();
        let differences = volley.iter().zip(&other).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, f64::max)
    }

    fn measure(&self) -> &'static str {
        if self.table.regression {
            "r²"
        } else {
            "accuracy"
        }
    }
}

impl Board {
    /// Counts the tables on which each bar's statement holds.
    pub(super) fn judge(&mut self) {
        let bar = |what: String, to_reach, holds: &dyn Fn(&Scored) -> Option<bool>| {
            let mut bar = Bar {
                what,
                to_reach,
                holds_on: vec![],
                fails_on: vec![],
            };
            for scored in &self.tables {
                let name = scored.table.name.clone();
                match holds(scored) {
                    Some(true) => bar.holds_on.push(name),
                    Some(false) => bar.fails_on.push(name),
                    None => {}
                }
            }
            (bar.tables() > 0).then_some(bar)
        };
        let at_least = |system: System| {
            move |scored: &Scored| Some(scored.of(VOLLEY)?.0 >= scored.of(system.name())?.0)
        };
        let within_spread = |system: System| {
            move |scored: &Scored| {
                let (mean, deviation) = scored.of(system.name())?;
                Some(mean - scored.of(VOLLEY)?.0 <= deviation)
            }
        };
        let mut bars = Vec::new();
        for variant in Variant::ALL {
            let (name, to_reach) = (variant.name(), (variant == Variant::Tf32).then_some(1.0));
            bars.push(bar(
                format!("the mean score of {name} differs from the default's by at most its standard deviation"),
                to_reach,
                &|scored| {
                    let (_, deviation) = scored.of(VOLLEY)?;
                    Some(mean(&scored.differences(variant)?).abs() <= deviation)
                },
            ));
        }
        for (system, mean, spread) in [
            (System::Mlp, Some(0.9), None),
            (System::Realmlp, None, Some(0.5)),
            (System::Boosting, None, None),
            (System::Lightgbm, None, None),
            (System::Xgboost, None, None),
        ] {
            let name = system.name();
            bars.push(bar(
                format!("the network's mean score is at least that of {name}"),
                mean,
                &at_least(system),
            ));
            bars.push(bar(
                format!("the network's mean score is at least that of {name} less its standard deviation"),
                spread,
                &within_spread(system),
            ));
        }
        bars.push(bar(
            format!(
                "the linear model's r² or log loss differs from scikit-learn's by less than {EQUAL_WITHIN} with each seed"
            ),
            Some(1.0),
            &|scored| Some(scored.linear_difference() < EQUAL_WITHIN),
        ));
        self.bars = bars.into_iter().flatten().collect();
    }

    /// Formats the tables of figures, as Markdown.
    pub(super) fn figures(&self) -> String {
        // Writing to a string does not fail.
        let mut text = "| | tables | to be reached | fails on |\n|---|---|---|---|\n".to_owned();
        for bar in &self.bars {
            let met = match bar.met() {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "no bar",
            };
            let least = bar
                .to_reach
                .map(|share| format!("{:.0} %: ", 100.0 * share));
            let _ = writeln!(
                text,
                "| {} | {} of {} | {}{met} | {} |",
                bar.what,
                bar.holds_on.len(),
                bar.tables(),
                least.unwrap_or_default(),
                bar.fails_on.join(", ")
            );
        }
        let systems = self.systems();
        let _ = writeln!(
            text,
            "\nMean score, ± its standard deviation over the seeds; more is better.\n"
        );
        self.table(&mut text, &systems, "score", |scored, system| {
            (
                Some(scored.measure()),
                scored.scores.get(system).map(|all| scores(all)),
            )
        });
        let variants = Variant::ALL.into_iter();
        let variants: Vec<_> = variants
            .filter(|variant| systems.contains(&variant.name()))
            .collect();
        if !variants.is_empty() {
            let _ = writeln!(
                text,
                "\nScore minus that of the defaults with the same rows, ± its standard deviation over the seeds.\n"
            );
            let names: Vec<_> = variants.iter().map(|variant| variant.name()).collect();
            self.table(&mut text, &names, "score", |scored, name| {
                let variant = variants.iter().find(|variant| variant.name() == name);
                let differences = variant.and_then(|variant| scored.differences(*variant));
                (Some(scored.measure()), differences)
            });
        }
        let _ = writeln!(text, "\nLog loss of the classifiers; less is better.\n");
        self.table(&mut text, &systems, "", |scored, system| {
            (
                None,
                scored.scores.get(system).and_then(|all| log_losses(all)),
            )
        });
        let _ = writeln!(
            text,
            "\nLinear models, all rows of the training part.\n\n\
             | table | | Volley | scikit-learn | greatest difference with a seed |\n|---|---|---|---|---|"
        );
        for scored in &self.tables {
            let [volley, other] = scored.linear();
            let measure = if scored.table.regression {
                "r²"
            } else {
                "log loss"
            };
            let _ = writeln!(
                text,
                "| {} | {measure} | {} | {} | {:.5} |",
                scored.table.name,
                spread(&volley),
                spread(&other),
                scored.linear_difference()
            );
        }
        let _ = writeln!(
            text,
            "\nThe tables.\n\n| table | is | label | rows | numbers | categories | nulls |\n\
             |---|---|---|---|---|---|---|"
        );
        for Scored { table, .. } in &self.tables {
            let label = match table.classes {
                Some(classes) => format!("{classes} classes"),
                None => "a number".to_owned(),
            };
            let drawn = if table.sampled {
                ", drawn from more"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "| {} | {} | {label} | {}{drawn} | {} | {} | {} |",
                table.name, table.source, table.rows, table.numbers, table.categories, table.nulls
            );
        }
        text + "\n"
    }

    /// Formats a table with one row per table and one column per system, for the tables that have such figures.
    fn table(
        &self,
        text: &mut String,
        systems: &[&str],
        measure: &str,
        figures: impl Fn(&Scored, &str) -> (Option<&'static str>, Option<Vec<f64>>),
    ) {
        let _ = writeln!(
            text,
            "| table | {measure} | {} |\n|---|---|{}",
            systems.join(" | "),
            "---|".repeat(systems.len())
        );
        for scored in &self.tables {
            let row: Vec<_> = systems
                .iter()
                .map(|system| figures(scored, system))
                .collect();
            if row.iter().all(|(_, figures)| figures.is_none()) {
                continue;
            }
            let cells = row
                .iter()
                .map(|(_, figures)| figures.as_deref().map(spread));
            let cells: Vec<_> = cells.map(Option::unwrap_or_default).collect();
            let measure = row.first().and_then(|(measure, _)| *measure);
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                scored.table.name,
                measure.unwrap_or_default(),
                cells.join(" | ")
            );
        }
    }

    /// Returns the measured systems: Volley, its variants, then the others in their listed order.
    fn systems(&self) -> Vec<&'static str> {
        let variants = Variant::ALL.map(Variant::name);
        let systems = System::value_variants().iter();
        let systems = systems.map(|system| system.name());
        let others = variants.into_iter().chain(systems);
        let all = [VOLLEY].into_iter().chain(others);
        let measured = |system: &&str| {
            let mut tables = self.tables.iter();
            tables.any(|scored| scored.scores.contains_key(*system))
        };
        all.filter(measured).collect()
    }

    /// Returns a chart of Volley's mean score minus that of each system with a target.
    pub(super) fn chart(&self) -> Chart {
        let mut bars = Vec::new();
        for scored in &self.tables {
            for (color, system) in [System::Mlp, System::Realmlp].into_iter().enumerate() {
                let (Some((volley, _)), Some((other, _))) =
                    (scored.of(VOLLEY), scored.of(system.name()))
                else {
                    continue;
                };
                bars.push(ChartBar {
                    label: format!(
                        "{}, {}, against {}",
                        scored.table.name,
                        scored.measure(),
                        system.name()
                    ),
                    value: volley - other,
                    written: format!("{:+.3}", volley - other),
                    system: color,
                });
            }
        }
        Chart {
            said: "by how much Volley's mean r² or accuracy is greater; the line is 0",
            line: 0.0,
            bars,
        }
    }
}

fn scores(all: &[Score]) -> Vec<f64> {
    all.iter().map(|score| score.score).collect()
}

fn log_losses(all: &[Score]) -> Option<Vec<f64>> {
    all.iter().map(|score| score.log_loss).collect()
}

fn spread(figures: &[f64]) -> String {
    format!("{:.4} ± {:.4}", mean(figures), deviation(figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(name: &str, volley: [f64; 2], mlp: [f64; 2], linear: [f64; 2]) -> Scored {
        let mut scored = Scored::new(Table {
            name: name.to_owned(),
            source: String::new(),
            regression: true,
            rows: 10,
            sampled: false,
            numbers: 1,
            categories: 0,
            nulls: 0,
            classes: None,
        });
        let score = |score| Score {
            score,
            log_loss: None,
        };
        for (volley, mlp) in volley.into_iter().zip(mlp) {
            scored.push(VOLLEY, score(volley));
            scored.push(System::Mlp.name(), score(mlp));
        }
        scored.linear = linear.map(|x| vec![score(x)]);
        scored
    }

    #[test]
    fn bars_count_the_tables_that_they_hold_on() {
        let mut board = Board {
            report: Report::new("quality", "Quality", ""),
            tables: vec![
                scored("better", [0.5, 0.7], [0.5, 0.6], [0.5, 0.5001]),
                scored("equal", [0.5, 0.7], [0.7, 0.5], [0.5, 0.5]),
                scored("near", [0.5, 0.5], [0.5, 0.7], [0.5, 0.6]),
                scored("far", [0.0, 0.0], [0.5, 0.7], [0.5, 0.5]),
            ],
            bars: vec![],
        };
        board.judge();
        let held: Vec<_> = board
            .bars
            .iter()
            .map(|bar| (bar.holds_on.len(), bar.met()))
            .collect();
        assert_eq!(held, [(2, Some(false)), (3, None), (3, Some(false))]);
        assert_eq!(board.bars[0].fails_on, ["near", "far"]);
        assert_eq!(board.systems(), [VOLLEY, System::Mlp.name()]);
        for scored in &mut board.tables {
            for score in [0.5, 0.6] {
                let score = Score {
                    score,
                    log_loss: None,
                };
                scored.push(Variant::Tf32.name(), score);
            }
        }
        board.judge();
        assert_eq!(board.bars[0].fails_on, ["near", "far"]);
        let figures = board.figures();
        assert!(
            figures.contains("| better | r² | -0.0500 ± 0.0707 |"),
            "{figures}"
        );
        assert_eq!(board.chart().bars.len(), 4);
        assert!(
            board
                .figures()
                .contains("| far | r² | 0.0000 ± 0.0000 | 0.5500 ± 0.0707 | 0.6000 ± 0.1414 |")
        );
    }
}
