//! What an error says is lost: a job's rows, or the scheduler; and what is to be done about rows.
//!
//! ```text
//! submit ── poll ── poll ── succeeded ── fetch ── rows … end
//!             │ no answer: SchedulerLost     │ an executor's: ResultLost
//!             └ "Job … failed": as it is     └ nothing read, no effects: again, else GiveUp
//! ```
//!
//! Pure: text and types of errors in, a decision out.

use arrow::error::ArrowError;
use ballista_core::error::BallistaError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use tonic::Code;
use volley_proto::plan::TrainNode;

use crate::Error;
use crate::error::plain;

/// How often a query is run whose rows are lost.
const ATTEMPTS: usize = 3;

/// What a plan does besides giving back rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effects {
    None,
    /// It writes rows somewhere.
    Writes,
    /// It publishes a model.
    Trains,
}

impl Effects {
    /// What a plan does.
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

/// Says what the error of a submitted job means, or gives it back.
pub(super) fn explain(error: DataFusionError, job: &str, effects: Effects) -> DataFusionError {
    let job = job.to_owned();
    if let Some(holder) = holder(&error) {
        return DataFusionError::from(Error::ResultLost {
            job,
            holder,
            advice: "run the statement again".to_owned(),
            source: Box::new(unfetched(error)),
        });
    }
    match error.find_root() {
        DataFusionError::Execution(text) if is_no_answer(text) => {
            DataFusionError::from(Error::SchedulerLost {
                job,
                training: effects == Effects::Trains,
                source: Box::new(Error::from(error)),
            })
        }
        _ => error,
    }
}

/// An error that came instead of rows, without what [`holder`] says already.
pub(crate) fn unfetched(error: DataFusionError) -> Error {
    let said = match error.find_root() {
        DataFusionError::External(carried) => match carried.downcast_ref() {
            Some(BallistaError::FetchFailed(_, _, _, text)) => Some(plain(text)),
            _ => None,
        },
        _ => None,
    };
    match (said, Error::from(error)) {
        (Some(cause), Error::Engine { original, .. }) => Error::Engine { cause, original },
        (_, error) => error,
    }
}

/// Whether a text is what Ballista's client makes of a request that nobody answered.
fn is_no_answer(text: &str) -> bool {
    const CODES: [Code; 4] = [
        Code::Unavailable,
        Code::Unknown,
        Code::Cancelled,
        Code::DeadlineExceeded,
    ];
    let Some(status) = text.strip_prefix("Status { code: ") else {
        return false;
    };
    let code = status.split([',', ' ']).next().unwrap_or_default();
    CODES.iter().any(|known| format!("{known:?}") == code)
}

/// Who held the rows that could not be fetched, if that is what the error says.
fn holder(error: &DataFusionError) -> Option<String> {
    const UNKNOWN: &str = "an executor";
    match error.find_root() {
        DataFusionError::External(carried) => match carried.downcast_ref()? {
            BallistaError::FetchFailed(executor, ..) => Some(format!("executor {executor}")),
            BallistaError::GrpcActionError(_) | BallistaError::GrpcError(_) => Some(UNKNOWN.into()),
            _ => None,
        },
        DataFusionError::ArrowError(carried, _) => match carried.as_ref() {
            ArrowError::ExternalError(carried) => {
                carried.is::<tonic::Status>().then(|| UNKNOWN.into())
            }
            _ => None,
        },
        DataFusionError::Execution(text) => {
            let (_, rest) = text
                .strip_prefix("GrpcConnectionError(")?
                .split_once("://")?;
            let (address, _) = rest.split_once(": ")?;
            Some(format!("the executor at {address}"))
        }
        _ => None,
    }
}

/// What is to be done about lost rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    RunAgain,
    /// With what to tell the user.
    GiveUp(String),
}

/// What is to be done when the rows of a query's attempt, the first being 1, are lost after so
/// many of them were read.
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

    fn explained(error: DataFusionError) -> Error {
        Error::from(explain(error, "J1", Effects::Trains))
    }

    #[test]
    fn names_who_held_the_rows() {
        let refused = "GrpcConnectionError(\"Error connecting to Ballista scheduler or executor at \
                       http://10.0.0.7:4711: tonic::transport::Error(Transport, …)\")";
        let gone = BallistaError::FetchFailed("e-1".into(), 2, 0, "not found".into());
        let cut = tonic::Status::unknown("connection reset");
        for (error, expected) in [
            (
                DataFusionError::Execution(refused.into()),
                "the executor at 10.0.0.7:4711",
            ),
            (gone.into_datafusion(), "executor e-1"),
            (
                ArrowError::from_external_error(Box::new(cut)).into(),
                "an executor",
            ),
        ] {
            let Error::ResultLost {
                job,
                holder,
                source,
                ..
            } = explained(error)
            else {
                panic!("{expected}")
            };
            assert_eq!((job.as_str(), holder.as_str()), ("J1", expected));
            assert!(!source.to_string().contains("Shuffle fetch"), "{source}");
        }
    }

    #[test]
    fn tells_the_scheduler_s_loss_from_a_failed_job() {
        let lost = tonic::Status::unavailable("connection refused");
        let lost = DataFusionError::Execution(format!("{lost:?}"));
        let error = explained(lost);
        assert!(
            matches!(error, Error::SchedulerLost { training: true, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("volley jobs attach J1"));
        let answered = format!("{:?}", tonic::Status::not_found("no metrics"));
        for text in [
            &answered,
            "Job J1 failed: Status { code: …",
            "Resources exhausted",
        ] {
            let error = explained(DataFusionError::Execution(text.to_owned()));
            assert!(matches!(error, Error::Engine { .. }), "{error:?}");
        }
    }

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
