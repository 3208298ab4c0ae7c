//! Tokens that a scheduler makes for the user who has started it, in a folder that only this user can read.
//!
//! ```text
//!   STATE/schedulers/127.0.0.1-50050   0600, in a folder 0700: process, token of clients, token of executors
//! ```
//!
//! STATE is `VOLLEY_STATE_DIR`, else `XDG_RUNTIME_DIR/volley`, else `XDG_STATE_HOME/volley`, which is
//! `~/.local/state/volley`. A file counts for as long as the process lives that has written it: whoever listens on a
//! port that was a scheduler's is sent no token of it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Token;

/// Connect timeout of a check whether a port of this host is in use.
const GLANCE: Duration = Duration::from_millis(200);

/// The tokens of a scheduler on loopback that was given none.
#[derive(Debug, Clone)]
pub struct LocalTokens {
    /// Its user's, with the role administer.
    pub client: Token,
    /// Its executors'.
    pub executor: Token,
}

/// A file as it is.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    pid: u32,
    /// When the process began, in the system's clock ticks: its id may be given to another one later.
    started: Option<String>,
    client: String,
    executor: String,
}

/// The tokens of the schedulers in this process, by their addresses.
static IN_PROCESS: Mutex<BTreeMap<SocketAddr, LocalTokens>> = Mutex::new(BTreeMap::new());

/// Tokens that this process finds; no longer when this is dropped.
#[derive(Debug)]
pub struct Held {
    listens: SocketAddr,
    client: Token,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = in_process();
        // Another scheduler may have the address by now.
        let is_own = |found: &LocalTokens| found.client.reveal() == self.client.reveal();
        if held.get(&self.listens).is_some_and(is_own) {
            held.remove(&self.listens);
        }
    }
}

fn in_process() -> MutexGuard<'static, BTreeMap<SocketAddr, LocalTokens>> {
    IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File of tokens that other processes of the user find; no longer when this is dropped.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    content: String,
}

impl TokenFile {
    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // Another scheduler may have the address by now.
        if fs::read_to_string(&self.path).is_ok_and(|found| found == self.content) {
            fs::remove_file(&self.path).ok();
        }
    }
}

impl LocalTokens {
    /// New ones.
    pub fn generate() -> Self {
        Self {
            client: Token::generate(),
            executor: Token::generate(),
        }
    }

    /// Has this process find them.
    pub fn hold(&self, listens: SocketAddr) -> Held {
        in_process().insert(listens, self.clone());
        let client = self.client.clone();
        Held { listens, client }
    }

    /// Puts them where processes of the same user find them, and removes what schedulers have left that are gone.
    ///
    /// # Errors
    /// When no such folder is known, or it cannot be written.
    pub fn publish(&self, listens: SocketAddr) -> io::Result<TokenFile> {
        let folders = folders();
        let folder = folders.first().ok_or_else(|| {
            let reason =
                "there is no folder of the user's to keep tokens in: set VOLLEY_STATE_DIR, or HOME";
            io::Error::new(io::ErrorKind::NotFound, reason)
        })?;
        self.publish_in(folder, listens)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
    }

    fn publish_in(&self, folder: &Path, listens: SocketAddr) -> io::Result<TokenFile> {
        let content = Content {
            pid: std::process::id(),
            started: started(std::process::id()),
            client: self.client.reveal().to_owned(),
            executor: self.executor.reveal().to_owned(),
        };
        let content = serde_json::to_string(&content)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        // It may have been there before, with others let in; who does not own it cannot shut it.
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        sweep(folder);
        let path = folder.join(name(listens.ip(), listens.port()));
        let partial = folder.join(format!(".{}-{}", listens.port(), std::process::id()));
        fs::remove_file(&partial).ok();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(content.as_bytes())?;
        fs::rename(&partial, &path)?;
        Ok(TokenFile { path, content })
    }

    /// Finds the tokens of the scheduler at an address of this host, if this user runs it and it is alive.
    pub fn find(address: &str) -> Option<Self> {
        let held = address.parse().ok();
        if let Some(held) = held.and_then(|address| in_process().get(&address).cloned()) {
            return Some(held);
        }
        folders()
            .iter()
            .find_map(|folder| Self::find_in(folder, address))
    }

    fn find_in(folder: &Path, address: &str) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let ip = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(ip) => ip,
            Err(_) if host.eq_ignore_ascii_case("localhost") && !is_ambiguous(port) => {
                [127, 0, 0, 1].into()
            }
            Err(_) => return None,
        };
        if !ip.is_loopback() {
            return None;
        }
        let content = fs::read_to_string(folder.join(name(ip, port))).ok()?;
        let content: Content = serde_json::from_str(&content).ok()?;
        if !content.is_alive() {
            return None;
        }
        Some(Self {
            client: content.client.parse().ok()?,
            executor: content.executor.parse().ok()?,
        })
    }
}

impl Content {
    /// Checks whether the process that wrote it still runs.
    fn is_alive(&self) -> bool {
        self.started.is_none() || started(self.pid) == self.started
    }
}

fn name(ip: IpAddr, port: u16) -> String {
    format!("{ip}-{port}").replace(':', "_")
}

/// Checks whether something also listens on the other address of `localhost`: that process is not authenticated.
fn is_ambiguous(port: u16) -> bool {
    let other = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&other, GLANCE).is_ok()
}

/// Returns when a process began, in the system's clock ticks; `None` where there is no such process, or no `/proc`.
pub fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it; this is the 22nd.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

/// Removes what processes have left that are gone.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let content = fs::read_to_string(entry.path());
        let content = content
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok());
        if content.is_some_and(|content: Content| !content.is_alive()) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

/// Returns the folder in which a process of this user keeps what has to outlive it, if one is known: `VOLLEY_STATE_DIR`,
/// else `XDG_STATE_HOME/volley`, which is `~/.local/state/volley`.
pub fn state_folder() -> Option<PathBuf> {
    if let Some(given) = absolute("VOLLEY_STATE_DIR") {
        return Some(given);
    }
    let home = || Some(std::env::home_dir()?.join(".local/state"));
    let state = absolute("XDG_STATE_HOME").or_else(home)?;
    state.is_absolute().then(|| state.join("volley"))
}

/// Returns the absolute path in an environment variable.
fn absolute(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

/// Returns the folders that such files may be in, the one that they are written to first.
fn folders() -> Vec<PathBuf> {
    let states = match absolute("VOLLEY_STATE_DIR") {
        Some(given) => vec![given],
        None => {
            // It goes with the user's last login, and its variable may outlive it.
            let runtime = absolute("XDG_RUNTIME_DIR").filter(|folder| folder.is_dir());
            let runtime = runtime.map(|folder| folder.join("volley"));
            [runtime, state_folder()].into_iter().flatten().collect()
        }
    };
    states
        .into_iter()
        .map(|state| state.join("schedulers"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn tokens_are_found_by_the_address_while_the_scheduler_lives() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let tokens = LocalTokens::generate();
        let listens: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        let published = tokens.publish_in(&folder, listens).unwrap();
        assert_eq!((mode(&folder), mode(published.path())), (0o700, 0o600));
        let found = LocalTokens::find_in(&folder, "127.0.0.1:4711").unwrap();
        assert_eq!(
            (found.client, found.executor),
            (tokens.client, tokens.executor)
        );
        for other in [
            "127.0.0.1:4712",
            "127.0.0.2:4711",
            "[::1]:4711",
            "example.org:4711",
            "4711",
        ] {
            assert!(LocalTokens::find_in(&folder, other).is_none(), "{other}");
        }
        drop(published);
        assert!(LocalTokens::find_in(&folder, "127.0.0.1:4711").is_none());
    }

    #[test]
    fn what_others_have_left_is_neither_used_nor_kept() {
        let dir = tempfile::tempdir().unwrap();
        let listens: SocketAddr = "[::1]:4711".parse().unwrap();
        let path = dir.path().join(name(listens.ip(), listens.port()));
        let left = Content {
            pid: std::process::id(),
            started: Some("another process".into()),
            client: "a".into(),
            executor: "b".into(),
        };
        fs::write(&path, serde_json::to_string(&left).unwrap()).unwrap();
        assert!(LocalTokens::find_in(dir.path(), "[::1]:4711").is_none());
        let stranger = dir.path().join("notes");
        fs::write(&stranger, "not ours").unwrap();
        let other = "127.0.0.1:4712".parse().unwrap();
        let _published = LocalTokens::generate()
            .publish_in(dir.path(), other)
            .unwrap();
        assert!(!path.exists() && stranger.exists());
        assert_eq!(mode(dir.path()), 0o700);
    }

    #[test]
    fn a_file_of_a_later_scheduler_stays() {
        let dir = tempfile::tempdir().unwrap();
        let listens: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        let first = LocalTokens::generate()
            .publish_in(dir.path(), listens)
            .unwrap();
        let _second = LocalTokens::generate()
            .publish_in(dir.path(), listens)
            .unwrap();
        drop(first);
        assert!(LocalTokens::find_in(dir.path(), "127.0.0.1:4711").is_some());
    }
}
