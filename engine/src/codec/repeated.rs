//! A projection with two columns of one name, on its way to the scheduler.
//!
//! DataFusion creates such projections for `GROUP BY CUBE (x, CAST(x AS BIGINT))` with `grouping(x)`: the columns
//! differ in their qualifiers. Its messages are decoded by a builder that refuses them. So such a projection is sent as
//! a separate operator, which the scheduler turns back into a projection before anything else.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::DFSchemaRef;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, Projection, UserDefinedLogicalNodeCore,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_exprs;
use datafusion_proto::logical_plan::to_proto::serialize_exprs;
use datafusion_proto::protobuf::LogicalExprList;
use prost::Message;

use crate::error::External;
use crate::nodes::train::only;
use volley_proto::{Error, nesting};

/// Projection with repeated names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepeatedNames(Projection);

impl RepeatedNames {
    pub(crate) fn encode(&self, codec: &dyn LogicalExtensionCodec) -> Result<Vec<u8>> {
        let expr = serialize_exprs(&self.0.expr, codec)
            .map_err(malformed)
            .external()?;
        Ok(LogicalExprList { expr }.encode_to_vec())
    }

    pub(crate) fn decode(
        exprs: &[u8],
        input: LogicalPlan,
        context: &TaskContext,
        codec: &dyn LogicalExtensionCodec,
    ) -> Result<Self> {
        let exprs: LogicalExprList = nesting::decode(exprs).map_err(malformed).external()?;
        let exprs = parse_exprs(&exprs.expr, context, codec)
            .map_err(malformed)
            .external()?;
        Ok(Self(Projection::try_new(exprs, Arc::new(input))?))
    }
}

fn malformed(error: impl ToString) -> Error {
    Error::malformed("projection", error.to_string())
}

impl Hash for RepeatedNames {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialOrd for RepeatedNames {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl UserDefinedLogicalNodeCore for RepeatedNames {
    fn name(&self) -> &'static str {
        "RepeatedNames"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.0.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.0.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.0.expr.clone()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RepeatedNames")
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let input = Arc::new(only(inputs)?);
        Ok(Self(Projection::try_new(exprs, input)?))
    }
}

/// Turns a projection with repeated names into an operator that can be sent.
pub(crate) fn send_repeated_names(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::Projection(projection) if repeats(&projection) => {
            let node = Arc::new(RepeatedNames(projection));
            Transformed::yes(LogicalPlan::Extension(Extension { node }))
        }
        plan => Transformed::no(plan),
    })
}

/// Turns an operator of [`send_repeated_names`] back into a projection.
pub(crate) fn receive_repeated_names(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Extension(extension) = &plan else {
        return Ok(Transformed::no(plan));
    };
    let node = extension.node.as_any().downcast_ref::<RepeatedNames>();
    Ok(match node {
        Some(RepeatedNames(projection)) => {
            Transformed::yes(LogicalPlan::Projection(projection.clone()))
        }
        None => Transformed::no(plan),
    })
}

/// Checks whether two columns have the same name, including qualifiers.
fn repeats(projection: &Projection) -> bool {
    let mut names = HashSet::new();
    let mut exprs = projection.expr.iter();
    exprs.any(|expr| !names.insert(expr.schema_name().to_string()))
}
