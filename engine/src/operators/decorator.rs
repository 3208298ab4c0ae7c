//! Shared code of operators that replace another operator and change its execution: they are displayed, downcast and
//! planned as the original. Not here: their inputs and their execution.

/// Implements the methods of an [`ExecutionPlan`](datafusion::physical_plan::ExecutionPlan) that delegate to the
/// operator in a field.
#[macro_export]
macro_rules! delegate_to {
    ($operator:ident) => {
        fn name(&self) -> &str {
            self.$operator.name()
        }

        fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
            Some(self.$operator.as_ref())
        }

        fn properties(&self) -> &Arc<PlanProperties> {
            self.$operator.properties()
        }

        fn apply_expressions(
            &self,
            f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            self.$operator.apply_expressions(f)
        }
    };
}
