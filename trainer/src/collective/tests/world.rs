//! Worlds of ranks to run tests in: one thread a rank.

use std::thread;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use volley_proto::address::ListenAddress;

use crate::collective::{Communicator, Endpoint, Listener, Membership, Options, Result};

/// World sizes that a conformance test goes through.
pub(super) const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Tcp,
    Unix,
    InProcess,
}

pub(super) const TRANSPORTS: [Transport; 3] =
    [Transport::Tcp, Transport::Unix, Transport::InProcess];

/// Patient enough for a busy machine: a test that gets here by a deadline has failed.
pub(super) fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(60),
        op_timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

/// A connected world, by rank.
pub(super) fn world(
    world_size: usize,
    transport: Transport,
    options: &Options,
) -> Vec<Communicator> {
    let abort = CancellationToken::new();
    let dir = tempfile::tempdir().unwrap();
    let unix_dir = match transport {
        Transport::InProcess => {
            return Communicator::in_process(world_size, options, &abort).unwrap();
        }
        Transport::Unix => Some(dir.path()),
        Transport::Tcp => None,
    };
    let listeners: Vec<Listener> = (0..world_size)
        .map(|_| Listener::bind(&ListenAddress::loopback(), unix_dir).unwrap())
        .collect();
    let peers = endpoints(&listeners);
    let memberships = (0..world_size)
        .map(|rank| membership(rank, 7, &peers))
        .collect::<Vec<_>>();
    connect_all(listeners, &memberships, options, &abort)
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

pub(super) fn endpoints(listeners: &[Listener]) -> Vec<Endpoint> {
    listeners
        .iter()
        .map(|listener| listener.endpoint().clone())
        .collect()
}

pub(super) fn membership(rank: usize, generation: u64, peers: &[Endpoint]) -> Membership {
    Membership {
        group: "train-1".to_owned(),
        generation,
        rank,
        peers: peers.to_vec(),
    }
}

/// Connects each listener with its membership, all at once.
pub(super) fn connect_all(
    listeners: Vec<Listener>,
    memberships: &[Membership],
    options: &Options,
    abort: &CancellationToken,
) -> Vec<Result<Communicator>> {
    spawn(
        listeners.into_iter().zip(memberships).collect(),
        |(listener, membership)| Communicator::connect(listener, membership, options, abort),
    )
}

/// Runs `body` on one thread for each of `ranks`; what each returned, in their order.
pub(super) fn spawn<T: Send, R: Send>(ranks: Vec<T>, body: impl Fn(T) -> R + Sync) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|rank| scope.spawn(move || body(rank)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}
