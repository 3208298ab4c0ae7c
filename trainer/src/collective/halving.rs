//! The schedule of the halving all-reduce: reduce-scatter and all-gather in ⌈log₂ N⌉ rounds each, for many ranks. It
//! says who sends which elements to whom in each round, and moves no bytes.
//!
//! The buffer has as many segments as ranks. In a round, all ranks send to the one as far to the right as the round's
//! distance, which about halves from round to round. Each passes on the sums so far of half of the segments that it
//! still has, and adds to the other half what it receives. The all-gather is the same backwards, with segments stored
//! instead of added.
//!
//! ```text
//!   rank 0 of 5        distance 3   send [3 4] to rank 3   receive [0 1] from rank 2, add
//!                      distance 2   send [2]   to rank 2   receive [0]   from rank 3, add
//!                      distance 1   send [1]   to rank 1   receive [0]   from rank 4, add     now [0] is the sum
//!                      distance 1   send [0]   to rank 4   receive [1]   from rank 1, keep
//!                      distance 2   send [0]   to rank 3   receive [2]   from rank 2, keep
//!                      distance 3   send [0 1] to rank 2   receive [3 4] from rank 3, keep    now all of it is
//! ```
//!
//! Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms" (2024), <https://arxiv.org/abs/2410.14234>.
//! It sends as many bytes as the [ring](super::ring), in fewer steps for more than a few ranks, and works for any
//! number of ranks.

use std::ops::Range;

use super::ring::part;

/// One rank's part in the all-reduce of `elements` elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Halving {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) elements: usize,
}

/// One rank's part in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// The rank to which it sends.
    pub(super) to: usize,
    /// The rank from which it receives.
    pub(super) from: usize,
    /// Elements that are sent, in this order; a part is empty unless the segments go around the end of the buffer.
    pub(super) sent: [Range<usize>; 2],
    /// Elements that are received, in this order.
    pub(super) received: [Range<usize>; 2],
    /// True if they are added (reduce-scatter), false if they are stored (all-gather).
    pub(super) reduces: bool,
}

impl Halving {
    /// Returns the rounds, in order.
    pub(super) fn rounds(self) -> Vec<Round> {
        let mut reduce = Vec::new();
        let mut left = self.world_size;
        while left > 1 {
            let distance = left.div_ceil(2);
            reduce.push(Round {
                to: self.right(distance),
                from: self.left(distance),
                sent: self.segments(distance..left),
                received: self.segments(0..left - distance),
                reduces: true,
            });
            left = distance;
        }
        let gather = reduce.iter().rev().map(|round| Round {
            to: round.from,
            from: round.to,
            sent: round.received.clone(),
            received: round.sent.clone(),
            reduces: false,
        });
        let gather: Vec<_> = gather.collect();
        reduce.into_iter().chain(gather).collect()
    }

    fn right(self, distance: usize) -> usize {
        (self.rank + distance) % self.world_size
    }

    fn left(self, distance: usize) -> usize {
        (self.rank + self.world_size - distance) % self.world_size
    }

    /// Returns the elements of some segments, counted from the rank's own: up to the end of the buffer, and from its
    /// beginning.
    fn segments(self, counted: Range<usize>) -> [Range<usize>; 2] {
        let ranks = self.world_size;
        let first = (self.rank + counted.start) % ranks;
        let end = first + counted.len();
        let elements = |segments: Range<usize>| {
            let start = |segment: usize| match segment < ranks {
                true => part(self.elements, ranks, segment).start,
                false => self.elements,
            };
            start(segments.start)..start(segments.end)
        };
        [
            elements(first..end.min(ranks)),
            elements(0..end.max(ranks) - ranks),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worlds() -> impl Iterator<Item = Vec<Vec<Round>>> {
        (1..=17).chain([24, 31]).flat_map(|world_size| {
            [0, 1, 7, 100].map(|elements| {
                let rank = |rank| Halving {
                    rank,
                    world_size,
                    elements,
                };
                (0..world_size).map(|of| rank(of).rounds()).collect()
            })
        })
    }

    #[test]
    fn rounds_are_logarithmic_and_peers_agree_on_them() {
        for ranks in worlds() {
            let doublings = ranks.len().next_power_of_two().ilog2() as usize;
            for (rank, rounds) in ranks.iter().enumerate() {
                assert_eq!(rounds.len(), 2 * doublings);
                for (at, round) in rounds.iter().enumerate() {
                    let peer = &ranks[round.to][at];
                    assert_eq!((peer.from, &peer.received), (rank, &round.sent));
                    assert_eq!(peer.reduces, round.reduces);
                }
            }
        }
    }

    #[test]
    fn a_round_sends_nothing_that_it_receives() {
        for rounds in worlds().flatten() {
            for Round { sent, received, .. } in rounds {
                let overlaps =
                    |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
                for part in &sent {
                    assert!(received.iter().all(|other| !overlaps(part, other)));
                }
            }
        }
    }

    #[test]
    fn a_rank_sends_as_much_as_around_the_ring() {
        let (world_size, elements) = (24, 2400);
        for rank in 0..world_size {
            let halving = Halving {
                rank,
                world_size,
                elements,
            };
            let sent = halving.rounds().into_iter().flat_map(|round| round.sent);
            assert_eq!(sent.map(|part| part.len()).sum::<usize>(), 2 * 2300);
            let added = halving.rounds().into_iter().filter(|round| round.reduces);
            let mut parts = added.flat_map(|round| round.received);
            assert!(parts.all(|part| part.len() <= elements / 2));
        }
    }

    /// Runs the schedule on sets of ranks instead of sums.
    #[test]
    fn every_element_ends_with_every_rank_counted_once() {
        for ranks in worlds() {
            let rounds = ranks[0].len();
            let elements = ranks.iter().flatten().flat_map(|round| &round.sent);
            let elements = elements.map(|part| part.end).max().unwrap_or(0);
            // holds[rank][element]: the ranks whose terms are in the sum.
            let mut holds: Vec<Vec<Vec<usize>>> = (0..ranks.len())
                .map(|rank| vec![vec![rank]; elements])
                .collect();
            for at in 0..rounds {
                let before = holds.clone();
                for (rank, rounds) in ranks.iter().enumerate() {
                    let Round {
                        from,
                        received,
                        reduces,
                        ..
                    } = &rounds[at];
                    for element in received.iter().cloned().flatten() {
                        let arrived = &before[*from][element];
                        match reduces {
                            true => holds[rank][element].extend(arrived),
                            false => holds[rank][element].clone_from(arrived),
                        }
                    }
                }
            }
            for terms in holds.iter_mut().flatten() {
                terms.sort_unstable();
                assert_eq!(*terms, (0..ranks.len()).collect::<Vec<_>>());
            }
        }
    }
}
