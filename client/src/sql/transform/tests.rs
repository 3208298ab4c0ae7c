//! Tests of clauses, their results and their errors. Values are from BigQuery ML's documentation.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Float64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DFSchema;
use datafusion::config::SqlParserOptions;
use datafusion::logical_expr::ExprSchemable;
use datafusion::prelude::SessionContext;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{Expr, ExprWithAlias};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use volley_proto::spec::Transform;

use super::*;
use crate::sql::{Dialect, parse_transform};
use crate::testing::on_a_deep_stack;

fn rows() -> Schema {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Schema::new(vec![
        field("x", DataType::Float64),
        field("k", DataType::Int64),
        field("Name", DataType::Utf8),
        field("day", DataType::Date32),
    ])
}

fn clause(list: &str, dialect: &str) -> Result<Clause> {
    let dialect = Dialect {
        grammar: dialect_from_str(dialect).unwrap(),
        options: SqlParserOptions::default(),
    };
    parse_transform(list, &dialect)
}

fn columns_in(list: &str, dialect: &str) -> Result<Columns> {
    let rows = rows();
    let known = DFSchema::try_from(rows.clone()).unwrap();
    let state = SessionContext::new().state();
    let data_type = |expr: Expr| {
        let expr = ExprWithAlias { expr, alias: None };
        let expr = state.create_logical_expr_from_sql_expr(expr, &known)?;
        Ok(expr.get_type(&known)?)
    };
    clause(list, dialect)?.columns(&rows, &IdentNormalizer::new(true), &data_type)
}

fn columns(list: &str) -> Result<Columns> {
    columns_in(list, "generic")
}

/// Settles a list with placeholder values.
fn settled(list: &str) -> Transform {
    let columns = columns(list).unwrap_or_else(|error| panic!("{list}: {error}"));
    columns.settle(&columns.neutral(), &rows()).unwrap()
}

#[test]
fn columns_are_those_of_a_select() {
    let names = |list: &str| {
        let columns = settled(list).columns.into_iter();
        let columns = columns.map(|column| format!("{}={}", column.column, column.sql));
        columns.collect::<Vec<_>>().join(" ")
    };
    for (list, expected) in [
        ("X, \"Name\"", "x=\"x\" Name=\"Name\""),
        ("*, x", "x=\"x\" k=\"k\" Name=\"Name\" day=\"day\""),
        (
            "* EXCEPT (x, \"Name\"), x + 1 AS x",
            "k=\"k\" day=\"day\" x=\"x\" + 1",
        ),
        ("* EXCLUDE (x, day)", "k=\"k\" Name=\"Name\""),
        ("* EXCLUDE day", "x=\"x\" k=\"k\" Name=\"Name\""),
        (
            "* EXCEPT (day, k) REPLACE (ln(x) AS x)",
            "x=ln(\"x\") Name=\"Name\"",
        ),
        (
            "ML.BUCKETIZE(k, [1, 5]) AS b",
            "b=CASE WHEN CAST(\"k\" AS DOUBLE) IS NULL THEN NULL WHEN CAST(\"k\" AS DOUBLE) < 1.0 THEN 'bin_1' \
             WHEN CAST(\"k\" AS DOUBLE) < 5.0 THEN 'bin_2' ELSE 'bin_3' END",
        ),
        (
            "ML.STANDARD_SCALER(x) OVER () * 2 AS y",
            "y=((CAST(\"x\" AS DOUBLE) - 0.0) / 1.0) * 2",
        ),
    ] {
        assert_eq!(names(list), expected, "{list}");
    }
    let read = settled("k + 1 AS a, ML.MIN_MAX_SCALER(x) OVER () AS b").inputs;
    let read: Vec<_> = read
        .iter()
        .map(|of| (&*of.column, &*of.data_type))
        .collect();
    assert_eq!(read, [("x", "Float64"), ("k", "Int64")]);
}

#[test]
fn says_what_is_wrong_with_an_expression() {
    for (list, said) in [
        (
            "xx AS y",
            "unknown column \"xx\" in TRANSFORM; did you mean \"x\"?",
        ),
        ("name AS y", "did you mean \"Name\"?"),
        (
            "ln(xx + kk) AS a, ML.STANDARD_SCALER(xx) OVER () AS b, name, x",
            "the query lacks 3 columns that TRANSFORM reads: \"xx\" (it has \"x\"), \"kk\" (it has \"k\"), \
             \"name\" (it has \"Name\")",
        ),
        ("* EXCEPT (y)", "unknown column \"y\" in TRANSFORM"),
        (
            "* EXCEPT (y, \"K\")",
            "the query lacks 2 columns that TRANSFORM (* …) names: \"y\", \"K\" (it has \"k\")",
        ),
        ("x + 1", "it needs a name: write x + 1 AS name"),
        ("x AS a, k AS a", "the second column \"a\""),
        (
            "*, ML.MIN_MAX_SCALER(x) OVER () AS x",
            "or write * EXCEPT (x)",
        ),
        ("t.x AS a", "a column has no table here"),
        ("t.*", "expected an expression AS name, a column or *"),
        ("(SELECT 1) AS a", "join tables in the query"),
        ("sum(x) OVER () AS a", "only ML functions take OVER ()"),
        (
            "ML.STANDARD_SCALR(x) OVER () AS a",
            "did you mean \"STANDARD_SCALER\"?",
        ),
        (
            "ML.LABEL_ENCODER(\"Name\") OVER () AS a",
            "an embedding each",
        ),
        ("ML.STANDARD_SCALER(x) AS a", "expected OVER () behind it"),
        (
            "ML.STANDARD_SCALER(x) OVER (ORDER BY k) AS a",
            "with nothing in it",
        ),
        (
            "ML.STANDARD_SCALER() OVER () AS a",
            "expected ML.STANDARD_SCALER(number)",
        ),
        (
            "ML.STANDARD_SCALER(x, 1) OVER () AS a",
            "expected ML.STANDARD_SCALER(number)",
        ),
        (
            "ML.STANDARD_SCALER(\"Name\") OVER () AS a",
            "expected a number, and its argument is Utf8",
        ),
        (
            "ML.STANDARD_SCALER(day) OVER () AS a",
            "its argument is Date32",
        ),
        (
            "ML.STANDARD_SCALER(ML.IMPUTER(x, 'mean') OVER ()) OVER () AS a",
            "both are fitted to rows",
        ),
        (
            "ML.QUANTILE_BUCKETIZE(x, 1) OVER () AS a",
            "2 to 1000 buckets",
        ),
        (
            "ML.QUANTILE_BUCKETIZE(x, 4, 'bin') OVER () AS a",
            "'bucket_names'",
        ),
        ("ML.IMPUTER(x, 'mode') OVER () AS a", "'most_frequent'"),
        (
            "ML.IMPUTER(\"Name\", 'mean') OVER () AS a",
            "expected a number, and",
        ),
        (
            "ML.IMPUTER(day, 'most_frequent') OVER () AS a",
            "expected a number or text",
        ),
        (
            "ML.ROBUST_SCALER(x, [75, 25]) OVER () AS a",
            "0 < low < high < 100",
        ),
        (
            "ML.BUCKETIZE(x, [5, 1]) AS a",
            "from the least to the greatest",
        ),
        ("ML.BUCKETIZE(x, [1, 5]) OVER () AS a", "takes no OVER ()"),
        ("ML.BUCKETIZE(x, [1, 5], true) AS a", "at least 3 points"),
        (
            "ML.BUCKETIZE(x, k) AS a",
            "expected ML.BUCKETIZE(number, [points]",
        ),
    ] {
        let error = columns(list).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{list}: {error}");
    }
}

#[test]
fn what_other_dialects_mean_is_kept_or_refused() {
    let columns = columns_in("`Name` || 'a' AS a", "bigquery").unwrap();
    let kept = columns.settle(&[], &rows()).unwrap();
    assert_eq!(kept.columns[0].sql, "\"Name\" || 'a'");
}

#[test]
fn rows_are_read_as_in_training() {
    let transform = settled("ln(x + k) AS a, \"Name\" AS b, k AS c");
    let over = |fields: &[(&str, DataType)]| {
        let fields = fields.iter();
        let fields = fields.map(|(name, of)| Field::new(*name, of.clone(), true));
        let rows = Schema::new(fields.collect::<Vec<_>>());
        let columns = expressions(&transform, &rows, |column| column == "a")?;
        Ok::<_, crate::Error>(columns[0].1.to_string())
    };
    let x = ("x", DataType::Float64);
    let said = |fields: &[(&str, DataType)]| over(fields).unwrap_err().to_string();
    assert_eq!(
        over(&[x.clone(), ("k", DataType::Int64)]).unwrap(),
        "ln(\"x\" + \"k\")"
    );
    assert_eq!(
        over(&[x.clone(), ("k", DataType::Int32)]).unwrap(),
        "ln(\"x\" + arrow_cast(\"k\", 'Int64'))"
    );
    assert_eq!(
        over(&[("x", DataType::Int64), ("k", DataType::Null)]).unwrap(),
        "ln(arrow_cast(\"x\", 'Float64') + arrow_cast(\"k\", 'Int64'))"
    );
    let wrong = said(&[x.clone(), ("k", DataType::Float64)]);
    assert!(
        wrong.contains("\"k\"") && wrong.contains("Int64 as in training"),
        "{wrong}"
    );
    let missing = said(&[x, ("K", DataType::Int64)]);
    assert!(missing.ends_with("did you mean \"K\"?"), "{missing}");
    assert_eq!(
        said(&[("K", DataType::Int64)]),
        "the input lacks 2 columns that the model's TRANSFORM reads: \"x\", \"k\" (it has \"K\")"
    );
}

/// Fits a list to a column `x`, and returns the column `y` that it computes.
async fn computed(list: &str, x: ArrayRef) -> Result<Vec<Option<String>>> {
    let context = SessionContext::new();
    let rows = RecordBatch::try_from_iter_with_nullable([("x", x, true)]).unwrap();
    let schema = DFSchema::try_from(rows.schema()).unwrap();
    context.register_batch("t", rows).unwrap();
    let state = context.state();
    let data_type = |expr: Expr| {
        let expr = ExprWithAlias { expr, alias: None };
        let expr = state.create_logical_expr_from_sql_expr(expr, &schema)?;
        Ok(expr.get_type(&schema)?)
    };
    let names = IdentNormalizer::new(true);
    let columns = clause(list, "generic")?.columns(schema.as_arrow(), &names, &data_type)?;
    let mut found = Vec::new();
    for query in columns.queries("t") {
        let answer = context.sql(&query.text).await.unwrap().collect().await;
        found.extend(query.read(&answer.unwrap()).unwrap());
    }
    let fitted = columns.numbers(found)?;
    let sql = &columns.settle(&fitted, schema.as_arrow())?.columns[0].sql;
    let rows = context
        .sql(&format!("SELECT {sql} AS y FROM t"))
        .await
        .unwrap();
    let mut values = Vec::new();
    for rows in rows.collect().await.unwrap() {
        let column = cast(rows.column(0), &DataType::Utf8).unwrap();
        let column = column.as_string::<i32>();
        values.extend(column.iter().map(|value| value.map(str::to_owned)));
    }
    Ok(values)
}

#[test]
fn fits_as_bigquery_does() {
    on_a_deep_stack(async {
        let numbers = |numbers: &[Option<f64>]| -> ArrayRef {
            Arc::new(Float64Array::from(numbers.to_vec()))
        };
        let five = || numbers(&[1.0, 2.0, 3.0, 4.0, 5.0].map(Some));
        let null = || {
            numbers(&[
                None,
                Some(-3.0),
                Some(1.0),
                Some(2.0),
                Some(3.0),
                Some(4.0),
                Some(5.0),
            ])
        };
        let texts = || -> ArrayRef {
            Arc::new(StringArray::from(vec![
                None,
                Some("a"),
                Some("b"),
                Some("it's"),
                Some("it's"),
            ]))
        };
        for (list, x, expected) in [
            (
                "ML.STANDARD_SCALER(x) OVER () AS y",
                five(),
                "-1.264911064 -0.632455532 0. 0.632455532 1.264911064",
            ),
            (
                "ML.MIN_MAX_SCALER(x) OVER () AS y",
                five(),
                "0. 0.25 0.5 0.75 1.",
            ),
            (
                "ML.MAX_ABS_SCALER(x) OVER () AS y",
                null(),
                "NULL -0.6 0.2 0.4 0.6 0.8 1.",
            ),
            (
                "ML.ROBUST_SCALER(x) OVER () AS y",
                null(),
                "NULL -1.666666667 -0.333333333 0. 0.333333333 0.666666667 1.",
            ),
            (
                "ML.ROBUST_SCALER(x, [25, 75], false, false) OVER () AS y",
                five(),
                "1. 2. 3. 4. 5.",
            ),
            (
                "ML.QUANTILE_BUCKETIZE(x, 3) OVER () AS y",
                five(),
                "bin_1 bin_2 bin_2 bin_3 bin_3",
            ),
            (
                "ML.QUANTILE_BUCKETIZE(x, 3, 'bucket_ranges') OVER () AS y",
                five(),
                "(-inf, 2) [2, 4) [2, 4) [4, +inf) [4, +inf)",
            ),
            (
                "ML.BUCKETIZE(x, [1, 2, 4.5], false, 'bucket_ranges_json') AS y",
                numbers(&[Some(4.5)]),
                "{\"start\": \"4.5\", \"end\": \"Infinity\"}",
            ),
            (
                "ML.BUCKETIZE(x, [1, 2, 3], true) AS y",
                five(),
                "bin_1 bin_2 bin_2 bin_2 bin_2",
            ),
            (
                "ML.IMPUTER(x, 'mean') OVER () AS y",
                numbers(&[
                    None,
                    Some(-3.0),
                    Some(-3.0),
                    Some(-3.0),
                    Some(1.0),
                    Some(2.0),
                    Some(3.0),
                    Some(4.0),
                    Some(5.0),
                ]),
                "0.75 -3. -3. -3. 1. 2. 3. 4. 5.",
            ),
            (
                "ML.IMPUTER(x, 'median') OVER () AS y",
                null(),
                "2. -3. 1. 2. 3. 4. 5.",
            ),
            (
                "ML.IMPUTER(x, 'most_frequent') OVER () AS y",
                texts(),
                "it's a b it's it's",
            ),
            (
                "ML.STANDARD_SCALER(x) OVER () AS y",
                numbers(&[Some(0.1); 3]),
                "0. 0. 0.",
            ),
            (
                "ML.STANDARD_SCALER(x) OVER () AS y",
                numbers(&[Some(7.0)]),
                "0.",
            ),
            (
                "ML.MIN_MAX_SCALER(x) OVER () AS y",
                numbers(&[Some(-2.0); 2]),
                "0. 0.",
            ),
            (
                "ML.QUANTILE_BUCKETIZE(x, 4) OVER () AS y",
                numbers(&[Some(1.0), Some(1.0), Some(1.0), Some(2.0)]),
                "bin_2 bin_2 bin_2 bin_2",
            ),
        ] {
            let values = computed(list, x).await.unwrap();
            let values = values.iter().map(|value| match value {
                Some(text) => match text.parse::<f64>() {
                    Ok(number) => format!("{number:.9}").trim_end_matches('0').to_owned(),
                    Err(_) => text.clone(),
                },
                None => "NULL".to_owned(),
            });
            let values: Vec<_> = values.collect();
            assert_eq!(values.join(" "), expected, "{list}");
        }
        for (x, said) in [
            (numbers(&[None, None]), "it is NULL in every training row"),
            (numbers(&[Some(1.0), Some(f64::INFINITY)]), "not finite"),
            (numbers(&[Some(1.0), Some(f64::NAN)]), "not finite"),
        ] {
            let error = computed("ML.MIN_MAX_SCALER(x) OVER () AS y", x).await;
            let error = error.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    });
}
