//! Parts of rows that are lists: what executors did for a stage, the operators of its plan, and the tasks of an executor.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use serde::{Deserialize, Serialize};

/// Share of an executor in a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageExecutor {
    /// The executor.
    pub executor_id: String,
    /// Tasks that are done.
    pub tasks: u64,
    /// Tasks that run now.
    pub running: u64,
    /// Time in milliseconds since 1970 at which its first task was launched, by the scheduler's clock.
    pub started: u64,
    /// Time at which its last task was done.
    pub ended: Option<u64>,
    /// Seconds of the tasks that are done, added up.
    pub seconds: f64,
}

impl StageExecutor {
    /// Returns the type of a list of them.
    pub(super) fn list(time: &DataType) -> DataType {
        let fields = Fields::from(vec![
            Field::new("executor_id", DataType::Utf8, true),
            Field::new("tasks", DataType::UInt64, true),
            Field::new("running", DataType::UInt64, true),
            Field::new("started", time.clone(), true),
            Field::new("ended", time.clone(), true),
            Field::new("seconds", DataType::Float64, true),
        ]);
        let item = Field::new_list_field(DataType::Struct(fields), true);
        DataType::List(Arc::new(item))
    }
}

/// Operator of a stage's plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operator {
    /// Number of operators above it; the plan's lists go from the top down, so its inputs follow, one deeper.
    pub depth: u64,
    /// The operator in a line.
    pub text: String,
    /// Rows of its output, over the tasks that are done.
    pub rows: Option<u64>,
    /// Seconds that it computed, over these tasks.
    pub seconds: Option<f64>,
    /// All of its metrics, in a line.
    pub metrics: String,
}

/// Tasks of a stage that run on an executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorTasks {
    /// Job of the tasks.
    pub job_id: String,
    /// Stage of the tasks.
    pub stage_id: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// Slots that they hold together.
    pub slots: u64,
}
