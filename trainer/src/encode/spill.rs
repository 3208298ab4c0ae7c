//! Where settled rows are: those of a shard that fits in its rank's memory are in memory of their own, and others are
//! spilled to mapped files.
//!
//! A file has no name, so that it disappears with its last mapping, however the process ends. Rows are the same, in the
//! same order, as in memory. [Another module](super::cache) caches shards for the next rank on this executor.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;

use super::settle::{Rows, Settled};
use super::stored::{ColumnReader, ColumnWriter, Stored};
use crate::{Error, Result};

/// Storage of a shard's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Storage {
    #[default]
    Memory,
    /// Files in this folder.
    Files(Arc<Path>),
}

impl Storage {
    /// Returns the folder, if rows are in files.
    pub(crate) fn folder(&self) -> Option<&Arc<Path>> {
        match self {
            Self::Memory => None,
            Self::Files(folder) => Some(folder),
        }
    }
}

impl<Number: Pod> Settled<Number> {
    /// Moves the rows to the shard's storage.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn stored(self) -> Result<Self> {
        let Some(folder) = self.storage.folder() else {
            return Ok(Self {
                train: self.train.in_memory(),
                eval: self.eval.in_memory(),
                ..self
            });
        };
        let written = |rows: &Rows<Number>| {
            if rows.len() == 0 {
                return Ok(Rows::default());
            }
            write(folder, |file| rows.write(file)).and_then(|mut file| rows.mapped(&mut file))
        };
        let written = written(&self.train).and_then(|train| Ok((train, written(&self.eval)?)));
        let (train, eval) = written.map_err(|source| failed(folder, source))?;
        Ok(Self {
            train,
            eval,
            ..self
        })
    }
}

impl<Number: Pod> Rows<Number> {
    /// Moves the rows to memory of their own; few rows stay where they are.
    fn in_memory(self) -> Self {
        let columns = [
            size_of_val(&*self.codes),
            size_of_val(&*self.continuous),
            size_of_val(&*self.labels),
            size_of_val(&*self.weights),
            size_of_val(&*self.keys),
            size_of_val(&*self.folds),
            self.eval_weights.as_deref().map_or(0, size_of_val),
        ];
        let map = ColumnReader::in_memory(&columns, |map| self.write(map));
        // They are of the lengths that were written.
        let moved = map.and_then(|mut map| self.mapped(&mut map).ok());
        moved.unwrap_or(self)
    }

    /// Writes all columns.
    fn write<W: io::Write>(&self, to: &mut ColumnWriter<W>) -> io::Result<()> {
        to.column([&*self.codes])?;
        to.column([&*self.continuous])?;
        to.column([&*self.labels])?;
        to.column([&*self.weights])?;
        to.column([&*self.keys])?;
        to.column([&*self.folds])?;
        to.column(self.eval_weights.as_deref())
    }

    /// Returns as many rows of the same columns from a map.
    fn mapped(&self, file: &mut ColumnReader) -> io::Result<Self> {
        Ok(Self {
            codes: file.column(self.codes.len())?,
            continuous: file.column(self.continuous.len())?,
            labels: file.column(self.labels.len())?,
            weights: file.column(self.weights.len())?,
            keys: file.column(self.keys.len())?,
            folds: file.column(self.folds.len())?,
            eval_weights: match &self.eval_weights {
                Some(weights) => Some(file.column(weights.len())?),
                None => None,
            },
        })
    }

    /// Copies the rows in this order, and the order itself, to a file in a folder; the caller has them [read
    /// ahead](Self::will_need). Weights in evaluation are left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn in_order(&self, order: &[u32], folder: &Path) -> Result<(Self, Stored<u32>)> {
        if order.is_empty() {
            return Ok((Self::default(), Stored::default()));
        }
        // All rows are read, in any order.
        self.will_need(0..self.len());
        let written = write(folder, |file| {
            file.column(in_order(&self.codes, order, self.len()))?;
            file.column(in_order(&self.continuous, order, self.len()))?;
            file.column(in_order(&self.labels, order, self.len()))?;
            file.column(in_order(&self.weights, order, self.len()))?;
            file.column(in_order(&self.keys, order, self.len()))?;
            file.column(in_order(&self.folds, order, self.len()))?;
            file.column([order])
        });
        let mapped = written.and_then(|mut file| {
            file.read_as_told();
            let shape = Self {
                eval_weights: None,
                ..self.clone()
            };
            Ok((shape.mapped(&mut file)?, file.column(order.len())?))
        });
        mapped.map_err(|source| failed(folder, source))
    }
}

/// Returns a column's values row by row, in an order; each is empty if rows lack the column.
fn in_order<'c, T: Pod>(
    column: &'c [T],
    order: &'c [u32],
    rows: usize,
) -> impl Iterator<Item = &'c [T]> {
    let width = column.len() / rows;
    let of_row = move |row: &u32| &column[*row as usize * width..][..width];
    order.iter().map(of_row)
}

/// Writes an unnamed file with `columns` and opens it.
fn write(
    folder: &Path,
    columns: impl FnOnce(&mut ColumnWriter<fs::File>) -> io::Result<()>,
) -> io::Result<ColumnReader> {
    let mut file = ColumnWriter::new(tempfile::tempfile_in(folder)?);
    columns(&mut file)?;
    ColumnReader::new(&file.finish()?)
}

pub(super) fn failed(folder: &Path, source: io::Error) -> Error {
    Error::Spill {
        folder: folder.to_owned(),
        source,
    }
}
