//! Explanations of predictions: which features contribute to a row's prediction, and how much.
//!
//! They are [integrated gradients](network::attribute) from a baseline row. Its categories are the code for unseen
//! values (the mean of all trained embeddings, as unseen values are predicted), its numbers the means of training, or
//! the medians where numbers are ranked. The explained output is a number before exponentiation, in the label's scale;
//! a class's log-odds, or its logit if there are more than two classes; or, of several quantiles, the one that is the
//! prediction.

use std::cmp::Reverse;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Float64Builder, ListBuilder, StringBuilder, StructBuilder,
};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::FeatureKind;
use volley_proto::store::PredictedColumns;

use super::Model;
use super::predict::Encoder;
use crate::Result;
use crate::network::likeliest;
use crate::network::{self, Attributions, Input, Scratch};

/// Rows explained at once.
pub(crate) const EXPLAINED: usize = 256;

impl Model {
    /// Returns the columns of [`predict`](Self::predict), then the explanation: the `top` features that contribute
    /// most, with their attributions; the baseline's prediction and the row's, whose difference is the sum of all
    /// features' attributions; and the relative error of that sum.
    ///
    /// # Errors
    /// The errors of [`predict`](Self::predict).
    pub fn explain(&self, rows: &RecordBatch, top: usize) -> Result<Vec<ArrayRef>> {
        let baseline = self.baseline();
        let mut explanation = Explanation::new(self, top);
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(EXPLAINED) {
            let rows = rows.slice(start, EXPLAINED.min(rows.num_rows() - start));
            let input = self.input(&rows)?;
            let outputs = self.outputs(&input, &mut scratch);
            let chosen = self.chosen(&outputs);
            let found = self.attributions(&input, &baseline, &chosen, &mut scratch);
            explanation.add(outputs, &found);
        }
        explanation.finish()
    }

    /// Returns the output of each row that is explained, from the outputs of all.
    pub(crate) fn chosen(&self, outputs: &[f32]) -> Vec<usize> {
        let width = self.architecture.outputs;
        let loss = &self.manifest.spec.loss;
        let chosen = outputs
            .chunks_exact(width)
            .map(|outputs| match loss.shares() {
                Some(_) => ranked(outputs, loss.median()),
                // One output tells two classes apart; it is the second's.
                None if width == 1 => 0,
                None => likeliest(outputs),
            });
        chosen.collect()
    }

    /// Computes the attributions of each row's chosen output on the CPU.
    pub(crate) fn attributions(
        &self,
        input: &Input,
        baseline: &Input,
        chosen: &[usize],
        scratch: &mut Scratch,
    ) -> Attributions {
        network::attribute(
            &self.architecture,
            &self.values,
            input,
            baseline,
            chosen,
            scratch,
        )
    }

    /// Returns the factor and then the offset that turn an output into a label before exponentiation.
    fn label_units(&self) -> (f64, f64) {
        let labels = &self.scaling().labels;
        let label = labels.first().copied().unwrap_or_default();
        match self.manifest.spec.loss.has_log_link() {
            true => (1.0, label.unit.ln()),
            false => (label.unit, label.shift),
        }
    }

    fn names(&self) -> Vec<&str> {
        let features = self.manifest.spec.features.iter();
        features.map(|feature| feature.column.as_str()).collect()
    }

    /// Returns the feature of each input: codes first, then numbers, then null indicators.
    fn feature_of_input(&self) -> impl Iterator<Item = usize> {
        let features = &self.manifest.spec.features;
        let of_kind = |kind: FeatureKind| {
            let features = features.iter().enumerate();
            features
                .filter(move |(_, feature)| feature.kind == kind)
                .map(|(at, _)| at)
        };
        let indicated = of_kind(FeatureKind::Continuous)
            .zip(&self.scaling().features)
            .filter(|(_, of)| of.scale.indicator)
            .map(|(at, _)| at);
        of_kind(FeatureKind::Categorical)
            .chain(of_kind(FeatureKind::Continuous))
            .chain(indicated)
    }

    /// Returns the baseline row.
    pub(crate) fn baseline(&self) -> Input {
        let codes = self.features.iter().filter_map(|encoder| match encoder {
            // The first code is that of unseen values.
            Encoder::Categorical { offset, .. } => Some(*offset),
            Encoder::Continuous => None,
        });
        let scaling = self.scaling();
        let means = scaling.features.iter().map(|of| of.apply(None) as f32);
        let mut continuous: Vec<f32> = means.collect();
        continuous.resize(scaling.inputs(), 0.0);
        if self.architecture.batch_norm {
            self.running.apply(&mut continuous);
        }
        Input {
            rows: 1,
            codes: codes.collect(),
            continuous,
            dropout: vec![],
        }
    }
}

/// Returns the index of the output with this rank in ascending order.
fn ranked(outputs: &[f32], rank: usize) -> usize {
    let mut order: Vec<usize> = (0..outputs.len()).collect();
    order.sort_by(|left, right| outputs[*left].total_cmp(&outputs[*right]));
    order[rank]
}

/// Predictions and explanations of rows, batch by batch.
pub(crate) struct Explanation<'a> {
    model: &'a Model,
    outputs: Vec<f32>,
    explained: Explained,
}

impl<'a> Explanation<'a> {
    pub(crate) fn new(model: &'a Model, top: usize) -> Self {
        Self {
            model,
            outputs: Vec::new(),
            explained: Explained::new(top),
        }
    }

    /// Adds the outputs of a batch, with the attributions of the chosen ones.
    pub(crate) fn add(&mut self, outputs: Vec<f32>, found: &Attributions) {
        let model = self.model;
        let names = model.names();
        let (is_class, one) = (
            model.manifest.classes.is_some(),
            model.architecture.outputs == 1,
        );
        let classes = outputs
            .chunks_exact(model.architecture.outputs)
            .map(likeliest);
        let width = model.architecture.categorical + model.architecture.continuous;
        let rows = found.inputs.chunks_exact(width.max(1));
        let ends = found.baselines.iter().zip(&found.outputs);
        for ((inputs, (start, end)), class) in rows.zip(ends).zip(classes) {
            let (unit, shift) = match is_class {
                true if one && class == 0 => (-1.0, 0.0),
                true => (1.0, 0.0),
                false => model.label_units(),
            };
            let mut features: Vec<_> = names.iter().map(|name| (*name, 0.0)).collect();
            for (feature, attribution) in model.feature_of_input().zip(inputs) {
                features[feature].1 += attribution * unit;
            }
            self.explained
                .add(&features, start * unit + shift, end * unit + shift);
        }
        self.outputs.extend(outputs);
    }

    /// Returns the columns of the prediction, then of the explanation.
    ///
    /// # Errors
    /// When the outputs do not fit in the columns' types.
    pub(crate) fn finish(self) -> Result<Vec<ArrayRef>> {
        let mut columns = self.model.columns(self.outputs)?;
        columns.extend(self.explained.finish());
        Ok(columns)
    }
}

/// Builders of the explanation columns, row by row.
struct Explained {
    top: usize,
    features: ListBuilder<StructBuilder>,
    baselines: Float64Builder,
    predictions: Float64Builder,
    errors: Float64Builder,
}

impl Explained {
    fn new(top: usize) -> Self {
        let fields = PredictedColumns::attribution();
        let builders: Vec<Box<dyn arrow::array::ArrayBuilder>> = vec![
            Box::new(StringBuilder::new()),
            Box::new(Float64Builder::new()),
        ];
        let structs = StructBuilder::new(fields, builders);
        let item = PredictedColumns::attribution_item();
        Self {
            top,
            features: ListBuilder::new(structs).with_field(item),
            baselines: Float64Builder::new(),
            predictions: Float64Builder::new(),
            errors: Float64Builder::new(),
        }
    }

    fn add(&mut self, features: &[(&str, f64)], baseline: f64, prediction: f64) {
        let (sum, due): (f64, f64) = (features.iter().map(|(_, x)| x).sum(), prediction - baseline);
        let error = if due == 0.0 {
            0.0
        } else {
            ((sum - due) / due).abs()
        };
        self.baselines.append_value(baseline);
        self.predictions.append_value(prediction);
        self.errors.append_value(error);
        let mut features = features.to_vec();
        // Of equal attributions, the first feature comes first.
        features.sort_by_key(|(_, attribution)| Reverse(attribution.abs().to_bits()));
        for (name, attribution) in features.iter().take(self.top) {
            let structs = self.features.values();
            if let Some(names) = structs.field_builder::<StringBuilder>(0) {
                names.append_value(name);
            }
            if let Some(numbers) = structs.field_builder::<Float64Builder>(1) {
                numbers.append_value(*attribution);
            }
            structs.append(true);
        }
        self.features.append(true);
    }

    fn finish(mut self) -> Vec<ArrayRef> {
        let number = |mut of: Float64Builder| -> Float64Array { of.finish() };
        vec![
            Arc::new(self.features.finish()),
            Arc::new(number(self.baselines)),
            Arc::new(number(self.predictions)),
            Arc::new(number(self.errors)),
        ]
    }
}
