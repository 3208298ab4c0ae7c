//! Publication by rank 0: the kept weights as files, and their manifest.

use std::time::SystemTime;

use volley_proto::spec::{EnsembleSize, FeatureKind, RankDevice, TrainSpec};
use volley_proto::store::{
    Classes, EpochRecord, FeatureSummary, Manifest, Numbers, Refitted, TRACE_FILE,
};

use super::agree::World;
use super::coverage::Covered;
use super::rank::Artifacts;
use super::state::Weights;
use super::tensorboard;
use super::trace::{self, Slice};
use crate::encode::{Scaling, Vocabulary};
use crate::model::{self, VOCABULARIES, WEIGHTS};
use crate::network::Architecture;

/// A finished training.
#[derive(Debug)]
pub(super) struct FinishedTraining<'a> {
    pub(super) spec: &'a TrainSpec,
    /// Features, without vocabularies.
    pub(super) features: Vec<FeatureSummary>,
    /// Vocabularies of the categorical features.
    pub(super) vocabularies: &'a [Vocabulary],
    /// Classes of a classification label.
    pub(super) classes: Option<Classes>,
    /// Total weight of the training rows with each code of the embedding table.
    pub(super) trained: &'a [f64],
    pub(super) scaling: &'a Scaling,
    pub(super) architecture: &'a Architecture,
    pub(super) world: &'a World,
    /// Rows trained on per epoch before a refit, and the number of rows evaluated.
    pub(super) rows: (Covered, u64),
    /// Device of each rank.
    pub(super) rank_devices: Vec<RankDevice>,
    pub(super) history: Vec<EpochRecord>,
    /// Mean losses by step, for the curve.
    pub(super) curve: Vec<(u64, f64)>,
    /// Traces of all ranks, if tracing is on.
    pub(super) traces: Option<Vec<Vec<Slice>>>,
    pub(super) kept_epoch: usize,
    pub(super) refit: Option<Refitted>,
}

impl FinishedTraining<'_> {
    /// Returns the files and the manifest of the kept weights.
    pub(super) fn publish(mut self, mut weights: Weights) -> Artifacts {
        let parameters = self.architecture.parameters();
        for table in self.architecture.tables() {
            embed_unseen(&mut weights.values[table.at], self.trained, &table.widths);
        }
        let categorical = self
            .features
            .iter_mut()
            .filter(|feature| feature.kind == FeatureKind::Categorical);
        for (feature, vocabulary) in categorical.zip(self.vocabularies) {
            feature.vocabulary = Some(vocabulary.distinct());
        }
        let continuous = self
            .features
            .iter_mut()
            .filter(|feature| feature.kind == FeatureKind::Continuous);
        let fitted = self.scaling.features.iter().zip(&self.world.features);
        for (feature, (of, statistics)) in continuous.zip(fitted) {
            feature.scale = of.scale;
            feature.quantiles.clone_from(&of.quantiles);
            feature.bins.clone_from(&of.bins);
            feature.numbers = statistics.range.map(|[min, max]| Numbers {
                nulls: statistics.nulls,
                min,
                max,
                mean: statistics.mean,
                stddev: statistics.deviation(),
            });
        }
        let mut spec = self.spec.clone();
        // The manifest records the ensemble size that was derived from the rows.
        spec.network.ensemble_size = EnsembleSize::Of(self.architecture.members);
        let published = SystemTime::now();
        let mut files = vec![
            (
                WEIGHTS,
                model::encode_weights(parameters, &weights.values, &weights.running),
            ),
            (
                VOCABULARIES,
                model::encode_vocabularies(&self.features, self.vocabularies),
            ),
            (
                tensorboard::FILE,
                tensorboard::encode(&self.history, &self.curve, published),
            ),
        ];
        files.extend(
            self.traces
                .as_deref()
                .map(|ranks| (TRACE_FILE, trace::encode(ranks))),
        );
        let manifest = Manifest {
            format: Manifest::FORMAT,
            version: 0,
            published,
            begun: None,
            spec,
            features: self.features,
            parameters: parameters
                .iter()
                .map(|parameter| parameter.len() as u64)
                .sum(),
            output_scale: self.architecture.output_scale,
            label_scales: self.scaling.labels.clone(),
            classes: self.classes,
            train_rows: self.rows.0.rows,
            train_checksum: self.rows.0.hex(),
            eval_rows: self.rows.1,
            world_size: self.rank_devices.len(),
            rank_devices: self.rank_devices,
            history: self.history,
            kept_epoch: self.kept_epoch,
            refit: self.refit,
            files: vec![],
        };
        Artifacts { manifest, files }
    }
}

/// Gives values without training rows, and unknown values, the mean of the feature's other embeddings,
/// weighted by their training rows: their own embedding was never trained. Values that occur only in the fold
/// of one ensemble member keep that member's initial embedding, unless there is a refit.
///
/// `widths` are each feature's codes and the width of its embeddings.
fn embed_unseen(table: &mut [f32], trained: &[f64], widths: &[(usize, usize)]) {
    let mut rest = (table, trained);
    for (codes, dim) in widths.iter().copied() {
        let (feature, table) = rest.0.split_at_mut(codes * dim);
        let (rows, trained) = rest.1.split_at(codes);
        rest = (table, trained);
        let all: f64 = rows.iter().sum();
        if all == 0.0 {
            continue;
        }
        let mut mean = vec![0.0; dim];
        for (embedding, rows) in feature.chunks_exact(dim).zip(rows) {
            let weight = rows / all;
            mean.iter_mut()
                .zip(embedding)
                .for_each(|(mean, w)| *mean += weight * f64::from(*w));
        }
        let unseen = feature
            .chunks_exact_mut(dim)
            .zip(rows)
            .filter(|(_, rows)| **rows == 0.0);
        for (embedding, _) in unseen {
            embedding
                .iter_mut()
                .zip(&mean)
                .for_each(|(w, mean)| *w = *mean as f32);
        }
    }
}
