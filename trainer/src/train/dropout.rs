//! Dropout masks by row: a row's mask depends on the seed, the epoch and the row, and not on the rank or the
//! other rows of its batch. [`Mask`] draws it.

use super::schedule::Place;
use crate::network::{Dropout, Mask};
use crate::random::{Key, Purpose};

/// Returns the mask of a dropout for the rows at these places.
///
/// `shards` are the global numbers of the shards that `places` index.
pub(super) fn mask(key: Key, shards: &[usize], places: &[Place], dropout: Dropout) -> Mask {
    let keys = places.iter().map(|place| {
        key.with(shards[place.shard as usize] as u64)
            .with(u64::from(place.row))
    });
    Mask {
        keys: keys.collect(),
        units: dropout.width,
        share: dropout.share,
    }
}

/// Returns the key of an epoch's masks.
pub(super) fn key(seed: u64, epoch: usize) -> Key {
    Key::new(seed, Purpose::Dropout).with(epoch as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_s_mask_is_its_own_and_units_are_dropped_at_the_rate() {
        let place = |shard, row| Place { shard, row, at: 0 };
        let places = [place(0, 5), place(1, 5), place(0, 6)];
        let dropout = Dropout {
            width: 501,
            share: 0.25,
        };
        let mask = |shards: &[usize], places: &[Place]| {
            let mut drawn = vec![0.0; places.len() * dropout.width];
            let mask = mask(key(1, 2), shards, places, dropout);
            mask.draw(0..places.len(), &mut drawn);
            drawn
        };
        let masks = mask(&[40, 7], &places);
        assert_eq!(masks.len(), 3 * 501);
        // The same row in another batch, on a rank with other shards.
        assert_eq!(masks[501..1002], mask(&[7], &[place(0, 5)]));
        assert_ne!(masks[..501], masks[501..1002]);
        let dropped = masks.iter().filter(|m| **m == 0.0).count() as f64 / 1503.0;
        assert!((dropped - 0.25).abs() < 0.04, "{dropped}");
        assert!(masks.iter().all(|m| *m == 0.0 || *m == 4.0 / 3.0));
    }
}
