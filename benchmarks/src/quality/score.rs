//! Scores of predictions: r² for numbers, accuracy and log loss for classes, by the same code for every system.
//!
//! It does not know which system predicted.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Minimum probability assumed for a class, as in `ML.EVALUATE`.
const LEAST_PROBABILITY: f64 = 1e-15;

/// Labels of the held-out rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Labels {
    Numbers(Vec<f64>),
    Classes(Vec<String>),
}

/// Predictions of a system for these rows, in their order.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Predictions {
    Numbers(Vec<f64>),
    /// Probability of each class.
    Probabilities(Vec<BTreeMap<String, f64>>),
}

/// Quality of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Score {
    /// r² for numbers, accuracy for classes: more is better.
    pub(super) score: f64,
    /// Log loss for classes: less is better.
    pub(super) log_loss: Option<f64>,
}

impl Labels {
    pub(super) fn of_json(labels: &Value) -> anyhow::Result<Self> {
        let labels = labels.as_array().context("no labels")?;
        let numbers: Option<Vec<_>> = labels.iter().map(Value::as_f64).collect();
        Ok(match numbers {
            Some(numbers) => Self::Numbers(numbers),
            None => Self::Classes(labels.iter().map(text).collect()),
        })
    }
}

/// Returns a class as text; numbers and booleans in their JSON form.
pub(super) fn text(class: &Value) -> String {
    class
        .as_str()
        .map_or_else(|| class.to_string(), str::to_owned)
}

impl Score {
    pub(super) fn of(labels: &Labels, predictions: &Predictions) -> anyhow::Result<Self> {
        match (labels, predictions) {
            (Labels::Numbers(labels), Predictions::Numbers(predicted)) => {
                same_length(labels.len(), predicted.len())?;
                Ok(Self {
                    score: r2(labels, predicted),
                    log_loss: None,
                })
            }
            (Labels::Classes(labels), Predictions::Probabilities(predicted)) => {
                same_length(labels.len(), predicted.len())?;
                Ok(of_classes(labels, predicted))
            }
            _ => bail!("numbers where classes are due, or the other way round"),
        }
    }
}

fn same_length(labels: usize, predictions: usize) -> anyhow::Result<()> {
    ensure!(
        labels == predictions && labels > 0,
        "{predictions} predictions of {labels} rows"
    );
    Ok(())
}

/// Returns r²: 1 minus the ratio of the errors' to the labels' sum of squared deviations.
fn r2(labels: &[f64], predicted: &[f64]) -> f64 {
    let mean = mean(labels);
    let all: f64 = labels.iter().map(|y| (y - mean).powi(2)).sum();
    let errors = labels.iter().zip(predicted).map(|(y, p)| (y - p).powi(2));
    1.0 - errors.sum::<f64>() / all
}

fn of_classes(labels: &[String], predicted: &[BTreeMap<String, f64>]) -> Score {
    let rows = labels.len() as f64;
    let (mut right, mut loss) = (0.0, 0.0);
    for (label, probabilities) in labels.iter().zip(predicted) {
        // Of equal probabilities, the first class wins.
        let likeliest = probabilities
            .iter()
            .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        right += f64::from(u8::from(likeliest.is_some_and(|(class, _)| class == label)));
        let probability = probabilities.get(label).copied().unwrap_or_default();
        loss -= probability.max(LEAST_PROBABILITY).ln();
    }
    Score {
        score: right / rows,
        log_loss: Some(loss / rows),
    }
}

/// Returns the mean of some figures; NaN if there are none.
pub(super) fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// Returns the sample standard deviation of some figures; 0 for fewer than two.
pub(super) fn deviation(figures: &[f64]) -> f64 {
    let mean = mean(figures);
    let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
    (squares / (figures.len().max(2) - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn r2_is_1_of_what_is_right_and_0_of_the_mean() {
        let labels = Labels::of_json(&json!([1.0, 2.0, 3.0, 6.0])).unwrap();
        let score = |predicted: [f64; 4]| {
            let predictions = Predictions::Numbers(predicted.to_vec());
            Score::of(&labels, &predictions).unwrap().score
        };
        assert_eq!(score([1.0, 2.0, 3.0, 6.0]), 1.0);
        assert_eq!(score([3.0; 4]), 0.0);
        assert_eq!(score([1.0, 2.0, 3.0, 3.0]), 1.0 - 9.0 / 14.0);
        assert!(Score::of(&labels, &Predictions::Numbers(vec![1.0])).is_err());
    }

    #[test]
    fn classes_are_scored_by_the_likeliest_and_by_the_probability_of_the_right_one() {
        let labels = Labels::of_json(&json!(["a", "b", "c"])).unwrap();
        let row = |a: f64, b: f64| BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let predicted = vec![row(0.75, 0.25), row(0.5, 0.5), row(0.25, 0.75)];
        let score = Score::of(&labels, &Predictions::Probabilities(predicted)).unwrap();
        let expected = -(0.75_f64.ln() + 0.5_f64.ln() + 1e-15_f64.ln()) / 3.0;
        assert!((score.log_loss.unwrap() - expected).abs() < 1e-12);
        // Of equal probabilities, the first class wins; a class never seen is wrong.
        assert!((score.score - 1.0 / 3.0).abs() < 1e-12);
        assert!(Score::of(&labels, &Predictions::Numbers(vec![1.0; 3])).is_err());
    }

    #[test]
    fn deviations_are_of_samples() {
        assert_eq!(deviation(&[1.0, 3.0]), 2.0_f64.sqrt());
        assert_eq!(deviation(&[4.0]), 0.0);
    }
}
