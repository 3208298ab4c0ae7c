//! Following a training: its epochs as they end, and its other events.

use std::time::Duration;

use tokio::time::timeout;
use volley::{Error, Estimator, Session, TrainingEvent, TrainingEvents};

use crate::Result;

pub(crate) async fn run(session: &Session) -> Result {
    let rows = "SELECT value % 7 AS weekday, 50 + 10 * (value % 7) AS sales FROM range(350)";
    let estimator = |name: &str| {
        let estimator = Estimator::new(name).label("sales").categorical(["weekday"]);
        estimator.hidden_units([16]).epochs(5).refit(false)
    };

    // Each epoch's record: losses, errors and seconds.
    let mut followed = Vec::new();
    let model = estimator("followed")
        .fit_with(session, session.sql(rows).await?, |epoch| {
            println!("epoch {}: loss {:.3}", epoch.epoch, epoch.loss);
            followed.push(epoch.epoch);
        })
        .await?;
    assert_eq!(followed, [1, 2, 3, 4, 5]);
    assert_eq!(model.history().len(), 5);

    // All events, by the run's id, which another process may use as well.
    let estimator = estimator("watched");
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
