//! Calls with constant arguments whose results are larger than a plan should be.
//!
//! DataFusion computes such calls while it plans, so `repeat('x', 50000000)` becomes 50 MB of every message that has the
//! plan. Here the functions whose results may be much larger than their arguments are computed then only if the result is
//! at most 1 MiB; tasks compute the others. A result that is held makes the calls around it wait as well.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::scalar::ScalarValue;

use crate::rules::logical::map_named;

/// Bytes of a constant in a plan.
const LARGEST: usize = 1 << 20;
/// Assumed bytes of a result, by its arguments, up to which it is computed to learn its size.
const LARGEST_TRIED: u128 = 64 << 20;

/// Functions whose results may be much larger than their arguments.
const GROWING: [&str; 7] = [
    "array_repeat",
    "array_resize",
    "generate_series",
    "lpad",
    "range",
    "repeat",
    "rpad",
];

/// Holds calls of growing functions with constant arguments, before expressions are simplified.
pub(crate) fn hold_large_constants(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    map_named(plan, |expr| {
        expr.transform_up(|expr| {
            let Expr::ScalarFunction(ScalarFunction { func, args }) = expr else {
                return Ok(Transformed::no(expr));
            };
            let is_held = func.inner().is::<Held>();
            let holds = GROWING.contains(&func.name()) && !is_held && args.iter().all(is_constant);
            let func = match holds {
                true => Arc::new(ScalarUDF::new_from_impl(Held::of(func))),
                false => func,
            };
            let call = Expr::ScalarFunction(ScalarFunction { func, args });
            Ok(Transformed::new_transformed(call, holds))
        })
    })
}

/// Checks whether an expression has the same value for each row.
fn is_constant(expr: &Expr) -> bool {
    let has_row = expr.exists(|part| {
        Ok(!matches!(
            part,
            Expr::Literal(..)
                | Expr::ScalarFunction(_)
                | Expr::Cast(_)
                | Expr::TryCast(_)
                | Expr::BinaryExpr(_)
                | Expr::Negative(_)
        ))
    });
    !has_row.unwrap_or(true)
}

/// A function that is computed while it is planned only if its result is small. It is sent by its name, as the function
/// itself.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Held {
    function: Arc<ScalarUDF>,
    /// Volatile, which is never computed while it is planned.
    signature: Signature,
}

impl Held {
    fn of(function: Arc<ScalarUDF>) -> Self {
        let signature = Signature {
            volatility: Volatility::Volatile,
            ..function.signature().clone()
        };
        Self {
            function,
            signature,
        }
    }

    /// Computes a call of constants, if its result is small.
    fn small(&self, args: &[Expr], config: &Arc<ConfigOptions>) -> Option<ScalarValue> {
        let literal = |arg: &Expr| match arg {
            Expr::Literal(value, _) => Some(value.clone()),
            _ => None,
        };
        let values: Vec<_> = args.iter().map(literal).collect::<Option<_>>()?;
        if assumed_size(&values) > LARGEST_TRIED {
            return None;
        }
        let fields = values
            .iter()
            .map(|value| Arc::new(Field::new("constant", value.data_type(), value.is_null())));
        let arg_fields: Vec<FieldRef> = fields.collect();
        let scalars: Vec<_> = values.iter().map(Some).collect();
        let return_field = self.function.return_field_from_args(ReturnFieldArgs {
            arg_fields: &arg_fields,
            scalar_arguments: &scalars,
        });
        let called = self.function.invoke_with_args(ScalarFunctionArgs {
            args: values.iter().cloned().map(ColumnarValue::Scalar).collect(),
            arg_fields: arg_fields.clone(),
            number_rows: 1,
            return_field: return_field.ok()?,
            config_options: Arc::clone(config),
        });
        // Tasks report errors.
        let value = match called.ok()? {
            ColumnarValue::Scalar(value) => value,
            ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0).ok()?,
        };
        (value.size() <= LARGEST).then_some(value)
    }
}

/// Returns the bytes of a result that repeats its arguments as often as the greatest number among them says.
fn assumed_size(values: &[ScalarValue]) -> u128 {
    let number = |value: &ScalarValue| match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(number))) => number.unsigned_abs(),
        _ => 0,
    };
    let times = values.iter().map(number).max().unwrap_or(0);
    let size = |value: &ScalarValue| 8 + value.size() - size_of::<ScalarValue>();
    let size: usize = values.iter().map(size).sum();
    u128::from(times) * size as u128
}

impl ScalarUDFImpl for Held {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.function.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.function.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(args)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arg_types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.function.invoke_with_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(match self.small(&args, info.config_options()) {
            Some(value) => ExprSimplifyResult::Simplified(Expr::Literal(value, None)),
            None => ExprSimplifyResult::Original(args),
        })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::optimizer::{Optimizer, OptimizerContext};
    use datafusion::prelude::SessionContext;

    use crate::sent_rules;

    async fn sent(sql: &str) -> String {
        let state = SessionContext::new().state();
        let plan = state.create_logical_plan(sql).await.unwrap();
        let analyzer = state.analyzer();
        let plan = analyzer.execute_and_check(plan, state.config_options(), |_, _| {});
        let plan = plan.unwrap();
        let rules = Optimizer::with_rules(sent_rules());
        let plan = rules.optimize(plan, &OptimizerContext::new(), |_, _| {});
        plan.unwrap().display_indent().to_string()
    }

    #[tokio::test]
    async fn only_small_results_of_calls_are_in_a_plan_that_is_sent() {
        for (sql, due) in [
            ("SELECT lpad('7', 3, '0') AS a", "Utf8(\"007\")"),
            (
                "SELECT length(repeat('xy', 500 * 100)) AS a",
                "Int32(100000)",
            ),
            (
                "SELECT repeat('x', 1000 * 50000) AS a",
                "repeat(Utf8(\"x\"), Int64(50000000))",
            ),
            (
                "SELECT length(repeat('x', 50000000)) AS a",
                "repeat(Utf8(\"x\"), Int64(50000000))",
            ),
            (
                "SELECT range(0, 10000000) AS a",
                "range(Int64(0), Int64(10000000))",
            ),
            (
                "SELECT repeat(repeat('x', 1000000), 3) AS a",
                "repeat(Utf8(\"xxx",
            ),
            (
                "SELECT repeat(repeat('x', 1000), 1000000000) AS a",
                "Int64(1000000000))",
            ),
        ] {
            let plan = sent(sql).await;
            assert!(
                plan.len() < 2 << 20 && plan.contains(due),
                "{sql}: {:.200}",
                plan
            );
        }
    }
}
