//! Properties of physical plans that DataFusion's own encoding leaves out, carried beside it.
//!
//! ```text
//! operator ──► DataFusion's message ──► as it is, where it holds everything
//!                                  └──► an extension: [what is lost] over [the message]
//! ```
//!
//! A [`Converter`] encodes a plan in this way, operator by operator. Decoding needs none: an extension's
//! input is the operator without the lost properties, and [`Lost::restore`] adds them again. [`verify`]
//! checks whether a plan survives.

mod cast;
mod grouping;
mod leaf;
mod literal;
mod scan;
mod sink;
#[cfg(test)]
mod tests;
mod verify;
mod window;

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::from_proto::parse_physical_expr_with_converter;
use datafusion_proto::physical_plan::to_proto::serialize_physical_expr_with_converter;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalPlanNodeExt,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::physical_expr_node::ExprType;
use datafusion_proto::protobuf::physical_plan_node::PhysicalPlanType;
use datafusion_proto::protobuf::{
    PhysicalExprNode, PhysicalExtensionExprNode, PhysicalExtensionNode, PhysicalPlanNode,
};
use serde::{Deserialize, Serialize};

use self::cast::CastTarget;
use self::grouping::EmptySets;
use self::leaf::Partitions;
use self::scan::ScanOptions;
use crate::error::Malformed;
use crate::mends::checked_arithmetic::checked;
use crate::operators::window_exprs::WindowOptions;

pub(crate) use verify::verify;

/// Prefix of these extensions, before the JSON of a [`Lost`].
const MAGIC: &[u8] = b"\xffvolley\x03";

/// Start of DataFusion's error for an operator that it has no message for.
const NO_MESSAGE: &str = "Unsupported plan and extension codec failed with [";

/// Properties of an operator that DataFusion's message leaves out.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Lost {
    Scan(ScanOptions),
    Windows(Vec<WindowOptions>),
    Partitions(Partitions),
    EmptySets(EmptySets),
    /// A sink that writes Arrow files.
    ArrowSink,
}

impl Lost {
    /// Returns the properties of an operator that are lost, if any.
    fn of(plan: &dyn ExecutionPlan) -> Result<Option<Self>> {
        if let Some(options) = ScanOptions::of(plan) {
            return Ok(Some(Self::Scan(options)));
        }
        if let Some(partitions) = Partitions::of(plan) {
            return Ok(Some(Self::Partitions(partitions)));
        }
        if let Some(sets) = EmptySets::of(plan) {
            return Ok(Some(Self::EmptySets(sets)));
        }
        Ok(window::options_of(plan)?.map(Self::Windows))
    }

    /// Decodes these bytes; `None` where they belong to another extension.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let lost = bytes.strip_prefix(MAGIC).map(serde_json::from_slice);
        lost.transpose().malformed("plan node")
    }

    /// Returns the operator with the properties that its message left out.
    pub(crate) fn restore(self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        match self {
            Self::Scan(options) => options.restore(&plan),
            Self::Windows(options) => window::restore(&plan, &options),
            Self::Partitions(partitions) => partitions.restore(&plan),
            Self::EmptySets(sets) => sets.restore(&plan),
            Self::ArrowSink => sink::restore(&plan),
        }
    }
}

/// Returns the error of an operator that cannot be encoded, with its name instead of the whole plan.
fn named(operator: &str, error: DataFusionError) -> DataFusionError {
    let text = error.to_string();
    let reason = text.split_once(NO_MESSAGE).map(|(_, reason)| reason);
    match reason {
        Some(reason) if reason.contains("Unsupported plan node") => {
            DataFusionError::NotImplemented(format!("{operator} on a cluster"))
        }
        Some(reason) => {
            let reason = reason.split("]. Plan: ").next().unwrap_or(reason);
            DataFusionError::Execution(format!("{operator} cannot be sent: {reason}"))
        }
        None => error,
    }
}

/// Properties of an expression that DataFusion's message leaves out.
#[derive(Debug, Serialize, Deserialize)]
enum LostOfExpr {
    Cast(CastTarget),
    /// A literal that is a half-precision float.
    Half,
}

impl LostOfExpr {
    fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        match literal::is_half(expr) {
            true => Some(Self::Half),
            false => CastTarget::of(expr).map(Self::Cast),
        }
    }
}

/// Decodes an expression with its lost properties; `None` where the bytes belong to another extension.
pub(crate) fn decode_expr(
    bytes: &[u8],
    inputs: &[Arc<dyn PhysicalExpr>],
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let (Some(json), [expr]) = (bytes.strip_prefix(MAGIC), inputs) else {
        return Ok(None);
    };
    let lost = serde_json::from_slice(json).malformed("expression")?;
    match lost {
        LostOfExpr::Cast(target) => target.restore(expr).map(Some),
        LostOfExpr::Half => literal::restore(expr).map(Some),
    }
}

/// Encodes operators with the properties that DataFusion's messages leave out.
#[derive(Debug, Default)]
pub(crate) struct Converter;

impl PhysicalProtoConverterExtension for Converter {
    fn proto_to_execution_plan(
        &self,
        message: &PhysicalPlanNode,
        context: &PhysicalPlanDecodeContext<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        message.try_into_physical_plan_with_context(context, self)
    }

    fn execution_plan_to_proto(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        codec: &dyn PhysicalExtensionCodec,
    ) -> Result<PhysicalPlanNode> {
        let arrow = sink::sent_as(plan.as_ref());
        let lost = match arrow.is_some() {
            true => Some(Lost::ArrowSink),
            false => Lost::of(plan.as_ref())?,
        };
        let sent = arrow.unwrap_or_else(|| Arc::clone(plan));
        let message = PhysicalPlanNode::try_from_physical_plan_with_converter(sent, codec, self);
        let mut message = message.map_err(|error| named(plan.name(), error))?;
        match &mut message.physical_plan_type {
            // The engine asks no converter for the inputs of an operator that is none of its own.
            Some(PhysicalPlanType::Extension(extension)) => {
                for (input, encoded) in plan.children().into_iter().zip(&mut extension.inputs) {
                    *encoded = self.execution_plan_to_proto(input, codec)?;
                }
            }
            // Tasks make dynamic filters of their own. These have ids, by which no two messages would be the same.
            Some(PhysicalPlanType::Sort(sort)) => sort.dynamic_filter = None,
            Some(PhysicalPlanType::Aggregate(aggregate)) => aggregate.dynamic_filter = None,
            _ => {}
        }
        let Some(lost) = lost else {
            return Ok(message);
        };
        let mut node = MAGIC.to_vec();
        serde_json::to_writer(&mut node, &lost).malformed("plan node")?;
        let extension = PhysicalExtensionNode {
            node,
            inputs: vec![message],
        };
        Ok(PhysicalPlanNode {
            physical_plan_type: Some(PhysicalPlanType::Extension(extension)),
        })
    }

    fn proto_to_physical_expr(
        &self,
        message: &PhysicalExprNode,
        schema: &Schema,
        context: &PhysicalPlanDecodeContext<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let expr = parse_physical_expr_with_converter(message, schema, context, self)?;
        checked(expr, schema)
    }

    fn physical_expr_to_proto(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        codec: &dyn PhysicalExtensionCodec,
    ) -> Result<PhysicalExprNode> {
        let message = serialize_physical_expr_with_converter(expr, codec, self)?;
        let Some(lost) = LostOfExpr::of(expr) else {
            return Ok(message);
        };
        let mut expr = MAGIC.to_vec();
        serde_json::to_writer(&mut expr, &lost).malformed("expression")?;
        let extension = PhysicalExtensionExprNode {
            expr,
            inputs: vec![message],
        };
        Ok(PhysicalExprNode {
            expr_id: None,
            expr_type: Some(ExprType::Extension(extension)),
        })
    }
}
