//! Basis of a state: the terms of the spec, the rows and the values that it was made from, which a training
//! that continues from it must share.
//!
//! Terms are kept and compared as text, in the options' own words: errors show that text, and numbers in JSON
//! may come back with other bits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::spec::{
    EnsembleSize, FeatureKind, Network, Optimizer, Refit, Split, TrainSpec, layers_text,
};
use volley_proto::store::Position;

use crate::encode::{Settled, Vocabulary};
use crate::train::coverage::Covered;
use crate::{Error, Result};

/// Properties that a training must share with the state from which it continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::train) struct Basis {
    /// Options that decide the trained model, with their values.
    terms: Vec<(String, String)>,
    /// The shard manifest.
    shards: BTreeMap<usize, ShardRows>,
    /// The categorical features, in their order.
    values: Vec<Values>,
    /// The features' vocabularies, and that of a classification label last, if they do not follow from the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vocabularies: Option<Vec<Vocabulary>>,
}

/// Rows of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::train) struct ShardRows {
    /// Training rows.
    pub(in crate::train) train: Covered,
    /// Evaluation rows.
    pub(in crate::train) eval: Covered,
}

/// The values of a categorical feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Values {
    column: String,
    distinct: usize,
    hash: u64,
}

impl ShardRows {
    pub(in crate::train) fn of<Number: bytemuck::Pod>(shard: &Settled<Number>) -> Self {
        let covered = |rows: &crate::encode::Rows<Number>| Covered {
            rows: rows.len() as u64,
            checksum: rows.checksum(),
        };
        Self {
            train: covered(&shard.train),
            eval: covered(&shard.eval),
        }
    }
}

impl Basis {
    pub(in crate::train) fn new(
        spec: &TrainSpec,
        shards: BTreeMap<usize, ShardRows>,
        vocabularies: &[Vocabulary],
    ) -> Self {
        let columns = columns(spec, FeatureKind::Categorical);
        let values = columns.into_iter().zip(vocabularies);
        let values = values.map(|(column, vocabulary)| Values {
            column: column.to_owned(),
            distinct: vocabulary.distinct(),
            hash: XxHash64::oneshot(0, json(vocabulary).as_bytes()),
        });
        let terms = terms(spec).into_iter();
        Self {
            terms: terms
                .map(|(option, value)| (option.into(), value))
                .collect(),
            values: values.collect(),
            shards,
            vocabularies: None,
        }
    }

    /// Keeps vocabularies that do not follow from the rows.
    pub(in crate::train) fn keep(mut self, vocabularies: Vec<Vocabulary>) -> Self {
        self.vocabularies = Some(vocabularies);
        self
    }

    /// Returns the vocabularies that do not follow from the rows.
    pub(in crate::train) fn vocabularies(&self) -> Option<&[Vocabulary]> {
        self.vocabularies.as_deref()
    }

    /// Checks that kept vocabularies can be read.
    pub(super) fn is_sound(&self) -> bool {
        let mut kept = self.vocabularies.iter().flatten();
        kept.all(Vocabulary::is_sound)
    }

    /// Sets the shard manifest.
    pub(in crate::train) fn set_shards(&mut self, shards: BTreeMap<usize, ShardRows>) {
        self.shards = shards;
    }

    /// Checks whether the shard manifest is known.
    pub(in crate::train) fn has_shards(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Checks that a training on the basis `now` can continue from a state of this basis.
    pub(super) fn check(&self, now: &Self, position: Position) -> Result<()> {
        let text = |terms: &[(String, String)], option: &str| {
            let value = terms.iter().find(|(name, _)| name == option);
            value.map_or("not known".to_owned(), |(_, value)| value.clone())
        };
        for (option, _) in self.terms.iter().chain(&now.terms) {
            let (then, now) = (text(&self.terms, option), text(&now.terms, option));
            if then != now {
                return Err(Error::StateOption {
                    position,
                    option: option.clone(),
                    then,
                    now,
                });
            }
        }
        for shard in self.shards.keys().chain(now.shards.keys()) {
            let rows = |basis: &Self| basis.shards.get(shard).copied().unwrap_or_default();
            let (then, now) = (rows(self), rows(now));
            let differs = [
                ("to train on", then.train, now.train),
                ("to evaluate", then.eval, now.eval),
            ];
            if let Some((part, then, now)) = differs.into_iter().find(|(_, t, n)| t != n) {
                return Err(Error::StateRows {
                    position,
                    shard: *shard,
                    part,
                    then: then.to_string(),
                    now: now.to_string(),
                });
            }
        }
        let differs = self.values.iter().zip(&now.values).find(|(t, n)| t != n);
        match differs {
            Some((then, now)) => Err(Error::StateValues {
                position,
                column: now.column.clone(),
                then: then.distinct,
                now: now.distinct,
            }),
            None => Ok(()),
        }
    }
}

/// Returns the options of a spec that decide the trained model, by the names that users type.
///
/// It leaves out the names and destinations of the run, its ranks, devices, precision and timeouts, and the
/// number of epochs, which may be raised.
fn terms(spec: &TrainSpec) -> Vec<(&'static str, String)> {
    let TrainSpec {
        train_id: _,
        model: _,
        if_exists: _,
        store: _,
        newest_version: _,
        epochs: _,
        early_stop: _,
        ranks: _,
        elastic: _,
        start: _,
        begin_early,
        checkpoint_every: _,
        trace: _,
        device: _,
        precision: _,
        threads: _,
        device_share: _,
        rendezvous_timeout: _,
        collective_timeout: _,
        loading_timeout: _,
        transform,
        features,
        vocabulary,
        task: _,
        label,
        numeric_transform,
        split,
        split_key,
        network,
        loss,
        sample_weight,
        class_weights,
        optimizer,
        l1,
        l2,
        batch_size,
        accumulate,
        keep,
        refit,
        seed,
        shards,
        shard_by,
    } = spec;
    let Network {
        embedding_dim,
        batch_norm,
        numeric_embedding,
        layers,
        output,
        linear,
        factors,
        ensemble_size,
    } = network;
    let Optimizer {
        learn_rate,
        rule,
        schedule,
        clip_norm,
        clip_value,
        ema_momentum,
    } = optimizer;
    let (method, of_split) = match split {
        Split::None => ("no_split", None),
        Split::Column(column) => ("custom", Some(("data_split_col", json(column)))),
        Split::Sequential { column, share } => {
            ("seq", Some(("data_split_col", json(&(column, share)))))
        }
        Split::Random(share) => ("random", Some(("data_split_eval_fraction", json(share)))),
        Split::CrossValidation(_) => ("auto_split", None),
    };
    let batch = match batch_size {
        Some(rows) => rows.option(),
        None => ("global_batch_size", 0),
    };
    let labels = match &label.columns[..] {
        [one] => json(one),
        several => json(several),
    };
    let order: Vec<_> = features.iter().map(|feature| &feature.column).collect();
    let mut terms = vec![
        ("input_label_cols", labels),
        ("model_type", spec.model_type().to_owned()),
        ("label_transform", json(&label.transform)),
        ("standardize_label", json(&label.standardize)),
        ("numeric_transform", json(numeric_transform)),
        (
            "categorical",
            json(&columns(spec, FeatureKind::Categorical)),
        ),
        ("continuous", json(&columns(spec, FeatureKind::Continuous))),
        ("features", json(&order)),
        (
            "min_frequency, max_vocabulary, hash_buckets",
            json(vocabulary),
        ),
        ("data_split_method", json(&method)),
        ("network", layers_text(layers)),
        ("embedding_dim", embedding_dim.to_string()),
        ("batch_norm", json(batch_norm)),
        ("numeric_embedding", json(numeric_embedding)),
        ("factors", json(factors)),
        ("l2_reg", json(l2)),
        ("activation_output", json(output)),
        ("wide", json(linear)),
        ("loss", json(loss)),
        ("sample_weight_col", json(sample_weight)),
        ("class_weights", json(class_weights)),
        ("learn_rate", json(learn_rate)),
        ("optimizer", json(rule)),
        ("learn_rate_schedule", json(schedule)),
        ("clip_norm", json(clip_norm)),
        ("clip_value", json(clip_value)),
        ("l1_reg", json(l1)),
        (batch.0, json(&batch.1)),
        ("keep", json(keep)),
        ("seed", json(seed)),
        ("shards", json(shards)),
        ("shard_by", json(shard_by)),
        ("split_key", json(split_key)),
    ];
    terms.extend(of_split);
    let weights = &label.loss_weights;
    terms.extend((!weights.is_empty()).then(|| ("loss_weights", json(weights))));
    terms.extend((*accumulate > 1).then(|| ("accumulate", json(accumulate))));
    terms.extend((*begin_early).then(|| ("begin_early", json(begin_early))));
    terms.extend((*refit != Refit::Never).then(|| ("refit", json(refit))));
    // As typed: the fitted values follow from the rows, whose checksums are compared.
    terms.extend(transform.as_ref().map(|transform| {
        let typed = transform.columns.iter();
        let typed: Vec<_> = typed.map(|of| (&of.column, &of.typed)).collect();
        ("TRANSFORM", json(&typed))
    }));
    let ensemble = *ensemble_size != EnsembleSize::ONE;
    terms.extend(ensemble.then(|| ("ensemble_size", ensemble_size.to_string())));
    terms.extend(ema_momentum.map(|share| ("ema_momentum", json(&share))));
    terms
}

fn columns(spec: &TrainSpec, kind: FeatureKind) -> Vec<&str> {
    let features = spec.features.iter().filter(|feature| feature.kind == kind);
    features.map(|feature| feature.column.as_str()).collect()
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("a spec is made of what JSON can say")
}
