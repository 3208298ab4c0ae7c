//! Prediction: batches of Arrow rows through a loaded model.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::FeatureKind;
use volley_proto::store::Manifest;

use super::files;
use crate::encode::{Categories, Vocabulary, numbers};
use crate::network::{self, Architecture, Input, Normalization, Scratch};
use crate::{Error, Result};

/// Rows that go through the network at once.
const BATCH: usize = 1024;

/// A trained model in memory. Predicting does not change it, so threads may share it.
pub struct Model {
    pub(super) manifest: Manifest,
    pub(super) architecture: Architecture,
    /// The weights, parameter by parameter.
    pub(super) values: Vec<Vec<f32>>,
    pub(super) running: Normalization,
    pub(super) features: Vec<Encoder>,
}

/// How a feature's column becomes numbers.
#[derive(Debug)]
pub(super) enum Encoder {
    Continuous,
    Categorical {
        vocabulary: Vocabulary,
        /// Where its codes begin in the embedding table.
        offset: u32,
    },
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.manifest.spec.model)
            .field("version", &self.manifest.version)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// A model from its manifest and the contents of [`WEIGHTS`](crate::WEIGHTS) and
    /// [`VOCABULARIES`](crate::VOCABULARIES).
    ///
    /// # Errors
    /// When a file is damaged, or does not hold what the manifest says.
    pub fn load(manifest: Manifest, weights: &[u8], vocabularies: &[u8]) -> Result<Self> {
        let vocabularies = files::decode_vocabularies(vocabularies, &manifest.features)?;
        let table_rows = vocabularies.iter().map(Vocabulary::codes).sum();
        let architecture = Architecture::new(&manifest.spec, table_rows, manifest.output_scale);
        let (values, running) = files::decode_weights(
            weights,
            &architecture.parameters(),
            architecture.normalized(),
        )?;

        let mut vocabularies = vocabularies.into_iter();
        let mut next = 0;
        let encoder = |kind| match kind {
            FeatureKind::Continuous => Some(Encoder::Continuous),
            FeatureKind::Categorical => vocabularies.next().map(|vocabulary| {
                let offset = next;
                next += vocabulary.codes() as u32;
                Encoder::Categorical { vocabulary, offset }
            }),
        };
        let features: Option<Vec<_>> = manifest
            .spec
            .features
            .iter()
            .map(|feature| feature.kind)
            .map(encoder)
            .collect();
        let features = features.ok_or_else(|| Error::ModelFile {
            file: super::VOCABULARIES,
            problem: "it lacks the vocabulary of a categorical feature".into(),
            source: None,
        })?;
        Ok(Self {
            manifest,
            architecture,
            values,
            running,
            features,
        })
    }

    /// What is known of the model besides its numbers.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// One `Float32` prediction a row, in the label's own scale. Finds the features by name; values
    /// that training did not see, null among them, are predicted as such.
    ///
    /// # Errors
    /// When a feature's column is missing, or of a type that the model was not trained on.
    pub fn predict(&self, rows: &RecordBatch) -> Result<ArrayRef> {
        let mut predictions = Vec::with_capacity(rows.num_rows());
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(BATCH) {
            let rows = rows.slice(start, BATCH.min(rows.num_rows() - start));
            let mut input = self.encode(&rows)?;
            if self.architecture.batch_norm {
                self.running.apply(&mut input.continuous);
            }
            let predicted =
                network::predict(&self.architecture, &self.values, &input, &mut scratch);
            predictions.extend(predicted);
        }
        if self.manifest.exponentiates() {
            predictions.iter_mut().for_each(|y| *y = y.exp());
        }
        Ok(Arc::new(Float32Array::from(predictions)))
    }

    fn encode(&self, batch: &RecordBatch) -> Result<Input> {
        let rows = batch.num_rows();
        let Architecture {
            categorical,
            continuous,
            ..
        } = self.architecture;
        let mut input = Input {
            rows,
            codes: vec![0; rows * categorical],
            continuous: vec![0.0; rows * continuous],
            dropout: None,
        };
        let (mut code_at, mut number_at) = (0, 0);
        for (feature, encoder) in self.manifest.spec.features.iter().zip(&self.features) {
            let name = &feature.column;
            let column = batch
                .column_by_name(name)
                .ok_or_else(|| Error::MissingColumn {
                    column: name.clone(),
                    role: "a feature of the model",
                })?;
            match encoder {
                Encoder::Continuous => {
                    let slots = input.continuous[number_at..].iter_mut().step_by(continuous);
                    number_at += 1;
                    let values = numbers(column, name)?;
                    slots
                        .zip(&values)
                        .for_each(|(slot, value)| *slot = value.unwrap_or(0.0));
                }
                Encoder::Categorical { vocabulary, offset } => {
                    let mut slots = input.codes[code_at..].iter_mut().step_by(categorical);
                    code_at += 1;
                    let values = Categories::read(column, vocabulary.class(), name)?;
                    vocabulary.encode(&values, |code| {
                        if let Some(slot) = slots.next() {
                            *slot = code + offset;
                        }
                    });
                }
            }
        }
        Ok(input)
    }
}
