//! Tests of command lines: their meaning, and the errors about them.

use clap::FromArgMatches;

use super::*;

fn around() -> Surroundings {
    Surroundings {
        stdin_is_terminal: true,
        stdout_is_terminal: true,
        pager: None,
        home: None,
        cluster: None,
        state_dir: Some("/state/volley".into()),
        directory: "/here".into(),
        cores: 8,
    }
}

fn resolve_in(around: &Surroundings, line: &str) -> Result<Config> {
    let matches = Args::command().try_get_matches_from(line.split_whitespace())?;
    Config::resolve(Args::from_arg_matches(&matches)?, &matches, around)
}

fn resolve(line: &str) -> Config {
    resolve_in(&around(), line).unwrap()
}

fn query(line: &str) -> Query {
    match resolve(line) {
        Config::Query(query) => *query,
        other => panic!("{other:?}"),
    }
}

fn refused(line: &str) -> String {
    resolve_in(&around(), line).unwrap_err().to_string()
}

#[test]
fn a_terminal_gets_a_prompt_with_timing() {
    let query = query("volley");
    let history = Some("/state/volley/history".into());
    assert_eq!(query.input, Input::Terminal { history, rc: None });
    let pager = Some("less".into());
    assert_eq!(query.output.terminal, Some(Terminal { pager }));
    assert!(query.output.timing);
    assert_eq!(
        query.connection.store.as_str(),
        "file:///here/volley-store/"
    );
    let embedded = Embedded {
        executors: 2,
        vcores: 4,
        device: Device::Auto,
    };
    assert_eq!(query.connection.engine, EngineConfig::Embedded(embedded));
}

#[test]
fn a_cluster_that_is_up_is_used_unless_another_is_named() {
    let tls = TlsFiles {
        ca: "/certs/ca.pem".into(),
        identity: None,
    };
    let up = Surroundings {
        cluster: Some(FoundCluster {
            scheduler: "127.0.0.1:7".into(),
            tls: Some(tls.clone()),
        }),
        ..around()
    };
    let connection = |line: &str| match resolve_in(&up, line).unwrap() {
        Config::Query(query) => query.connection,
        other => panic!("{other:?}"),
    };
    let engine = |line: &str| connection(line).engine;
    assert_eq!(connection("volley").tls, Some(tls.clone()));
    assert_eq!(connection("volley --scheduler h:1").tls, None);
    assert_eq!(engine("volley"), EngineConfig::Found("127.0.0.1:7".into()));
    assert_eq!(
        engine("volley --scheduler h:1"),
        EngineConfig::Scheduler("h:1".into())
    );
    assert!(matches!(
        engine("volley --executors 1"),
        EngineConfig::Embedded(_)
    ));
    let Config::Jobs(jobs) = resolve_in(&up, "volley jobs").unwrap() else {
        panic!("not jobs")
    };
    assert_eq!(jobs.remote.scheduler, "127.0.0.1:7");
    assert!(jobs.remote.is_found && jobs.remote.tls == Some(tls));
    assert!(resolve_in(&up, "volley cluster token").is_ok());
    assert!(refused("volley cluster token").contains("--name and --role"));
    for (name, due) in [("a/b", "\"a/b\" is not a name"), ("local", "is taken")] {
        let said = refused(&format!("volley cluster token --name {name} --role run"));
        assert!(said.contains("--name: ") && said.contains(due), "{said}");
    }
}

#[test]
fn anything_else_is_a_script() {
    let piped = Surroundings {
        stdin_is_terminal: false,
        ..around()
    };
    let Ok(Config::Query(query)) = resolve_in(&piped, "volley") else {
        panic!("not a query")
    };
    assert_eq!(query.input, Input::Sources(vec![Source::Stdin]));
    assert!(!query.output.timing);
    assert_eq!(query.output.terminal, Some(Terminal { pager: None }));
}

#[test]
fn a_terminal_is_not_shown_files() {
    assert!(refused("volley --format parquet -c x").contains("> rows.parquet"));
    assert!(refused("volley jobs --scheduler h:1 --format arrow").contains("> rows.arrow"));
    let piped = Surroundings {
        stdout_is_terminal: false,
        ..around()
    };
    assert!(resolve_in(&piped, "volley --format arrow -c x").is_ok());
}

#[test]
fn a_trace_is_a_setting() {
    let settings = query("volley --trace -c x").connection.settings;
    assert_eq!(settings, [("volley.trace".into(), "true".into())]);
    assert!(query("volley -c x").connection.settings.is_empty());
}

#[test]
fn sources_keep_the_order_typed() {
    let Input::Sources(sources) = query("volley -f a.sql -c x -f - --command y").input else {
        panic!("not scripts")
    };
    let command = |text: &str| Source::Command(text.into());
    let file = Source::File("a.sql".into());
    assert_eq!(sources, [file, command("x"), Source::Stdin, command("y")]);
}

#[test]
fn a_scheduler_excludes_an_embedded_cluster() {
    let engine = query("volley --scheduler host:1").connection.engine;
    assert_eq!(engine, EngineConfig::Scheduler("host:1".into()));
    assert!(refused("volley --scheduler host:1 --executors 2").contains("--executors"));
    assert!(refused("volley --scheduler host").contains("HOST:PORT"));
}

#[test]
fn executors_are_listed_or_drained() {
    for (line, drained) in [
        ("volley executors --scheduler h:1", &[][..]),
        ("volley executors list --scheduler h:1", &[]),
        ("volley executors drain a b --scheduler h:1", &["a", "b"]),
    ] {
        let Config::Executors(executors) = resolve(line) else {
            panic!("{line}")
        };
        assert_eq!(executors.drained, drained, "{line}");
    }
    assert!(refused("volley executors").contains("executors: no cluster is running"));
    assert!(refused("volley executors drain --scheduler h:1").contains("<ID>"));
}

#[test]
fn jobs_are_asked_for_on_a_running_cluster() {
    let jobs = |line: &str| match resolve(line) {
        Config::Jobs(jobs) => jobs,
        other => panic!("{other:?}"),
    };
    let id = || "J1".to_owned();
    for (line, action) in [
        ("volley jobs --scheduler h:1", JobsAction::List),
        ("volley jobs list --scheduler h:1", JobsAction::List),
        (
            "volley jobs --scheduler h:1 cancel J1",
            JobsAction::Cancel { id: id() },
        ),
        (
            "volley jobs logs J1 --scheduler h:1",
            JobsAction::Logs { id: id() },
        ),
        (
            "volley jobs attach J1 --scheduler h:1 --format json -q",
            JobsAction::Attach { id: id() },
        ),
    ] {
        let jobs = jobs(line);
        let scheduler = &*jobs.remote.scheduler;
        assert_eq!((scheduler, jobs.action), ("h:1", action), "{line}");
    }
    assert_eq!(
        jobs("volley jobs --scheduler h:1 --format csv")
            .remote
            .format,
        Format::Csv
    );
    assert!(refused("volley jobs").contains("--scheduler HOST:PORT"));
    assert!(refused("volley jobs cancel J1").contains("press Ctrl-C in its terminal"));
    assert!(refused("volley jobs attach J1").contains("--scheduler HOST:PORT"));
    assert!(refused("volley jobs --scheduler h").contains("expected HOST:PORT"));
    assert!(refused("volley jobs cancel --scheduler h:1").contains("<ID>"));
}

#[test]
fn a_script_is_left_to_a_running_cluster() {
    assert!(query("volley --detach -c x --scheduler h:1").detach);
    assert!(!query("volley -c x --scheduler h:1").detach);
    assert!(refused("volley --detach -c x").contains("--scheduler HOST:PORT"));
    assert!(refused("volley --detach --scheduler h:1").contains("-c or -f"));
}

#[test]
fn stores_are_directories_or_urls() {
    assert_eq!(
        query("volley --store m").connection.store.as_str(),
        "file:///here/m/"
    );
    assert_eq!(
        query("volley --store s3://b/m").connection.store.as_str(),
        "s3://b/m"
    );
}

#[test]
fn a_variable_is_defined_once() {
    assert_eq!(query("volley -D a=1 -D b=2").defines.len(), 2);
    assert!(refused("volley -D a=1 -D a=2").contains("twice"));
}

#[test]
fn the_cluster_lives_in_the_state_directory() {
    let Config::Cluster(up) = resolve("volley cluster up --executors 3") else {
        panic!()
    };
    assert_eq!(up.dir, Path::new("/state/volley/cluster"));
    let ClusterAction::Up(up) = up.action else {
        panic!()
    };
    assert_eq!((up.executors, up.vcores, up.scheduler_port), (3, 3, 0));
    assert_eq!(up.executor_program, None);
    let Config::Cluster(Cluster {
        action: ClusterAction::Up(own),
        ..
    }) = resolve("volley cluster up --executor-program bin/own")
    else {
        panic!()
    };
    assert_eq!(own.executor_program, Some("/here/bin/own".into()));
    let Config::Cluster(down) = resolve("volley cluster down --dir d") else {
        panic!()
    };
    assert_eq!(
        down,
        Cluster {
            dir: "/here/d".into(),
            action: ClusterAction::Down
        }
    );
    let homeless = Surroundings {
        state_dir: None,
        ..around()
    };
    assert!(resolve_in(&homeless, "volley cluster status").is_err());
}

#[test]
fn the_demo_needs_an_executor_for_each_rank() {
    let Config::Demo(demo) = resolve("volley demo rossmann --executors 3") else {
        panic!()
    };
    assert_eq!(demo.ranks, 3);
    let generate = Generate {
        out: "/here/volley-demo/data".into(),
        stores: 100,
        seed: 0,
    };
    assert_eq!(demo.data, DemoData::Generate(generate));
    assert!(refused("volley demo rossmann --ranks 3").contains("--executors"));
    assert!(refused("volley demo rossmann --data d --stores 3").contains("--stores"));
}

#[test]
fn tls_is_for_running_clusters_and_needs_all_of_its_files() {
    let tls = query("volley --scheduler h:1 --tls-ca ca.pem")
        .connection
        .tls;
    let files = TlsFiles {
        ca: "/here/ca.pem".into(),
        identity: None,
    };
    assert_eq!(tls, Some(files));
    assert_eq!(query("volley --scheduler h:1").connection.tls, None);
    let Config::Jobs(jobs) = resolve("volley jobs --scheduler h:1 cancel J --tls-ca /ca.pem")
    else {
        panic!("not jobs")
    };
    assert_eq!(jobs.remote.tls.unwrap().ca, Path::new("/ca.pem"));
    for (line, expected) in [
        ("volley --tls-ca ca.pem", "--scheduler HOST:PORT"),
        (
            "volley --scheduler h:1 --tls-cert c --tls-key k",
            "--tls-ca",
        ),
        (
            "volley --scheduler h:1 --tls-ca c --tls-key k",
            "--tls-cert",
        ),
        ("volley cluster up --tls-ca c", "--tls-cert and --tls-key"),
    ] {
        let said = refused(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
    let Config::Certificates(certificates) =
        resolve("volley cluster certs --out d --hosts a,10.0.0.1")
    else {
        panic!("no certificates")
    };
    assert_eq!(certificates.hosts, ["a", "10.0.0.1"]);
    assert_eq!(certificates.out, Path::new("/here/d"));
}
