//! What rank 0 hands over: the kept weights as files, and the manifest beside them.

use std::time::SystemTime;

use volley_proto::spec::{FeatureKind, TrainSpec};
use volley_proto::store::{EpochRecord, FeatureSummary, Manifest, TRACE_FILE};

use super::agree::World;
use super::rank::Artifacts;
use super::state::Weights;
use super::tensorboard;
use super::trace::{self, Slice};
use crate::encode::{OUT_OF_VOCABULARY, Vocabulary};
use crate::model::{self, VOCABULARIES, WEIGHTS};
use crate::network::Architecture;

/// A finished training.
#[derive(Debug)]
pub(super) struct Trained<'a> {
    pub(super) spec: &'a TrainSpec,
    /// Without vocabularies.
    pub(super) features: Vec<FeatureSummary>,
    /// Of the categorical features.
    pub(super) vocabularies: &'a [Vocabulary],
    pub(super) architecture: &'a Architecture,
    pub(super) world: &'a World,
    pub(super) world_size: usize,
    pub(super) history: Vec<EpochRecord>,
    /// Mean losses by step, for the curve.
    pub(super) curve: Vec<(u64, f64)>,
    /// What all ranks did when, if that was asked for.
    pub(super) traces: Option<Vec<Vec<Slice>>>,
    pub(super) kept_epoch: usize,
}

impl Trained<'_> {
    /// The files and the manifest of the kept weights.
    pub(super) fn publish(mut self, mut weights: Weights) -> Artifacts {
        let parameters = self.architecture.parameters();
        if self.architecture.categorical > 0 {
            let dim = self.architecture.embedding_dim;
            embed_unseen(&mut weights.values[0], self.vocabularies, dim);
        }
        let categorical = self
            .features
            .iter_mut()
            .filter(|feature| feature.kind == FeatureKind::Categorical);
        for (feature, vocabulary) in categorical.zip(self.vocabularies) {
            feature.vocabulary = Some(vocabulary.distinct());
        }
        let published = SystemTime::now();
        let mut files = vec![
            (
                WEIGHTS,
                model::encode_weights(&parameters, &weights.values, &weights.running),
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
            spec: self.spec.clone(),
            features: self.features,
            parameters: parameters
                .iter()
                .map(|parameter| parameter.len() as u64)
                .sum(),
            output_scale: self.architecture.output_scale,
            train_rows: self.world.train.rows,
            train_checksum: self.world.train.hex(),
            eval_rows: self.world.eval_rows,
            world_size: self.world_size,
            history: self.history,
            kept_epoch: self.kept_epoch,
        };
        Artifacts { manifest, files }
    }
}

/// Gives values that training did not see the mean of each feature's known embeddings: their own
/// was never trained.
fn embed_unseen(table: &mut [f32], vocabularies: &[Vocabulary], dim: usize) {
    let mut rest = table;
    for vocabulary in vocabularies {
        let (feature, tail) = rest.split_at_mut(vocabulary.codes() * dim);
        rest = tail;
        let known = vocabulary.distinct();
        if known == 0 {
            continue;
        }
        let (unseen, seen) = feature.split_at_mut((OUT_OF_VOCABULARY as usize + 1) * dim);
        for (at, unseen) in unseen.iter_mut().enumerate() {
            let sum: f64 = seen
                .iter()
                .skip(at)
                .step_by(dim)
                .map(|w| f64::from(*w))
                .sum();
            *unseen = (sum / known as f64) as f32;
        }
    }
}
