//! All examples, run as their readmes say.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use cargo_metadata::{MetadataCommand, Package};
use volley_tests::{Cluster, ExecutorSetup, Process, eventually};

const SHOPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/shops");
const CUSTOM_LAYER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/custom-layer/train.sql"
);

#[test]
fn the_shops_are_worked_through() {
    let files = fs::read_dir(SHOPS).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "sql"));
    files.sort();
    let data = format!("data={}", Path::new(SHOPS).join("data").display());
    let mut args = vec!["--format", "json", "-D", &data];
    for file in &files {
        args.extend(["-f", file.to_str().unwrap()]);
    }
    let cluster = Cluster::start(2);
    let rows = cluster.run(&args).rows();
    // It learns something, and more when it continues.
    let evaluated: Vec<_> = rows
        .iter()
        .filter(|row| row.get("version").is_some() && row.get("rmspe").is_some())
        .filter_map(|row| row["rmspe"].as_f64())
        .collect();
    let [first, second] = evaluated[..] else {
        panic!("two versions are compared: {evaluated:?}")
    };
    assert!(second < first && second < 0.3, "{evaluated:?}");
}

#[test]
fn the_guide_to_the_library_runs() {
    let test = env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap();
    let guide = built.join("examples/guide");
    assert!(
        guide.exists(),
        "{}: cargo test --workspace builds it",
        guide.display()
    );
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut guide = Process::start(&mut Command::new(guide), &log);
    let ended = eventually("its end", Duration::from_secs(300), || guide.ended());
    assert!(ended.success(), "{ended}");
}

/// The programs of the page are doc tests of the client.
#[test]
fn the_project_to_copy_resolves_to_the_tested_versions() {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(checkout.join("docs/rust.md")).unwrap();
    let block = |language: &str| {
        let (_, rest) = page.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let (manifest, dependency) = (block("toml"), "\"../volley/client\"");
    assert!(manifest.contains(dependency), "{manifest}");
    let client = format!("{:?}", checkout.join("client"));
    let project = tempfile::tempdir().unwrap();
    let file = |name: &str| project.path().join(name);
    fs::create_dir(file("src")).unwrap();
    fs::write(file("src/main.rs"), block("rust,no_run")).unwrap();
    fs::write(file("Cargo.toml"), manifest.replace(dependency, &client)).unwrap();
    fs::copy(checkout.join("Cargo.lock"), file("Cargo.lock")).unwrap();

    let platform = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let options = ["--offline", "--filter-platform", &platform].map(str::to_owned);
    let mut command = MetadataCommand::new();
    command.manifest_path(file("Cargo.toml"));
    let project = command.other_options(options.to_vec()).exec().unwrap();
    let lock = fs::read_to_string(checkout.join("Cargo.lock")).unwrap();
    let is_other = |package: &&Package| {
        let line = format!(
            "name = \"{}\"\nversion = \"{}\"\n",
            package.name, package.version
        );
        package.name != "first" && !lock.contains(&line)
    };
    let others: Vec<_> = project.packages.iter().filter(is_other).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(
        project.packages.len() > 100,
        "all of Volley's packages are among them"
    );
}

#[test]
fn a_custom_layer_is_trained_where_it_is_registered() {
    let mut cluster = Cluster::start(0);
    for _ in 0..2 {
        cluster.add_executor_with(ExecutorSetup {
            program: Some("volley-custom-layer".to_owned()),
            ..ExecutorSetup::default()
        });
    }
    cluster.await_executors(2);
    let rows = cluster
        .run(&["--format", "json", "-f", CUSTOM_LAYER])
        .rows();
    let r2 = rows.iter().find_map(|row| row["r2_score"].as_f64());
    assert!(r2 > Some(0.8), "{r2:?}");
    let is_described = |row: &serde_json::Value| row.to_string().contains("custom('rbf', 16, 0.5)");
    assert!(rows.iter().any(is_described), "{rows:?}");

    let model = |layer: &str, ranks: usize| {
        format!(
            "CREATE MODEL m OPTIONS (input_label_cols = ['y'], network = [{layer}], device = 'cpu', epochs = 1, \
             ranks = {ranks}) AS SELECT value / 10.0 AS x, value * 2.0 AS y FROM range(100)"
        )
    };
    let misspelt = cluster.fail(&model("custom('rbff', 4)", 2));
    assert!(
        misspelt.contains("custom('rbff', 4)") && misspelt.contains("registered: rbf"),
        "{misspelt}"
    );
    let refused = cluster.fail(&model("custom('rbf', 0.5)", 2));
    assert!(refused.contains("units instead of 0.5"), "{refused}");
    // An executor without custom layers.
    cluster.add_executor();
    cluster.await_executors(3);
    let lacking = cluster.fail(&model("custom('rbf', 4)", 3));
    assert!(
        lacking.contains("custom('rbf', 4)") && lacking.contains("registered: none"),
        "{lacking}"
    );
}
