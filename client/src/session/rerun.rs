//! A query whose rows were lost before any was read is run again.
//!
//! Ballista keeps a finished job's rows on the executors that made them, until the client has
//! fetched them. An executor lost in between takes its part with it, and the job, being over, is
//! nobody's to repair but the client's.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;

use super::loss::{Effects, Verdict, judge};
use crate::Error;

/// A plan that is executed again when its rows are lost.
#[derive(Debug)]
pub(super) struct RerunLost {
    inner: Arc<dyn ExecutionPlan>,
    effects: Effects,
}

impl RerunLost {
    pub(super) fn new(inner: Arc<dyn ExecutionPlan>, effects: Effects) -> Self {
        Self { inner, effects }
    }
}

impl DisplayAs for RerunLost {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RerunLost")
    }
}

impl ExecutionPlan for RerunLost {
    fn name(&self) -> &str {
        "RerunLost"
    }

    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.inner.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.inner]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(inner), true) => Ok(Arc::new(Self::new(inner, self.effects))),
            _ => Err(DataFusionError::Internal("RerunLost has one child".into())),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let attempts = Attempts {
            rows: self.inner.execute(partition, Arc::clone(&context))?,
            plan: Arc::clone(&self.inner),
            partition,
            context,
            effects: self.effects,
            attempt: 1,
            rows_read: 0,
        };
        let rows = futures::stream::unfold(attempts, |mut attempts| async {
            let batch = attempts.next().await?;
            Some((batch, attempts))
        });
        let schema = self.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The attempts at one query, of which the last goes on.
struct Attempts {
    rows: SendableRecordBatchStream,
    plan: Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    effects: Effects,
    /// From 1.
    attempt: usize,
    rows_read: usize,
}

impl Attempts {
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        loop {
            let (job, holder, source) = match self.rows.next().await? {
                Ok(batch) => {
                    self.rows_read += batch.num_rows();
                    return Some(Ok(batch));
                }
                Err(error) => match Error::from(error) {
                    Error::ResultLost {
                        job,
                        holder,
                        source,
                        ..
                    } => (job, holder, source),
                    // As it came: what went wrong is in the error's layers.
                    Error::Engine { original, .. } => return Some(Err(*original)),
                    other => return Some(Err(other.into())),
                },
            };
            match judge(self.effects, self.attempt, self.rows_read) {
                Verdict::GiveUp(advice) => {
                    let lost = Error::ResultLost {
                        job,
                        holder,
                        advice,
                        source,
                    };
                    return Some(Err(lost.into()));
                }
                Verdict::RunAgain => {
                    tracing::warn!(
                        "the rows of job {job} were lost with {holder} before any was read: \
                         running it again"
                    );
                    self.attempt += 1;
                    match self.plan.execute(self.partition, Arc::clone(&self.context)) {
                        Ok(rows) => self.rows = rows,
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use arrow::array::Int64Array;
    use datafusion::physical_expr::EquivalenceProperties;
    use datafusion::physical_plan::Partitioning;
    use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
    use futures::{StreamExt, TryStreamExt};
    use parking_lot::Mutex;

    use super::*;

    /// What an attempt yields: batches of one row, or the loss of the rest.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Step {
        Row(i64),
        Lost,
        Broken,
    }

    /// A plan that yields what a script says, attempt by attempt.
    #[derive(Debug)]
    struct Scripted {
        attempts: Mutex<VecDeque<Vec<Step>>>,
        properties: Arc<PlanProperties>,
    }

    fn row(value: i64) -> RecordBatch {
        let column = Arc::new(Int64Array::from(vec![value])) as _;
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    fn lost() -> Error {
        Error::ResultLost {
            job: "J1".into(),
            holder: "executor e-1".into(),
            advice: String::new(),
            source: Box::new(Error::NotSupported { what: "x".into() }),
        }
    }

    impl DisplayAs for Scripted {
        fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Scripted")
        }
    }

    impl ExecutionPlan for Scripted {
        fn name(&self) -> &str {
            "Scripted"
        }

        fn properties(&self) -> &Arc<PlanProperties> {
            &self.properties
        }

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            Vec::new()
        }

        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            Ok(TreeNodeRecursion::Continue)
        }

        fn with_new_children(
            self: Arc<Self>,
            _: Vec<Arc<dyn ExecutionPlan>>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            Ok(self)
        }

        fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
            let steps = self.attempts.lock().pop_front().unwrap();
            let rows = futures::stream::iter(steps).map(|step| match step {
                Step::Row(value) => Ok(row(value)),
                Step::Lost => Err(lost().into()),
                Step::Broken => Err(DataFusionError::Execution("Job J1 failed: boom".into())),
            });
            Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
        }
    }

    /// The rows read, how it ended, and how many attempts are left in the script.
    async fn read(effects: Effects, script: &[&[Step]]) -> (usize, Result<(), Error>, usize) {
        let schema = row(0).schema();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        let scripted = Arc::new(Scripted {
            attempts: Mutex::new(script.iter().map(|steps| steps.to_vec()).collect()),
            properties: Arc::new(properties),
        });
        let plan = RerunLost::new(Arc::clone(&scripted) as _, effects);
        let mut rows = plan.execute(0, Arc::new(TaskContext::default())).unwrap();
        let mut count = 0;
        let ended = loop {
            match rows.try_next().await {
                Ok(Some(batch)) => count += batch.num_rows(),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Error::from(error)),
            }
        };
        let left = scripted.attempts.lock().len();
        (count, ended, left)
    }

    #[tokio::test]
    async fn rows_lost_before_any_was_read_are_made_again() {
        use Step::{Lost, Row};
        let script: &[&[Step]] = &[&[Lost], &[Lost], &[Row(1), Row(2)]];
        let (count, ended, left) = read(Effects::None, script).await;
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!((count, left), (2, 0));
    }

    #[tokio::test]
    async fn it_is_said_why_rows_are_not_made_again() {
        use Step::{Broken, Lost, Row};
        type Case<'a> = (Effects, &'a [&'a [Step]], usize, &'a str);
        let again: &[Step] = &[Row(1)];
        let cases: &[Case<'_>] = &[
            (
                Effects::None,
                &[&[Lost], &[Lost], &[Lost], again],
                0,
                "so it went 3 times",
            ),
            (
                Effects::None,
                &[&[Row(1), Lost], again],
                1,
                "1 of them were read",
            ),
            (Effects::Writes, &[&[Lost], again], 0, "it has written"),
            (Effects::Trains, &[&[Lost], again], 0, "SHOW MODELS"),
            (Effects::None, &[&[Broken], again], 0, "boom"),
        ];
        for (effects, script, read_before, said) in cases {
            let (count, ended, left) = read(*effects, script).await;
            let error = ended.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            assert_eq!((count, left), (*read_before, 1), "{error}");
        }
    }
}
