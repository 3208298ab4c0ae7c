//! Projection pushdown below predictions: input columns that neither the model nor a parent operator reads are dropped before
//! a plan is sent, because its prediction does not tell the scheduler which columns the model reads.
//!
//! ```text
//!   Projection: id, predicted_y            Projection: id, predicted_y
//!     Predict: m                      ─►     Predict: m
//!       TableScan: wide                        Projection: id, and the features of m
//!                                                TableScan: wide
//! ```
//!
//! DataFusion's rules, which the scheduler applies, then read only those columns. Not here: operators above a prediction
//! that need all of its columns, such as DISTINCT, below which all columns stay.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, Extension, LogicalPlan, Projection};
use datafusion::optimizer::OptimizerConfig;

use crate::PredictNode;

/// Drops unused columns below each operator that names all columns that it needs.
pub(crate) fn narrow_predictions(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let predicts = plan.exists(|node| match node {
        LogicalPlan::Extension(extension) => Ok(extension.node.as_any().is::<PredictNode>()),
        _ => Ok(false),
    })?;
    // A lateral relation reads columns that no expression names until it is a join, after a further pass.
    let is_lateral = plan.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))?;
    match predicts && !is_lateral {
        true => plan.transform_down(narrow),
        false => Ok(Transformed::no(plan)),
    }
}

fn narrow(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let narrowed = match &plan {
        LogicalPlan::Projection(projection) => {
            let Some(input) = only_narrowed(&plan, &projection.expr)? else {
                return Ok(Transformed::no(plan));
            };
            let (exprs, schema) = (projection.expr.clone(), Arc::clone(&projection.schema));
            Projection::try_new_with_schema(exprs, input, schema).map(LogicalPlan::Projection)?
        }
        LogicalPlan::Aggregate(aggregate) => {
            let exprs: Vec<_> = aggregate
                .group_expr
                .iter()
                .chain(&aggregate.aggr_expr)
                .cloned()
                .collect();
            let Some(input) = only_narrowed(&plan, &exprs)? else {
                return Ok(Transformed::no(plan));
            };
            let (groups, values) = (aggregate.group_expr.clone(), aggregate.aggr_expr.clone());
            let schema = Arc::clone(&aggregate.schema);
            Aggregate::try_new_with_schema(input, groups, values, schema)
                .map(LogicalPlan::Aggregate)?
        }
        _ => return Ok(Transformed::no(plan)),
    };
    Ok(Transformed::yes(narrowed))
}

/// Narrows the only input of a plan with these expressions; `None` if there is nothing to drop.
fn only_narrowed(plan: &LogicalPlan, exprs: &[Expr]) -> Result<Option<Arc<LogicalPlan>>> {
    let Some(needed) = with_columns_of(exprs, HashSet::new())? else {
        return Ok(None);
    };
    match plan.inputs()[..] {
        [input] => Ok(narrowed(input, &needed)?.map(Arc::new)),
        _ => Ok(None),
    }
}

/// Returns a plan without columns that nothing reads, of which what is above reads the `needed` ones; `None` if there are
/// none.
fn narrowed(plan: &LogicalPlan, needed: &HashSet<Column>) -> Result<Option<LogicalPlan>> {
    match plan {
        LogicalPlan::Extension(extension) => {
            let Some(predict) = extension.node.as_any().downcast_ref::<PredictNode>() else {
                return Ok(None);
            };
            let narrowed = predict.narrowed(needed)?;
            Ok(narrowed.map(|node| {
                let node = Arc::new(node);
                LogicalPlan::Extension(Extension { node })
            }))
        }
        LogicalPlan::Projection(projection) => {
            let places = needed
                .iter()
                .filter_map(|column| projection.schema.maybe_index_of_column(column));
            let mut places: Vec<_> = places.collect();
            places.sort_unstable();
            places.dedup();
            // An operator without columns loses its rows' number on the way.
            if places.is_empty() {
                places.push(0);
            }
            let exprs = places
                .into_iter()
                .filter_map(|place| projection.expr.get(place));
            let exprs: Vec<_> = exprs.cloned().collect();
            let Some(input) = only_narrowed(plan, &exprs)? else {
                return Ok(None);
            };
            Projection::try_new(exprs, input)
                .map(LogicalPlan::Projection)
                .map(Some)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            // It renames the relation of each column, by position.
            let below = alias.input.schema();
            let places = needed
                .iter()
                .filter_map(|column| alias.schema.maybe_index_of_column(column));
            let needed = places.map(|place| Column::from(below.qualified_field(place)));
            over_narrowed(plan, &needed.collect())
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Join(_) => over_narrowed(plan, needed),
        _ => Ok(None),
    }
}

/// Narrows the inputs of a plan whose columns are those of its inputs; `None` if there is nothing to drop.
fn over_narrowed(plan: &LogicalPlan, needed: &HashSet<Column>) -> Result<Option<LogicalPlan>> {
    let exprs = plan.expressions();
    let Some(needed) = with_columns_of(&exprs, needed.clone())? else {
        return Ok(None);
    };
    let (mut inputs, mut is_narrower) = (Vec::new(), false);
    for input in plan.inputs() {
        let schema = input.schema();
        let of_input = needed
            .iter()
            .filter(|column| schema.maybe_index_of_column(column).is_some());
        let narrowed = narrowed(input, &of_input.cloned().collect())?;
        is_narrower |= narrowed.is_some();
        inputs.push(narrowed.unwrap_or_else(|| input.clone()));
    }
    match is_narrower {
        true => plan.with_new_exprs(exprs, inputs).map(Some),
        false => Ok(None),
    }
}

/// Adds the columns that expressions read; `None` if a subquery may read others.
fn with_columns_of(exprs: &[Expr], mut needed: HashSet<Column>) -> Result<Option<HashSet<Column>>> {
    for expr in exprs {
        let is_subquery = |part: &Expr| {
            Ok(matches!(
                part,
                Expr::Exists(_)
                    | Expr::InSubquery(_)
                    | Expr::ScalarSubquery(_)
                    | Expr::SetComparison(_)
            ))
        };
        if expr.exists(is_subquery)? {
            return Ok(None);
        }
        needed.extend(expr.column_refs().into_iter().cloned());
    }
    Ok(Some(needed))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::Spans;
    use datafusion::common::tree_node::TreeNodeRecursion;
    use datafusion::functions_aggregate::expr_fn::{avg, count};
    use datafusion::logical_expr::{
        JoinType, LogicalPlanBuilder, Subquery, col, lit, out_ref_col, table_scan,
    };
    use datafusion::optimizer::OptimizerContext;
    use volley_proto::ModelRef;
    use volley_proto::store::PredictedColumns;

    use super::*;

    /// Returns a prediction of `p` by a model of `f` and `g`, over a table of more columns.
    fn predicted(features: Option<[&str; 2]>) -> LogicalPlanBuilder {
        let fields = ["id", "a", "f", "b", "g"].map(|name| Field::new(name, DataType::Int64, true));
        let table = table_scan(Some("t"), &Schema::new(fields.to_vec()), None).unwrap();
        let model = ModelRef {
            store: "file:///models/".parse().unwrap(),
            name: "m".parse().unwrap(),
            version: 1,
        };
        let columns = PredictedColumns {
            name: "p".to_owned(),
            further: vec![],
            class: None,
            has_quantiles: false,
            explained_by: None,
        };
        let node = PredictNode::try_new(model, columns, table.build().unwrap()).unwrap();
        let node = match features {
            Some(features) => node.with_features(features.map(str::to_owned).to_vec()),
            None => node,
        };
        let node = Arc::new(node);
        LogicalPlanBuilder::from(LogicalPlan::Extension(Extension { node }))
    }

    /// Returns the columns below the prediction of a plan, once it is narrowed.
    fn below(plan: LogicalPlanBuilder) -> Vec<String> {
        let plan = plan.build().unwrap();
        let narrowed = narrow_predictions(plan.clone(), &OptimizerContext::new()).unwrap();
        assert_eq!(
            narrowed.data.schema(),
            plan.schema(),
            "the result is the same"
        );
        let again = narrow_predictions(narrowed.data.clone(), &OptimizerContext::new()).unwrap();
        assert!(!again.transformed, "nothing is left to drop");
        let mut names = Vec::new();
        narrowed
            .data
            .apply(|node| {
                if let LogicalPlan::Extension(extension) = node {
                    let fields = extension.node.inputs()[0].schema().fields().iter();
                    names.extend(fields.map(|field| field.name().clone()));
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .unwrap();
        names
    }

    #[test]
    fn only_what_the_model_or_something_above_reads_is_read() {
        let features = || predicted(Some(["f", "g"]));
        let plan = features().project([col("id"), col("p")]).unwrap();
        assert_eq!(below(plan), ["id", "f", "g"]);
        let plan = features().filter(col("b").gt(lit(1_i64))).unwrap();
        let plan = plan.project([col("p")]).unwrap();
        assert_eq!(below(plan), ["f", "b", "g"]);
        let plan = features()
            .alias("x")
            .unwrap()
            .sort([col("x.a").sort(true, true)])
            .unwrap();
        let plan = plan.aggregate([col("x.id")], [avg(col("x.p"))]).unwrap();
        assert_eq!(below(plan), ["id", "a", "f", "g"]);
        // A projection of all columns in between, as of `SELECT * FROM ML.PREDICT(…)` in a subquery.
        let all = ["id", "a", "f", "b", "g", "p"].map(col);
        let plan = features().project(all).unwrap().alias("x").unwrap();
        let plan = plan.project([col("x.p")]).unwrap();
        assert_eq!(below(plan), ["f", "g"]);
        let plan = features().aggregate(Vec::<Expr>::new(), [count(lit(1_i64))]);
        assert_eq!(below(plan.unwrap()), ["f", "g"]);
        let fields = ["id", "b"].map(|name| Field::new(name, DataType::Int64, true));
        let other = table_scan(Some("u"), &Schema::new(fields.to_vec()), None).unwrap();
        let on = (
            vec![Column::from_qualified_name("t.id")],
            vec![Column::from_qualified_name("u.id")],
        );
        let plan = features()
            .join(other.build().unwrap(), JoinType::Inner, on, None)
            .unwrap();
        let plan = plan.project([col("u.b"), col("p")]).unwrap();
        assert_eq!(below(plan), ["id", "f", "g"]);
    }

    #[test]
    fn all_is_read_where_all_is_needed_or_the_features_are_not_known() {
        let all = ["id", "a", "f", "b", "g"];
        let features = || predicted(Some(["f", "g"]));
        assert_eq!(below(features()), all);
        let plan = features().distinct().unwrap().project([col("p")]).unwrap();
        assert_eq!(below(plan), all);
        // A lateral relation, of which no expression of the join names `t.b`.
        let fields = vec![Field::new("k", DataType::Int64, true)];
        let other = table_scan(Some("u"), &Schema::new(fields), None).unwrap();
        let reads = out_ref_col(DataType::Int64, "t.b");
        let other = other.filter(col("u.k").eq(reads.clone())).unwrap();
        let lateral = LogicalPlan::Subquery(Subquery {
            subquery: Arc::new(other.build().unwrap()),
            outer_ref_columns: vec![reads],
            spans: Spans::new(),
        });
        let plan = features().cross_join(lateral).unwrap();
        assert_eq!(below(plan.project([col("p")]).unwrap()), all);
        let plan = predicted(None).project([col("p")]).unwrap();
        assert_eq!(below(plan), all);
        let plan = predicted(Some(["f", "missing"]))
            .project([col("p")])
            .unwrap();
        assert_eq!(below(plan), all);
    }
}
