//! Conformance tests: every operation gives every rank the correct result over every transport.

use std::sync::mpsc;
use std::thread;

use super::faults::{Fault, Faulty, Noticed};
use super::world::{TRANSPORTS, Transport, WORLDS, options, spawn, world};
use crate::collective::wire::HEADER_BYTES;
use crate::collective::{Buffer, Communicator, Error, Options};

/// Empty, single, smaller than a world, not divisible by any, more than a block of the largest world.
const LENGTHS: [usize; 6] = [0, 1, 7, 1_000, 4_099, 300_001];

/// Runs `body` on every rank, over every transport and at every world size.
fn everywhere(options: &Options, body: impl Fn(&mut Communicator) + Sync) {
    for transport in TRANSPORTS {
        for world_size in WORLDS {
            spawn(world(world_size, transport, options), |mut rank| {
                body(&mut rank)
            });
        }
    }
}

fn ring() -> Options {
    Options {
        direct_below: 0,
        ..options()
    }
}

fn direct() -> Options {
    Options {
        direct_below: usize::MAX,
        ..options()
    }
}

/// Returns small integers, whose sums are exact in any order.
fn term(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 251 + 1)) as f32
}

fn sum(world_size: usize, index: usize) -> f32 {
    (0..world_size).map(|rank| term(rank, index)).sum()
}

fn assert_all_reduces(rank: &mut Communicator, length: usize) {
    let own = rank.rank();
    let mut buffer = Buffer::own((0..length).map(|index| term(own, index)).collect());
    rank.all_reduce_sum(&mut buffer).unwrap();
    for (index, value) in buffer.iter().enumerate() {
        assert_eq!(
            *value,
            sum(rank.world_size(), index),
            "rank {own}, element {index} of {length}"
        );
    }
}

fn payload(rank: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 31 + rank * 7) as u8)
        .collect()
}

#[test]
fn all_reduce_sums_around_the_ring() {
    everywhere(&ring(), |rank| {
        LENGTHS
            .into_iter()
            .for_each(|length| assert_all_reduces(rank, length))
    });
}

#[test]
fn all_reduce_sums_by_direct_exchange() {
    everywhere(&direct(), |rank| {
        LENGTHS
            .into_iter()
            .for_each(|length| assert_all_reduces(rank, length))
    });
}

#[test]
fn all_reduce_sums_buffers_of_any_length() {
    everywhere(&ring(), |rank| {
        for length in LENGTHS {
            let mut buffer = rank.buffer(length).unwrap();
            assert!(buffer.iter().all(|value| *value == 0.0));
            for round in 0..20 {
                for (index, value) in buffer.iter_mut().enumerate() {
                    *value = term(rank.rank(), index + round);
                }
                rank.all_reduce_sum(&mut buffer).unwrap();
                for (index, value) in buffer.iter().enumerate() {
                    let expected = sum(rank.world_size(), index + round);
                    assert_eq!(*value, expected, "element {index} of {length}");
                }
                buffer.fill(f32::NAN);
            }
        }
    });
}

/// Disjoint parts of a buffer of 300,001 numbers, not in their order, of which one is empty and a few numbers are in
/// none.
const PARTS: [std::ops::Range<usize>; 5] = [
    200_000..300_001,
    7..4_106,
    4_106..4_106,
    4_106..200_000,
    0..6,
];

/// Returns numbers whose sizes differ so much that the order of additions shows.
fn uneven(rank: usize, index: usize) -> f32 {
    let power = (index + rank * 5) % 13;
    (index as f32 * 0.37 + rank as f32).sin() * 10f32.powi(power as i32 - 6)
}

#[test]
fn parts_are_summed_as_if_each_were_a_buffer() {
    for options in [ring(), direct(), options()] {
        everywhere(&options, |rank| {
            let own = rank.rank();
            let mut buffer = rank.buffer(300_001).unwrap();
            buffer[6] = 0.5;
            let outcome: Result<_, Error> =
                rank.all_reduce_sum_beside(&mut buffer, &PARTS, |parts, sum| {
                    for mut part in parts {
                        let first = part.range().start;
                        for (at, number) in part.iter_mut().enumerate() {
                            *number = uneven(own, first + at);
                        }
                        sum(part);
                    }
                    Ok(own)
                });
            assert_eq!(outcome.unwrap(), own);
            assert_eq!(buffer[6], 0.5, "it is of no part");
            let shared = buffer.is_shared();
            for range in PARTS {
                let mut alone = match shared {
                    true => rank.buffer(range.len()).unwrap(),
                    false => Buffer::own(vec![0.0; range.len()]),
                };
                for (at, number) in alone.iter_mut().enumerate() {
                    *number = uneven(own, range.start + at);
                }
                rank.all_reduce_sum(&mut alone).unwrap();
                // Few numbers are not shared unless they are part of many.
                if shared && !alone.is_shared() {
                    continue;
                }
                let bits = |numbers: &[f32]| numbers.iter().map(|n| n.to_bits()).collect();
                let [found, due]: [Vec<u32>; 2] = [bits(&buffer[range]), bits(&alone)];
                assert!(found == due);
            }
            let bytes: &[u8] = bytemuck::cast_slice(&buffer[..]);
            let all = rank.all_gather(bytes).unwrap();
            assert!(all.iter().all(|of| of == bytes), "the same bits on all");
        });
    }
}

#[test]
fn a_part_is_summed_while_the_next_is_computed() {
    for transport in TRANSPORTS {
        let mut ranks = world(2, transport, &ring());
        let mut late = ranks.remove(1);
        let mut early = ranks.remove(0);
        let (noticed, arrival) = mpsc::channel();
        let (begins, begun) = mpsc::channel();
        early.wrap_links(|_, link| Noticed::over(link, noticed.clone()));
        let ranges = [50_000..100_000, 0..50_000];
        let sum_up = |rank: &mut Communicator, between: &dyn Fn()| {
            let mut buffer = Buffer::own(vec![1.0; 100_000]);
            let outcome: Result<_, Error> =
                rank.all_reduce_sum_beside(&mut buffer, &ranges, |parts, sum| {
                    for (at, part) in parts.into_iter().enumerate() {
                        sum(part);
                        if at == 0 {
                            between();
                        }
                    }
                    Ok(())
                });
            outcome.unwrap();
            assert!(buffer.iter().all(|number| *number == 2.0));
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                // The sum waits for the late rank's part, while this rank computes.
                let wait = || {
                    arrival.recv_timeout(options().op_timeout).unwrap();
                    begins.send(()).unwrap();
                };
                sum_up(&mut early, &wait);
            });
            begun.recv().unwrap();
            sum_up(&mut late, &|| ());
        });
    }
}

#[test]
fn a_buffer_is_sent_only_to_other_hosts() {
    const ELEMENTS: usize = 100_000;
    for (transport, is_sent) in [
        (Transport::Tcp, true),
        (Transport::Unix, false),
        (Transport::InProcess, false),
    ] {
        spawn(world(3, transport, &options()), |mut rank| {
            let mut buffer = rank.buffer(ELEMENTS).unwrap();
            let before = rank.counters().bytes_sent;
            rank.all_reduce_sum(&mut buffer).unwrap();
            let sent = rank.counters().bytes_sent - before;
            assert_eq!(
                sent > ELEMENTS as u64,
                is_sent,
                "{transport:?}: {sent} bytes"
            );
        });
    }
}

#[test]
fn a_host_sends_what_one_rank_of_a_ring_would() {
    const ELEMENTS: usize = 100_000;
    // Ranks alternate between two hosts: two on each, then three on one of them.
    for world_size in [4, 5] {
        let sent = spawn(
            world(world_size, Transport::Hosts, &options()),
            |mut rank| {
                let mut buffer = rank.buffer(ELEMENTS).unwrap();
                buffer.fill(1.5);
                let before = rank.counters().bytes_sent;
                rank.all_reduce_sum(&mut buffer).unwrap();
                assert!(buffer.iter().all(|sum| *sum == 1.5 * world_size as f32));
                rank.counters().bytes_sent - before
            },
        );
        for host in [0, 1] {
            let of_host: u64 = sent.iter().skip(host).step_by(2).sum();
            // 2 (H − 1) / H of all bytes; ranks of a host meet with headers only.
            let due = 4 * ELEMENTS as u64;
            assert!(
                (due..due + 2_000).contains(&of_host),
                "host {host}: {sent:?}"
            );
        }
    }
}

#[test]
fn ranks_that_share_different_lengths_share_nothing() {
    let lengths = [100_000, 100_001];
    let outcomes = spawn(world(2, Transport::Unix, &options()), |mut rank| {
        let mut buffer = rank.buffer(lengths[rank.rank()]).unwrap();
        rank.all_reduce_sum(&mut buffer)
    });
    for outcome in outcomes {
        assert!(matches!(
            outcome,
            Err(Error::Mismatch { .. } | Error::PeerClosed { .. })
        ));
    }
}

#[test]
fn all_reduce_sums_a_million_elements() {
    everywhere(&options(), |rank| assert_all_reduces(rank, 1_000_003));
}

#[test]
fn all_reduce_sums_in_double_precision() {
    for options in [ring(), direct()] {
        everywhere(&options, |rank| {
            for length in LENGTHS {
                // Not exact in single precision.
                let whole = (1u64 << 40) as f64;
                let mut buffer = vec![whole + rank.rank() as f64; length];
                rank.all_reduce_sum_f64(&mut buffer).unwrap();
                let world_size = rank.world_size() as f64;
                let expected = world_size * whole + world_size * (world_size - 1.0) / 2.0;
                assert!(buffer.iter().all(|value| *value == expected));
            }
        });
    }
}

#[test]
fn all_ranks_get_the_same_bits() {
    for options in [ring(), direct()] {
        for world_size in WORLDS {
            let results = spawn(
                world(world_size, Transport::InProcess, &options),
                |mut rank| {
                    let own = rank.rank() as f32;
                    // Sizes differ so much that the order of additions shows.
                    let numbers = (0..300_007).map(|index| {
                        (index as f32 * 0.37 + own).sin()
                            * 10f32.powi((index + rank.rank() as i32 * 5) % 13 - 6)
                    });
                    let mut buffer = Buffer::own(numbers.collect());
                    rank.all_reduce_sum(&mut buffer).unwrap();
                    buffer.iter().map(|it| it.to_bits()).collect::<Vec<_>>()
                },
            );
            assert!(results.iter().all(|bits| *bits == results[0]));
        }
    }
}

#[test]
fn a_buffer_may_be_overwritten_as_soon_as_the_call_returns() {
    for options in [ring(), direct()] {
        for transport in TRANSPORTS {
            spawn(world(3, transport, &options), |mut rank| {
                let mut buffer = Buffer::own(vec![0.0; 200_011]);
                for round in 0..200 {
                    for (index, value) in buffer.iter_mut().enumerate() {
                        *value = term(rank.rank(), index + round);
                    }
                    rank.all_reduce_sum(&mut buffer).unwrap();
                    let first_wrong = buffer
                        .iter()
                        .enumerate()
                        .position(|(index, value)| *value != sum(rank.world_size(), index + round));
                    assert_eq!(first_wrong, None, "round {round}");
                    buffer.fill(f32::NAN);
                }
            });
        }
    }
}

#[test]
fn all_gather_keeps_ranks_and_lengths_apart() {
    everywhere(&options(), |rank| {
        for length in LENGTHS {
            // Lengths differ, and one is empty.
            let lengths: Vec<usize> = (0..rank.world_size()).map(|rank| length * rank).collect();
            let gathered = rank
                .all_gather(&payload(rank.rank(), lengths[rank.rank()]))
                .unwrap();
            let expected: Vec<Vec<u8>> = lengths
                .into_iter()
                .enumerate()
                .map(|(rank, length)| payload(rank, length))
                .collect();
            assert_eq!(gathered, expected);
        }
    });
}

#[test]
fn all_gather_streams_what_no_socket_could_hold() {
    for transport in TRANSPORTS {
        spawn(world(3, transport, &options()), |mut rank| {
            let own = payload(rank.rank(), 24 << 20);
            let gathered = rank.all_gather(&own).unwrap();
            for (peer, bytes) in gathered.iter().enumerate() {
                assert!(*bytes == payload(peer, 24 << 20), "what rank {peer} sent");
            }
        });
    }
}

#[test]
fn broadcast_reaches_every_rank_from_any_root() {
    everywhere(&options(), |rank| {
        for length in LENGTHS {
            for root in 0..rank.world_size() {
                // The previous contents do not matter, whether longer or shorter.
                let mut bytes =
                    payload(rank.rank(), if rank.rank() == root { length } else { 500 });
                rank.broadcast(root, &mut bytes).unwrap();
                assert_eq!(bytes, payload(root, length));
            }
        }
    });
}

#[test]
fn broadcast_streams_what_no_socket_could_hold() {
    for transport in TRANSPORTS {
        spawn(world(3, transport, &options()), |mut rank| {
            let mut bytes = if rank.rank() == 1 {
                payload(1, 24 << 20)
            } else {
                Vec::new()
            };
            rank.broadcast(1, &mut bytes).unwrap();
            assert!(bytes == payload(1, 24 << 20));
        });
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for transport in TRANSPORTS {
        for world_size in WORLDS {
            let arrived = AtomicUsize::new(0);
            spawn(world(world_size, transport, &options()), |mut rank| {
                for round in 1..=50 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    rank.barrier().unwrap();
                    assert!(arrived.load(Ordering::SeqCst) >= round * world_size);
                }
            });
        }
    }
}

/// Runs all operations in turn; fast ranks run ahead into the next one while slow ones are still in the last.
fn mixed_operations(rank: &mut Communicator) {
    for round in 0..5 {
        assert_all_reduces(rank, 5);
        rank.barrier().unwrap();
        assert_all_reduces(rank, 503);
        let root = round % rank.world_size();
        let mut bytes = payload(rank.rank(), 300);
        rank.broadcast(root, &mut bytes).unwrap();
        assert_eq!(bytes, payload(root, 300));
        assert_eq!(
            rank.all_gather(&[rank.rank() as u8])
                .unwrap()
                .concat()
                .len(),
            rank.world_size()
        );
    }
}

#[test]
fn operations_follow_each_other_without_a_pause() {
    let options = Options {
        direct_below: 100,
        ..options()
    };
    everywhere(&options, |rank| {
        (0..20).for_each(|_| mixed_operations(rank))
    });
}

#[test]
fn slow_links_change_nothing() {
    let options = Options {
        direct_below: 100,
        ..options()
    };
    for transport in TRANSPORTS {
        for world_size in [2, 3, 5] {
            let mut ranks = world(world_size, transport, &options);
            // Three bytes: never a whole element at a time.
            ranks[1].wrap_links(|_, link| Faulty::over(link, Fault::Trickle(3)));
            spawn(ranks, |mut rank| mixed_operations(&mut rank));
        }
    }
}

#[test]
fn a_late_rank_is_waited_for() {
    for options in [ring(), direct()] {
        for transport in TRANSPORTS {
            // The late rank calls once its peer has sent all that it could.
            let mut ranks = world(2, transport, &options);
            let mut late = ranks.remove(1);
            let mut early = ranks.remove(0);
            let (noticed, arrival) = mpsc::channel();
            early.wrap_links(|_, link| Noticed::over(link, noticed.clone()));
            thread::scope(|scope| {
                scope.spawn(move || assert_all_reduces(&mut early, 4_099));
                arrival.recv().unwrap();
                assert_all_reduces(&mut late, 4_099);
            });
        }
    }
}

#[test]
fn many_ranks_add_up_in_pairs() {
    for world_size in [8, 9, 11, 15, 16, 17] {
        let sums = spawn(
            world(world_size, Transport::InProcess, &direct()),
            |mut rank| {
                rank.barrier().unwrap();
                assert_all_reduces(&mut rank, 1_000);
                // Any other order of additions gives other bits.
                let mut terms = [1e8, -1e8, 0.25, 3e-5].map(|term| term / (1 + rank.rank()) as f64);
                rank.all_reduce_sum_f64(&mut terms).unwrap();
                terms.map(f64::to_bits)
            },
        );
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{world_size} ranks");
    }
}

#[test]
fn the_wire_carries_what_the_docs_say() {
    const ELEMENTS: usize = 4_000;
    const BYTES: usize = 4 * ELEMENTS;
    // Bytes and messages that a rank sends or receives.
    type Moved = fn(usize) -> [usize; 2];
    let of_large: Moved = |n| [2 * (n - 1) * BYTES / n, if n < 8 { 1 } else { 6 }];
    // Each of eight ranks is in three pairs.
    let of_small: Moved = |n| {
        let messages = if n < 8 { n - 1 } else { 3 };
        [messages * BYTES, messages]
    };
    for (options, expected) in [(ring(), of_large), (direct(), of_small)] {
        for world_size in [2, 4, 5, 8] {
            for rank in spawn(
                world(world_size, Transport::InProcess, &options),
                |mut rank| {
                    let mut buffer = Buffer::own(vec![1.0; ELEMENTS]);
                    rank.all_reduce_sum(&mut buffer).unwrap();
                    rank
                },
            ) {
                let counters = rank.counters();
                assert_eq!(counters.operations, 1);
                let [bytes, messages] = expected(world_size);
                let due = (bytes + messages * HEADER_BYTES) as u64;
                assert_eq!(counters.bytes_sent, due);
                assert_eq!(counters.bytes_received, due);
                assert!(!counters.time.is_zero());
            }
        }
    }
}

#[test]
fn a_world_of_one_needs_nobody() {
    let mut rank = Communicator::in_process(1, &options(), &Default::default())
        .unwrap()
        .remove(0);
    assert_all_reduces(&mut rank, 70_001);
    assert_eq!(rank.all_gather(&[1, 2]).unwrap(), [[1, 2]]);
    let mut bytes = vec![3];
    rank.broadcast(0, &mut bytes).unwrap();
    rank.barrier().unwrap();
    assert_eq!(bytes, [3]);
    assert_eq!(
        (rank.counters().operations, rank.counters().bytes_sent),
        (4, 0)
    );
}
