//! The rows of a refit: those that were trained on and those that were evaluated, as one part.
//!
//! When there is one and for how many epochs is not decided here.

use super::agree::World;
use super::coverage::Covered;
use super::state::ShardRows;
use crate::encode::Settled;

/// Makes training rows of those that were evaluated, with the weights of their classes, in this rank's shards. What all
/// ranks hold then, statistics of numbers but as they were fitted.
pub(super) fn merge(shards: &mut [Settled], world: &World, classes: Option<&[f64]>) -> World {
    for shard in shards {
        let mut rows = std::mem::take(&mut shard.eval);
        if let Some(weights) = classes {
            rows.weigh(weights);
        }
        shard.train.append(rows);
        shard.train.merge_folds();
    }
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
    World {
        shards: world
            .shards
            .iter()
            .map(|(id, rows)| (*id, merged(rows)))
            .collect(),
        train,
        eval: Covered::default(),
        ..world.clone()
    }
}
