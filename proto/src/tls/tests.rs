//! Tests of TLS files, and of connections between processes with valid and invalid ones.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;

use super::*;
use crate::connections::Listener;

/// Certificate authority in a folder.
struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

const MEMBER: [ExtendedKeyUsagePurpose; 2] = [
    ExtendedKeyUsagePurpose::ServerAuth,
    ExtendedKeyUsagePurpose::ClientAuth,
];

impl Authority {
    fn make(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "a test's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self {
            dir: dir.to_owned(),
            issuer: Issuer::new(params, key),
        }
    }

    fn params(hosts: &[&str], purposes: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
        let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.extended_key_usages = purposes.to_vec();
        params
    }

    fn issue(&self, name: &str, params: &CertificateParams) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.join(format!("{name}.{end}"));
        fs::write(path("pem"), cert.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        TlsFiles {
            ca: self.dir.join("ca.pem"),
            identity: Some((path("pem"), path("key"))),
        }
    }

    fn member(&self, name: &str) -> TlsFiles {
        self.issue(name, &Self::params(&["127.0.0.1", "localhost"], &MEMBER))
    }

    fn client(&self) -> TlsFiles {
        TlsFiles {
            ca: self.dir.join("ca.pem"),
            identity: None,
        }
    }
}

#[test]
fn options_come_together() {
    let path = |name: &str| Some(PathBuf::from(name));
    assert_eq!(TlsFiles::from_options(None, None, None).unwrap(), None);
    let client = TlsFiles::from_options(path("ca"), None, None).unwrap();
    assert_eq!(client.unwrap().identity, None);
    for (ca, cert, key, said) in [
        (
            path("ca"),
            path("c"),
            None,
            "--tls-cert: expected --tls-key too",
        ),
        (
            path("ca"),
            None,
            path("k"),
            "--tls-key: expected --tls-cert too",
        ),
        (
            None,
            path("c"),
            path("k"),
            "--tls-cert: expected --tls-ca too",
        ),
    ] {
        let error = TlsFiles::from_options(ca, cert, key).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
    let error = Tls::member_from_options(path("ca"), None, None).unwrap_err();
    assert!(error.to_string().contains("--tls-cert and --tls-key"));
}

#[test]
fn an_error_names_the_file_and_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let good = authority.member("good");
    assert!(Tls::open_member(good.clone()).is_ok());
    let (cert, key) = good.identity.clone().unwrap();
    let other = authority.member("other");
    let other_key = other.identity.clone().unwrap().1;
    let foreign = Authority::make(&dir.path().join("foreign")).member("foreign");
    let mut expired = Authority::params(&["localhost"], &MEMBER);
    expired.not_before = date_time_ymd(2000, 1, 1);
    expired.not_after = date_time_ymd(2001, 1, 1);
    let expired = authority.issue("expired", &expired);
    let mut early = Authority::params(&["localhost"], &MEMBER);
    early.not_before = date_time_ymd(2900, 1, 1);
    early.not_after = date_time_ymd(2901, 1, 1);
    let early = authority.issue("early", &early);
    let for_clients = Authority::params(&[], &[ExtendedKeyUsagePurpose::ClientAuth]);
    let for_clients = authority.issue("client", &for_clients);
    assert!(Tls::open(for_clients.clone()).is_ok(), "good for a client");
    let with = |ca: &Path, cert: &Path, key: &Path| TlsFiles {
        ca: ca.to_owned(),
        identity: Some((cert.to_owned(), key.to_owned())),
    };
    let ca = good.ca.clone();
    let absent = dir.path().join("absent.pem");
    fs::write(
        dir.path().join("torn.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA",
    )
    .unwrap();
    for (files, name, wrong) in [
        (with(&absent, &cert, &key), "absent.pem", "cannot read"),
        (with(&ca, &absent, &key), "absent.pem", "cannot read"),
        (with(&key, &cert, &key), "good.key", "no certificate in it"),
        (with(&ca, &key, &key), "good.key", "no certificate in it"),
        (with(&ca, &cert, &cert), "good.pem", "no private key in it"),
        (
            with(&ca, &dir.path().join("torn.pem"), &key),
            "torn.pem",
            "malformed",
        ),
        (
            with(&ca, &cert, &other_key),
            "other.key",
            "does not belong to the certificate",
        ),
        (expired, "expired.pem", "has expired"),
        (early, "early.pem", "not valid yet"),
        (
            TlsFiles {
                ca: ca.clone(),
                ..foreign
            },
            "foreign.pem",
            "not signed by the authority",
        ),
        (for_clients, "client.pem", "serverAuth"),
    ] {
        let error = Tls::open_member(files).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(wrong), "{error}");
    }
}

#[test]
fn renewed_files_are_taken_and_broken_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let files = authority.member("own");
    let (cert, key) = files.identity.clone().unwrap();
    let tls = Tls::open_member(files).unwrap();
    let now = || tls.look(Duration::ZERO).own.clone();
    let first = now();
    assert_eq!(now(), first);
    // Half of the renewal: the key does not belong to the certificate yet.
    let kept = fs::read(&key).unwrap();
    authority.member("own");
    let (new_cert, new_key) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());
    fs::write(&key, kept).unwrap();
    assert_eq!(now(), first, "what is broken is not taken");
    fs::write(&key, new_key).unwrap();
    let second = now();
    assert_ne!(second, first);
    fs::remove_file(&cert).unwrap();
    assert_eq!(now(), second);
    fs::write(&cert, new_cert).unwrap();
    assert_eq!(now(), second);
}

async fn listen(files: TlsFiles, wanted: ClientCertificate) -> (Listener, SocketAddr) {
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tls = Tls::open_member(files).unwrap();
    let listener = Listener::new(tcp, Some((tls, wanted)));
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Connects and has a byte echoed; returns the listener's view of the client.
async fn echo(address: SocketAddr, listener: &mut Listener, files: TlsFiles) -> Option<Peer> {
    let client = async {
        let tls = Tls::open(files).unwrap();
        let config = Arc::clone(&tls.current().client);
        let stream = TcpStream::connect(address).await.unwrap();
        let name = server_name("127.0.0.1").unwrap();
        let mut stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .ok()?;
        stream.write_all(&[7]).await.ok()?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.ok()?;
        Some(byte[0])
    };
    let server = async {
        let mut stream = listener.accept().await;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        stream.write_all(&byte).await.unwrap();
        stream.flush().await.unwrap();
        stream.peer().clone()
    };
    tokio::pin!(client);
    tokio::select! {
        said = &mut client => {
            assert_eq!(said, None);
            None
        }
        peer = server => {
            assert_eq!(client.await, Some(7));
            Some(peer)
        }
    }
}

/// Returns files that trust the server, with a certificate of another authority.
fn forged(dir: &Path, authority: &Authority, foreign: &Authority) -> TlsFiles {
    let both = [authority.client().ca, foreign.client().ca].map(|ca| fs::read(ca).unwrap());
    let ca = dir.join("both.pem");
    fs::write(&ca, both.concat()).unwrap();
    TlsFiles {
        ca,
        ..foreign.member("forged")
    }
}

#[tokio::test]
async fn who_is_of_the_cluster_is_told_by_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let foreign = Authority::make(&dir.path().join("foreign"));
    let for_clients = Authority::params(&[], &[ExtendedKeyUsagePurpose::ClientAuth]);
    let for_clients = authority.issue("client", &for_clients);
    let elsewhere = authority.issue(
        "elsewhere",
        &Authority::params(&["elsewhere.example"], &MEMBER),
    );
    let files = authority.member("server");

    let (mut open, address) = listen(files.clone(), ClientCertificate::Optional).await;
    for (files, member) in [
        (authority.client(), Some(false)),
        (for_clients.clone(), Some(false)),
        (authority.member("peer"), Some(true)),
        (elsewhere.clone(), Some(true)),
        (foreign.client(), None),
    ] {
        let peer = echo(address, &mut open, files.clone()).await;
        assert_eq!(peer.map(|peer| peer.member), member, "{files:?}");
    }
    let forged = forged(dir.path(), &authority, &foreign);
    assert!(echo(address, &mut open, forged.clone()).await.is_none());

    let wanted = ClientCertificate::MemberAt(vec!["127.0.0.1".to_owned()]);
    let (mut closed, address) = listen(files, wanted).await;
    for (files, taken) in [
        (authority.client(), false),
        (for_clients, false),
        (elsewhere, false),
        (forged, false),
        (authority.member("peer"), true),
    ] {
        let peer = echo(address, &mut closed, files.clone()).await;
        assert_eq!(peer.is_some(), taken, "{files:?}");
    }
}

#[tokio::test]
async fn those_who_say_nothing_hold_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let (mut listener, address) =
        listen(authority.member("server"), ClientCertificate::Optional).await;
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&[22, 3]).await.unwrap();
    assert!(
        echo(address, &mut listener, authority.client())
            .await
            .is_some()
    );
}

#[tokio::test]
async fn clients_are_told_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let foreign = Authority::make(&dir.path().join("foreign"));
    let (mut listener, address) =
        listen(authority.member("server"), ClientCertificate::Optional).await;
    let serving = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let dial = async |tls: TlsFiles, address: String| {
        let tls = Tls::open(tls).unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let error = connect(endpoint, &address.into(), Some(&tls))
            .await
            .unwrap_err();
        disagreement(&error).unwrap_or_else(|| crate::failure::chain(&error))
    };
    let said = dial(foreign.client(), address.to_string()).await;
    assert!(said.contains("not signed by the authority in"), "{said}");
    serving.abort();
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream.read_to_end(&mut Vec::new()).await.ok();
    });
    let said = dial(authority.client(), address.to_string()).await;
    assert!(said.contains("does not speak TLS"), "{said}");
    serving.abort();
}

#[tokio::test]
async fn a_client_that_goes_on_sending_still_gets_the_alert() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let foreign = Authority::make(&dir.path().join("foreign"));
    let (mut listener, address) =
        listen(authority.member("server"), ClientCertificate::Optional).await;
    let serving = tokio::spawn(async move { drop(listener.accept().await) });
    let tls = Tls::open(forged(dir.path(), &authority, &foreign)).unwrap();
    for _ in 0..20 {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = tls.agree("127.0.0.1", stream).await.unwrap();
        // All but the first are sent to a connection that has been refused.
        for _ in 0..3 {
            stream.write_all(&[0; 1024]).await.unwrap();
            stream.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let said = stream.read_exact(&mut [0]).await.unwrap_err().to_string();
        assert!(said.contains("received fatal alert"), "{said}");
    }
    serving.abort();
}

#[tokio::test]
async fn those_who_say_nothing_give_up_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::make(dir.path());
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let tls = Tls::open_member(authority.member("server")).unwrap();
    let tls = Some((tls, ClientCertificate::Optional));
    let mut listener = Listener::with(tcp, tls, 1, Duration::from_millis(100));
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&[22, 3]).await.unwrap();
    assert!(
        echo(address, &mut listener, authority.client())
            .await
            .is_some()
    );
}
