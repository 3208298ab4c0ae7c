//! Dropout masks (Srivastava et al. 2014), inverted: kept units are scaled up in training, so that nothing is scaled in
//! prediction.
//!
//! A mask is described by a key of each row and drawn where the network computes, with the same result. Whose row a key
//! is, is not known here.

use crate::random::Key;

/// What each unit of each row is multiplied by: 0 or 1 / (1 − share). `[B × W]`
#[derive(Debug, Clone)]
pub(crate) struct Mask {
    /// Of each row.
    pub(crate) keys: Vec<Key>,
    /// W.
    pub(crate) units: usize,
    /// Of the units, to be dropped.
    pub(crate) share: f64,
}

impl Mask {
    /// What kept units are multiplied by.
    pub(super) fn scale(&self) -> f32 {
        (1.0 / (1.0 - self.share)) as f32
    }

    /// Units whose 32 random bits are below this are dropped.
    pub(super) fn dropped_below(&self) -> u32 {
        (self.share * 2_f64.powi(32)) as u32
    }

    /// Draws it. Two units have one random number of their row's key: its lower bits and its upper ones.
    pub(crate) fn draw(&self, mask: &mut Vec<f32>) {
        let (scale, dropped_below) = (self.scale(), self.dropped_below());
        mask.resize(self.keys.len() * self.units, 0.0);
        for (mask, key) in mask.chunks_exact_mut(self.units).zip(&self.keys) {
            for (pair, mask) in mask.chunks_mut(2).enumerate() {
                let bits = key.at(pair as u64);
                for (mask, bits) in mask.iter_mut().zip([bits as u32, (bits >> 32) as u32]) {
                    *mask = if bits < dropped_below { 0.0 } else { scale };
                }
            }
        }
    }
}
