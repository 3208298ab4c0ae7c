//! Fuzz targets for the bytes that peers and strangers send to a rank.

use std::io::Write;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use volley_proto::Secret;
use volley_proto::damage::damaged;

use crate::allocations::bounded;
use crate::collective::buffer::Offered;
use crate::collective::call::{Algorithm, Call, ElementType, Op};
use crate::collective::connect::{NONCE_BYTES, PROOF_BYTES};
use crate::collective::sockets::Sockets;
use crate::collective::wire::{
    ANSWER_BYTES, HEADER_BYTES, HELLO_BYTES, Hello, REPLY_BYTES, Reply, decode_answer,
    decode_header, encode_answer, encode_header,
};
use crate::collective::{Communicator, Endpoint, Membership, Options, link};

/// Returns the first `N` bytes, if there are as many.
fn array<const N: usize>(bytes: &[u8]) -> Option<&[u8; N]> {
    bytes.first_chunk()
}

fn decode(bytes: &[u8]) {
    if let Some(hello) = array::<HELLO_BYTES>(bytes).and_then(Hello::decode) {
        // Encoding a decoded message gives the same bytes.
        assert_eq!(bytes[..HELLO_BYTES], hello.encode());
    }
    if let Some(reply) = array::<REPLY_BYTES>(bytes).and_then(Reply::decode) {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
    if let Some(proof) = array::<ANSWER_BYTES>(bytes).and_then(decode_answer) {
        assert_eq!(bytes[..ANSWER_BYTES], encode_answer(&proof));
    }
    if let Some(call) = array::<HEADER_BYTES>(bytes).and_then(decode_header) {
        assert_eq!(bytes[..HEADER_BYTES], encode_header(&call));
        let _ = call.to_string();
    }
}

fn header(op: Op, bytes: u64) -> Vec<u8> {
    let (rank, generation, sequence) = (1, 0, 1);
    let call = Call {
        rank,
        generation,
        sequence,
        op,
        bytes,
    };
    encode_header(&call).to_vec()
}

fn frames() -> Vec<Vec<u8>> {
    let sum = Op::AllReduceSum {
        element: ElementType::F64,
        algorithm: Algorithm::Direct,
    };
    let whole = |op, payload: &[u8]| [header(op, payload.len() as u64), payload.to_vec()].concat();
    vec![
        whole(Op::Barrier, b""),
        whole(Op::AllGather, b"what the peer has"),
        whole(Op::Broadcast { root: 1 }, b"what the root has"),
        whole(sum, &1.5_f64.to_le_bytes()),
        // Garbage lengths, and a payload that ends too early.
        [header(Op::AllGather, u64::MAX), vec![7; 100]].concat(),
        [header(Op::Broadcast { root: 1 }, 1 << 62), vec![7; 100]].concat(),
    ]
}

#[test]
fn handshakes_and_headers() {
    let hello = Hello::new("0198f7c2-train", 7, 3, 1, 5).encode();
    let refusal = None;
    let reply = Reply {
        generation: 7,
        refusal,
        nonce: [3; NONCE_BYTES],
        proof: [5; PROOF_BYTES],
    };
    let samples = [
        hello.to_vec(),
        reply.encode().to_vec(),
        encode_answer(&reply.proof).to_vec(),
        frames().remove(0),
    ];
    for (sample, seed) in samples
        .iter()
        .flat_map(|s| (0..2_000).map(move |seed| (s, seed)))
    {
        bounded(&damaged(sample, seed), decode);
    }
    bolero::check!(name = "handshake")
        .with_iterations(20_000)
        .with_max_len(2 * HELLO_BYTES)
        .for_each(|bytes| bounded(bytes, decode));
}

/// Runs one rank of two whose peer sends these bytes and hangs up.
fn hears(bytes: &[u8]) {
    let options = Options {
        op_timeout: Duration::from_secs(20),
        ..Options::default()
    };
    let calls: [fn(&mut Communicator); 4] = [
        |rank| drop(rank.barrier()),
        |rank| drop(rank.all_gather(b"own")),
        |rank| drop(rank.broadcast(1, &mut Vec::new())),
        |rank| drop(rank.all_reduce_sum_f64(&mut [1.0])),
    ];
    for call in calls {
        let (near, mut far) = link::in_process().unwrap();
        // Writes as many bytes as the socket takes: an unread peer is tested elsewhere.
        let _ = far.write(bytes);
        drop(far);
        let links = vec![None, Some(near)];
        let abort = CancellationToken::new();
        call(&mut Communicator::over(
            Box::new(Sockets(links)),
            0,
            0,
            &options,
            &abort,
        ));
    }
}

#[test]
fn messages() {
    for (sample, seed) in frames()
        .iter()
        .flat_map(|s| (0..200).map(move |seed| (s, seed)))
    {
        bounded(&damaged(sample, seed), hears);
    }
    frames().iter().for_each(|frame| bounded(frame, hears));
    bolero::check!(name = "message")
        .with_iterations(500)
        .with_max_len(400)
        .for_each(|bytes| bounded(bytes, hears));
}

#[test]
fn places_of_memory() {
    let own = Offered::new(3).unwrap();
    let place = own.place().unwrap();
    let open = |bytes: &[u8]| drop(own.open(bytes));
    (0..2_000).for_each(|seed| bounded(&damaged(&place, seed), open));
}

#[test]
fn memberships() {
    let endpoint = Endpoint {
        host_id: "a".to_owned(),
        tcp: Some("127.0.0.1:7".to_owned()),
        unix: Some("/run/volley/a".into()),
    };
    let membership = Membership {
        group: "g".to_owned(),
        generation: 7,
        rank: 1,
        peers: vec![endpoint; 2],
        secret: Secret::random(),
    };
    let sample = serde_json::to_vec(&membership).unwrap();
    let read = |bytes: &[u8]| {
        if let Ok(membership) = serde_json::from_slice::<Membership>(bytes) {
            let _ = membership.validate();
        }
    };
    (0..2_000).for_each(|seed| bounded(&damaged(&sample, seed), read));
    bolero::check!(name = "membership")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, read));
}
