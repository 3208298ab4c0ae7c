//! A commit's write-ahead record: created once for a job, and rolled forward by whichever attempt finds it.
//!
//! ```text
//!  .volley-JOB/TASK/…              files of tasks
//!  .volley-JOB/moves.json.uncommitted
//!     │ created by link(2), which replaces nothing: the first to create it has decided
//!     ▼
//!  each file is moved, unless it already is ─► TASK/ removed ─► moves.json removed ─► .volley-JOB/ removed
//! ```
//!
//! Files in place have the job's name in their names. So a committer that comes after the end, and finds no record, or
//! creates one of its own, sees files of the job that its record does not name, and moves nothing. One that comes in
//! between finishes what was recorded. This requires a folder that all hosts share, on a file system with links.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use datafusion::common::exec_err;
use datafusion::error::{DataFusionError, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use super::Target;
use super::create::create;

/// Maximum number of files that are moved at once.
const AT_ONCE: usize = 16;

/// Name of the record; because of its suffix, no reader takes it for one of the folder's files.
const FILE: &str = "moves.json.uncommitted";

/// Record of a commit: the files to move, and their number of rows.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moves {
    pub(super) rows: u64,
    /// Source and destination paths, as the store names them.
    pub(super) files: Vec<(String, String)>,
}

impl Moves {
    /// Checks whether these files of the job, which are in place, belong to another record, which has been carried out.
    pub(super) fn are_late(&self, in_place: &[Path]) -> bool {
        let own: HashSet<_> = self.files.iter().map(|(_, to)| to.as_str()).collect();
        in_place
            .iter()
            .any(|file| !own.contains::<str>(file.as_ref()))
    }

    /// Checks whether these are moves from a job's own folder into the one that it writes: a record that another
    /// process has put there may name any file that this process can move.
    pub(super) fn are_of(&self, target: &Target) -> Result<bool> {
        let staging = target.staging()?;
        let folder = target.folder().prefix();
        let is_own = |(from, to): &(String, String)| {
            let (Ok(from), Ok(to)) = (Path::parse(from), Path::parse(to)) else {
                return false;
            };
            target
                .committed(&staging, &from)
                .is_some_and(|(_, due)| due == to)
                && to.prefix_matches(folder)
        };
        Ok(self.files.iter().all(is_own))
    }

    /// Moves the files that have not been moved yet.
    pub(super) async fn carry_out(&self, store: &dyn ObjectStore) -> Result<()> {
        let parse = |(from, to): &(String, String)| -> Result<_, object_store::path::Error> {
            Ok((Path::parse(from)?, Path::parse(to)?))
        };
        let paths = self.files.iter().map(parse).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|error| DataFusionError::External(Box::new(error)))?;
        let rename = |(from, to): (Path, Path)| async move {
            let moved = store.rename(&from, &to).await;
            let is_gone = matches!(moved, Err(object_store::Error::NotFound { .. }));
            if is_gone && store.head(&to).await.is_ok() {
                return Ok(());
            }
            moved
        };
        let moves = futures::stream::iter(paths).map(rename);
        let moved = moves.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
        moved.await.map_err(DataFusionError::from)?;
        Ok(())
    }
}

/// Folder of the files that a job's tasks write, on this host.
#[derive(Debug, Clone)]
pub(super) struct Staging {
    folder: PathBuf,
}

impl Staging {
    pub(super) fn of(target: &Target) -> Result<Self> {
        match target.staging()?.get_url().to_file_path() {
            Ok(folder) => Ok(Self { folder }),
            Err(()) => exec_err!("{target} is not on a shared filesystem"),
        }
    }

    /// Returns the folders of the tasks that have started.
    pub(super) async fn tasks(&self) -> Result<Vec<PathBuf>> {
        let folder = self.folder.clone();
        blocking(move || {
            let entries = match fs::read_dir(&folder) {
                // No task had any rows, or the commit is over.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let mut tasks = Vec::new();
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    tasks.push(entry.path());
                }
            }
            Ok(tasks)
        })
        .await
    }

    /// Returns the record, if there is one.
    pub(super) async fn decided(&self) -> Result<Option<Moves>> {
        let file = self.folder.join(FILE);
        blocking(move || read(file)).await
    }

    /// Creates the record unless there is one. Returns the record in force; `None` if the commit is already over.
    pub(super) async fn decide(&self, moves: Moves) -> Result<Option<Moves>> {
        let file = self.folder.join(FILE);
        let decide = move || match create(&file, &serde_json::to_vec(&moves)?) {
            Ok(true) => Ok(Some(moves)),
            Ok(false) => read(file),
            // The folder is gone with everything in it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        blocking(decide).await
    }

    /// Removes what the commit leaves: these tasks' folders, the record, and the folder of both. The attempt of a task
    /// that has started since will remove that task's folder.
    pub(super) async fn clear(&self, tasks: Vec<PathBuf>) -> Result<()> {
        let folder = self.folder.clone();
        blocking(move || {
            let warn = |path: &PathBuf, removed: io::Result<()>| {
                if let Err(error) = removed
                    && error.kind() != ErrorKind::NotFound
                {
                    tracing::warn!(path = %path.display(), %error, "uncommitted files cannot be removed");
                }
            };
            tasks
                .iter()
                .for_each(|task| warn(task, fs::remove_dir_all(task)));
            let file = folder.join(FILE);
            warn(&file, fs::remove_file(&file));
            match fs::remove_dir(&folder) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                removed => warn(&folder, removed),
            }
            Ok(())
        })
        .await
    }
}

fn read(file: PathBuf) -> io::Result<Option<Moves>> {
    match fs::read(file) {
        Ok(json) => Ok(Some(serde_json::from_slice(&json)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|panic| DataFusionError::ExecutionJoin(Box::new(panic)))?;
    done.map_err(DataFusionError::from)
}
