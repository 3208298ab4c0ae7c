//! `volley cluster`: a scheduler and executors as processes on this machine.
//!
//! ```text
//! up     ──> scheduler writes its address ──> executors register with it ──> cluster.json
//! status ──> cluster.json, /proc
//! down   ──> cluster.json ──> SIGTERM ──(deadline)──> SIGKILL ──> cluster.json removed
//! ```
//!
//! The processes outlive the command, in their own process groups, with logs in the cluster's directory. A pid alone is
//! never trusted, because the system reuses pids: a process belongs to the cluster only if its command line says so.

mod process;
mod state;
mod token;
mod up;

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use volley_proto::tls::TlsFiles;

use self::process::stop_all;
use self::state::{Component, Process, State};
use super::Ended;
use super::config::{Cluster, ClusterAction};
use super::report::print;

/// Time for a process to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Runs the action on the cluster.
///
/// # Errors
/// When there is no such cluster, when one runs already, or when it does not start or stop.
pub(super) async fn run(cluster: &Cluster) -> anyhow::Result<Ended> {
    let dir = &cluster.dir;
    match &cluster.action {
        ClusterAction::Up(up) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            let _lock = lock(dir)?;
            up::run(up, dir).await
        }
        ClusterAction::Token(token) => self::token::run(token),
        ClusterAction::Status => status(dir),
        ClusterAction::Down => {
            // If the directory is missing, there is nothing to lock or to stop.
            State::read(dir)?.with_context(|| no_cluster(dir))?;
            let _lock = lock(dir)?;
            down(dir).await
        }
    }
}

/// Cluster that `volley cluster up` has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundCluster {
    /// Address of its scheduler, `host:port`.
    pub(super) scheduler: String,
    /// Certificates of its authority, if it speaks TLS.
    pub(super) tls: Option<TlsFiles>,
}

impl FoundCluster {
    /// Returns the note that it is used.
    pub(super) fn note(scheduler: &str) -> String {
        format!("using the cluster at {scheduler} (started by volley cluster up)")
    }
}

/// Returns the cluster that was started in a directory, if it is alive. One that speaks TLS is not found if the version
/// that started it did not record its authority.
pub(super) fn find(dir: &Path) -> Option<FoundCluster> {
    let state = State::read(dir).ok().flatten()?;
    let mut schedulers = state.processes.iter();
    let scheduler = schedulers.find(|process| process.component == Component::Scheduler)?;
    let tls = match (state.tls?, state.tls_ca) {
        (false, _) => None,
        (true, Some(ca)) => Some(TlsFiles { ca, identity: None }),
        (true, None) => return None,
    };
    let found = FoundCluster {
        scheduler: scheduler.address.clone()?,
        tls,
    };
    scheduler.is_alive().then_some(found)
}

fn status(dir: &Path) -> anyhow::Result<Ended> {
    let state = State::read(dir)?.with_context(|| no_cluster(dir))?;
    print(&state.table(Process::is_alive))?;
    let alive = state.processes.iter().all(Process::is_alive);
    Ok(if alive { Ended::Done } else { Ended::Failed })
}

async fn down(dir: &Path) -> anyhow::Result<Ended> {
    let state = State::read(dir)?.with_context(|| no_cluster(dir))?;
    stop(&state).await?;
    state.remove(dir)?;
    print(&format!("stopped {} processes\n", state.processes.len()))?;
    Ok(Ended::Done)
}

/// Stops the executors, then the scheduler, so that executors can deregister.
async fn stop(state: &State) -> anyhow::Result<()> {
    for component in [Component::Executor, Component::Scheduler] {
        let ours: Vec<_> = state
            .processes
            .iter()
            .filter(|process| process.component == component)
            .collect();
        stop_all(&ours, GRACE).await?;
    }
    Ok(())
}

/// Locks the cluster's directory, so that two commands do not change one cluster at the same time.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            bail!(
                "another `volley cluster` command is at work in {}",
                dir.display()
            )
        }
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

fn no_cluster(dir: &Path) -> String {
    format!(
        "no cluster in {}: start one with `volley cluster up`",
        dir.display()
    )
}
