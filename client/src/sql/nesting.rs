//! Limit on the nesting of a statement's expressions, applied before anything walks through them.
//!
//! Planning, sending and computing an expression use some stack per level, in the client, the scheduler and the
//! executors, where other queries run. `a OR b OR c …` nests as deeply as it is long: such chains become balanced trees
//! of the same meaning. Expressions that still nest too deeply are refused, and so are long chains of `AND`, which the
//! engine splits and joins one by one. Parentheses are not counted here but by the parser.

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value, VisitMut, VisitorMut};
use volley_proto::limits::NESTED_EXPRESSIONS;

use super::Clause;
use super::statement::Kind;
use crate::{Error, Result};

/// Maximum number of terms of a chain that is left as written.
const SHORT: usize = 64;

/// Balances long chains.
///
/// # Errors
/// [`Error::NotSupported`] when an expression nests more deeply than [`NESTED_EXPRESSIONS`].
pub(super) fn bound(kind: &mut Kind) -> Result<()> {
    let mut nesting = Nesting { depth: 0 };
    let bounded = match kind {
        Kind::CreateModel(create) | Kind::ExplainCreateModel { create, .. } => {
            let transform = create.transform.as_mut();
            let transform = transform.map_or(ControlFlow::Continue(()), |transform| {
                transform.items.visit(&mut nesting)
            });
            match transform {
                ControlFlow::Continue(()) => create.query.visit(&mut nesting),
                too_deep => too_deep,
            }
        }
        Kind::Sql(statement) => nesting.of(statement),
        Kind::ShowModels
        | Kind::DescribeModel { .. }
        | Kind::DropModel { .. }
        | Kind::DropPrepared { .. } => ControlFlow::Continue(()),
    };
    bounded_or(bounded)
}

/// Balances long chains in a `TRANSFORM`.
///
/// # Errors
/// As [`bound`].
pub(super) fn bound_transform(clause: &mut Clause) -> Result<()> {
    bounded_or(clause.items.visit(&mut Nesting { depth: 0 }))
}

fn bounded_or(bounded: ControlFlow<TooDeep>) -> Result<()> {
    match bounded {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(TooDeep) => Err(Error::not_supported(format!(
            "an expression of more than {NESTED_EXPRESSIONS} nested operators; compute parts of it in a subquery, \
             or join a table of values"
        ))),
    }
}

/// Visitor that counts nesting levels.
struct Nesting {
    depth: usize,
}

/// Error: an expression nests too deeply.
struct TooDeep;

impl Nesting {
    fn of(&mut self, statement: &mut DfStatement) -> ControlFlow<TooDeep> {
        match statement {
            DfStatement::Statement(statement) => statement.visit(self),
            DfStatement::Explain(explain) => self.of(&mut explain.statement),
            DfStatement::CopyTo(copy) => match &mut copy.source {
                CopyToSource::Query(query) => query.visit(self),
                CopyToSource::Relation(_) => ControlFlow::Continue(()),
            },
            DfStatement::CreateExternalTable(_) | DfStatement::Reset(_) => {
                ControlFlow::Continue(())
            }
        }
    }
}

impl VisitorMut for Nesting {
    type Break = TooDeep;

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<TooDeep> {
        balance(expr);
        self.depth += 1;
        match self.depth > NESTED_EXPRESSIONS {
            true => ControlFlow::Break(TooDeep),
            false => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, _: &mut Expr) -> ControlFlow<TooDeep> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

/// Turns a long chain of `OR` into a balanced tree.
fn balance(expr: &mut Expr) {
    let Expr::BinaryOp { op, .. } = expr else {
        return;
    };
    if *op != BinaryOperator::Or {
        return;
    }
    let chain = BinaryOperator::Or;
    let mut terms = 1;
    let mut at = &*expr;
    while let Expr::BinaryOp { left, op, .. } = at
        && *op == chain
    {
        terms += 1;
        at = left;
    }
    if terms <= SHORT {
        return;
    }
    let mut taken = Vec::with_capacity(terms);
    let mut rest = std::mem::replace(expr, Expr::value(Value::Null));
    loop {
        match rest {
            Expr::BinaryOp { left, op, right } if op == chain => {
                taken.push(*right);
                rest = *left;
            }
            first => {
                taken.push(first);
                break;
            }
        }
    }
    taken.reverse();
    while taken.len() > 1 {
        let mut terms = taken.into_iter();
        let mut pairs = Vec::with_capacity(terms.len().div_ceil(2));
        while let Some(left) = terms.next() {
            pairs.push(match terms.next() {
                Some(right) => Expr::BinaryOp {
                    left: Box::new(Expr::Nested(Box::new(left))),
                    op: chain.clone(),
                    right: Box::new(Expr::Nested(Box::new(right))),
                },
                None => left,
            });
        }
        taken = pairs;
    }
    if let Some(whole) = taken.pop() {
        *expr = whole;
    }
}

#[cfg(test)]
mod tests {
    use datafusion::config::SqlParserOptions;
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::super::parse::{Dialect, parse};
    use super::*;

    fn parsed(sql: &str) -> Result<Kind> {
        let dialect = Dialect {
            grammar: Box::new(GenericDialect {}),
            options: SqlParserOptions::default(),
        };
        Ok(parse(sql, &dialect)?.remove(0).kind)
    }

    fn chain(operator: &str, terms: usize) -> String {
        let terms: Vec<_> = (0..terms).map(|term| format!("x = {term}")).collect();
        terms.join(operator)
    }

    #[test]
    fn chains_of_or_are_balanced() {
        let sql = format!("SELECT 1 FROM t WHERE {}", chain(" OR ", 20_000));
        let Kind::Sql(mut statement) = parsed(&sql).unwrap() else {
            panic!("it is SQL");
        };
        // Fifteen levels of pairs in parentheses, and the comparison.
        let mut nesting = Nesting {
            depth: NESTED_EXPRESSIONS - 2 * 15 - 2,
        };
        assert!(nesting.of(&mut statement).is_continue());
        let text = statement.to_string();
        let numbers = text.split("x = ").skip(1);
        let numbers = numbers.map(|rest| rest.split([' ', ')']).next().unwrap());
        let due = (0..20_000).map(|number| number.to_string());
        assert!(numbers.eq(due), "terms in their order");
        assert!(parsed(&sql.replace(" OR ", " AND ")).is_err());
    }

    #[test]
    fn short_chains_stay_as_they_are() {
        let sql = format!("SELECT 1 FROM t WHERE {}", chain(" OR ", SHORT));
        let Kind::Sql(statement) = parsed(&sql).unwrap() else {
            panic!("it is SQL");
        };
        assert_eq!(statement.to_string(), sql);
    }

    #[test]
    fn what_nests_too_deeply_is_refused() {
        let sum = vec!["x"; NESTED_EXPRESSIONS].join(" + ");
        let deeper = vec!["x"; NESTED_EXPRESSIONS + 1].join(" + ");
        let all: [fn(&str) -> String; 4] = [
            |sum| format!("SELECT {sum} FROM t"),
            |sum| format!("EXPLAIN SELECT {sum} FROM t"),
            |sum| format!("COPY (SELECT {sum} FROM t) TO 'x.csv'"),
            |sum| {
                format!(
                    "CREATE MODEL m OPTIONS (input_label_cols = ['y']) AS SELECT {sum} AS y FROM t"
                )
            },
        ];
        for sql in all {
            parsed(&sql(&sum)).unwrap();
            let error = parsed(&sql(&deeper)).unwrap_err().to_string();
            assert!(error.contains("more than 1000 nested operators"), "{error}");
        }
    }
}
