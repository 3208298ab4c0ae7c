//! Locations of files as users write them: a file, a folder, or a pattern of `*`, `?`, `[…]` and `**`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use glob::{MatchOptions, Pattern};
use object_store::{ObjectMeta, ObjectStore};
use url::Url;
use volley_proto::disk::{missing, similar_in};
use volley_proto::object_stores::SCHEMES;

use super::delta::{LOG, Snapshot};
use super::kind::Kind;
use super::remote::RemotePlace;
use crate::{Error, Result};

/// A `*` stands for names in one folder, and for none that begin with a dot.
pub(super) const MATCH: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// A place in the file system, absolute, or in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// As it was typed.
    typed: String,
    path: PathBuf,
    is_pattern: bool,
    /// Place in its store, if it is in one.
    remote: Option<RemotePlace>,
}

/// Contents of a place.
pub(super) enum Found {
    /// Sorted files, and the metadata of each where a store was listed.
    Files(Vec<PathBuf>, Option<Vec<ObjectMeta>>),
    /// A Delta table.
    Delta(Snapshot),
}

impl Place {
    /// Parses a table's name as a place, if it is not an ordinary name: it has a slash or a wildcard, or
    /// the extension of a file that can be read.
    ///
    /// # Errors
    /// When it is a URL that the cluster cannot read.
    pub(super) fn of(name: &str) -> Result<Option<Self>> {
        let is_pattern = name.contains(['*', '?', '[']);
        let is_place = is_pattern || name.contains('/') || Kind::of(Path::new(name)).is_some();
        if !is_place {
            return Ok(None);
        }
        Self::parse(name).map(Some)
    }

    /// Checks whether both are the same place, however each was typed.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.remote, &other.remote) {
            (None, None) => self.path == other.path && self.is_pattern == other.is_pattern,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        }
    }

    /// Parses a path, a `file://` URL or a URL of a store.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn parse(name: &str) -> Result<Self> {
        if let Some(remote) = RemotePlace::parse(name)? {
            return Ok(Self::of_store(name, remote));
        }
        let path = match name.split_once("://") {
            Some(("file", _)) => {
                let path = Url::parse(name)
                    .ok()
                    .and_then(|url| url.to_file_path().ok());
                path.ok_or_else(|| {
                    Error::not_supported(format!("reading {name}: it is not the URL of a file"))
                })?
            }
            Some(_) => {
                return Err(Error::not_supported(format!(
                    "reading {name}: give a path or a file:// URL that every executor sees, or a URL of {}://",
                    SCHEMES.join("://, ")
                )));
            }
            None => PathBuf::from(name),
        };
        let path = std::path::absolute(&path).map_err(|source| unreadable(&path, source))?;
        // `a/../b` is no prefix of the files in it.
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::ParentDir => {
                    plain.pop();
                }
                part => plain.push(part),
            }
        }
        Ok(Self {
            typed: name.to_owned(),
            // A file that is so called is meant, whatever else its name may mean.
            is_pattern: name.contains(['*', '?', '[']) && !plain.exists(),
            path: plain,
            remote: None,
        })
    }

    fn of_store(typed: &str, remote: RemotePlace) -> Self {
        Self {
            typed: typed.to_owned(),
            path: PathBuf::new(),
            is_pattern: false,
            remote: Some(remote),
        }
    }

    /// Returns the place of a table's location that [`located`](super::located) returned.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn of_table(location: &str) -> Result<Self> {
        match RemotePlace::of_url(location) {
            Some(remote) => Ok(Self::of_store(location, remote)),
            None => Self::parse(location),
        }
    }

    /// Lists the files that are there now, or reads the Delta table.
    ///
    /// # Errors
    /// When there are no files, they cannot be listed, or the place is only a part of a Delta table.
    pub(super) async fn list(&self, runtime: &RuntimeEnv) -> Result<Found> {
        if let Some((folder, store)) = self.delta(runtime).await? {
            return Ok(Found::Delta(Snapshot::read(folder, store).await?));
        }
        let Some(remote) = &self.remote else {
            return Ok(Found::Files(self.files()?, None));
        };
        let (files, metas) = remote.files(runtime).await?.into_iter().unzip();
        Ok(Found::Files(files, Some(metas)))
    }

    /// Returns the folder and store of a Delta table, if the place is that of one.
    ///
    /// # Errors
    /// When the store does not answer, or the place is a folder inside a Delta table.
    pub(super) async fn delta(
        &self,
        runtime: &RuntimeEnv,
    ) -> Result<Option<(Url, Arc<dyn ObjectStore>)>> {
        if let Some(remote) = &self.remote {
            return remote.delta(runtime).await;
        }
        if self.is_pattern || !self.path.is_dir() {
            return Ok(None);
        }
        match table_above(&self.path) {
            None => return Ok(None),
            Some(table) if table == self.path => {}
            inside => self.refuse_delta(inside)?,
        }
        let folder = Url::from_directory_path(&self.path).map_err(|()| Error::FileName {
            file: self.typed.clone(),
        })?;
        let store = runtime.object_store(ObjectStoreUrl::local_filesystem())?;
        Ok(Some((folder, store)))
    }

    /// Lists the files of this host that are there now, sorted. Omits files below hidden folders, names that begin with
    /// a dot or an underscore and, if the place is a folder, files of no known kind.
    ///
    /// # Errors
    /// When there are none, or a folder cannot be read.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        if self.is_pattern {
            for file in self.expand()? {
                if file.is_file() && !is_hidden(&file) {
                    files.push(file);
                }
            }
            let folders: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
            for folder in folders {
                self.refuse_delta(table_above(folder))?;
            }
        } else if self.path.is_dir() {
            self.walk(&self.path, &mut files)?;
        } else if self.path.exists() {
            files.push(self.path.clone());
        }
        if files.is_empty() {
            return Err(Error::NoFiles {
                place: self.typed.clone(),
                reason: self.missing(),
            });
        }
        if let Some(file) = files.iter().find(|file| file.to_str().is_none()) {
            let file = file.clone();
            return Err(Error::NotUtf8 { file });
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Returns the reason why there is no file, with a file of a similar name in its folder.
    fn missing(&self) -> String {
        if !self.is_pattern {
            return match self.path.is_dir() {
                true => "the folder has no file that can be read".to_owned(),
                false => missing(&self.path),
            };
        }
        // Wildcards begin below a folder.
        let is_plain = |part: &Component<'_>| {
            let name = part.as_os_str().to_string_lossy();
            !name.contains(['*', '?', '['])
        };
        let folder: PathBuf = self.path.components().take_while(is_plain).collect();
        if !folder.exists() {
            return missing(&self.path);
        }
        let below: Vec<_> = self.path.components().skip_while(is_plain).collect();
        let (place, similar) = match below[..] {
            [name] => ("in", similar_in(&folder, name.as_os_str())),
            _ => ("below", Ok(String::new())),
        };
        let similar = similar.unwrap_or_default();
        format!(
            "no file that can be read {place} {} matches{similar}",
            folder.display()
        )
    }

    /// Returns the error of a place on this host without a file, unless it is a folder.
    pub(super) fn absence(&self) -> Option<Error> {
        let is_file = self.remote.is_none() && !self.path.is_dir();
        is_file.then(|| self.files().err()).flatten()
    }

    /// Returns the paths that the pattern matches. The `glob` crate would do, but panics at names that are not UTF-8.
    fn expand(&self) -> Result<Vec<PathBuf>> {
        let names = self.path.components().map(|part| {
            let name = part.as_os_str().to_string_lossy();
            Pattern::new(&name).map_err(|error| Error::Pattern {
                pattern: self.typed.clone(),
                reason: error.msg.to_owned(),
            })
        });
        let names: Vec<_> = names.skip(1).collect::<Result<_>>()?;
        let mut found = Vec::new();
        expand_below(Path::new("/"), &names, &mut found)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    fn walk(&self, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
        for entry in fs::read_dir(folder).map_err(|source| unreadable(folder, source))? {
            let path = entry.map_err(|source| unreadable(folder, source))?.path();
            if path.ends_with(LOG) && path.is_dir() {
                self.refuse_delta(Some(folder))?;
            }
            if is_hidden(&path) {
                continue;
            }
            if path.is_dir() {
                self.walk(&path, files)?;
            } else if Kind::of(&path).is_some() {
                files.push(path);
            }
        }
        Ok(())
    }

    /// Refuses a part of a Delta table, whose log alone says which files are current.
    fn refuse_delta(&self, table: Option<&Path>) -> Result<()> {
        match table {
            Some(table) => Err(in_delta(&self.typed, &table.display().to_string())),
            None => Ok(()),
        }
    }
}

/// Adds what these patterns match, each in a folder of what the one before matches.
fn expand_below(folder: &Path, names: &[Pattern], found: &mut Vec<PathBuf>) -> Result<()> {
    const ANY_FOLDERS: &str = "**";
    let Some((name, below)) = names.split_first() else {
        found.push(folder.to_owned());
        return Ok(());
    };
    let text = name.as_str();
    if !text.contains(['*', '?', '[']) {
        let path = folder.join(text);
        return match path.exists() {
            true => expand_below(&path, below, found),
            false => Ok(()),
        };
    }
    if text == ANY_FOLDERS {
        expand_below(folder, below, found)?;
    }
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).map_err(|source| unreadable(folder, source))? {
        let entry = entry.map_err(|source| unreadable(folder, source))?;
        let path = entry.path();
        if text == ANY_FOLDERS {
            let has_dot = entry.file_name().to_string_lossy().starts_with('.');
            if path.is_dir() && !has_dot && !leads_above(&path) {
                expand_below(&path, names, found)?;
            }
        } else if name.matches_with(&entry.file_name().to_string_lossy(), MATCH) {
            expand_below(&path, below, found)?;
        }
    }
    Ok(())
}

/// Checks whether a link leads to a folder that it is in, whose folders would never end.
fn leads_above(folder: &Path) -> bool {
    let Some(parent) = folder.parent().filter(|_| folder.is_symlink()) else {
        return false;
    };
    match (folder.canonicalize(), parent.canonicalize()) {
        (Ok(target), Ok(parent)) => parent.starts_with(target),
        _ => true,
    }
}

/// Returns the folder of the Delta table that a folder is, or is in.
fn table_above(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|above| above.join(LOG).is_dir())
}

/// Returns the error about a place with files of a Delta table.
pub(super) fn in_delta(typed: &str, table: &str) -> Error {
    Error::not_supported(format!(
        "reading {typed}: {table} is a Delta table, whose log lists its current files: name that folder"
    ))
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(['.', '_']))
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    volley_proto::Error::Unreadable {
        file: path.display().to_string(),
        source: source.into(),
    }
    .into()
}

/// A column that folders are named after, `k=v`, and the folder above them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hive {
    /// The folders above all of `k=v`, each once.
    pub(super) roots: Vec<PathBuf>,
    /// The names, from the outermost folder.
    pub(super) columns: Vec<String>,
    /// The values of each column.
    pub(super) values: Vec<Vec<String>>,
}

impl Hive {
    /// Reads the partition columns from the files' folders, where all files have folders of the same names.
    pub(super) fn of(files: &[PathBuf]) -> Option<Self> {
        let mut found: Option<Self> = None;
        for file in files {
            let mut root = file.parent()?;
            let mut pairs = Vec::new();
            while let Some((column, value)) = named_after(root) {
                pairs.push((column, value));
                root = root.parent()?;
            }
            pairs.reverse();
            let columns: Vec<_> = pairs.iter().map(|(column, _)| column.clone()).collect();
            let hive = found.get_or_insert_with(|| Self {
                roots: Vec::new(),
                values: vec![Vec::new(); columns.len()],
                columns: columns.clone(),
            });
            if columns.is_empty() || hive.columns != columns {
                return None;
            }
            if !hive.roots.iter().any(|known| known == root) {
                hive.roots.push(root.to_owned());
            }
            for (values, (_, value)) in hive.values.iter_mut().zip(pairs) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
        }
        found
    }
}

/// Returns the column and value that a folder is named after.
fn named_after(folder: &Path) -> Option<(String, String)> {
    let (column, value) = folder.file_name()?.to_str()?.split_once('=')?;
    (!column.is_empty()).then(|| (column.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, names: &[&str]) {
        for name in names {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
    }

    fn found(dir: &Path, place: &str) -> Vec<String> {
        let place = Place::of(&format!("{}/{place}", dir.display())).unwrap();
        let found = place.unwrap().files().unwrap_or_default().into_iter();
        let short = |file: PathBuf| file.strip_prefix(dir).unwrap().display().to_string();
        found.map(short).collect()
    }

    #[test]
    fn patterns_name_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        files(
            dir,
            &[
                "a.csv",
                "b.csv",
                "b.txt",
                "s/a.csv",
                "s/t/c.csv",
                ".h/a.csv",
                "_x.csv",
                "[1].csv",
            ],
        );
        assert_eq!(found(dir, "*.csv"), ["[1].csv", "a.csv", "b.csv"]);
        assert_eq!(found(dir, "[ab].csv"), ["a.csv", "b.csv"]);
        assert_eq!(found(dir, "?.txt"), ["b.txt"]);
        assert_eq!(found(dir, "s/*.csv"), ["s/a.csv"]);
        assert_eq!(found(dir, "*/a.csv"), ["s/a.csv"]);
        assert_eq!(found(dir, "s/**/*.csv"), ["s/a.csv", "s/t/c.csv"]);
        assert_eq!(found(dir, "s/"), ["s/a.csv", "s/t/c.csv"]);
        std::os::unix::fs::symlink(dir.join("s"), dir.join("s/up")).unwrap();
        std::os::unix::fs::symlink(dir.join("s/t"), dir.join("link")).unwrap();
        assert_eq!(found(dir, "s/**/*.csv"), ["s/a.csv", "s/t/c.csv"]);
        assert_eq!(found(dir, "**/c.csv"), ["link/c.csv", "s/t/c.csv"]);
        fs::remove_file(dir.join("s/up")).unwrap();
        assert_eq!(found(dir, "s/../a.csv"), ["a.csv"]);
        assert_eq!(found(dir, "[1].csv"), ["[1].csv"], "a file is so called");
        assert_eq!(found(dir, "*.parquet"), [""; 0]);
    }

    #[test]
    fn places_without_files_say_where_they_were_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        files(dir, &["data/sales.csv", "data/weather.csv"]);
        let folder = dir.join("data").display().to_string();
        let similar = r#"; did you mean "sales.csv"?"#;
        let outer = dir.display();
        for (place, due) in [
            (
                "data/salse.csv",
                format!("no such file in {folder}{similar}"),
            ),
            (
                "data/salse*.csv",
                format!("no file that can be read in {folder} matches{similar}"),
            ),
            (
                "data/*/x.csv",
                format!("no file that can be read below {folder} matches"),
            ),
            (
                "dta/*.csv",
                format!(r#"there is no folder {outer}/dta; did you mean "data"?"#),
            ),
        ] {
            let place = Place::of(&format!("{outer}/{place}")).unwrap().unwrap();
            match place.absence() {
                Some(Error::NoFiles { reason, .. }) => assert_eq!(reason, due),
                other => panic!("{other:?}"),
            }
        }
        let there = Place::of(&format!("{folder}/sales.csv")).unwrap().unwrap();
        assert!(there.absence().is_none());
    }

    #[test]
    fn ordinary_names_are_no_places() {
        for name in ["t", "Sales", "csv", "a b"] {
            assert_eq!(Place::of(name).unwrap(), None, "{name}");
        }
        for name in ["a.csv", "d/", "*.parquet", "/x", "file:///x.csv"] {
            assert!(Place::of(name).unwrap().is_some(), "{name}");
        }
        assert!(Place::of("s3://b/x.csv").unwrap().is_some());
        let error = Place::of("hdfs://b/x.csv").unwrap_err().to_string();
        assert!(error.contains("hdfs://b/x.csv"), "{error}");
    }

    #[test]
    fn folders_name_columns() {
        let hive = |names: &[&str]| {
            let files: Vec<_> = names.iter().map(PathBuf::from).collect();
            Hive::of(&files)
        };
        let found = hive(&["/d/y=1/m=a/f.csv", "/d/y=2/m=a/f.csv"]).unwrap();
        assert_eq!(found.columns, ["y", "m"]);
        assert_eq!(found.values, [vec!["1", "2"], vec!["a"]]);
        assert_eq!(found.roots, [PathBuf::from("/d")]);
        assert_eq!(hive(&["/d/y=1/f.csv", "/d/f.csv"]), None);
        assert_eq!(hive(&["/d/y=1/f.csv", "/d/z=1/f.csv"]), None);
        assert_eq!(hive(&["/d/y=1/s/f.csv"]), None);
    }
}
