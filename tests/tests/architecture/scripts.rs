//! Scripts for machines that are seldom had: they can be read, and keep to their time.

use std::path::Path;
use std::process::Command;

/// Runs bash in the workspace's root; returns what it printed.
fn bash(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let run = Command::new("bash")
        .args(arguments)
        .current_dir(root)
        .output()
        .unwrap();
    let [printed, errors] = [run.stdout, run.stderr].map(|of| String::from_utf8(of).unwrap());
    assert!(run.status.success(), "{arguments:?}: {printed}{errors}");
    printed
}

#[test]
fn measurements_on_a_gpu_keep_to_their_minutes() {
    bash(&["-n", "benchmarks/gpu.sh"]);
    let plan = bash(&["benchmarks/gpu-trainer.sh", "--dry-run"]);
    let last = plan.lines().last().unwrap();
    let seconds = last
        .strip_prefix("at most ")
        .and_then(|rest| rest.split_once(" s"))
        .and_then(|(seconds, _)| seconds.parse::<u32>().ok());
    assert!(seconds.is_some_and(|seconds| seconds < 6 * 60), "{plan}");
    let parts = plan.lines().filter(|line| line.contains(" s: "));
    assert!(parts.count() > 3, "{plan}");
}
