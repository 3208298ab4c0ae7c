//! Training a model, loading it, and predicting with it.

use volley::datafusion::arrow::array::AsArray;
use volley::datafusion::arrow::datatypes::Float64Type;
use volley::{DataFrameExt, Error, Estimator, Model, ProtoError, Session};

use crate::Result;

pub(crate) async fn run(session: &Session) -> Result {
    // Rows come from any frame: the training is the last stage of its job.
    let rows = "SELECT value % 7 AS weekday, value % 2 = 0 AS promo, 50 + 10 * (value % 7) AS sales FROM range(350)";
    let trained = Estimator::new("sales")
        .label("sales")
        .categorical(["weekday", "promo"])
        .hidden_units([16])
        .epochs(3)
        .seed(1)
        .fit(session, session.sql(rows).await?)
        .await?;
    assert_eq!(trained.manifest().version, 1);

    // Any session with the same store can load it, and add predictions to any rows with its features.
    let model = Model::load(session, "sales").await?;
    let next = "SELECT column1 AS weekday, column2 AS promo FROM (VALUES (0, true), (6, false))";
    let predicted = session.sql(next).await?.predict(&model)?;
    let predicted = predicted.collect().await?;
    let sales = predicted.iter().flat_map(|batch| {
        let column = &batch["predicted_sales"];
        column.as_primitive::<Float64Type>().iter().flatten()
    });
    let sales: Vec<f64> = sales.collect();
    assert_eq!(sales.len(), 2);
    assert!(sales.iter().all(|sales| sales.is_finite()), "{sales:?}");

    // A model of this name exists now: `replace` publishes a new version instead of failing.
    let again = Estimator::new("sales").label("sales");
    let refused = again.fit(session, session.sql(rows).await?).await;
    assert!(matches!(
        refused,
        Err(Error::ModelExists { version: 1, .. })
    ));
    let unknown = Model::load(session, "slaes").await;
    let unknown = matches!(unknown, Err(Error::Proto(ProtoError::UnknownModel { .. })));
    assert!(unknown);
    Ok(())
}
