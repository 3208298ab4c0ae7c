//! The rows of a refit: training rows and evaluation rows, merged into one part.
//!
//! It does not decide for how many epochs it trains.

use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;

use super::agree::World;
use super::coverage::Covered;
use super::fit::check;
use super::state::ShardRows;
use crate::Result;
use crate::encode::Settled;

/// Checks whether a refit follows the training of these rows.
pub(super) fn follows(spec: &TrainSpec, world: &World) -> bool {
    let evaluated = match spec.cross_validates() {
        true => world.train.rows,
        false => world.eval.rows,
    };
    let all = world.train.rows + world.eval.rows;
    spec.refit.is_due(all, evaluated > 0)
}

/// Turns evaluation rows into training rows, with the weights of their classes, in this rank's shards.
/// Returns these shards and the new row counts of all ranks; statistics of numbers stay as fitted.
///
/// # Errors
/// When a spilled shard cannot be written, or training is cancelled.
pub(super) fn merge(
    shards: Vec<Settled>,
    world: &World,
    classes: Option<&[f64]>,
    cancel: &CancellationToken,
) -> Result<(Vec<Settled>, World)> {
    let merged = shards.into_iter().map(|mut shard| {
        check(cancel)?;
        let mut rows = std::mem::take(&mut shard.eval);
        if let Some(weights) = classes {
            rows.weigh(weights);
        }
        shard.train.append(&rows);
        shard.train.merge_folds();
        shard.stored()
    });
    let shards = merged.collect::<Result<_>>()?;
    let merged = |rows: &ShardRows| {
        let mut train = rows.train;
        train.add(rows.eval);
        ShardRows {
            train,
            eval: Covered::default(),
        }
    };
    let mut train = world.train;
    train.add(world.eval);
    let world = World {
        shards: world
            .shards
            .iter()
            .map(|(id, rows)| (*id, merged(rows)))
            .collect(),
        train,
        eval: Covered::default(),
        ..world.clone()
    };
    Ok((shards, world))
}
