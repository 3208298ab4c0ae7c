//! The features as DataFrames: the same rows as `features.sql`, built from the same steps.
//!
//! ```text
//!   train ∪ test       store_states ⋈ store    state_names ⋈ weather ⋈ googletrend (twice)
//!        │                       │                       │
//!      sales ── sales_elapsed ── ⋈ stores ────────────── ⋈ state_days ── features ─┬─ train
//!               one exchange and one sort                                          ├─ test
//!               on Store, Date                                                     └─ training_set
//! ```
//!
//! Train and test stay together: the elapsed days of the first test rows reach back into train. The left side of a
//! join is the small one: it is hashed, or sent to every task. Names are case-sensitive, so columns are named with
//! `ident`, never `col`.

use datafusion::arrow::datatypes::DataType::{Date32, Float32, Int32};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::{max, min};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{ExprFunctionExt, JoinType, WindowFrame, WindowFrameBound};
use datafusion::logical_expr::{WindowFrameUnits, WindowFunctionDefinition};
use datafusion::prelude::*;

use crate::Error;

/// The 18 categorical features, in the order in which a model reads them.
pub const CATEGORICAL: [&str; 18] = [
    "Store",
    "State",
    "DayOfWeek",
    "Year",
    "Month",
    "Day",
    "Week",
    "CompetitionMonthsOpen",
    "Promo2Weeks",
    "StoreType",
    "Assortment",
    "PromoInterval",
    "CompetitionOpenSinceYear",
    "Promo2SinceYear",
    "Events",
    "Promo",
    "StateHoliday",
    "SchoolHoliday",
];

/// The 18 continuous features, in the order in which a model reads them.
pub const CONTINUOUS: [&str; 18] = [
    "CompetitionDistance",
    "Max_TemperatureC",
    "Mean_TemperatureC",
    "Min_TemperatureC",
    "Max_Humidity",
    "Mean_Humidity",
    "Min_Humidity",
    "Max_Wind_SpeedKm_h",
    "Mean_Wind_SpeedKm_h",
    "CloudCover",
    "trend",
    "trend_de",
    "BeforePromo",
    "AfterPromo",
    "AfterStateHoliday",
    "BeforeStateHoliday",
    "BeforeSchoolHoliday",
    "AfterSchoolHoliday",
];

/// Predicted column.
pub const LABEL: &str = "Sales";

/// Column with each row's role in the training set: `TRAIN`, `EVAL` or `TEST`.
pub const SPLIT: &str = "split";

/// The finished features, planned but not run yet.
#[derive(Debug, Clone)]
pub struct Features {
    /// `Date`, `Sales` and the features, of rows with sales.
    pub train: DataFrame,
    /// `Id`, `Date`, `Open` and the features.
    pub test: DataFrame,
    /// `split`, `Date`, `Sales` and the features of both. The `TEST` rows have no `Sales` and only contribute values
    /// to the vocabularies.
    pub training_set: DataFrame,
}

/// Plans the features over the tables registered by [`register_tables`](super::register_tables) or by `tables.sql`.
///
/// # Errors
///
/// [`Error::Query`] when a table or a column is missing.
pub async fn features(ctx: &SessionContext) -> Result<Features, Error> {
    plan(ctx).await.map_err(Error::query("plan the features"))
}

async fn plan(ctx: &SessionContext) -> Result<Features> {
    let rows = join_state_days(state_days(ctx).await?, sales_store(ctx).await?)?;
    let sold = ident(LABEL).gt(lit(0));
    let train = rows
        .clone()
        .filter(not(ident("is_test")).and(sold.clone()))?;
    let test = rows.clone().filter(ident("is_test"))?;
    let kept = rows.filter(ident("is_test").or(sold))?;
    let split = when(ident("is_test"), lit("TEST"))
        .when(
            (ident("Date") - ident("first_date"))
                .gt(lit(-365))
                .and((ident("Date") - ident("last_date")).lt_eq(lit(-365))),
            lit("EVAL"),
        )
        .otherwise(lit("TRAIN"))?;
    let training_set = test_dates(ctx).await?.join_on(kept, JoinType::Inner, [])?;
    Ok(Features {
        train: train.select(with_features([ident("Date"), ident(LABEL)]))?,
        test: test.select(with_features([ident("Id"), ident("Date"), ident("Open")]))?,
        training_set: training_set.select(with_features([
            split.alias(SPLIT),
            ident("Date"),
            ident(LABEL),
        ]))?,
    })
}

fn with_features<const N: usize>(first: [Expr; N]) -> Vec<Expr> {
    first
        .into_iter()
        .chain(CATEGORICAL.into_iter().chain(CONTINUOUS).map(ident))
        .collect()
}

/// Returns one row with the first and the last date of test.
async fn test_dates(ctx: &SessionContext) -> Result<DataFrame> {
    ctx.table("test").await?.aggregate(
        vec![],
        vec![
            min(ident("Date")).alias("first_date"),
            max(ident("Date")).alias("last_date"),
        ],
    )
}

/// Returns the union of train and test: test rows have an `Id`, train rows have `Sales`. A flag is true when its
/// text is not "0"; null stays null.
pub(crate) async fn sales(ctx: &SessionContext) -> Result<DataFrame> {
    let columns = |id: Expr, sales: Expr| {
        let flags = ["Open", "Promo", "StateHoliday", "SchoolHoliday"]
            .map(|flag| ident(flag).not_eq(lit("0")).alias(flag));
        [
            id.alias("Id"),
            ident("Store"),
            ident("DayOfWeek"),
            ident("Date"),
            sales.alias(LABEL),
        ]
        .into_iter()
        .chain(flags)
        .collect::<Vec<_>>()
    };
    let null = || lit(ScalarValue::Int32(None));
    let train = ctx
        .table("train")
        .await?
        .select(columns(null(), ident(LABEL)))?;
    let test = ctx
        .table("test")
        .await?
        .select(columns(ident("Id"), null()))?;
    train.union(test)
}

/// Adds two columns for each event: the days since its last date (else since the store's first date), and the days
/// to its next date (else to the store's last date), counted as negative.
fn sales_elapsed(sales: DataFrame) -> Result<DataFrame> {
    let first = over_store(WindowFunctionDefinition::AggregateUDF(min_udaf()), None)?;
    let last = over_store(WindowFunctionDefinition::AggregateUDF(max_udaf()), None)?;
    let mut columns: Vec<Expr> = sales
        .schema()
        .fields()
        .iter()
        .map(|field| ident(field.name()))
        .collect();
    for event in ["Promo", "StateHoliday", "SchoolHoliday"] {
        let before = WindowFrameBound::Preceding(ScalarValue::Null);
        let before = over_store(
            WindowFunctionDefinition::AggregateUDF(max_udaf()),
            Some((event, before, WindowFrameBound::CurrentRow)),
        )?;
        let after = WindowFrameBound::Following(ScalarValue::Null);
        let after = over_store(
            WindowFunctionDefinition::AggregateUDF(min_udaf()),
            Some((event, WindowFrameBound::CurrentRow, after)),
        )?;
        columns.push(days_since(
            coalesce(vec![before, first.clone()]),
            &format!("After{event}"),
        ));
        columns.push(days_since(
            coalesce(vec![after, last.clone()]),
            &format!("Before{event}"),
        ));
    }
    sales.select(columns)
}

fn days_since(date: Expr, name: &str) -> Expr {
    cast(ident("Date") - date, Float32).alias(name)
}

/// Returns an aggregate of dates over the rows of the same store: over all of them, or over those with an event and
/// a date between two bounds. The window ranges over dates, not rows, so that rows of the same date see the same
/// past.
fn over_store(
    function: WindowFunctionDefinition,
    event: Option<(&str, WindowFrameBound, WindowFrameBound)>,
) -> Result<Expr> {
    let window = Expr::from(WindowFunction::new(function, vec![ident("Date")]))
        .partition_by(vec![ident("Store")]);
    match event {
        None => window.build(),
        Some((event, from, to)) => window
            .filter(ident(event))
            .order_by(vec![ident("Date").sort(true, false)])
            .window_frame(WindowFrame::new_bounds(WindowFrameUnits::Range, from, to))
            .build(),
    }
}

/// Returns one row per store. The dates of its competitor and of its start in Promo2 are null if it has neither.
pub(crate) async fn stores(ctx: &SessionContext) -> Result<DataFrame> {
    let states = ctx
        .table("store_states")
        .await?
        .select(vec![ident("Store").alias("state_store"), ident("State")])?;
    let year = |name: &str| cast(coalesce(vec![ident(name), lit(1900)]), Int32);
    let competition_since = when(
        ident("CompetitionOpenSinceYear").gt(lit(1900)),
        make_date(
            ident("CompetitionOpenSinceYear"),
            coalesce(vec![ident("CompetitionOpenSinceMonth"), lit(1)]),
            lit(15),
        ),
    )
    .end()?;
    let promo2_since = when(
        ident("Promo2SinceYear").gt(lit(1900)),
        make_date(ident("Promo2SinceYear"), lit(1), lit(1))
            + (coalesce(vec![ident("Promo2SinceWeek"), lit(1)]) - lit(1)) * lit(7),
    )
    .end()?;
    states
        .join_on(
            ctx.table("store").await?,
            JoinType::Inner,
            [ident("state_store").eq(ident("Store"))],
        )?
        .select(vec![
            ident("Store").alias("store_key"),
            ident("State"),
            ident("StoreType"),
            ident("Assortment"),
            ident("PromoInterval"),
            year("CompetitionOpenSinceYear").alias("CompetitionOpenSinceYear"),
            year("Promo2SinceYear").alias("Promo2SinceYear"),
            competition_since.alias("competition_since"),
            promo2_since.alias("promo2_since"),
            number("CompetitionDistance"),
        ])
}

/// Returns a column as a continuous feature: null becomes 0.
fn number(name: &str) -> Expr {
    cast(coalesce(vec![ident(name), lit(0)]), Float32).alias(name)
}

fn part(part: &str, date: &str) -> Expr {
    date_part(lit(part), ident(date))
}

/// Returns one row per state and week, keyed by the calendar year and the ISO week of the week's first day. The
/// state is null for the whole of Germany.
pub(crate) async fn trends(ctx: &SessionContext) -> Result<DataFrame> {
    let state = when(
        ident("file").eq(lit("Rossmann_DE")),
        lit(ScalarValue::Utf8(None)),
    )
    .when(ident("file").eq(lit("Rossmann_DE_NI")), lit("HB,NI"))
    .otherwise(substr(ident("file"), lit("Rossmann_DE_".len() as i64 + 1)))?;
    let first_day = cast(split_part(ident("week"), lit(" -"), lit(1)), Date32);
    ctx.table("googletrend")
        .await?
        .select(vec![
            state.alias("trend_state"),
            first_day.alias("first_day"),
            number("trend"),
        ])?
        .select(vec![
            ident("trend_state"),
            part("year", "first_day").alias("trend_year"),
            part("week", "first_day").alias("trend_week"),
            ident("trend"),
        ])
}

/// Returns one row per state and date.
pub(crate) async fn weather_by_state(ctx: &SessionContext) -> Result<DataFrame> {
    let names = ctx.table("state_names").await?;
    let mut columns = vec![
        ident("State").alias("day_state"),
        ident("Date").alias("day"),
        ident("Events"),
    ];
    columns.extend(CALENDAR.map(|(name, unit)| part(unit, "Date").alias(name)));
    columns.extend(WEATHER.map(number));
    names
        .join_on(
            ctx.table("weather").await?,
            JoinType::Inner,
            [ident("StateName").eq(ident("file"))],
        )?
        .select(columns)
}

/// Parts of a date that are features, with their names in SQL.
const CALENDAR: [(&str, &str); 4] = [
    ("Year", "year"),
    ("Month", "month"),
    ("Day", "day"),
    ("Week", "week"),
];

const WEATHER: [&str; 9] = [
    "Max_TemperatureC",
    "Mean_TemperatureC",
    "Min_TemperatureC",
    "Max_Humidity",
    "Mean_Humidity",
    "Min_Humidity",
    "Max_Wind_SpeedKm_h",
    "Mean_Wind_SpeedKm_h",
    "CloudCover",
];

/// Returns all features of a state on a date. They are joined before the sales, which have a hundred times more
/// rows.
async fn state_days(ctx: &SessionContext) -> Result<DataFrame> {
    let same_week = || {
        [
            ident("trend_year").eq(ident("Year")),
            ident("trend_week").eq(ident("Week")),
        ]
    };
    let of_state = |day: DataFrame, trends: DataFrame| {
        let on = [ident("trend_state").eq(ident("day_state"))]
            .into_iter()
            .chain(same_week());
        trends.join_on(day, JoinType::Inner, on)
    };
    let columns = |trends: [Expr; 1]| {
        ["day_state", "day", "Events"]
            .into_iter()
            .chain(CALENDAR.map(|(name, _)| name))
            .chain(WEATHER)
            .map(ident)
            .chain(trends)
            .collect::<Vec<_>>()
    };
    let days = of_state(weather_by_state(ctx).await?, trends(ctx).await?)?
        .select(columns([ident("trend").alias("state_trend")]))?;
    let germany = trends(ctx).await?.filter(ident("trend_state").is_null())?;
    germany.join_on(days, JoinType::Inner, same_week())?.select(
        columns([ident("state_trend").alias("trend")])
            .into_iter()
            .chain([ident("trend").alias("trend_de")])
            .collect::<Vec<_>>(),
    )
}

/// Returns the sales with their elapsed days and their store.
///
/// The projection keeps the optimizer from merging this join with the next one. It would first pair every store with
/// every day of its state, which gives as many rows as the sales have.
pub(crate) async fn sales_store(ctx: &SessionContext) -> Result<DataFrame> {
    let sales = sales_elapsed(sales(ctx).await?)?;
    let joined = stores(ctx).await?.join_on(
        sales,
        JoinType::Inner,
        [ident("store_key").eq(ident("Store"))],
    )?;
    let names = joined.schema().fields().iter().map(|field| field.name());
    let columns: Vec<Expr> = names
        .filter(|name| *name != "store_key")
        .map(ident)
        .collect();
    joined.select(columns)
}

/// Returns the last join, which contains every feature.
fn join_state_days(state_days: DataFrame, sales_store: DataFrame) -> Result<DataFrame> {
    let on = [
        ident("day_state").eq(ident("State")),
        ident("day").eq(ident("Date")),
    ];
    let mut columns = vec![
        ident("Id").is_not_null().alias("is_test"),
        ident("Id"),
        ident("Date"),
        ident(LABEL),
        ident("Open"),
        // A competitor counts for at most two years of 360 days, Promo2 for at most 25 weeks.
        periods_since("competition_since", 720, 30).alias("CompetitionMonthsOpen"),
        periods_since("promo2_since", 175, 7).alias("Promo2Weeks"),
    ];
    let named: Vec<String> = columns
        .iter()
        .map(|column| column.schema_name().to_string())
        .collect();
    columns.extend(
        CATEGORICAL
            .into_iter()
            .chain(CONTINUOUS)
            .filter(|name| !named.iter().any(|column| column == name))
            .map(ident),
    );
    state_days
        .join_on(sales_store, JoinType::Inner, on)?
        .select(columns)
}

/// Returns the number of whole periods of `days` from the date `since` to this row's date, counting at most `limit`
/// days.
fn periods_since(since: &str, limit: i64, days: i64) -> Expr {
    let elapsed = coalesce(vec![ident("Date") - ident(since), lit(0_i64)]);
    let clamped = greatest(vec![lit(0_i64), least(vec![lit(limit), elapsed])]);
    cast(clamped / lit(days), Int32)
}
