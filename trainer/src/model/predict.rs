//! Prediction: batches of Arrow rows through a loaded model.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Float32Array, Float64Array, ListArray, StructArray, UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{Field, Fields};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::FeatureKind;
use volley_proto::store::{Classes, Manifest, PredictedColumns};

use super::{files, sound};
use crate::encode::{Categories, FeatureScale, Index, Scaling, Vocabulary, is_finite, numbers};
use crate::network::{self, Architecture, CustomLayers, Input, Normalization, Scratch, Sizes};
use crate::network::{likeliest, probabilities, rearrange};
use crate::{Error, Result};

/// Rows that go through the network at once.
pub(crate) const BATCH: usize = 1024;

/// A trained model in memory. Predicting does not change it, so threads may share it.
pub struct Model {
    pub(super) manifest: Manifest,
    pub(crate) architecture: Architecture,
    /// Weights, parameter by parameter.
    pub(crate) values: Vec<Vec<f32>>,
    pub(super) running: Normalization,
    scaling: Scaling,
    pub(super) features: Vec<Encoder>,
}

/// Encoder of a feature's column into numbers.
#[derive(Debug)]
pub(super) enum Encoder {
    Continuous,
    Categorical {
        vocabulary: Vocabulary,
        /// Index of the vocabulary.
        index: Index,
        /// First row of its codes in the embedding table.
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
    /// Loads a model from its manifest, the contents of [`WEIGHTS`](crate::WEIGHTS) and
    /// [`VOCABULARIES`](crate::VOCABULARIES), and the custom layers that its network may name.
    ///
    /// # Errors
    /// When a file is damaged or does not match the manifest, or a custom layer is not registered.
    pub fn load(
        manifest: Manifest,
        weights: &[u8],
        vocabularies: &[u8],
        layers: &CustomLayers,
    ) -> Result<Self> {
        let vocabularies = files::decode_vocabularies(vocabularies, &manifest.features)?;
        sound::check(&manifest, weights, &vocabularies)?;
        let continuous = manifest.features.iter();
        let continuous = continuous.filter(|feature| feature.kind == FeatureKind::Continuous);
        let scaling = Scaling {
            features: continuous
                .map(|feature| FeatureScale {
                    scale: feature.scale,
                    quantiles: feature.quantiles.clone(),
                    bins: feature.bins.clone(),
                })
                .collect(),
            labels: manifest.label_scales.clone(),
        };
        let has_bins = scaling.features.iter().all(FeatureScale::has_bins);
        if manifest.spec.network.is_piecewise() && !has_bins {
            let problem = "a continuous feature has no bins for its piecewise linear embedding";
            return Err(Error::model_file("manifest.json", problem));
        }
        let classes = manifest.classes.as_ref().map_or(0, Classes::len);
        let sizes = Sizes {
            codes: vocabularies.iter().map(Vocabulary::codes).collect(),
            continuous: scaling.inputs(),
            bins: scaling.bins(),
            outputs: Architecture::outputs_of(&manifest.spec, classes),
            rows: manifest.rows(),
        };
        let scale = manifest.output_scale;
        let architecture = Architecture::new(&manifest.spec, &sizes, scale, layers)?;
        let (values, running) = files::decode_weights(
            weights,
            architecture.parameters(),
            architecture.normalized(),
        )?;

        let mut vocabularies = vocabularies.into_iter();
        let mut next = 0;
        let encoder = |kind| match kind {
            FeatureKind::Continuous => Some(Encoder::Continuous),
            FeatureKind::Categorical => vocabularies.next().map(|vocabulary| {
                let offset = next;
                next += vocabulary.codes() as u32;
                Encoder::Categorical {
                    index: vocabulary.index(),
                    vocabulary,
                    offset,
                }
            }),
        };
        let features: Option<Vec<_>> = manifest
            .spec
            .features
            .iter()
            .map(|feature| feature.kind)
            .map(encoder)
            .collect();
        let lacking = "it lacks the vocabulary of a categorical feature";
        let features = features.ok_or_else(|| Error::model_file(super::VOCABULARIES, lacking))?;
        Ok(Self {
            manifest,
            architecture,
            values,
            running,
            scaling,
            features,
        })
    }

    /// Returns the scaling of its numbers.
    pub(crate) fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// Returns the model's metadata.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Predicts the [columns](Manifest::predicted): a number in each label's own scale, as `f64`, with its quantiles in
    /// ascending order if there are several; or a class, and the probabilities of all. Features are found by name.
    /// Values that training did not see, null included, are predicted as unseen.
    ///
    /// # Errors
    /// When a feature's column is missing, has a type that the model was not trained on, or has a number that is not
    /// finite in `f32`, which training refuses too.
    pub fn predict(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let mut outputs = Vec::with_capacity(rows.num_rows() * self.architecture.outputs);
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(BATCH) {
            let rows = rows.slice(start, BATCH.min(rows.num_rows() - start));
            outputs.extend(self.outputs(&self.input(&rows)?, &mut scratch));
        }
        self.columns(outputs)
    }

    /// Computes the network's outputs on the CPU, `[B × K]`.
    pub(crate) fn outputs(&self, input: &Input, scratch: &mut Scratch) -> Vec<f32> {
        network::predict(&self.architecture, &self.values, input, scratch)
    }

    /// Returns the columns of a prediction, from the network's outputs.
    pub(crate) fn columns(&self, mut outputs: Vec<f32>) -> Result<Vec<ArrayRef>> {
        if let Some(classes) = &self.manifest.classes {
            return probable(classes, &outputs, self.architecture.outputs);
        }
        let loss = &self.manifest.spec.loss;
        let exponentiates = self.manifest.exponentiates();
        let has_log_link = loss.has_log_link();
        if let Some(shares) = loss.shares() {
            outputs.chunks_exact_mut(shares.len()).for_each(rearrange);
        }
        // One scale for each output, or one for all.
        let scales = self.scaling.labels.iter().cycle();
        let labels = outputs.iter().zip(scales).map(|(y, scale)| {
            let y_or_exp = match has_log_link {
                true => f64::from(*y).exp(),
                false => f64::from(*y),
            };
            let label = scale.undo(y_or_exp);
            if exponentiates { label.exp() } else { label }
        });
        let outputs: Vec<f64> = labels.collect();
        match loss.shares() {
            None => {
                let labels = self.architecture.outputs;
                let of_label = |at| -> ArrayRef {
                    let values = outputs.iter().skip(at).step_by(labels).copied();
                    Arc::new(Float64Array::from_iter_values(values))
                };
                Ok((0..labels).map(of_label).collect())
            }
            Some(shares) => quantiles(shares, loss.median(), outputs),
        }
    }

    /// Returns the network's input for rows.
    pub(crate) fn input(&self, rows: &RecordBatch) -> Result<Input> {
        let mut input = self.encode(rows)?;
        if self.architecture.batch_norm {
            self.running.apply(&mut input.continuous);
        }
        Ok(input)
    }

    fn encode(&self, batch: &RecordBatch) -> Result<Input> {
        let rows = batch.num_rows();
        let categorical = self.architecture.categorical;
        let mut input = Input {
            rows,
            codes: vec![0; rows * categorical],
            continuous: Vec::with_capacity(rows * self.architecture.continuous),
            dropout: vec![],
        };
        let mut columns = Vec::with_capacity(self.scaling.features.len());
        let mut code_at = 0;
        for (feature, encoder) in self.manifest.spec.features.iter().zip(&self.features) {
            let name = &feature.column;
            let column = batch
                .column_by_name(&self.manifest.feature_column(feature))
                .ok_or_else(|| Error::MissingColumn {
                    column: name.clone(),
                    role: "a feature of the model",
                })?;
            match encoder {
                Encoder::Continuous => {
                    let all = numbers(column, name)?;
                    if let Some(value) = all.iter().flatten().find(|x| !is_finite(*x)) {
                        let column = name.clone();
                        return Err(Error::NotFinite { column, value });
                    }
                    columns.push(all);
                }
                Encoder::Categorical {
                    vocabulary,
                    index,
                    offset,
                } => {
                    let mut slots = input.codes[code_at..].iter_mut().step_by(categorical);
                    code_at += 1;
                    let values = Categories::read(column, vocabulary.class(), name)?;
                    vocabulary.encode(index, &values, |code| {
                        if let Some(slot) = slots.next() {
                            *slot = code + offset;
                        }
                    });
                }
            }
        }
        let mut row = vec![None; columns.len()];
        for at in 0..rows {
            let values = columns
                .iter()
                .map(|column| column.is_valid(at).then(|| column.value(at)));
            row.iter_mut()
                .zip(values)
                .for_each(|(slot, value)| *slot = value);
            self.scaling.encode(&row, &mut input.continuous);
        }
        Ok(input)
    }
}

/// Returns each row's prediction, its median quantile, and a list of all its quantiles, which are in ascending order.
fn quantiles(shares: &[f64], median: usize, outputs: Vec<f64>) -> Result<Vec<ArrayRef>> {
    let count = shares.len();
    let rows = outputs.len() / count;
    let predicted = outputs.chunks_exact(count).map(|row| row[median]);
    let predicted = Float64Array::from_iter_values(predicted);
    let each = (0..rows).flat_map(|_| shares.iter().copied());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from_iter_values(each)),
        Arc::new(Float64Array::from(outputs)),
    ];
    let all = lists(PredictedColumns::quantile(), columns, count, "quantiles")?;
    Ok(vec![Arc::new(predicted), all])
}

/// Returns the likeliest class of each row and the probabilities of all classes, from `outputs` outputs per row.
fn probable(classes: &Classes, all: &[f32], outputs: usize) -> Result<Vec<ArrayRef>> {
    let (values, count) = (classes.array(), classes.len());
    let rows = all.len() / outputs;
    let outputs = all.chunks_exact(outputs);
    let best = outputs.clone().map(|outputs| likeliest(outputs) as u32);
    let best = UInt32Array::from_iter_values(best);
    let mut shares = Vec::with_capacity(rows * count);
    outputs.for_each(|outputs| probabilities(outputs, &mut shares));
    let each = UInt32Array::from_iter_values((0..rows).flat_map(|_| 0..count as u32));
    let fail = Error::values("the prediction", "classes");
    let of_classes = take(&values, &each, None).map_err(fail)?;
    let columns: Vec<ArrayRef> = vec![of_classes, Arc::new(Float32Array::from(shares))];
    let fields = classes.class_type().probability();
    Ok(vec![
        take(&values, &best, None).map_err(fail)?,
        lists(fields, columns, count, "classes")?,
    ])
}

/// Returns lists of `count` structs with these columns.
fn lists(
    fields: Fields,
    columns: Vec<ArrayRef>,
    count: usize,
    expected: &'static str,
) -> Result<ArrayRef> {
    let fail = Error::values("the prediction", expected);
    let structs = StructArray::try_new(fields.clone(), columns, None).map_err(fail)?;
    let item = Arc::new(Field::new_struct("item", fields, false));
    let lengths = std::iter::repeat_n(count, structs.len() / count);
    let offsets = OffsetBuffer::from_lengths(lengths);
    let all = ListArray::try_new(item, offsets, Arc::new(structs), None).map_err(fail)?;
    Ok(Arc::new(all))
}
