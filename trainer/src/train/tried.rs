//! Outcomes of trials of a plan on a GPU, kept in files so that later trainings need not try the same again.
//!
//! ```text
//!  trial-3f….json   { key: GPU, driver, libraries and program; precision; steps; network
//!                     tried: time,  differs: nothing, or what }
//! ```
//!
//! A trial itself is [`choose`](super::choose)'s. An outcome holds for the same key only, and so for other weights and as
//! many other rows. That results differed holds for a day: in few rows, rounding may have put a unit on the other side of a
//! kink. Failures of a device are not kept: they may pass, and a training whose trial is skipped ends with them. Nor are
//! outcomes with custom layers, whose code a key does not describe. A file that cannot be read is ignored: then the trial
//! is repeated.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use humantime::{format_rfc3339_seconds, parse_rfc3339};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::spec::Precision;

use super::choose::{Subject, rows_of_trial};
use crate::device::{Records, Runtime, keep};
use crate::network::uncovered;

/// Maximum number of files; the oldest beyond are removed.
const MOST: usize = 256;
/// Maximum length of a file in bytes.
const LONGEST: u64 = 64 << 10;
/// Time for which it is believed that results differ.
const DOUBTED: Duration = Duration::from_hours(24);
/// Beginning and end of files' names.
const NAME: [&str; 2] = ["trial-", ".json"];

/// Everything that an outcome depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    /// [`Records::device`].
    device: String,
    precision: String,
    steps: Steps,
    /// Rows of a step of the trial.
    rows: u64,
    /// Hash of the network's shape, the loss and the optimizer.
    network: String,
}

/// How the steps of a trial are taken.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Steps {
    /// As by a rank alone.
    Recorded,
    /// As by a rank with peers.
    InParts,
    /// Either way: the rank may be linked with its peers.
    Both,
}

/// Outcome of a trial as a file has it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    key: Key,
    /// Time of the trial.
    tried: String,
    /// What differed from the host, if something did.
    differs: Option<String>,
}

/// File for the outcome of a trial.
#[derive(Debug)]
pub(super) struct Tried {
    folder: PathBuf,
    key: Key,
}

impl Tried {
    /// Returns the file for a training's trial; `None` if no outcome is kept. With `links`, the rank may be linked with its
    /// peers.
    pub(super) fn of(
        runtime: &dyn Runtime,
        precision: Precision,
        links: bool,
        subject: Subject<'_>,
    ) -> Option<Self> {
        if uncovered(subject.architecture).is_some() {
            return None;
        }
        let Records { folder, device } = runtime.records()?;
        let key = Key {
            device,
            precision: precision.to_string(),
            steps: match (subject.world.ranks, links) {
                (1, _) => Steps::Recorded,
                (_, false) => Steps::InParts,
                (_, true) => Steps::Both,
            },
            rows: rows_of_trial(subject),
            network: hash(&shape(subject)),
        };
        Some(Self { folder, key })
    }

    fn path(&self) -> PathBuf {
        let key = serde_json::to_vec(&self.key).expect("a key is text");
        let [start, end] = NAME;
        let name = format!("{start}{:016x}{end}", XxHash64::oneshot(0, &key));
        self.folder.join(name)
    }

    /// Returns the outcome, if one is known: what differed from the host, or `None` if nothing did.
    pub(super) fn outcome(&self) -> Option<Option<String>> {
        let path = self.path();
        let record = match read(&path) {
            Ok(record) => record?,
            Err(reason) => {
                let path = path.display();
                tracing::warn!(%path, reason, "the outcome of a trial is ignored");
                return None;
            }
        };
        if record.key != self.key {
            let path = path.display();
            tracing::warn!(%path, "the outcome of a trial is ignored: it is of another one");
            return None;
        }
        let Record { tried, differs, .. } = record;
        let path = path.display();
        let age = parse_rfc3339(&tried).ok().map(|tried| tried.elapsed());
        // A clock may have been set back.
        let is_old = !matches!(age, Some(Ok(age)) if age < DOUBTED);
        if differs.is_some() && is_old {
            return None;
        }
        tracing::debug!(%path, tried, ?differs, "a trial is not repeated");
        Some(differs.map(|what| format!("{what} (found at {tried}; to try again, remove {path})")))
    }

    /// Keeps an outcome: what differed, if something did. Without a writable folder, it is not kept.
    pub(super) fn keep(&self, differs: Option<&str>) {
        let record = Record {
            key: self.key.clone(),
            tried: format_rfc3339_seconds(SystemTime::now()).to_string(),
            differs: differs.map(str::to_owned),
        };
        let text = serde_json::to_vec_pretty(&record).expect("a record is text");
        let path = self.path();
        if let Err(error) = keep(&path, &text) {
            let path = path.display();
            tracing::debug!(%path, %error, "the outcome of a trial is not kept");
            return;
        }
        remove_oldest(&self.folder, &path);
    }
}

/// Reads a file; `None` if there is none. The error says what is wrong with it.
fn read(path: &Path) -> Result<Option<Record>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = Vec::new();
    let read = file.take(LONGEST).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    let record = serde_json::from_slice(&text);
    record.map(Some).map_err(|error| error.to_string())
}

/// Removes the oldest files of a folder, if there are too many, but not `newest`.
fn remove_oldest(folder: &Path, newest: &Path) {
    let [start, end] = NAME;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_own = name.starts_with(start) && name.ends_with(end);
        let path = entry.path();
        let written = entry.metadata().ok()?.modified().ok()?;
        (is_own && path != newest).then_some((written, path))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    let spare = (files.len() + 1).saturating_sub(MOST);
    for (_, path) in &files[..spare] {
        // Another process may have removed it.
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            let path = path.display();
            tracing::debug!(%path, %error, "the outcome of an old trial stays");
        }
    }
}

/// Describes what of a training, beside its rows and weights, decides which kernels compute it.
fn shape(subject: Subject<'_>) -> String {
    let Subject {
        spec,
        architecture,
        shards,
        ..
    } = subject;
    let weighted = shards.iter().any(|shard| !shard.train.weights.is_empty());
    let penalties = (spec.l1 > 0.0, spec.l2 != Some(0.0));
    let training = (
        &spec.loss,
        &spec.optimizer.rule,
        (&spec.label.columns.len(), &spec.label.loss_weights),
        (weighted, spec.cross_validates()),
        (penalties, spec.accumulate),
    );
    format!("{} {training:?}", architecture.shape())
}

/// Hashes a text to 128 bits.
fn hash(text: &str) -> String {
    let [first, second] = [0, 1].map(|seed| XxHash64::oneshot(seed, text.as_bytes()));
    format!("{first:016x}{second:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(folder: &Path, network: &str) -> Tried {
        Tried {
            folder: folder.to_owned(),
            key: Key {
                device: "a GPU".into(),
                precision: "f32".into(),
                steps: Steps::Recorded,
                rows: 256,
                network: hash(network),
            },
        }
    }

    #[test]
    fn an_outcome_is_kept_until_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().join("made");
        let [right, wrong] = ["right", "wrong"].map(|name| tried(&within, name));
        assert_eq!(right.outcome(), None);
        right.keep(None);
        wrong.keep(Some("losses differ"));
        assert_eq!(right.outcome(), Some(None));
        let reason = wrong.outcome().unwrap().unwrap();
        let path = wrong.path();
        let due = format!("; to try again, remove {})", path.display());
        assert!(reason.starts_with("losses differ (found at 2"), "{reason}");
        assert!(reason.ends_with(&due), "{reason}");
        let files = std::fs::read_dir(&within).unwrap();
        assert_eq!(files.count(), 2, "no other file is left");
        std::fs::remove_file(path).unwrap();
        assert_eq!(wrong.outcome(), None);
        // The last outcome counts.
        right.keep(Some("weights differ"));
        assert!(right.outcome().unwrap().is_some());
    }

    #[test]
    fn every_part_of_a_key_counts() {
        let folder = tempfile::tempdir().unwrap();
        let own = tried(folder.path(), "network");
        own.keep(None);
        let other = |change: fn(&mut Key)| {
            let mut other = tried(folder.path(), "network");
            change(&mut other.key);
            other.outcome()
        };
        assert_eq!(other(|_| {}), Some(None));
        let changes: [fn(&mut Key); 4] = [
            |key| key.device.push('2'),
            |key| key.precision = "tf32".into(),
            |key| key.steps = Steps::Both,
            |key| key.network = hash("another"),
        ];
        for change in changes {
            assert_eq!(other(change), None);
        }
    }

    #[test]
    fn files_that_are_no_outcome_are_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let own = tried(folder.path(), "network");
        own.keep(None);
        let text = std::fs::read_to_string(own.path()).unwrap();
        let another = text.replace("a GPU", "another GPU");
        let more = text.replacen('{', "{ \"more\": 1,", 1);
        let long = text.clone() + &" ".repeat(LONGEST as usize) + "}";
        for spoilt in ["", "{", "null", &text[..text.len() / 2], &another, &more] {
            std::fs::write(own.path(), spoilt).unwrap();
            assert_eq!(own.outcome(), None, "{spoilt}");
            own.keep(None);
            assert_eq!(own.outcome(), Some(None));
        }
        // No more than so much is read.
        std::fs::write(own.path(), long).unwrap();
        assert_eq!(own.outcome(), Some(None));
        std::fs::remove_file(own.path()).unwrap();
        std::fs::create_dir(own.path()).unwrap();
        assert_eq!(own.outcome(), None);
        // It cannot be kept either.
        own.keep(None);
        assert_eq!(own.outcome(), None);
    }

    #[test]
    fn the_oldest_outcomes_beyond_the_bound_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let others = ["plan-1-nvrtc-13.0-sm_90", "trial-notes.txt"];
        for other in others {
            std::fs::write(folder.path().join(other), "kept").unwrap();
        }
        let all = |count: usize| (0..count).map(|at| tried(folder.path(), &at.to_string()));
        let start = SystemTime::UNIX_EPOCH;
        for (at, tried) in all(MOST).enumerate() {
            tried.keep(None);
            let file = File::options().write(true).open(tried.path()).unwrap();
            file.set_modified(start + Duration::from_secs(at as u64))
                .unwrap();
        }
        for tried in all(MOST + 3).skip(MOST) {
            tried.keep(None);
        }
        let known = all(MOST + 3).map(|tried| tried.outcome().is_some());
        let known: Vec<bool> = known.collect();
        assert_eq!(known[..4], [false, false, false, true]);
        assert_eq!(known.iter().filter(|known| **known).count(), MOST);
        for other in others {
            assert!(folder.path().join(other).exists(), "{other}");
        }
    }
}
