//! The open stores of a process, by scheme and bucket, and by the options that they were opened with.
//!
//! A table's options stay out of plans: instead, a URL has a name for them as its password, and a [`Stores`] resolves
//! the name.
//!
//! ```text
//! OPTIONS ('aws.access_key_id' '…')  ── declare ──> s3://:7f3a…@bucket/x     in every plan, in every process
//!                                                        │ get_store
//! client ── with the query ──> scheduler ── with a task ──> executor         the options named 7f3a…
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::error::Result as DfResult;
use datafusion::execution::TaskContext;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::prelude::SessionConfig;
use object_store::ObjectStore;
use url::{Position, Url};
use uuid::Uuid;

use volley_proto::access::{AllowedPaths, Denied};
use volley_proto::object_stores::{Opened, SCHEMES, StoreOptions, is_remote, open, root};
use volley_proto::{Error, Result};

use super::counted::{Traffic, counted, counted_store};
use super::remote::Remote;
use crate::error::External;

/// Maximum number of stores that are kept open, the most recently used ones.
const OPEN: usize = 256;
/// Maximum number of options that are known by name, the most recently used ones.
const DECLARED: usize = 4096;

/// Options with their name.
pub type Declared = (String, StoreOptions);

/// Stores of a process; cheap to clone. Local files are included, as DataFusion provides them.
#[derive(Clone, Default)]
pub struct Stores(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// `file://`, and any other registered stores.
    local: DefaultObjectStoreRegistry,
    known: Mutex<Known>,
    /// Paths that options may lead to.
    allowed: AllowedPaths,
    /// Counters of the bytes of files, if they are counted.
    traffic: Option<Arc<Traffic>>,
}

/// Open stores and declared options, least recently used first.
#[derive(Default)]
struct Known {
    open: VecDeque<(String, Opened)>,
    declared: VecDeque<Declared>,
}

/// Returns the value of a key, and makes it the most recently used one.
fn touch<T: Clone>(kept: &mut VecDeque<(String, T)>, key: &str) -> Option<T> {
    let at = kept.iter().position(|(known, _)| known == key)?;
    let found = kept.remove(at)?;
    let value = found.1.clone();
    kept.push_back(found);
    Some(value)
}

fn keep<T>(kept: &mut VecDeque<(String, T)>, key: String, value: T, most: usize) -> Option<T> {
    let at = kept.iter().position(|(known, _)| *known == key);
    let before = at.and_then(|at| kept.remove(at));
    kept.push_back((key, value));
    if kept.len() > most {
        kept.pop_front();
    }
    before.map(|(_, value)| value)
}

impl Stores {
    /// Creates stores whose options may lead only to these paths.
    pub fn within(allowed: AllowedPaths) -> Self {
        Self(Arc::new(Shared {
            allowed,
            ..Shared::default()
        }))
    }

    /// Creates stores whose options may lead only to these paths, and whose traffic is counted.
    pub fn counted_within(allowed: AllowedPaths, traffic: Arc<Traffic>) -> Self {
        Self(Arc::new(Shared {
            allowed,
            traffic: Some(traffic),
            ..Shared::default()
        }))
    }

    /// Returns the stores of the process that a session or a task runs in.
    ///
    /// # Errors
    /// When the session was created without stores.
    pub fn of(config: &SessionConfig) -> Result<Arc<Self>> {
        config
            .get_extension::<Self>()
            .ok_or_else(|| Error::ObjectStoreUrl {
                url: SCHEMES.join("://, "),
                reason: "this session was made without stores".to_owned(),
            })
    }

    /// Returns the stores of a task's process, as [`of`](Self::of) does.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub fn of_task(context: &TaskContext) -> Result<Arc<Self>> {
        Self::of(context.session_config())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the URL with a name for these options; unchanged without options.
    ///
    /// # Errors
    /// When no store fits the URL, or the store cannot be opened with these options.
    pub fn declare(&self, url: &Url, options: StoreOptions) -> Result<Url> {
        let opened = open(url, &options)?;
        if options.is_empty() {
            return Ok(url.clone());
        }
        let mut known = self.known();
        let mut declared = known.declared.iter();
        let same = declared.find(|(_, same)| *same == options);
        let name = match same.map(|(name, _)| name.clone()) {
            Some(name) => name,
            None => Uuid::new_v4().simple().to_string(),
        };
        keep(&mut known.declared, name.clone(), options, DECLARED);
        drop(known);
        let mut named = url.clone();
        named
            .set_password(Some(&name))
            .map_err(|()| Error::ObjectStoreUrl {
                url: opened.root,
                reason: "it takes no options".to_owned(),
            })?;
        Ok(named)
    }

    /// Checks the options that another process has declared, before they are received.
    ///
    /// # Errors
    /// When one of the options leads to a path that may not be read or written.
    pub fn check<'a>(
        &self,
        declared: impl IntoIterator<Item = &'a Declared>,
    ) -> Result<(), Denied> {
        let mut declared = declared.into_iter();
        declared.try_for_each(|(_, options)| options.check(&self.0.allowed))
    }

    /// Adds options from another process, under their names there.
    pub fn receive(&self, declared: impl IntoIterator<Item = Declared>) {
        let mut known = self.known();
        for (name, options) in declared {
            keep(&mut known.declared, name, options, DECLARED);
        }
    }

    /// Returns the options that the names in URLs stand for, each once, for another process.
    pub fn declared<'a>(&self, urls: impl IntoIterator<Item = &'a Url>) -> Vec<Declared> {
        let mut found: Vec<Declared> = Vec::new();
        for name in urls.into_iter().filter_map(Url::password) {
            if found.iter().all(|(known, _)| known != name)
                && let Some(options) = touch(&mut self.known().declared, name)
            {
                found.push((name.to_owned(), options));
            }
        }
        found
    }

    /// Returns the store of a URL, with its multipart uploads.
    ///
    /// # Errors
    /// When no store fits the URL, or its options are unknown here, or lead to a path that may not be read or written.
    pub fn opened(&self, url: &Url) -> Result<Opened> {
        let key = key(url);
        if let Some(opened) = touch(&mut self.known().open, &key) {
            return Ok(opened);
        }
        let options = match url.password() {
            None => StoreOptions::of_environment(),
            Some(name) => {
                touch(&mut self.known().declared, name).ok_or_else(|| Error::ObjectStoreUrl {
                    url: root(url),
                    reason: "its OPTIONS are no longer known: create the table again".to_owned(),
                })?
            }
        };
        let allowed = options.check(&self.0.allowed);
        allowed.map_err(|denied| Error::ObjectStoreUrl {
            url: root(url),
            reason: denied.to_string(),
        })?;
        let mut plain = url.clone();
        // Only URLs that can have a password have one.
        plain.set_password(None).ok();
        let opened = open(&plain, &options)?;
        let opened = Opened {
            store: Arc::new(Remote::new(&opened.root, opened.store)),
            ..opened
        };
        let opened = match &self.0.traffic {
            Some(traffic) => counted(opened, traffic),
            None => opened,
        };
        keep(&mut self.known().open, key, opened.clone(), OPEN);
        Ok(opened)
    }

    /// Registers a store for the URLs of this scheme and host, in place of the one that would be opened.
    pub fn register(&self, url: &Url, opened: Opened) {
        keep(&mut self.known().open, key(url), opened, OPEN);
    }
}

/// Returns the part of a URL before its path.
fn key(url: &Url) -> String {
    url[..Position::BeforePath].to_owned()
}

/// Returns a URL's text for display, without the name of its options.
pub fn shown(url: &str) -> String {
    match Url::parse(url) {
        Ok(mut parsed) if parsed.password().is_some() => {
            parsed.set_password(None).ok();
            parsed.to_string()
        }
        _ => url.to_owned(),
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known();
        let open = known.open.iter().map(|(_, opened)| &opened.root);
        f.debug_tuple("Stores")
            .field(&open.collect::<Vec<_>>())
            .finish()
    }
}

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        if !is_remote(url) {
            return self.0.local.register_store(url, store);
        }
        let opened = Opened {
            root: root(url),
            store,
            multipart: None,
        };
        let before = keep(&mut self.known().open, key(url), opened, OPEN);
        before.map(|opened| opened.store)
    }

    fn get_store(&self, url: &Url) -> DfResult<Arc<dyn ObjectStore>> {
        match url.scheme() {
            "file" => {
                let files = self.0.local.get_store(url)?;
                Ok(match &self.0.traffic {
                    Some(traffic) => counted_store(files, traffic),
                    None => files,
                })
            }
            _ if is_remote(url) => Ok(self.opened(url).external()?.store),
            _ => match self.0.local.get_store(url) {
                Ok(store) => Ok(store),
                // The error lists the supported schemes.
                Err(_) => Ok(open(url, &StoreOptions::default()).external()?.store),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn options(secret: &str) -> StoreOptions {
        let mut options = StoreOptions::default();
        for (key, value) in [
            ("aws.access_key_id", "AKIATEST"),
            ("aws.secret_access_key", secret),
        ] {
            options.set(key, value).unwrap();
        }
        options
    }

    #[test]
    fn a_url_has_a_name_for_options_which_another_process_can_be_told() {
        let (here, there) = (Stores::default(), Stores::default());
        let url: Url = "s3://bucket/a/".parse().unwrap();
        let named = here.declare(&url, options("hunter2")).unwrap();
        assert!(!named.as_str().contains("hunter2"), "{named}");
        assert_eq!(shown(named.as_str()), url.as_str());
        assert_eq!(here.declare(&url, options("hunter2")).unwrap(), named);
        assert_ne!(here.declare(&url, options("other")).unwrap(), named);
        assert_eq!(here.declare(&url, StoreOptions::default()).unwrap(), url);
        let error = there.get_store(&named).unwrap_err().to_string();
        let name = named.password().unwrap();
        assert!(
            error.contains("s3://bucket") && !error.contains(name),
            "{error}"
        );
        let declared = here.declared([&named, &url, &named]);
        assert_eq!(declared.len(), 1);
        there.receive(declared);
        let store = there.get_store(&named).unwrap();
        assert_eq!(store.to_string(), "s3://bucket");
        assert!(!format!("{store:?}{there:?}").contains("hunter2"));
        assert!(Arc::ptr_eq(&store, &there.get_store(&named).unwrap()));
        assert!(there.opened(&named).unwrap().multipart.is_some());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let stores = Stores::default();
        let memory = Arc::new(InMemory::new());
        for bucket in 0..OPEN + 10 {
            let url = format!("s3://bucket{bucket}/").parse().unwrap();
            stores.register_store(&url, Arc::clone(&memory) as _);
        }
        assert_eq!(stores.known().open.len(), OPEN);
        let error = stores
            .get_store(&"hdfs://h/x".parse().unwrap())
            .unwrap_err();
        assert!(error.to_string().contains("hdfs"), "{error}");
        assert!(stores.get_store(&"file:///".parse().unwrap()).is_ok());
    }
}
