//! Literals of half-precision floats, which the engine's messages encode in single precision.

use std::sync::Arc;

use datafusion::arrow::datatypes::{ArrowPrimitiveType, Float16Type};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::scalar::ScalarValue;

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Checks whether an expression is such a literal.
pub(super) fn is_half(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let literal = expr.downcast_ref::<Literal>();
    literal.is_some_and(|literal| matches!(literal.value(), ScalarValue::Float16(Some(_))))
}

/// Restores half precision of a literal that was decoded with single precision.
pub(super) fn restore(expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    let literal = expr.downcast_ref::<Literal>();
    let Some(ScalarValue::Float32(Some(value))) = literal.map(Literal::value) else {
        return internal_err!("{expr} is no float of single precision");
    };
    let value = ScalarValue::Float16(Some(Half::from_f32(*value)));
    Ok(Arc::new(Literal::new(value)))
}
