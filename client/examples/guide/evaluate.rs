//! Evaluating a model, explaining it, and comparing new rows with those of training.

use volley::{Estimator, Session};

use crate::Result;

/// Sales depend on the day of the week, and a little on the price.
const ROWS: &str = "SELECT value % 7 AS weekday, (value % 10) / 1.0 AS price,
                    50 + 10 * (value % 7) - 2 * (value % 10) AS sales FROM range(350)";

pub(crate) async fn run(session: &Session) -> Result {
    let model = Estimator::new("evaluated")
        .label("sales")
        .categorical(["weekday"])
        .continuous(["price"])
        .linear(true)
        .fit(session, session.sql(ROWS).await?)
        .await?;

    // The metrics of `ML.EVALUATE`; those of a classification are `None` here.
    let evaluation = model.evaluate(session, session.sql(ROWS).await?).await?;
    assert_eq!(evaluation.rows, 350);
    assert!(evaluation.r2_score > Some(0.99), "{evaluation:?}");
    assert_eq!(evaluation.accuracy, None);

    // How much worse it predicts when a feature's values are permuted; the most important feature is first.
    let importance = model.explain(session, session.sql(ROWS).await?).await?;
    let names: Vec<_> = importance.iter().map(|of| of.feature.as_str()).collect();
    assert_eq!(names, ["weekday", "price"], "{importance:?}");

    // Prices have risen by 10, which is more than three standard deviations of those in training.
    let later = "SELECT value % 7 AS weekday, (value % 10) / 1.0 + 10 AS price FROM range(70)";
    let later = session.sql(later).await?;
    let features = model.feature_info(session, later).await?;
    assert_eq!(features[0].category_count, Some(7));
    assert!(features[1].drift > Some(3.0), "{features:?}");

    // The history is part of the model.
    let last = model.history().last().ok_or("a training has an epoch")?;
    assert!(last.loss < 1.0, "{last:?}");
    Ok(())
}
