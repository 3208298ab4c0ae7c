//! The files of `deploy`: the options, variables and metrics that they name exist. Their own forms are checked by tools of theirs:
//! see `deploy/README.md`. So do the metrics that the documentation names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use volley_tests::{Cluster, Setup, binary, eventually};

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

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the metrics that an expression or a text names.
fn metrics(text: &str) -> BTreeSet<&str> {
    let goes_on = |c: char| c.is_ascii_lowercase() || c == '_';
    let own = words(text, "volley_", goes_on);
    own.into_iter()
        .chain(words(text, "process_", goes_on))
        .collect()
}

/// Returns the objects below a value that have a field of this name.
fn with_field<'a>(value: &'a Value, name: &str) -> Vec<&'a Value> {
    let below: Vec<_> = match value {
        Value::Array(values) => values.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    let below = below.into_iter().flat_map(|value| with_field(value, name));
    let own = value.get(name).map(|_| value);
    own.into_iter().chain(below).collect()
}

#[test]
fn options_that_the_files_name_exist() {
    let files = files(&root().join("deploy"));
    let helps = ["volley-scheduler", "volley-executor"].map(|program| {
        let help = Command::new(binary(program)).arg("--help").output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        assert!(help.contains("--tls-ca"), "{program}: {help}");
        help
    });
    let is_of_option = |c: char| c.is_ascii_lowercase() || c == '-';
    let mut options = 0;
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
    assert!(options > 20, "{options} options");
}

#[test]
fn metrics_that_are_named_exist() {
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        executor_args: ["--metrics", "127.0.0.1:0"].map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    // Figures of training are there while there is some.
    let table = write_table(cluster.dir(), 400);
    let train = create_model("m", ", epochs = 100000");
    cluster.run(&["--detach", "-c", &table, "-c", &train]);
    let of_scheduler = eventually("figures of training", SOON, || {
        let told = cluster.get("/metrics");
        told.contains("volley_training_eta_seconds{")
            .then_some(told)
    });
    let of_executor = eventually("steps of a rank", SOON, || {
        let told = cluster.get_from(&cluster.metrics_address(0), "/metrics");
        let steps = told
            .lines()
            .find_map(|line| line.strip_prefix("volley_rank_steps_total "));
        let has_stepped = steps.is_some_and(|steps| steps != "0");
        has_stepped.then_some(told)
    });
    for line in [
        "volley_executor_ready 1.0",
        "volley_executor_registrations_total 1",
        "volley_tasks_running 1.0",
        "volley_ranks_running 1.0",
    ] {
        assert!(
            of_executor.lines().any(|found| found == line),
            "{line} in\n{of_executor}"
        );
    }
    let told = of_scheduler + &of_executor;
    let given: BTreeSet<_> = told
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(family, kind)| match kind {
            "counter" => format!("{family}_total"),
            _ => family.to_owned(),
        })
        .collect();
    let exists = |named: BTreeSet<&str>, place: &str| {
        for metric in &named {
            assert!(
                given.contains(*metric),
                "no metric {metric}, which {place} names, in\n{told}"
            );
        }
        named.len()
    };

    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let alerts = read("deploy/prometheus/alerts.yaml");
    assert!(exists(metrics(&alerts), "an alert") > 10);

    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/volley.json")).unwrap();
    let targets = with_field(&dashboard, "expr");
    for target in &targets {
        let expression = target["expr"].as_str().unwrap();
        assert!(
            !metrics(expression).is_empty() || expression.contains("up{"),
            "{expression}"
        );
        exists(metrics(expression), "the dashboard");
        assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
    }
    let panels = with_field(&dashboard, "targets");
    for panel in &panels {
        let unit = &panel["fieldConfig"]["defaults"]["unit"];
        assert!(unit.is_string(), "no unit: {panel}");
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.ends_with('.'), "no description: {panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
    }
    assert!(panels.len() > 20 && targets.len() >= panels.len());

    // The documentation has a row for each metric, and for each alert.
    let operations = read("docs/operations.md");
    let rows = operations.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let names: Vec<_> = names.collect();
    let names = names.join("\n");
    let documented = metrics(&names);
    for metric in &given {
        assert!(
            documented.contains(metric.as_str()),
            "docs/operations.md lacks {metric}"
        );
    }
    exists(documented, "docs/operations.md");
    let alerts = alerts.lines();
    for name in alerts.filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(
            operations.contains(&format!("| `{name}` |")),
            "docs/operations.md lacks {name}"
        );
    }
}
