//! `volley executors`: the executors of a cluster, and the planned departure of some.
//!
//! ```text
//! list   ──> one row an executor
//! drain  ──> asked, for all ──> each has left
//! ```

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use futures::future::try_join_all;
use volley::{Executors, Scope, SystemTables};
use volley_proto::did_you_mean;
use volley_proto::tables::{self, Executor, Table};

use super::Ended;
use super::config::Executors as Config;
use super::execute::{print_batch, write};
use super::format::{age, texts};
use super::signals::Interrupts;

/// Columns of the list for programs; `volley.executors` has more.
const COLUMNS: &str =
    "executor_id host port role slots free_slots tasks ranks process_bytes device draining since";

/// Lists the executors, or drains those that are named.
///
/// # Errors
/// When the scheduler does not answer, refuses, or does not know an executor.
pub(super) async fn run(config: &Config) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    let work = async {
        let remote = &config.remote;
        let executors = Executors::connect(remote.open()?, remote.timeout).await?;
        match &config.drained[..] {
            [] => list(&executors, config).await,
            ids => drain(&executors, ids, remote.quiet).await,
        }
    };
    match interrupts.stop(work).await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) => Ok(Ended::Interrupted(code)),
    }
}

async fn list(executors: &Executors, config: &Config) -> anyhow::Result<()> {
    let json = SystemTables::of(executors.scheduler())
        .read(Table::Executors, Scope::All)
        .await?;
    let rows = match config.remote.format.is_for_people() {
        true => for_people(&tables::rows::<Executor>(&json)?, SystemTime::now())?,
        false => shown(&Table::Executors.batch(&json)?)?,
    };
    print_batch(config.remote.format, &rows).await
}

fn shown(rows: &RecordBatch) -> anyhow::Result<RecordBatch> {
    let schema = rows.schema();
    let columns = COLUMNS.split(' ').map(|name| schema.index_of(name));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    Ok(rows.project(&columns)?)
}

/// Returns a table as wide as a terminal: without roles and departures where there are none.
fn for_people(executors: &[Executor], now: SystemTime) -> Result<RecordBatch, ArrowError> {
    let text = |name, of: fn(&Executor) -> String| (name, texts(executors, of));
    let has_roles = executors.iter().any(|executor| executor.role != "any");
    let is_draining = executors.iter().any(|executor| executor.draining);
    let since = |executor: &Executor| UNIX_EPOCH + Duration::from_millis(executor.since);
    let columns = [
        Some(text("executor_id", |of| of.executor_id.clone())),
        Some(text("address", |of| format!("{}:{}", of.host, of.port))),
        has_roles.then(|| text("role", |of| of.role.clone())),
        Some(text("free", |of| {
            format!("{} of {}", of.free_slots, of.slots)
        })),
        Some(text("device", |of| of.device.clone())),
        is_draining.then(|| {
            let state = |of: &Executor| if of.draining { "draining" } else { "ready" };
            ("state", texts(executors, |of| state(of).to_owned()))
        }),
        Some(("age", texts(executors, |of| age(since(of), now)))),
    ];
    RecordBatch::try_from_iter(columns.into_iter().flatten())
}

/// Has all executors begin to leave before it waits for the first; none if one of them is unknown.
async fn drain(executors: &Executors, ids: &[String], quiet: bool) -> anyhow::Result<()> {
    let tables = SystemTables::of(executors.scheduler());
    let known: Vec<Executor> = tables.rows(Scope::All).await?;
    let known: Vec<_> = known.iter().map(|known| &*known.executor_id).collect();
    if let Some(reason) = unknown(ids, &known) {
        bail!(reason);
    }
    let mut leaving = Vec::new();
    for id in ids {
        leaving.push((id, executors.drain(id).await?));
        if !quiet {
            eprintln!("executor {id} takes no new tasks, and leaves once nothing there is needed");
        }
    }
    // Side by side: each of them must see it if the scheduler restarts.
    let left = leaving.iter().map(|(id, leaving)| async move {
        executors.await_left(leaving).await?;
        write(format!("executor {id} has left\n").as_bytes()).await?;
        anyhow::Ok(())
    });
    try_join_all(left).await?;
    Ok(())
}

/// Returns the error about the first of these executors that is not registered.
fn unknown(ids: &[String], known: &[&str]) -> Option<String> {
    let id = ids.iter().find(|id| !known.contains(&id.as_str()))?;
    let hint = did_you_mean(id, known.iter().copied());
    let registered = match known {
        [] => "none".to_owned(),
        known => known.join(", "),
    };
    let others = match ids.len() {
        1 => "",
        _ => "; none was drained",
    };
    Some(format!(
        "unknown executor {id:?}{hint}{} registered: {registered}{others}",
        if hint.is_empty() { ";" } else { "" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_that_is_not_registered_is_named() {
        let said = |ids: &[&str], known: &[&str]| {
            let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
            unknown(&ids, known)
        };
        let known = ["east-1", "west-2"];
        assert_eq!(said(&["west-2", "east-1"], &known), None);
        for (ids, known, due) in [
            (
                &["east-2"][..],
                &known[..],
                "unknown executor \"east-2\"; did you mean \"east-1\"? registered: east-1, west-2",
            ),
            (
                &["east-1", "9"],
                &known,
                "unknown executor \"9\"; registered: east-1, west-2; none was drained",
            ),
            (&[""], &[], "unknown executor \"\"; registered: none"),
        ] {
            assert_eq!(said(ids, known).as_deref(), Some(due));
        }
    }

    #[test]
    fn columns_of_the_list_are_of_the_table() {
        let rows = Table::Executors.batch(b"[]").unwrap();
        assert_eq!(
            shown(&rows).unwrap().num_columns(),
            COLUMNS.split(' ').count()
        );
    }
}
