//! Counters of an executor since its process started, which its [metrics](crate::metrics) show.
//!
//! Counters only grow, and go on when the executor registers again. Values that can be looked up are not counted here.

use std::sync::Arc;

use volley_engine::object_stores::Traffic;
use volley_proto::metrics::Count;

/// Counters of an executor.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Times that the executor has registered with a scheduler.
    pub(crate) registrations: Count,
    pub(crate) tasks_succeeded: Count,
    pub(crate) tasks_failed: Count,
    /// Tasks that were told to stop.
    pub(crate) tasks_cancelled: Count,
    /// Tasks that were ended because the machine's memory was used up.
    pub(crate) tasks_ended_for_memory: Count,
    /// Bytes and files that operators of ended tasks have spilled.
    pub(crate) spilled_bytes: Count,
    pub(crate) spilled_files: Count,
    /// Bytes of the files that ended tasks have written for other stages, and for clients.
    pub(crate) shuffle_written_bytes: Count,
    /// Bytes that the Flight service has sent.
    pub(crate) shuffle_served_bytes: Count,
    /// Bytes of tables' files, and failed requests to their stores.
    pub(crate) traffic: Arc<Traffic>,
    /// Checkpoints and models that could not be written.
    pub(crate) model_store_errors: Count,
    /// Microseconds of the steps of the ranks here, and of these, in collectives.
    pub(crate) step_micros: Count,
    pub(crate) reduce_micros: Count,
    /// Steps of the ranks here.
    pub(crate) rank_steps: Count,
    /// Rows in the steps of all ranks of a run, counted where its rank 0 is.
    pub(crate) trained_rows: Count,
}
