//! The files of `deploy`: the options, variables and metrics that they name exist. Their own forms are checked by tools of theirs:
//! see `deploy/README.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use volley_tests::{Cluster, binary, eventually};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);

/// Returns the files below the folder, with their contents.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push((path.clone(), fs::read_to_string(path).unwrap()));
        }
    }
    files
}

/// Returns the words of a text that begin with a prefix and go on with these characters.
fn words<'a>(text: &'a str, prefix: &str, goes_on: fn(char) -> bool) -> BTreeSet<&'a str> {
    let places = text.match_indices(prefix);
    let words = places.map(|(at, _)| {
        let rest = &text[at..];
        let end = rest[prefix.len()..].find(|c| !goes_on(c));
        end.map_or(rest, |end| &rest[..prefix.len() + end])
    });
    words.filter(|word| word.len() > prefix.len()).collect()
}

#[test]
fn what_the_files_name_exists() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let files = files(&deploy);
    let cluster = Cluster::start(1);
    let helps = ["volley-scheduler", "volley-executor"].map(|program| {
        let help = Command::new(binary(program)).arg("--help").output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        assert!(help.contains("--tls-ca"), "{program}: {help}");
        help
    });
    let is_of_option = |c: char| c.is_ascii_lowercase() || c == '-';
    let (mut options, mut metrics) = (0, 0);
    for (path, text) in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let help = match name {
            "scheduler.yaml" | "volley-scheduler.service" => Some(&helps[0]),
            "executors.yaml" | "volley-executor.service" => Some(&helps[1]),
            _ => None,
        };
        let Some(help) = help else { continue };
        for option in words(text, "--", is_of_option) {
            // A document of YAML ends so.
            if option.starts_with("---") {
                continue;
            }
            assert!(
                help.contains(&format!(" {option} ")) || help.contains(&format!("{option}\n")),
                "{name} has {option}"
            );
            options += 1;
        }
    }
    // Figures of training are there while there is some.
    let table = write_table(cluster.dir(), 400);
    let train = create_model("m", ", epochs = 100000");
    cluster.run(&["--detach", "-c", &table, "-c", &train]);
    let told = eventually("figures of training", SOON, || {
        let told = cluster.get("/metrics");
        told.contains("volley_training_rows_per_second{")
            .then_some(told)
    });
    let (_, alerts) = files
        .iter()
        .find(|(path, _)| path.ends_with("prometheus/alerts.yaml"))
        .unwrap();
    let is_of_metric = |c: char| c.is_ascii_lowercase() || c == '_';
    for metric in words(alerts, "volley_", is_of_metric) {
        let family = metric.strip_suffix("_total").unwrap_or(metric);
        assert!(
            told.contains(&format!("# TYPE {family} ")),
            "no metric {metric} in\n{told}"
        );
        metrics += 1;
    }
    assert!(
        options > 20 && metrics > 5,
        "{options} options, {metrics} metrics"
    );
}
