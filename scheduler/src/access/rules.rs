//! Requirements of request paths, as pure code. A call or table that is not listed needs an administrator.

use volley_proto::access::Role;

/// Requirement for answering a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: the content is the same for everybody.
    Nothing,
    /// A principal with this role.
    Role(Role),
    /// A path at which there is nothing, for anybody.
    Unknown,
}

/// Paths that tell whether the process is alive, without a token.
const PROBES: [&str; 2] = ["/livez", "/readyz"];
/// Prefixes of all other paths that services answer.
const KNOWN: [&str; 4] = ["/ballista.protobuf.", "/volley.v1.", "/api/", "/reports/"];

/// Files of the page, which hold no data of the cluster.
pub(crate) const PAGE: [&str; 11] = [
    "/",
    "/login",
    "/base.js",
    "/charts.js",
    "/executors.js",
    "/jobs.js",
    "/stages.js",
    "/training.js",
    "/volley.js",
    "/volley.css",
    "/favicon.svg",
];
/// Calls of Ballista's service for executors.
const OF_EXECUTORS: [&str; 5] = [
    "PollWork",
    "RegisterExecutor",
    "HeartBeatFromExecutor",
    "UpdateTaskStatus",
    "ExecutorStopped",
];
/// Calls of Ballista's service for clients; the service checks a job's owner and a plan's effects.
const OF_CLIENTS: [&str; 8] = [
    "CreateUpdateSession",
    "RemoveSession",
    "ExecuteQuery",
    "ExecuteQueryPush",
    "GetJobStatus",
    "CancelJob",
    "GetJobMetrics",
    "CleanJobData",
];
/// Paths of Ballista's REST interface that are not about jobs.
const ABOUT_THE_CLUSTER: [&str; 5] = [
    "/api/state",
    "/api/version",
    "/api/executors",
    "/api/metrics",
    "/api/openapi.json",
];

/// Path of the metrics.
const METRICS: &str = "/metrics";

/// Path of the probe, which takes the network of all executors, as training does.
const PROBE: &str = "/volley.v1.Cluster/Probe";

/// Path of the call that drops prepared rows, which only trainings make.
const DROP_PREPARED: &str = "/volley.v1.Cluster/DropPrepared";

/// Path of the call that has an executor leave.
const DRAIN: &str = "/volley.v1.Cluster/Drain";

pub(super) fn needs(path: &str) -> Need {
    if PAGE.contains(&path) || PROBES.contains(&path) || path == "/logout" {
        return Need::Nothing;
    }
    if path != METRICS && !KNOWN.iter().any(|known| path.starts_with(known)) {
        return Need::Unknown;
    }
    let below = |prefix: &str| path.strip_prefix(prefix);
    let role = if let Some(call) = below("/ballista.protobuf.SchedulerGrpc/") {
        match call {
            call if OF_EXECUTORS.contains(&call) => Role::Executor,
            call if OF_CLIENTS.contains(&call) => Role::Read,
            _ => Role::Administer,
        }
    } else if below("/volley.v1.Attendance/").is_some()
        || below("/volley.v1.Rendezvous/").is_some()
        || below("/volley.v1.Tasks/").is_some()
    {
        Role::Executor
    } else if path == PROBE || path == DROP_PREPARED {
        Role::Run
    } else if path == DRAIN {
        Role::Administer
    } else if below("/volley.v1.Jobs/").is_some()
        || below("/volley.v1.Queries/").is_some()
        || below("/volley.v1.Training/").is_some()
        || below("/volley.v1.Cluster/").is_some()
        || below("/api/volley/").is_some()
        || below("/reports/").is_some()
        || below("/api/executor/").is_some()
        || ABOUT_THE_CLUSTER.contains(&path)
        || path == METRICS
    {
        Role::Read
    } else {
        Role::Administer
    };
    Need::Role(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_and_clients_are_let_in_at_different_doors() {
        let grpc = "/ballista.protobuf.SchedulerGrpc/";
        for (path, needed) in [
            ("/volley.v1.Attendance/Attend".to_owned(), Role::Executor),
            ("/volley.v1.Attendance/Probed".to_owned(), Role::Executor),
            ("/volley.v1.Rendezvous/Join".to_owned(), Role::Executor),
            ("/volley.v1.Tasks/Report".to_owned(), Role::Executor),
            ("/volley.v1.Queries/Submit".to_owned(), Role::Read),
            ("/volley.v1.Queries/Ask".to_owned(), Role::Read),
            ("/volley.v1.Cluster/ReadTable".to_owned(), Role::Read),
            ("/volley.v1.Cluster/Probe".to_owned(), Role::Run),
            ("/volley.v1.Cluster/Drain".to_owned(), Role::Administer),
            ("/volley.v1.Cluster/DropPrepared".to_owned(), Role::Run),
            (format!("{grpc}RegisterExecutor"), Role::Executor),
            (format!("{grpc}UpdateTaskStatus"), Role::Executor),
            (format!("{grpc}ExecuteQuery"), Role::Read),
            (format!("{grpc}CancelJob"), Role::Read),
            (format!("{grpc}SomethingNew"), Role::Administer),
            ("/volley.v1.Jobs/Follow".to_owned(), Role::Read),
            ("/volley.v1.Training/Watch".to_owned(), Role::Read),
            ("/volley.v1.Training/Stop".to_owned(), Role::Read),
            ("/api/volley/jobs".to_owned(), Role::Read),
            ("/reports/m/1/x".to_owned(), Role::Read),
            ("/api/executors".to_owned(), Role::Read),
            ("/api/jobs".to_owned(), Role::Administer),
            ("/api/job/J1".to_owned(), Role::Administer),
            ("/api/job/J1/config".to_owned(), Role::Administer),
            ("/metrics".to_owned(), Role::Read),
            ("/volley.v1.Other/Call".to_owned(), Role::Administer),
        ] {
            assert_eq!(needs(&path), Need::Role(needed), "{path}");
        }
    }

    #[test]
    fn nothing_is_at_other_paths() {
        for path in [
            "/anything",
            "//",
            "/volley.js/",
            "/ballista",
            "/metrics/",
            "/livez/x",
        ] {
            assert_eq!(needs(path), Need::Unknown, "{path}");
        }
    }

    #[test]
    fn only_files_of_the_page_and_probes_need_nothing() {
        for path in PAGE.into_iter().chain(PROBES) {
            assert_eq!(needs(path), Need::Nothing, "{path}");
        }
        assert_eq!(needs("/logout"), Need::Nothing);
    }
}
