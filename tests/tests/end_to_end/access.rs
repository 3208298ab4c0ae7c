//! Access control: each forbidden act is tried against real processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tonic::Code;
use volley_proto::access::{Role, Token};
use volley_tests::{
    Answer, Client, Cluster, ExecutorSetup, Intruder, Run, Setup, binary, eventually,
};

use crate::{create_model, fails, write_table};

const SOON: Duration = Duration::from_secs(60);

/// Cluster whose scheduler has a file of tokens.
pub(crate) struct Guarded {
    pub(crate) cluster: Cluster,
    people: Vec<(&'static str, Token)>,
    tokens: PathBuf,
    _dir: TempDir,
}

const PEOPLE: [(&str, Role); 5] = [
    ("alice", Role::Run),
    ("bob", Role::Run),
    ("rita", Role::Read),
    ("root", Role::Administer),
    ("nodes", Role::Executor),
];

impl Guarded {
    fn start(executors: usize) -> Self {
        Self::start_with(Setup {
            executors,
            ..Setup::default()
        })
    }

    /// Starts a cluster with these executors, and further arguments for them and the scheduler, over TLS if there are
    /// certificates.
    pub(crate) fn start_with(setup: Setup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let people: Vec<_> = PEOPLE
            .iter()
            .map(|(name, _)| (*name, Token::generate()))
            .collect();
        let lines = PEOPLE.iter().zip(&people);
        let lines =
            lines.map(|((name, role), (_, token))| format!("{name} {role} {}\n", token.hash()));
        let tokens = dir.path().join("tokens");
        fs::write(&tokens, lines.collect::<String>()).unwrap();
        let join = dir.path().join("join");
        let of = |wanted: &str| {
            let found = people.iter().find(|(name, _)| *name == wanted);
            found.unwrap().1.clone()
        };
        fs::write(&join, of("nodes").reveal()).unwrap();
        let argument = |path: &Path| path.display().to_string();
        let joining = ["--join-token".to_owned(), argument(&join)];
        let cluster = Cluster::start_with(Setup {
            scheduler_args: [
                setup.scheduler_args,
                vec!["--tokens".into(), argument(&tokens)],
            ]
            .concat(),
            executor_args: [setup.executor_args, joining.to_vec()].concat(),
            token: Some(of("root")),
            ..setup
        });
        Self {
            cluster,
            people,
            tokens,
            _dir: dir,
        }
    }

    pub(crate) fn token(&self, wanted: &str) -> &Token {
        let found = self.people.iter().find(|(name, _)| *name == wanted);
        &found.unwrap().1
    }

    /// Runs SQL as one of the principals.
    pub(crate) fn run(&self, who: &str, sql: &str) -> Run {
        self.command(
            self.cluster
                .command()
                .args(["--format", "json", "-q", "-c", sql]),
            Some(self.token(who)),
        )
    }

    fn jobs(&self, who: &str, args: &[&str]) -> Run {
        self.command(
            self.cluster.jobs_command().args(args),
            Some(self.token(who)),
        )
    }

    pub(crate) fn command(&self, command: &mut Command, token: Option<&Token>) -> Run {
        match token {
            Some(token) => command.env("VOLLEY_TOKEN", token.reveal()),
            None => command.env_remove("VOLLEY_TOKEN"),
        };
        let client: Client = self.cluster.spawn(command);
        client.wait(SOON)
    }

    /// Starts SQL as one of the principals.
    pub(crate) fn spawn(&self, who: &str, sql: &str) -> Client {
        let mut command = self.cluster.command();
        command.env("VOLLEY_TOKEN", self.token(who).reveal());
        self.cluster.spawn(command.args(["-q", "-c", sql]))
    }

    pub(crate) fn intruder(&self, who: Option<&str>) -> Intruder {
        Intruder::at(self.cluster.address(), who.map(|who| self.token(who)))
    }
}

/// Asserts that all answers are refusals with this code.
fn refused(answers: Vec<(&'static str, Answer)>, code: Code) {
    for (asked, answer) in answers {
        assert_eq!(answer, Err(code), "{asked}");
    }
}

/// Asserts that the message of a refused run has these parts.
pub(crate) fn said(run: &Run, parts: &[&str]) {
    for part in parts {
        assert!(run.error().contains(part), "{part} in {}", run.stderr);
    }
}

#[test]
fn tokens_and_roles_say_what_one_may() {
    let mut guarded = Guarded::start(2);
    let table = write_table(guarded.cluster.dir(), 50);
    let out = guarded.cluster.dir().join("out.csv");
    let copy = format!("{table} COPY (SELECT k FROM t) TO '{}'", out.display());
    let query = format!("{table} SELECT count(*) AS n FROM t");
    let run = |sql: &str, token: Option<&Token>| {
        let mut command = guarded.cluster.command();
        guarded.command(command.args(["-c", sql]), token)
    };

    let none = run("SELECT 1", None);
    said(
        &none,
        &["this scheduler wants a token: --token-file FILE or VOLLEY_TOKEN"],
    );
    let wrong = run("SELECT 1", Some(&Token::generate()));
    said(
        &wrong,
        &["the token is not valid for this scheduler", "--token-file"],
    );
    said(
        &guarded.run("nodes", "SELECT 1"),
        &["role read", "nodes has the role executor"],
    );

    assert_eq!(guarded.run("rita", &query).rows()[0]["n"], 50);
    said(
        &guarded.run("rita", &copy),
        &["COPY", "role run", "rita has the role read"],
    );
    said(
        &guarded.run(
            "rita",
            &format!("{table} EXPLAIN ANALYZE {}", &copy[table.len()..]),
        ),
        &["role run"],
    );
    assert!(!out.exists());
    let model = format!("{table} {}", create_model("m", ", epochs = 1"));
    said(&guarded.run("rita", &model), &["CREATE MODEL", "role run"]);
    assert_eq!(guarded.run("alice", &copy).code, Some(0));
    assert!(out.exists());

    // A job, and the principals who may manage it.
    let jobs = guarded
        .cluster
        .query("SELECT job_id, owner FROM volley.jobs WHERE owner = 'alice'");
    let job = jobs[0]["job_id"].as_str().unwrap().to_owned();
    let seen = guarded
        .run(
            "bob",
            "SELECT DISTINCT owner FROM volley.jobs ORDER BY owner",
        )
        .rows();
    assert!(seen.iter().all(|row| row["owner"] == "bob"), "{seen:?}");
    said(&guarded.jobs("bob", &["logs", &job]), &["unknown job"]);
    assert_eq!(guarded.jobs("alice", &["logs", &job]).code, Some(0));
    assert_eq!(guarded.jobs("root", &["logs", &job]).code, Some(0));
    for who in ["bob", "rita"] {
        refused(
            guarded.intruder(Some(who)).asks_about(&job),
            Code::PermissionDenied,
        );
        refused(guarded.intruder(Some(who)).joins(), Code::PermissionDenied);
    }
    refused(
        guarded.intruder(Some("nodes")).asks_about(&job),
        Code::PermissionDenied,
    );
    refused(
        guarded.intruder(None).asks_about(&job),
        Code::Unauthenticated,
    );
    refused(guarded.intruder(None).joins(), Code::Unauthenticated);
    refused(
        guarded.intruder(Some("root")).joins(),
        Code::PermissionDenied,
    );

    // The same over HTTP.
    let get = |who: Option<&str>, path: &str| {
        let mut headers = vec!["Host: localhost".to_owned()];
        headers.extend(
            who.map(|who| format!("Authorization: Bearer {}", guarded.token(who).reveal())),
        );
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        guarded
            .intruder(None)
            .http(&format!("GET {path}"), &headers, "")
    };
    for path in [
        "/api/volley/jobs",
        "/api/jobs",
        "/api/state",
        "/reports/m/1/x",
        "/metrics",
    ] {
        assert!(get(None, path).starts_with("HTTP/1.1 401"), "{path}");
    }
    for path in ["/api/jobs", &format!("/api/job/{job}")] {
        assert!(
            get(Some("alice"), path).starts_with("HTTP/1.1 403"),
            "{path}"
        );
    }
    // Nothing is there for anybody, and probes are for everybody.
    for path in ["/none", "/metrics/x", "/api/none", "/volley.v1.None/Call"] {
        let answer = get(Some("root"), path);
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    assert!(get(None, "/none").starts_with("HTTP/1.1 404"));
    for path in ["/livez", "/readyz"] {
        let answer = get(None, path);
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"),
            "{answer}"
        );
    }
    let metrics = get(Some("rita"), "/metrics");
    for line in [
        "volley_jobs_ended_total{state=\"succeeded\"} ",
        "volley_executor_slots{executor=\"executor-0\"} ",
        "# TYPE volley_executors gauge",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(
        !metrics.contains("volley_jobs_ended_total{state=\"succeeded\"} 0"),
        "{metrics}"
    );
    assert!(get(Some("root"), "/api/jobs").starts_with("HTTP/1.1 200"));
    assert!(!get(Some("bob"), "/api/volley/jobs").contains(&job));
    assert!(get(Some("alice"), "/api/volley/jobs").contains(&job));

    // Executors with the wrong token.
    for (join, parts) in [
        (None, ["wants the token of its executors", "--join-token"]),
        (
            Some(guarded.token("alice").clone()),
            [
                "rejected executor",
                "belongs to alice, whose role is run; the role executor is required",
            ],
        ),
    ] {
        let file = guarded.cluster.dir().join("other-join");
        let mut executor = Command::new(binary("volley-executor"));
        executor.args(["--scheduler", guarded.cluster.address()]);
        if let Some(join) = join {
            fs::write(&file, join.reveal()).unwrap();
            executor.arg("--join-token").arg(&file);
        }
        let ended = executor.output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success());
        assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
    }

    // The file changes: a wrong one is ignored, a right one is read.
    let lines = fs::read_to_string(&guarded.tokens).unwrap();
    let bob = guarded.token("bob").hash().to_string();
    let without: String = lines
        .lines()
        .filter(|line| !line.contains(&bob))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&guarded.tokens, format!("{without}\nnonsense")).unwrap();
    let said_so = |guarded: &mut Guarded, part: &str| {
        eventually(part, SOON, || {
            // The scheduler checks the file when it receives a request.
            guarded.cluster.slots();
            guarded
                .cluster
                .scheduler()
                .output()
                .contains(part)
                .then_some(())
        });
    };
    said_so(&mut guarded, "expected a name, a role and a hash");
    assert_eq!(guarded.intruder(Some("bob")).describe(), Ok(()));
    fs::write(&guarded.tokens, without).unwrap();
    said_so(&mut guarded, "tokens are reloaded");
    assert_eq!(
        guarded.intruder(Some("bob")).describe(),
        Err(Code::Unauthenticated)
    );

    // The logs, which have no tokens.
    let mut logs = guarded.cluster.scheduler().output();
    for executor in guarded.cluster.executors() {
        logs += &executor.output();
    }
    for (name, token) in &guarded.people {
        assert!(!logs.contains(token.reveal()), "{name}'s token is in a log");
    }
    for part in ["volley::audit", "submit", "cancel", "alice", "refused"] {
        assert!(logs.contains(part), "{part}");
    }
}

/// Returns the ports of an executor for tasks and for rows.
fn ports(log: &str) -> Option<(u16, u16)> {
    let (_, after) = log.split_once("listens for tasks on port ")?;
    let (tasks, after) = after.split_once(" and for rows on port ")?;
    let digits = after.chars().take_while(char::is_ascii_digit);
    Some((
        tasks.parse().ok()?,
        digits.collect::<String>().parse().ok()?,
    ))
}

#[test]
fn executors_serve_their_own_cluster_only() {
    let mut cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 50);
    cluster.query(&format!(
        "{table} SELECT k, count(*) AS n FROM t GROUP BY k"
    ));
    let jobs = cluster.query("SELECT job_id FROM volley.jobs");
    let attempt = jobs[0]["job_id"].as_str().unwrap().to_owned();
    let forged = format!("{attempt}.{}", "0".repeat(64));
    let mut ended = Vec::new();
    for executor in cluster.executors() {
        let (tasks, rows) = eventually("an executor's ports", SOON, || ports(&executor.output()));
        let tasks = Intruder::at(&format!("127.0.0.1:{tasks}"), None);
        for (asked, answer) in tasks.commands("executor-0") {
            assert_eq!(answer, Err(Code::Unauthenticated), "{asked}");
        }
        let rows = Intruder::at(&format!("127.0.0.1:{rows}"), None);
        for job in [attempt.as_str(), &forged, "../../etc", ""] {
            let refused = rows.fetch(job).unwrap_err();
            assert!(refused.contains("no proof"), "{job}: {refused}");
        }
        ended.push(executor.is_running());
    }
    assert_eq!(ended, [true, true]);
    assert_eq!(
        cluster.query(&format!("{table} SELECT count(*) AS n FROM t"))[0]["n"],
        50
    );
}

#[test]
fn a_scheduler_of_one_s_own_answers_to_its_user_only() {
    let cluster = Cluster::start(1);
    // Another user has another state folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut stranger = cluster.command();
    stranger
        .env_remove("VOLLEY_TOKEN_FILE")
        .env("VOLLEY_STATE_DIR", elsewhere.path())
        .args(["-c", "SELECT 1"]);
    let run = cluster.spawn(&mut stranger).wait(SOON);
    said(&run, &["this scheduler wants a token"]);
    let mut own = cluster.command();
    own.env_remove("VOLLEY_TOKEN_FILE").args(["-c", "SELECT 1"]);
    assert_eq!(cluster.spawn(&mut own).wait(SOON).code, Some(0));
    // A token that is given is used, not passed over.
    let mut wrong = cluster.command();
    wrong
        .env_remove("VOLLEY_TOKEN_FILE")
        .env("VOLLEY_TOKEN", Token::generate().reveal())
        .args(["-c", "SELECT 1"]);
    assert_ne!(cluster.spawn(&mut wrong).wait(SOON).code, Some(0));

    let state = tempfile::tempdir().unwrap();
    let address = state.path().join("address");
    let log = state.path().join("log");
    let mut scheduler = Command::new(binary("volley-scheduler"));
    scheduler
        .args(["--bind", "127.0.0.1:0", "--address-file"])
        .arg(&address)
        .env("VOLLEY_STATE_DIR", state.path());
    let scheduler = volley_tests::Process::start(&mut scheduler, &log);
    let address = eventually("its address", SOON, || fs::read_to_string(&address).ok());
    let folder = state.path().join("schedulers");
    let file = folder.join(address.replace(':', "-"));
    eventually("its tokens", SOON, || file.exists().then_some(()));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let shown = |dir: &Path| {
        let mut show = Command::new(binary("volley"));
        show.args(["cluster", "token", "--scheduler", &address])
            .env("VOLLEY_STATE_DIR", dir);
        show.output().unwrap()
    };
    let token = shown(state.path());
    assert!(token.status.success() && token.stdout.starts_with(b"volley_"));
    assert!(!shown(elsewhere.path()).status.success());
    let token = String::from_utf8(token.stdout).unwrap();
    assert!(!fs::read_to_string(&log).unwrap().contains(token.trim()));
    scheduler.terminate();
    eventually("its tokens to be removed", SOON, || {
        (!file.exists()).then_some(())
    });
}

#[test]
fn a_token_is_shown_once_and_its_line_is_for_the_file() {
    let made = Command::new(binary("volley"))
        .args(["cluster", "token", "--name", "alice", "--role", "run"])
        .output()
        .unwrap();
    assert!(made.status.success());
    let line = String::from_utf8(made.stdout).unwrap();
    let token: Token = String::from_utf8(made.stderr)
        .unwrap()
        .lines()
        .last()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(line, format!("alice run {}\n", token.hash()));
    let missing = Command::new(binary("volley"))
        .args(["cluster", "token", "--name", "alice"])
        .output();
    assert_eq!(missing.unwrap().status.code(), Some(2));
}

#[test]
fn nobody_listens_beyond_loopback_by_mistake() {
    for (program, arguments, part) in [
        (
            "volley-scheduler",
            &["--bind", "0.0.0.0:0", "--advertise-host", "localhost"][..],
            "--insecure",
        ),
        (
            "volley-executor",
            &[
                "--scheduler",
                "127.0.0.1:1",
                "--bind",
                "0.0.0.0",
                "--advertise-host",
                "localhost",
            ],
            "--insecure",
        ),
    ] {
        let said = fails(Command::new(binary(program)).args(arguments));
        assert!(said.contains(part), "{program}: {said}");
    }
}

#[test]
fn the_page_takes_a_token_and_gives_a_cookie() {
    let guarded = Guarded::start(0);
    let browser = guarded.intruder(None);
    let host = format!("Host: {}", guarded.cluster.address());
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let login =
        |token: &str| browser.http("POST /login", &[&host, kind], &format!("token={token}"));
    let home = browser.http("GET /", &[&host], "");
    assert!(
        home.starts_with("HTTP/1.1 303") && home.contains("location: /login"),
        "{home}"
    );
    let form = browser.http("GET /login", &[&host], "");
    assert!(
        form.starts_with("HTTP/1.1 200") && form.contains("name=\"token\""),
        "{form}"
    );

    let entered = login(guarded.token("rita").reveal());
    assert!(entered.starts_with("HTTP/1.1 303"), "{entered}");
    let set = entered
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    assert!(
        set.contains("HttpOnly") && set.contains("SameSite=Strict"),
        "{set}"
    );
    assert!(!set.contains(guarded.token("rita").reveal()));
    let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
    let jobs = |headers: &[&str]| browser.http("GET /api/volley/jobs", headers, "");
    assert!(jobs(&[&host, &cookie]).starts_with("HTTP/1.1 200"));
    assert!(jobs(&[&host, &cookie, "Origin: http://evil.example"]).starts_with("HTTP/1.1 403"));
    assert!(jobs(&["Host: evil.example", &cookie]).starts_with("HTTP/1.1 421"));
    assert!(jobs(&[&host, "Cookie: volley_session=volley_00"]).starts_with("HTTP/1.1 401"));
    let administers = browser.http("GET /api/jobs", &[&host, &cookie], "");
    assert!(administers.starts_with("HTTP/1.1 403"), "{administers}");
    browser.http("POST /logout", &[&host, &cookie], "");
    assert!(jobs(&[&host, &cookie]).starts_with("HTTP/1.1 401"));

    assert!(
        login(guarded.token("nodes").reveal()).starts_with("HTTP/1.1 401"),
        "an executor's"
    );
    let refusals: Vec<_> = (0..12).map(|_| login("volley_guess")).collect();
    assert!(refusals[0].starts_with("HTTP/1.1 401"), "{}", refusals[0]);
    assert!(refusals[11].starts_with("HTTP/1.1 429"), "{}", refusals[11]);
    assert!(login(guarded.token("rita").reveal()).starts_with("HTTP/1.1 429"));
}

#[test]
fn executors_are_proven_to_by_the_address_that_they_advertise() {
    let mut cluster = Cluster::start(1);
    cluster.add_executor_with(ExecutorSetup {
        args: vec!["--advertise-host".into(), "localhost".into()],
        ..ExecutorSetup::default()
    });
    cluster.await_executors(2);
    let table = write_table(cluster.dir(), 200);
    let counted = cluster.query(&format!(
        "{table} SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY k"
    ));
    assert_eq!(counted.len(), 7, "it is dialled by what it advertises");
}
