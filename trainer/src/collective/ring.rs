//! Arithmetic of the ring all-reduce: each rank's neighbours, and the segment that moves at each step. It
//! sends nothing.
//!
//! A block of a buffer has one segment per rank. At step `k` rank `r` sends segment `r − k` to its right and
//! receives segment `r − k − 1` from its left, modulo the world size; so at each step it sends the segment
//! that it received at the step before. In the first `N − 1` steps (reduce-scatter) it adds the received
//! segment to its own; in the last `N − 1` (all-gather) it stores it unchanged.
//!
//! A large buffer has several blocks, which a [`Schedule`] sends in waves: step 0 of a block, then step 1 of
//! the block before it, and so on. So a segment comes back while it is in the processor's caches, and a wave
//! passes on what arrived in the wave before.

use std::ops::Range;

/// One rank's position in the ring. Ranks are numbered around the ring, not by their rank in the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) rank: usize,
    /// At least 2.
    pub(super) world_size: usize,
    /// Elements to sum, of a block or a whole buffer; may be fewer than ranks.
    pub(super) elements: usize,
}

/// Segments that one rank sends and receives for a buffer in blocks: one of each per turn.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) ring: Ring,
    blocks: usize,
    turns: Vec<Turn>,
}

/// One step of one block.
#[derive(Clone, Copy, Debug)]
struct Turn {
    block: usize,
    step: usize,
    /// The turn that receives the segment which this one sends; `None` in step 0, which sends the rank's own.
    after: Option<usize>,
}

impl Schedule {
    /// Creates the schedule of a buffer of `ring.elements` elements, with at most `segment` elements per
    /// segment.
    pub(super) fn new(ring: Ring, segment: usize) -> Self {
        let blocks = ring.elements.div_ceil(ring.world_size * segment).max(1);
        let mut turns = Vec::with_capacity(blocks * ring.steps());
        let mut last = vec![None; blocks];
        for wave in 0..blocks + ring.steps() - 1 {
            for step in 0..ring.steps().min(wave + 1) {
                let block = wave - step;
                if let Some(last) = last.get_mut(block) {
                    let after = last.replace(turns.len());
                    turns.push(Turn { block, step, after });
                }
            }
        }
        Self {
            ring,
            blocks,
            turns,
        }
    }

    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Returns the elements of the buffer sent in a turn; empty after the last turn.
    pub(super) fn sent_at(&self, turn: usize) -> Range<usize> {
        self.place(turn, Ring::sent_at)
    }

    /// Returns the elements of the buffer received in a turn; empty after the last turn.
    pub(super) fn received_at(&self, turn: usize) -> Range<usize> {
        self.place(turn, Ring::received_at)
    }

    /// Returns true if the segment received in a turn is added (reduce-scatter), false if it is stored
    /// (all-gather).
    pub(super) fn reduces_at(&self, turn: usize) -> bool {
        self.ring.reduces_at(self.turns[turn].step)
    }

    /// Returns the turn that receives the segment sent in this one, or `None` if that is the rank's own.
    pub(super) fn passes_on(&self, turn: usize) -> Option<usize> {
        self.turns[turn].after
    }

    fn place(&self, turn: usize, of_block: impl Fn(&Ring, usize) -> Range<usize>) -> Range<usize> {
        let Some(Turn { block, step, .. }) = self.turns.get(turn) else {
            return 0..0;
        };
        let block = part(self.ring.elements, self.blocks, *block);
        let ring = Ring {
            elements: block.len(),
            ..self.ring
        };
        let segment = of_block(&ring, *step);
        block.start + segment.start..block.start + segment.end
    }
}

/// Returns the range of one of `parts` parts. Lengths differ by at most one; the first parts are the longer
/// ones.
pub(super) fn part(whole: usize, parts: usize, index: usize) -> Range<usize> {
    let (length, longer) = (whole / parts, whole % parts);
    let start = index * length + index.min(longer);
    start..start + length + usize::from(index < longer)
}

impl Ring {
    /// Returns the rank to which this one sends.
    pub(super) fn right(&self) -> usize {
        (self.rank + 1) % self.world_size
    }

    /// Returns the rank from which this one receives.
    pub(super) fn left(&self) -> usize {
        (self.rank + self.world_size - 1) % self.world_size
    }

    /// Returns the number of steps of both phases.
    pub(super) fn steps(&self) -> usize {
        2 * (self.world_size - 1)
    }

    /// Returns the elements sent at `step`.
    pub(super) fn sent_at(&self, step: usize) -> Range<usize> {
        self.segment((self.rank + 2 * self.world_size - step) % self.world_size)
    }

    /// Returns the elements received at `step`.
    pub(super) fn received_at(&self, step: usize) -> Range<usize> {
        self.sent_at(step + 1)
    }

    /// Returns true if the segment received at `step` is added (reduce-scatter), false if it is stored
    /// (all-gather).
    pub(super) fn reduces_at(&self, step: usize) -> bool {
        step < self.world_size - 1
    }

    /// Returns the elements of one segment. Lengths differ by at most one; the first segments are the longer
    /// ones.
    pub(super) fn segment(&self, index: usize) -> Range<usize> {
        part(self.elements, self.world_size, index)
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

    /// Returns the schedules of every rank of each ring, with one block and with several.
    fn schedules() -> impl Iterator<Item = Vec<Schedule>> {
        rings().flat_map(|ranks| {
            [1, 2, 1000].map(|segment| {
                let schedule = |ring: &Ring| Schedule::new(*ring, segment);
                ranks.iter().map(schedule).collect()
            })
        })
    }

    #[test]
    fn segments_are_no_longer_than_asked_for() {
        for schedule in rings().map(|ranks| Schedule::new(ranks[0], 2)) {
            for turn in 0..schedule.turns() {
                assert!(schedule.sent_at(turn).len() <= 2);
            }
            assert_eq!(schedule.sent_at(schedule.turns()), 0..0);
        }
    }

    #[test]
    fn neighbours_agree_on_every_turn() {
        for ranks in schedules() {
            for schedule in &ranks {
                let right = &ranks[schedule.ring.right()];
                assert_eq!(right.ring.left(), schedule.ring.rank);
                assert_eq!(right.turns(), schedule.turns());
                for turn in 0..schedule.turns() {
                    assert_eq!(schedule.sent_at(turn), right.received_at(turn));
                }
            }
        }
    }

    #[test]
    fn what_is_passed_on_was_received_before() {
        for schedule in schedules().flatten() {
            let mut own = 0;
            for turn in 0..schedule.turns() {
                if let Some(before) = schedule.passes_on(turn) {
                    assert!(before < turn);
                    assert_eq!(schedule.sent_at(turn), schedule.received_at(before));
                } else {
                    own += 1;
                }
            }
            assert_eq!(own, schedule.blocks);
        }
    }

    /// Runs the schedule on sets of ranks instead of sums.
    #[test]
    fn every_segment_ends_with_every_rank_counted_once() {
        for ranks in schedules() {
            let world_size = ranks.len();
            // holds[rank][element]: the ranks whose terms are in the sum.
            let terms =
                |schedule: &Schedule| vec![vec![schedule.ring.rank]; schedule.ring.elements];
            let mut holds: Vec<Vec<Vec<usize>>> = ranks.iter().map(terms).collect();
            for turn in 0..ranks[0].turns() {
                let before = holds.clone();
                for schedule in &ranks {
                    let Ring { rank, .. } = schedule.ring;
                    for element in schedule.received_at(turn) {
                        let arrived = &before[schedule.ring.left()][element];
                        if schedule.reduces_at(turn) {
                            holds[rank][element].extend(arrived);
                        } else {
                            holds[rank][element].clone_from(arrived);
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
