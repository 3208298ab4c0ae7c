//! Side effects of a plan, and the resulting reaction to lost rows.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;
use volley_engine::TrainNode;

/// Maximum number of runs of a query whose rows are lost.
const ATTEMPTS: usize = 3;

/// Effect of a plan besides returning rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effects {
    None,
    /// Writes rows somewhere.
    Writes,
    /// Publishes a model.
    Trains,
}

impl Effects {
    /// Determines the effects of a plan.
    pub(super) fn of(plan: &LogicalPlan) -> Self {
        let mut effects = Self::None;
        let walked = plan.apply_with_subqueries(|node| {
            match node {
                LogicalPlan::Extension(own) if own.node.as_any().is::<TrainNode>() => {
                    effects = Self::Trains;
                }
                LogicalPlan::Copy(_) | LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) => {
                    effects = Self::Writes;
                }
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        });
        // A plan that cannot be walked may do anything.
        walked.map_or(Self::Writes, |_| effects)
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
pub(super) fn judge(effects: Effects, attempt: usize, rows_read: usize) -> Verdict {
    let advice = match effects {
        Effects::Writes => "it has written what it was to write, so it is not run again".to_owned(),
        Effects::Trains => "SHOW MODELS tells whether the model is published".to_owned(),
        Effects::None if rows_read > 0 => format!(
            "{rows_read} of them were read already; run the query again, or write its rows to \
             files with COPY"
        ),
        Effects::None if attempt >= ATTEMPTS => {
            format!("so it went {attempt} times; see that executors stay, and run it again")
        }
        Effects::None => return Verdict::RunAgain,
    };
    Verdict::GiveUp(advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn runs_again_what_nobody_has_seen_anything_of() {
        use Effects::{None, Trains, Writes};
        let again = |effects, attempt, rows| judge(effects, attempt, rows) == Verdict::RunAgain;
        assert!(again(None, 1, 0) && again(None, 2, 0));
        assert!(!again(None, 3, 0) && !again(None, 1, 1));
        assert!(!again(Writes, 1, 0) && !again(Trains, 1, 0));
    }

    #[test]
    fn finds_effects_in_plans() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let select = session.sql("SELECT * FROM sales").await.unwrap();
            assert_eq!(Effects::of(select.logical_plan()), Effects::None);
            let frame = session.sql("EXPLAIN SELECT 1").await.unwrap();
            assert_eq!(Effects::of(frame.logical_plan()), Effects::None);
            let insert = session.sql("EXPLAIN INSERT INTO sales SELECT * FROM sales");
            let insert = insert.await.unwrap();
            assert_eq!(Effects::of(insert.logical_plan()), Effects::Writes);
        });
    }
}
