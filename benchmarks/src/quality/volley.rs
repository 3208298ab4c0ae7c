//! Volley's side: a session that trains a network and a linear model on one part of a table and predicts the other.
//!
//! It sees no labels of the part that it predicts. The network may be trained in [variants](Variant) as well, to see what a
//! precision does to its quality.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::peer::{Parts, Table};
use super::score::{Predictions, text};
use crate::cluster::Cluster;
use crate::session::{Session, Statement};

/// Trainings of the network that are compared with the one by its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Variant {
    /// Products in TF32, the default on a GPU
    Tf32,
    /// Products in bfloat16
    Bf16,
    /// Another seed: what chance does
    Seed,
}

impl Variant {
    pub(super) const ALL: [Self; 3] = [Self::Tf32, Self::Bf16, Self::Seed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tf32 => "Volley in TF32",
            Self::Bf16 => "Volley in bf16",
            Self::Seed => "Volley with another seed",
        }
    }

    fn model(self) -> &'static str {
        match self {
            Self::Tf32 => "network_in_tf32",
            Self::Bf16 => "network_in_bf16",
            Self::Seed => "network_with_another_seed",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Tf32 => ", precision = 'tf32'",
            Self::Bf16 => ", precision = 'bf16'",
            Self::Seed => "",
        }
    }

    /// Returns the seed of the training, given that of the defaults.
    fn seed(self, seed: u64) -> u64 {
        match self {
            Self::Tf32 | Self::Bf16 => seed,
            Self::Seed => seed + 1000,
        }
    }
}

/// Predictions of the models.
#[derive(Debug)]
pub(super) struct Predicted {
    pub(super) network: Predictions,
    pub(super) linear: Predictions,
    /// Predictions of each variant of the network.
    pub(super) variants: Vec<Predictions>,
}

/// Trains the models and predicts with them; `options` adds to the network's defaults.
pub(super) fn predict(
    cluster: &Cluster,
    table: &Table,
    parts: &Parts,
    seed: u64,
    options: Option<&str>,
    variants: &[Variant],
    dir: &Path,
) -> anyhow::Result<Predicted> {
    let [network, linear] = match table.regression {
        true => ["dnn_regressor", "linear_reg"],
        false => ["dnn_classifier", "logistic_reg"],
    };
    let more = options.map(|options| format!(", {options}"));
    let more = more.unwrap_or_default();
    let of_variants = variants.iter().map(|variant| {
        let seed = (seed, variant.seed(seed));
        let more = format!("{}{more}", variant.options());
        statements(variant.model(), table, seed, network, &more)
    });
    let of_variants: String = of_variants.collect();
    let script = format!(
        "CREATE EXTERNAL TABLE train STORED AS PARQUET LOCATION '{}';\n\
         CREATE EXTERNAL TABLE holdout STORED AS PARQUET LOCATION '{}';\n{}{}{of_variants}",
        parts.train.display(),
        parts.holdout.display(),
        statements("network", table, (seed, seed), network, &more),
        // Equal optima need equal rows: no split.
        statements(
            "linear",
            table,
            (seed, seed),
            linear,
            ", data_split_method = 'no_split'"
        ),
    );
    let session = Session::run(cluster.client()?, &script, dir)?;
    session.check()?;
    let statements = session.statements()?;
    let due = 6 + 2 * variants.len();
    ensure!(
        statements.len() == due,
        "{} statements of {due} were run",
        statements.len()
    );
    let of = |statement: &Statement| predictions(statement, table.regression);
    Ok(Predicted {
        network: of(&statements[3])?,
        linear: of(&statements[5])?,
        variants: statements[7.min(due)..]
            .iter()
            .step_by(2)
            .map(of)
            .collect::<Result<_, _>>()?,
    })
}

/// Returns a statement that trains with the second seed and one that predicts.
fn statements(
    model: &str,
    table: &Table,
    (split, seed): (u64, u64),
    model_type: &str,
    more: &str,
) -> String {
    let name = format!("{}_{split}_{model}", table.name);
    let predicted = match table.regression {
        true => "predicted_y",
        false => "predicted_y_probs",
    };
    format!(
        "CREATE MODEL {name} OPTIONS (input_label_cols = ['y'], model_type = '{model_type}', seed = {seed}{more}) \
         AS SELECT * FROM train;\n\
         SELECT \"row\", {predicted} AS predicted FROM ML.PREDICT(MODEL {name}, (SELECT * FROM holdout));\n"
    )
}

/// Returns the predictions in a statement's rows, in the order of the held-out rows.
fn predictions(statement: &Statement, regression: bool) -> anyhow::Result<Predictions> {
    let mut rows = Vec::new();
    for row in &statement.rows {
        let number = row["row"].as_u64();
        rows.push((
            number.with_context(|| format!("no row: {row}"))?,
            &row["predicted"],
        ));
    }
    rows.sort_by_key(|(number, _)| *number);
    ensure!(
        rows.iter()
            .zip(0..)
            .all(|((number, _), expected)| *number == expected),
        "rows are missing, or there twice"
    );
    let predicted = rows.into_iter().map(|(_, predicted)| predicted);
    Ok(match regression {
        true => Predictions::Numbers(predicted.map(number).collect::<Result<_, _>>()?),
        false => {
            Predictions::Probabilities(predicted.map(probabilities).collect::<Result<_, _>>()?)
        }
    })
}

fn number(predicted: &Value) -> anyhow::Result<f64> {
    predicted
        .as_f64()
        .with_context(|| format!("no number: {predicted}"))
}

/// Parses the probabilities of `[{"label": class, "prob": p}, …]`.
fn probabilities(predicted: &Value) -> anyhow::Result<BTreeMap<String, f64>> {
    let classes = predicted.as_array().context("no list of classes")?;
    let of = |class: &Value| Ok((text(&class["label"]), number(&class["prob"])?));
    classes.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn predictions_are_in_the_order_of_the_rows_that_they_are_of() {
        let statement = |rows: Value| Statement {
            seconds: 0.0,
            rows: rows.as_array().unwrap().clone(),
        };
        let numbers = json!([{"row": 1, "predicted": 5.0}, {"row": 0, "predicted": 4}]);
        assert_eq!(
            predictions(&statement(numbers), true).unwrap(),
            Predictions::Numbers(vec![4.0, 5.0])
        );
        let missing = json!([{"row": 1, "predicted": 5.0}]);
        assert!(predictions(&statement(missing), true).is_err());
        let classes = json!([{"row": 0, "predicted": [{"label": 7, "prob": 1.0}]}]);
        let expected = BTreeMap::from([("7".to_owned(), 1.0)]);
        assert_eq!(
            predictions(&statement(classes), false).unwrap(),
            Predictions::Probabilities(vec![expected])
        );
    }
}
