//! Metrics and probes of an executor, over HTTP on a port of their own.
//!
//! ```text
//!   GET /livez    200 while the process runs
//!   GET /readyz   200 while the executor attends its scheduler and does not leave, else 503 with the reason
//!   GET /metrics  with a token: OpenMetrics text, computed when it is asked for
//!   others        404
//! ```
//!
//! [`Vitals`] is what they tell, [`page`] the text, [`server`] the server. [`tell_vitals`] sends
//! some of them to the scheduler. The metrics have no names of jobs, models or users.

mod page;
mod readers;
mod sample;
mod server;
mod vitals;
mod work_folder;

pub(crate) use self::sample::tell_vitals;
pub(crate) use self::server::{listen, serve};
pub(crate) use self::vitals::Vitals;
