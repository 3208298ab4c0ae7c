//! Places in stores: `s3://bucket/folder/*.parquet`. Paths are taken as they are written: `%20` is not a space.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::SessionState;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use futures::TryStreamExt;
use futures::future::try_join_all;
use glob::Pattern;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use url::{Position, Url};
use volley_engine::object_stores::{Stores, shown};
use volley_proto::object_stores::{SCHEMES, StoreOptions, is_remote};

use super::delta::LOG;
use super::kind::Kind;
use super::place::{MATCH, in_delta};
use crate::{Error, Result};

/// Files that a place has at most.
const MOST: usize = 1_000_000;

/// A place in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemotePlace {
    /// Text that may be shown.
    typed: String,
    /// The store's URL, without a path.
    root: Url,
    /// Path or pattern after it.
    path: String,
}

/// Files by their names, sorted, with their stores' metadata.
pub(super) type Listed = Vec<(PathBuf, ObjectMeta)>;

/// Splits the URL of a place in a store into the store and the path; returns `None` for other texts.
fn split(typed: &str) -> Result<Option<(Url, &str)>> {
    let Some((scheme, rest)) = typed.split_once("://") else {
        return Ok(None);
    };
    let scheme = scheme.to_ascii_lowercase();
    if !SCHEMES.contains(&scheme.as_str()) {
        return Ok(None);
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let root = Url::parse(&format!("{scheme}://{host}/"));
    let root = root.map_err(|error| Error::not_supported(format!("{}: {error}", shown(typed))))?;
    Ok(Some((root, path)))
}

/// Splits a text that a user wrote as [`split`] does.
fn split_typed(typed: &str) -> Result<Option<(Url, &str)>> {
    let found = split(typed)?;
    if let Some((root, _)) = &found
        && root.password().is_some()
    {
        let store = shown(root.as_str());
        return Err(Error::not_supported(format!(
            "a password in the URL of {store}: OPTIONS ('aws.access_key_id' '…', …) or the environment has \
                 credentials"
        )));
    }
    Ok(found)
}

/// Returns the URL of a path in a store.
fn url_of(root: &Url, path: &str) -> Url {
    let mut url = root.clone();
    // Else it would stand for another character.
    url.set_path(&format!("/{}", path.replace('%', "%25")));
    url
}

/// Returns the URL of a file or, with a slash at its end, a folder of a store, by its name; `None` for a local one.
pub(super) fn remote_url(name: &Path) -> Result<Option<Url>> {
    let Some(name) = name.to_str().filter(|name| name.contains("://")) else {
        return Ok(None);
    };
    Ok(split(name)?.map(|(root, path)| url_of(&root, path)))
}

/// Returns the location that a statement reads or writes, with a name in place of the store's options; `None` for a
/// local place, which has no options.
///
/// # Errors
/// When the place is a pattern, or there are options that are not the store's.
pub(in crate::session) fn located(
    typed: &str,
    options: StoreOptions,
    state: &SessionState,
) -> Result<Option<String>> {
    let Some((root, path)) = split_typed(typed)? else {
        return match options.is_empty() {
            true => Ok(None),
            false => Err(Error::not_supported(format!(
                "object-store options for {typed}, which is a local path"
            ))),
        };
    };
    if path.contains(['*', '?', '[']) {
        return Err(Error::not_supported(format!(
            "a pattern in the place {typed}: name a folder, or read FROM '{typed}'"
        )));
    }
    let stores = Stores::of(state.config())?;
    let url = stores.declare(&url_of(&root, path), options)?;
    Ok(Some(url.to_string()))
}

impl RemotePlace {
    /// Parses a place that a user wrote; `None` if it is not in a store.
    ///
    /// # Errors
    /// When it has a password.
    pub(super) fn parse(typed: &str) -> Result<Option<Self>> {
        let found = split_typed(typed)?;
        Ok(found.map(|(root, path)| Self {
            typed: typed.to_owned(),
            root,
            path: path.to_owned(),
        }))
    }

    /// Checks whether both are the same place, however each was typed.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let place = |of: &Self| (of.root.clone(), of.path.trim_end_matches('/').to_owned());
        place(self) == place(other)
    }

    /// Returns the place of a URL that [`located`] returned.
    pub(super) fn of_url(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok().filter(is_remote)?;
        let root = Url::parse(&url[..Position::BeforePath]).ok()?;
        let path = Key::from_url_path(url.path()).ok()?;
        let folder = if url.path().ends_with('/') { "/" } else { "" };
        Some(Self {
            typed: shown(url.as_str()),
            root,
            path: format!("{path}{folder}"),
        })
    }

    fn is_pattern(&self) -> bool {
        self.path.contains(['*', '?', '['])
    }

    /// Checks whether the store is a web server, which has files but does not list them.
    fn is_web(&self) -> bool {
        matches!(self.root.scheme(), "http" | "https")
    }

    fn store(&self, runtime: &RuntimeEnv) -> Result<Arc<dyn ObjectStore>> {
        let store = ObjectStoreUrl::parse(&self.root[..Position::BeforePath])?;
        Ok(runtime.object_store(store)?)
    }

    fn unreadable(&self, error: object_store::Error) -> Error {
        Error::from(volley_proto::Error::Unreadable {
            file: self.typed.clone(),
            source: error.into(),
        })
    }

    /// Returns the error about a place with files of a Delta table, by the table's path.
    fn in_delta(&self, table: &str) -> Error {
        let root = shown(self.root.as_str());
        let table = format!("{}/{table}", root.trim_end_matches('/'));
        in_delta(&self.typed, &table)
    }

    fn key(&self, path: &str) -> Result<Key> {
        Key::parse(path).map_err(|error| Error::Pattern {
            pattern: self.typed.clone(),
            reason: error.to_string(),
        })
    }

    /// Returns the folder and store of a Delta table, if the place is that of one.
    ///
    /// # Errors
    /// When the store does not answer, or the place is inside a Delta table.
    pub(super) async fn delta(
        &self,
        runtime: &RuntimeEnv,
    ) -> Result<Option<(Url, Arc<dyn ObjectStore>)>> {
        let is_file = !self.path.ends_with('/') && Kind::of(Path::new(&self.path)).is_some();
        if self.is_web() || (is_file && !self.is_pattern()) {
            return Ok(None);
        }
        let store = self.store(runtime)?;
        let folder = self.folder();
        let above = folder.match_indices('/').map(|(at, _)| &folder[..at]);
        let mut folders: Vec<&str> = [""].into_iter().chain(above).chain([folder]).collect();
        folders.dedup();
        let has_log = |folder: &str| {
            let log = self.key(format!("{folder}/{LOG}").trim_start_matches('/'));
            let store = &store;
            async move { Ok::<_, Error>(store.list(Some(&log?)).try_next().await) }
        };
        let logs = try_join_all(folders.iter().map(|folder| has_log(folder))).await?;
        for (table, log) in folders.into_iter().zip(logs) {
            if log.map_err(|error| self.unreadable(error))?.is_none() {
                continue;
            }
            if self.is_pattern() || table != folder {
                return Err(self.in_delta(table));
            }
            let slash = if folder.is_empty() { "" } else { "/" };
            let url = url_of(&self.root, &format!("{folder}{slash}"));
            return Ok(Some((url, store)));
        }
        Ok(None)
    }

    /// Returns its folder: for a pattern, the part before the first name with a wildcard.
    fn folder(&self) -> &str {
        match self.path.find(['*', '?', '[']) {
            Some(wildcard) => &self.path[..self.path[..wildcard].rfind('/').unwrap_or(0)],
            None => self.path.trim_end_matches('/'),
        }
    }

    /// Lists the files that are there now, by the rules of a local place.
    ///
    /// # Errors
    /// When there are none, or the store does not answer.
    pub(super) async fn files(&self, runtime: &RuntimeEnv) -> Result<Listed> {
        let store = self.store(runtime)?;
        if self.is_web() && (self.is_pattern() || self.path.ends_with('/') || self.path.is_empty())
        {
            return Err(Error::not_supported(format!(
                "{}: a web server does not list its files; name each",
                self.typed
            )));
        }
        if !self.is_pattern() && !self.path.is_empty() && !self.path.ends_with('/') {
            match store.head(&self.key(&self.path)?).await {
                Ok(file) => return Ok(vec![(self.name(&file.location), file)]),
                Err(object_store::Error::NotFound { .. }) if !self.is_web() => {}
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        let pattern = match self.is_pattern() {
            true => Some(Pattern::new(&self.path).map_err(|error| Error::Pattern {
                pattern: self.typed.clone(),
                reason: error.msg.to_owned(),
            })?),
            false => None,
        };
        let folder = self.key(self.folder())?;
        let mut listed = store.list(Some(&folder));
        let mut files = Vec::new();
        let mut tables = BTreeSet::new();
        while let Some(file) = listed
            .try_next()
            .await
            .map_err(|error| self.unreadable(error))?
        {
            let path = file.location.as_ref();
            let mut names = path.split('/');
            if let Some(depth) = names.position(|name| name == LOG) {
                let table: Vec<&str> = path.split('/').take(depth).collect();
                tables.insert(table.join("/"));
            }
            if self.takes(&pattern, &folder, &file.location) {
                files.push((self.name(&file.location), file));
            }
            if files.len() > MOST {
                return Err(Error::not_supported(format!(
                    "reading more than {MOST} files at {}",
                    self.typed
                )));
            }
        }
        if files.is_empty() {
            return Err(Error::NoFiles {
                place: self.typed.clone(),
                reason: "no file that can be read".to_owned(),
            });
        }
        let has_files = |table: &&String| {
            let table = Key::from(table.as_str());
            let mut files = files.iter();
            files.any(|(_, file)| file.location.prefix_matches(&table))
        };
        if let Some(table) = tables.iter().find(has_files) {
            return Err(self.in_delta(table));
        }
        files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(files)
    }

    /// Checks whether a file below the folder belongs to the place.
    fn takes(&self, pattern: &Option<Pattern>, folder: &Key, file: &Key) -> bool {
        let is_hidden = |name: &str| name.starts_with(['.', '_']);
        match pattern {
            Some(pattern) => {
                let name = file.filename().unwrap_or_default();
                pattern.matches_with(file.as_ref(), MATCH) && !is_hidden(name)
            }
            None => {
                let below = file.prefix_match(folder);
                let shows =
                    below.is_some_and(|mut names| names.all(|name| !is_hidden(name.as_ref())));
                shows && Kind::of(Path::new(file.as_ref())).is_some()
            }
        }
    }

    /// Returns the name by which users refer to a file.
    fn name(&self, file: &Key) -> PathBuf {
        PathBuf::from(format!("{}{file}", shown(self.root.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    async fn found(names: &[&str], place: &str) -> Vec<String> {
        let runtime = RuntimeEnv::default();
        let store = Arc::new(InMemory::new());
        for name in names {
            store.put(&Key::from(*name), "x".into()).await.unwrap();
        }
        let url = Url::parse("s3://bucket").unwrap();
        runtime.register_object_store(&url, store);
        let place = RemotePlace::parse(place).unwrap().unwrap();
        let files = place.files(&runtime).await.unwrap_or_default().into_iter();
        files.map(|(name, _)| name.display().to_string()).collect()
    }

    #[tokio::test]
    async fn patterns_and_folders_name_files() {
        let names = [
            "a.csv",
            "d/b.csv",
            "d/s/c.csv",
            "d/.volley-1/x.csv",
            "d/_x.csv",
            "d/b.txt",
            "e/b.csv",
            "y=1/x y.csv",
        ];
        for (place, expected) in [
            ("s3://bucket/*.csv", vec!["a.csv"]),
            ("s3://bucket/d/", vec!["d/b.csv", "d/s/c.csv"]),
            ("s3://bucket/d", vec!["d/b.csv", "d/s/c.csv"]),
            ("s3://bucket/?/*.csv", vec!["d/b.csv", "e/b.csv"]),
            ("s3://bucket/d/**/*.csv", vec!["d/b.csv", "d/s/c.csv"]),
            ("s3://bucket/y=*/*", vec!["y=1/x y.csv"]),
            ("s3://bucket/a.csv", vec!["a.csv"]),
            ("s3://bucket/nothing/", vec![]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|name| format!("s3://bucket/{name}"))
                .collect();
            assert_eq!(found(&names, place).await, expected, "{place}");
        }
    }

    #[test]
    fn names_are_urls_and_back() {
        let url = remote_url(Path::new("s3://bucket/a b/c%20d?.csv"))
            .unwrap()
            .unwrap();
        assert_eq!(url.as_str(), "s3://bucket/a%20b/c%2520d%3F.csv");
        let place = RemotePlace::of_url(url.as_str()).unwrap();
        assert_eq!(place.path, "a b/c%20d?.csv");
        assert_eq!(remote_url(Path::new("/a/b.csv")).unwrap(), None);
        assert!(RemotePlace::parse("s3://u:p@bucket/x.csv").is_err());
    }
}
