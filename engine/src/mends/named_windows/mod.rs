//! Named windows: `OVER w`, `OVER (w …)` and `WINDOW w AS (v …)`, as in PostgreSQL.
//!
//! DataFusion 55 supports only whole names, and only in the select list; it ignores the name of a window that another
//! builds upon.

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowDefinition, NamedWindowExpr, Query, Select, SetExpr, VisitMut,
    VisitorMut, WindowSpec, WindowType,
};

use crate::mends::clauses::{Clause, Reading, or_break, wrong};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "named_windows",
    wrong: "in `OVER (w ORDER BY x)` the definition of `w` is ignored",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[
        Act::Clause(Clause::Query(order)),
        Act::Clause(Clause::Select(select)),
    ],
};

/// Expands windows in a query's `ORDER BY`.
fn order(query: &mut Query, reading: &Reading<'_>) -> Result<()> {
    let SetExpr::Select(select) = query.body.as_ref() else {
        return Ok(());
    };
    let windows = Windows::of(&select.named_window, &reading.names)?;
    windows.write_out(&mut query.order_by)
}

/// Expands windows in a `SELECT`, and removes their definitions.
fn select(select: &mut Select, reading: &Reading<'_>) -> Result<()> {
    let windows = Windows::of(&std::mem::take(&mut select.named_window), &reading.names)?;
    windows.write_out(&mut select.distinct)?;
    windows.write_out(&mut select.projection)?;
    windows.write_out(&mut select.qualify)
}

/// Windows that a `SELECT` defines, by name.
struct Windows<'a> {
    names: &'a IdentNormalizer,
    defined: Vec<(String, WindowSpec)>,
}

impl<'a> Windows<'a> {
    /// Reads the definitions; each may build upon those before it.
    fn of(definitions: &[NamedWindowDefinition], names: &'a IdentNormalizer) -> Result<Self> {
        let defined = Vec::with_capacity(definitions.len());
        let mut windows = Self { names, defined };
        for NamedWindowDefinition(name, window) in definitions {
            let window = match window {
                NamedWindowExpr::NamedWindow(other) => windows.named(other)?.clone(),
                NamedWindowExpr::WindowSpec(window) => windows.whole(window)?,
            };
            let normal = names.normalize(name.clone());
            if windows.defined.iter().any(|(other, _)| *other == normal) {
                return wrong("WINDOW", format!("{name} is defined twice"));
            }
            windows.defined.push((normal, window));
        }
        Ok(windows)
    }

    fn named(&self, name: &Ident) -> Result<&WindowSpec> {
        let normal = self.names.normalize(name.clone());
        let found = self.defined.iter().find(|(other, _)| *other == normal);
        match found {
            Some((_, window)) => Ok(window),
            None => {
                let known: Vec<_> = self.defined.iter().map(|(name, _)| name.as_str()).collect();
                let known = match known.as_slice() {
                    [] => format!("WINDOW {name} AS (…) after FROM defines it"),
                    known => format!("before it, these are: {}", known.join(", ")),
                };
                wrong("OVER", format!("window {name} is not defined; {known}"))
            }
        }
    }

    /// Expands a window with the definition that it builds upon.
    fn whole(&self, window: &WindowSpec) -> Result<WindowSpec> {
        let WindowSpec {
            window_name,
            partition_by,
            order_by,
            window_frame,
        } = window;
        let Some(name) = window_name else {
            return Ok(window.clone());
        };
        let base = self.named(name)?;
        let clash = match () {
            () if !partition_by.is_empty() => "PARTITION BY is the named window's alone",
            () if !order_by.is_empty() && !base.order_by.is_empty() => {
                "the named window has its own ORDER BY"
            }
            () if base.window_frame.is_some() => {
                "the named window has a frame; without parentheses, OVER name, it has all of that"
            }
            () => {
                let order_by = match order_by.is_empty() {
                    true => &base.order_by,
                    false => order_by,
                };
                return Ok(WindowSpec {
                    window_name: None,
                    partition_by: base.partition_by.clone(),
                    order_by: order_by.clone(),
                    window_frame: window_frame.clone(),
                });
            }
        };
        wrong(format!("OVER ({window})"), clash)
    }

    fn write_out(&self, within: &mut impl VisitMut) -> Result<()> {
        let mut writing = Writing {
            windows: self,
            queries: 0,
        };
        match within.visit(&mut writing) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }
}

/// Visitor of expressions that skips their subqueries, which have windows of their own.
struct Writing<'a> {
    windows: &'a Windows<'a>,
    queries: usize,
}

impl VisitorMut for Writing<'_> {
    type Break = DataFusionError;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<DataFusionError> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<DataFusionError> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        let Expr::Function(function) = expr else {
            return ControlFlow::Continue(());
        };
        if self.queries > 0 {
            return ControlFlow::Continue(());
        }
        let Some(over) = &mut function.over else {
            return ControlFlow::Continue(());
        };
        let whole = match over {
            WindowType::NamedWindow(name) => self.windows.named(name).cloned(),
            WindowType::WindowSpec(window) => self.windows.whole(window),
        };
        or_break(whole.map(|window| *over = WindowType::WindowSpec(window)))
    }
}
