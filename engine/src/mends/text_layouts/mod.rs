//! Type coercion of `levenshtein`'s arguments to one layout of text (Utf8, LargeUtf8 or Utf8View).
//!
//! DataFusion 55 leaves each argument in its own layout, reads both with offsets of the first one's width, and fails if
//! the second is LargeUtf8. The type of the result stays: it follows from the layout that both are coerced to. No other
//! function is changed.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::map_named;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::type_coercion::binary::string_coercion;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "text_layouts",
    wrong: "`levenshtein` of two layouts of text fails",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Analyzer(|| Arc::new(TextLayouts))],
};

/// Analyzer rule that runs after DataFusion's own type coercion.
#[derive(Debug)]
struct TextLayouts;

impl AnalyzerRule for TextLayouts {
    fn name(&self) -> &'static str {
        "volley_text_layouts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(in_one_layout)?.data)
    }
}

fn in_one_layout(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    map_named(plan, |expr| expr.transform_up(|expr| cast(expr, &schema)))
}

fn cast(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(mut function) = expr else {
        return Ok(Transformed::no(expr));
    };
    if function.name() != "levenshtein" {
        return Ok(Transformed::no(Expr::ScalarFunction(function)));
    }
    let types = function.args.iter().map(|text| text.get_type(schema));
    let types = types.collect::<Result<Vec<_>>>()?;
    let layout = match &types[..] {
        [one, other] if one != other => string_coercion(one, other),
        _ => None,
    };
    let Some(layout) = layout else {
        return Ok(Transformed::no(Expr::ScalarFunction(function)));
    };
    let texts = function.args.into_iter();
    function.args = texts
        .map(|text| text.cast_to(&layout, schema))
        .collect::<Result<_>>()?;
    Ok(Transformed::yes(Expr::ScalarFunction(function)))
}
