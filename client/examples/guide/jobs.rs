//! Jobs that run without their client: leaving one to the cluster, following it, cancelling it.

use std::time::Duration;

use volley::{Error, JobState, Jobs, Session};

use crate::Result;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(session: &Session) -> Result {
    // More epochs than anybody waits for.
    let create = "CREATE MODEL endless OPTIONS (
                    input_label_cols = ['y'], hidden_units = [4], epochs = 10000000
                  ) AS SELECT value AS x, 2 * value AS y FROM range(1000)";
    let statement = session.parse(create)?.remove(0);
    let id = session.submit(statement).await?;
    let id = id.ok_or("IF NOT EXISTS is not in the statement")?;

    // Any process that reaches the scheduler can follow the job.
    let jobs = Jobs::connect(session.scheduler().clone(), PATIENCE).await?;
    let (job, events, _) = jobs.follow(&id, 0).await?;
    assert_eq!(job.state, JobState::Running);
    for event in events {
        println!("{}", event.text);
    }
    assert!(jobs.list().await?.iter().any(|job| job.id == id));

    let (state, had_ended) = jobs.cancel(&id, PATIENCE).await?;
    assert_eq!((state, had_ended), (JobState::Cancelled, false));
    let unknown = jobs.find("no such job").await;
    assert!(matches!(unknown, Err(Error::UnknownJob { .. })));
    Ok(())
}
