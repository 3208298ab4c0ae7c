//! Random numbers that depend only on their purpose and names.
//!
//! A [`Key`] is a seed and the names of what is drawn (epoch, shard, row, …). The same key gives the same numbers on
//! every rank, in every world size, in any order of drawing. Bulk streams come from ChaCha8; single draws from
//! [SplitMix64](volley_proto::splitmix) over a counter. Not for secrets.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use volley_proto::splitmix;

/// Purpose of a random number; separates the uses of one seed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Initial weights.
    Weights = 1,
    /// The order of rows within an epoch.
    Order = 2,
    /// Step that an epoch's first row belongs to.
    Rotation = 3,
    /// Dropout masks.
    Dropout = 4,
    // 5 decides which rows are evaluated: see `volley_proto::spec::split`.
    /// Hashes of content.
    Content = 6,
    /// Sample of rows from which quantiles are taken.
    Sample = 7,
}

/// Seed and names of what is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        Self(splitmix::mix(seed)).with(purpose as u64)
    }

    /// Returns the key of a part of what this one names.
    #[inline]
    pub(crate) fn with(self, name: u64) -> Self {
        Self(splitmix::part(self.0, name))
    }

    /// Returns the number at a counter.
    #[inline]
    pub(crate) fn at(self, counter: u64) -> u64 {
        splitmix::at(self.0, counter)
    }

    /// Returns a number in `0..1` from the key alone, as a split draws it.
    #[cfg(test)]
    pub(crate) fn unit(self) -> f64 {
        splitmix::unit(self.at(0))
    }

    /// Returns a stream of numbers.
    pub(crate) fn stream(self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.0)
    }

    /// Returns the key as a hash of its names.
    pub(crate) fn hash(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_every_name_and_on_their_order() {
        let key = |a, b| Key::new(7, Purpose::Order).with(a).with(b);
        assert_eq!(key(1, 2), key(1, 2));
        assert_ne!(key(1, 2), key(2, 1));
        assert_ne!(key(1, 2).at(0), key(1, 2).at(1));
        assert_ne!(Key::new(7, Purpose::Order), Key::new(7, Purpose::Dropout));
        assert_ne!(Key::new(7, Purpose::Order), Key::new(8, Purpose::Order));
    }

    #[test]
    fn draws_of_a_split_are_those_of_a_key() {
        let key = Key(splitmix::mix(7)).with(5);
        let draw = volley_proto::spec::split::Draw::of(7);
        for hash in [0, 1, 12345, u64::MAX] {
            assert_eq!(key.with(hash).unit(), draw.number(hash));
        }
    }
}
