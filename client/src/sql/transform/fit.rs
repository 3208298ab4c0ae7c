//! Fitting to training rows, by queries over them.
//!
//! ```text
//! sums      SELECT avg(a0), stddev(a0), min(a0), …          one pass, one row
//! ranked    each distinct value, with its number of rows     one pass for all functions,
//!           ─► running counts in their order ─► quantiles    one row per function
//! ```
//!
//! Quantiles are exact: values and counts go over the exchange, not an approximation, and the same rows yield the same
//! quantiles. A cluster adds up sums in any order, so means and deviations are rounded to twelve digits.

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::error::{DataFusionError, Result as DfResult};

use super::functions::{Fit, Fitted, Measure, number_of};
use super::wrong;
use crate::Result;

/// Query over training rows.
#[derive(Debug)]
pub(crate) struct FitQuery {
    pub(crate) text: String,
    wanted: Vec<Wanted>,
}

/// Position of a requested value in a query's rows.
#[derive(Debug)]
struct Wanted {
    fit: usize,
    measure: usize,
    /// Number in the first column of the row; `None` for the only row.
    row: Option<i64>,
    column: usize,
}

/// Value that a query has found; `None` if there is none.
#[derive(Debug)]
pub(crate) struct Found {
    fit: usize,
    measure: usize,
    value: Option<Fitted>,
}

/// Returns the queries that fit these functions to the rows of a table.
pub(super) fn queries(fits: &[Fit], table: &str) -> Vec<FitQuery> {
    let is_ranked =
        |measure: &Measure| matches!(measure, Measure::Quantile { .. } | Measure::MostFrequent);
    let of = |ranked: bool, text: bool| {
        let all = fits.iter().enumerate();
        let all = all.filter(move |(_, fit)| fit.is_text == text);
        let each = all.flat_map(|(at, fit)| {
            let measures = fit.measures().into_iter().enumerate();
            measures.map(move |(measure, what)| (at, measure, what))
        });
        let each: Vec<_> = each
            .filter(|(_, _, what)| is_ranked(what) == ranked)
            .collect();
        each
    };
    let sums = of(false, false);
    let ranked = [of(true, false), of(true, true)];
    let mut queries = Vec::new();
    queries.extend((!sums.is_empty()).then(|| sums_of(fits, &sums, table)));
    for ranked in ranked {
        queries.extend((!ranked.is_empty()).then(|| ranks_of(fits, &ranked, table)));
    }
    queries
}

/// Returns the index of an item in a list, and appends the item if it is missing.
fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    let found = list.iter().position(|other| *other == item);
    found.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

/// Returns a list of expressions, named by a letter and their index.
fn numbered(expressions: &[String], letter: char) -> String {
    let named = expressions.iter().enumerate();
    let named: Vec<_> = named
        .map(|(at, expression)| format!("{expression} AS {letter}{at}"))
        .collect();
    named.join(", ")
}

fn sums_of(fits: &[Fit], measures: &[(usize, usize, Measure)], table: &str) -> FitQuery {
    let (mut arguments, mut columns, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (fit, measure, what) in measures {
        let of = place(&mut arguments, number_of(&fits[*fit].argument));
        let sum = match what {
            Measure::Mean => "avg",
            Measure::Deviation => "stddev",
            Measure::Greatest => "max",
            _ => "min",
        };
        let column = place(&mut columns, format!("{sum}(a{of})"));
        wanted.push(Wanted {
            fit: *fit,
            measure: *measure,
            row: None,
            column,
        });
    }
    let (columns, arguments) = (numbered(&columns, 's'), numbered(&arguments, 'a'));
    let text = format!("SELECT {columns} FROM (SELECT {arguments} FROM {table}) AS given");
    FitQuery { text, wanted }
}

fn ranks_of(fits: &[Fit], measures: &[(usize, usize, Measure)], table: &str) -> FitQuery {
    let (mut arguments, mut columns, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (fit, measure, what) in measures {
        let fit_of = &fits[*fit];
        let argument = match fit_of.is_text {
            true => format!("CAST({} AS VARCHAR)", fit_of.argument),
            false => number_of(&fit_of.argument),
        };
        let row = place(&mut arguments, argument);
        let is_it = match what {
            Measure::Quantile { at, of } => format!("below * {of} >= total * {at}"),
            _ => "n = most".to_owned(),
        };
        let column = place(&mut columns, format!("min(CASE WHEN {is_it} THEN v END)"));
        wanted.push(Wanted {
            fit: *fit,
            measure: *measure,
            row: i64::try_from(row).ok(),
            column: column + 1,
        });
    }
    let each = |text: &dyn Fn(usize) -> String, between: &str| {
        let texts: Vec<_> = (0..arguments.len()).map(text).collect();
        texts.join(between)
    };
    let given = numbered(&arguments, 'a');
    let numbers = each(&|at| format!("({at})"), ", ");
    let cases = each(&|at| format!("WHEN {at} THEN a{at}"), " ");
    let columns = numbered(&columns, 'r');
    let text = format!(
        "WITH given AS (SELECT {given} FROM {table}),
         each AS (SELECT f, CASE f {cases} END AS v FROM given CROSS JOIN (VALUES {numbers}) AS functions(f)),
         counted AS (SELECT f, v, count(*) AS n FROM each WHERE v IS NOT NULL GROUP BY f, v),
         placed AS (
           SELECT f, v, n, sum(n) OVER (PARTITION BY f ORDER BY v) AS below, sum(n) OVER (PARTITION BY f) AS total,
             max(n) OVER (PARTITION BY f) AS most
           FROM counted
         )
         SELECT CAST(f AS BIGINT) AS f, {columns} FROM placed GROUP BY f"
    );
    FitQuery { text, wanted }
}

impl FitQuery {
    /// Reads the requested values from the query's rows.
    ///
    /// # Errors
    /// When the rows are not this query's.
    pub(crate) fn read(&self, rows: &[RecordBatch]) -> DfResult<Vec<Found>> {
        let Some(schema) = rows.first().map(RecordBatch::schema) else {
            let nothing = |wanted: &Wanted| Found {
                fit: wanted.fit,
                measure: wanted.measure,
                value: None,
            };
            return Ok(self.wanted.iter().map(nothing).collect());
        };
        let rows = concat_batches(&schema, rows)?;
        let found = self.wanted.iter().map(|wanted| {
            let row = match wanted.row {
                None => (rows.num_rows() > 0).then_some(0),
                Some(number) => {
                    let numbers = rows.column(0).as_primitive_opt::<Int64Type>();
                    let numbers = numbers.ok_or_else(|| {
                        DataFusionError::Internal("functions have numbers".to_owned())
                    })?;
                    numbers.values().iter().position(|at| *at == number)
                }
            };
            let column = rows.column(wanted.column);
            let value = match row.filter(|row| column.is_valid(*row)) {
                None => None,
                Some(row) if *column.data_type() == DataType::Float64 => {
                    let numbers = column.as_primitive::<Float64Type>();
                    Some(Fitted::Number(numbers.value(row)))
                }
                Some(row) => {
                    let texts = cast(&column.slice(row, 1), &DataType::Utf8)?;
                    Some(Fitted::Text(texts.as_string::<i32>().value(0).to_owned()))
                }
            };
            Ok(Found {
                fit: wanted.fit,
                measure: wanted.measure,
                value,
            })
        });
        found.collect()
    }
}

/// Returns the fitted values, by function and by measure.
pub(super) fn numbers(fits: &[Fit], found: Vec<Found>) -> Result<Vec<Vec<Fitted>>> {
    let mut fitted: Vec<_> = fits.iter().map(Fit::neutral).collect();
    for Found {
        fit,
        measure,
        value,
    } in found
    {
        let of = &fits[fit];
        let what = of.measures()[measure];
        let value = match value {
            // The sample deviation of a single row is NULL; the row is a constant.
            None if what == Measure::Deviation => Fitted::Number(0.0),
            None => {
                let reason = "there is nothing to fit it to: it is NULL in every training row";
                return Err(wrong(&of.typed, reason));
            }
            Some(Fitted::Number(number)) if !number.is_finite() => {
                let reason = format!(
                    "it cannot be fitted: a training row has a number that is not finite, or the result is \
                     {number}"
                );
                return Err(wrong(&of.typed, reason));
            }
            Some(Fitted::Number(number)) => Fitted::Number(match what {
                Measure::Mean | Measure::Deviation => rounded(number),
                _ => number,
            }),
            Some(text) => text,
        };
        fitted[fit][measure] = value;
    }
    Ok(fitted)
}

/// Rounds a number to twelve digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.11e}").parse().unwrap_or(number)
}

/// Returns the query of the cut value of a split where the last rows by `v` are evaluated: the least value such that at
/// most this share of the rows come after it. NULL comes after all other values.
pub(crate) fn cut_query(share: f64, table: &str) -> String {
    format!(
        "WITH counted AS (SELECT v, count(*) AS n FROM {table} GROUP BY v),
         placed AS (
           SELECT v, sum(n) OVER (ORDER BY v ASC NULLS LAST) AS below, sum(n) OVER () AS total FROM counted
         )
         SELECT min(v) AS v FROM placed
         WHERE v IS NOT NULL AND total - below <= CAST(floor(CAST(total AS DOUBLE) * {share:?}) AS BIGINT)"
    )
}
