//! Limits of a role on its principals' requests and jobs, from `--limit ROLE:NAME=VALUE`.
//!
//! ```text
//!   message_bytes   a request, before it is decoded            grpc
//!   plan_depth      a query's plan, before it is planned       ballista
//!   jobs            a principal's jobs that have not ended     ballista
//!   query_memory    a job's tasks, while they compute          executors
//!   query_time      a job, from submission to end              control
//!   result_rows     the rows of a job that has succeeded       control
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
use volley_proto::limits::{MESSAGE_LIMIT, NESTED_OPERATORS, memory};

/// Limits on the requests and jobs of one role; `None` means that the role adds no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleLimits {
    /// Size of a request's message, in bytes.
    pub message_bytes: Option<usize>,
    /// Nested operators of a query's plan.
    pub plan_depth: Option<usize>,
    /// Jobs of one principal that have not ended.
    pub jobs: Option<usize>,
    /// Memory of all tasks of a job together, in bytes.
    pub query_memory: Option<u64>,
    /// Duration of a job.
    pub query_time: Option<Duration>,
    /// Rows of a job's result.
    pub result_rows: Option<u64>,
}

/// Limits of all roles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Limits by the role's name.
    roles: BTreeMap<String, RoleLimits>,
}

/// Names of the limits.
const NAMES: &str = "message_bytes, plan_depth, jobs, query_memory, query_time or result_rows";

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
            "read:query_memory=4GiB",
            "read:query_time=10min",
            "read:result_rows=1000000",
            "run:query_time=2h",
        ]);
        let limits = limits.unwrap();
        let read = RoleLimits {
            message_bytes: Some(1 << 20),
            query_memory: Some(4 << 30),
            plan_depth: Some(40),
            jobs: Some(3),
            query_time: Some(Duration::from_secs(600)),
            result_rows: Some(1_000_000),
        };
        assert_eq!(limits.of(Role::Read), read);
        let run = limits.of(Role::Run).query_time;
        assert_eq!(run, Some(Duration::from_secs(7200)));
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
        ] {
            let error = limits(&[text]).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(text), "{error}");
        }
        let twice = limits(&["read:plan_depth=1", "read:plan_depth=2"]);
        assert!(twice.unwrap_err().to_string().contains("twice"));
    }
}
