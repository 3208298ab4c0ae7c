//! Joins, windows and aggregates as data frames: DataFusion's, run on the cluster.

use volley::Session;
use volley::datafusion::assert_batches_eq;
use volley::datafusion::functions_aggregate::expr_fn::sum;
use volley::datafusion::functions_aggregate::sum::sum_udaf;
use volley::datafusion::logical_expr::expr::WindowFunction;
use volley::datafusion::logical_expr::{ExprFunctionExt, WindowFunctionDefinition};
use volley::datafusion::prelude::*;

use crate::Result;

pub(crate) async fn run(session: &Session) -> Result {
    // A frame comes from files, from SQL, or from a table of the session.
    let sales = "SELECT column1 AS store, column2 AS day, column3 AS sales
                 FROM (VALUES (1, 1, 10), (1, 2, 20), (2, 1, 5), (2, 2, 6), (2, 3, 7))";
    let sales = session.sql(sales).await?.alias("sales")?;
    let stores = "SELECT column1 AS id, column2 AS city FROM (VALUES (1, 'Berlin'), (2, 'Bonn'))";
    let stores = session.sql(stores).await?.alias("stores")?;

    // sum(sales) OVER (PARTITION BY store ORDER BY day)
    let function = WindowFunctionDefinition::AggregateUDF(sum_udaf());
    let so_far = Expr::from(WindowFunction::new(function, vec![col("sales")]))
        .partition_by(vec![col("store")])
        .order_by(vec![col("day").sort(true, false)])
        .build()?
        .alias("so_far");

    let joined = stores.join(sales, JoinType::Inner, &["id"], &["store"], None)?;
    let running = joined.select(vec![col("city"), col("day"), col("sales"), so_far])?;
    let ordered = vec![col("city").sort(true, false), col("day").sort(true, false)];
    let rows = running.clone().sort(ordered)?.collect().await?;
    let due = [
        "+--------+-----+-------+--------+",
        "| city   | day | sales | so_far |",
        "+--------+-----+-------+--------+",
        "| Berlin | 1   | 10    | 10     |",
        "| Berlin | 2   | 20    | 30     |",
        "| Bonn   | 1   | 5     | 5      |",
        "| Bonn   | 2   | 6     | 11     |",
        "| Bonn   | 3   | 7     | 18     |",
        "+--------+-----+-------+--------+",
    ];
    assert_batches_eq!(due, &rows);

    let total = running.aggregate(vec![], vec![sum(col("sales")).alias("total")])?;
    let due = [
        "+-------+",
        "| total |",
        "+-------+",
        "| 48    |",
        "+-------+",
    ];
    assert_batches_eq!(due, &total.collect().await?);
    Ok(())
}
