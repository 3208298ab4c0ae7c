//! DuckDB, a second witness: it is asked for the rows of the same query over the same files.
//!
//! It is optional: `VOLLEY_DUCKDB` names a Python that has it. It tells which side is wrong where Volley and DataFusion
//! alone differ, and finds answers in which both are wrong. Its dialect is another one, so it has no answer to some
//! queries, and its answer alone is no failure.

use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::compare::Rows;

/// Python with DuckDB.
#[derive(Debug)]
pub(crate) struct Witness {
    python: String,
}

impl Witness {
    /// Returns the witness that the environment names.
    ///
    /// # Panics
    /// When it names one without DuckDB.
    pub(crate) fn named() -> Option<Self> {
        let python = std::env::var("VOLLEY_DUCKDB").ok()?;
        let imports = Command::new(&python).args(["-c", "import duckdb"]).status();
        let has = imports.is_ok_and(|status| status.success());
        assert!(has, "VOLLEY_DUCKDB={python}: expected a Python with duckdb");
        Some(Self { python })
    }

    /// Returns the rows of the last statement, with the names and types of another answer.
    ///
    /// # Errors
    /// When DuckDB does not understand a statement, or has rows of other types.
    pub(crate) fn ask(&self, statements: &[String], like: &Rows) -> Result<Rows> {
        let file = tempfile::Builder::new().suffix(".parquet").tempfile()?;
        let mut python = Command::new(&self.python)
            .args(["-c", include_str!("witness.py")])
            .arg(file.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = python.stdin.take().context("its input is a pipe")?;
        stdin.write_all(serde_json::to_string(statements)?.as_bytes())?;
        drop(stdin);
        let output = python.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "DuckDB: {said}");
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file.path())?)?.build()?;
        let fields = like.names.iter().zip(&like.types);
        let fields = fields.map(|(name, of)| Field::new(name, of.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let mut batches = vec![];
        for batch in reader {
            let batch = batch?;
            let columns = batch.columns().iter().zip(&like.types);
            let columns = columns.map(|(column, of)| cast(column, of));
            let columns = columns.collect::<Result<_, _>>()?;
            batches.push(RecordBatch::try_new(Arc::clone(&schema), columns)?);
        }
        Rows::of(&schema, &batches)
    }
}
