//! Worlds of ranks to run tests in: one thread per rank.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio_util::sync::CancellationToken;
use volley_proto::Secret;
use volley_proto::address::ListenAddress;
use volley_proto::tls::{Tls, TlsFiles};

use crate::collective::{Communicator, Endpoint, Listener, Membership, Options, Result};

/// World sizes of the conformance tests.
pub(super) const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Tcp,
    Tls,
    Unix,
    InProcess,
    /// Unix sockets within each of two hosts, between which ranks alternate, and TCP between the hosts.
    Hosts,
}

pub(super) const TRANSPORTS: [Transport; 5] = [
    Transport::Tcp,
    Transport::Tls,
    Transport::Unix,
    Transport::InProcess,
    Transport::Hosts,
];

/// Returns timeouts long enough for a busy machine: a test that reaches one of them has failed.
pub(super) fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(60),
        op_timeout: Duration::from_secs(60),
        ..Options::default()
    }
}

/// Creates a connected world, by rank.
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
        Transport::Unix | Transport::Hosts => Some(dir.path()),
        Transport::Tcp | Transport::Tls => None,
    };
    let tls = matches!(transport, Transport::Tls).then(|| certificates(dir.path(), "127.0.0.1"));
    let listener = || Listener::bind(&ListenAddress::loopback(), unix_dir).unwrap();
    let listeners: Vec<Listener> = (0..world_size)
        .map(|_| listener().with_tls(tls.clone()))
        .collect();
    let mut peers = endpoints(&listeners);
    if matches!(transport, Transport::Hosts) {
        for (rank, peer) in peers.iter_mut().enumerate() {
            peer.host_id = format!("host {}", rank % 2);
        }
    }
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
        secret: Secret::from_bytes(&[7; Secret::BYTES]).unwrap(),
    }
}

/// Creates a certificate authority and a certificate signed by it for a host.
pub(super) fn certificates(dir: &Path, host: &str) -> Tls {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(authority, ca_key);
    let mut params = CertificateParams::new([host.to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    let write = |name: &str, pem: String| {
        let path = dir.join(name);
        fs::write(&path, pem).unwrap();
        path
    };
    let files = TlsFiles {
        ca: write("ca.pem", ca.pem()),
        identity: Some((
            write("own.pem", cert.pem()),
            write("own.key", key.serialize_pem()),
        )),
    };
    Tls::open_member(files).unwrap()
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

/// Runs `body` on one thread for each of `ranks`; returns the results in their order.
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
