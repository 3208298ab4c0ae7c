//! The negative of whole numbers, with an error for the least number of a type.
//!
//! It has the name, the text and the wire form of DataFusion's expression, so that a plan of a task reads as it was sent.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::compute::kernels::numeric::neg;
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::sort_properties::ExprProperties;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::NegativeExpr as Wrapping;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion_proto::protobuf::PhysicalExprNode;

/// Replacement of DataFusion's expression of this name.
#[derive(Debug, Eq)]
pub(super) struct NegativeExpr {
    arg: Arc<dyn PhysicalExpr>,
}

// A derived one would move the field (rust-lang/rust#78808).
impl PartialEq for NegativeExpr {
    fn eq(&self, other: &Self) -> bool {
        self.arg.eq(&other.arg)
    }
}

impl Hash for NegativeExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.arg.hash(state);
    }
}

impl NegativeExpr {
    pub(super) fn new(arg: Arc<dyn PhysicalExpr>) -> Self {
        Self { arg }
    }

    fn wrapping(&self) -> Wrapping {
        Wrapping::new(Arc::clone(&self.arg))
    }
}

impl fmt::Display for NegativeExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wrapping().fmt(f)
    }
}

impl PhysicalExpr for NegativeExpr {
    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        Ok(match self.arg.evaluate(batch)? {
            ColumnarValue::Array(numbers) => ColumnarValue::Array(neg(&numbers)?),
            ColumnarValue::Scalar(number) => ColumnarValue::Scalar(number.arithmetic_negate()?),
        })
    }

    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.wrapping().data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.wrapping().nullable(input)
    }

    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.wrapping().return_field(input)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.arg]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self::new(children.swap_remove(0))))
    }

    fn evaluate_bounds(&self, children: &[&Interval]) -> Result<Interval> {
        self.wrapping().evaluate_bounds(children)
    }

    fn propagate_constraints(
        &self,
        interval: &Interval,
        children: &[&Interval],
    ) -> Result<Option<Vec<Interval>>> {
        self.wrapping().propagate_constraints(interval, children)
    }

    fn get_properties(&self, children: &[ExprProperties]) -> Result<ExprProperties> {
        self.wrapping().get_properties(children)
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wrapping().fmt_sql(f)
    }

    fn try_to_proto(
        &self,
        context: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<Option<PhysicalExprNode>> {
        self.wrapping().try_to_proto(context)
    }
}
