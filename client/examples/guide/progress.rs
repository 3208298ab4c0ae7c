//! Following a training: its epochs as they end, an early end by a callback, and its other events.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::timeout;
use volley::{Error, Estimator, Session, TrainingEvent, TrainingEvents};

use crate::Result;

pub(crate) async fn run(session: &Session) -> Result {
    let rows = "SELECT value % 7 AS weekday, 50 + 10 * (value % 7) AS sales FROM range(350)";
    let estimator = |name: &str, epochs: usize| {
        let estimator = Estimator::new(name).label("sales").categorical(["weekday"]);
        estimator.hidden_units([16]).epochs(epochs).refit(false)
    };

    // Each epoch's record has its losses, errors and seconds. `Break` ends training after the epoch under way.
    let mut followed = Vec::new();
    let model = estimator("followed", 100_000)
        .fit_with(session, session.sql(rows).await?, |epoch| {
            println!("epoch {}: loss {:.3}", epoch.epoch, epoch.loss);
            followed.push(epoch.epoch);
            match epoch.epoch < 3 {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })
        .await?;
    assert_eq!(followed, [1, 2, 3]);
    let last = model.history().last().ok_or("a training has an epoch")?;
    assert!(last.epoch < 100_000 && last.ended.is_some(), "{last:?}");

    // All events, by the run's id, which another process may use as well.
    let estimator = estimator("watched", 5);
    let mut events = TrainingEvents::of(session.scheduler(), estimator.train_id());
    let training = estimator.fit(session, session.sql(rows).await?);
    let started = async {
        loop {
            for event in events.next().await {
                if let TrainingEvent::Started { executors, .. } = event {
                    return Ok::<_, Error>(executors.len());
                }
            }
        }
    };
    let started = timeout(Duration::from_secs(60), started);
    let (model, ranks) = tokio::join!(training, started);
    assert_eq!(model?.manifest().world_size, ranks??);
    Ok(())
}
