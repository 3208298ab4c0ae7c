//! The end of one task when the machine's memory is nearly used up, before the system ends the process with all of its tasks.
//!
//! Tasks reserve most of what they hold, but not all: decoded batches, rows in flight, buffers of libraries. Where the
//! [machine's memory](crate::memory) is nearly used up all the same, the task that has reserved the most fails, with an
//! error that says so. The next one fails only where that does not help.
//!
//! Not here: the memory that a task may reserve.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use tokio::time::{Instant, sleep};

use super::tasks::Tasks;
use crate::counts::Counts;
use crate::memory::Machine;

/// Share of the machine's memory above which a task is ended.
const FULL: (u64, u64) = (15, 16);
/// Pause between two looks, while less than half of the memory is used, and otherwise.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(20)];
/// Share of the machine's memory that a task must have reserved to be ended: others are not what fills it.
const LARGE: u64 = 32;
/// Time that a task has to end.
const ENDS: Duration = Duration::from_secs(1);
/// Time in which the end of a task should have helped: the allocator keeps freed memory for ten seconds.
const HELPED: Duration = Duration::from_secs(12);

/// Watches the machine's memory, and ends tasks. Returns only where the system does not report its memory.
pub(super) async fn watch(tasks: Tasks, counts: Arc<Counts>) {
    let Some(machine) = Machine::find() else {
        return;
    };
    let full = machine.limit / FULL.1 * FULL.0;
    let (mut threshold, mut since) = (full, Instant::now());
    loop {
        let Some(used) = machine.used() else {
            return;
        };
        if since.elapsed() > HELPED {
            threshold = full;
        }
        if used < threshold {
            sleep(PAUSES[usize::from(used > machine.limit / 2)]).await;
            continue;
        }
        let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let least = usize::try_from(machine.limit / LARGE).unwrap_or(usize::MAX);
        let ended = tasks.fail_largest(least, |reserved| {
            format!(
                "the memory of the executor is used up: {} of {}, {}; this task had reserved the most, {}, and was ended \
                 before the system ends the executor. A lower --memory of the executor, or more partitions (SET \
                 datafusion.execution.target_partitions), make tasks smaller",
                size(used),
                size(machine.limit),
                machine.name(),
                size(reserved as u64),
            )
        });
        match ended {
            Some(task) => {
                counts.tasks_ended_for_memory.add(1);
                tracing::error!(
                    attempt = task.attempt,
                    ?task,
                    used,
                    limit = machine.limit,
                    "ending a task: the memory is used up"
                );
            }
            None => {
                tracing::warn!(
                    used,
                    limit = machine.limit,
                    "the memory is used up, but not by tasks of queries"
                );
            }
        }
        // More memory than now may still be needed before that helps.
        sleep(ENDS).await;
        (threshold, since) = (
            used + (machine.limit.saturating_sub(used)) / 2,
            Instant::now(),
        );
    }
}
