//! Sort-merge joins with a filter beside their keys, kept from losing the filter's columns.
//!
//! DataFusion 55's projection pushdown gives such a join narrower inputs, but keeps the positions at which its filter
//! reads them (`SortMergeJoinExec::try_swapping_with_projection`): then the join compares rows by other columns, or
//! fails. So the rule runs over a plan where these joins are wrapped in a mark that no projection passes, and that is
//! removed afterwards. Also, the filter reads NULL where a row of the other side is missing, even from a column that is
//! not nullable. Remove when a release fixes both.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Fields, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::SortMergeJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::mends::list::{Act, Mend, Upstream};
use crate::operator;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "merge_joins",
    wrong: "a sort-merge join compares other columns than its condition names",
    upstream: Upstream::Thread("apache/datafusion#24414"),
    query: include_str!("query.sql"),
    acts: &[Act::Around(&[PROJECTION_PUSHDOWN], keep_merge_joins)],
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's rule that pushes projections down.
pub(crate) const PROJECTION_PUSHDOWN: &str = "ProjectionPushdown";

/// Applies a rule that does not see the joins that it would break.
pub(crate) fn keep_merge_joins(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    let mark = |node: Plan| {
        let join = node.downcast_ref::<SortMergeJoinExec>();
        match join.and_then(|join| Some((join, join.filter().as_ref()?))) {
            Some((join, filter)) => {
                let join = Arc::new(with_nulls(join, filter)?);
                Ok(Transformed::yes(Arc::new(Mark::new(join)) as Plan))
            }
            None => Ok(Transformed::no(node)),
        }
    };
    let marked = plan.transform_up(mark)?;
    let optimized = rule.optimize(marked.data, config)?;
    if !marked.transformed {
        return Ok(optimized);
    }
    let unmark = |node: Plan| match node.downcast_ref::<Mark>() {
        Some(mark) => Ok(Transformed::yes(Arc::clone(&mark.input))),
        None => Ok(Transformed::no(node)),
    };
    optimized.transform_up(unmark).data()
}

/// Makes the columns of the join's filter nullable.
fn with_nulls(join: &SortMergeJoinExec, filter: &JoinFilter) -> Result<SortMergeJoinExec> {
    let fields = filter.schema().fields().iter();
    let fields: Fields = fields
        .map(|field| field.as_ref().clone().with_nullable(true))
        .collect();
    let columns = filter.column_indices().to_vec();
    let expression = Arc::clone(filter.expression());
    SortMergeJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        Some(JoinFilter::new(
            expression,
            columns,
            Arc::new(Schema::new(fields)),
        )),
        join.join_type(),
        join.sort_options().to_vec(),
        join.null_equality(),
    )
}

/// Wrapper of a join that the rule must not change.
#[derive(Debug)]
struct Mark {
    input: Plan,
    properties: Arc<PlanProperties>,
}

impl Mark {
    fn new(input: Plan) -> Self {
        let properties = Arc::clone(input.properties());
        Self { input, properties }
    }
}

impl DisplayAs for Mark {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mark")
    }
}

impl ExecutionPlan for Mark {
    operator!("Mark", input, |_, input| Ok(Self::new(input)));

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a mark is no operator")
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use crate::with_rules;

    #[tokio::test]
    async fn a_condition_reads_the_columns_that_it_is_about() {
        let config = SessionConfig::new()
            .with_target_partitions(2)
            .set_bool("datafusion.optimizer.prefer_hash_join", false);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        for create in [
            "CREATE TABLE a AS VALUES (1, 1, 9, 5), (2, 2, 9, 5)",
            "CREATE TABLE b AS VALUES (1, 1, 7), (2, 2, 3)",
        ] {
            let created = session.sql(create).await.unwrap();
            created.collect().await.unwrap();
        }
        // The output has fewer columns than the filter compares.
        let query = "SELECT a.column2 AS x, b.column1 AS y FROM a LEFT JOIN b \
                     ON a.column1 = b.column1 AND a.column4 < b.column3 ORDER BY x";
        let frame = session.sql(query).await.unwrap();
        let plan = frame.clone().create_physical_plan().await.unwrap();
        let plan = datafusion::physical_plan::displayable(plan.as_ref()).indent(false);
        assert!(plan.to_string().contains("SortMergeJoin"), "{plan}");
        assert!(!plan.to_string().contains("Mark"), "{plan}");
        let rows = pretty_format_batches(&frame.collect().await.unwrap()).unwrap();
        let rows = rows.to_string();
        assert!(
            rows.contains("| 1 | 1 |") && rows.contains("| 2 |   |"),
            "{rows}"
        );
    }
}
