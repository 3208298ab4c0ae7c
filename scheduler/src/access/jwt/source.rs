//! The source of the key set: a file that is read again when it changes, or a URL that is fetched periodically and
//! for unknown keys. It verifies nothing.
//!
//! ```text
//!   request with an unknown key ───►┐
//!                                   ├─► fetch, with a deadline ──┬─► the newest key set ──► requests
//!   five minutes have passed ──────►┘                            └─► failed: the one before stays, and the log says why
//! ```
//!
//! Any client can send a token with an unknown key, so fetches are at least ten seconds apart whatever is asked for,
//! and a request that goes away does not stop a fetch.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;
use volley_proto::failure::chain;
use volley_proto::limits::size;

use super::KeySetLocation;
use super::keys::{KeySet, SharedKeys};
use crate::access::reloaded::ReloadedFile;
use crate::{Error, Result};

/// Intervals between fetches of a key set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Longest time between two fetches, if no key is missing.
    pub(super) every: Duration,
    /// Shortest time between two fetches, whatever keys are missing.
    pub(super) pause: Duration,
}

const PACE: Pace = Pace {
    every: Duration::from_secs(5 * 60),
    pause: Duration::from_secs(10),
};
/// Timeout of a fetch, and so of a request with an unknown key.
const DEADLINE: Duration = Duration::from_secs(5);
/// Size of the largest key set, in bytes: a thousand keys.
const LARGEST: usize = 1024 * 1024;

/// Source of the newest valid key set.
#[derive(Debug)]
pub(super) enum KeySource {
    File(ReloadedFile<KeySet>),
    Url(FetchedKeys),
}

impl KeySource {
    /// Reads the key set for the first time.
    ///
    /// # Errors
    /// When it cannot be read, or is invalid.
    pub(super) async fn open(location: &KeySetLocation) -> Result<Self> {
        let opened = match location {
            KeySetLocation::File(path) => {
                ReloadedFile::open(path, "keys", KeySet::parse).map(Self::File)
            }
            KeySetLocation::Url(url) => FetchedKeys::open(url, PACE).await.map(Self::Url),
        };
        opened.map_err(|source| Error::KeySet {
            location: location.to_string(),
            source,
        })
    }

    /// Returns the newest key set. If it lacks the key that a token names, waits for a newer set, if one may be
    /// fetched.
    pub(super) async fn keys(&self, id: Option<&str>) -> SharedKeys {
        match self {
            Self::File(file) => file.current(),
            Self::Url(fetched) => fetched.keys(id).await,
        }
    }
}

/// Key set that is fetched until this is dropped.
#[derive(Debug)]
pub(super) struct FetchedKeys {
    newest: watch::Receiver<Fetched>,
    refresh: mpsc::Sender<()>,
    pace: Pace,
    _fetching: JoinSet<()>,
}

/// Key set, and the end of the last try to fetch it.
#[derive(Debug, Clone)]
struct Fetched {
    keys: SharedKeys,
    tried: Instant,
}

impl Fetched {
    /// Checks whether a fetch for an unknown key is allowed yet.
    fn may_fetch(&self, pace: Pace, now: Instant) -> bool {
        now.saturating_duration_since(self.tried) >= pace.pause
    }
}

impl FetchedKeys {
    pub(super) async fn open(url: &Url, pace: Pace) -> io::Result<Self> {
        let client = client(url).map_err(io::Error::other)?;
        let keys = fetch(&client, url).await.map_err(io::Error::other)?;
        let (sender, newest) = watch::channel(Fetched {
            keys: Arc::new(keys),
            tried: Instant::now(),
        });
        let (refresh, refreshes) = mpsc::channel(1);
        let mut fetching = JoinSet::new();
        fetching.spawn(fetch_again(client, url.clone(), pace, (sender, refreshes)));
        Ok(Self {
            newest,
            refresh,
            pace,
            _fetching: fetching,
        })
    }

    pub(super) async fn keys(&self, id: Option<&str>) -> SharedKeys {
        let mut newest = self.newest.clone();
        let known = newest.borrow_and_update().clone();
        let is_known = id.is_none_or(|id| known.keys.has(id));
        if is_known || !known.may_fetch(self.pace, Instant::now()) {
            return known.keys;
        }
        // A refresh that has been requested already serves this request, too.
        self.refresh.try_send(()).ok();
        timeout(DEADLINE, newest.changed()).await.ok();
        let newest = newest.borrow();
        Arc::clone(&newest.keys)
    }
}

/// Fetches a key set again and again, until it is no longer wanted.
async fn fetch_again(
    client: Client,
    url: Url,
    pace: Pace,
    (newest, mut refreshes): (watch::Sender<Fetched>, mpsc::Receiver<()>),
) {
    loop {
        let known = newest.borrow().clone();
        tokio::select! {
            () = sleep_until(known.tried + pace.every) => {}
            asked = refreshes.recv() => match asked {
                // The last fetch has served a refresh that was requested while it ran.
                Some(()) if !known.may_fetch(pace, Instant::now()) => continue,
                Some(()) => {}
                None => return,
            },
        }
        let keys = match fetch(&client, &url).await {
            Ok(keys) => Arc::new(keys),
            Err(error) => {
                tracing::warn!(%url, %error, "keys cannot be fetched: the previous ones remain in use");
                known.keys
            }
        };
        let tried = Instant::now();
        newest.send_replace(Fetched { keys, tried });
    }
}

/// Builds a client that follows no redirections.
fn client(url: &Url) -> Result<Client, String> {
    let builder = ClientBuilder::new()
        .timeout(DEADLINE)
        .redirect(Policy::none());
    let builder = match url.scheme() {
        // The URL is on this host, so no proxy is used.
        "http" => builder.no_proxy(),
        _ => builder.https_only(true),
    };
    builder.build().map_err(|error| chain(&error))
}

async fn fetch(client: &Client, url: &Url) -> Result<KeySet, String> {
    let response = client.get(url.clone()).send().await;
    let mut response = response.map_err(|error| chain(&error))?;
    if !response.status().is_success() {
        return Err(format!("the answer is {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| chain(&error))? {
        if body.len() + chunk.len() > LARGEST {
            return Err(format!("the answer is larger than {}", size(LARGEST)));
        }
        body.extend_from_slice(&chunk);
    }
    let text = std::str::from_utf8(&body).map_err(|error| error.to_string())?;
    KeySet::parse(text)
}
