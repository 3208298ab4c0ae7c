//! Comparison of two answers.
//!
//! Rows are compared as a multiset; if an order was requested, the keys of both are also compared in order. Floats
//! may differ by the rounding of sums in another order. Nothing else may differ.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{
    DataType, Field, FieldRef, Float32Type, Float64Type, SchemaRef,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Rows of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rows {
    pub(crate) names: Vec<String>,
    /// Column types, without the layout of text.
    pub(crate) types: Vec<DataType>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// Value of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Null,
    Float(f64),
    /// Exactly comparable value, as text.
    Exact(String),
}

/// Freedom that a query leaves to its answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Columns that the rows are ordered by.
    pub(crate) order: Vec<String>,
    /// Number of rows to return, any of the reference's in the order of the keys.
    pub(crate) some: Option<usize>,
}

/// Kind and description of a difference between answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Different columns.
    Columns(String),
    /// Different column types.
    Types(String),
    /// A different number of rows.
    Count(String),
    /// Different rows in the same number.
    Values(String),
    /// The same rows in a different order.
    Order(String),
}

/// Tolerances for floats: rounding of sums of some thousand numbers of two or three digits stays below them.
const RELATIVE: f64 = 1e-9;
const ABSOLUTE: f64 = 1e-6;

impl Rows {
    /// Converts batches to rows.
    pub(crate) fn of(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Self> {
        let names = schema.fields().iter().map(|field| field.name().clone());
        // Rows of DataFusion alone may have other types than their schema states.
        let schema = batches
            .first()
            .map_or(Arc::clone(schema), RecordBatch::schema);
        let types = schema.fields().iter();
        let types = types.map(|field| without_text_layout(field.data_type()));
        let mut rows = Vec::new();
        for batch in batches {
            let first = rows.len();
            rows.resize_with(first + batch.num_rows(), Vec::new);
            for column in batch.columns() {
                for (row, cell) in rows[first..].iter_mut().zip(cells(column)?) {
                    row.push(cell);
                }
            }
        }
        Ok(Self {
            names: names.collect(),
            types: types.collect(),
            rows,
        })
    }

    /// Replaces a text by another in all cells.
    pub(crate) fn replaced(mut self, one: &str, other: &str) -> Self {
        for cell in self.rows.iter_mut().flatten() {
            if let Cell::Exact(text) = cell {
                *text = text.replace(one, other);
            }
        }
        self
    }

    /// Formats the first rows as text.
    pub(crate) fn describe(&self) -> String {
        const SHOWN: usize = 15;
        let mut said = format!("{} rows: {}\n", self.rows.len(), self.names.join(" | "));
        for row in self.rows.iter().take(SHOWN) {
            said += &format!("  {}\n", line(row));
        }
        if self.rows.len() > SHOWN {
            said += "  …\n";
        }
        said
    }
}

/// Checks that the rows have the types that their schema states.
pub(crate) fn check_types(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<()> {
    for (field, column) in batches
        .iter()
        .flat_map(|batch| schema.fields().iter().zip(batch.columns()))
    {
        let (due, is) = (field.data_type(), column.data_type());
        ensure!(
            due == is,
            "{} is {is} in its rows and {due} in their schema",
            field.name()
        );
    }
    Ok(())
}

/// Returns the type with one layout of text instead of the others. A setting selects the layout, with a different
/// default on clusters; it also decides on dictionaries of text.
fn without_text_layout(of: &DataType) -> DataType {
    let field = |field: &FieldRef| {
        let plain = without_text_layout(field.data_type());
        Arc::new(Field::new(field.name(), plain, true))
    };
    match of {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::Dictionary(_, values) if values.is_string() => DataType::Utf8,
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

fn cells(column: &dyn Array) -> Result<Vec<Cell>> {
    let nulls = column.logical_nulls();
    let is_null = |at| nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
    let of = |at, value: f64| match is_null(at) {
        true => Cell::Null,
        false => Cell::Float(value),
    };
    let rows = 0..column.len();
    Ok(match column.data_type() {
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>();
            rows.map(|at| of(at, values.value(at))).collect()
        }
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>();
            rows.map(|at| of(at, f64::from(values.value(at)))).collect()
        }
        _ => {
            let options = FormatOptions::default()
                .with_null("∅")
                .with_display_error(true);
            let formatter = ArrayFormatter::try_new(column, &options)?;
            let exact = |at| match is_null(at) {
                true => Cell::Null,
                false => Cell::Exact(formatter.value(at).to_string()),
            };
            rows.map(exact).collect()
        }
    })
}

/// Returns the difference between the reference and an answer, if there is one.
pub(crate) fn difference(reference: &Rows, answer: &Rows, asked: &Asked) -> Option<Difference> {
    if reference.names != answer.names {
        let said = format!("{:?} rather than {:?}", answer.names, reference.names);
        return Some(Difference::Columns(said));
    }
    // Types of DataFusion alone without rows are from before type coercion.
    if !reference.rows.is_empty() && !answer.rows.is_empty() && reference.types != answer.types {
        let said = format!("{:?} rather than {:?}", answer.types, reference.types);
        return Some(Difference::Types(said));
    }
    let due = asked
        .some
        .map_or(reference.rows.len(), |some| some.min(reference.rows.len()));
    let (missing, extra) = unmatched(&reference.rows, &answer.rows);
    let said = || {
        let some = |what: &str, rows: &[&[Cell]]| {
            let shown = rows
                .iter()
                .take(5)
                .map(|row| format!("\n  {what}: {}", line(row)));
            shown.collect::<String>()
        };
        let missing = if asked.some.is_some() {
            String::new()
        } else {
            some("missing", &missing)
        };
        let counts = format!("{} rows rather than {due}", answer.rows.len());
        format!("{counts}{missing}{}", some("extra", &extra))
    };
    if answer.rows.len() != due {
        return Some(Difference::Count(said()));
    }
    if !extra.is_empty() {
        return Some(Difference::Values(said()));
    }
    let at = |name: &String| reference.names.iter().position(|known| known == name);
    let keys: Vec<_> = asked.order.iter().filter_map(at).collect();
    let out_of_order = reference
        .rows
        .iter()
        .zip(&answer.rows)
        .position(|(due, got)| {
            let mut keys = keys.iter();
            !keys.all(|key| is_same(&due[*key], &got[*key]))
        })?;
    let said = format!(
        "row {out_of_order} is {} rather than {}",
        line(&answer.rows[out_of_order]),
        line(&reference.rows[out_of_order])
    );
    Some(Difference::Order(said))
}

/// Returns the rows of `a` missing in `b`, and the rows of `b` missing in `a`.
fn unmatched<'a>(a: &'a [Vec<Cell>], b: &'a [Vec<Cell>]) -> (Vec<&'a [Cell]>, Vec<&'a [Cell]>) {
    // Candidates for equal rows: groups that agree in all exact values.
    let mut groups: HashMap<String, [Vec<&[Cell]>; 2]> = HashMap::new();
    for (side, rows) in [a, b].into_iter().enumerate() {
        for row in rows {
            groups.entry(exact_part(row)).or_default()[side].push(row);
        }
    }
    let (mut missing, mut extra) = (Vec::new(), Vec::new());
    for [mut a, mut b] in groups.into_values() {
        // Sorted by their floats, equal rows form pairs, except where rounding changed the order.
        a.sort_by(|x, y| by_floats(x, y));
        b.sort_by(|x, y| by_floats(x, y));
        let in_pairs = a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| are_same(x, y));
        if in_pairs {
            continue;
        }
        for row in b {
            match a.iter().position(|other| are_same(other, row)) {
                Some(at) => {
                    a.remove(at);
                }
                None => extra.push(row),
            }
        }
        missing.extend(a);
    }
    (missing, extra)
}

fn exact_part(row: &[Cell]) -> String {
    let mut text = String::new();
    for cell in row {
        match cell {
            Cell::Null => text.push('n'),
            Cell::Float(_) => text.push('f'),
            Cell::Exact(exact) => text += &format!("{}:{exact}", exact.len()),
        }
    }
    text
}

fn by_floats(a: &[Cell], b: &[Cell]) -> std::cmp::Ordering {
    let pairs = a.iter().zip(b).map(|(a, b)| match (a, b) {
        (Cell::Float(a), Cell::Float(b)) => a.total_cmp(b),
        _ => std::cmp::Ordering::Equal,
    });
    pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}

fn are_same(a: &[Cell], b: &[Cell]) -> bool {
    a.iter().zip(b).all(|(a, b)| is_same(a, b))
}

fn is_same(a: &Cell, b: &Cell) -> bool {
    match (a, b) {
        (Cell::Float(a), Cell::Float(b)) => {
            let near = ABSOLUTE + RELATIVE * a.abs().min(b.abs());
            a == b
                || a.is_nan() && b.is_nan()
                || a.is_finite() && b.is_finite() && (a - b).abs() <= near
        }
        _ => a == b,
    }
}

fn line(row: &[Cell]) -> String {
    let cells: Vec<_> = row.iter().map(ToString::to_string).collect();
    cells.join(" | ")
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Exact(text) => f.write_str(text),
        }
    }
}

impl Difference {
    /// Returns the kind of difference, in a few words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Columns(_) => "other columns",
            Self::Types(_) => "other types",
            Self::Count(_) => "another number of rows",
            Self::Values(_) => "other rows",
            Self::Order(_) => "another order",
        }
    }

    /// Returns the description of the difference.
    pub(crate) fn said(&self) -> &str {
        match self {
            Self::Columns(said)
            | Self::Types(said)
            | Self::Count(said)
            | Self::Values(said)
            | Self::Order(said) => said,
        }
    }
}

#[cfg(test)]
mod tests;
