//! The ring all-reduce as arithmetic: who neighbours whom, and which segment moves at which step.
//! Nothing here sends anything.
//!
//! A buffer has one segment a rank. At step `k` rank `r` sends segment `r − k` to its right and
//! receives segment `r − k − 1` from its left, modulo the world size; so what it sends at a step
//! is what it received at the step before. In the first `N − 1` steps (reduce-scatter) it adds
//! what it receives to its own, in the last `N − 1` (all-gather) it keeps it as it is.

use std::ops::Range;

/// One rank's place in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) rank: usize,
    /// At least 2.
    pub(super) world_size: usize,
    /// Elements in the buffer, perhaps fewer than ranks.
    pub(super) elements: usize,
}

impl Ring {
    /// The rank this one sends to.
    pub(super) fn right(&self) -> usize {
        (self.rank + 1) % self.world_size
    }

    /// The rank this one receives from.
    pub(super) fn left(&self) -> usize {
        (self.rank + self.world_size - 1) % self.world_size
    }

    /// Steps of both phases.
    pub(super) fn steps(&self) -> usize {
        2 * (self.world_size - 1)
    }

    /// The elements sent at `step`.
    pub(super) fn sent_at(&self, step: usize) -> Range<usize> {
        self.segment((self.rank + 2 * self.world_size - step) % self.world_size)
    }

    /// The elements received at `step`.
    pub(super) fn received_at(&self, step: usize) -> Range<usize> {
        self.sent_at(step + 1)
    }

    /// Whether what is received at `step` is added (reduce-scatter) or kept (all-gather).
    pub(super) fn reduces_at(&self, step: usize) -> bool {
        step < self.world_size - 1
    }

    /// The elements of one segment. Lengths differ by at most one; the first ones are the longer.
    pub(super) fn segment(&self, index: usize) -> Range<usize> {
        let (length, longer) = (
            self.elements / self.world_size,
            self.elements % self.world_size,
        );
        let start = index * length + index.min(longer);
        start..start + length + usize::from(index < longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORLDS: [usize; 5] = [2, 3, 4, 5, 8];
    const LENGTHS: [usize; 7] = [0, 1, 2, 7, 8, 9, 1000];

    fn rings() -> impl Iterator<Item = Vec<Ring>> {
        WORLDS.into_iter().flat_map(|world_size| {
            LENGTHS.map(|elements| {
                (0..world_size)
                    .map(|rank| Ring {
                        rank,
                        world_size,
                        elements,
                    })
                    .collect()
            })
        })
    }

    #[test]
    fn segments_tile_the_buffer_evenly() {
        for ring in rings().map(|ranks| ranks[0]) {
            let mut end = 0;
            for index in 0..ring.world_size {
                let segment = ring.segment(index);
                assert_eq!(segment.start, end);
                assert!(segment.len().abs_diff(ring.elements / ring.world_size) <= 1);
                end = segment.end;
            }
            assert_eq!(end, ring.elements);
        }
    }

    #[test]
    fn neighbours_agree_on_every_step() {
        for ranks in rings() {
            for ring in &ranks {
                assert_eq!(ranks[ring.right()].left(), ring.rank);
                for step in 0..ring.steps() {
                    assert_eq!(ring.sent_at(step), ranks[ring.right()].received_at(step));
                }
            }
        }
    }

    #[test]
    fn what_is_sent_was_received_the_step_before() {
        for ring in rings().flatten() {
            for step in 1..ring.steps() {
                assert_eq!(ring.sent_at(step), ring.received_at(step - 1));
            }
        }
    }

    /// Runs the schedule on sets of ranks instead of sums.
    #[test]
    fn every_segment_ends_with_every_rank_counted_once() {
        for ranks in rings() {
            let world_size = ranks.len();
            // holds[rank][element]: which ranks' terms are in it.
            let mut holds: Vec<Vec<Vec<usize>>> = ranks
                .iter()
                .map(|ring| vec![vec![ring.rank]; ring.elements])
                .collect();
            for step in 0..ranks[0].steps() {
                let before = holds.clone();
                for ring in &ranks {
                    for element in ring.received_at(step) {
                        let arrived = &before[ring.left()][element];
                        if ring.reduces_at(step) {
                            holds[ring.rank][element].extend(arrived);
                        } else {
                            holds[ring.rank][element].clone_from(arrived);
                        }
                    }
                }
            }
            for terms in holds.iter_mut().flatten() {
                terms.sort_unstable();
                assert_eq!(*terms, (0..world_size).collect::<Vec<_>>());
            }
        }
    }
}
