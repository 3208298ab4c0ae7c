//! Inverted dropout masks (Srivastava et al. 2014): training scales kept units up, so that prediction scales nothing.
//!
//! A mask is described by a key per row and drawn by the device that computes, with the same result on each. The
//! relation of keys to rows is not known here.

use std::ops::Range;

use multiversion::multiversion;

use crate::random::Key;

/// Factor of each unit of each row: 0 or 1 / (1 − share). `[B × W]`
#[derive(Debug, Clone)]
pub(crate) struct Mask {
    /// Key of each row.
    pub(crate) keys: Vec<Key>,
    /// Units, W.
    pub(crate) units: usize,
    /// Share of the units to drop.
    pub(crate) share: f64,
}

impl Mask {
    /// Returns the factor of kept units.
    pub(super) fn scale(&self) -> f32 {
        (1.0 / (1.0 - self.share)) as f32
    }

    /// Returns the bound of the 32 random bits below which a unit is dropped.
    pub(super) fn dropped_below(&self) -> u32 {
        (self.share * 2_f64.powi(32)) as u32
    }

    /// Draws some of its rows. Two units share a random number of their row's key: its lower and its upper bits.
    pub(crate) fn draw(&self, rows: Range<usize>, mask: &mut [f32]) {
        let of_rows = mask.chunks_exact_mut(self.units).zip(&self.keys[rows]);
        of_rows.for_each(|(mask, key)| draw(*key, self.scale(), self.dropped_below(), mask));
    }
}

/// Draws a row.
#[multiversion(targets = "simd")]
fn draw(key: Key, scale: f32, dropped_below: u32, mask: &mut [f32]) {
    let of = |bits: u32| if bits < dropped_below { 0.0 } else { scale };
    let (pairs, last) = mask.as_chunks_mut::<2>();
    for (at, pair) in pairs.iter_mut().enumerate() {
        let bits = key.at(at as u64);
        *pair = [of(bits as u32), of((bits >> 32) as u32)];
    }
    if let [last] = last {
        *last = of(key.at(pairs.len() as u64) as u32);
    }
}
