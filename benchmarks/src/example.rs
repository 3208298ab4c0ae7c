//! The Rossmann example on a cluster, for comparisons: its features as Parquet, which any system
//! reads, and its network trained on some or all of them. The statements are the example's own.
//!
//! It measures nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::Cluster;

/// Where the features of the training rows are, under the folder of Parquet files.
pub(crate) const TRAIN: &str = "features/dataset=train/";

/// The example on a cluster.
pub(crate) struct Example<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The folder of the seven tables.
    pub(crate) data: &'a Path,
    /// Where Parquet files are, and go.
    pub(crate) out: &'a Path,
}

/// How to train the example's network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Training {
    /// On so many rows of the sample.
    pub(crate) rows: usize,
    pub(crate) ranks: usize,
    /// Rows of one rank in one step.
    pub(crate) batch_size: usize,
    pub(crate) epochs: usize,
    /// As `CREATE MODEL` names it.
    pub(crate) device: &'static str,
}

/// A published model.
pub(crate) struct Trained {
    /// Of its version.
    pub(crate) folder: PathBuf,
    pub(crate) history: Vec<Epoch>,
}

/// What is read of an epoch's record.
#[derive(Debug, Deserialize)]
pub(crate) struct Epoch {
    rows: f64,
    pub(crate) loss: f64,
    pub(crate) eval_loss: Option<f64>,
    compute_seconds: f64,
    reduce_seconds: f64,
}

impl Epoch {
    /// Rows of all ranks in a second of its steps; evaluation and checkpoints are not among them.
    pub(crate) fn rows_per_second(&self) -> f64 {
        self.rows / (self.compute_seconds + self.reduce_seconds)
    }
}

impl Example<'_> {
    /// Writes the features of all rows: [`TRAIN`] and others.
    ///
    /// In row groups of a size that tasks and threads share out evenly; the default is one group.
    pub(crate) fn export(&self) -> anyhow::Result<()> {
        let mut args = ["tables.sql", "features.sql", "export.sql"]
            .map(file)
            .to_vec();
        args.push("--set=datafusion.execution.parquet.max_row_group_size=32768".to_owned());
        self.run(&[], args)?;
        Ok(())
    }

    /// Writes the features of some training rows from all over the table, numbered from 0 by a
    /// column `row`, and returns where: `sample.parquet`.
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

    /// Trains the example's network on the first rows of the sample; nothing is evaluated.
    pub(crate) fn train(&self, training: &Training) -> anyhow::Result<Trained> {
        let rows = training.rows.to_string();
        let view = r#"
            CREATE EXTERNAL TABLE sample STORED AS PARQUET LOCATION '${out}/sample.parquet';
            CREATE VIEW training_set AS
            SELECT 'TRAIN' AS split, * FROM sample WHERE "row" < ${rows}"#;
        let mut defines = training_defines(training).to_vec();
        defines.push(("rows", rows));
        // Ranks that are measured beside each other share a GPU.
        let share = training.device != "cpu";
        let device = format!("device = '{}', device_share = {share}", training.device);
        let statement = statement(&device)?;
        let trained = self
            .publish(&defines, vec![command(view), command(&statement)])
            .with_context(|| format!("training {training:?}"))?;
        ensure!(
            trained.history.len() == training.epochs,
            "epochs are missing"
        );
        Ok(trained)
    }

    /// Runs `-c` and `-f` arguments, of which the last trains a model.
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

    /// `${data}`, `${out}` and others as arguments.
    pub(crate) fn defines(&self, more: &[(&str, String)]) -> Vec<String> {
        let folders = [("data", self.data), ("out", self.out)];
        let folders = folders.map(|(name, path)| (name, path.display().to_string()));
        let all = folders.iter().chain(more);
        all.map(|(name, value)| format!("--define={name}={value}"))
            .collect()
    }
}

/// What `train.sql` asks for.
pub(crate) fn training_defines(training: &Training) -> [(&'static str, String); 4] {
    [
        ("ranks", training.ranks.to_string()),
        ("batch_size", training.batch_size.to_string()),
        ("epochs", training.epochs.to_string()),
        ("seed", "1".to_owned()),
    ]
}

/// The example's `CREATE MODEL` with another option.
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

/// A file of the example, as an argument.
pub(crate) fn file(name: &str) -> String {
    format!("--file={}", path(name).display())
}

/// SQL as an argument.
pub(crate) fn command(sql: &str) -> String {
    format!("--command={sql}")
}

/// Where a file of the example is.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/rossmann")
        .join(name)
}
