//! Temporary folders of processes: one that is killed leaves its folder, and the next process of its kind removes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use volley_tests::{Cluster, Process, Setup, binary, eventually};

const SOON: Duration = Duration::from_secs(60);

/// Returns the folders whose names begin so.
fn folders(parent: &Path, prefix: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(parent).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn folders_of_killed_executors_are_removed_by_the_next() {
    let cluster = Cluster::start_with(Setup {
        scheduler_args: vec!["--insecure".to_owned()],
        ..Setup::default()
    });
    let temporary = cluster.dir().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let start = |id: &str| {
        let mut executor = Command::new(binary("volley-executor"));
        executor
            .args(["--scheduler", cluster.address(), "--id", id, "--insecure"])
            .args(["--vcores", "1"])
            .env("TMPDIR", &temporary);
        Process::start(&mut executor, &cluster.dir().join(format!("{id}.log")))
    };
    let known = || folders(&temporary, "volley-executor-");
    let (mut killed, mut living) = (start("killed"), start("living"));
    cluster.await_executors(2);
    assert_eq!(known().len(), 2);
    let rows = cluster.run(&["-c", "SELECT count(*) AS n FROM range(100000)"]);
    assert_eq!(rows.code, Some(0), "{}", rows.stderr);
    killed.kill();
    let left = known();
    assert_eq!(left.len(), 2);
    let mut next = start("next");
    eventually("the next one to register", SOON, || {
        cluster
            .registered()?
            .contains(&"next".to_owned())
            .then_some(())
    });
    let now = known();
    assert_eq!(now.len(), 2, "{left:?} before, {now:?} now");
    assert_eq!(now.intersection(&left).count(), 1, "the living one's stays");
    assert!(living.is_running());
    for executor in [&mut living, &mut next] {
        executor.terminate();
        eventually("an executor to end", SOON, || executor.ended());
    }
    assert_eq!(known(), BTreeSet::new());
}

#[test]
fn a_work_folder_is_one_executor_s() {
    let mut cluster = Cluster::start(1);
    let work_dir = cluster.work_dir(0);
    // As a task leaves it: an executor that starts removes it.
    let shuffle = work_dir.join("shuffle-other");
    fs::create_dir(&shuffle).unwrap();
    let mut second = Command::new(binary("volley-executor"));
    second
        .args(["--scheduler", cluster.address(), "--id", "second"])
        .arg("--work-dir")
        .arg(&work_dir);
    let ended = second.output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{stderr}");
    let owner = cluster.executors()[0].id();
    let said = format!("is in use by another executor (process {owner})");
    assert!(stderr.contains(&said), "{stderr}");
    assert!(shuffle.exists(), "the living one's files stay");
    let rows = cluster.run(&["-c", "SELECT count(*) AS n FROM range(100000)"]);
    assert_eq!(rows.code, Some(0), "{}", rows.stderr);
}

#[test]
fn folders_of_killed_embedded_clusters_are_removed_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let known = || folders(dir.path(), "volley-embedded-");
    let volley = || {
        let mut volley = Command::new(binary("volley"));
        volley.env("TMPDIR", dir.path()).current_dir(dir.path());
        volley
    };
    // It has work for longer than the test waits.
    let mut busy = volley();
    let pairs = "SELECT sum(a.value % 7 + b.value) FROM range(1000000) a, range(1000000) b";
    busy.args(["-c", pairs]).stdout(Stdio::null());
    let mut killed = busy.stderr(Stdio::null()).spawn().unwrap();
    eventually("the folder", SOON, || (known().len() == 1).then_some(()));
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(known().len(), 1);
    let output = volley().args(["-c", "SELECT 1"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(known(), BTreeSet::new());
}
