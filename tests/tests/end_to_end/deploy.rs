//! The files of `deploy`: the options and metrics that they name exist, tools of theirs find no mistake in them, and the objects for
//! Kubernetes fit each other; `image` runs the image. A tool that is missing is no failure, unless `VOLLEY_DEPLOY` names it. The metrics that the
//! documentation names exist as well.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use volley_tests::{Cluster, Process, Setup, binary, eventually};

use crate::{create_model, write_table};

pub(crate) const SOON: Duration = Duration::from_secs(60);

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
pub(crate) fn root() -> PathBuf {
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
            "executors.yaml" | "job.yaml" | "volley-executor.service" => Some(&helps[1]),
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

/// Checks whether a tool is there; if not, says so.
///
/// # Panics
/// When it is missing and `VOLLEY_DEPLOY` names it.
pub(crate) fn is_there(tool: &str) -> bool {
    let found = match tool {
        "kubernetes-validate" => python("import kubernetes_validate, yaml", "").is_ok(),
        // It is everywhere, and not everyone may use it.
        "unshare" => {
            let tried = crate::image::namespaces().arg("true").status();
            tried.is_ok_and(|status| status.success())
        }
        _ => Command::new(tool).arg("--help").output().is_ok(),
    };
    let required = std::env::var("VOLLEY_DEPLOY").unwrap_or_default();
    assert!(
        found || !required.split(' ').any(|name| name == tool),
        "VOLLEY_DEPLOY={required}: there is no {tool}, or it does not work"
    );
    if !found {
        eprintln!("skipped: there is no {tool}, or it does not work");
    }
    found
}

/// Runs a program of Python. Returns its output, or its error output if it fails.
fn python(program: &str, input: &str) -> Result<String, String> {
    let mut child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = input.to_owned();
    // One that ends early does not read it.
    let writes = std::thread::spawn(move || stdin.write_all(input.as_bytes()).ok());
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    writes.join().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Validates objects of Kubernetes, as YAML, and returns them as JSON.
const VALIDATE: &str = "\
import json, sys, yaml, kubernetes_validate
objects = list(yaml.safe_load_all(sys.stdin))
for thing in objects:
    kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)
json.dump(objects, sys.stdout)
";

/// Returns the objects that `kubectl apply -k` would send, which are valid; `None` without the tools.
fn rendered(folder: &str) -> Option<Vec<Value>> {
    if !(is_there("kubectl") && is_there("kubernetes-validate")) {
        return None;
    }
    let mut kubectl = Command::new("kubectl");
    let output = kubectl.arg("kustomize").arg(root().join(folder)).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{folder}: {said}");
    let yaml = String::from_utf8(output.stdout).unwrap();
    // What finds no mistake in anything finds none here.
    let broken = yaml.replacen("metadata:", "metdata:", 1);
    assert!(python(VALIDATE, &broken).is_err());
    let objects = python(VALIDATE, &yaml).unwrap_or_else(|said| panic!("{folder}: {said}"));
    Some(serde_json::from_str(&objects).unwrap())
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let all = objects.iter();
    all.filter(|object| object["kind"] == kind).collect()
}

/// Returns the value of an option in the arguments of a container.
fn argument<'a>(container: &'a Value, option: &str) -> Option<&'a str> {
    let arguments = container["args"].as_array()?.iter();
    let mut arguments = arguments.filter_map(Value::as_str);
    arguments.find_map(|argument| argument.strip_prefix(option)?.strip_prefix('='))
}

/// Returns a number of GiB, written as `4GiB` or `4Gi`.
fn gib(text: &str) -> f64 {
    let number = text.trim_end_matches('B').strip_suffix("Gi");
    number.and_then(|number| number.parse().ok()).expect(text)
}

/// Returns whether labels have all of a selector's.
fn selects(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().expect("labels");
    selector.iter().all(|(key, value)| labels[key] == *value)
}

/// Checks the templates of pods, and whether each object that selects pods finds some.
fn fit_each_other(objects: &[Value]) {
    let templates: Vec<_> = objects
        .iter()
        .map(|object| &object["spec"]["template"])
        .filter(|template| template.is_object())
        .collect();
    for template in &templates {
        let pod = &template["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{pod}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{pod}");
        let volumes = pod["volumes"].as_array().unwrap();
        for container in pod["containers"].as_array().unwrap() {
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true, "{container}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{container}");
            assert_eq!(security["capabilities"]["drop"][0], "ALL", "{container}");
            let image = container["image"].as_str().unwrap();
            assert!(image.starts_with("registry.example/volley:"), "{image}");
            for mount in container["volumeMounts"].as_array().unwrap() {
                let is_there = volumes.iter().any(|volume| volume["name"] == mount["name"]);
                assert!(is_there, "no volume for {mount}");
            }
            let probes = ["livenessProbe", "readinessProbe"];
            for probe in probes.map(|probe| &container[probe]["httpGet"]) {
                let Some(port) = probe.get("port") else {
                    continue;
                };
                let ports = container["ports"].as_array().unwrap();
                assert!(ports.iter().any(|known| known["name"] == *port), "{probe}");
            }
            let Some(memory) = argument(container, "--memory") else {
                continue;
            };
            let ranks: f64 = argument(container, "--vcores").unwrap().parse().unwrap();
            let of_rank = gib(argument(container, "--rank-memory").unwrap());
            let needed = (gib(memory) + ranks * of_rank) * 9.0 / 8.0;
            let resources = &container["resources"];
            let limit = resources["limits"]["memory"].as_str().unwrap();
            assert!(
                gib(limit) >= needed,
                "a limit of {limit}, and {needed} GiB are needed"
            );
            assert_eq!(resources["requests"]["memory"], limit);
            assert_eq!(
                resources["requests"]["cpu"].as_str(),
                argument(container, "--vcores")
            );
        }
    }
    let labels = |selector: &Value| {
        let mut found = templates.iter();
        found.any(|template| selects(selector, &template["metadata"]["labels"]))
    };
    for object in objects {
        let spec = &object["spec"];
        let selector = match object["kind"].as_str().unwrap() {
            "Service" => &spec["selector"],
            "StatefulSet" | "PodDisruptionBudget" => &spec["selector"]["matchLabels"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            _ => continue,
        };
        assert!(labels(selector), "no pod is selected: {object}");
        assert_eq!(object["metadata"]["namespace"], "volley");
    }
}

#[test]
fn the_cluster_for_kubernetes_fits_together() {
    let Some(objects) = rendered("deploy/kubernetes") else {
        return;
    };
    fit_each_other(&objects);
    let sets = of_kind(&objects, "StatefulSet");
    let set = |name: &str| {
        let mut sets = sets.iter();
        *sets.find(|set| set["metadata"]["name"] == name).unwrap()
    };
    let (schedulers, executors) = (set("volley-scheduler"), set("volley-executors"));
    let pod = |set: &Value| set["spec"]["template"]["spec"].clone();
    let (scheduler, executor) = (pod(schedulers), pod(executors));
    let port = &scheduler["containers"][0]["ports"][0]["containerPort"];
    // Executors know each scheduler by its name in DNS, which is the one that it has itself.
    let count = schedulers["spec"]["replicas"].as_u64().unwrap();
    assert_eq!(count, 2);
    let host = argument(&scheduler["containers"][0], "--advertise-host").unwrap();
    let names = (0..count).map(|number| {
        let name = host.replace("$(POD_NAME)", &format!("volley-scheduler-{number}"));
        format!("{name}:{port}")
    });
    let names: Vec<_> = names.collect();
    let known = argument(&executor["containers"][0], "--scheduler").unwrap();
    assert_eq!(known, names.join(","));
    assert!(host.ends_with(".volley-scheduler.volley"));
    // The leader gives up its record, and an executor leaves, before the pod is killed.
    let drain = argument(&executor["containers"][0], "--drain-timeout").unwrap();
    let drain: u64 = drain.trim_end_matches('s').parse().unwrap();
    assert!(executor["terminationGracePeriodSeconds"].as_u64() > Some(drain));
    let budgets = of_kind(&objects, "PodDisruptionBudget");
    assert_eq!(budgets.len(), 2);
    for budget in budgets {
        assert_eq!(budget["spec"]["maxUnavailable"], 1, "{budget}");
    }
    // Each service of pods with names is of a set, and gives them before the pods are ready.
    for set in sets {
        let services = of_kind(&objects, "Service");
        let name = &set["spec"]["serviceName"];
        let mut services = services.iter();
        let service = services.find(|service| service["metadata"]["name"] == *name);
        let service = &service.unwrap()["spec"];
        assert_eq!(service["clusterIP"], "None");
        assert_eq!(service["publishNotReadyAddresses"], true);
    }
    // Every port that executors listen on is open to peers, and no other.
    let policies = of_kind(&objects, "NetworkPolicy");
    let ports = |name: &str| {
        let mut policies = policies.iter();
        let policy = policies.find(|policy| policy["metadata"]["name"] == name);
        let rules = policy.unwrap()["spec"]["ingress"].as_array().unwrap();
        let ports = rules
            .iter()
            .flat_map(|rule| rule["ports"].as_array().unwrap());
        let ports = ports.map(|range| {
            let first = &range["port"];
            match range.get("endPort") {
                Some(last) => format!("{first}-{last}"),
                None => first.to_string(),
            }
        });
        ports.collect::<Vec<_>>()
    };
    assert_eq!(ports("volley-scheduler"), [port.to_string()]);
    let range = argument(&executor["containers"][0], "--ports").unwrap();
    let metrics = argument(&executor["containers"][0], "--metrics").unwrap();
    let metrics = metrics.rsplit(':').next().unwrap();
    assert_eq!(ports("volley-executors"), [range, metrics]);
}

#[test]
fn the_transient_cluster_for_kubernetes_fits_together() {
    let Some(objects) = rendered("deploy/kubernetes/job") else {
        return;
    };
    fit_each_other(&objects);
    let job = of_kind(&objects, "Job")[0];
    let (name, spec) = (job["metadata"]["name"].as_str().unwrap(), &job["spec"]);
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    let variable = |name: &str| {
        let mut variables = container["env"].as_array().unwrap().iter();
        let variable = variables.find(|variable| variable["name"] == name);
        variable.unwrap()["value"].as_str().unwrap()
    };
    let executors: u64 = variable("EXECUTORS").parse().unwrap();
    assert_eq!(spec["completions"], executors + 1);
    assert_eq!(spec["parallelism"], spec["completions"]);
    assert_eq!(spec["completionMode"], "Indexed");
    assert_eq!(spec["successPolicy"]["rules"][0]["succeededIndexes"], "0");
    assert_eq!(spec["maxFailedIndexes"], 0);
    assert!(spec["ttlSecondsAfterFinished"].as_u64() > Some(0));
    // The error of a script fails the job, and nothing else does at once.
    let rules = spec["podFailurePolicy"]["rules"].as_array().unwrap();
    let mut failing = rules.iter().filter(|rule| rule["action"] == "FailJob");
    let codes = &failing.next().unwrap()["onExitCodes"];
    assert_eq!(codes["containerName"], container["name"]);
    assert_eq!(codes["values"], serde_json::json!([1, 2]));
    assert!(failing.next().is_none());
    // Names of pods in DNS.
    let service = of_kind(&objects, "Service")[0];
    assert_eq!(service["metadata"]["name"], pod["subdomain"]);
    assert_eq!(
        variable("SCHEDULER").split(':').next(),
        Some(&*variable("HOST").replace("$(JOB_COMPLETION_INDEX)", "0"))
    );
    assert_eq!(
        variable("HOST"),
        format!("{name}-$(JOB_COMPLETION_INDEX).{name}.volley")
    );
    // The script and the commands are in the map that is mounted.
    let files = of_kind(&objects, "ConfigMap")[0];
    let mounted = &pod["volumes"][0]["configMap"]["name"];
    assert_eq!(*mounted, files["metadata"]["name"]);
    let run = container["command"][1].as_str().unwrap();
    for path in [run, variable("SCRIPT")] {
        let file = path.strip_prefix("/job/").unwrap();
        assert!(files["data"][file].is_string(), "{path}");
    }
}

/// Runs the pods of the transient cluster on this host. Returns the exit code of the pod with the script, and its output.
fn run_job(script: &str) -> (Option<i32>, String) {
    const EXECUTORS: usize = 2;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.sql");
    fs::write(&file, script).unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let address = free.unwrap().to_string();
    let programs = binary("volley").parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", programs.display());
    let manifest = fs::read_to_string(root().join("deploy/kubernetes/job/job.yaml")).unwrap();
    let options = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- --"));
    // Pods have addresses and disks of their own.
    let of_host = |option: &&str| option.starts_with("ports") || option.starts_with("work-dir");
    let options: Vec<_> = options.filter(|option| !of_host(option)).collect();
    assert!(
        options.iter().any(|option| option.starts_with("vcores=")),
        "{options:?}"
    );
    let pod = |index: usize| {
        let mut pod = Command::new("sh");
        pod.arg(root().join("deploy/kubernetes/job/run.sh"))
            .args(options.iter().map(|option| format!("--{option}")))
            .arg("--work-dir")
            .arg(dir.path().join(format!("work-{index}")))
            .env("PATH", &path)
            .env("JOB_COMPLETION_INDEX", index.to_string())
            .env("SCHEDULER", &address)
            .env("HOST", "127.0.0.1")
            .env("EXECUTORS", EXECUTORS.to_string())
            .env("WAIT", "60")
            .env("SCRIPT", &file)
            .env("VOLLEY_STATE_DIR", dir.path().join("state"));
        pod
    };
    let log = |index: usize| dir.path().join(format!("pod-{index}.log"));
    let mut executors: Vec<_> = (1..=EXECUTORS)
        .map(|index| Process::start(&mut pod(index), &log(index)))
        .collect();
    let first = pod(0).output().unwrap();
    // Kubernetes ends the others.
    for executor in &mut executors {
        executor.terminate();
        eventually("an executor's pod to end", SOON, || executor.ended());
    }
    let said = String::from_utf8_lossy(&first.stdout) + String::from_utf8_lossy(&first.stderr);
    (first.status.code(), said.into_owned())
}

#[test]
fn a_transient_cluster_ends_with_the_code_of_its_script() {
    let (code, said) = run_job("SELECT sum(value) AS total FROM range(1001);");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("500500"), "{said}");
    let (code, said) = run_job("SELECT 1 AS one; SELECT nothing FROM range(3);");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("nothing"), "{said}");
}

#[test]
fn an_autoscaler_starts_executors_for_work_that_waits_and_drains_idle_ones() {
    if !is_there("python3") {
        return;
    }
    let cluster = Cluster::start_with(Setup {
        scheduler_args: vec!["--insecure".to_owned()],
        ..Setup::default()
    });
    let work = cluster.dir().join("scaled").display().to_string();
    let mut scaler = Command::new("python3");
    scaler
        .arg(root().join("deploy/autoscaler/volley-autoscaler"))
        .args(["--scheduler", cluster.address(), "--min", "1", "--max", "3"])
        .args(["--slots", "1", "--interval", "0.5", "--idle", "2", "--"])
        .arg(binary("volley-executor"))
        .args(["--scheduler", cluster.address(), "--id", "{id}"])
        .args(["--vcores", "1", "--insecure", "--work-dir"])
        .arg(format!("{work}/{{id}}"));
    let mut scaler = Process::start(&mut scaler, &cluster.dir().join("scaler.log"));
    cluster.await_executors(1);
    // Of three trainings of one rank, two wait for more executors, and use them.
    let table = write_table(cluster.dir(), 2000);
    thread::scope(|scope| {
        let runs = ["a", "b", "c"].map(|model| {
            let train = create_model(model, ", ranks = 1, epochs = 100");
            let (cluster, table) = (&cluster, &table);
            scope.spawn(move || cluster.run(&["-c", table, "-c", &train]))
        });
        for run in runs.map(|run| run.join().unwrap()) {
            assert_eq!(run.code, Some(0), "{}", run.stderr);
        }
    });
    assert!(scaler.output().contains("3 of 3"), "{}", scaler.output());
    cluster.await_executors(1);
    assert!(scaler.output().contains("1 suffice"), "{}", scaler.output());
    assert!(scaler.is_running());
    scaler.terminate();
    let ended = eventually("the autoscaler to end", SOON, || scaler.ended());
    assert!(ended.success(), "{}", scaler.output());
    assert_eq!(cluster.registered(), Some(vec![]));
}

#[test]
fn alert_rules_are_valid() {
    if !is_there("promtool") {
        return;
    }
    let check = |file: &Path| {
        let mut promtool = Command::new("promtool");
        promtool
            .args(["check", "rules"])
            .arg(file)
            .output()
            .unwrap()
    };
    let alerts = root().join("deploy/prometheus/alerts.yaml");
    let output = check(&alerts);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // What finds no mistake in anything finds none here.
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("alerts.yaml");
    let text = fs::read_to_string(&alerts).unwrap();
    fs::write(&broken, text.replacen("expr: ", "expr: sum(", 1)).unwrap();
    assert!(!check(&broken).status.success());
}

#[test]
fn units_are_valid() {
    if !is_there("systemd-analyze") {
        return;
    }
    let programs = binary("volley").parent().unwrap().to_owned();
    let programs = format!("{}/", programs.display());
    let dir = tempfile::tempdir().unwrap();
    let verify = |name: &str, text: &str| {
        let unit = dir.path().join(name);
        // Programs that are not there are a mistake.
        fs::write(&unit, text.replace("/usr/local/bin/", &programs)).unwrap();
        let mut analyze = Command::new("systemd-analyze");
        let output = analyze.arg("verify").arg(&unit).output().unwrap();
        // It succeeds with warnings, and names the unit in each.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let warnings = said.lines().filter(|line| line.contains(name));
        let warnings: Vec<_> = warnings.map(str::to_owned).collect();
        (output.status.success(), warnings)
    };
    for name in ["volley-scheduler.service", "volley-executor.service"] {
        let text = fs::read_to_string(root().join("deploy/systemd").join(name)).unwrap();
        assert_eq!(verify(name, &text), (true, Vec::new()));
        let broken = text.replace("RestartSec=", "RestartSeconds=");
        assert!(!verify(name, &broken).1.is_empty());
    }
}

#[test]
fn metrics_that_are_named_exist() {
    // Nobody is there: the metrics of traces exist all the same, and jobs run.
    let traced = ["--otlp-endpoint", "http://127.0.0.1:1"];
    let metrics_too = [&traced[..], &["--metrics", "127.0.0.1:0"]].concat();
    let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect();
    let cluster = Cluster::start_with(Setup {
        executors: 1,
        scheduler_args: args(&traced),
        executor_args: args(&metrics_too),
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

    for file in [
        "deploy/autoscaler/volley-autoscaler",
        "deploy/kubernetes/keda.yaml",
    ] {
        assert!(exists(metrics(&read(file)), file) >= 3, "{file}");
    }

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
