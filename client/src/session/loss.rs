//! Kind of a plan, and the resulting reaction to lost rows.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;
use volley_engine::TrainNode;

/// Maximum number of runs of a query whose rows are lost.
const ATTEMPTS: usize = 3;

/// Kind of a plan, by what it does besides returning rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanKind {
    /// Nothing.
    Reads,
    /// Writes rows somewhere.
    Writes,
    /// Publishes a model.
    Trains,
}

impl PlanKind {
    /// Determines the kind of a plan.
    pub(super) fn of(plan: &LogicalPlan) -> Self {
        let mut kind = Self::Reads;
        let walked = plan.apply_with_subqueries(|node| {
            match node {
                LogicalPlan::Extension(own) if own.node.as_any().is::<TrainNode>() => {
                    kind = Self::Trains;
                }
                LogicalPlan::Copy(_) | LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) => {
                    kind = Self::Writes;
                }
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        });
        // A plan that cannot be walked may do anything.
        walked.map_or(Self::Writes, |_| kind)
    }
}

/// Reaction to lost rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    RunAgain,
    /// End with this advice to the user.
    GiveUp(String),
}

/// Decides about a query whose rows are lost, given the number of the attempt, from 1, and the number of rows that were
/// read before.
pub(super) fn judge(kind: PlanKind, attempt: usize, rows_read: usize) -> Verdict {
    let advice = match kind {
        PlanKind::Writes => "its files are written, so it is not run again".to_owned(),
        PlanKind::Trains => "SHOW MODELS tells whether the model is published".to_owned(),
        PlanKind::Reads if rows_read > 0 => format!(
            "{rows_read} of them were read already; run the query again, or write its rows to \
             files with COPY"
        ),
        PlanKind::Reads if attempt >= ATTEMPTS => {
            format!("this happened {attempt} times; keep the executors running, and run it again")
        }
        PlanKind::Reads => return Verdict::RunAgain,
    };
    Verdict::GiveUp(advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn runs_again_what_nobody_has_seen_anything_of() {
        use PlanKind::{Reads, Trains, Writes};
        let again = |kind, attempt, rows| judge(kind, attempt, rows) == Verdict::RunAgain;
        assert!(again(Reads, 1, 0) && again(Reads, 2, 0));
        assert!(!again(Reads, 3, 0) && !again(Reads, 1, 1));
        assert!(!again(Writes, 1, 0) && !again(Trains, 1, 0));
    }

    #[test]
    fn finds_the_kind_of_a_plan() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let select = session.sql("SELECT * FROM sales").await.unwrap();
            assert_eq!(PlanKind::of(select.logical_plan()), PlanKind::Reads);
            let frame = session.sql("EXPLAIN SELECT 1").await.unwrap();
            assert_eq!(PlanKind::of(frame.logical_plan()), PlanKind::Reads);
            let insert = session.sql("EXPLAIN INSERT INTO sales SELECT * FROM sales");
            let insert = insert.await.unwrap();
            assert_eq!(PlanKind::of(insert.logical_plan()), PlanKind::Writes);
        });
    }
}
