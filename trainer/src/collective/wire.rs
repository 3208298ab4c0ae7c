//! The bytes of the protocol, little-endian and of fixed size: three messages to open a connection, and the
//! header of every message after.
//!
//! ```text
//! Hello   magic 8 │ version 4 │ from 4 │ to 4 │ world size 4 │ generation 8 │ group 64 │ nonce 32
//! Reply   magic 8 │ code 4 │ 0 4 │ generation 8 │ nonce 32 │ proof 32
//! Answer  magic 8 │ proof 32
//! header  magic 4 │ op 1 │ element 1 │ algorithm 1 │ 0 1 │ root 4 │ rank 4 │ generation 8 │ sequence 8 │ bytes 8
//! ```
//!
//! Decoding trusts nothing: it returns `None` for bytes that are not exactly such a message.

use bytes::{Buf, BufMut};

use super::call::{Algorithm, Call, ElementType, Op};
use super::connect::{NONCE_BYTES, PROOF_BYTES};
use super::error::Refusal;

#[cfg(target_endian = "big")]
compile_error!("elements travel as they lie in memory, and the protocol is little-endian");

pub(super) const GROUP_BYTES: usize = 64;
pub(super) const HELLO_BYTES: usize = 128;
pub(super) const REPLY_BYTES: usize = 88;
pub(super) const ANSWER_BYTES: usize = 40;
/// Length of a reply without its proof, which covers the bytes before it.
pub(super) const REPLY_HEAD_BYTES: usize = REPLY_BYTES - PROOF_BYTES;
pub(super) const HEADER_BYTES: usize = 40;

const VERSION: u32 = 5;
const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"VLYHELLO");
const REPLY_MAGIC: u64 = u64::from_le_bytes(*b"VLYREPLY");
const ANSWER_MAGIC: u64 = u64::from_le_bytes(*b"VLYPROOF");
const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"VLYM");

/// Refusals by their code, from 1.
const REFUSALS: [Refusal; 5] = [
    Refusal::Version,
    Refusal::Group,
    Refusal::Generation,
    Refusal::Rank,
    Refusal::Duplicate,
];
/// Types of elements by their code, from 1.
const ELEMENTS: [ElementType; 2] = [ElementType::F32, ElementType::F64];
/// Algorithms by their code, from 1.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Direct,
    Algorithm::Ring,
    Algorithm::SharedMemory,
    Algorithm::Doubling,
    Algorithm::Halving,
];

/// Returns the code of one of these.
fn code_of<T: PartialEq>(of: &T, all: &[T]) -> u8 {
    let place = all.iter().position(|one| one == of);
    place.expect("all are listed") as u8 + 1
}

/// Returns the one of these that has a code.
fn with_code<T: Copy>(code: usize, all: &[T]) -> Option<T> {
    all.get(code.checked_sub(1)?).copied()
}

/// The dialler's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// The rank that dials.
    pub(super) from: u32,
    /// The rank that is dialled.
    pub(super) to: u32,
    pub(super) world_size: u32,
    pub(super) generation: u64,
    /// The group's id, padded with zeros.
    pub(super) group: [u8; GROUP_BYTES],
    /// Nonce, fresh for each connection.
    pub(super) nonce: [u8; NONCE_BYTES],
}

impl Hello {
    /// Creates the hello of rank `from` to rank `to`.
    ///
    /// # Panics
    ///
    /// If the group is longer than [`GROUP_BYTES`], which a valid membership rules out.
    pub(super) fn new(
        group: &str,
        generation: u64,
        from: usize,
        to: usize,
        world_size: usize,
    ) -> Self {
        let mut padded = [0; GROUP_BYTES];
        padded[..group.len()].copy_from_slice(group.as_bytes());
        Self {
            version: VERSION,
            from: rank_to_wire(from),
            to: rank_to_wire(to),
            world_size: rank_to_wire(world_size),
            generation,
            group: padded,
            nonce: rand::random(),
        }
    }

    /// Returns the same hello with a fresh nonce, for another connection.
    pub(super) fn anew(&self) -> Self {
        Self {
            nonce: rand::random(),
            ..*self
        }
    }

    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let mut out = &mut bytes[..];
        out.put_u64_le(HELLO_MAGIC);
        out.put_u32_le(self.version);
        out.put_u32_le(self.from);
        out.put_u32_le(self.to);
        out.put_u32_le(self.world_size);
        out.put_u64_le(self.generation);
        out.put_slice(&self.group);
        out.put_slice(&self.nonce);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let mut bytes = &bytes[..];
        if bytes.get_u64_le() != HELLO_MAGIC {
            return None;
        }
        let mut hello = Self {
            version: bytes.get_u32_le(),
            from: bytes.get_u32_le(),
            to: bytes.get_u32_le(),
            world_size: bytes.get_u32_le(),
            generation: bytes.get_u64_le(),
            group: [0; GROUP_BYTES],
            nonce: [0; NONCE_BYTES],
        };
        bytes.copy_to_slice(&mut hello.group);
        bytes.copy_to_slice(&mut hello.nonce);
        Some(hello)
    }
}

/// The dialled rank's answer: a welcome with a proof, or a refusal. `generation` is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) generation: u64,
    pub(super) refusal: Option<Refusal>,
    /// Nonce, fresh for each connection.
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) proof: [u8; PROOF_BYTES],
}

impl Reply {
    pub(super) fn encode(&self) -> [u8; REPLY_BYTES] {
        let code = self
            .refusal
            .map_or(0, |refusal| code_of(&refusal, &REFUSALS));
        let mut bytes = [0; REPLY_BYTES];
        let mut out = &mut bytes[..];
        out.put_u64_le(REPLY_MAGIC);
        out.put_u32_le(code.into());
        out.put_u32_le(0);
        out.put_u64_le(self.generation);
        out.put_slice(&self.nonce);
        out.put_slice(&self.proof);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; REPLY_BYTES]) -> Option<Self> {
        let mut bytes = &bytes[..];
        if bytes.get_u64_le() != REPLY_MAGIC {
            return None;
        }
        let refusal = match bytes.get_u32_le() {
            0 => None,
            code => Some(with_code(code as usize, &REFUSALS)?),
        };
        bytes.advance(4);
        let mut reply = Self {
            generation: bytes.get_u64_le(),
            refusal,
            nonce: [0; NONCE_BYTES],
            proof: [0; PROOF_BYTES],
        };
        bytes.copy_to_slice(&mut reply.nonce);
        bytes.copy_to_slice(&mut reply.proof);
        Some(reply)
    }
}

/// Encodes the dialler's last message: its proof.
pub(super) fn encode_answer(proof: &[u8; PROOF_BYTES]) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    let mut out = &mut bytes[..];
    out.put_u64_le(ANSWER_MAGIC);
    out.put_slice(proof);
    bytes
}

pub(super) fn decode_answer(bytes: &[u8; ANSWER_BYTES]) -> Option<[u8; PROOF_BYTES]> {
    let mut bytes = &bytes[..];
    let mut proof = [0; PROOF_BYTES];
    (bytes.get_u64_le() == ANSWER_MAGIC).then(|| {
        bytes.copy_to_slice(&mut proof);
        proof
    })
}

pub(super) fn encode_header(call: &Call) -> [u8; HEADER_BYTES] {
    let (op, element, algorithm, root) = match call.op {
        Op::AllReduceSum { element, algorithm } => {
            let element = code_of(&element, &ELEMENTS);
            (1, element, code_of(&algorithm, &ALGORITHMS), 0)
        }
        Op::AllGather => (2, 0, 0, 0),
        Op::Broadcast { root } => (3, 0, 0, rank_to_wire(root)),
        Op::Barrier => (4, 0, 0, 0),
        Op::Elsewhere => (5, 0, 0, 0),
    };
    let mut bytes = [0; HEADER_BYTES];
    let mut out = &mut bytes[..];
    out.put_u32_le(HEADER_MAGIC);
    out.put_slice(&[op, element, algorithm, 0]);
    out.put_u32_le(root);
    out.put_u32_le(rank_to_wire(call.rank));
    out.put_u64_le(call.generation);
    out.put_u64_le(call.sequence);
    out.put_u64_le(call.bytes);
    bytes
}

pub(super) fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Option<Call> {
    let mut bytes = &bytes[..];
    if bytes.get_u32_le() != HEADER_MAGIC {
        return None;
    }
    let mut codes = [0; 4];
    bytes.copy_to_slice(&mut codes);
    let [op, element, algorithm, zero] = codes;
    let root = bytes.get_u32_le();
    let op = match (op, element, algorithm, root) {
        (1, element, algorithm, 0) => Op::AllReduceSum {
            element: with_code(element.into(), &ELEMENTS)?,
            algorithm: with_code(algorithm.into(), &ALGORITHMS)?,
        },
        (2, 0, 0, 0) => Op::AllGather,
        (3, 0, 0, root) => Op::Broadcast {
            root: root as usize,
        },
        (4, 0, 0, 0) => Op::Barrier,
        (5, 0, 0, 0) => Op::Elsewhere,
        _ => return None,
    };
    (zero == 0).then(|| Call {
        rank: bytes.get_u32_le() as usize,
        generation: bytes.get_u64_le(),
        sequence: bytes.get_u64_le(),
        op,
        bytes: bytes.get_u64_le(),
    })
}

fn rank_to_wire(rank: usize) -> u32 {
    u32::try_from(rank).expect("a valid membership has fewer than 2^32 ranks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire_and_garbage_does_not() {
        let hello = Hello::new("0198f7c2-train", 7, 3, 1, 5);
        let mut bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        bytes[0] ^= 1;
        assert_eq!(Hello::decode(&bytes), None);
    }

    #[test]
    fn every_reply_survives_the_wire() {
        for refusal in [
            None,
            Some(Refusal::Version),
            Some(Refusal::Group),
            Some(Refusal::Generation),
            Some(Refusal::Rank),
            Some(Refusal::Duplicate),
        ] {
            let reply = Reply {
                generation: 9,
                refusal,
                nonce: [1; NONCE_BYTES],
                proof: [2; PROOF_BYTES],
            };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        assert_eq!(Reply::decode(&[0; REPLY_BYTES]), None);
        let answer = [3; PROOF_BYTES];
        assert_eq!(decode_answer(&encode_answer(&answer)), Some(answer));
        assert_eq!(decode_answer(&[0; ANSWER_BYTES]), None);
    }

    #[test]
    fn every_header_survives_the_wire() {
        let mut ops = vec![
            Op::AllGather,
            Op::Broadcast { root: 4 },
            Op::Barrier,
            Op::Elsewhere,
        ];
        for element in [ElementType::F32, ElementType::F64] {
            use Algorithm::{Direct, Doubling, Halving, Ring, SharedMemory};
            for algorithm in [Direct, Ring, SharedMemory, Doubling, Halving] {
                ops.push(Op::AllReduceSum { element, algorithm });
            }
        }
        for op in ops {
            let call = Call {
                rank: 2,
                generation: 7,
                sequence: 11,
                op,
                bytes: 1 << 40,
            };
            assert_eq!(decode_header(&encode_header(&call)), Some(call));
        }
        assert_eq!(decode_header(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn a_header_with_a_stray_bit_is_none() {
        let op = Op::AllReduceSum {
            element: ElementType::F32,
            algorithm: Algorithm::Ring,
        };
        let bytes = encode_header(&Call {
            rank: 2,
            generation: 7,
            sequence: 11,
            op,
            bytes: 12,
        });
        // Magic, op, element, algorithm, padding, root: every bit there matters.
        for bit in 0..12 * 8 {
            let mut stray = bytes;
            stray[bit / 8] ^= 1 << (bit % 8);
            let decoded = decode_header(&stray);
            assert!(decoded.is_none_or(|call| call.op != op), "bit {bit}");
        }
    }
}
