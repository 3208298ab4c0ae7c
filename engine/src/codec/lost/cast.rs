//! The explicit nullability of a cast, which the planner sets and the engine's message leaves out.
//!
//! Without it, a union or a recursive query, which derives its schema from its inputs where it runs, would cast them
//! again.

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::CastExpr;
use serde::{Deserialize, Serialize};

/// Target field of a cast as the planner has set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CastTarget {
    name: String,
    nullable: bool,
}

impl CastTarget {
    pub(super) fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        let cast = expr.downcast_ref::<CastExpr>()?;
        let field = cast.target_field();
        cast.has_explicit_nullability().then(|| Self {
            name: field.name().clone(),
            nullable: field.is_nullable(),
        })
    }

    /// Restores the target field of a decoded cast.
    pub(crate) fn restore(self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let Some(cast) = expr.downcast_ref::<CastExpr>() else {
            return internal_err!("{expr} is no cast");
        };
        let field = cast.target_field().as_ref().clone();
        let field = field.with_name(self.name).with_nullable(self.nullable);
        let options = Some(cast.cast_options().clone());
        Ok(Arc::new(CastExpr::new_with_target_field(
            Arc::clone(cast.expr()),
            Arc::new(field),
            options,
        )))
    }
}
