//! Methods that operators share. Not here: their inputs and their execution, except of leaves.

/// Implements [`DisplayAs`](datafusion::physical_plan::DisplayAs) for an operator that replaces the one in a field.
#[macro_export]
macro_rules! display_as {
    ($decorator:ty, $operator:ident) => {
        impl ::datafusion::physical_plan::DisplayAs for $decorator {
            fn fmt_as(
                &self,
                form: ::datafusion::physical_plan::DisplayFormatType,
                f: &mut ::std::fmt::Formatter<'_>,
            ) -> ::std::fmt::Result {
                self.$operator.fmt_as(form, f)
            }
        }
    };
}

/// Implements the methods of an [`ExecutionPlan`](datafusion::physical_plan::ExecutionPlan) that replaces the operator in a
/// field and changes its execution: it is downcast and planned as the original. Given a function that replaces the operator
/// over other inputs, it also has the inputs of the original.
#[macro_export]
macro_rules! delegate_to {
    ($operator:ident) => {
        fn name(&self) -> &str {
            self.$operator.name()
        }

        fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
            Some(self.$operator.as_ref())
        }

        fn properties(&self) -> &Arc<::datafusion::physical_plan::PlanProperties> {
            self.$operator.properties()
        }

        fn apply_expressions(
            &self,
            f: &mut dyn FnMut(
                &Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
            ) -> Result<::datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            self.$operator.apply_expressions(f)
        }
    };
    ($operator:ident, $replacing:expr) => {
        $crate::delegate_to!($operator);

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            self.$operator.children()
        }

        fn with_new_children(
            self: Arc<Self>,
            children: Vec<Arc<dyn ExecutionPlan>>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            let replacing: fn(&Self, Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> =
                $replacing;
            let operator = Arc::clone(&self.$operator);
            let operator =
                ::datafusion::physical_plan::replace_children_if_necessary(operator, children)?;
            replacing(&self, operator)
        }
    };
}

/// Implements the methods of an operator of this name, which has a field with its properties, and no expressions that
/// others may change. One with an `input` gives the function that makes it over another one.
#[macro_export]
macro_rules! operator {
    ($name:literal) => {
        fn name(&self) -> &str {
            $name
        }

        fn properties(&self) -> &Arc<::datafusion::physical_plan::PlanProperties> {
            &self.properties
        }

        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(
                &Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
            ) -> Result<::datafusion::common::tree_node::TreeNodeRecursion>,
        ) -> Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(::datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
    };
    ($name:literal, input, $over:expr) => {
        $crate::operator!($name);

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }

        fn with_new_children(
            self: Arc<Self>,
            children: Vec<Arc<dyn ExecutionPlan>>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            let over: fn(&Self, Arc<dyn ExecutionPlan>) -> Result<Self> = $over;
            let input = $crate::nodes::train::only(children)?;
            Ok(Arc::new(over(&self, input)?))
        }
    };
    ($name:literal, leaf) => {
        $crate::operator!($name);

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            Vec::new()
        }

        fn with_new_children(
            self: Arc<Self>,
            _: Vec<Arc<dyn ExecutionPlan>>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            Ok(self)
        }
    };
}
