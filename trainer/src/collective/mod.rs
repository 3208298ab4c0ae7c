//! Collectives: the operations with which the ranks of one generation sum gradients, share state and wait for
//! each other.
//!
//! A [`Communicator`] is a full mesh of sockets between the ranks of one [`Membership`]. It is blocking, and one
//! thread at a time uses it: the rank's training thread, or the one that sums parts of a buffer
//! [beside](Communicator::all_reduce_sum_beside) the computation of the others. Underneath, every socket is non-blocking and one
//! `poll(2)` waits for all of them, so a rank sends and receives at the same time without a second thread.
//!
//! It is not a rendezvous (the membership is decided elsewhere and passed in), it does not recover (the first
//! error ends the communicator; a new generation gets a new one), and it knows nothing of tensors or devices:
//! it takes numbers in host memory. Ranks prove to each other that they belong to the generation, and use TLS
//! between hosts if the [`Listener`] has it.
//!
//! ```text
//!            ring, world size 4                     one rank's buffer, as segments
//!
//!          rank 0 ────────▶ rank 1               step 0   send [0]   receive [3], add
//!            ▲                 │       rank 0:   step 1   send [3]   receive [2], add
//!            │                 │                 step 2   send [2]   receive [1], add    now [1] is the sum
//!            │                 ▼                 step 3   send [1]   receive [0], keep
//!          rank 3 ◀──────── rank 2               step 4   send [0]   receive [3], keep
//!                                                step 5   send [3]   receive [2], keep   now all of it is
//! ```
//!
//! Costs for one rank, with `N` ranks and `B` bytes of payload (every message also has a 40-byte header):
//!
//! | Operation | Algorithm | Steps | Bytes sent by a rank |
//! |---|---|---|---|
//! | all-reduce, small, fewer than 8 ranks | direct exchange | 1 | `(N−1)·B` |
//! | all-reduce, small | recursive doubling: pairs, then pairs of pairs | `⌊log₂ N⌋`, and 2 more if N is not a power of two | `log₂ N·B` |
//! | [all-reduce](Communicator::all_reduce_sum) of a large [`Buffer`], all ranks on one host | shared memory: each rank sums its column, then copies the others | 3 | 0 |
//! | the same, ranks on `H` hosts, at least one of them with several | shared memory within a host; between hosts, a ring or, from 8 hosts on, halving for each of `C` columns, where `C` is the lowest number of ranks on a host | 3, and those of `H` ranks | `2(H−1)/H·B/C` for a rank with a column, so `2(H−1)/H·B` for a host |
//! | any other large all-reduce, such as [double precision](Communicator::all_reduce_sum_f64), fewer than 8 ranks | ring: reduce-scatter, then all-gather | `2(N−1)` | `2(N−1)/N·B` |
//! | the same, 8 ranks or more | halving: reduce-scatter and all-gather in rounds | `2⌈log₂ N⌉` | `2(N−1)/N·B` |
//! | [all-gather](Communicator::all_gather) | direct exchange | 1 | `(N−1)·B`, `B` its own |
//! | [broadcast](Communicator::broadcast) | chain, pipelined by chunks | `N−1` | `B`; 0 for the last rank of the chain |
//! | [barrier](Communicator::barrier) | the small all-reduce, headers only | 1, or those of recursive doubling | 0 |
//!
//! The ring is Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations"
//! (2009), <https://doi.org/10.1016/j.jpdc.2008.09.002>. Ranks do not wait between its steps: they pass on
//! each chunk as it arrives. A large buffer goes around in blocks, one behind the other, so that a segment
//! that comes back is still in the processor's caches. Halving is [Träff's](https://arxiv.org/abs/2410.14234): a
//! ring's steps are a latency each, and there are too many of them with many ranks.
//!
//! A buffer that is summed in parts costs the sum of its parts. A part is a message of its own, with an algorithm by
//! its own size, except that parts of shared memory always use it.
//!
//! # Invariants
//!
//! - After an all-reduce every rank holds the same bits, whatever the algorithm: direct exchange adds in rank
//!   order on every rank, both ranks of a pair add the same two numbers, and the ring, halving and shared memory
//!   sum each segment or column in one place. The order of additions depends on the place of a number in the
//!   buffer or part that is summed, and on nothing else: not on time, and not on the transport but for shared memory.
//! - An operation returns once the kernel has taken everything it sends: the caller may overwrite its buffer.
//! - A connection belongs to one generation, and each message names its own. A message from another
//!   generation is refused, never applied.
//! - Every wait ends: with bytes, with a closed peer, at a deadline, or by the abort token (within
//!   [`ABORT_LATENCY`]).
//!
//! # Example
//!
//! ```
//! use tokio_util::sync::CancellationToken;
//! use volley_trainer::collective::{Communicator, Options};
//!
//! let abort = CancellationToken::new();
//! let ranks = Communicator::in_process(2, &Options::default(), &abort)?;
//! std::thread::scope(|scope| {
//!     for mut rank in ranks {
//!         scope.spawn(move || {
//!             let mut gradient = rank.buffer(2).expect("both ranks are here");
//!             gradient.copy_from_slice(&[1.0, rank.rank() as f32]);
//!             rank.all_reduce_sum(&mut gradient).expect("both ranks are here");
//!             assert_eq!(*gradient, [2.0, 1.0]);
//!         });
//!     }
//! });
//! # Ok::<(), volley_trainer::collective::Error>(())
//! ```

mod all_reduce;
mod broadcast;
mod buffer;
mod call;
mod communicator;
mod connect;
mod element;
mod endpoint;
mod error;
mod exchange;
mod frame;
mod halving;
mod hosts;
mod link;
mod membership;
mod mesh;
mod readiness;
mod ring;
mod simulated;
mod sockets;
mod tls_link;
mod wire;

#[cfg(test)]
mod tests;

pub use buffer::{Buffer, BufferPart};
pub use call::{Algorithm, Call, ElementType, Op};
pub use communicator::{Communicator, Counters};
pub use endpoint::{Endpoint, Listener, host_id};
pub use error::{Error, Refusal, Result};
pub use membership::{Membership, Options};
pub use readiness::ABORT_LATENCY;
pub use simulated::{Costs, Network, SimulatedRank, simulate};
