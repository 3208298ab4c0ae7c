//! Windows for which 0.0 and -0.0 are one value, as they are for comparisons and groups.
//!
//! DataFusion 55 finds the partitions and peers of a window by the total order of floats (IEEE 754's), in which -0.0 comes
//! before 0.0: `count(*) OVER (PARTITION BY x)` counts them apart, while `GROUP BY x` and `x = 0` do not. Here a window's
//! keys of floats are `x + 0.0`, which is 0.0 for both. Ordinary sorts keep the total order.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::OptimizerConfig;
use datafusion::scalar::ScalarValue;

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::window_exprs;
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "negative_zeros",
    wrong: "0.0 and -0.0 are in two partitions of a window, and have two ranks",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::LastLogical(|| top_down("one_zero", one_zero))],
};

fn one_zero(plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    window_exprs::replaced(plan, |window, input| {
        let mut window = window.clone();
        let WindowFunction { params, .. } = &mut window;
        let mut changed = false;
        let partitions = params.partition_by.iter_mut();
        let orders = params.order_by.iter_mut().map(|sort| &mut sort.expr);
        for key in partitions.chain(orders) {
            if let Some(with_one_zero) = with_one_zero(key, input)? {
                *key = with_one_zero;
                changed = true;
            }
        }
        Ok(changed.then(|| Expr::WindowFunction(Box::new(window))))
    })
}

/// Returns the key with 0.0 for -0.0, if it is of floats and not such a key already.
fn with_one_zero(key: &Expr, input: &DFSchema) -> Result<Option<Expr>> {
    let data_type = key.get_type(input)?;
    if !data_type.is_floating() {
        return Ok(None);
    }
    let zero = lit(ScalarValue::new_zero(&data_type)?);
    let is_done = matches!(
        key,
        Expr::BinaryExpr(BinaryExpr { op: Operator::Plus, right, .. }) if **right == zero
    );
    Ok((!is_done).then(|| key.clone() + zero))
}
