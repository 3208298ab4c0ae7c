//! The identity of a training's encoded rows: equal bytes mean equal rows.
//!
//! It has the query's physical plan as it would be sent, which names each file with its size and time of modification,
//! the settings of the engine, and the parts of the spec that encoding reads. The network, the optimizer and all else
//! that only training reads are not in it.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use serde::Serialize;
use volley_proto::spec::{Feature, Label, Loss, Split, Task, TrainSpec, VocabularyRule};

use crate::PredictExec;
use crate::codec::encode_plan;
use crate::nodes::train::TrainExec;
use crate::rules::logical::any_operator;

/// Version of the encoded rows' form, and of this identity.
const VERSION: u32 = 1;

/// Parts of a spec that encoding reads.
#[derive(Serialize)]
struct Encoding<'a> {
    version: u32,
    features: &'a [Feature],
    vocabulary: &'a VocabularyRule,
    task: Task,
    label: &'a Label,
    loss: &'a Loss,
    sample_weight: &'a Option<String>,
    split: &'a Split,
    split_key: &'a [String],
    /// Seed, where it splits the rows.
    seed: Option<u64>,
    folds: Option<usize>,
    shards: usize,
    shard_by: &'a [String],
}

impl<'a> Encoding<'a> {
    fn of(spec: &'a TrainSpec) -> Self {
        let draws = matches!(spec.split, Split::Random(_) | Split::CrossValidation(_));
        Self {
            version: VERSION,
            features: &spec.features,
            vocabulary: &spec.vocabulary,
            task: spec.task,
            label: &spec.label,
            loss: &spec.loss,
            sample_weight: &spec.sample_weight,
            split: &spec.split,
            split_key: &spec.split_key,
            seed: draws.then_some(spec.seed),
            folds: spec.folds(0),
            shards: spec.shards,
            shard_by: &spec.shard_by,
        }
    }
}

/// Returns the identity of the rows that a training planned from `logical` reads; `None` if they may be others each time,
/// or have predictions: a model that was dropped and trained again has the same name and version.
///
/// # Errors
/// When the plan cannot be sent.
pub fn rows_identity(
    train: &TrainExec,
    logical: &LogicalPlan,
    options: &ConfigOptions,
) -> Result<Option<Vec<u8>>> {
    if is_volatile(logical)? || predicts(train.input().as_ref()) {
        return Ok(None);
    }
    let encoding = serde_json::to_vec(&Encoding::of(train.spec()));
    let mut identity = encoding.map_err(|error| DataFusionError::External(Box::new(error)))?;
    // Volley's own settings have the job's id, and decide nothing about rows.
    let engine = options.entries().into_iter();
    for entry in engine.filter(|entry| entry.key.starts_with("datafusion.")) {
        let value = entry.value.unwrap_or_default();
        identity.extend_from_slice(format!("\n{}={value}", entry.key).as_bytes());
    }
    identity.push(0);
    identity.extend_from_slice(&encode_plan(train.input())?);
    Ok(Some(identity))
}

/// Checks whether a plan has a model's predictions.
fn predicts(plan: &dyn ExecutionPlan) -> bool {
    let mut inputs = plan.children().into_iter();
    plan.is::<PredictExec>() || inputs.any(|input| predicts(input.as_ref()))
}

/// Checks whether a plan computes other values each time, as with `random()`.
fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    any_operator(plan, |node| {
        let mut volatile = false;
        node.apply_expressions(|expr| {
            volatile |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(volatile)
    })
}
