//! Upgrades from an older build, whose programs are in the folder that `VOLLEY_PREVIOUS_BINARIES` names. If both builds have one
//! wire number, their processes work together in every mix, and a new scheduler continues the jobs of an older one; if not, they
//! refuse each other by name. Without the variable nothing is tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use volley_proto::version::WIRE;
use volley_tests::{Client, Process, Run, binary, eventually};

use crate::deploy::SOON;
use crate::{create_model, query_and_train, write_table};

/// Variable that names the folder of the older build's programs.
const PREVIOUS: &str = "VOLLEY_PREVIOUS_BINARIES";

/// Returns the folders of the older build's programs and of this one's; says so and returns `None` if there is no older build.
///
/// # Panics
/// When the older build's folder lacks a program.
fn builds() -> Option<[PathBuf; 2]> {
    let Some(previous) = std::env::var_os(PREVIOUS).map(PathBuf::from) else {
        eprintln!("skipped: {PREVIOUS} names no folder of an older build's programs");
        return None;
    };
    let folder = previous.display();
    assert!(
        previous.is_absolute(),
        "{PREVIOUS}={folder}: name the folder by its absolute path"
    );
    for program in ["volley", "volley-scheduler", "volley-executor"] {
        let is_there = previous.join(program).is_file();
        assert!(is_there, "{PREVIOUS}={folder}: it has no {program}");
    }
    let own = binary("volley").parent().unwrap().to_owned();
    Some([previous, own])
}

/// Returns the wire number that a process logs as it starts.
fn wire(process: &Process) -> u32 {
    eventually("a process to log its wire number", SOON, || {
        let log = process.output();
        // `wire=3`, or `(wire 2)` of the builds that were the first with such numbers.
        let line = log.lines().find(|line| line.contains("starting version"))?;
        let number = line.split_once("wire")?.1.get(1..)?;
        number.split([' ', ')']).next()?.parse().ok()
    })
}

/// Checks whether a message names builds of both wire numbers.
fn names(said: &str, wires: [u32; 2]) -> bool {
    let named = |wire: &u32| said.contains(&format!("(wire {wire})"));
    wires.iter().all(named)
}

/// Cluster on loopback without tokens, each of whose processes is of one of two builds.
struct Mixed {
    scheduler: Process,
    address: String,
    dir: TempDir,
}

impl Mixed {
    fn start(build: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = start_scheduler(build, "127.0.0.1:0", dir.path(), "scheduler-0.log");
        let address = eventually("the scheduler's address", SOON, || {
            fs::read_to_string(dir.path().join("address")).ok()
        });
        Self {
            scheduler,
            address,
            dir,
        }
    }

    /// Ends the scheduler, and starts one of another build in its place.
    fn replace_scheduler(&mut self, build: &Path) {
        self.scheduler.terminate();
        let status = eventually("the scheduler to end", SOON, || self.scheduler.ended());
        assert!(status.success(), "{status}");
        self.scheduler = start_scheduler(build, &self.address, self.dir.path(), "scheduler-1.log");
    }

    /// Returns the command for a program of a build.
    fn command(&self, build: &Path, program: &str) -> Command {
        let mut command = Command::new(build.join(program));
        command
            .env("VOLLEY_STATE_DIR", self.dir.path().join("state"))
            .args(["--scheduler", &self.address]);
        command
    }

    fn start_executor(&self, build: &Path, id: &str) -> Process {
        let mut command = self.command(build, "volley-executor");
        command
            .args(["--id", id, "--vcores", "1", "--work-dir"])
            .arg(self.dir.path().join(id));
        Process::start(&mut command, &self.dir.path().join(format!("{id}.log")))
    }

    /// Runs `volley` of a build to its end.
    fn run(&self, build: &Path, args: &[&str]) -> Run {
        let mut command = self.command(build, "volley");
        command
            .arg("--store")
            .arg(self.dir.path().join("store"))
            .args(["--format", "json", "--quiet"])
            .args(args);
        let [out, log] = ["out", "log"].map(|name| self.dir.path().join(format!("client.{name}")));
        Client::start(&mut command, out, log).wait(SOON)
    }

    /// Runs SQL with `volley` of a build, and returns its rows.
    fn query(&self, build: &Path, sql: &str) -> Vec<Value> {
        self.run(build, &["-c", sql]).rows()
    }

    /// Waits until this many executors are registered.
    fn await_executors(&self, build: &Path, count: usize) {
        eventually("the executors to register", SOON, || {
            let rows = self.query(build, "SELECT executor_id FROM volley.executors");
            (rows.len() == count).then_some(())
        });
    }
}

fn start_scheduler(build: &Path, bind: &str, dir: &Path, log: &str) -> Process {
    let mut scheduler = Command::new(build.join("volley-scheduler"));
    scheduler
        .args(["--insecure", "--bind", bind, "--address-file"])
        .arg(dir.join("address"))
        .arg("--record")
        .arg(dir.join("record"))
        .env("VOLLEY_STATE_DIR", dir.join("state"));
    Process::start(&mut scheduler, &dir.join(log))
}

#[test]
fn two_builds_work_together_or_refuse_each_other_by_name() {
    let Some([previous, own]) = builds() else {
        return;
    };
    let wires = [wire(&Mixed::start(&previous).scheduler), WIRE];
    for (of_scheduler, of_others) in [(&previous, &own), (&own, &previous)] {
        let mixed = Mixed::start(of_scheduler);
        if wires[0] == wires[1] {
            // One gang has ranks of both builds, and one exchange executors of both.
            let _executors = [("previous", &previous), ("own", &own)]
                .map(|(id, build)| mixed.start_executor(build, id));
            mixed.await_executors(of_others, 2);
            let table = write_table(mixed.dir.path(), 300);
            query_and_train(&table, 2, |sql| mixed.query(of_others, sql));
            continue;
        }
        let mut executor = mixed.start_executor(of_others, "refused");
        let status = eventually("the executor to end", SOON, || executor.ended());
        let said = executor.output();
        assert!(!status.success() && names(&said, wires), "{status}: {said}");
        let refused = mixed.run(of_others, &["-c", "SELECT 1"]);
        assert!(names(refused.error(), wires), "{}", refused.stderr);
        let logged = mixed.scheduler.output();
        assert!(names(&logged, wires), "{logged}");
    }
}

#[test]
fn a_new_scheduler_continues_a_job_or_names_the_build_that_it_is_of() {
    let Some([previous, own]) = builds() else {
        return;
    };
    let mut mixed = Mixed::start(&previous);
    let wires = [wire(&mixed.scheduler), WIRE];
    let mut executor = mixed.start_executor(&previous, "previous");
    mixed.await_executors(&previous, 1);
    let table = write_table(mixed.dir.path(), 300);
    let train = create_model("m", ", ranks = 1, epochs = 1000000");
    let submit = format!("{table} {train}");
    let submitted = mixed.run(&previous, &["--detach", "-c", &submit]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.stderr);
    let trains = |mixed: &Mixed, build: &Path, executor: &str| {
        eventually("the training to compute", SOON, || {
            let ranks = "SELECT executor_id, compute_seconds FROM volley.training_ranks";
            let ranks = mixed.query(build, ranks);
            let computes = |rank: &Value| {
                rank["executor_id"] == executor && rank["compute_seconds"].as_f64() > Some(0.0)
            };
            ranks.iter().any(computes).then_some(())
        });
    };
    trains(&mixed, &previous, "previous");
    mixed.replace_scheduler(&own);
    let job = |mixed: &Mixed| {
        let sql = "SELECT job_id, state, error FROM volley.jobs WHERE name LIKE 'CREATE MODEL%'";
        let [job] = &mixed.query(&own, sql)[..] else {
            panic!("the new scheduler has lost the job")
        };
        assert_eq!(job["job_id"], submitted.stdout.trim());
        job.clone()
    };
    if wires[0] != wires[1] {
        let failed = eventually("the job to fail", SOON, || {
            let job = job(&mixed);
            (job["state"] == "failed").then_some(job)
        });
        let error = failed["error"].as_str().unwrap();
        let named = |wire: &u32| error.contains(&format!("of wire {wire}"));
        assert!(wires.iter().all(named), "{error}");
        eventually("the executor to log its refusal", SOON, || {
            names(&executor.output(), wires).then_some(())
        });
        return;
    }
    trains(&mixed, &own, "previous");
    // Its rank moves to an executor of the new build.
    let _own = mixed.start_executor(&own, "own");
    mixed.await_executors(&own, 2);
    executor.terminate();
    let status = eventually("the executor to leave", SOON, || executor.ended());
    assert!(status.success(), "{status}");
    trains(&mixed, &own, "own");
    assert_eq!(job(&mixed)["state"], "running");
}
