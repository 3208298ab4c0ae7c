//! Columns of a `TRANSFORM`: the typed list with `*` expanded and `ML` functions parsed.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, ObjectName, ObjectNamePart, SelectItem, Value, VisitMut,
    VisitorMut, WildcardAdditionalOptions,
};
use volley_proto::spec::{Computed, Transform, TransformInput, check_columns, named_field};

use super::fit::{self, FitQuery};
use super::functions::{self, Fit, Fitted, Read};
use super::{parse, read_columns, wrong};
use crate::{Error, Result};

/// Prefix of the placeholder of a function that is to be fitted.
const FIT: &str = "__volley_fit_";
const ROLE: &str = "TRANSFORM";

/// List in `TRANSFORM (…)`, as typed.
#[derive(Debug, Clone)]
pub(crate) struct Clause {
    pub(crate) items: Vec<SelectItem>,
}

/// Columns that a `TRANSFORM` computes.
#[derive(Debug)]
pub(crate) struct Columns {
    columns: Vec<Column>,
    fits: Vec<Fit>,
}

#[derive(Debug)]
struct Column {
    name: String,
    typed: String,
    /// Contains [`FIT`] placeholders where something is fitted.
    expr: Expr,
}

impl Clause {
    /// Resolves the columns that the clause computes from rows; `data_type` returns the type of an expression over
    /// them.
    ///
    /// # Errors
    /// Names the typed text and the right form.
    pub(crate) fn columns(
        &self,
        rows: &Schema,
        names: &IdentNormalizer,
        data_type: &dyn Fn(Expr) -> Result<DataType>,
    ) -> Result<Columns> {
        let mut typed = Vec::new();
        for item in &self.items {
            match item {
                SelectItem::Wildcard(options) => all(options, rows, names, &mut typed)?,
                SelectItem::ExprWithAlias { expr, alias } => {
                    typed.push((names.normalize(alias.clone()), expr.clone()));
                }
                SelectItem::UnnamedExpr(expr @ Expr::Identifier(column)) => {
                    typed.push((names.normalize(column.clone()), expr.clone()));
                }
                SelectItem::UnnamedExpr(expr) => {
                    let reason = format!("it needs a name: write {expr} AS name");
                    return Err(wrong(expr, reason));
                }
                other => {
                    let reason = "expected an expression AS name, a column or *";
                    return Err(wrong(other, reason));
                }
            }
        }
        check_named(&typed, rows, names)?;
        let mut fits = Vec::new();
        let mut columns: Vec<Column> = Vec::new();
        for (name, mut expr) in typed {
            let typed = expr.to_string();
            let mut resolve = Resolve {
                rows,
                names,
                data_type,
                fits: &mut fits,
                calls: Vec::new(),
            };
            if let ControlFlow::Break(error) = expr.visit(&mut resolve) {
                return Err(error);
            }
            if let Some(other) = columns.iter().find(|other| other.name == name) {
                if other.expr == expr {
                    continue; // `*, x`
                }
                let reason = format!(
                    "it is the second column {name:?}: give one of them another name, or write * EXCEPT ({})",
                    written(&name)
                );
                return Err(wrong(format!("{typed} AS {name}"), reason));
            }
            columns.push(Column { name, typed, expr });
        }
        Ok(Columns { columns, fits })
    }
}

/// Adds the columns of `*`.
fn all(
    options: &WildcardAdditionalOptions,
    rows: &Schema,
    names: &IdentNormalizer,
    typed: &mut Vec<(String, Expr)>,
) -> Result<()> {
    let typed_all = options.to_string();
    if options.opt_ilike.is_some() || options.opt_rename.is_some() || options.opt_alias.is_some() {
        let reason = "expected *, * EXCEPT (column, …) or * REPLACE (expression AS column)";
        return Err(wrong(typed_all, reason));
    }
    let mut without: Vec<Ident> = Vec::new();
    if let Some(except) = &options.opt_except {
        without.push(except.first_element.clone());
        without.extend(except.additional_elements.iter().cloned());
    }
    let excluded = match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => std::slice::from_ref(name),
        Some(ExcludeSelectItem::Multiple(names)) => names,
        None => &[],
    };
    for ObjectName(parts) in excluded {
        match parts.as_slice() {
            [ObjectNamePart::Identifier(name)] => without.push(name.clone()),
            _ => return Err(wrong(&typed_all, "a column has no table here")),
        }
    }
    let replace = options.opt_replace.iter();
    let replace = replace.flat_map(|replace| replace.items.iter().map(|item| &item.column_name));
    let named = without.iter().chain(replace);
    let named: Vec<_> = named.map(|ident| names.normalize(ident.clone())).collect();
    let named = named.iter().map(String::as_str);
    check_columns(named, rows, "the query", "that TRANSFORM (* …) names")?;
    let without = without
        .into_iter()
        .map(|ident| known(ident, rows, names))
        .collect::<Result<Vec<_>>>()?;
    let mut replaced = Vec::new();
    for item in options
        .opt_replace
        .iter()
        .flat_map(|replace| &replace.items)
    {
        let name = known(item.column_name.clone(), rows, names)?;
        replaced.push((name, item.expr.clone()));
    }
    for field in rows.fields() {
        let name = field.name();
        if without.contains(name) {
            continue;
        }
        let by = replaced.iter().find(|(replaced, _)| replaced == name);
        let expr = by.map_or_else(
            || Expr::Identifier(Ident::with_quote('"', name)),
            |(_, expr)| expr.clone(),
        );
        typed.push((name.clone(), expr));
    }
    Ok(())
}

/// Checks that rows have the columns that expressions name, if they lack more than one; a single one is reported where it is
/// [read](known).
fn check_named(typed: &[(String, Expr)], rows: &Schema, names: &IdentNormalizer) -> Result<()> {
    use datafusion::sql::sqlparser::ast::{Visit, Visitor};
    struct Named<'a>(&'a IdentNormalizer, Vec<String>);
    impl Visitor for Named<'_> {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let Self(names, named) = self;
            match expr {
                Expr::Identifier(ident) => {
                    let name = names.normalize(ident.clone());
                    if !named.contains(&name) {
                        named.push(name);
                    }
                    ControlFlow::Continue(())
                }
                // Columns of other rows, and names that are no columns; they are refused later.
                Expr::Subquery(_)
                | Expr::Exists { .. }
                | Expr::InSubquery { .. }
                | Expr::Lambda(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    let mut named = Named(names, Vec::new());
    for (_, expr) in typed {
        if expr.visit(&mut named).is_break() {
            return Ok(());
        }
    }
    let Named(_, named) = &named;
    let named = named.iter().map(String::as_str);
    check_columns(named, rows, "the query", "that TRANSFORM reads")?;
    Ok(())
}

/// Returns the name of a column that rows have.
fn known(ident: Ident, rows: &Schema, names: &IdentNormalizer) -> Result<String> {
    let column = names.normalize(ident);
    named_field(rows, &column, ROLE)?;
    Ok(column)
}

/// Returns a name as a user would type it.
fn written(name: &str) -> String {
    let plain = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    match plain {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Visitor that resolves names, and replaces `ML` functions by expressions.
struct Resolve<'a> {
    rows: &'a Schema,
    names: &'a IdentNormalizer,
    data_type: &'a dyn Fn(Expr) -> Result<DataType>,
    fits: &'a mut Vec<Fit>,
    /// Enclosing `ML` functions, as typed, each with true if it is fitted.
    calls: Vec<(String, bool)>,
}

impl Resolve<'_> {
    fn enter(&mut self, expr: &Expr) -> Result<()> {
        match expr {
            Expr::Function(function) if functions::ml_name(function).is_some() => {
                let typed = expr.to_string();
                let fitted = functions::is_fitted(function);
                if let (true, Some((outer, _))) =
                    (fitted, self.calls.iter().find(|(_, fitted)| *fitted))
                {
                    let reason = format!(
                        "{typed} stands within it, and both are fitted to rows: compute one of them in the query"
                    );
                    return Err(wrong(outer, reason));
                }
                self.calls.push((typed, fitted));
                Ok(())
            }
            Expr::Function(function) if function.over.is_some() => {
                let reason = "only ML functions take OVER () here: compute windows in the query";
                Err(wrong(expr, reason))
            }
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => Err(wrong(
                expr,
                "it sees one row at a time: join tables in the query",
            )),
            Expr::CompoundIdentifier(_) => {
                let reason =
                    "a column has no table here, since it is the query's; a field is s['field']";
                Err(wrong(expr, reason))
            }
            Expr::Lambda(_) => Err(wrong(expr, "not supported: a lambda function")),
            Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => {
                Err(wrong(expr, "expected a value in the place of a parameter"))
            }
            _ => Ok(()),
        }
    }

    fn leave(&mut self, expr: &mut Expr) -> Result<()> {
        match expr {
            Expr::Identifier(ident) if !ident.value.starts_with(FIT) => {
                let name = known(ident.clone(), self.rows, self.names)?;
                *ident = Ident::with_quote('"', name);
            }
            Expr::Function(function) if functions::ml_name(function).is_some() => {
                let (typed, _) = self.calls.pop().unwrap_or_default();
                *expr = match functions::read(function, &typed)? {
                    Read::Scalar(bucket) => bucket,
                    Read::Fitted(mut fit) => {
                        fit.is_text = self.is_text(&fit)?;
                        self.fits.push(fit);
                        let at = self.fits.len() - 1;
                        Expr::Identifier(Ident::with_quote('"', format!("{FIT}{at}")))
                    }
                };
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks whether a function's argument is text. Refuses types that the function does not take.
    fn is_text(&self, fit: &Fit) -> Result<bool> {
        let data_type = (self.data_type)(fit.argument.clone())?;
        let plain = match &data_type {
            DataType::Dictionary(_, values) => values,
            plain => plain,
        };
        let is_text = plain.is_string();
        if plain.is_numeric() || *plain == DataType::Null || is_text && fit.takes_text() {
            return Ok(is_text);
        }
        let or_text = if fit.takes_text() { " or text" } else { "" };
        let reason = format!("expected a number{or_text}, and its argument is {data_type}");
        Err(wrong(&fit.typed, reason))
    }
}

impl VisitorMut for Resolve<'_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.enter(expr)
            .map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.leave(expr)
            .map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }
}

impl Columns {
    /// Returns the queries that fit functions to the training rows in a table.
    pub(crate) fn queries(&self, table: &str) -> Vec<FitQuery> {
        fit::queries(&self.fits, table)
    }

    /// Checks whether anything is fitted.
    pub(crate) fn is_fitted(&self) -> bool {
        !self.fits.is_empty()
    }

    /// Returns the fitted functions, as typed.
    pub(crate) fn fitted(&self) -> impl Iterator<Item = &str> {
        self.fits.iter().map(|fit| fit.typed.as_str())
    }

    /// Returns placeholder values of the right types, for use before fitting.
    pub(crate) fn neutral(&self) -> Vec<Vec<Fitted>> {
        self.fits.iter().map(Fit::neutral).collect()
    }

    /// Returns the fitted values, by function and by measure.
    ///
    /// # Errors
    /// Names the function whose rows have no value, or a value that is not finite.
    pub(crate) fn numbers(&self, found: Vec<fit::Found>) -> Result<Vec<Vec<Fitted>>> {
        fit::numbers(&self.fits, found)
    }

    /// Checks whether a column of this name depends on rows other than its own.
    pub(crate) fn depends_on_rows(&self, name: &str) -> bool {
        let column = self.columns.iter().find(|column| column.name == name);
        column.is_some_and(|column| column.expr.to_string().contains(FIT))
    }

    /// Builds the columns, with the fitted values, over rows of this schema.
    ///
    /// # Errors
    /// When an expression changes its meaning as text.
    pub(crate) fn settle(&self, fitted: &[Vec<Fitted>], rows: &Schema) -> Result<Transform> {
        let fits = self.fits.iter().zip(fitted);
        let fits = fits.map(|(fit, fitted)| fit.expression(fitted));
        let fits = fits.collect::<Result<Vec<_>>>()?;
        let mut columns = Vec::new();
        for column in &self.columns {
            let mut expr = column.expr.clone();
            let _ = expr.visit(&mut Substitute(&fits));
            if let (Expr::Identifier(_), Expr::Nested(alone)) = (&column.expr, &expr) {
                expr = (**alone).clone();
            }
            let sql = expr.to_string();
            if parse(&sql)? != expr {
                let reason = "it does not mean the same in DataFusion's generic dialect, in which it would be kept";
                return Err(wrong(&column.typed, reason));
            }
            columns.push(Computed {
                column: column.name.clone(),
                typed: column.typed.clone(),
                sql,
            });
        }
        let mut transform = Transform {
            inputs: Vec::new(),
            columns,
        };
        transform.inputs = inputs(&transform, rows)?;
        Ok(transform)
    }
}

/// Returns the columns of the rows that the transform reads.
fn inputs(transform: &Transform, rows: &Schema) -> Result<Vec<TransformInput>> {
    let mut read = Vec::new();
    for column in &transform.columns {
        read.extend(read_columns(&column.sql)?);
    }
    let fields = rows.fields().iter();
    let fields = fields.filter(|field| read.contains(field.name()));
    let input = |field: &std::sync::Arc<datafusion::arrow::datatypes::Field>| TransformInput {
        column: field.name().clone(),
        data_type: match field.data_type() {
            DataType::Dictionary(_, values) => values.to_string(),
            plain => plain.to_string(),
        },
    };
    Ok(fields.map(input).collect())
}

/// Removes unwanted columns, and the inputs that only they read.
pub(crate) fn only(transform: &Transform, wanted: impl Fn(&str) -> bool) -> Result<Transform> {
    let columns = transform.columns.iter();
    let columns: Vec<_> = columns
        .filter(|column| wanted(&column.column))
        .cloned()
        .collect();
    let mut read = Vec::new();
    for column in &columns {
        read.extend(read_columns(&column.sql)?);
    }
    let inputs = transform.inputs.iter();
    let inputs = inputs
        .filter(|input| read.contains(&input.column))
        .cloned()
        .collect();
    Ok(Transform { inputs, columns })
}

/// Visitor that replaces placeholders by the fitted expressions.
struct Substitute<'a>(&'a [Expr]);

impl VisitorMut for Substitute<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(ident) = expr
            && let Some(at) = ident.value.strip_prefix(FIT)
            && let Some(fitted) = at.parse::<usize>().ok().and_then(|at| self.0.get(at))
        {
            *expr = Expr::Nested(Box::new(fitted.clone()));
        }
        ControlFlow::Continue(())
    }
}
