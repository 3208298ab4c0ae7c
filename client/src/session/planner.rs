//! Planner of the session's queries: they run on the cluster, except those that only this process can answer.

use std::sync::Arc;

use async_trait::async_trait;
use ballista_core::extension::SessionConfigExt;
use ballista_core::planner::{BallistaQueryPlanner, scans_only_information_schema};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::{DmlStatement, LogicalPlan, Union, WriteOp};
use datafusion::optimizer::analyzer::type_coercion::TypeCoercionRewriter;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion_proto::protobuf::LogicalPlanNode;
use volley_engine::{VolleyLogicalCodec, optimized, sendable, typed_as};
use volley_proto::stack::deeply;

use super::query::QueryExec;
use super::{copy, files, memory, settings, tables};
use crate::Error;
use crate::cluster::Cluster;

/// Planner that turns a query for the cluster into one operator, which sends it there.
#[derive(Debug)]
pub(super) struct ClusterPlanner {
    pub(super) cluster: Arc<Cluster>,
}

#[async_trait]
impl QueryPlanner for ClusterPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        deeply(self.plan(plan, session)).await
    }
}

/// Recomputes the types of a plan's expressions: the type of `round(d, 1)` of decimals changes once its digits are
/// known to be a literal, and a product with 0 becomes a literal. The scheduler, which receives no schema, computes the
/// same types.
fn recompute_schemas(plan: LogicalPlan) -> Result<LogicalPlan> {
    let typed = |node| match node {
        LogicalPlan::Union(union) if !is_of_its_inputs(&union) => {
            let union = Union::try_new_with_loose_types(union.inputs)?;
            TypeCoercionRewriter::coerce_union(union)
        }
        node => node.recompute_schema(),
    };
    plan.transform_up(|node| typed(node).map(Transformed::yes))
        .data()
}

/// Checks whether the inputs of a union have its types.
fn is_of_its_inputs(union: &Union) -> bool {
    let types = |schema: &DFSchema| {
        let fields = schema.fields().iter();
        fields
            .map(|field| field.data_type().clone())
            .collect::<Vec<_>>()
    };
    let due = types(&union.schema);
    union
        .inputs
        .iter()
        .all(|input| types(input.schema()) == due)
}

impl ClusterPlanner {
    async fn plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let here = DefaultPhysicalPlanner::default();
        // It holds a schema, which has no wire form.
        if let LogicalPlan::DescribeTable(_) = plan {
            return here.create_physical_plan(plan, session).await;
        }
        settings::check_config(session.config())?;
        let plan = match tables::scans(plan)? {
            (true, false) => {
                let plan = optimized(plan, session)?;
                return here.create_physical_plan(&plan, session).await;
            }
            (true, true) => tables::inlined(plan).await?,
            (false, _) => plan.clone(),
        };
        // A table in memory belongs to this session, so its changes are made here.
        if let LogicalPlan::Dml(change) = &plan
            && let Some(table) = memory::target(change)
        {
            return self.change(change, &table, session).await;
        }
        match &plan {
            // Without rows, there is nothing to compute.
            LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row => {
                return here.create_physical_plan(&plan, session).await;
            }
            plan if scans_only_information_schema(plan)? => {
                let plan = optimized(plan, session)?;
                return here.create_physical_plan(&plan, session).await;
            }
            _ => {}
        }
        copy::refuse_to_add(&plan, session).await?;
        let plan = sendable(recompute_schemas(files::listed(&plan, session).await?)?).await?;
        // Only data frames send this: for statements, Volley explains more than the engine does.
        if let LogicalPlan::Analyze(_) = &plan {
            let planner = BallistaQueryPlanner::<LogicalPlanNode>::with_extension(
                self.cluster.scheduler_address().url(),
                session.config().ballista_config(),
                Arc::new(VolleyLogicalCodec::default()),
            );
            return planner.create_physical_plan(&plan, session).await;
        }
        let cluster = Arc::clone(&self.cluster);
        Ok(Arc::new(QueryExec::new(
            plan,
            session.session_id(),
            cluster,
        )))
    }

    /// Plans a change of a table in memory: its new rows are computed on the cluster.
    async fn change(
        &self,
        change: &DmlStatement,
        table: &Arc<dyn TableProvider>,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match &change.op {
            WriteOp::Insert(operation) => {
                let mut rows = self.create_physical_plan(&change.input, session).await?;
                // The rows are checked for NULLs in a NOT NULL column; the planned schema does not decide.
                if let Some(query) = rows.downcast_ref::<QueryExec>() {
                    rows = Arc::new(query.with_nulls());
                }
                let rows = typed_as(rows, &table.schema())?;
                table.insert_into(session, rows, *operation).await
            }
            other => Err(Error::not_supported(format!(
                "{other} on a table in memory ({}): CREATE OR REPLACE TABLE t AS SELECT … replaces it",
                change.table_name
            ))
            .into()),
        }
    }
}
