//! Which rows are for evaluation.

/// The row is trained on.
pub const TRAIN: &str = "TRAIN";
/// The row is evaluated after each epoch, never trained on.
pub const EVAL: &str = "EVAL";
/// The row lends its values to the vocabularies and nothing else; its label is not read.
pub const TEST: &str = "TEST";

/// The column of the rows' hashes, where a random share of them is evaluated.
pub const HASH: &str = "__volley_row_hash";

/// SplitMix64's increment: 2⁶⁴ / φ, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// What keeps these draws apart from others of the same seed.
const PURPOSE: u64 = 5;

/// Draws a number in `0..1` for each hash of a row. Rows below the share that is evaluated are evaluated.
///
/// It is SplitMix64's finalizer (Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195), as of all of a training's
/// single draws.
#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// The draws of a seed.
    pub fn of(seed: u64) -> Self {
        Self(with(mix(seed), PURPOSE))
    }

    /// The number that the hash of a row draws.
    #[inline]
    pub fn number(self, hash: u64) -> f64 {
        let drawn = mix(with(self.0, hash).wrapping_add(GOLDEN));
        (drawn >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[inline]
fn with(key: u64, name: u64) -> u64 {
    mix(key.wrapping_add(GOLDEN) ^ mix(name.wrapping_mul(GOLDEN)))
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_over_their_range() {
        let numbers = (0..10_000).map(|hash| Draw::of(3).number(hash));
        let mean = numbers.sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_ne!(Draw::of(3).number(1), Draw::of(4).number(1));
    }
}
