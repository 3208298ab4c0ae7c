//! Command line of an executor binary: flags, log, signals. `volley-executor` runs this without custom layers.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};
use uuid::Uuid;
use volley_proto::access::{AllowedPaths, Credential, TokenHash};
use volley_proto::address::{ListenAddress, PortRange, ip_address, socket_address};
use volley_proto::failure::chain;
use volley_proto::limits::{STACK, memory};
use volley_proto::schedulers::Schedulers;
use volley_proto::scratch::Scratch;
use volley_proto::spec::Device;
use volley_proto::tls::Tls;
use volley_proto::traces::OtlpEndpoint;
use volley_proto::version::Version;
use volley_trainer::custom::CustomLayers;

use crate::{Executor, ExecutorConfig, ExecutorRole, MetricsConfig, Notices, notices, rank_memory};

/// Volley's executor: runs tasks of queries and ranks of training for a scheduler.
///
/// Several may run on one host; each picks free ports and needs a work folder of its own.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Address of the scheduler, or of several, separated by commas, of which one leads and the others stand by
    #[arg(long, env = "VOLLEY_SCHEDULER", value_name = "HOST:PORT[,…]")]
    scheduler: String,
    /// Unique id in the cluster [default: a new one]
    #[arg(long, env = "VOLLEY_EXECUTOR_ID")]
    id: Option<String>,
    /// Address to listen on
    #[arg(long, env = "VOLLEY_EXECUTOR_BIND", default_value = "127.0.0.1", value_parser = ip_address)]
    bind: IpAddr,
    /// Ports to listen on: one for tasks, one for Arrow Flight and one for each rank [default: free ones]
    #[arg(long, env = "VOLLEY_EXECUTOR_PORTS", value_name = "FIRST-LAST")]
    ports: Option<PortRange>,
    /// Host name or address that others reach the executor by [default: the bound address]
    #[arg(long, env = "VOLLEY_EXECUTOR_ADVERTISE_HOST", value_name = "HOST")]
    advertise_host: Option<String>,
    /// Slots: number of partitions processed at once [default: the number of cores]
    #[arg(long, env = "VOLLEY_VCORES", value_parser = clap::value_parser!(u16).range(1..))]
    vcores: Option<u16>,
    /// Folder for shuffle files and sockets [default: a temporary one, removed at exit]
    #[arg(long, env = "VOLLEY_WORK_DIR")]
    work_dir: Option<PathBuf>,
    /// Memory for queries, which spill to the work folder beyond it
    #[arg(long, env = "VOLLEY_MEMORY", default_value = "4GiB", value_parser = memory)]
    memory: ByteSize,
    /// Memory limit of each rank; rows beyond it are kept in files of the work folder, and training whose ranks need
    /// more even so is refused [default: three quarters of the host's, divided by the slots]
    #[arg(long, env = "VOLLEY_RANK_MEMORY", value_parser = memory)]
    rank_memory: Option<ByteSize>,
    /// Space in the work folder for prepared rows: the rows that a training has read and encoded are kept for the next
    /// training on the same rows, as long as there is space; 0 keeps none
    #[arg(long, env = "VOLLEY_PREPARED_SPACE", default_value = "10GiB")]
    prepared_space: ByteSize,
    /// Device of ranks, unless a job sets one: auto, cpu, cuda (one of its GPUs), cuda:N, wgpu or wgpu:N
    #[arg(long, env = "VOLLEY_DEVICE", default_value = "auto")]
    device: Device,
    /// Time limit for reaching the scheduler at start
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    connect_timeout: Duration,
    /// Time without a response after which the scheduler counts as lost
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    scheduler_timeout: Duration,
    /// Time limit for reaching a lost scheduler again; the executor then ends
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    reconnect_timeout: Duration,
    /// Role: any, query (never runs ranks) or train (never holds shuffle data)
    #[arg(long, env = "VOLLEY_ROLE", default_value = "any")]
    role: ExecutorRole,
    /// File with the token with which the executor joins [default: the one that the same user's scheduler on this host
    /// has made]
    #[arg(long, env = "VOLLEY_JOIN_TOKEN_FILE", value_name = "FILE")]
    join_token: Option<PathBuf>,
    /// Listen without TLS on an address that other hosts can reach
    #[arg(long, env = "VOLLEY_INSECURE")]
    insecure: bool,
    /// Folder or URL below which tasks may read and write; may be given several times [default: everywhere]
    #[arg(long = "allow-path", value_name = "PREFIX")]
    allowed_paths: Vec<String>,
    /// Interval of heartbeats to the scheduler
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    heartbeat: Duration,
    /// Time limit for draining after a signal to stop: no new tasks start, running ones finish, and others read the
    /// data that is here; a second signal stops the executor at once
    #[arg(long, env = "VOLLEY_DRAIN_TIMEOUT", default_value = "25s", value_parser = humantime::parse_duration)]
    drain_timeout: Duration,
    /// Certificates of the cluster's authority, PEM; enables TLS on all connections
    #[arg(long, env = "VOLLEY_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// This process's certificate, for servers and clients, PEM; read again when it is renewed
    #[arg(long, env = "VOLLEY_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, env = "VOLLEY_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Address to answer /metrics, /livez and /readyz on, over HTTP; port 0 picks a free one [default: none]
    #[arg(long, env = "VOLLEY_EXECUTOR_METRICS", value_name = "ADDRESS:PORT", value_parser = socket_address)]
    metrics: Option<SocketAddr>,
    /// Hash of the token that /metrics is read with, as `volley cluster token` prints it; several with commas between them
    /// [default: the token that a scheduler of the same user on this host has made for clients]
    #[arg(
        long = "metrics-token",
        env = "VOLLEY_EXECUTOR_METRICS_TOKEN",
        value_name = "HASH[,…]",
        value_delimiter = ',',
        requires = "metrics"
    )]
    metrics_tokens: Vec<TokenHash>,
    /// Collector to send traces of jobs to, by OTLP over gRPC, such as http://collector:4317 [default: none]
    #[arg(long, env = "VOLLEY_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<OtlpEndpoint>,
    /// Form of the log on standard error: a line of text or a JSON object for each event
    #[arg(long, env = "VOLLEY_LOG_FORMAT", value_parser = ["text", "json"], default_value = "text")]
    log_format: String,
}

/// Runs a complete executor binary: reads the arguments and the environment, and runs an executor with these custom
/// layers until the process is told to end.
///
/// Accepts the same arguments as `volley-executor` and logs to standard error. Call it first in `main`: it may start
/// the process again, with deeper stacks.
pub fn run(layers: CustomLayers) -> ExitCode {
    match start(layers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn start(layers: CustomLayers) -> anyhow::Result<()> {
    let args = Args::parse();
    let filter = EnvFilter::try_from_env("VOLLEY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let (collector, notices) = notices();
    let log = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let log = match args.log_format.as_str() {
        "json" => log.json().flatten_event(true).boxed(),
        _ => log.boxed(),
    };
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .with(collector.with_filter(LevelFilter::WARN))
        .init();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .build()?
        .block_on(serve(args, layers, notices))
}

/// Signals that tell the process to end. It listens from their creation on.
#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn serve(args: Args, layers: CustomLayers, notices: Notices) -> anyhow::Result<()> {
    // The scheduler may be away for as long as the executor starts.
    let mut signals = Signals::listen()?;
    Schedulers::check(&args.scheduler)
        .map_err(|expected| anyhow::anyhow!("--scheduler {}: {expected}", args.scheduler))?;
    let temporary = match args.work_dir {
        Some(_) => None,
        None => Some(Scratch::create("volley-executor-")?),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let vcores = args.vcores.map_or(cores, usize::from);
    let ports = args.ports.unwrap_or(PortRange::FREE);
    // One port for tasks, one for Flight, and one for the rank of each slot.
    let needed = 2 + vcores;
    anyhow::ensure!(
        ports.count().is_none_or(|count| count >= needed),
        "--ports {ports}: expected {needed} ports at least: one for tasks, one for Arrow Flight, and one for a rank \
         in each of {vcores} slots"
    );
    let listen = ListenAddress::new(args.bind, ports, args.advertise_host.as_deref())?;
    let config = ExecutorConfig {
        id: args.id.unwrap_or_else(|| Uuid::now_v7().to_string()),
        scheduler: args.scheduler.into(),
        connect_timeout: args.connect_timeout,
        scheduler_timeout: args.scheduler_timeout,
        reconnect_timeout: args.reconnect_timeout,
        role: args.role,
        listen,
        vcores,
        work_dir: args
            .work_dir
            .or_else(|| temporary.as_ref().map(|dir| dir.path().to_owned()))
            .unwrap_or_default(),
        memory: args.memory,
        rank_memory: args.rank_memory.unwrap_or_else(|| rank_memory(vcores)),
        prepared_space: args.prepared_space,
        device: args.device,
        layers,
        heartbeat: args.heartbeat,
        drain_timeout: args.drain_timeout,
        join_token: Credential::of(None, args.join_token),
        insecure: args.insecure,
        allowed_paths: AllowedPaths::new(&args.allowed_paths)?,
        tls: Tls::member_from_options(args.tls_ca, args.tls_cert, args.tls_key)?,
        metrics: args.metrics.map(|listen| MetricsConfig {
            listen,
            tokens: args.metrics_tokens,
        }),
        otlp: args.otlp_endpoint,
    };
    let version = Version::own();
    tracing::info!(
        version = version.build,
        wire = version.wire,
        executor = config.id,
        scheduler = %config.scheduler,
        role = %config.role,
        listen = %config.listen,
        vcores = config.vcores,
        work_dir = %config.work_dir.display(),
        memory = %config.memory.display().iec(),
        rank_memory = %config.rank_memory.display().iec(),
        prepared_space = %config.prepared_space.display().iec(),
        device = %config.device,
        tls = config.tls.is_some(),
        metrics = config.metrics.as_ref().map(|metrics| metrics.listen.to_string()),
        otlp_endpoint = config.otlp.as_ref().map(OtlpEndpoint::to_string),
        "starting"
    );
    tracing::debug!(?config);
    let executor = tokio::select! {
        started = Executor::start(config.clone()) => started?,
        () = signals.next() => {
            tracing::info!("stopped before it has registered");
            return Ok(());
        }
    };
    let (leave, stop) = (CancellationToken::new(), CancellationToken::new());
    let signals = async {
        for told in [&leave, &stop] {
            signals.next().await;
            told.cancel();
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        ended = executor.run_until(leave.cancelled(), stop.cancelled()) => ended?,
        never = notices.tell(config) => match never {},
        never = signals => match never {},
    }
    tracing::info!("stopped");
    Ok(())
}
