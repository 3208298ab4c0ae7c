//! `volley doctor`: checks that this machine and a cluster have what Volley needs. It prints one line per finding, and
//! a table of the links between the cluster's processes.

mod links;

use std::fmt;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use volley::{SchedulerAddress, Scope, Session, SessionConfig, SystemTables};
use volley_proto::probe::{self, Fault, FaultKind};
use volley_proto::store::ModelStore;
use volley_proto::tables::Executor;
use volley_proto::tls::Tls;

use self::links::{faults, rows, summary};
use super::Ended;
use super::config::{Connection, EngineConfig};
use super::engine::Engine;
use super::execute::{print_batch, write};
use super::format::Format;

/// Free space in bytes below which a disk gets a warning.
const LITTLE: u64 = 2 << 30;
/// Cube root of the number of values sent through an exchange, eight bytes each.
const BASE: u64 = 128;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckStatus {
    Fine,
    Careful,
    Wrong,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "ok",
            Self::Careful => "warning",
            Self::Wrong => "FAILED",
        })
    }
}

/// Printer of findings, which counts the failed ones.
#[derive(Debug, Default)]
struct Findings {
    failed: usize,
}

impl Findings {
    async fn say(&mut self, status: CheckStatus, what: &str, text: &str) -> anyhow::Result<()> {
        self.failed += usize::from(status == CheckStatus::Wrong);
        write(format!("{status:<8} {what:<12} {text}\n").as_bytes()).await?;
        Ok(())
    }

    /// Prints the result of a check: what works, or what is wrong and how to fix it.
    async fn check(
        &mut self,
        what: &str,
        outcome: Result<(CheckStatus, String), String>,
    ) -> anyhow::Result<()> {
        match outcome {
            Ok((status, text)) => self.say(status, what, &text).await,
            Err(text) => self.say(CheckStatus::Wrong, what, &text).await,
        }
    }
}

/// Runs all checks.
///
/// # Errors
/// When standard output cannot be written to.
pub(super) async fn run(connection: &Connection) -> anyhow::Result<Ended> {
    let mut findings = Findings::default();
    let version = env!("CARGO_PKG_VERSION");
    findings
        .say(CheckStatus::Fine, "version", &format!("volley {version}"))
        .await?;
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cores_text = format!("{cores} cores");
    findings
        .say(CheckStatus::Fine, "machine", &cores_text)
        .await?;
    findings.check("ports", ports()).await?;
    findings
        .check("scratch", disk(&std::env::temp_dir()))
        .await?;
    findings.check("store", store(connection).await).await?;
    match &connection.engine {
        EngineConfig::Scheduler(address) | EngineConfig::Found(address) => {
            cluster(&mut findings, connection, address).await?;
        }
        EngineConfig::Embedded(_) => {
            let text = "none given: --scheduler HOST:PORT checks a running one";
            findings.say(CheckStatus::Fine, "cluster", text).await?;
            match Engine::open(connection).await {
                Ok(engine) => {
                    let outcome = exchange(&engine.session).await;
                    findings.check("embedded", outcome).await?;
                    engine.close().await;
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    findings.say(CheckStatus::Wrong, "embedded", &text).await?;
                }
            }
        }
    }
    Ok(if findings.failed == 0 {
        Ended::Done
    } else {
        Ended::Failed
    })
}

async fn cluster(
    findings: &mut Findings,
    connection: &Connection,
    address: &str,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let session = Session::connect(SessionConfig {
        otlp: None,
        ..connection.session(address)
    });
    let session = match session.await {
        Ok(session) => session,
        Err(error) => {
            return findings
                .say(CheckStatus::Wrong, "scheduler", &error.to_string())
                .await;
        }
    };
    let tls = connection.tls.as_ref();
    let over = if tls.is_some() { " over TLS" } else { "" };
    let text = format!(
        "{address}, connected{over} in {:?}",
        rounded(started.elapsed())
    );
    findings.say(CheckStatus::Fine, "scheduler", &text).await?;
    let credential = &connection.credential;
    let scheduler = SchedulerAddress::open(address, tls, credential)?;
    let executors: Vec<Executor> = match SystemTables::of(&scheduler).rows(Scope::All).await {
        Ok(executors) => executors,
        Err(error) => {
            return findings
                .say(CheckStatus::Wrong, "executors", &error.to_string())
                .await;
        }
    };
    if executors.is_empty() {
        let text = "none is registered: start volley-executor with --scheduler and this address";
        return findings.say(CheckStatus::Wrong, "executors", text).await;
    }
    let tls = tls.cloned().map(Tls::open).transpose()?;
    for executor in &executors {
        let reached = reach(executor, tls.as_ref()).await;
        findings.check("executor", reached).await?;
    }
    if network(findings, &scheduler).await? {
        let outcome = exchange(&session).await;
        return findings.check("exchange", outcome).await;
    }
    // The engine would retry the query again and again.
    let text = "no query was tried: the cluster's processes cannot reach each other";
    findings.say(CheckStatus::Careful, "exchange", text).await
}

/// Prints the links between the cluster's processes. Returns whether all of them work.
async fn network(findings: &mut Findings, scheduler: &SchedulerAddress) -> anyhow::Result<bool> {
    let links = match SystemTables::of(scheduler).links().await {
        Ok(links) => links,
        Err(error) => {
            let text = error.to_string();
            findings.say(CheckStatus::Wrong, "network", &text).await?;
            return Ok(false);
        }
    };
    print_batch(Format::Table, &rows(&links)?).await?;
    let faults: Vec<_> = links.iter().flat_map(faults).collect();
    for text in &faults {
        findings.say(CheckStatus::Wrong, "network", text).await?;
    }
    if faults.is_empty() {
        let text = summary(&links);
        findings.say(CheckStatus::Fine, "network", &text).await?;
    }
    Ok(faults.is_empty())
}

/// Checks that an executor's shuffle port can be reached from here, as result rows require.
async fn reach(executor: &Executor, tls: Option<&Tls>) -> Result<(CheckStatus, String), String> {
    let Executor {
        executor_id,
        host,
        port,
        role,
        slots,
        free_slots,
        device,
        version,
        disk_free_bytes,
        ..
    } = executor;
    let name = format!("{executor_id} at {host}:{port}");
    let started = Instant::now();
    let Ok(number) = u16::try_from(*port) else {
        return Err(format!(
            "{name} is not an address: ports are less than 65536"
        ));
    };
    match probe::reach(host, number, tls).await {
        Ok(()) => {
            let took = rounded(started.elapsed());
            let text = format!(
                "{name}: reached in {took:?}; version {version}, role {role}, {free_slots} of {slots} \
                 slots free, trains on {device}"
            );
            let (mut status, mut text) = (CheckStatus::Fine, text);
            if let Some(free) = disk_free_bytes {
                let size = bytesize::ByteSize(*free).display().iec();
                text += &format!(", {size} free in its work folder");
                if *free < LITTLE {
                    status = CheckStatus::Careful;
                }
            }
            let own = env!("CARGO_PKG_VERSION");
            if version != own {
                text += &format!("; this volley is {own}");
                status = CheckStatus::Careful;
            }
            Ok((status, text))
        }
        Err(fault) if fault.kind == FaultKind::Silent => Err(format!(
            "{name} cannot be reached from here: {}",
            fault.text
        )),
        Err(fault) if fault.kind == FaultKind::Stranger => Err(format!(
            "{name} is not the process that answers there: {}",
            fault.text
        )),
        Err(Fault { text, .. }) => Err(format!(
            "{name} cannot be reached from here ({text}): results cannot be read; give it a host name \
             that clients can reach (--advertise-host)"
        )),
    }
}

/// Sends numbers through an exchange between the executors.
async fn exchange(session: &Session) -> Result<(CheckStatus, String), String> {
    let values: Vec<_> = (0..BASE).map(|value| format!("({value})")).collect();
    let digits = format!("(VALUES {}) AS", values.join(", "));
    let sql = format!(
        "SELECT count(*) FROM (SELECT DISTINCT a.v * {BASE} * {BASE} + b.v * {BASE} + c.v \
         FROM {digits} a(v) CROSS JOIN {digits} b(v) CROSS JOIN {digits} c(v))"
    );
    let started = Instant::now();
    let rows = async {
        session
            .sql(&sql)
            .await?
            .collect()
            .await
            .map_err(volley::Error::from)
    };
    rows.await
        .map_err(|error| format!("a query with an exchange failed: {error}"))?;
    let seconds = started.elapsed().as_secs_f64();
    let megabytes = (BASE.pow(3) * 8) as f64 / 1e6;
    Ok((
        CheckStatus::Fine,
        format!(
            "{megabytes:.0} MB through a query's exchange in {seconds:.2} s: {:.0} MB/s, planning and \
             hashing included",
            megabytes / seconds
        ),
    ))
}

fn ports() -> Result<(CheckStatus, String), String> {
    let listener = TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    match address {
        Ok(_) => Ok((
            CheckStatus::Fine,
            "can listen on a free port on loopback".to_owned(),
        )),
        Err(error) => Err(format!("cannot listen on any port on loopback: {error}")),
    }
}

fn disk(dir: &Path) -> Result<(CheckStatus, String), String> {
    let stat = statvfs(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    let status = if free < LITTLE {
        CheckStatus::Careful
    } else {
        CheckStatus::Fine
    };
    let free = bytesize::ByteSize(free).display().iec();
    Ok((status, format!("{free} free in {}", dir.display())))
}

async fn store(connection: &Connection) -> Result<(CheckStatus, String), String> {
    let url = &connection.store;
    let models = async {
        let store = ModelStore::open(url)?;
        store.check_writable().await?;
        store.list().await
    };
    match models.await {
        Ok(models) => Ok((
            CheckStatus::Fine,
            match models.len() {
                1 => format!("{url} can be written to and has 1 model"),
                models => format!("{url} can be written to and has {models} models"),
            },
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Rounds up to a tenth of a millisecond.
fn rounded(duration: Duration) -> Duration {
    Duration::from_micros(100 * (duration.as_micros() as u64).div_ceil(100))
}
