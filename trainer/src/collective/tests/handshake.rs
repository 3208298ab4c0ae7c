//! Tests of admission to a mesh.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio_util::sync::CancellationToken;
use volley_proto::Secret;
use volley_proto::address::ListenAddress;

use super::world::{certificates, connect_all, endpoints, membership, options, spawn};
#[cfg(target_os = "linux")]
use crate::collective::connect;
use crate::collective::wire::{ANSWER_BYTES, HELLO_BYTES, Hello, REPLY_BYTES, Reply};
use crate::collective::{
    Communicator, Endpoint, Error, Listener, Membership, Options, Refusal, Result,
};

fn listen() -> Listener {
    Listener::bind(&ListenAddress::loopback(), None).unwrap()
}

fn connect(listener: Listener, membership: &Membership) -> Result<Communicator> {
    Communicator::connect(listener, membership, &options(), &CancellationToken::new())
}

/// Returns the send buffer sizes, in bytes, of both ends of a TCP connection.
#[cfg(target_os = "linux")]
fn send_buffers(host_ids: [&str; 2]) -> [usize; 2] {
    let listeners = vec![listen(), listen()];
    let mut peers = endpoints(&listeners);
    for (peer, host_id) in peers.iter_mut().zip(host_ids) {
        peer.host_id = host_id.to_owned();
    }
    let ranks = listeners.into_iter().enumerate().collect();
    let buffers = spawn(ranks, |(rank, listener)| {
        let abort = CancellationToken::new();
        let links = connect::mesh(listener, &membership(rank, 7, &peers), &options(), &abort);
        let link = links.unwrap().into_iter().flatten().next().unwrap();
        SockRef::from(&link).send_buffer_size().unwrap()
    });
    [buffers[0], buffers[1]]
}

/// Linux only: other kernels have other defaults.
#[cfg(target_os = "linux")]
#[test]
fn little_is_on_its_way_within_a_host_and_more_between_hosts() {
    let within = send_buffers(["a", "a"]);
    let between = send_buffers(["a", "b"]);
    for (within, between) in within.into_iter().zip(between) {
        assert!(within < between, "{within} bytes, and {between}");
    }
}

fn assert_sums_to_three(ranks: Vec<Communicator>) {
    spawn(ranks, |mut rank| {
        let mut sum = [1.0 + rank.rank() as f64];
        rank.all_reduce_sum_f64(&mut sum).unwrap();
        assert_eq!(sum, [3.0]);
    });
}

#[test]
fn a_stale_rank_is_refused_and_the_right_one_admitted() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let [first, second] = listeners.try_into().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        let strangers = [
            (membership(1, 6, &peers), Refusal::Generation),
            (membership(1, 8, &peers), Refusal::Generation),
            (
                Membership {
                    group: "train-2".to_owned(),
                    ..membership(1, 7, &peers)
                },
                Refusal::Group,
            ),
            (
                membership(1, 7, &[peers.clone(), peers.clone()].concat()),
                Refusal::Rank,
            ),
        ];
        for (stranger, expected) in strangers {
            let error = connect(listen(), &stranger).unwrap_err();
            assert!(
                matches!(error, Error::ConnectRefused { peer: 0, refusal, .. } if refusal == expected),
                "{error}",
            );
            assert!(error.is_peer_loss());
        }
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        assert_sums_to_three(vec![waiting.join().unwrap().unwrap(), second]);
    });
}

#[test]
fn strangers_hold_up_nobody() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let address = peers[0].tcp.clone().unwrap();
    let [first, second] = listeners.try_into().unwrap();
    let _silent = TcpStream::connect(&address).unwrap();
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(b"VLYHELLO").unwrap();
    let mut loud = TcpStream::connect(&address).unwrap();
    loud.write_all(&[b'x'; HELLO_BYTES]).unwrap();
    let ranks = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        // The garbage was read and its sender dropped, without an answer.
        assert_eq!(loud.read(&mut [0; 1]).unwrap(), 0);
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        vec![waiting.join().unwrap().unwrap(), second]
    });
    assert_sums_to_three(ranks);
}

/// Starts a proxy that records the dialler's messages of the greeting.
fn record(to: &str) -> (String, thread::JoinHandle<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut far = TcpStream::connect(to).unwrap();
    let recording = thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut said = vec![0; HELLO_BYTES + ANSWER_BYTES];
        let (hello, answer) = said.split_at_mut(HELLO_BYTES);
        near.read_exact(hello).unwrap();
        far.write_all(hello).unwrap();
        let mut reply = [0; REPLY_BYTES];
        far.read_exact(&mut reply).unwrap();
        near.write_all(&reply).unwrap();
        near.read_exact(answer).unwrap();
        said
    });
    (address, recording)
}

#[test]
fn a_recorded_greeting_proves_nothing_on_another_connection() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let [first, second] = listeners.try_into().unwrap();
    let address = peers[0].tcp.clone().unwrap();
    let ranks = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        let (recorder, recording) = record(&address);
        let mut through = peers.clone();
        through[0].tcp = Some(recorder);
        // The proxy withholds the answer and ends the connection, so the acceptor does not link this rank.
        drop(connect(listen(), &membership(1, 7, &through)).unwrap());
        let said = recording.join().unwrap();
        let mut replay = TcpStream::connect(&address).unwrap();
        replay.write_all(&said).unwrap();
        let mut reply = [0; REPLY_BYTES];
        replay.read_exact(&mut reply).unwrap();
        let reply = Reply::decode(&reply).unwrap();
        assert_eq!(reply.refusal, None, "the hello is one of this generation");
        let dropped = replay.read(&mut [0; 1]);
        assert!(matches!(dropped, Ok(0) | Err(_)), "{dropped:?}");
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        vec![waiting.join().unwrap().unwrap(), second]
    });
    assert_sums_to_three(ranks);
}

#[test]
fn who_does_not_know_the_secret_is_neither_linked_nor_believed() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let [first, second] = listeners.try_into().unwrap();
    let forger = Membership {
        secret: Secret::random(),
        ..membership(1, 7, &peers)
    };
    let ranks = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        let options = Options {
            connect_timeout: Duration::from_millis(300),
            ..options()
        };
        let forged = Communicator::connect(listen(), &forger, &options, &CancellationToken::new());
        let said = match forged {
            Err(Error::ConnectDeadline { source, .. }) => source.unwrap().to_string(),
            other => panic!("{other:?}"),
        };
        assert!(said.contains("does not prove"), "{said}");
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        vec![waiting.join().unwrap().unwrap(), second]
    });
    assert_sums_to_three(ranks);
}

#[test]
fn more_strangers_than_there_is_room_for_keep_nobody_out() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let address = peers[0].tcp.clone().unwrap();
    let [first, second] = listeners.try_into().unwrap();
    let hello = Hello::new("train-1", 7, 1, 0, 2).encode();
    let ranks = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        // Strangers say who they would be, and never prove it.
        let strangers: Vec<TcpStream> = (0..400)
            .map(|_| {
                let mut stranger = TcpStream::connect(&address).unwrap();
                // The first ones are already dropped.
                stranger.write_all(&hello).ok();
                stranger
            })
            .collect();
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        drop(strangers);
        vec![waiting.join().unwrap().unwrap(), second]
    });
    assert_sums_to_three(ranks);
}

#[test]
fn over_tls_only_who_has_the_certificate_of_its_host_is_linked() {
    let dir = tempfile::tempdir().unwrap();
    let [own, foreign, elsewhere] = ["own", "foreign", "elsewhere"].map(|name| {
        let dir = dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let host = if name == "elsewhere" {
            "b.example"
        } else {
            "127.0.0.1"
        };
        certificates(&dir, host)
    });
    let listen = || listen().with_tls(Some(own.clone()));
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let [first, second] = listeners.try_into().unwrap();
    let ranks = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(first, &membership(0, 7, &peers)));
        for tls in [None, Some(foreign), Some(elsewhere)] {
            let options = Options {
                connect_timeout: Duration::from_millis(300),
                ..options()
            };
            let stranger = Listener::bind(&ListenAddress::loopback(), None);
            let stranger = stranger.unwrap().with_tls(tls.clone());
            let refused = Communicator::connect(
                stranger,
                &membership(1, 7, &peers),
                &options,
                &CancellationToken::new(),
            );
            assert!(
                matches!(refused, Err(Error::ConnectDeadline { .. })),
                "{tls:?}: {refused:?}"
            );
        }
        let second = connect(second, &membership(1, 7, &peers)).unwrap();
        vec![waiting.join().unwrap().unwrap(), second]
    });
    assert_sums_to_three(ranks);
}

#[test]
fn the_ranks_that_did_not_come_are_named() {
    let listeners: Vec<Listener> = (0..4).map(|_| listen()).collect();
    let peers = endpoints(&listeners);
    let [zero, _one, two, three] = listeners.try_into().unwrap();
    // One peer's listener stays open without answering, the other is gone.
    drop(three);
    let options = Options {
        connect_timeout: Duration::from_millis(300),
        ..options()
    };
    let memberships = [membership(0, 7, &peers), membership(2, 7, &peers)];
    for outcome in connect_all(
        vec![zero, two],
        &memberships,
        &options,
        &CancellationToken::new(),
    ) {
        let error = outcome.unwrap_err();
        assert!(error.is_peer_loss());
        assert!(
            matches!(&error, Error::ConnectDeadline { missing, .. } if *missing == [1, 3]),
            "{error}"
        );
    }
}

#[test]
fn a_failure_to_dial_is_the_source_of_the_deadline() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let [gone, dialling] = listeners.try_into().unwrap();
    drop(gone);
    let options = Options {
        connect_timeout: Duration::from_millis(100),
        ..options()
    };
    let error = Communicator::connect(
        dialling,
        &membership(1, 7, &peers),
        &options,
        &CancellationToken::new(),
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            Error::ConnectDeadline {
                source: Some(_),
                ..
            }
        ),
        "{error:?}"
    );
}

/// Peers may stream their shards for an hour before they answer; here nobody listens at the peer's address.
#[test]
fn a_peer_that_is_not_reached_is_not_waited_for_as_one_that_is_busy() {
    let listeners = vec![listen(), listen(), listen()];
    let peers = endpoints(&listeners);
    let [gone, _busy, dialling] = listeners.try_into().unwrap();
    drop(gone);
    let options = Options {
        op_timeout: Duration::from_millis(100),
        ..options()
    };
    let dialling = Communicator::connect(
        dialling,
        &membership(2, 7, &peers),
        &options,
        &CancellationToken::new(),
    );
    let error = dialling.unwrap_err();
    assert!(error.is_peer_loss());
    let named = matches!(&error, Error::ConnectDeadline { missing, .. } if *missing == [0]);
    assert!(named, "{error:?}");
}

#[test]
fn an_abort_ends_connecting() {
    let listeners = vec![listen(), listen()];
    let peers = endpoints(&listeners);
    let abort = CancellationToken::new();
    thread::scope(|scope| {
        let outcomes = scope.spawn(|| {
            let lonely = listeners.into_iter().skip(1).collect();
            connect_all(lonely, &[membership(1, 7, &peers)], &options(), &abort)
        });
        abort.cancel();
        let error = outcomes.join().unwrap().remove(0).unwrap_err();
        assert!(
            matches!(
                error,
                Error::ConnectAborted {
                    rank: 1,
                    generation: 7
                }
            ),
            "{error}"
        );
    });
}

#[test]
fn a_socket_file_out_of_sight_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let listeners: Vec<Listener> = (0..2)
        .map(|_| Listener::bind(&ListenAddress::loopback(), Some(dir.path())).unwrap())
        .collect();
    // Imitates two containers: one kernel, two file systems.
    let peers: Vec<Endpoint> = endpoints(&listeners)
        .into_iter()
        .map(|endpoint| Endpoint {
            unix: Some(PathBuf::from("/nonexistent/socket")),
            ..endpoint
        })
        .collect();
    let memberships = [membership(0, 7, &peers), membership(1, 7, &peers)];
    let ranks = connect_all(
        listeners,
        &memberships,
        &options(),
        &CancellationToken::new(),
    );
    assert_sums_to_three(ranks.into_iter().map(Result::unwrap).collect());
}

#[test]
fn a_membership_that_contradicts_itself_is_invalid() {
    let peers = [listen().endpoint().clone()];
    for wrong in [
        membership(1, 7, &peers),
        membership(0, 7, &[]),
        Membership {
            group: "g".repeat(65),
            ..membership(0, 7, &peers)
        },
    ] {
        assert!(matches!(
            connect(listen(), &wrong),
            Err(Error::InvalidMembership { .. })
        ));
    }
    let alone = connect(listen(), &membership(0, 7, &peers)).unwrap();
    assert_eq!(
        (alone.rank(), alone.world_size(), alone.generation()),
        (0, 1, 7)
    );
}
