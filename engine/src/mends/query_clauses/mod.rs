//! Clauses of queries and their `SELECT`s.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    Cte, Expr, ExprWithAliasAndOrderBy, Fetch, Join, JoinConstraint, JoinOperator, LimitClause,
    OrderByKind, OrderByOptions, PipeOperator, Query, Select, SelectFlavor, SelectItem, SetExpr,
    TableWithJoins, Value, With,
};

use crate::mends::clauses::{Clause, Reading, refuse_if, wrong};
use crate::mends::list::{Act, Mend, Upstream};
use crate::mends::relation_clauses as relations;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "query_clauses",
    wrong: "`PREWHERE`, `CONNECT BY`, `SETTINGS` and other clauses of queries are ignored",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[
        Act::Clause(Clause::Query(query)),
        Act::Clause(Clause::Select(select)),
        Act::Clause(Clause::Expr(in_subquery)),
    ],
};

/// Rewrites or refuses clauses of a query.
fn query(query: &mut Query, _: &Reading<'_>) -> Result<()> {
    let Query {
        with,
        body,
        order_by,
        limit_clause,
        fetch,
        locks,
        for_clause,
        settings,
        format_clause,
        pipe_operators,
    } = query;
    if let Some(with) = with {
        check_with(with)?;
    }
    if let Some(fetch) = fetch.take() {
        *limit_clause = Some(limit(limit_clause.take(), fetch)?);
    }
    if let Some(order) = order_by
        && let OrderByKind::Expressions(keys) = &order.kind
        && let [key] = &keys[..]
        && is_all(&key.expr)
    {
        // A column of this name must be quoted.
        order.kind = OrderByKind::All(key.options);
    }
    let is_select = matches!(**body, SetExpr::Select(_));
    let by_all = order_by
        .as_ref()
        .is_some_and(|order| matches!(order.kind, OrderByKind::All(_)));
    refuse_if(by_all && !is_select, || {
        "ORDER BY ALL of a UNION, INTERSECT or EXCEPT: name the columns, or their positions"
            .to_owned()
    })?;
    if !is_select {
        no_table_within(body)?;
    }
    if let Some(lock) = locks.first() {
        return refuse_if(true, || format!("{lock}: rows are not locked"));
    }
    refuse_if(for_clause.is_some(), || {
        "FOR XML, FOR JSON and FOR BROWSE; COPY (SELECT …) TO 'rows.json' STORED AS JSON writes rows".to_owned()
    })?;
    refuse_if(settings.is_some(), || {
        "SETTINGS in a query: SET name = value is for all that follow".to_owned()
    })?;
    refuse_if(format_clause.is_some(), || {
        "FORMAT in a query; COPY (SELECT …) TO 'rows' STORED AS format writes rows".to_owned()
    })?;
    for operator in pipe_operators {
        if let PipeOperator::Aggregate {
            full_table_exprs,
            group_by_expr,
        } = operator
        {
            let orders = full_table_exprs.iter().chain(&*group_by_expr);
            let is_ordered = orders.into_iter().any(|expr| {
                let ExprWithAliasAndOrderBy {
                    expr: _,
                    order_by: OrderByOptions { asc, nulls_first },
                } = expr;
                asc.is_some() || nulls_first.is_some()
            });
            refuse_if(is_ordered, || {
                "an order in |> AGGREGATE: |> ORDER BY orders rows".to_owned()
            })?;
        }
    }
    Ok(())
}

/// Checks whether a key is the word ALL.
fn is_all(key: &Expr) -> bool {
    matches!(key, Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all"))
}

/// Refuses a test of several values against the rows of a subquery.
fn in_subquery(expr: &mut Expr, _: &Reading<'_>) -> Result<()> {
    let is_of_several = match expr {
        Expr::InSubquery { expr, .. } => matches!(**expr, Expr::Tuple(_)),
        _ => false,
    };
    refuse_if(is_of_several, || {
        "(a, b) IN (SELECT x, y …): EXISTS (SELECT 1 … WHERE x = a AND y = b) asks that of rows without NULL".to_owned()
    })
}

fn check_with(with: &With) -> Result<()> {
    let With {
        with_token: _,
        recursive: _,
        cte_tables,
    } = with;
    for cte in cte_tables {
        let Cte {
            alias,
            query: _,
            from,
            // Affects the execution, not the result.
            materialized: _,
            closing_paren_token: _,
        } = cte;
        relations::alias(alias)?;
        refuse_if(from.is_some(), || {
            format!("FROM after the query of {}", alias.name)
        })?;
    }
    Ok(())
}

/// Merges `FETCH FIRST n ROWS ONLY` into the limit clause, beside an `OFFSET`.
fn limit(limit: Option<LimitClause>, fetch: Fetch) -> Result<LimitClause> {
    let Fetch {
        with_ties,
        percent,
        quantity,
    } = &fetch;
    refuse_if(*with_ties || *percent, || {
        format!("{fetch}: FETCH FIRST n ROWS ONLY, or a condition on rank() OVER (ORDER BY …)")
    })?;
    let one = || Expr::value(Value::Number("1".to_owned(), false));
    let quantity = Some(quantity.clone().unwrap_or_else(one));
    match limit {
        None => Ok(LimitClause::LimitOffset {
            limit: quantity,
            offset: None,
            limit_by: vec![],
        }),
        Some(LimitClause::LimitOffset {
            limit: None,
            offset,
            limit_by,
        }) => Ok(LimitClause::LimitOffset {
            limit: quantity,
            offset,
            limit_by,
        }),
        Some(limit) => wrong(fetch.to_string(), format!("there is{limit} already")),
    }
}

/// Refuses `SELECT … INTO t` in a part of a `UNION`.
fn no_table_within(body: &SetExpr) -> Result<()> {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            no_table_within(left)?;
            no_table_within(right)
        }
        SetExpr::Select(select) => refuse_if(select.into.is_some(), || {
            "INTO in a part of a UNION, INTERSECT or EXCEPT: CREATE TABLE t AS SELECT … makes a table".to_owned()
        }),
        _ => Ok(()),
    }
}

/// Rewrites or refuses clauses of a `SELECT`.
fn select(select: &mut Select, _: &Reading<'_>) -> Result<()> {
    let Select {
        select_token: AttachedToken(_),
        // Hints affect the execution, not the result.
        optimizer_hints: _,
        distinct: _,
        select_modifiers,
        top: _,
        top_before_distinct: _,
        projection,
        exclude,
        into: _,
        from,
        lateral_views: _,
        prewhere,
        selection: _,
        connect_by,
        group_by: _,
        cluster_by: _,
        distribute_by: _,
        sort_by: _,
        having: _,
        named_window: _,
        qualify: _,
        window_before_qualify: _,
        value_table_mode,
        flavor,
    } = select;
    refuse_if(select_modifiers.is_some(), || {
        "modifiers of SELECT but ALL and DISTINCT".to_owned()
    })?;
    refuse_if(exclude.is_some(), || {
        "EXCLUDE after other columns: SELECT * EXCLUDE (a) leaves a column out".to_owned()
    })?;
    refuse_if(prewhere.is_some(), || "PREWHERE: WHERE … AND …".to_owned())?;
    refuse_if(!connect_by.is_empty(), || {
        "CONNECT BY: WITH RECURSIVE goes through a hierarchy".to_owned()
    })?;
    refuse_if(value_table_mode.is_some(), || {
        "SELECT AS STRUCT and AS VALUE: SELECT named_struct('a', a, …)".to_owned()
    })?;
    if *flavor == SelectFlavor::FromFirstNoSelect && projection.is_empty() {
        projection.push(SelectItem::Wildcard(Default::default()));
        *flavor = SelectFlavor::Standard;
    }
    for item in projection {
        if let SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) = item {
            refuse_if(options.opt_ilike.is_some(), || {
                format!("{item}: name the columns, or leave others out, * EXCLUDE (a)")
            })?;
        }
    }
    from.iter_mut().try_for_each(joins)
}

/// Rewrites or refuses the joins of a relation.
pub(super) fn joins(relation: &mut TableWithJoins) -> Result<()> {
    let TableWithJoins { relation: _, joins } = relation;
    for join in joins {
        let Join {
            relation: _,
            global,
            join_operator,
        } = join;
        refuse_if(*global, || "GLOBAL JOIN: JOIN".to_owned())?;
        let is_asof = matches!(join_operator, JoinOperator::AsOf { .. });
        refuse_if(is_asof, || {
            "ASOF JOIN: last_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY t) over the UNION ALL of both tables \
             has the latest value of the other"
                .to_owned()
        })?;
        match join_operator {
            JoinOperator::Semi(constraint) => {
                let constraint = std::mem::replace(constraint, JoinConstraint::None);
                *join_operator = JoinOperator::LeftSemi(constraint);
            }
            JoinOperator::Anti(constraint) => {
                let constraint = std::mem::replace(constraint, JoinConstraint::None);
                *join_operator = JoinOperator::LeftAnti(constraint);
            }
            _ => {}
        }
        if let JoinOperator::Left(JoinConstraint::None)
        | JoinOperator::LeftOuter(JoinConstraint::None)
        | JoinOperator::Right(JoinConstraint::None)
        | JoinOperator::RightOuter(JoinConstraint::None)
        | JoinOperator::FullOuter(JoinConstraint::None)
        | JoinOperator::LeftSemi(JoinConstraint::None)
        | JoinOperator::RightSemi(JoinConstraint::None)
        | JoinOperator::LeftAnti(JoinConstraint::None)
        | JoinOperator::RightAnti(JoinConstraint::None) = join_operator
        {
            let join = join.to_string();
            return wrong(
                join.trim(),
                "it has no condition: ON a.x = b.y or USING (x)",
            );
        }
    }
    Ok(())
}
