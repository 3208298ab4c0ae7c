//! Locations that plans may read and write.
//!
//! ```text
//!   file:///data/in/../../etc/passwd ─► its real folders, links followed ─► below a prefix?
//!   s3://bucket/in/part-0.parquet    ─► segments, decoded                ─► below a prefix?
//! ```
//!
//! A link can be changed between the check and the use, but a user who can do that on an executor's host has access to
//! more than this guards.

use std::fmt;
use std::path::{Component, Components, Path, PathBuf};

use url::Url;

use crate::{Error, Result};

/// Prefixes below which plans may read and write; without one, they may do so everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedPaths {
    prefixes: Vec<Place>,
}

/// Location without parts that lead elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Remote {
        /// Scheme, Azure container, host and port.
        origin: String,
        segments: Vec<String>,
    },
}

impl AllowedPaths {
    /// Creates the check from prefixes, each an absolute folder or a URL.
    ///
    /// # Errors
    /// Names the prefix that is neither.
    pub fn new(prefixes: &[String]) -> Result<Self> {
        let place = |text: &String| {
            let refuse = |expected: String| Error::option("--allow-path", text, expected);
            let url = match Url::parse(text) {
                Ok(url) if url.scheme().len() > 1 => url,
                _ if Path::new(text).is_absolute() => Url::from_directory_path(text)
                    .map_err(|()| refuse("expected a folder, or a URL".to_owned()))?,
                _ => return Err(refuse("expected an absolute folder, or a URL".to_owned())),
            };
            Place::of(&url).map_err(refuse)
        };
        let prefixes = prefixes.iter().map(place).collect::<Result<_>>()?;
        Ok(Self { prefixes })
    }

    /// Checks whether any location is refused.
    pub fn is_restricted(&self) -> bool {
        !self.prefixes.is_empty()
    }

    /// Checks that a location is below one of the prefixes.
    ///
    /// # Errors
    /// Names the location and the prefixes when it is not.
    pub fn check(&self, url: &Url) -> Result<(), Denied> {
        if !self.is_restricted() {
            return Ok(());
        }
        let denied = |reason: String| Denied {
            place: shown(url),
            reason,
        };
        let place = Place::of(url).map_err(denied)?;
        match self.prefixes.iter().any(|prefix| place.is_below(prefix)) {
            true => Ok(()),
            false => Err(denied(format!("it is not below {self}"))),
        }
    }
}

impl fmt::Display for AllowedPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, prefix) in self.prefixes.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            match prefix {
                Place::Local(path) => write!(f, "{}", path.display())?,
                Place::Remote { origin, segments } => write!(f, "{origin}/{}", segments.join("/"))?,
            }
        }
        Ok(())
    }
}

/// Location that a plan may not read or write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place} may not be read or written: {reason} (--allow-path)")]
pub struct Denied {
    /// Location, without the user name and password of its URL.
    pub place: String,
    reason: String,
}

impl Denied {
    pub(crate) fn new(place: String, reason: String) -> Self {
        Self { place, reason }
    }
}

impl Place {
    /// Resolves a URL.
    ///
    /// # Errors
    /// When it contains parts that lead elsewhere.
    fn of(url: &Url) -> Result<Self, String> {
        if url.scheme() == "file" {
            let path = url.to_file_path();
            let path = path.map_err(|()| "it is a file on another host".to_owned())?;
            return Ok(Self::Local(followed(&path)?));
        }
        let segments = url.path_segments().into_iter().flatten();
        let segments = segments
            .filter(|segment| !segment.is_empty())
            .map(|segment| {
                let decoded = object_store::path::Path::from_url_path(segment);
                let decoded = decoded.map_err(|error| error.to_string())?.to_string();
                match decoded.contains('/') || matches!(decoded.as_str(), "." | "..") {
                    true => Err(format!("{segment:?} in it is not a name")),
                    false => Ok(decoded),
                }
            });
        let port = url.port_or_known_default();
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        // Azure's container takes the place of a user: `abfss://container@account.dfs.core.windows.net/`.
        let user = match url.username() {
            "" => String::new(),
            user => format!("{user}@"),
        };
        Ok(Self::Remote {
            origin: format!(
                "{}://{user}{}{port}",
                url.scheme(),
                url.host_str().unwrap_or_default()
            ),
            segments: segments.collect::<Result<_, String>>()?,
        })
    }

    fn is_below(&self, prefix: &Self) -> bool {
        match (self, prefix) {
            (Self::Local(path), Self::Local(prefix)) => path.starts_with(prefix),
            (
                Self::Remote { origin, segments },
                Self::Remote {
                    origin: its,
                    segments: begin,
                },
            ) => origin == its && segments.starts_with(begin),
            _ => false,
        }
    }
}

/// Follows the links of a path as far as it exists; the rest must be plain names.
fn followed(path: &Path) -> Result<PathBuf, String> {
    let mut found = PathBuf::from("/");
    let mut rest = path.components();
    while let Some(component) = rest.next() {
        let there = match component {
            Component::RootDir | Component::CurDir => continue,
            // The path before it is resolved: `a/../b` is beside the target of the link `a`.
            Component::ParentDir => {
                found.pop();
                continue;
            }
            Component::Normal(name) => found.join(name),
            Component::Prefix(_) => return Err("it is not a path of this system".to_owned()),
        };
        match there.canonicalize() {
            Ok(followed) => found = followed,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // A dangling link: a file made there would be made at its target.
                if there.symlink_metadata().is_ok() {
                    return Err(format!("{} is a link to nothing", there.display()));
                }
                return made(there, rest);
            }
            Err(error) => return Err(format!("{}: {error}", there.display())),
        }
    }
    Ok(found)
}

/// Returns a path below a folder that does not exist yet.
fn made(mut folder: PathBuf, rest: Components<'_>) -> Result<PathBuf, String> {
    for component in rest {
        match component {
            Component::Normal(name) => folder.push(name),
            Component::CurDir => {}
            _ => return Err("it leads through a folder that is not there".to_owned()),
        }
    }
    Ok(folder)
}

/// Formats a URL for messages, without user name, password, query and fragment.
fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // A URL without a host has no such parts.
    shown.set_password(None).ok();
    shown.set_username("").ok();
    shown.to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn below(prefixes: &[&str]) -> AllowedPaths {
        let prefixes: Vec<_> = prefixes.iter().map(|text| (*text).to_owned()).collect();
        AllowedPaths::new(&prefixes).unwrap()
    }

    fn may(allowed: &AllowedPaths, url: &str) -> bool {
        allowed.check(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn without_prefixes_everything_is_allowed() {
        let all = AllowedPaths::default();
        assert!(!all.is_restricted() && may(&all, "file:///etc/passwd") && may(&all, "s3://b/x"));
    }

    #[test]
    fn local_paths_are_followed_before_they_are_compared() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for folder in ["data/in", "data-other", "secret"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("secret/key"), "k").unwrap();
        symlink(root.join("secret"), root.join("data/out")).unwrap();
        symlink(root.join("secret/key"), root.join("data/in/key")).unwrap();
        symlink(root.join("nowhere"), root.join("data/dangling")).unwrap();
        symlink(root.join("data/in"), root.join("alias")).unwrap();
        let data = root.join("data");
        let allowed = below(&[data.to_str().unwrap()]);
        let check = |path: &str| {
            let url = format!("file://{}/{path}", root.display());
            may(&allowed, &url)
        };
        for inside in [
            "data",
            "data/",
            "data/in/a.csv",
            "data/new/deep/b.csv",
            "alias/x",
            "data/in/../c",
        ] {
            assert!(check(inside), "{inside}");
        }
        for outside in [
            "",
            "secret/key",
            "data-other/x",
            "data/../secret/key",
            "data/%2e%2e/secret/key",
            "data/in/..%2f..%2fsecret/key",
            "data/out/key",
            "data/out/new",
            "data/in/key",
            "data/dangling",
            "data/dangling/x",
            "data/none/../../secret/key",
        ] {
            assert!(!check(outside), "{outside}");
        }
        assert!(!may(&allowed, "s3://bucket/data/x") && !may(&allowed, "file://host/data/x"));
    }

    #[test]
    fn urls_are_compared_segment_by_segment() {
        let allowed = below(&["s3://bucket/in", "https://host:8443/a/"]);
        for inside in [
            "s3://bucket/in",
            "s3://bucket/in/x.csv",
            "https://host:8443/a/b",
            "s3://bucket//in//x",
        ] {
            assert!(may(&allowed, inside), "{inside}");
        }
        for outside in [
            "s3://bucket/into/x",
            "s3://bucket/",
            "s3://other/in/x",
            "s3://bucket/in/../out/x",
            "s3://bucket/in/%2e%2e/out/x",
            "s3://bucket/in/..%2fout/x",
            "gs://bucket/in/x",
            "https://host/a/b",
            "http://host:8443/a/b",
            "file:///in/x",
        ] {
            assert!(!may(&allowed, outside), "{outside}");
        }
        let url = Url::parse("https://me:word@host/x?token=1").unwrap();
        let said = allowed.check(&url).unwrap_err().to_string();
        assert!(
            said.contains("https://host/x") && !said.contains("word") && !said.contains("token=1"),
            "{said}"
        );
    }

    #[test]
    fn a_prefix_is_a_folder_or_a_url() {
        let refused = AllowedPaths::new(&["data".to_owned()]).unwrap_err();
        assert!(refused.to_string().contains("--allow-path"), "{refused}");
        assert_eq!(below(&["s3://b/x"]).to_string(), "s3://b/x");
    }
}
