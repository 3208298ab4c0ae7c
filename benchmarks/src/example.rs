//! The Rossmann example on a cluster, for comparisons: exports its features as Parquet, which any system reads, and
//! trains its network on all or some of them. The statements are those of the example.
//!
//! It measures nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::Cluster;

/// Path of the training rows' features, below the folder of Parquet files.
pub(crate) const TRAIN: &str = "features/dataset=train/";

/// The example, on a cluster.
pub(crate) struct Example<'a> {
    pub(crate) cluster: &'a Cluster,
    /// Folder of the seven tables.
    pub(crate) data: &'a Path,
    /// Folder of Parquet files, for input and output.
    pub(crate) out: &'a Path,
}

/// Settings for training the example's network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Training {
    /// Number of the sample's rows to train on.
    pub(crate) rows: usize,
    pub(crate) ranks: usize,
    /// Rows per rank and step.
    pub(crate) batch_size: usize,
    pub(crate) epochs: usize,
    /// Device, as `CREATE MODEL` names it.
    pub(crate) device: &'static str,
    /// Two layers of 16 units instead of the example's.
    pub(crate) tiny: bool,
}

/// A published model.
pub(crate) struct Trained {
    /// Folder of the model's version.
    pub(crate) folder: PathBuf,
    pub(crate) history: Vec<Epoch>,
}

/// Fields read from an epoch's record.
#[derive(Debug, Deserialize)]
pub(crate) struct Epoch {
    rows: f64,
    pub(crate) loss: f64,
    pub(crate) eval_loss: Option<f64>,
    compute_seconds: f64,
    reduce_seconds: f64,
}

/// Options of `train.sql` that a tiny network has otherwise.
const TINY: [(&str, &str); 2] = [
    (
        "hidden_units = [1000, 1000, 1000, 500]",
        "hidden_units = [16, 16]",
    ),
    ("dropout = [0, 0, 0, 0.5]", "dropout = 0"),
];

impl Epoch {
    /// Returns the rows per second over all ranks; time counts in steps, not in evaluation and checkpoints.
    pub(crate) fn rows_per_second(&self) -> f64 {
        self.rows / (self.compute_seconds + self.reduce_seconds)
    }

    /// Returns the share of all-reduce in the time of the steps, with waiting for other ranks.
    pub(crate) fn reduce_share(&self) -> f64 {
        self.reduce_seconds / (self.compute_seconds + self.reduce_seconds)
    }
}

impl Example<'_> {
    /// Writes the features of all rows: [`TRAIN`] and others.
    ///
    /// The row groups have a size that tasks and threads share evenly; the default would be one group.
    pub(crate) fn export(&self) -> anyhow::Result<()> {
        let mut args = export(self.data, self.out);
        args.push("--set=datafusion.execution.parquet.max_row_group_size=32768".to_owned());
        self.cluster.run(&args)?;
        Ok(())
    }

    /// Writes the features of a sample of training rows from all over the table to `sample.parquet`, and returns its
    /// path. The column `row` numbers the rows from 0.
    pub(crate) fn sample(&self, rows: usize) -> anyhow::Result<PathBuf> {
        let defines = [("rows", rows.to_string())];
        let statements = r#"
            CREATE EXTERNAL TABLE all_rows STORED AS PARQUET LOCATION '${out}/features/dataset=train/';
            COPY (
              SELECT * FROM (
                SELECT CAST(row_number() OVER (ORDER BY place, "Store", "Date") AS BIGINT) - 1 AS "row", * EXCEPT (place)
                FROM (
                  SELECT ("Store" * 7919 + ("Date" - DATE '2013-01-01') * 10007) % 65521 AS place, *
                  FROM all_rows
                )
              ) WHERE "row" < ${rows}
            ) TO '${out}/sample.parquet' STORED AS PARQUET"#;
        self.run(&defines, vec![command(statements)])?;
        Ok(self.out.join("sample.parquet"))
    }

    /// Trains the example's network on the first rows of the sample, without evaluation.
    pub(crate) fn train(&self, training: &Training) -> anyhow::Result<Trained> {
        let rows = training.rows.to_string();
        let view = r#"
            CREATE EXTERNAL TABLE sample STORED AS PARQUET LOCATION '${out}/sample.parquet';
            CREATE VIEW training_set AS
            SELECT 'TRAIN' AS split, * FROM sample WHERE "row" < ${rows}"#;
        let mut defines = training_defines(training).to_vec();
        defines.push(("rows", rows));
        // Ranks measured side by side share a GPU.
        let share = training.device != "cpu";
        let device = format!("device = '{}', device_share = {share}", training.device);
        let mut statement = statement(&device)?;
        if training.tiny {
            for (layers, of_tiny) in TINY {
                ensure!(statement.contains(layers), "train.sql has no {layers:?}");
                statement = statement.replace(layers, of_tiny);
            }
        }
        let trained = self
            .publish(&defines, vec![command(view), command(&statement)])
            .with_context(|| format!("training {training:?}"))?;
        ensure!(
            trained.history.len() == training.epochs,
            "epochs are missing"
        );
        Ok(trained)
    }

    /// Runs `-c` and `-f` arguments, the last of which trains a model.
    pub(crate) fn publish(
        &self,
        defines: &[(&str, String)],
        scripts: Vec<String>,
    ) -> anyhow::Result<Trained> {
        let ranks = self.run(defines, scripts)?;
        let rank = ranks.lines().next().context("training returned no rank")?;
        let rank: Value = serde_json::from_str(rank)?;
        let (model, version) = (rank["model"].as_str(), &rank["version"]);
        let model = model.context("training returned no model")?;
        let folder = self.cluster.store();
        let folder = folder.join(format!("models/{model}/{version}"));
        let manifest = std::fs::read_to_string(folder.join("manifest.json"))
            .with_context(|| format!("version {version} has no manifest"))?;
        let mut manifest: Value = serde_json::from_str(&manifest)?;
        let history = serde_json::from_value(manifest["history"].take())?;
        Ok(Trained { folder, history })
    }

    /// Runs `-c` and `-f` arguments and returns the rows.
    pub(crate) fn run(
        &self,
        defines: &[(&str, String)],
        scripts: Vec<String>,
    ) -> anyhow::Result<String> {
        let mut args = self.defines(defines);
        args.extend(scripts);
        Ok(self.cluster.run(&args)?.stdout)
    }

    /// Returns `${data}`, `${out}` and further variables as arguments.
    pub(crate) fn defines(&self, more: &[(&str, String)]) -> Vec<String> {
        let folders = folders(self.data, self.out);
        folders.iter().chain(more).map(define).collect()
    }
}

/// Returns the variables of `train.sql`.
pub(crate) fn training_defines(training: &Training) -> [(&'static str, String); 4] {
    [
        ("ranks", training.ranks.to_string()),
        ("batch_size", training.batch_size.to_string()),
        ("epochs", training.epochs.to_string()),
        ("seed", "1".to_owned()),
    ]
}

/// Returns the example's `CREATE MODEL` statement with an added option.
pub(crate) fn statement(option: &str) -> anyhow::Result<String> {
    let path = path("train.sql");
    let statement = std::fs::read_to_string(&path)?;
    let last = "seed = ${seed}";
    ensure!(
        statement.contains(last),
        "{} has no {last:?}",
        path.display()
    );
    Ok(statement.replace(last, &format!("{last}, {option}")))
}

/// Returns the arguments that write the features of all rows as Parquet.
pub(crate) fn export(data: &Path, out: &Path) -> Vec<String> {
    let files = ["tables.sql", "features.sql", "export.sql"];
    scripts(&folders(data, out), &files)
}

/// Returns the arguments that run files of the example with variables.
pub(crate) fn scripts(defines: &[(&str, String)], files: &[&str]) -> Vec<String> {
    let defines = defines.iter().map(define);
    defines.chain(files.iter().map(|name| file(name))).collect()
}

fn folders(data: &Path, out: &Path) -> [(&'static str, String); 2] {
    let path = |path: &Path| path.display().to_string();
    [("data", path(data)), ("out", path(out))]
}

fn define((name, value): &(&str, String)) -> String {
    format!("--define={name}={value}")
}

/// Returns the argument for a file of the example.
pub(crate) fn file(name: &str) -> String {
    format!("--file={}", path(name).display())
}

/// Returns the argument for an SQL statement.
pub(crate) fn command(sql: &str) -> String {
    format!("--command={sql}")
}

/// Returns the path of a file of the example.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/rossmann")
        .join(name)
}
