//! Limits of a role on its principals' requests and jobs, from `--limit ROLE:NAME=VALUE`.
//!
//! ```text
//!   message_bytes   a request, before it is decoded            grpc
//!   plan_depth      a query's plan, before it is planned       ballista
//!   jobs            a principal's jobs that have not ended     ballista
//!   memory          a principal's running tasks of queries     control, executors
//!   query_memory    a job's tasks, while they compute          executors
//!   query_time      a job, from submission to end              control
//!   result_rows     the rows of a job that has succeeded       control
//!   gpu_hours       a principal's ranks, in a window of days   ballista, control
//! ```
//!
//! This module reads the limits; the parts on the right enforce them. Limits belong to a role; queues limit a user's
//! slots (`user_slots`).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use volley_proto::Error;
use volley_proto::access::Role;
use volley_proto::limits::{MESSAGE_LIMIT, NESTED_OPERATORS, USAGE_DAYS, memory};

/// Limits on the requests and jobs of one role; `None` means that the role adds no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleLimits {
    /// Size of a request's message, in bytes.
    pub message_bytes: Option<usize>,
    /// Nested operators of a query's plan.
    pub plan_depth: Option<usize>,
    /// Jobs of one principal that have not ended.
    pub jobs: Option<usize>,
    /// Memory of all running tasks of a principal's queries together, in bytes.
    pub memory: Option<u64>,
    /// Memory of all tasks of a job together, in bytes.
    pub query_memory: Option<u64>,
    /// Duration of a job.
    pub query_time: Option<Duration>,
    /// Rows of a job's result.
    pub result_rows: Option<u64>,
    /// GPU hours of a principal's trainings.
    pub gpu_hours: Option<GpuHours>,
}

/// GPU hours in a window of days: `HOURS/DAYSd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuHours {
    /// GPUs, times the time for which ranks hold them.
    pub time: Duration,
    /// Days of the window, of which the current one (UTC) is the last.
    pub days: u32,
}

impl FromStr for GpuHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "expected HOURS/DAYSd, such as 40/30d".to_owned();
        let (hours, days) = text.split_once('/').ok_or_else(form)?;
        let hours: f64 = hours.parse().map_err(|_| form())?;
        let days = days.strip_suffix('d').ok_or_else(form)?;
        let days: u32 = days.parse().map_err(|_| form())?;
        if !(1..=USAGE_DAYS).contains(&days) {
            return Err(format!("expected a window of 1d to {USAGE_DAYS}d"));
        }
        let time = Duration::try_from_secs_f64(hours * 3600.0).ok();
        let time = time.filter(|time| *time > Duration::ZERO);
        let time = time.ok_or_else(|| "expected a number of hours above 0".to_owned())?;
        Ok(Self { time, days })
    }
}

/// Limits of all roles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Limits by the role's name.
    roles: BTreeMap<String, RoleLimits>,
}

/// Names of the limits.
const NAMES: &str =
    "message_bytes, plan_depth, jobs, memory, query_memory, query_time, result_rows or gpu_hours";

impl Limits {
    /// Parses texts of the form `ROLE:NAME=VALUE`.
    ///
    /// # Errors
    /// When a limit is invalid or given twice; names it.
    pub fn new(texts: &[String]) -> Result<Self, Error> {
        let mut limits = Self::default();
        for text in texts {
            let added = limits.add(text);
            added.map_err(|expected| Error::option("--limit", text, expected))?;
        }
        Ok(limits)
    }

    /// Returns the limits of a role.
    pub(crate) fn of(&self, role: Role) -> RoleLimits {
        let limits = self.roles.get(&role.to_string());
        limits.copied().unwrap_or_default()
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let form = || "expected ROLE:NAME=VALUE, such as read:query_time=10min".to_owned();
        let (role, limit) = text.split_once(':').ok_or_else(form)?;
        let (name, value) = limit.split_once('=').ok_or_else(form)?;
        let role: Role = role.parse()?;
        if role == Role::Executor {
            return Err("executors submit nothing: expected read, run or administer".to_owned());
        }
        let limits = self.roles.entry(role.to_string()).or_default();
        match name {
            "message_bytes" => {
                let bytes = value.parse::<ByteSize>();
                let bytes = bytes.map_err(|_| "expected a size such as 1MiB".to_owned())?;
                let bytes = bytes.as_u64();
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                set(&mut limits.message_bytes, within(bytes, MESSAGE_LIMIT)?)
            }
            "plan_depth" => {
                let operators = number(value)?;
                set(&mut limits.plan_depth, within(operators, NESTED_OPERATORS)?)
            }
            "jobs" => match number(value)? {
                0 => Err("expected a number of jobs, from 1".to_owned()),
                jobs => set(&mut limits.jobs, jobs),
            },
            "memory" => set(&mut limits.memory, memory(value)?.as_u64()),
            "query_memory" => {
                let bytes = memory(value)?.as_u64();
                set(&mut limits.query_memory, bytes)
            }
            "query_time" => {
                let time = humantime::parse_duration(value);
                let time =
                    time.map_err(|error| format!("expected a time such as 10min: {error}"))?;
                set(&mut limits.query_time, time)
            }
            "result_rows" => set(&mut limits.result_rows, number(value)?),
            "gpu_hours" if !role.may(Role::Run) => Err(format!(
                "the role {role} trains nothing: expected run or administer"
            )),
            "gpu_hours" => set(&mut limits.gpu_hours, value.parse()?),
            _ => Err(format!("unknown limit {name:?}: expected {NAMES}")),
        }
    }
}

fn number<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    let number = value.parse::<T>();
    number.map_err(|error| format!("expected a whole number: {error}"))
}

/// # Errors
/// When the value is 0, or above the limit of all roles.
fn within(value: usize, most: usize) -> Result<usize, String> {
    match (1..=most).contains(&value) {
        true => Ok(value),
        false => Err(format!(
            "expected 1 to {most}, which is the limit of all roles"
        )),
    }
}

fn set<T>(limit: &mut Option<T>, value: T) -> Result<(), String> {
    match limit.replace(value) {
        None => Ok(()),
        Some(_) => Err("it is said twice".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(texts: &[&str]) -> Result<Limits, Error> {
        let texts: Vec<_> = texts.iter().map(ToString::to_string).collect();
        Limits::new(&texts)
    }

    #[test]
    fn limits_are_a_role_s() {
        let limits = limits(&[
            "read:message_bytes=1MiB",
            "read:plan_depth=40",
            "read:jobs=3",
            "read:memory=16GiB",
            "read:query_memory=4GiB",
            "read:query_time=10min",
            "read:result_rows=1000000",
            "run:query_time=2h",
            "run:gpu_hours=1.5/30d",
        ]);
        let limits = limits.unwrap();
        let read = RoleLimits {
            message_bytes: Some(1 << 20),
            memory: Some(16 << 30),
            query_memory: Some(4 << 30),
            plan_depth: Some(40),
            jobs: Some(3),
            query_time: Some(Duration::from_secs(600)),
            result_rows: Some(1_000_000),
            gpu_hours: None,
        };
        assert_eq!(limits.of(Role::Read), read);
        let run = limits.of(Role::Run);
        assert_eq!(run.query_time, Some(Duration::from_secs(7200)));
        let hours = GpuHours {
            time: Duration::from_secs(5400),
            days: 30,
        };
        assert_eq!(run.gpu_hours, Some(hours));
        for role in [Role::Administer, Role::Executor] {
            assert_eq!(limits.of(role), RoleLimits::default(), "{role}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_what_would_be_right() {
        for (text, said) in [
            ("read", "expected ROLE:NAME=VALUE"),
            ("read:query_time", "expected ROLE:NAME=VALUE"),
            ("root:query_time=1s", "not a role"),
            ("executor:query_time=1s", "executors submit nothing"),
            ("read:rows=1", "expected message_bytes, plan_depth"),
            ("read:query_time=soon", "expected a time"),
            ("read:result_rows=-1", "expected a whole number"),
            ("read:plan_depth=0", "expected 1 to 300"),
            ("read:plan_depth=301", "expected 1 to 300"),
            ("read:message_bytes=1GiB", "expected 1 to 16777216"),
            ("read:query_memory=0", "expected 64KiB at least"),
            ("read:query_memory=4", "this is 4 bytes; did you mean 4GiB?"),
            ("read:query_memory=lots", "expected a size such as 4GiB"),
            ("read:memory=16", "this is 16 bytes; did you mean 16GiB?"),
            ("run:gpu_hours=40", "expected HOURS/DAYSd, such as 40/30d"),
            ("run:gpu_hours=40/30", "expected HOURS/DAYSd"),
            ("run:gpu_hours=many/30d", "expected HOURS/DAYSd"),
            ("run:gpu_hours=40/1.5d", "expected HOURS/DAYSd"),
            ("run:gpu_hours=40/0d", "expected a window of 1d to 92d"),
            ("run:gpu_hours=40/93d", "expected a window of 1d to 92d"),
            ("run:gpu_hours=0/1d", "expected a number of hours above 0"),
            ("run:gpu_hours=-1/1d", "expected a number of hours above 0"),
            ("run:gpu_hours=inf/1d", "expected a number of hours above 0"),
            ("read:gpu_hours=40/30d", "the role read trains nothing"),
        ] {
            let error = limits(&[text]).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(text), "{error}");
        }
        let twice = limits(&["read:plan_depth=1", "read:plan_depth=2"]);
        assert!(twice.unwrap_err().to_string().contains("twice"));
    }
}
