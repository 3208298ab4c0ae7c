//! Set of a table's rows: a bitmap with rank, which tells the place of a row among them in ascending order.
//!
//! ```text
//!  words     1 bit per word of `bits`            1       0       1
//!  bits      1 bit per row                    0…0110  0…0000  1…0000
//!  below     rows in the words before            0               2
//!  rows                                        1, 2             191
//! ```
//!
//! Filling it takes time in proportion to the rows that it gets, except for a pass over `words`, a bit per 64 rows. Memory
//! is a fifth of a byte per row of the table. It knows nothing of codes or features.

const BITS: usize = u64::BITS as usize;

/// Set of rows.
#[derive(Debug)]
pub(super) struct RowSet {
    /// Number of rows of the table.
    len: usize,
    /// A bit per row of the table.
    bits: Vec<u64>,
    /// Number of picked rows in the words before each word of `bits` that is not 0; stale for the others.
    below: Vec<u32>,
    /// A bit per word of `bits`: it is not 0.
    words: Vec<u64>,
    /// The rows, in ascending order.
    rows: Vec<u32>,
}

impl RowSet {
    /// Creates an empty set for a table with this many rows.
    pub(super) fn new(rows: usize) -> Self {
        let words = rows.div_ceil(BITS);
        Self {
            len: rows,
            bits: vec![0; words],
            below: vec![0; words],
            words: vec![0; words.div_ceil(BITS)],
            rows: Vec::new(),
        }
    }

    /// Returns the rows in ascending order.
    pub(super) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Replaces the rows. They may repeat.
    ///
    /// # Panics
    /// If a row is outside the table.
    pub(super) fn replace(&mut self, rows: impl Iterator<Item = u32>) {
        for row in self.rows.drain(..) {
            let word = row as usize / BITS;
            self.bits[word] = 0;
            self.words[word / BITS] = 0;
        }
        rows.for_each(|row| {
            assert!((row as usize) < self.len, "row {row} is in the table");
            let (word, bit) = (row as usize / BITS, row as usize % BITS);
            self.bits[word] |= 1 << bit;
            self.words[word / BITS] |= 1 << (word % BITS);
        });
        for (first, words) in self.words.iter().enumerate() {
            for word in ones(*words).map(|bit| first * BITS + bit) {
                self.below[word] = self.rows.len() as u32;
                let rows = ones(self.bits[word]).map(|bit| (word * BITS + bit) as u32);
                self.rows.extend(rows);
            }
        }
    }

    /// Returns the place of one of the rows in their list.
    pub(super) fn place(&self, row: u32) -> u32 {
        let (word, bit) = (row as usize / BITS, row as usize % BITS);
        debug_assert!(self.bits[word] >> bit & 1 == 1, "row {row} is in the set");
        let before = self.bits[word] & ((1 << bit) - 1);
        self.below[word] + before.count_ones()
    }
}

/// Iterates over the positions of a word's ones, from the lowest.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        // Clears the lowest one.
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use volley_proto::splitmix;

    use super::*;

    #[test]
    fn rows_are_listed_once_in_order_with_their_places() {
        for len in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut set = RowSet::new(len);
            let end = len as u32 - 1;
            let drawn = |seed, count| {
                (0..count).map(move |at| (splitmix::at(seed, at) % len as u64) as u32)
            };
            let lists = [
                vec![0, end, end / 2, 0, end],
                vec![],
                (0..=end).rev().collect(),
                drawn(1, 500).collect(),
                drawn(2, 7).collect(),
                vec![end],
            ];
            for rows in lists {
                let mut due = rows.clone();
                due.sort_unstable();
                due.dedup();
                set.replace(rows.into_iter());
                assert_eq!(set.rows(), due);
                let places = due.iter().map(|row| set.place(*row) as usize);
                assert!(places.eq(0..due.len()));
            }
        }
    }

    #[test]
    #[should_panic(expected = "row 100 is in the table")]
    fn rows_are_of_the_table() {
        RowSet::new(100).replace([99, 100].into_iter());
    }
}
