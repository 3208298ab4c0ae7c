//! Application of a saved `TRANSFORM` to rows, in training and in prediction alike.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::ast::{Expr, Query, Visit, VisitMut, Visitor, VisitorMut};
use volley_proto::spec::{Transform, check_columns, named_field};
use volley_proto::store::Manifest;

use super::parse;
use crate::sql::derived::{self, ROWS, quoted};
use crate::{Error, Result};

const ROLE: &str = "the rows (the model's TRANSFORM reads it)";

/// Name of a label that is computed beside the rows' own columns.
const LABEL: &str = "__volley_transformed_label";
const WEIGHT: &str = "__volley_transformed_weight";

/// Returns the columns that an expression of a saved `TRANSFORM` reads.
pub(crate) fn read_columns(sql: &str) -> Result<Vec<String>> {
    struct Read(Vec<String>);
    impl Visitor for Read {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Identifier(ident) = expr
                && !self.0.contains(&ident.value)
            {
                self.0.push(ident.value.clone());
            }
            ControlFlow::Continue(())
        }
    }
    let mut read = Read(Vec::new());
    let _ = parse(sql)?.visit(&mut read);
    Ok(read.0)
}

/// Returns the expressions of the wanted columns, with their names, over rows of this schema.
///
/// # Errors
/// Names all missing columns, or the first whose type differs from training.
pub(crate) fn expressions(
    transform: &Transform,
    rows: &Schema,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Expr)>> {
    let columns = transform.columns.iter();
    let columns: Vec<_> = columns.filter(|column| wanted(&column.column)).collect();
    let mut read = Vec::new();
    for column in &columns {
        read.extend(read_columns(&column.sql)?);
    }
    let mut seen = HashSet::new();
    let read = read.iter().filter(|column| seen.insert(*column));
    let read = read.map(String::as_str);
    check_columns(read, rows, "the input", "that the model's TRANSFORM reads")?;
    let expression = |column: &volley_proto::spec::Computed| {
        let mut expr = parse(&column.sql)?;
        let mut typed = ReadAs { transform, rows };
        match VisitMut::visit(&mut expr, &mut typed) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok((column.column.clone(), expr)),
        }
    };
    columns.into_iter().map(expression).collect()
}

/// Visitor that checks the columns that expressions read, and casts them to their types in training.
struct ReadAs<'a> {
    transform: &'a Transform,
    rows: &'a Schema,
}

impl VisitorMut for ReadAs<'_> {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        let Expr::Identifier(ident) = expr else {
            return ControlFlow::Continue(());
        };
        match self.read_as(&ident.value) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(data_type)) => {
                let data_type = data_type.replace('\'', "''");
                match parse(&format!("arrow_cast({ident}, '{data_type}')")) {
                    Ok(cast) => {
                        *expr = cast;
                        ControlFlow::Continue(())
                    }
                    Err(error) => ControlFlow::Break(error),
                }
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl ReadAs<'_> {
    /// Returns the type that a column is cast to, if its type differs from training.
    fn read_as(&self, column: &str) -> Result<Option<String>> {
        let field = named_field(self.rows, column, ROLE)?;
        let inputs = self.transform.inputs.iter();
        let trained = inputs
            .filter(|input| input.column == column)
            .map(|input| input.data_type.as_str())
            .next();
        let actual = field.data_type();
        let Some(trained) = trained.filter(|trained| *trained != actual.to_string()) else {
            return Ok(None);
        };
        let known = trained.parse::<DataType>();
        if known.is_ok_and(|known| reads_as(actual, &known)) {
            return Ok(Some(trained.to_owned()));
        }
        Err(Error::Proto(volley_proto::Error::ColumnType {
            column: column.to_owned(),
            role: "the input of the model's TRANSFORM",
            actual: actual.to_string(),
            expected: format!("{trained} as in training"),
        }))
    }
}

/// Checks whether each value of one type is a value of another.
fn reads_as(actual: &DataType, trained: &DataType) -> bool {
    let plain = match actual {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    };
    let is_decimal =
        |of: &DataType| matches!(of, DataType::Decimal128(..) | DataType::Decimal256(..));
    plain == trained
        || *plain == DataType::Null
        || plain.is_integer() && (trained.is_integer() || is_decimal(trained))
        || plain.is_string() && trained.is_string()
        || plain.is_numeric() && trained.is_floating()
}

/// Labelled rows to evaluate.
#[derive(Debug)]
pub(crate) struct Labelled {
    pub(crate) rows: Box<Query>,
    /// Names of the label columns: the rows' own, or columns that the `TRANSFORM` computes.
    pub(crate) labels: Vec<String>,
    /// Name of the weight column, if the `TRANSFORM` computes it from columns that the rows have.
    pub(crate) weight: Option<&'static str>,
}

/// Adds to a call's rows the labels and weights that evaluation needs.
pub(crate) fn labelled(manifest: &Manifest, rows: Box<Query>, schema: &Schema) -> Result<Labelled> {
    let label = &manifest.spec.label;
    let computed = match &manifest.spec.transform {
        Some(transform) => expressions(transform, schema, |column| label.is(column))?,
        None => Vec::new(),
    };
    let mut columns = String::new();
    let names = label.columns.iter().enumerate().map(|(at, label)| {
        let found = computed.iter().find(|(name, _)| name == label);
        match found {
            Some((_, expr)) if expr.to_string() != quoted(label) => {
                let name = format!("{LABEL}_{at}");
                columns.push_str(&format!(", {expr} AS {name}"));
                name
            }
            _ => label.clone(),
        }
    });
    let labels: Vec<_> = names.collect();
    let is_weight = |column: &str| manifest.spec.sample_weight.as_deref() == Some(column);
    let weight = manifest.spec.transform.iter();
    let weight = weight.filter(|of| of.columns.iter().any(|of| is_weight(&of.column)));
    let mut weight = weight.map(|of| expressions(of, schema, is_weight));
    // Rows that lack the inputs of the weight are evaluated without weights.
    let weight = weight.next().and_then(Result::ok);
    let weight = weight.into_iter().flatten().next().map(|(_, expr)| {
        columns.push_str(&format!(", {expr} AS {WEIGHT}"));
        WEIGHT
    });
    let rows = match columns.is_empty() {
        true => rows,
        false => derived::query(&format!("SELECT *{columns} FROM {ROWS}"), rows)?,
    };
    Ok(Labelled {
        rows,
        labels,
        weight,
    })
}

/// Computes the model's inputs from a call's rows: features, and the label if the rows have its inputs.
pub(crate) fn prepared(
    manifest: &Manifest,
    transform: &Transform,
    rows: Box<Query>,
    schema: &Schema,
) -> Result<Box<Query>> {
    let (label, features) = (&manifest.spec.label, &manifest.spec.features);
    let mut columns = expressions(transform, schema, |column| {
        !label.is(column) && features.iter().any(|of| of.column == column)
    })?;
    for label in &label.columns {
        let computed = expressions(transform, schema, |column| column == label);
        columns.extend(computed.into_iter().flatten());
    }
    let columns = columns.iter();
    let columns: Vec<_> = columns
        .map(|(name, expr)| format!("{expr} AS {}", quoted(name)))
        .collect();
    let text = format!("SELECT {} FROM {ROWS}", columns.join(", "));
    derived::query(&text, rows).map_err(|error: DataFusionError| error.into())
}
