//! What operators have in common that take another's place and change how it is executed: they are shown, found and
//! planned as the other. Not here: their inputs, and what they execute.

/// The methods of an [`ExecutionPlan`](datafusion::physical_plan::ExecutionPlan) that are those of the operator in a field.
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

pub(super) use delegate_to;
