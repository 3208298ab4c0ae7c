//! Dropout masks (Srivastava et al. 2014), inverted: kept units are scaled up in training, so
//! that nothing is scaled in prediction.
//!
//! A row's mask depends on the seed, the epoch and the row, and not on the rank or on the other
//! rows of its batch.

use super::schedule::Place;
use crate::random::{Key, Purpose};

/// What each unit of each row is multiplied by: 0 or 1 / (1 − rate). `[rows × units]`
///
/// `shards` are the global numbers of the shards that `places` index.
pub(super) fn mask(
    key: Key,
    shards: &[usize],
    places: &[Place],
    units: usize,
    rate: f64,
) -> Vec<f32> {
    let scale = (1.0 / (1.0 - rate)) as f32;
    let dropped_below = (rate * 2_f64.powi(32)) as u32;
    let mut mask = vec![0.0; places.len() * units];
    for (mask, place) in mask.chunks_exact_mut(units).zip(places) {
        let row = key
            .with(shards[place.shard as usize] as u64)
            .with(u64::from(place.row));
        for (pair, mask) in mask.chunks_mut(2).enumerate() {
            let bits = row.at(pair as u64);
            for (mask, bits) in mask.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
                *mask = if bits < dropped_below { 0.0 } else { scale };
            }
        }
    }
    mask
}

/// The key of an epoch's masks.
pub(super) fn key(seed: u64, epoch: usize) -> Key {
    Key::new(seed, Purpose::Dropout).with(epoch as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_s_mask_is_its_own_and_units_are_dropped_at_the_rate() {
        let place = |shard, row| Place { shard, row };
        let places = [place(0, 5), place(1, 5), place(0, 6)];
        let masks = mask(key(1, 2), &[40, 7], &places, 501, 0.25);
        assert_eq!(masks.len(), 3 * 501);
        // The same row on a rank that has other shards, in another batch.
        assert_eq!(
            masks[501..1002],
            mask(key(1, 2), &[7], &[place(0, 5)], 501, 0.25)
        );
        assert_ne!(masks[..501], masks[501..1002]);
        let dropped = masks.iter().filter(|m| **m == 0.0).count() as f64 / 1503.0;
        assert!((dropped - 0.25).abs() < 0.04, "{dropped}");
        assert!(masks.iter().all(|m| *m == 0.0 || *m == 4.0 / 3.0));
    }
}
