//! Tests that all expressions are known, and arrive with everything that they show.

use std::collections::BTreeSet;

use datafusion::physical_plan::projection::ProjectionExec;

use super::super::verify::unchecked;
use super::*;

/// Expressions with at least one of each kind, and every binary operator.
const EXPRESSIONS: &[&str] = &[
    "k",
    "1",
    "1.5",
    "-2.5e300",
    "'NaN'::double",
    "'text'",
    "true",
    "NULL",
    "NULL::int",
    "DATE '2024-02-29'",
    "TIMESTAMP '2024-02-29T12:34:56.789'",
    "TIMESTAMP '2024-02-29T12:34:56Z'",
    "arrow_cast('2024-02-29T12:34:56', 'Timestamp(Nanosecond, Some(\"Europe/Berlin\"))')",
    "TIME '12:34:56'",
    "INTERVAL '1 month 2 days 3 seconds'",
    "1.25::decimal(20, 3)",
    "X'00ff'",
    "[1, NULL, 3]",
    "{'a': 1, 'b': [NULL]}",
    "MAP {'a': 1}",
    "arrow_cast('x', 'Dictionary(Int32, Utf8)')",
    "arrow_cast('x', 'Utf8View')",
    "arrow_cast('x', 'LargeUtf8')",
    "arrow_cast(1, 'UInt8')",
    "arrow_cast(1.5, 'Float16')",
    "k + v - 2 * v / 3 % 2",
    "k = v OR k <> v AND k < v",
    "k <= v AND k >= v AND k > v",
    "(k IS DISTINCT FROM v) OR (k IS NOT DISTINCT FROM v)",
    "s ~ 'x' OR s ~* 'X' OR s !~ 'x' OR s !~* 'X'",
    "k & v | k ^ v",
    "k << 1 >> 2",
    "s || 'x'",
    "l @> [1] OR l <@ [1]",
    "k IS NULL OR v IS NOT NULL OR NOT b",
    "b IS TRUE OR b IS NOT FALSE OR b IS UNKNOWN",
    "CASE k WHEN 1 THEN 'a' WHEN 2 THEN s ELSE 'c' END",
    "CASE WHEN k > 1 THEN v END",
    "CAST(k AS SMALLINT)",
    "CAST(s AS DATE)",
    "TRY_CAST(s AS DATE)",
    "-k",
    "k IN (1, 2, 3, v)",
    "s NOT IN ('a', 'b', NULL)",
    "s LIKE 'a%' OR s NOT LIKE '%b' OR s ILIKE 'c_' OR s NOT ILIKE 'd'",
    "s SIMILAR TO 'a|b'",
    "k BETWEEN 1 AND v",
    "abs(k)",
    "coalesce(NULL, v, k)",
    "nullif(k, v)",
    "concat(s, k)",
    "substr(s, 2, 3)",
    "date_trunc('month', day)",
    "date_part('year', day)",
    "day + INTERVAL '1 day'",
    "to_timestamp(s)",
    "regexp_replace(s, 'x', 'y', 'g')",
    "m['m']",
    "l[1]",
    "l[1:2]",
    "array_sort(l, 'DESC')",
    "struct(k, s)",
    "round(d, 1)",
    "random() < 2",
    "array_transform(l, x -> x + 1)",
    "array_filter(l, x -> x > k)",
];

/// Kinds of expressions in the list above.
const TRIED: &[&str] = &[
    "Column",
    "Literal",
    "BinaryExpr",
    "IsNullExpr",
    "IsNotNullExpr",
    "NotExpr",
    "Case",
    "Cast",
    "TryCast",
    "Negative",
    "InList",
    "ScalarUdf",
    "LikeExpr",
    "HigherOrderUdf",
    "Lambda",
    "LambdaVariable",
];

/// Returns the name of an expression's message, if a stage's operators compute such expressions.
fn kind(message: &ExprType) -> Option<&'static str> {
    Some(match message {
        ExprType::Column(_) => "Column",
        ExprType::Literal(_) => "Literal",
        ExprType::BinaryExpr(_) => "BinaryExpr",
        ExprType::IsNullExpr(_) => "IsNullExpr",
        ExprType::IsNotNullExpr(_) => "IsNotNullExpr",
        ExprType::NotExpr(_) => "NotExpr",
        ExprType::Case(_) => "Case",
        ExprType::Cast(_) => "Cast",
        ExprType::TryCast(_) => "TryCast",
        ExprType::Negative(_) => "Negative",
        ExprType::InList(_) => "InList",
        ExprType::ScalarUdf(_) => "ScalarUdf",
        ExprType::LikeExpr(_) => "LikeExpr",
        ExprType::HigherOrderUdf(_) => "HigherOrderUdf",
        ExprType::Lambda(_) => "Lambda",
        ExprType::LambdaVariable(_) => "LambdaVariable",
        // Casts and literals with more than their message encodes.
        ExprType::Extension(_) => return None,
        // Parts of operators, which are compared with these.
        ExprType::AggregateExpr(_) | ExprType::Sort(_) | ExprType::WindowExpr(_) => return None,
        // Expressions of exchanges, and of filters that joins create while they run: both are Volley's own.
        ExprType::UnknownColumn(_)
        | ExprType::HashExpr(_)
        | ExprType::RangeExpr(_)
        | ExprType::DynamicFilter(_) => return None,
        // Clients turn these into joins.
        ExprType::ScalarSubquery(_) => return None,
    })
}

fn kinds(expr: &Arc<dyn PhysicalExpr>, found: &mut BTreeSet<&'static str>) {
    let codec = VolleyPhysicalCodec::default();
    let message = Converter.physical_expr_to_proto(expr, &codec).unwrap();
    found.extend(message.expr_type.as_ref().and_then(kind));
    for child in expr.children() {
        kinds(child, found);
    }
}

fn expressions(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn PhysicalExpr>> {
    let found = plan.downcast_ref::<ProjectionExec>();
    let found = found.unwrap_or_else(|| panic!("no projection: {}", plan.name()));
    found
        .expr()
        .iter()
        .map(|expr| Arc::clone(&expr.expr))
        .collect()
}

#[tokio::test]
async fn every_expression_arrives_as_it_was() {
    let (session, _dir) = session(&[]).await;
    let state = datafusion::execution::SessionStateBuilder::new_from_existing(session.state());
    // The planner must not push the expression into a scan.
    let simplified = state.with_physical_optimizer_rules(vec![]).build();
    // The expression must stay as it is written, and not be computed.
    let written = datafusion::execution::SessionStateBuilder::new_from_existing(simplified.clone())
        .with_optimizer_rules(vec![])
        .build();
    let [written, simplified] = [written, simplified].map(SessionContext::new_with_state);
    let (mut lost, mut found) = (vec![], BTreeSet::new());
    for (expression, session) in EXPRESSIONS
        .iter()
        .flat_map(|expression| [(expression, &written), (expression, &simplified)])
    {
        let plan = plan(session, &format!("SELECT {expression} AS x FROM t")).await;
        let (_, arrived) = sent(&plan, session);
        if plan.schema() != arrived.schema() {
            lost.push(format!(
                "{expression}: {} is {}",
                plan.schema(),
                arrived.schema()
            ));
        }
        for (meant, arrived) in expressions(&plan).iter().zip(expressions(&arrived)) {
            let (before, after) = (format!("{meant:?}"), unchecked(&format!("{arrived:?}")));
            if before != after {
                lost.push(format!("{expression}: {before} is {after}"));
            }
            kinds(meant, &mut found);
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    assert_eq!(found, TRIED.iter().copied().collect());
}
