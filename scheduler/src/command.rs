//! Command line of the scheduler: flags, log, signals.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use humantime::format_duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};
use url::Url;
use volley_proto::access::{AllowedPaths, state_folder};
use volley_proto::address::{ListenAddress, socket_address};
use volley_proto::disk::make_private;
use volley_proto::failure::chain;
use volley_proto::limits::{READER_SIGN, STACK};
use volley_proto::store::{ModelStore, log_url};
use volley_proto::tls::Tls;
use volley_proto::traces::OtlpEndpoint;
use volley_proto::version::Version;

use crate::{JwtConfig, Limits, Queue, Scheduler, SchedulerConfig, Tokens};

/// Environment variable that names the queues.
const QUEUES: &str = "VOLLEY_QUEUES";

/// Volley's scheduler: plans jobs, places tasks and gangs, and runs the rendezvous of ranks.
///
/// Executors register with it (`volley-executor --scheduler HOST:PORT`), clients submit to it
/// (`volley --scheduler HOST:PORT`), and the same port serves a web page of jobs and executors
/// (`http://HOST:PORT/`, or `https` with `--tls-ca`).
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, env = "VOLLEY_SCHEDULER_BIND", default_value = "127.0.0.1:50050", value_parser = socket_address)]
    bind: SocketAddr,
    /// Host name or address that executors and clients reach the scheduler by [default: the bound address]
    #[arg(long, env = "VOLLEY_SCHEDULER_ADVERTISE_HOST", value_name = "HOST")]
    advertise_host: Option<String>,
    /// Time without a heartbeat after which an executor counts as lost
    #[arg(long, env = "VOLLEY_EXECUTOR_TIMEOUT", default_value = "10s", value_parser = humantime::parse_duration)]
    executor_timeout: Duration,
    /// Time without a request from a client about its query after which the client counts as lost and the query is
    /// cancelled
    #[arg(long, env = "VOLLEY_CLIENT_TIMEOUT", default_value = "30s", value_parser = humantime::parse_duration)]
    client_timeout: Duration,
    /// Time that rows of a finished job are kept after its client's last request
    #[arg(long, env = "VOLLEY_ROWS_TIMEOUT", default_value = "5min", value_parser = humantime::parse_duration)]
    rows_timeout: Duration,
    /// Time that rows of a finished job are kept for a client that is connected but reads nothing
    #[arg(long, env = "VOLLEY_READER_TIMEOUT", default_value = "1h", value_parser = humantime::parse_duration)]
    reader_timeout: Duration,
    /// A queue, its weight, and the maximum number of its slots that one user's queries hold; may be given several
    /// times [env: VOLLEY_QUEUES, separated by spaces] [default: `default=1` alone]
    #[arg(long = "queue", value_name = "NAME=WEIGHT[,user_slots=N]")]
    queues: Vec<Queue>,
    /// Time after which queries that a waiting gang's reservation starves are promoted ahead of it, as many jobs as
    /// slots
    #[arg(long, env = "VOLLEY_RESERVATION_LIMIT", default_value = "60s", value_parser = humantime::parse_duration)]
    reservation_limit: Duration,
    /// Folder or URL in which jobs are recorded, so that a restarted scheduler continues them; several schedulers may
    /// share one, of which one leads and the others stand by; `none` records nothing [default:
    /// ~/.local/state/volley/records/ADDRESS, for a port other than 0]
    #[arg(long, env = "VOLLEY_RECORD", value_name = "FOLDER|URL|none")]
    record: Option<String>,
    /// File of the users whose requests are accepted: each line has a name, a role and a token's hash, as
    /// `volley cluster token` prints it [default: on loopback, tokens made for the same user]
    #[arg(long, env = "VOLLEY_TOKENS", value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Key set for verifying clients' JSON Web Tokens: a file, or an https URL; requires --jwt-issuer and
    /// --jwt-audience
    #[arg(long, env = "VOLLEY_JWKS", value_name = "FILE|URL")]
    jwks: Option<String>,
    /// Issuer of JSON Web Tokens: the required value of their claim `iss`
    #[arg(long, env = "VOLLEY_JWT_ISSUER", value_name = "ISSUER")]
    jwt_issuer: Option<String>,
    /// Audience of JSON Web Tokens: the required value of their claim `aud`, or one of its list
    #[arg(long, env = "VOLLEY_JWT_AUDIENCE", value_name = "AUDIENCE")]
    jwt_audience: Option<String>,
    /// Claim of JSON Web Tokens with the role: read, run or administer; the highest of a list counts
    #[arg(
        long,
        env = "VOLLEY_JWT_ROLE_CLAIM",
        value_name = "CLAIM",
        default_value = "role"
    )]
    jwt_role_claim: String,
    /// Limit of a role, such as read:query_time=10min or run:gpu_hours=40/30d; NAME is message_bytes, plan_depth, jobs,
    /// memory, query_memory, query_time, result_rows or gpu_hours; may be given several times
    #[arg(long = "limit", value_name = "ROLE:NAME=VALUE")]
    limits: Vec<String>,
    /// Listen without TLS on an address that other hosts can reach; without --tokens, everyone who reaches the
    /// scheduler may do everything
    #[arg(long, env = "VOLLEY_INSECURE")]
    insecure: bool,
    /// Folder or URL below which plans may read and write; may be given several times [default: everywhere]
    #[arg(long = "allow-path", value_name = "PREFIX")]
    allowed_paths: Vec<String>,
    /// Certificates of the cluster's authority, PEM; enables TLS on all connections
    #[arg(long, env = "VOLLEY_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// This process's certificate, for servers and clients, PEM; read again when it is renewed
    #[arg(long, env = "VOLLEY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, env = "VOLLEY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Collector to send traces of jobs to, by OTLP over gRPC, such as http://collector:4317 [default: none]
    #[arg(long, env = "VOLLEY_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<OtlpEndpoint>,
    /// File to write HOST:PORT to once the scheduler listens
    #[arg(long)]
    address_file: Option<PathBuf>,
    /// Form of the log on standard error: a line of text or a JSON object for each event
    #[arg(long, env = "VOLLEY_LOG_FORMAT", value_parser = ["text", "json"], default_value = "text")]
    log_format: String,
}

/// Log filter without `VOLLEY_LOG`. Ballista expects metrics for its own plan of a stage, and complains about each
/// set for Volley's. It also writes a registration as it is in memory, and Volley a line of its own.
const DEFAULT_LOG: &str =
    "info,ballista_scheduler::display=off,ballista_scheduler::scheduler_server::grpc=warn";

/// Runs the scheduler that the command line describes, and returns the process's exit code.
pub fn run() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_from_env("VOLLEY_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let args = Args::parse();
    let log = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let log = match args.log_format.as_str() {
        "json" => log.json().flatten_event(true).boxed(),
        _ => log.boxed(),
    };
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .build()?
        .block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let least = READER_SIGN * 3 / 2;
    anyhow::ensure!(
        args.rows_timeout >= least && args.reader_timeout >= least,
        "--rows-timeout and --reader-timeout: expected at least {}, found {} and {}: readers of rows report \
         every {}",
        format_duration(least),
        format_duration(args.rows_timeout),
        format_duration(args.reader_timeout),
        format_duration(READER_SIGN),
    );
    let config = SchedulerConfig {
        listen: ListenAddress::new(
            args.bind.ip(),
            args.bind.port().into(),
            args.advertise_host.as_deref(),
        )?,
        executor_timeout: args.executor_timeout,
        client_timeout: args.client_timeout,
        rows_timeout: args.rows_timeout,
        reader_timeout: args.reader_timeout,
        queues: match args.queues.is_empty() {
            true => queues_of_environment()?,
            false => args.queues,
        },
        reservation_limit: args.reservation_limit,
        record: record(args.record.as_deref(), args.bind)?,
        tokens: match args.tokens {
            Some(file) => Tokens::File(file),
            None if args.insecure => Tokens::Anybody,
            None => Tokens::Local,
        },
        jwt: JwtConfig::from_options(
            args.jwks.as_deref(),
            args.jwt_issuer,
            args.jwt_audience,
            args.jwt_role_claim,
        )?,
        limits: Limits::new(&args.limits)?,
        insecure: args.insecure,
        allowed_paths: AllowedPaths::new(&args.allowed_paths)?,
        tls: Tls::member_from_options(args.tls_ca, args.tls_cert, args.tls_key)?,
        otlp: args.otlp_endpoint,
    };
    let version = Version::own();
    tracing::info!(
        version = version.build,
        wire = version.wire,
        listen = %config.listen,
        record = config.record.as_ref().map(Url::as_str),
        tokens = config.tokens.name(),
        tls = config.tls.is_some(),
        insecure = config.insecure,
        otlp_endpoint = config.otlp.as_ref().map(OtlpEndpoint::to_string),
        executor_timeout = %format_duration(config.executor_timeout),
        client_timeout = %format_duration(config.client_timeout),
        rows_timeout = %format_duration(config.rows_timeout),
        reader_timeout = %format_duration(config.reader_timeout),
        reservation_limit = %format_duration(config.reservation_limit),
        "starting"
    );
    tracing::debug!(?config);
    let mut terminate = signal(SignalKind::terminate())?;
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    tokio::pin!(told);
    let scheduler = tokio::select! {
        // A scheduler that stands by starts for as long as another one leads.
        started = Scheduler::start(config) => started?,
        () = &mut told => {
            tracing::info!("stopped before it has served");
            return Ok(());
        }
    };
    if let Some(path) = &args.address_file {
        publish(path, scheduler.address())
            .with_context(|| format!("cannot write the address file {}", path.display()))?;
    }
    scheduler.run_until(told).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Returns the URL of the record of jobs; `None` if there is none.
fn record(given: Option<&str>, bind: SocketAddr) -> volley_proto::Result<Option<Url>> {
    match given {
        Some("none") => Ok(None),
        Some(given) => log_url(given).map(Some),
        // Nobody would find it again under another port.
        None if bind.port() == 0 => Ok(None),
        None => {
            let Some(state) = state_folder() else {
                tracing::warn!(
                    "jobs are not recorded: there is no state folder of the user, see --record"
                );
                return Ok(None);
            };
            let name = bind.to_string().replace(':', "_");
            let folder = state.join("records").join(name);
            if let Err(error) = make_private(&folder) {
                let error = chain(&error);
                tracing::warn!(error, "jobs are not recorded: see --record");
                return Ok(None);
            }
            ModelStore::directory_url(&folder).map(Some)
        }
    }
}

/// Parses the queues in the environment variable, separated by white space.
fn queues_of_environment() -> anyhow::Result<Vec<Queue>> {
    let text = std::env::var(QUEUES).unwrap_or_default();
    let queues = text.split_whitespace().map(str::parse);
    let queues: Result<_, volley_proto::Error> = queues.collect();
    queues.with_context(|| format!("environment variable {QUEUES}={text:?}"))
}

/// Writes the file whole or not at all, so that a reader never sees half an address.
fn publish(path: &Path, text: &str) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(partial, path)
}
