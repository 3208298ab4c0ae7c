//! Checks that no join of the features loses or duplicates rows, by counting before and after each join, like
//! `checks.sql`.

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::{count, sum};
use datafusion::logical_expr::JoinType;
use datafusion::prelude::*;

use crate::Error;
use crate::features::{sales, sales_store, stores, trends, weather_by_state};

/// Runs every join of the features and compares the row counts before and after.
///
/// # Errors
///
/// [`Error::JoinChangedRows`] names the first join that lost or duplicated rows.
pub async fn check_joins(ctx: &SessionContext) -> Result<(), Error> {
    let counts = count_joins(ctx)
        .await
        .map_err(Error::query("count the rows of the joins"))?;
    match counts
        .into_iter()
        .find(|counted| counted.before != counted.after)
    {
        Some(Counted {
            join,
            before,
            after,
        }) => Err(Error::JoinChangedRows {
            join,
            before,
            after,
        }),
        None => Ok(()),
    }
}

struct Counted {
    join: &'static str,
    before: u64,
    after: u64,
}

/// Counts in the order in which the joins build on each other: the first difference is the cause.
async fn count_joins(ctx: &SessionContext) -> Result<Vec<Counted>> {
    // Row counts by state and day: enough for the joins on State and Date, and small enough to keep, so that the
    // sales are read only once.
    let days = sales_store(ctx)
        .await?
        .aggregate(
            vec![ident("State"), ident("Date")],
            vec![count(lit(1)).alias("n")],
        )?
        .with_column("day_year", date_part(lit("year"), ident("Date")))?
        .with_column("day_week", date_part(lit("week"), ident("Date")))?
        .cache()
        .await?;
    let year_and_week = || {
        [
            ident("trend_year").eq(ident("day_year")),
            ident("trend_week").eq(ident("day_week")),
        ]
    };
    let trends = trends(ctx).await?;
    let of_state = trends.clone().join_on(
        days.clone(),
        JoinType::Inner,
        [ident("trend_state").eq(ident("State"))]
            .into_iter()
            .chain(year_and_week()),
    )?;
    let of_germany = trends.filter(ident("trend_state").is_null())?.join_on(
        days.clone(),
        JoinType::Inner,
        year_and_week(),
    )?;
    let weather = weather_by_state(ctx).await?;
    let of_weather = weather.clone().join_on(
        days.clone(),
        JoinType::Inner,
        [
            ident("day_state").eq(ident("State")),
            ident("day").eq(ident("Date")),
        ],
    )?;

    let in_store = rows(ctx.table("store").await?).await?;
    let in_sales = rows(sales(ctx).await?).await?;
    let in_weather = rows(ctx.table("weather").await?).await?;
    let in_days = total(days).await?;
    let counted = |join, before, after| Counted {
        join,
        before,
        after,
    };
    Ok(vec![
        counted(
            "store with store_states",
            in_store,
            rows(stores(ctx).await?).await?,
        ),
        counted("train and test with store", in_sales, in_days),
        counted(
            "train and test with googletrend of the state",
            in_days,
            total(of_state).await?,
        ),
        counted(
            "train and test with googletrend of Germany",
            in_days,
            total(of_germany).await?,
        ),
        counted("weather with state_names", in_weather, rows(weather).await?),
        counted(
            "train and test with weather",
            in_days,
            total(of_weather).await?,
        ),
    ])
}

async fn rows(frame: DataFrame) -> Result<u64> {
    Ok(frame.count().await? as u64)
}

/// Returns the sum of `n`; 0 if there are no rows.
async fn total(frame: DataFrame) -> Result<u64> {
    let batches = frame
        .aggregate(vec![], vec![sum(ident("n"))])?
        .collect()
        .await?;
    let total = batches
        .iter()
        .map(|batch| batch.column(0).as_primitive::<Int64Type>());
    Ok(total
        .flat_map(|column| column.iter().flatten())
        .sum::<i64>() as u64)
}
