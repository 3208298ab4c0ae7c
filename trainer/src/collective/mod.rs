//! Collectives: how the ranks of one generation add up gradients, share state and wait for each other.
//!
//! A [`Communicator`] is a full mesh of sockets between the ranks of one [`Membership`]. It is
//! blocking and single-threaded: one OS thread a rank, the one that trains, calls it. Underneath,
//! every socket is non-blocking and one `poll(2)` waits for all of them, so a rank sends and
//! receives at once without a second thread.
//!
//! It is not a rendezvous (who is in the mesh is decided elsewhere and passed in), it does not
//! recover (the first error ends the communicator; a new generation gets a new one), and it knows
//! nothing of tensors or devices: it takes numbers in host memory. Ranks prove to each other that they
//! are of the generation, and between hosts speak TLS where the [`Listener`] is given it.
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
//! What each costs one rank, with `N` ranks and `B` bytes of payload (every message has a
//! 40-byte header besides):
//!
//! | Operation | Algorithm | Steps | Bytes sent by a rank |
//! |---|---|---|---|
//! | all-reduce, small, fewer than 8 ranks | direct exchange | 1 | `(N−1)·B` |
//! | all-reduce, small | recursive doubling: pairs, then pairs of pairs | `⌈log₂ N⌉`, and 2 more where N is no power of two | `log₂ N·B` |
//! | [all-reduce](Communicator::all_reduce_sum) of a large [`Buffer`], all ranks on one host | shared memory: everyone sums its column, then copies the others | 3 | 0 |
//! | the same, ranks on `H` hosts of which one has several | shared memory within a host; between, a ring for each of `C` columns, `C` the ranks of the host with the fewest | 3 and `2(H−1)` | `2(H−1)/H·B/C` of those that have a column, so `2(H−1)/H·B` of a host |
//! | any other large all-reduce, as in [double precision](Communicator::all_reduce_sum_f64) | ring: reduce-scatter, then all-gather | `2(N−1)` | `2(N−1)/N·B` |
//! | [all-gather](Communicator::all_gather) | direct exchange | 1 | `(N−1)·B`, `B` its own |
//! | [broadcast](Communicator::broadcast) | chain, pipelined by chunks | `N−1` | `B`; the last in the chain nothing |
//! | [barrier](Communicator::barrier) | as the small all-reduce, of headers alone | 1 or `⌈log₂ N⌉` | 0 |
//!
//! The ring is Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations" (2009), <https://doi.org/10.1016/j.jpdc.2008.09.002>. Its steps are not separated
//! by a wait: what arrives is passed on chunk by chunk. A large buffer goes around in blocks, one
//! behind the other, so that what comes back is still in the processor's caches.
//!
//! # Invariants
//!
//! - After an all-reduce every rank holds the same bits, whatever the algorithm: direct exchange
//!   adds in the order of ranks on every rank, both ranks of a pair add the same two numbers, and in the ring and in shared
//!   memory each segment or column is summed in one place.
//! - When an operation returns, all it had to send was handed to the kernel: the caller may
//!   overwrite its buffer.
//! - A connection belongs to one generation, and each message names its own. What comes from
//!   another is refused, never applied.
//! - Every wait ends: with bytes, with a closed peer, at a deadline, or by the abort token
//!   (within [`ABORT_LATENCY`]).
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
mod hosts;
mod link;
mod membership;
mod mesh;
mod readiness;
mod ring;
mod tls_link;
mod wire;

#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use call::{Algorithm, Call, ElementType, Op};
pub use communicator::{Communicator, Counters};
pub use endpoint::{Endpoint, Listener, host_id};
pub use error::{Error, Refusal, Result};
pub use membership::{Membership, Options};
pub use readiness::ABORT_LATENCY;
