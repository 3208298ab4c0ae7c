//! Attacks on a cluster: bytes that are not messages on every port, silent connections, messages that nest without
//! end, tickets for others' files, others' pages, and files with absurd lengths. Each is refused by name or does no
//! harm, while the cluster continues to answer. Attacks that need a token are tried with one and without.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tonic::{Code, Status};
use volley_proto::access::{Credential, Holder, Token};
use volley_tests::hostile::{self, call, dial, field, is_closed, most_memory, number, ports};
use volley_tests::{Cluster, Samples};

use crate::fault::Fault;
use crate::fitting::setup;
use crate::forged;
use crate::scene::{self, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("bytes that are no messages are sent to every port", garbage),
    ("connections say nothing", silence),
    ("there are hundreds of idle connections", crowd),
    ("messages nest without end", nest),
    ("tickets name files of others", tickets),
    ("a page of others asks", pages),
    ("tokens are forged", forged::tokens),
    ("a stranger dials ranks while they meet and train", ranks),
    ("a small file is large when it is unpacked", unpacked),
    ("a model's name is a path", paths),
    ("a model's files have absurd lengths", absurd),
];

/// First bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const EXECUTE: &str = "/ballista.protobuf.SchedulerGrpc/ExecuteQuery";
/// Submission of a query to Volley's own service.
const SUBMIT: &str = "/volley.v1.Queries/Submit";
const FETCH: &str = "/arrow.flight.protocol.FlightService/DoGet";
const LAUNCH: &str = "/ballista.protobuf.ExecutorGrpc/LaunchMultiTask";
const ACT: &str = "/arrow.flight.protocol.FlightService/DoAction";

pub(crate) fn port_of(cluster: &Cluster) -> u16 {
    let (_, port) = cluster.address().rsplit_once(':').unwrap();
    port.parse().unwrap()
}

/// Returns the ports of an executor's task server and Flight service.
fn executor_ports(cluster: &mut Cluster) -> Vec<u16> {
    ports(cluster.executors()[0].id()).into_iter().collect()
}

/// Returns the port of an executor's Flight service, which the other port does not have.
fn flight_port(runtime: &Runtime, ports: &[u16]) -> u16 {
    let is_flight = |port: &&u16| {
        let answer = runtime.block_on(call(**port, FETCH, Vec::new(), None));
        answer.is_err_and(|status| status.code() == Code::InvalidArgument)
    };
    *ports.iter().find(is_flight).expect("an executor has one")
}

fn runtime() -> Runtime {
    Runtime::new().unwrap()
}

/// Checks that the same processes still answer.
fn unharmed(cluster: &mut Cluster, executors: usize) {
    let log = cluster.scheduler().output();
    assert!(cluster.scheduler().is_running(), "{log}");
    let executors_run = cluster
        .executors()
        .iter_mut()
        .all(|executor| executor.is_running());
    assert!(executors_run, "an executor has ended");
    scene::is_well(cluster, executors);
}

fn garbage() {
    let mut cluster = scene::cluster(1);
    let mut all = executor_ports(&mut cluster);
    all.push(port_of(&cluster));
    let noise: Vec<u8> = (0..200_000_u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let frame = |length: [u8; 3], kind: u8, payload: &[u8]| {
        let head = [length[0], length[1], length[2], kind, 0, 0, 0, 0, 1];
        [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0], &head, payload].concat()
    };
    let throws = [
        noise.clone(),
        vec![0; 100_000],
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        PREFACE[..11].to_vec(),
        PREFACE.to_vec(),
        frame([0xff, 0xff, 0xff], 0, &noise),
        frame([0, 0x40, 0], 1, &noise[..0x4000]),
        frame([0, 0, 0], 9, &noise),
        [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 1_000_000]].concat(),
        [
            b"GET / HTTP/1.1\r\n".as_slice(),
            &b"a: b\r\n".repeat(20_000),
        ]
        .concat(),
        b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n".to_vec(),
        b"VLYHELLO".to_vec(),
    ];
    for port in all {
        throws.iter().for_each(|bytes| hostile::throw(port, bytes));
    }
    unharmed(&mut cluster, 1);
}

fn silence() {
    let mut cluster = scene::cluster(1);
    let scheduler = port_of(&cluster);
    let mut all = executor_ports(&mut cluster);
    all.push(scheduler);
    let mut silent = Vec::new();
    for port in all {
        for beginning in [&b""[..], &b"G"[..], &PREFACE[..23]] {
            let mut stream = dial(port).unwrap();
            stream.write_all(beginning).unwrap();
            silent.push((port, beginning.len(), stream));
        }
    }
    // The head does not end.
    let mut head = dial(scheduler).unwrap();
    head.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n")
        .unwrap();
    silent.push((scheduler, 41, head));
    assert_eq!(cluster.query("SELECT 1 AS one")[0]["one"], 1);
    for (port, bytes, mut stream) in silent {
        assert!(
            is_closed(&mut stream, SOON),
            "port {port} waits after {bytes} bytes"
        );
    }
    unharmed(&mut cluster, 1);
}

fn crowd() {
    let mut cluster = scene::cluster(1);
    let all = [executor_ports(&mut cluster), vec![port_of(&cluster)]].concat();
    let mut crowd: Vec<TcpStream> = Vec::new();
    for at in 0..400 {
        for port in &all {
            // As many connections as this process may open.
            let Ok(mut stream) = dial(*port) else { break };
            if at % 2 == 0 {
                stream.write_all(PREFACE).ok();
            }
            crowd.push(stream);
        }
    }
    assert!(crowd.len() > 300, "{} connections", crowd.len());
    assert_eq!(
        cluster.query("SELECT count(*) AS n FROM range(9)")[0]["n"],
        9
    );
    drop(crowd);
    unharmed(&mut cluster, 1);
}

/// Nests a message in `times` messages, by these fields from the outermost on.
fn nested(times: usize, inner: &[u8], fields: [u32; 2]) -> Vec<u8> {
    // Built from its end: each message is everything after its head.
    let mut reversed: Vec<u8> = inner.iter().rev().copied().collect();
    for _ in 0..times {
        for number in fields.into_iter().rev() {
            let head = hostile::head(number, reversed.len());
            reversed.extend(head.into_iter().rev());
        }
    }
    reversed.reverse();
    reversed
}

/// Builds a plan of nested operators that select by a nested expression.
fn plan(operators: usize, expressions: usize) -> Vec<u8> {
    // `true`, negated repeatedly: a literal (3) that is a boolean (2), within Not (8).
    let truth = field(3, &number(2, 1));
    let condition = nested(expressions, &truth, [8, 1]);
    let rows = field(10, &number(1, 1));
    let selected = field(4, &[field(1, &rows), field(2, &condition)].concat());
    nested(operators, &selected, [23, 1])
}

fn nest() {
    let mut cluster = scene::cluster(1);
    let (scheduler, runtime) = (port_of(&cluster), runtime());
    let ports = executor_ports(&mut cluster);
    let flight = flight_port(&runtime, &ports);
    let [client, executor] = [Holder::Client, Holder::Executor].map(|holder| {
        let token = Credential::Found.token(cluster.address(), holder);
        token.unwrap().unwrap()
    });
    let known = |port, path: &str, message: Vec<u8>, token: Option<&Token>| {
        let answer = runtime.block_on(call(port, path, message, token));
        answer.map_err(|status: Status| status.code()).err()
    };
    let code = |port, path: &str, message: Vec<u8>| known(port, path, message, Some(&client));
    let groups = vec![0x0b; 3_000_000];
    for (path, token) in [
        (EXECUTE, &client),
        (
            "/ballista.protobuf.SchedulerGrpc/UpdateTaskStatus",
            &executor,
        ),
        ("/volley.v1.Jobs/Follow", &client),
        (SUBMIT, &client),
        ("/volley.v1.Tasks/Report", &executor),
        ("/volley.v1.Rendezvous/Join", &executor),
        ("/volley.v1.Attendance/Tell", &executor),
        ("/volley.v1.Cluster/ReadTable", &client),
    ] {
        for message in [groups.clone(), field(4, &groups)] {
            for (token, due) in [
                (None, Code::Unauthenticated),
                (Some(token), Code::InvalidArgument),
            ] {
                let answer = known(scheduler, path, message.clone(), token);
                assert_eq!(answer, Some(due), "{path}");
            }
        }
    }
    // An executor's other port accepts calls of its scheduler only.
    for port in ports.iter().filter(|port| **port != flight) {
        let launched = code(*port, LAUNCH, groups.clone());
        assert_eq!(launched, Some(Code::Unauthenticated));
    }
    assert!(code(flight, FETCH, groups.clone()).is_some());
    assert!(code(flight, ACT, field(2, &groups)).is_some());
    // This is within the limit of a ticket.
    assert!(code(flight, FETCH, field(1, &[0x0b; 60_000])).is_some());
    for (operators, expressions) in [(100_000, 0), (0, 100_000), (1_000_000, 0)] {
        let query = field(1, &plan(operators, expressions));
        let submitted = code(scheduler, SUBMIT, field(1, &query));
        assert_eq!(submitted, Some(Code::InvalidArgument));
        let sent = code(scheduler, EXECUTE, query);
        assert_eq!(
            sent,
            Some(Code::InvalidArgument),
            "{operators} {expressions}"
        );
    }
    // Each message claims to be longer than the one around it.
    let longer = [0x9a_u8, 0x01, 100, 0x0a, 100].repeat(500_000);
    let _ = code(scheduler, EXECUTE, field(1, &longer));
    // These are as deep as allowed: the answer may be anything, and the scheduler stays alive.
    for (operators, expressions) in [(2_400, 0), (0, 2_400), (1_200, 1_200)] {
        let sent = field(1, &plan(operators, expressions));
        let answer = runtime.block_on(call(scheduler, EXECUTE, sent, Some(&client)));
        println!("{operators} operators, {expressions} expressions: {answer:?}");
        let submitted = field(1, &field(1, &plan(operators, expressions)));
        let answer = runtime.block_on(call(scheduler, SUBMIT, submitted, Some(&client)));
        println!("submitted: {answer:?}");
        assert_eq!(cluster.query("SELECT 1 AS one")[0]["one"], 1);
        assert!(cluster.scheduler().is_running());
    }
    let too_large = code(scheduler, EXECUTE, field(1, &vec![0; 17 << 20]));
    assert_eq!(too_large, Some(Code::OutOfRange));
    unharmed(&mut cluster, 1);
}

fn tickets() {
    let mut cluster = scene::cluster(1);
    let runtime = runtime();
    let flight = flight_port(&runtime, &executor_ports(&mut cluster));
    // A foreign file, where a path out of the work folder would find it.
    let secret = cluster.dir().join("secret");
    fs::create_dir_all(secret.join("1/2")).unwrap();
    for name in ["data.arrow", "data-7.arrow"] {
        fs::write(secret.join("1/2").join(name), "the secret").unwrap();
    }
    let work_dir = cluster.work_dir(0);
    let entries = fs::read_dir(&work_dir).unwrap().flatten();
    let shuffle = entries
        .map(|entry| entry.path())
        .find(|path| path.is_dir())
        .unwrap();
    symlink(&secret, shuffle.join("linked")).unwrap();
    let ticket = |job: &str| {
        let fetch = [
            field(1, job.as_bytes()),
            number(2, 1),
            number(3, 2),
            number(7, 7),
        ];
        field(3, &fetch.concat())
    };
    let absolute = secret.display().to_string();
    let from_shuffle = format!(
        "../../{}",
        Path::new(&absolute).file_name().unwrap().display()
    );
    // Names in forged tickets; names in valid tickets are tested where they are checked.
    for job in [
        absolute.as_str(),
        from_shuffle.as_str(),
        "../secret",
        "..",
        "",
        "linked",
    ] {
        let act = [field(1, b"IO_BLOCK_TRANSPORT"), field(2, &ticket(job))].concat();
        for (path, message) in [(FETCH, field(1, &ticket(job))), (ACT, act)] {
            let refused = runtime
                .block_on(call(flight, path, message, None))
                .unwrap_err();
            let unknown = Code::Unauthenticated;
            assert_eq!(refused.code(), unknown, "{path} of {job:?}: {refused}");
            assert!(!refused.message().contains("the secret"), "{refused}");
        }
    }
    fs::remove_file(shuffle.join("linked")).unwrap();
    unharmed(&mut cluster, 1);
}

fn pages() {
    let mut cluster = scene::cluster(1);
    let port = port_of(&cluster);
    let status = |headers: &str| {
        let request =
            format!("GET /api/volley/jobs HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        let answer = hostile::request(port, &request);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let own = format!("Host: 127.0.0.1:{port}\r\n");
    assert_eq!(status(&own), "401");
    let token = cluster.token().unwrap();
    let own = format!("{own}Authorization: Bearer {}\r\n", token.reveal());
    assert_eq!(status(&own), "200");
    assert_eq!(status("Host: evil.example\r\n"), "421");
    assert_eq!(status(&format!("Host: evil.example:{port}\r\n")), "421");
    assert_eq!(
        status(&format!("{own}Origin: http://evil.example\r\n")),
        "403"
    );
    assert_eq!(status(&format!("{own}Origin: null\r\n")), "403");
    for path in [
        "/reports/..%2f..%2fetc/1/x",
        "/reports/m/1/..%2f..",
        "/api/volley/..%2fjobs",
        "/../etc/passwd",
    ] {
        let answer = hostile::request(
            port,
            &format!("GET {path} HTTP/1.1\r\n{own}Connection: close\r\n\r\n"),
        );
        // gRPC may answer that the method does not exist.
        let is_refused = [" 404 ", " 400 ", "grpc-status: 12"].map(|said| answer.contains(said));
        assert!(is_refused.contains(&true), "{path}: {answer}");
    }
    unharmed(&mut cluster, 1);
}

fn ranks() {
    let mut cluster = scene::cluster(2);
    let processes: Vec<u32> = cluster
        .executors()
        .iter()
        .map(|executor| executor.id())
        .collect();
    let known: Vec<_> = processes.iter().map(|process| ports(*process)).collect();
    let fit = setup("m", "ranks = 2").start(&cluster);
    let over = AtomicBool::new(false);
    let dialled = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let (began, mut dialled) = (Instant::now(), 0);
            let mut held = Vec::new();
            let hello: Vec<u8> =
                [b"VLYHELLO".as_slice(), &[0xff; 88], b"VLYM", &[0xff; 100]].concat();
            while !over.load(Ordering::Relaxed) && began.elapsed() < 4 * SOON {
                for (process, known) in processes.iter().zip(&known) {
                    for port in ports(*process).difference(known) {
                        for bytes in [&hello[..], b"GET / HTTP/1.1\r\n\r\n", b""] {
                            if let Ok(mut stream) = dial(*port) {
                                stream.write_all(bytes).ok();
                                held.push(stream);
                                dialled += 1;
                            }
                        }
                    }
                }
                held.truncate(200);
                thread::sleep(Duration::from_millis(1));
            }
            dialled
        });
        let trained = fit.client.wait(2 * SOON);
        over.store(true, Ordering::Relaxed);
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
        stranger.join().unwrap()
    });
    println!("{dialled} connections to ranks");
    unharmed(&mut cluster, 2);
}

fn unpacked() {
    // The unpacked data is thirty times the memory of a query.
    const ROWS: u64 = 400_000;
    let mut cluster = Cluster::start_with(volley_tests::Setup {
        executors: 1,
        executor_args: ["--memory", "16MiB"].map(str::to_owned).to_vec(),
        ..volley_tests::Setup::default()
    });
    let file = cluster.dir().join("zeros.csv.gz");
    let script =
        format!("yes \"$(head -c 1200 /dev/zero | tr '\\0' 0)\" | head -n {ROWS} | gzip > \"$0\"");
    let packed = Command::new("bash")
        .args(["-c", &script])
        .arg(&file)
        .status();
    assert!(packed.unwrap().success());
    let size = fs::metadata(&file).unwrap().len();
    assert!(size < ROWS * 1200 / 100, "{size} bytes");
    let process = cluster.executors()[0].id();
    let before = most_memory(process);
    let table = format!(
        "CREATE EXTERNAL TABLE zeros (z VARCHAR) STORED AS CSV LOCATION '{}' OPTIONS \
         ('format.has_header' 'false', 'format.compression' 'gzip');",
        file.display()
    );
    let counted = cluster.query(&format!(
        "{table} SELECT count(*) AS n, max(length(z)) AS l FROM zeros"
    ));
    assert_eq!(
        (counted[0]["n"].as_u64(), counted[0]["l"].as_u64()),
        (Some(ROWS), Some(1200))
    );
    let grown = most_memory(process).saturating_sub(before);
    assert!(grown < 300 << 20, "{} MiB more", grown >> 20);
    // Data that does not fit is refused.
    let said = cluster.fail(&format!(
        "{table} SELECT array_agg(z || r) AS a FROM (SELECT z, CAST(random() AS VARCHAR) AS r FROM zeros)"
    ));
    assert!(!said.is_empty());
    let grown = most_memory(process).saturating_sub(before);
    assert!(grown < 900 << 20, "{} MiB more", grown >> 20);
    unharmed(&mut cluster, 1);
}

fn paths() {
    let mut cluster = scene::cluster(1);
    let outside = cluster.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "x").unwrap();
    let samples = Samples::write(cluster.dir(), 50);
    for name in [
        "\"../outside\"",
        "\"..\"",
        "\"a/b\"",
        "\"/etc\"",
        "\"a\0b\"",
    ] {
        let create = samples.create_model(name, "epochs = 1, batch_size = 16, hidden_units = [4]");
        for sql in [
            format!("DROP MODEL {name}"),
            format!("DESCRIBE MODEL {name}"),
            format!("{} {create}", samples.table()),
        ] {
            if sql.contains('\0') {
                continue; // arguments of a command cannot contain it
            }
            let said = cluster.fail(&sql);
            assert!(said.contains("model"), "{sql}: {said}");
        }
    }
    assert!(outside.join("kept").exists());
    unharmed(&mut cluster, 1);
}

fn absurd() {
    let mut cluster = scene::cluster(1);
    let samples = Samples::write(cluster.dir(), 200);
    let create = samples.create_model("m", "epochs = 1, batch_size = 16, hidden_units = [4]");
    let trained = cluster.run(&["--quiet", "-c", &format!("{} {create}", samples.table())]);
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let version = cluster.store().join("models/m/1");
    let path = version.join("manifest.json");
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let question = format!(
        "{} SELECT * FROM ML.PREDICT(MODEL m, TABLE samples)",
        samples.table()
    );
    let spoil: [fn(&mut serde_json::Value); 5] = [
        |m| {
            m["features"][1]["quantiles"] =
                serde_json::json!({"values": [0.0, 1.0], "last": [0, u32::MAX]})
        },
        |m| m["spec"]["network"]["embedding_dim"] = serde_json::json!(u64::MAX),
        |m| m["spec"]["network"]["layers"] = serde_json::json!([{"cross": u64::MAX}]),
        |m| {
            m["spec"]["network"]["layers"] =
                serde_json::json!([{"dense": 1_u64 << 60}, {"dense": 1_u64 << 60}])
        },
        |m| m["spec"]["features"] = serde_json::json!([]),
    ];
    for spoil in spoil {
        let mut spoilt = manifest.clone();
        spoil(&mut spoilt);
        fs::write(&path, spoilt.to_string()).unwrap();
        let said = cluster.fail(&question);
        assert!(
            said.contains("manifest") || said.contains("weights"),
            "{said}"
        );
    }
    // A manifest larger than any document is not read.
    let file = fs::File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let said = cluster.fail(&question);
    assert!(said.contains("1099511627776 bytes"), "{said}");
    fs::write(&path, manifest.to_string()).unwrap();
    let weights = version.join("weights.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(
        &weights,
        [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat(),
    )
    .unwrap();
    let said = cluster.fail(&question);
    assert!(said.contains("weights.safetensors"), "{said}");
    fs::File::options()
        .write(true)
        .open(&weights)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let said = cluster.fail(&question);
    assert!(said.contains("1099511627776 bytes"), "{said}");
    fs::write(&weights, whole).unwrap();
    assert_eq!(cluster.query(&question).len(), 200);
    unharmed(&mut cluster, 1);
}
