//! `volley cluster certs`: an authority and certificates to try TLS with, or for clusters without others.
//!
//! ```text
//!   ca.pem  ──signs──►  HOST.pem    for servers and clients: a process of the cluster on that host
//!   ca.key        └──►  client.pem  for clients: a user's program
//! ```
//!
//! It is not a permanent authority: it neither renews nor revokes certificates.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use chrono::{Datelike, Days, NaiveDate, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::config::Certificates;
use super::report::print;

/// Backdating of the certificates: clocks differ, and certificates are used at once.
const EARLY: Days = Days::new(1);
const VALID: Days = Days::new(365);
/// Names and addresses by which a process that listens on loopback is dialled.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Writes the files, and prints the commands that start a cluster with them.
///
/// # Errors
/// When a file exists already or cannot be written, or a host is not a name or address.
pub(super) fn run(certificates: &Certificates) -> anyhow::Result<()> {
    let Certificates { out, hosts } = certificates;
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let files = make(hosts)?;
    // Check before the first file is written: a partial set is useless.
    for Pem { name, .. } in &files {
        let path = out.join(name);
        ensure!(
            !path.exists(),
            "{} exists already, and certificates are not replaced: give another --out, or remove it",
            path.display()
        );
    }
    for file in &files {
        file.write(out)?;
    }
    print(&commands(out, hosts))?;
    Ok(())
}

/// File to write.
#[derive(Debug)]
struct Pem {
    name: String,
    text: String,
    /// True if only its owner may read the file.
    private: bool,
}

impl Pem {
    fn write(&self, out: &Path) -> anyhow::Result<()> {
        let path = out.join(&self.name);
        let mode = if self.private { 0o600 } else { 0o644 };
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .and_then(|mut file: File| file.write_all(self.text.as_bytes()));
        match written {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{} exists already", path.display())
            }
            written => written.with_context(|| format!("cannot write {}", path.display())),
        }
    }
}

/// Makes an authority, and its certificates for hosts and for a client.
fn make(hosts: &[String]) -> anyhow::Result<Vec<Pem>> {
    // The random name tells two authorities apart.
    let name = format!("Volley development authority {:08x}", rand::random::<u32>());
    let mut authority = params(&[], &name)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let mut files = pair("ca", authority.self_signed(&key)?.pem(), &key);
    let issuer = Issuer::new(authority, key);
    let (server, client) = (
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    );
    let mut issue = |name: &str, names: &[String], purposes: &[ExtendedKeyUsagePurpose]| {
        let mut params = params(names, name)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        files.extend(pair(name, certificate.pem(), &key));
        anyhow::Ok(())
    };
    for (at, host) in hosts.iter().enumerate() {
        let below = host.strip_prefix("*.");
        let name = below.unwrap_or(host);
        let is_host = !host.starts_with('[') && volley_proto::tls::server_name(name).is_ok();
        ensure!(
            is_host,
            "--hosts {host}: expected names or addresses of hosts, with a comma between them"
        );
        ensure!(
            below.is_none_or(|below| below.contains('.')),
            "--hosts {host}: no TLS library takes a wildcard with a single name after it, such as *.{name}.internal"
        );
        let stem = stem(host);
        ensure!(
            !hosts[..at].contains(host) && !["ca", "client"].contains(&stem.as_str()),
            "--hosts {host}: the file {stem}.pem would be written twice"
        );
        let local = LOCAL.iter().copied().filter(|local| local != host);
        let names = std::iter::once(host.as_str()).chain(local);
        let names: Vec<_> = names.map(str::to_owned).collect();
        issue(&stem, &names, &[server.clone(), client.clone()])?;
    }
    issue("client", &[], &[client])?;
    Ok(files)
}

/// Returns the name of a host's files, without the character of a wildcard that shells take for a pattern.
fn stem(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(below) => format!("any.{below}"),
        None => host.to_owned(),
    }
}

fn params(names: &[String], common_name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let today = Utc::now().date_naive();
    // Months and days fit into a byte.
    let midnight = |day: NaiveDate| date_time_ymd(day.year(), day.month() as u8, day.day() as u8);
    params.not_before = midnight(today - EARLY);
    params.not_after = midnight(today + VALID);
    Ok(params)
}

fn pair(name: &str, certificate: String, key: &KeyPair) -> Vec<Pem> {
    vec![
        Pem {
            name: format!("{name}.pem"),
            text: certificate,
            private: false,
        },
        Pem {
            name: format!("{name}.key"),
            text: key.serialize_pem(),
            private: true,
        },
    ]
}

/// Returns the commands that start and use a cluster with the files.
fn commands(out: &Path, hosts: &[String]) -> String {
    let file = |name: &str| -> PathBuf { out.join(name) };
    let options = |host: &str| {
        let stem = stem(host);
        format!(
            "--tls-ca {} --tls-cert {} --tls-key {}",
            file("ca.pem").display(),
            file(&format!("{stem}.pem")).display(),
            file(&format!("{stem}.key")).display()
        )
    };
    let mut text = format!("certificates are in {}\n\n", out.display());
    let first = hosts.first().map_or("localhost", String::as_str);
    text += "On this machine:\n";
    text += &format!("  volley cluster up {}\n\n", options(first));
    text += "On several machines, each with ca.pem and its own two files:\n";
    text += &format!(
        "  volley-scheduler --bind 0.0.0.0:50050 --advertise-host {first} --tokens tokens {}\n",
        options(first)
    );
    for host in hosts {
        text += &format!(
            "  volley-executor --scheduler {first}:50050 --bind 0.0.0.0 --advertise-host {host} --join-token join {}\n",
            options(host)
        );
    }
    text += &format!(
        "\nClients need the authority's certificate alone:\n  volley --scheduler {first}:50050 --token-file token --tls-ca {}\n\n\
         Create tokens with `volley cluster token`: append each printed line to the file `tokens`, and store the \
         executors' token in the file `join`.\n\
         Keep ca.key where no cluster process can read it: anyone who has it can issue certificates.\n",
        file("ca.pem").display()
    );
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustls::pki_types::pem::PemObject;
    use volley_proto::tls::{Tls, TlsFiles, is_for_host};

    use super::*;

    fn certificates(out: &Path, hosts: &[&str]) -> Certificates {
        Certificates {
            out: out.to_owned(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn what_is_made_is_what_processes_take() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("certs");
        let hosts = ["a.example", "10.0.0.1", "*.nodes.example"];
        run(&certificates(&out, &hosts)).unwrap();
        let files = |name: &str| TlsFiles {
            ca: out.join("ca.pem"),
            identity: Some((
                out.join(format!("{name}.pem")),
                out.join(format!("{name}.key")),
            )),
        };
        for host in ["a.example", "10.0.0.1"] {
            Tls::open_member(files(host)).unwrap();
            let key = fs::metadata(out.join(format!("{host}.key"))).unwrap();
            assert_eq!(key.mode() & 0o777, 0o600);
            let pem = fs::read(out.join(format!("{host}.pem"))).unwrap();
            let own = rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
            for name in [host, "localhost", "127.0.0.1", "::1"] {
                assert!(is_for_host(&own, name), "{host} as {name}");
            }
            assert!(!is_for_host(&own, "b.example"));
        }
        Tls::open_member(files("any.nodes.example")).unwrap();
        let pem = fs::read(out.join("any.nodes.example.pem")).unwrap();
        let own = rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
        assert!(is_for_host(&own, "n1.nodes.example") && !is_for_host(&own, "a.b.nodes.example"));
        assert!(Tls::open(files("client")).is_ok());
        assert!(Tls::open_member(files("client")).is_err());
    }

    #[test]
    fn nothing_is_replaced_and_nothing_is_half_made() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b.key"), "kept").unwrap();
        let error = run(&certificates(dir.path(), &["a", "b"])).unwrap_err();
        assert!(error.to_string().contains("b.key exists already"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        for (hosts, wrong) in [
            (&["a b"][..], "--hosts a b"),
            (&["a", "a"][..], "twice"),
            (&["ca"][..], "twice"),
            (&[""][..], "expected names"),
            (&["*.a"][..], "*.a.internal"),
        ] {
            let error = run(&certificates(dir.path(), hosts)).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn the_commands_name_the_files() {
        let text = commands(Path::new("/c"), &["a".to_owned(), "b".to_owned()]);
        for expected in [
            "volley cluster up --tls-ca /c/ca.pem --tls-cert /c/a.pem --tls-key /c/a.key",
            "--advertise-host b --join-token join --tls-ca /c/ca.pem --tls-cert /c/b.pem --tls-key /c/b.key",
            "volley --scheduler a:50050 --token-file token --tls-ca /c/ca.pem",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
