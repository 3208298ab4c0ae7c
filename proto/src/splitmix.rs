//! SplitMix64's finalizer over names: hashes that are equal in every process, in any order of drawing.
//!
//! Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. It is the base of a training's single draws and of the hashes
//! of rows; their users document their purpose. Not for secrets.

/// SplitMix64's increment: 2⁶⁴ / φ, odd.
pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Shifts of the finalizer in bits.
pub const SHIFTS: [u32; 3] = [30, 27, 31];

/// Multipliers of the finalizer.
pub const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// Applies the finalizer: a bijection that mixes well.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> SHIFTS[0])).wrapping_mul(FACTORS[0]);
    z = (z ^ (z >> SHIFTS[1])).wrapping_mul(FACTORS[1]);
    z ^ (z >> SHIFTS[2])
}

/// Returns the key of a part of what a key names.
#[inline]
pub fn part(key: u64, name: u64) -> u64 {
    mix(key.wrapping_add(INCREMENT) ^ mix(name.wrapping_mul(INCREMENT)))
}

/// Returns a key's number at a counter.
#[inline]
pub fn at(key: u64, counter: u64) -> u64 {
    mix(key.wrapping_add(counter.wrapping_add(1).wrapping_mul(INCREMENT)))
}

/// Maps a number to `0..1`, by its upper 53 bits.
#[inline]
pub fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}
