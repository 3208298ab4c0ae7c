//! Nested unions as one union.
//!
//! `a UNION ALL b UNION ALL c …` is parsed as unions that nest as deeply as the statement is long, and planning takes
//! stack for each level. The engine's own rule also adds casts, which its other rules do not expect so early.

use std::sync::Arc;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Distinct, LogicalPlan, Union};
use datafusion::optimizer::OptimizerConfig;

/// Flattens nested unions whose columns have the same types.
pub(crate) fn flatten_unions(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let (union, distinct) = match plan {
        LogicalPlan::Union(union) => (union, false),
        LogicalPlan::Distinct(Distinct::All(input)) => match input.as_ref() {
            LogicalPlan::Union(union) => (union.clone(), true),
            _ => return Ok(Transformed::no(LogicalPlan::Distinct(Distinct::All(input)))),
        },
        plan => return Ok(Transformed::no(plan)),
    };
    let Union { inputs, schema } = union;
    let before = inputs.len();
    let mut rest: Vec<_> = inputs.into_iter().rev().collect();
    let mut flat = vec![];
    while let Some(input) = rest.pop() {
        let inner = match input.as_ref() {
            // The outer union removes duplicates, so the inner one need not.
            LogicalPlan::Distinct(Distinct::All(inner)) if distinct => inner,
            _ => &input,
        };
        match inner.as_ref() {
            LogicalPlan::Union(inner) if has_same_types(inner, &schema) => {
                rest.extend(inner.inputs.iter().rev().cloned());
            }
            _ => flat.push(input),
        }
    }
    let is_flatter = flat.len() > before;
    let inputs = flat;
    let plan = LogicalPlan::Union(Union { inputs, schema });
    let plan = match distinct {
        true => LogicalPlan::Distinct(Distinct::All(Arc::new(plan))),
        false => plan,
    };
    Ok(match is_flatter {
        true => Transformed::yes(plan),
        false => Transformed::no(plan),
    })
}

fn has_same_types(inner: &Union, outer: &Arc<DFSchema>) -> bool {
    let types = |schema: &DFSchema| {
        let fields = schema.fields().iter();
        fields
            .map(|field| field.data_type().clone())
            .collect::<Vec<_>>()
    };
    types(&inner.schema) == types(outer)
}
