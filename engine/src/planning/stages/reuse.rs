//! Exchange reuse: an exchange that several stages read is written once.
//!
//! A query that names a relation several times is planned with a copy of it for each. Stages that would run the same
//! plan over the same exchanges, and partition its rows alike, become one. Plans are the same when their encoded
//! messages are equal, as executors see only these. A plan with a volatile function is never shared.
//!
//! Not here: plans that differ only in the columns that they keep.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::execution_plans::UnresolvedShuffleExec;
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::planning::reread::is_volatile_operator;

use super::stage::{StageExec, partitions};

/// Merges stages that do the same. The first of each kind stays in its place; the exchanges of the others are replaced
/// by readers of the first one's.
///
/// # Errors
/// When an exchange's input is not a stage.
pub fn reuse_exchanges(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(stage) = plan.downcast_ref::<StageExec>() else {
        return Ok(plan);
    };
    let (stage, _) = Exchanges::default().of(stage)?;
    Ok(Arc::new(stage))
}

/// Identity of an exchange: two with equal values are the same.
#[derive(PartialEq, Eq, Hash)]
struct Exchange {
    /// The plan that writes it, and the exchanges that this plan reads.
    message: Arc<[u8]>,
    reads: Vec<usize>,
    /// The columns that rows are hashed by and the number of partitions; `None` where rows stay in their partitions.
    hashed_by: Option<(Vec<usize>, usize)>,
}

/// The exchanges so far, by their ids: Ballista numbers them in the order of its traversal, inputs first.
#[derive(Default)]
struct Exchanges {
    ids: HashMap<Exchange, usize>,
    count: usize,
}

impl Exchanges {
    /// Returns a stage with the exchanges that it reads, and their ids.
    fn of(&mut self, stage: &StageExec) -> Result<(StageExec, Vec<usize>)> {
        let mut inputs = Vec::new();
        let mut reads = Vec::new();
        for exchange in stage.inputs() {
            let (input, id) = self.input(exchange)?;
            inputs.push(input);
            reads.push(id);
        }
        Ok((stage.reading(inputs), reads))
    }

    fn input(
        &mut self,
        exchange: &Arc<dyn ExecutionPlan>,
    ) -> Result<(Arc<dyn ExecutionPlan>, usize)> {
        let children = exchange.children();
        let Some(writes) = children
            .first()
            .and_then(|plan| plan.downcast_ref::<StageExec>())
        else {
            return internal_err!("{} exchanges the rows of no stage", exchange.name());
        };
        let (stage, reads) = self.of(writes)?;
        let partitioning = match exchange.downcast_ref::<RepartitionExec>() {
            Some(exchange) => exchange.partitioning().clone(),
            None => Partitioning::UnknownPartitioning(partitions(children[0])),
        };
        let key = match hashed_by(&partitioning) {
            Some(hashed_by) if !has_volatile(writes.plan())? => Some(Exchange {
                message: Arc::clone(writes.message()),
                reads,
                hashed_by,
            }),
            _ => None,
        };
        if let Some(id) = key.as_ref().and_then(|key| self.ids.get(key)) {
            let reader = UnresolvedShuffleExec::new(*id, exchange.schema(), partitioning);
            return Ok((Arc::new(reader), *id));
        }
        self.count += 1;
        if let Some(key) = key {
            self.ids.insert(key, self.count);
        }
        let exchange = replace_children_if_necessary(Arc::clone(exchange), vec![Arc::new(stage)])?;
        Ok((exchange, self.count))
    }
}

/// Returns the columns that rows are hashed by: `Some(None)` without hashing, `None` for keys that are not columns.
pub(super) fn hashed_by(partitioning: &Partitioning) -> Option<Option<(Vec<usize>, usize)>> {
    let Partitioning::Hash(keys, count) = partitioning else {
        return Some(None);
    };
    let columns = keys
        .iter()
        .map(|key| Some(key.downcast_ref::<Column>()?.index()));
    Some(Some((columns.collect::<Option<_>>()?, *count)))
}

/// Checks whether any operator of a plan has a volatile function.
fn has_volatile(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| is_volatile_operator(node.as_ref()))
}

#[cfg(test)]
mod tests {
    use ballista_core::JobId;
    use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};
    use datafusion::physical_plan::displayable;

    use super::super::tests::{plan, session};
    use super::*;
    use crate::planning::stages::stages;

    /// Returns the stages that Ballista makes of a query, as text, in the order of their ids.
    async fn shown(query: &str) -> Vec<String> {
        let (session, _dir) = session(&[]).await;
        let plan = plan(&session, query).await;
        let plan = stages(plan, None, &session.task_ctx()).unwrap();
        let plan = reuse_exchanges(plan).unwrap();
        let config = session.copied_config();
        let stages = DefaultDistributedPlanner::new()
            .plan_query_stages(&JobId::new("job"), plan, config.options())
            .unwrap();
        let stages = stages.into_iter().enumerate().map(|(at, stage)| {
            assert_eq!(stage.stage_id(), at + 1);
            let stage: Arc<dyn ExecutionPlan> = stage;
            displayable(stage.as_ref()).indent(false).to_string()
        });
        stages.collect()
    }

    fn reads(stage: &str) -> Vec<usize> {
        let lines = stage
            .lines()
            .filter_map(|line| line.split_once("UnresolvedShuffleExec: stage="));
        let ids = lines.map(|(_, id)| id.split(',').next().unwrap().trim().parse().unwrap());
        ids.collect()
    }

    #[tokio::test]
    async fn a_relation_named_twice_is_made_once() {
        let counts = "SELECT v, count(*) AS n FROM a GROUP BY v";
        let query = format!(
            "WITH c AS ({counts}), d AS (SELECT w, max(k) AS m FROM a GROUP BY w) \
             SELECT v, n FROM c UNION ALL SELECT w, m FROM d UNION ALL SELECT v, n + 1 FROM c"
        );
        let stages = shown(&query).await;
        let [c, d, union] = &stages[..] else {
            panic!("{stages:#?}");
        };
        assert!(c.contains("gby=[v@0 as v]"), "{c}");
        assert!(d.contains("gby=[w@1 as w]"), "{d}");
        assert_eq!(reads(union), [1, 2, 1], "{union}");
    }

    #[tokio::test]
    async fn what_differs_is_made_apart() {
        for (one, other) in [
            (
                "v, count(*) FROM a GROUP BY v",
                "v, count(*) FROM b GROUP BY v",
            ),
            (
                "v, count(*) FROM a GROUP BY v",
                "w, count(*) FROM a GROUP BY w",
            ),
            (
                "v, sum(k) FROM a GROUP BY v",
                "v, sum(k) FROM a WHERE k > 1 GROUP BY v",
            ),
            // Each has numbers of its own.
            (
                "v, count(*) FROM a WHERE random() < 0.5 GROUP BY v",
                "v, count(*) FROM a WHERE random() < 0.5 GROUP BY v",
            ),
        ] {
            let stages = shown(&format!("SELECT {one} UNION ALL SELECT {other}")).await;
            let last = stages.last().unwrap();
            assert_eq!(reads(last), [1, 2], "{stages:#?}");
        }
    }

    #[tokio::test]
    async fn first_rows_and_extremes_are_reused() {
        for query in [
            "SELECT v, k FROM a ORDER BY k LIMIT 3",
            "SELECT max(k) AS k, min(v) AS v FROM a",
        ] {
            let stages = shown(&format!("({query}) UNION ALL ({query})")).await;
            let last = stages.last().unwrap();
            assert_eq!(reads(last), [1, 1], "{stages:#?}");
        }
    }

    #[tokio::test]
    async fn stages_of_stages_are_reused_whole() {
        let inner = "SELECT v, w, count(*) AS n FROM a GROUP BY v, w";
        let outer = format!("SELECT v, sum(n) AS s FROM ({inner}) GROUP BY v");
        let query = format!("SELECT * FROM ({outer}) UNION ALL SELECT * FROM ({outer})");
        let stages = shown(&query).await;
        let [inner, outer, union] = &stages[..] else {
            panic!("{stages:#?}");
        };
        assert!(reads(inner).is_empty(), "{inner}");
        assert_eq!(reads(outer), [1]);
        assert_eq!(reads(union), [2, 2]);
    }
}
