//! Metrics of a process as OpenMetrics text, which Prometheus reads.
//!
//! The text is built anew for each scrape from values that the process has, so that no series outlives what it is about. Not
//! here: the metrics of the scheduler and of executors, and the servers that answer with them.

mod count;
mod process;
mod text;

pub use self::count::Count;
pub use self::process::{ProcessUsage, status_bytes};
pub use self::text::{Counters, Gauges, Labels, Metrics, OPEN_METRICS, Seconds};
