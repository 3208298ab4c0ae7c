//! A [`Call`]: one call of a collective, as one rank sees it.
//!
//! Every message starts with it, so that two ranks that call different operations find out at once, and
//! errors name it. It is neither the payload nor its encoding, which is in `wire`.

use std::fmt;

/// One call of a collective, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The rank that makes the call.
    pub rank: usize,
    /// The generation of the communicator.
    pub generation: u64,
    /// Number of the call on this communicator, from 1.
    pub sequence: u64,
    /// The operation.
    pub op: Op,
    /// Payload bytes of this rank; for a broadcast, 0 until it knows the root's length.
    pub bytes: u64,
}

/// The operation of a call, as far as the ranks must agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Every rank gets the sum over ranks.
    AllReduceSum {
        /// Type of the summed elements.
        element: ElementType,
        /// Algorithm that moves the bytes.
        algorithm: Algorithm,
    },
    /// Every rank gets the bytes of every rank.
    AllGather,
    /// Every rank gets the bytes of one.
    Broadcast {
        /// The rank that has the bytes.
        root: usize,
    },
    /// No rank continues until all have called it.
    Barrier,
    /// Ranks wait for work that they do together elsewhere. Nothing is sent.
    Elsewhere,
}

/// Type of the numbers that an all-reduce sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

/// Algorithm with which an all-reduce moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Direct exchange: every rank sends its whole buffer to every other; one step, for small messages
    /// between few ranks.
    Direct,
    /// Recursive doubling: pairs of ranks add their sums, twice as many ranks each time; for small messages
    /// between many ranks.
    Doubling,
    /// Reduce-scatter and all-gather around the ring: fewest bytes, for large messages.
    Ring,
    /// Reduce-scatter and all-gather in rounds that halve the distance: as few bytes as the ring in fewer steps, for
    /// large messages between many ranks.
    Halving,
    /// Each rank reads the others' numbers in place: for large messages on one host.
    SharedMemory,
}

impl Call {
    /// Returns true if `theirs`, read from `peer`, is the same call made there.
    ///
    /// Lengths must agree only if the result is one buffer that all ranks passed.
    pub(super) fn agrees_with(&self, theirs: &Call, peer: usize) -> bool {
        let lengths_agree = match self.op {
            Op::AllReduceSum { .. } | Op::Barrier | Op::Elsewhere => self.bytes == theirs.bytes,
            Op::AllGather | Op::Broadcast { .. } => true,
        };
        theirs.rank == peer
            && theirs.generation == self.generation
            && theirs.sequence == self.sequence
            && theirs.op == self.op
            && lengths_agree
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            generation,
            sequence,
            op,
            bytes,
        } = self;
        write!(
            f,
            "rank {rank}, generation {generation}, {op} #{sequence} of {bytes} bytes"
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::AllReduceSum { element, algorithm } => {
                let element = match element {
                    ElementType::F32 => "f32",
                    ElementType::F64 => "f64",
                };
                let algorithm = match algorithm {
                    Algorithm::Direct => "direct",
                    Algorithm::Doubling => "doubling",
                    Algorithm::Ring => "ring",
                    Algorithm::Halving => "halving",
                    Algorithm::SharedMemory => "shared memory",
                };
                write!(f, "all-reduce ({element}, {algorithm})")
            }
            Op::AllGather => f.write_str("all-gather"),
            Op::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Op::Barrier => f.write_str("barrier"),
            Op::Elsewhere => f.write_str("wait for work elsewhere, after call"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rank: usize, op: Op, bytes: u64) -> Call {
        Call {
            rank,
            generation: 7,
            sequence: 3,
            op,
            bytes,
        }
    }

    #[test]
    fn an_all_reduce_agrees_on_everything_but_the_rank() {
        let op = Op::AllReduceSum {
            element: ElementType::F32,
            algorithm: Algorithm::Ring,
        };
        let own = call(0, op, 400);
        assert!(own.agrees_with(&call(1, op, 400), 1));
        assert!(!own.agrees_with(&call(1, op, 404), 1), "another length");
        assert!(
            !own.agrees_with(&call(2, op, 400), 1),
            "another rank than the connection's"
        );
        assert!(!own.agrees_with(
            &Call {
                generation: 6,
                ..call(1, op, 400)
            },
            1
        ));
        assert!(!own.agrees_with(
            &Call {
                sequence: 4,
                ..call(1, op, 400)
            },
            1
        ));
        let direct = Op::AllReduceSum {
            element: ElementType::F32,
            algorithm: Algorithm::Direct,
        };
        assert!(
            !own.agrees_with(&call(1, direct, 400), 1),
            "another algorithm"
        );
    }

    #[test]
    fn gathered_and_broadcast_lengths_may_differ() {
        assert!(call(0, Op::AllGather, 5).agrees_with(&call(1, Op::AllGather, 9), 1));
        let op = Op::Broadcast { root: 1 };
        assert!(call(0, op, 0).agrees_with(&call(1, op, 9), 1));
        assert!(!call(0, op, 0).agrees_with(&call(1, Op::Broadcast { root: 0 }, 9), 1));
    }
}
