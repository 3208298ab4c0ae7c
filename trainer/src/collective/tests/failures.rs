//! Failure tests: a failure reaches every rank soon, as an error that names the culprit.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::faults::{Fault, Faulty};
use super::world::{TRANSPORTS, Transport, options, spawn, world};
use crate::collective::sockets::Sockets;
use crate::collective::wire::HEADER_BYTES;
use crate::collective::{Buffer, BufferPart, Communicator, Error, Options, Result, link};

type Operation = fn(&mut Communicator) -> Result<()>;

/// Operations to fail: each moves more bytes than the faults let through.
const OPERATIONS: [(&str, Operation); 7] = [
    ("all-reduce", |rank| rank.all_reduce_sum(&mut ones(200_000))),
    ("all-reduce, small", |rank| {
        rank.all_reduce_sum_f64(&mut [1.0; 1_000])
    }),
    ("all-reduce, buffer", |rank| {
        let mut buffer = rank.buffer(200_000)?;
        (0..100).try_for_each(|_| rank.all_reduce_sum(&mut buffer))
    }),
    ("all-reduce, parts", |rank| {
        in_parts(rank, &mut ones(200_000))
    }),
    ("all-reduce, parts of a buffer", |rank| {
        let mut buffer = rank.buffer(200_000)?;
        (0..100).try_for_each(|_| in_parts(rank, &mut buffer))
    }),
    ("all-gather", |rank| rank.all_gather(&[1; 50_000]).map(drop)),
    ("barrier", |rank| {
        (0..1_000).try_for_each(|_| rank.barrier())
    }),
];

/// Sums a buffer in parts, of which all but the first are computed while others are summed.
fn in_parts(rank: &mut Communicator, buffer: &mut Buffer) -> Result<()> {
    let ranges = [100_000..200_000, 50_000..100_000, 0..50_000];
    rank.all_reduce_sum_beside(buffer, &ranges, |parts, sum| {
        for mut part in parts {
            part.fill(1.0);
            sum(part);
        }
        Ok(())
    })
}

/// Returns numbers in ordinary memory, which are always sent.
fn ones(len: usize) -> Buffer {
    Buffer::own(vec![1.0; len])
}

fn patience(op_timeout: Duration) -> Options {
    Options {
        op_timeout,
        ..options()
    }
}

#[test]
fn when_a_rank_is_cut_off_every_rank_fails_at_once() {
    for transport in TRANSPORTS {
        for world_size in [2, 3, 5] {
            for (name, operation) in OPERATIONS {
                let mut ranks = world(world_size, transport, &options());
                ranks[1].wrap_links(|_, link| Faulty::over(link, Fault::Cut(3_000)));
                for outcome in spawn(ranks, |mut rank| operation(&mut rank)) {
                    let error = outcome.unwrap_err();
                    // The ranks noticed the cut itself, or its consequence, before the deadline.
                    assert!(
                        matches!(error, Error::PeerClosed { .. }),
                        "{transport:?} {name}: {error}"
                    );
                    assert!(error.is_peer_loss());
                }
            }
        }
    }
}

#[test]
fn when_a_rank_is_dropped_its_peer_names_it() {
    for transport in TRANSPORTS {
        for (_, operation) in OPERATIONS {
            let outcomes = spawn(world(2, transport, &options()), |mut rank| {
                match rank.rank() {
                    0 => Some((rank.generation(), operation(&mut rank))),
                    _ => None,
                }
            });
            let Some((generation, Err(Error::PeerClosed { call, peer, .. }))) = &outcomes[0] else {
                panic!("{transport:?}: {outcomes:?}");
            };
            assert_eq!((call.rank, call.generation, *peer), (0, *generation, 1));
        }
    }
}

#[test]
fn a_broadcast_that_is_cut_leaves_nothing_behind() {
    let mut ranks = world(3, Transport::InProcess, &options());
    ranks[0].wrap_links(|_, link| Faulty::over(link, Fault::Cut(3_000)));
    let outcomes = spawn(ranks, |mut rank| {
        let mut bytes = vec![1; if rank.rank() == 0 { 1 << 20 } else { 5 }];
        (rank.broadcast(0, &mut bytes), bytes.len())
    });
    for (rank, (outcome, length)) in outcomes.iter().enumerate() {
        assert!(matches!(outcome, Err(Error::PeerClosed { .. })));
        assert_eq!(*length, if rank == 0 { 1 << 20 } else { 0 });
    }
}

#[test]
fn a_wait_for_work_elsewhere_ends_with_the_work_or_with_a_peer() {
    for transport in TRANSPORTS {
        let outcomes = spawn(world(3, transport, &options()), |mut rank| {
            let mut asked = 0;
            let done: Result<()> = rank.wait_until(|| {
                asked += 1;
                Ok(asked == 3)
            });
            done.unwrap();
            let source = || io::Error::other("elsewhere");
            let failed: Result<()> = rank.wait_until(|| {
                let (address, source) = (String::new(), source());
                Err(Error::Bind { address, source })
            });
            assert!(matches!(failed, Err(Error::Bind { .. })));
            // It can still be used.
            rank.barrier().unwrap();
            match rank.rank() {
                1 => None,
                _ => Some(rank.wait_until(|| Ok::<_, Error>(false))),
            }
        });
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let Some(outcome) = outcome else { continue };
            let error = outcome.unwrap_err();
            assert!(error.is_peer_loss(), "{error}");
            // Another survivor may have noticed first, and closed too.
            let named = match error {
                Error::PeerClosed { call, peer, .. } => call.rank == rank && peer != rank,
                _ => false,
            };
            assert!(named, "{transport:?}");
        }
    }
}

#[test]
fn a_wait_for_work_elsewhere_ends_at_the_deadline_and_by_abort() {
    let options = patience(Duration::from_millis(100));
    let outcomes = spawn(world(2, Transport::Unix, &options), |mut rank| {
        let outcome: Result<()> = match rank.rank() {
            0 => rank.wait_until(|| Ok(false)),
            _ => Ok(()),
        };
        (outcome, rank)
    });
    let error = outcomes[0].0.as_ref().unwrap_err();
    assert!(
        matches!(error, Error::DeadlineExceeded { peers, .. } if *peers == [1]),
        "{error}"
    );
    let abort = CancellationToken::new();
    let mut ranks = Communicator::in_process(2, &self::options(), &abort).unwrap();
    let outcome: Result<()> = ranks[0].wait_until(|| {
        abort.cancel();
        Ok(false)
    });
    assert!(outcome.unwrap_err().is_abort());
}

#[test]
fn a_busy_rank_is_waited_for_in_patient_calls_alone() {
    let busy = Duration::from_millis(600);
    let options = patience(Duration::from_millis(150));
    let calls = |patient: bool| {
        let ranks = world(3, Transport::Unix, &options);
        let outcomes = spawn(ranks, |mut rank| {
            if rank.rank() == 0 {
                thread::sleep(busy);
            }
            let call = |rank: &mut Communicator| rank.barrier();
            let outcome = match patient {
                true => rank.patiently(call),
                false => call(&mut rank),
            };
            (outcome, rank)
        });
        outcomes.into_iter().map(|(outcome, _)| outcome)
    };
    assert!(calls(true).all(|outcome| outcome.is_ok()));
    assert!(calls(false).any(|outcome| matches!(outcome, Err(Error::DeadlineExceeded { .. }))));
}

/// An error of a computation.
#[derive(Debug, PartialEq)]
struct Failed(&'static str);

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self("a sum")
    }
}

type Compute = for<'b> fn(Vec<BufferPart<'b>>, &mut dyn FnMut(BufferPart<'b>)) -> Result<()>;

#[test]
fn a_computation_that_fails_or_panics_ends_its_sums() {
    let ranges = [5..10, 0..5];
    let mut ranks = world(2, Transport::Unix, &options());
    let [own, peer] = &mut ranks[..] else {
        unreachable!("there are two")
    };
    let outcome: Result<(), _> = own.all_reduce_sum_beside(&mut ones(10), &ranges, |_, _| {
        Err(Failed("the computation"))
    });
    assert_eq!(outcome, Err(Failed("the computation")));
    let cases: [(&str, Compute); 3] = [
        ("panics", |_, _| panic!("on purpose")),
        ("in another order", |parts, sum| {
            parts.into_iter().rev().for_each(sum);
            Ok(())
        }),
        ("hands over nothing", |_, _| Ok(())),
    ];
    for (what, compute) in cases {
        let call = || own.all_reduce_sum_beside(&mut ones(10), &ranges, compute);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        assert!(caught.is_err(), "{what}");
    }
    let closed = peer.barrier();
    assert!(
        matches!(closed, Err(Error::PeerClosed { peer: 0, .. })),
        "{closed:?}"
    );
}

#[test]
fn sums_that_fail_do_not_keep_the_computation() {
    for outcome in spawn(world(2, Transport::Tcp, &options()), |mut rank| {
        if rank.rank() == 1 {
            return None;
        }
        let mut computed = 0;
        let ranges: Vec<_> = (0..100).map(|at| 1000 * at..1000 * (at + 1)).collect();
        let outcome = rank.all_reduce_sum_beside(&mut ones(100_000), &ranges, |parts, sum| {
            for part in parts {
                computed += part.len();
                sum(part);
            }
            Ok(())
        });
        Some((outcome, computed))
    })
    .into_iter()
    .flatten()
    {
        let (outcome, computed): (Result<()>, usize) = outcome;
        assert!(matches!(outcome, Err(Error::PeerClosed { peer: 1, .. })));
        assert_eq!(computed, 100_000);
    }
}

#[test]
fn a_frozen_rank_is_named_at_the_deadline() {
    let options = patience(Duration::from_millis(100));
    for (name, operation) in OPERATIONS {
        let outcomes = spawn(world(4, Transport::Unix, &options), |mut rank| {
            // The frozen rank does nothing but stays connected, since `spawn` returns all ranks.
            let outcome = if rank.rank() == 2 {
                Ok(())
            } else {
                operation(&mut rank)
            };
            (outcome, rank)
        });
        let errors: Vec<Error> = outcomes
            .into_iter()
            .filter_map(|(outcome, _)| outcome.err())
            .collect();
        assert_eq!(errors.len(), 3, "{name}");
        assert!(errors.iter().all(Error::is_peer_loss), "{name}: {errors:?}");
        assert!(
            errors.iter().any(
                |error| matches!(error, Error::DeadlineExceeded { peers, .. } if *peers == [2])
            ),
            "{name}: {errors:?}",
        );
    }
}

#[test]
fn bytes_that_are_lost_end_at_the_deadline() {
    for transport in TRANSPORTS {
        for (name, operation) in OPERATIONS {
            let mut ranks = world(2, transport, &patience(Duration::from_millis(100)));
            ranks[1].wrap_links(|_, link| Faulty::over(link, Fault::Mute(3_000)));
            let outcomes = spawn(ranks, |mut rank| (operation(&mut rank), rank));
            let (outcomes, _connected): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
            // If both wait for each other in the end, either may give up first.
            let gave_up = |rank: usize| matches!(&outcomes[rank], Err(Error::DeadlineExceeded { peers, .. }) if *peers == [1 - rank]);
            assert!(
                gave_up(0) || gave_up(1),
                "{transport:?} {name}: {outcomes:?}"
            );
            assert!(
                outcomes[0].as_ref().is_err_and(Error::is_peer_loss),
                "{transport:?} {name}: {outcomes:?}"
            );
        }
    }
}

/// Returns rank 0 of two, and the socket with which the test plays rank 1.
fn facing_a_bare_socket(abort: &CancellationToken) -> (Communicator, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let links = vec![None, Some(link::unix(near).unwrap())];
    (
        Communicator::over(Box::new(Sockets(links)), 0, 7, &options(), abort),
        far,
    )
}

#[test]
fn an_abort_ends_an_operation_under_way() {
    for (name, operation) in OPERATIONS {
        let abort = CancellationToken::new();
        let (mut rank, mut peer) = facing_a_bare_socket(&abort);
        thread::scope(|scope| {
            let outcome = scope.spawn(move || operation(&mut rank));
            // The rank's header has arrived, so it is in the call.
            peer.read_exact(&mut [0; HEADER_BYTES]).unwrap();
            abort.cancel();
            let error = outcome.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{name}: {error}");
            assert!(error.is_abort() && !error.is_peer_loss());
        });
    }
}

#[test]
fn what_is_no_message_is_not_taken_for_one() {
    let (mut rank, mut peer) = facing_a_bare_socket(&CancellationToken::new());
    peer.write_all(&[b'x'; 100]).unwrap();
    assert!(matches!(
        rank.barrier(),
        Err(Error::Garbled { peer: 1, .. })
    ));
    assert!(
        matches!(rank.barrier(), Err(Error::Broken { .. })),
        "a failed communicator stays closed"
    );
}

#[test]
fn a_stale_generation_is_never_applied() {
    let (mut rank, mut peer) = facing_a_bare_socket(&CancellationToken::new());
    let (mut stale, mut tap) = {
        let (near, far) = UnixStream::pair().unwrap();
        let links = vec![Some(link::unix(near).unwrap()), None];
        (
            Communicator::over(
                Box::new(Sockets(links)),
                1,
                6,
                &options(),
                &CancellationToken::new(),
            ),
            far,
        )
    };
    let mut message = [0; HEADER_BYTES + 4];
    thread::scope(|scope| {
        scope.spawn(move || stale.all_reduce_sum(&mut ones(1)).unwrap_err());
        tap.read_exact(&mut message).unwrap();
        drop(tap);
    });
    peer.write_all(&message).unwrap();
    let error = rank.all_reduce_sum(&mut ones(1)).unwrap_err();
    assert!(
        matches!(error, Error::Mismatch { call, theirs } if (call.generation, theirs.generation) == (7, 6))
    );
}

/// Checks that every rank fails if one calls another operation, and that at least one error is a mismatch.
fn assert_mismatch(odd: Operation, others: Operation) {
    for transport in TRANSPORTS {
        for world_size in [2, 3, 5] {
            let ranks = world(world_size, transport, &options());
            let outcomes = spawn(ranks, |mut rank| {
                if rank.rank() == 1 {
                    odd(&mut rank)
                } else {
                    others(&mut rank)
                }
            });
            assert!(
                outcomes
                    .iter()
                    .any(|outcome| matches!(outcome, Err(Error::Mismatch { .. }))),
                "{outcomes:?}"
            );
            for outcome in outcomes {
                assert!(
                    matches!(
                        outcome,
                        Err(Error::Mismatch { .. } | Error::PeerClosed { .. })
                    ),
                    "{outcome:?}"
                );
            }
        }
    }
}

#[test]
fn different_lengths_do_not_match() {
    assert_mismatch(
        |rank| rank.all_reduce_sum(&mut ones(100_000)),
        |rank| rank.all_reduce_sum(&mut ones(100_001)),
    );
    assert_mismatch(
        |rank| rank.all_reduce_sum(&mut ones(10)),
        |rank| rank.all_reduce_sum(&mut ones(11)),
    );
    assert_mismatch(
        |rank| rank.all_reduce_sum(&mut ones(10)),
        |rank| rank.all_reduce_sum(&mut ones(100_000)),
    );
}

#[test]
fn different_operations_do_not_match() {
    assert_mismatch(Communicator::barrier, |rank| {
        rank.all_reduce_sum(&mut ones(100_000))
    });
    assert_mismatch(
        |rank| rank.all_reduce_sum(&mut ones(2)),
        |rank| rank.all_reduce_sum_f64(&mut [1.0]),
    );
    assert_mismatch(
        |rank| rank.all_gather(&[1]).map(drop),
        Communicator::barrier,
    );
}
