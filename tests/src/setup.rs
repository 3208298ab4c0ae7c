//! The setup of a test cluster: its size, its hosts and how they are dialled, its model store, and its security.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use volley_proto::access::{Role, Token};

use crate::{Hosts, binary};

/// Port of a scheduler that has a host for itself.
pub(crate) const PORT: u16 = 50_050;
const LOOPBACK: &str = "127.0.0.1";

/// Setup of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Number of executors of one slot each.
    pub executors: usize,
    /// Further arguments of the scheduler.
    pub scheduler_args: Vec<String>,
    /// Further arguments of every executor.
    pub executor_args: Vec<String>,
    /// True if queries have stages however little they read.
    pub always_in_stages: bool,
    /// Model store, if it is not a folder of the cluster's.
    pub remote_store: Option<RemoteStore>,
    /// Hosts that the cluster is spread over; it is on loopback without them.
    pub spread: Option<Spread>,
    /// Folder of certificates as `volley cluster certs` makes it, for `127.0.0.1` or for the hosts as they are
    /// dialled. With it, TLS is spoken.
    pub certs: Option<PathBuf>,
    /// True for work folders with names too long for a Unix socket in them, so that ranks use TCP.
    pub long_names: bool,
    /// Token of the test, if the scheduler is given a file of tokens.
    pub token: Option<Token>,
    /// True for two schedulers on one record, of which the second stands by.
    pub pair: bool,
    /// Log filter of the scheduler, if it is not the default.
    pub log: Option<&'static str>,
}

impl Setup {
    /// Checks whether the scheduler makes its own tokens.
    pub(crate) fn makes_tokens(&self) -> bool {
        let other = ["--tokens", "--insecure"];
        let listens_beyond = self.spread.is_some();
        !listens_beyond
            && !self
                .scheduler_args
                .iter()
                .any(|argument| other.contains(&argument.as_str()))
    }

    /// Returns the options by which a process of the cluster on this host speaks TLS, or permits itself not to.
    pub(crate) fn tls(&self, host: &str) -> Vec<OsString> {
        let Some(certs) = &self.certs else {
            // The hosts belong to the test.
            return Vec::from_iter(self.spread.as_ref().map(|_| "--insecure".into()));
        };
        let host = match &self.spread {
            None => LOOPBACK.to_owned(),
            Some(spread) => spread.advertised(host),
        };
        let own = [
            "--tls-cert".into(),
            certs.join(format!("{host}.pem")).into(),
            "--tls-key".into(),
            certs.join(format!("{host}.key")).into(),
        ];
        self.client_tls().into_iter().chain(own).collect()
    }

    /// Returns the options by which a client speaks TLS, if it does.
    pub(crate) fn client_tls(&self) -> Vec<OsString> {
        let options = |certs: &PathBuf| ["--tls-ca".into(), certs.join("ca.pem").into()];
        self.certs.iter().flat_map(options).collect()
    }

    /// Returns the environment of the cluster's processes.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let remote = self.remote_store.as_ref();
        remote.map_or_else(Vec::new, |remote| remote.environment.clone())
    }

    /// Returns the same setup with TLS and tokens, whose files are put into this folder. The test is an administrator.
    ///
    /// # Panics
    /// When the certificates cannot be made.
    pub fn secured(self, dir: &Path) -> Self {
        let hosts = match &self.spread {
            None => vec![LOOPBACK.to_owned()],
            Some(spread) => Spread::NAMES.map(|host| spread.advertised(host)).to_vec(),
        };
        let certs = certificates(&hosts, &dir.join("certs"));
        let [own, executors] = [(); 2].map(|()| Token::generate());
        let [tokens, join] = ["tokens", "join-token"].map(|name| dir.join(name));
        let line =
            |name: &str, role: Role, token: &Token| format!("{name} {role} {}\n", token.hash());
        let lines = [
            line("test", Role::Administer, &own),
            line("executors", Role::Executor, &executors),
        ];
        fs::write(&tokens, lines.concat()).expect("a file in the test's folder");
        fs::write(&join, executors.reveal()).expect("a file in the test's folder");
        let with = |args: &[String], option: &str, file: &Path| {
            [args, &[option.to_owned(), file.display().to_string()]].concat()
        };
        Self {
            scheduler_args: with(&self.scheduler_args, "--tokens", &tokens),
            executor_args: with(&self.executor_args, "--join-token", &join),
            certs: Some(certs),
            token: Some(own),
            ..self
        }
    }
}

/// Model store that is reached over a network.
#[derive(Debug, Clone)]
pub struct RemoteStore {
    /// URL of the store.
    pub url: String,
    /// Folder that it serves.
    pub dir: PathBuf,
    /// Environment of processes that use it.
    pub environment: Vec<(&'static str, String)>,
}

/// Cluster over hosts: the scheduler on `a`, executors on `b` and `c` by turns, clients on `d`, and there the second one of a
/// pair of schedulers.
#[derive(Debug, Clone)]
pub struct Spread {
    /// Hosts of the cluster.
    pub hosts: Arc<Hosts>,
    /// Form in which processes dial each other.
    pub dialled: Dialled,
}

/// Form of a host's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialled {
    /// Their names.
    Name,
    /// Their IPv4 addresses.
    Ipv4,
    /// Their IPv6 addresses.
    Ipv6,
}

impl Spread {
    pub(crate) const SCHEDULER: &str = "a";
    pub(crate) const CLIENT: &str = "d";
    /// Hosts of a pair of schedulers.
    pub(crate) const SCHEDULERS: [&str; 2] = [Self::SCHEDULER, Self::CLIENT];

    /// Names of the hosts that are needed.
    pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    /// Returns the host of an executor.
    pub fn host(executor: usize) -> &'static str {
        ["b", "c"][executor % 2]
    }

    /// Returns the address by which a host is dialled.
    pub fn advertised(&self, host: &str) -> String {
        match self.dialled {
            Dialled::Name => host.to_owned(),
            Dialled::Ipv4 => self.hosts.ipv4(host).to_string(),
            Dialled::Ipv6 => self.hosts.ipv6(host).to_string(),
        }
    }

    /// Returns arguments that make a host's process listen everywhere and be dialled by others; `port` follows the
    /// address.
    pub(crate) fn listen(&self, host: &str, port: &str) -> [String; 4] {
        let bind = match self.dialled {
            Dialled::Ipv6 if port.is_empty() => "::".to_owned(),
            Dialled::Ipv6 => format!("[::]{port}"),
            Dialled::Name | Dialled::Ipv4 => format!("0.0.0.0{port}"),
        };
        [
            "--bind".to_owned(),
            bind,
            "--advertise-host".to_owned(),
            self.advertised(host),
        ]
    }

    /// Returns the address of a scheduler, by its number, as processes dial it.
    pub(crate) fn scheduler(&self, number: usize) -> String {
        let host = self.advertised(Self::SCHEDULERS[number]);
        match self.dialled {
            Dialled::Ipv6 => format!("[{host}]:{PORT}"),
            Dialled::Name | Dialled::Ipv4 => format!("{host}:{PORT}"),
        }
    }
}

/// Differences of one executor from the others.
#[derive(Debug, Clone, Default)]
pub struct ExecutorSetup {
    /// Program, if it is not `volley-executor`.
    pub program: Option<String>,
    /// Address at which this executor reaches the scheduler, if it differs.
    pub scheduler: Option<String>,
    /// Further arguments.
    pub args: Vec<String>,
    /// Host, in a cluster over hosts, if it differs from its turn's.
    pub host: Option<&'static str>,
    /// Size of the largest file that it can write, in KiB: beyond it, writes fail as on a full disk.
    pub file_limit: Option<u64>,
    /// Work folder, if it is not its number's.
    pub work_dir: Option<PathBuf>,
}

/// Runs `volley cluster certs`: makes certificates for these hosts and for a client, with their own authority, in a
/// new folder.
///
/// # Panics
/// When they cannot be made.
pub fn certificates(hosts: &[String], out: &Path) -> PathBuf {
    let made = Command::new(binary("volley"))
        .args(["cluster", "certs", "--hosts", &hosts.join(","), "--out"])
        .arg(out)
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    out.to_owned()
}
