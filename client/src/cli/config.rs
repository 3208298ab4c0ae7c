//! Meaning of the arguments: absolute paths, defaults filled in, contradictions refused.
//!
//! A config is made once, from [`Args`] and from the process's surroundings; the code below it reads no flag and no
//! environment variable again.

mod engine;
mod tls;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory};
use url::Url;
use volley::SchedulerAddress;
use volley_engine::settings::TRACE;
use volley_proto::ModelName;
use volley_proto::access::{Credential, Principal, Role};
use volley_proto::schedulers::Schedulers;
use volley_proto::spec::Device;
use volley_proto::store::ModelStore;
use volley_proto::tls::TlsFiles;
use volley_proto::traces::OtlpEndpoint;

use self::engine::credential;
pub(super) use super::args::JobsAction;
use super::args::{
    Args, ClusterCertsArgs, ClusterCommand, ClusterDirArgs, ClusterUpArgs, Command, DemoCommand,
    DemoRossmannArgs, DoctorArgs, EngineArgs, ExecutorsArgs, ExecutorsCommand, GenerateCommand,
    GenerateRossmannArgs, JobsArgs, QueryArgs, RemoteArgs, ReportArgs, SessionArgs, StoreArgs,
    StoreClusterArgs, StoreCommand,
};
use super::cluster::FoundCluster;
use super::format::Format;
use super::progress::Style;

/// Map from the `name` in `${name}` to its value.
pub(super) type Defines = BTreeMap<String, String>;

type Result<T, E = clap::Error> = std::result::Result<T, E>;

/// Complete configuration of a command.
#[derive(Debug)]
pub(crate) enum Config {
    Query(Box<Query>),
    Generate(Generate),
    Cluster(Cluster),
    Certificates(Certificates),
    Jobs(Jobs),
    Executors(Executors),
    Demo(Box<Demo>),
    Report(Box<ModelReport>),
    Store(Store),
    /// Cluster to check.
    Doctor(Box<Connection>),
    /// Description of the command itself, for a shell or the manual.
    Describe(Describe),
}

/// Report on a model to write.
#[derive(Debug)]
pub(crate) struct ModelReport {
    pub(super) model: String,
    pub(super) version: Option<u32>,
    pub(super) out: PathBuf,
    /// True if the report is kept beside the model, too.
    pub(super) publish: bool,
    pub(super) rows: Option<String>,
    pub(super) by: Vec<String>,
    pub(super) sources: Vec<Source>,
    pub(super) defines: Defines,
    pub(super) connection: Connection,
}

/// Configuration of `volley store`.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) store: Url,
    /// Only model, if not all.
    pub(super) model: Option<ModelName>,
    pub(super) format: Format,
    pub(super) action: StoreAction,
}

/// Action on a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreAction {
    Check,
    Collect {
        older_than: Duration,
        keep_versions: Option<usize>,
        dry_run: bool,
        /// Cluster that knows the runs, if one is asked.
        cluster: Option<Box<Remote>>,
    },
    Backup {
        to: Url,
    },
    Restore {
        from: Url,
    },
}

/// Format of the command's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Describe {
    Shell(clap_complete::Shell),
    Manual,
    /// Words of a topic of the help.
    Topic(Vec<String>),
}

/// Surroundings of the process.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// True if standard input is a terminal.
    pub(super) stdin_is_terminal: bool,
    /// True if standard output is a terminal.
    pub(super) stdout_is_terminal: bool,
    /// Command line of the pager that the user prefers; empty for none.
    pub(super) pager: Option<String>,
    /// Cluster that `volley cluster up` has started, if it is alive.
    pub(super) cluster: Option<FoundCluster>,
    /// Home directory of the user.
    pub(super) home: Option<PathBuf>,
    /// Directory for state that is neither data nor cache, by the XDG rules.
    pub(super) state_dir: Option<PathBuf>,
    /// Current directory, the base of relative paths.
    pub(super) directory: PathBuf,
    /// Number of threads that run in parallel.
    pub(super) cores: usize,
}

/// Statements to run, and their options.
#[derive(Debug)]
pub(crate) struct Query {
    pub(super) connection: Connection,
    pub(super) input: Input,
    pub(super) defines: Defines,
    pub(super) output: Output,
    /// True if the script's last statement, a `CREATE MODEL`, is left to the cluster.
    pub(super) detach: bool,
}

/// Session to open.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Connection {
    pub(super) engine: EngineConfig,
    pub(super) store: Url,
    pub(super) settings: Vec<(String, String)>,
    pub(super) timeout: Duration,
    /// TLS files for a running cluster.
    pub(super) tls: Option<TlsFiles>,
    pub(super) credential: Credential,
    /// Collector of traces, if there is one.
    pub(super) otlp: Option<OtlpEndpoint>,
}

/// Cluster that plans run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EngineConfig {
    /// A scheduler and executors inside this process.
    Embedded(Embedded),
    /// A running cluster, by its scheduler's `host:port`.
    Scheduler(String),
    /// A running cluster that nobody named: `volley cluster up` has started it.
    Found(String),
}

/// Cluster inside this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Embedded {
    pub(super) executors: usize,
    /// Task slots of one executor.
    pub(super) vcores: usize,
    pub(super) device: Device,
}

/// Source of the statements.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Statements typed at a terminal.
    Terminal {
        history: Option<PathBuf>,
        /// File of statements and commands to run first.
        rc: Option<PathBuf>,
    },
    /// Scripts, in order.
    Sources(Vec<Source>),
}

/// Source of one script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// Text of a `-c`.
    Command(String),
    /// Path as typed, for messages.
    File(PathBuf),
    Stdin,
}

/// Output options of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    /// Terminal that standard output is.
    pub(super) terminal: Option<Terminal>,
    pub(super) format: Format,
    pub(super) quiet: bool,
    pub(super) timing: bool,
    pub(super) progress: Style,
}

/// Terminal that results are shown on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terminal {
    /// Command line of the pager for more than a screen of text.
    pub(super) pager: Option<String>,
}

/// Tables to generate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generate {
    pub(super) out: PathBuf,
    pub(super) stores: u32,
    pub(super) seed: u64,
}

/// Action on the local cluster in `dir`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) action: ClusterAction,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClusterAction {
    Up(ClusterUp),
    Status,
    Down,
    Token(NewToken),
}

/// Token to make, or to show.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NewToken {
    Make {
        name: String,
        role: Role,
        /// File for the token, instead of standard error.
        out: Option<PathBuf>,
    },
    /// Token that a scheduler has made, by its `host:port`.
    Show {
        scheduler: String,
        /// True if nobody named it.
        is_found: bool,
    },
}

/// Certificates to make.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    pub(super) out: PathBuf,
    pub(super) hosts: Vec<String>,
}

/// A cluster of processes to start.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClusterUp {
    pub(super) executors: usize,
    /// Task slots of one executor.
    pub(super) vcores: usize,
    /// Port of the scheduler; 0 takes a free one.
    pub(super) scheduler_port: u16,
    pub(super) device: Device,
    /// Absolute path of the executors' program; `None` for `volley-executor`.
    pub(super) executor_program: Option<PathBuf>,
    pub(super) timeout: Duration,
    /// TLS files with a certificate.
    pub(super) tls: Option<TlsFiles>,
    /// Collector of traces, if there is one.
    pub(super) otlp: Option<OtlpEndpoint>,
}

/// A running cluster, and how to print what it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Address of the scheduler, `host:port`.
    pub(super) scheduler: String,
    /// True if nobody named the scheduler: `volley cluster up` has started it.
    pub(super) is_found: bool,
    pub(super) tls: Option<TlsFiles>,
    pub(super) credential: Credential,
    pub(super) timeout: Duration,
    pub(super) format: Format,
    pub(super) quiet: bool,
}

/// Action on the jobs of a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Jobs {
    pub(super) remote: Remote,
    pub(super) action: JobsAction,
}

/// Action on the executors of a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Executors {
    pub(super) remote: Remote,
    /// Executors to drain; all are listed if there are none.
    pub(super) drained: Vec<String>,
}

/// Configuration of the Rossmann demo.
#[derive(Debug)]
pub(crate) struct Demo {
    pub(super) data: DemoData,
    pub(super) out: PathBuf,
    pub(super) epochs: usize,
    pub(super) ranks: usize,
    pub(super) batch_size: usize,
    pub(super) seed: u64,
    pub(super) closed_as_zero: bool,
    pub(super) connection: Connection,
}

/// Source of the demo's tables.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DemoData {
    At(PathBuf),
    Generate(Generate),
}

impl Surroundings {
    /// Returns the surroundings of this process.
    pub(crate) fn of_process() -> Self {
        let absolute = |variable: &str| {
            std::env::var_os(variable)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let home = std::env::home_dir();
        let state_home = absolute("XDG_STATE_HOME")
            .or_else(|| home.as_ref().map(|home| home.join(".local/state")));
        Self {
            stdin_is_terminal: std::io::stdin().is_terminal(),
            stdout_is_terminal: std::io::stdout().is_terminal(),
            pager: std::env::var("PAGER").ok(),
            cluster: {
                let dir = std::env::var_os("VOLLEY_CLUSTER_DIR").map(PathBuf::from);
                let state = state_home
                    .as_ref()
                    .map(|state| state.join("volley/cluster"));
                dir.or(state).as_deref().and_then(super::cluster::find)
            },
            home,
            state_dir: state_home.map(|state| state.join("volley")),
            directory: std::env::current_dir().unwrap_or_else(|_| "/".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    fn absolute(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    fn in_state_dir(&self, name: &str, flag: &str) -> Result<PathBuf> {
        let missing = || mistake(format!("no home directory to keep state in: give {flag}"));
        self.state_dir
            .as_ref()
            .map(|state| state.join(name))
            .ok_or_else(missing)
    }

    fn vcores_each(&self, executors: usize) -> usize {
        self.cores.div_ceil(executors)
    }
}

impl Config {
    /// Resolves `args`; `matches` has the same arguments in the order typed.
    ///
    /// # Errors
    /// When the arguments are contradictory or invalid; the error is printed as a usage error.
    pub(crate) fn resolve(args: Args, matches: &ArgMatches, around: &Surroundings) -> Result<Self> {
        match args.command {
            None => Query::resolve(args.query, matches, around)
                .map(Box::new)
                .map(Self::Query),
            Some(Command::Generate(GenerateCommand::Rossmann(args))) => {
                let GenerateRossmannArgs { out, stores, seed } = args;
                Ok(Self::Generate(Generate {
                    out: around.absolute(&out),
                    stores,
                    seed,
                }))
            }
            Some(Command::Jobs(args)) => Jobs::resolve(args, around).map(Self::Jobs),
            Some(Command::Executors(args)) => Executors::resolve(args, around).map(Self::Executors),
            Some(Command::Cluster(ClusterCommand::Certs(args))) => {
                let ClusterCertsArgs { out, hosts } = args;
                let out = around.absolute(&out);
                Ok(Self::Certificates(Certificates { out, hosts }))
            }
            Some(Command::Cluster(command)) => Cluster::resolve(command, around).map(Self::Cluster),
            Some(Command::Demo(DemoCommand::Rossmann(args))) => {
                Demo::resolve(*args, around).map(Box::new).map(Self::Demo)
            }
            Some(Command::Report(args)) => ModelReport::resolve(args, around)
                .map(Box::new)
                .map(Self::Report),
            Some(Command::Store(args)) => Store::resolve(args, around).map(Self::Store),
            Some(Command::Doctor(DoctorArgs { engine, session })) => {
                let connection = Connection::resolve(engine, session, around)?;
                Ok(Self::Doctor(Box::new(connection)))
            }
            Some(Command::Completions { shell }) => Ok(Self::Describe(Describe::Shell(shell))),
            Some(Command::Man) => Ok(Self::Describe(Describe::Manual)),
            Some(Command::Help { topic }) => Ok(Self::Describe(Describe::Topic(topic))),
        }
    }
}

impl Connection {
    /// Returns a note about a cluster that nobody named.
    pub(super) fn note(&self) -> Option<String> {
        match &self.engine {
            EngineConfig::Found(scheduler) => Some(format!(
                "{}; --executors N runs one in this process",
                FoundCluster::note(scheduler)
            )),
            EngineConfig::Embedded(_) | EngineConfig::Scheduler(_) => None,
        }
    }

    fn resolve(engine: EngineArgs, session: SessionArgs, around: &Surroundings) -> Result<Self> {
        let (timeout, otlp) = (engine.connect_timeout, engine.otlp_endpoint.clone());
        let (engine, tls, credential) = EngineConfig::resolve(engine, around)?;
        Ok(Self {
            timeout,
            engine,
            tls,
            credential,
            otlp,
            store: store_url(&session.store, around)?,
            settings: session.settings,
        })
    }
}

impl Query {
    fn resolve(args: QueryArgs, matches: &ArgMatches, around: &Surroundings) -> Result<Self> {
        let sources = sources(&args, matches);
        let input = if !sources.is_empty() {
            Input::Sources(sources)
        } else if around.stdin_is_terminal {
            let history = args.history.map(|path| around.absolute(&path));
            let default = || around.state_dir.as_ref().map(|state| state.join("history"));
            let rc = args.rc.map(|path| around.absolute(&path));
            let default_rc = || {
                let path = around.home.as_ref()?.join(".volleyrc");
                path.exists().then_some(path)
            };
            Input::Terminal {
                history: history.or_else(default),
                rc: rc.or_else(default_rc),
            }
        } else {
            Input::Sources(vec![Source::Stdin])
        };
        let timing = args.timing || matches!(input, Input::Terminal { .. });
        let defines = once_each(args.defines)?;
        let mut connection = Connection::resolve(args.engine, args.session, around)?;
        if args.trace {
            let setting = (TRACE.to_owned(), true.to_string());
            connection.settings.push(setting);
        }
        if args.detach {
            if let EngineConfig::Embedded(_) = connection.engine {
                return Err(mistake(
                    "--detach: expected --scheduler HOST:PORT, a cluster inside this process ends with it",
                ));
            }
            if let Input::Terminal { .. } = input {
                return Err(mistake("--detach: expected the statements in -c or -f"));
            }
        }
        let terminal = around.stdout_is_terminal.then(|| {
            let pager = around.pager.clone().unwrap_or_else(|| "less".to_owned());
            let pages = around.stdin_is_terminal && !pager.trim().is_empty();
            Terminal {
                pager: pages.then_some(pager),
            }
        });
        check_format(args.format, around)?;
        let output = Output {
            terminal,
            format: args.format,
            quiet: args.quiet,
            timing,
            progress: Style::of(args.quiet, args.format == Format::Json),
        };
        Ok(Self {
            connection,
            input,
            defines,
            output,
            detach: args.detach,
        })
    }
}

impl Store {
    fn resolve(args: StoreArgs, around: &Surroundings) -> Result<Self> {
        let StoreArgs {
            command,
            store,
            model,
            format,
        } = args;
        Ok(Self {
            store: store_url(&store, around)?,
            model,
            format,
            action: match command {
                StoreCommand::Check => StoreAction::Check,
                StoreCommand::Gc {
                    older_than,
                    keep_versions,
                    dry_run,
                    cluster,
                } => StoreAction::Collect {
                    older_than,
                    keep_versions,
                    dry_run,
                    cluster: Remote::of_store(cluster, format, around)?.map(Box::new),
                },
                StoreCommand::Backup { to } => StoreAction::Backup {
                    to: store_url(&to, around)?,
                },
                StoreCommand::Restore { from } => StoreAction::Restore {
                    from: store_url(&from, around)?,
                },
            },
        })
    }
}

impl ModelReport {
    fn resolve(args: ReportArgs, around: &Surroundings) -> Result<Self> {
        let out = args
            .out
            .unwrap_or_else(|| format!("{}.html", args.model).into());
        Ok(Self {
            out: around.absolute(&out),
            model: args.model,
            version: args.version,
            publish: args.publish,
            rows: args.rows,
            by: args.by,
            sources: args.files.into_iter().map(Source::File).collect(),
            defines: once_each(args.defines)?,
            connection: Connection::resolve(args.engine, args.session, around)?,
        })
    }
}

/// Refuses a binary format on a terminal.
fn check_format(format: Format, around: &Surroundings) -> Result<()> {
    if !format.is_binary() || !around.stdout_is_terminal {
        return Ok(());
    }
    Err(mistake(format!(
        "--format {}: expected standard output to be a file, such as > rows.{0}; a terminal cannot show it",
        format.name()
    )))
}

/// Collects the variables, and refuses duplicates.
fn once_each(given: Vec<(String, String)>) -> Result<Defines> {
    let mut defines = Defines::new();
    for (name, value) in given {
        if defines.insert(name.clone(), value).is_some() {
            return Err(mistake(format!("--define {name} is given twice")));
        }
    }
    Ok(defines)
}

impl Jobs {
    fn resolve(args: JobsArgs, around: &Surroundings) -> Result<Self> {
        let action = args.action.unwrap_or(JobsAction::List);
        let remote = Remote::resolve("jobs", args.remote, around)?;
        Ok(Self { remote, action })
    }
}

impl Executors {
    fn resolve(args: ExecutorsArgs, around: &Surroundings) -> Result<Self> {
        let drained = match args.command {
            None | Some(ExecutorsCommand::List) => vec![],
            Some(ExecutorsCommand::Drain { ids }) => ids,
        };
        let remote = Remote::resolve("executors", args.remote, around)?;
        Ok(Self { remote, drained })
    }
}

impl Remote {
    fn resolve(command: &str, args: RemoteArgs, around: &Surroundings) -> Result<Self> {
        check_format(args.format, around)?;
        let given = args.tls.resolve(around)?;
        let (scheduler, is_found, tls) = match (args.scheduler, &around.cluster) {
            (Some(scheduler), _) => (checked_address(scheduler)?, false, given),
            (None, Some(found)) => {
                let tls = given.or_else(|| found.tls.clone());
                (found.scheduler.clone(), true, tls)
            }
            (None, None) => return Err(no_cluster(command)),
        };
        Ok(Self {
            scheduler,
            is_found,
            tls,
            credential: credential(args.token, around),
            timeout: args.connect_timeout,
            format: args.format,
            quiet: args.quiet,
        })
    }

    /// Returns the cluster that knows the runs of a store, if there is one.
    fn of_store(
        args: StoreClusterArgs,
        format: Format,
        around: &Surroundings,
    ) -> Result<Option<Self>> {
        let StoreClusterArgs {
            scheduler,
            token,
            tls,
        } = args;
        let Some(scheduler) = scheduler else {
            return Ok(None);
        };
        Ok(Some(Self {
            scheduler: checked_address(scheduler)?,
            is_found: false,
            tls: tls.resolve(around)?,
            credential: credential(token, around),
            timeout: Duration::from_secs(5),
            format,
            quiet: false,
        }))
    }

    /// Returns the scheduler, with its TLS files and credential. Says on standard error which cluster it is if nobody
    /// named it.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub(super) fn open(&self) -> volley::Result<SchedulerAddress> {
        if self.is_found && !self.quiet {
            eprintln!("{}", FoundCluster::note(&self.scheduler));
        }
        SchedulerAddress::open(&self.scheduler, self.tls.as_ref(), &self.credential)
    }
}

/// Checks that a scheduler's address has a port.
fn checked_address(scheduler: String) -> Result<String> {
    match Schedulers::check(&scheduler) {
        Ok(()) => Ok(scheduler),
        Err(expected) => Err(mistake(format!("--scheduler {scheduler}: {expected}"))),
    }
}

/// Returns the `-c`s and `-f`s in the order typed.
fn sources(args: &QueryArgs, matches: &ArgMatches) -> Vec<Source> {
    let positions = |id| matches.indices_of(id).into_iter().flatten();
    let commands = args.commands.iter().cloned().map(Source::Command);
    let files = args.files.iter().map(|path| match path.to_str() {
        Some("-") => Source::Stdin,
        _ => Source::File(path.clone()),
    });
    let mut placed: Vec<_> = positions("commands").zip(commands).collect();
    placed.extend(positions("files").zip(files));
    placed.sort_by_key(|(position, _)| *position);
    placed.into_iter().map(|(_, source)| source).collect()
}

impl Cluster {
    fn resolve(command: ClusterCommand, around: &Surroundings) -> Result<Self> {
        let (ClusterDirArgs { dir }, action) = match command {
            ClusterCommand::Certs(_) => unreachable!("it is no command about one cluster"),
            ClusterCommand::Token(args) => {
                let token = match (args.scheduler, args.name, args.role) {
                    (_, Some(name), Some(role)) => {
                        Principal::check_name(&name)
                            .map_err(|reason| mistake(format!("--name: {reason}")))?;
                        NewToken::Make {
                            name,
                            role,
                            out: args.out.map(|out| around.absolute(&out)),
                        }
                    }
                    (Some(scheduler), ..) => NewToken::Show {
                        scheduler: checked_address(scheduler)?,
                        is_found: false,
                    },
                    _ => match &around.cluster {
                        Some(found) => NewToken::Show {
                            scheduler: found.scheduler.clone(),
                            is_found: true,
                        },
                        None => {
                            return Err(mistake(
                                "cluster token: expected --name and --role, or --scheduler HOST:PORT: no cluster of \
                                 `volley cluster up` runs",
                            ));
                        }
                    },
                };
                (ClusterDirArgs { dir: None }, ClusterAction::Token(token))
            }
            ClusterCommand::Status(dir) => (dir, ClusterAction::Status),
            ClusterCommand::Down(dir) => (dir, ClusterAction::Down),
            ClusterCommand::Up(ClusterUpArgs {
                executors,
                vcores,
                scheduler_port,
                device,
                executor_program,
                timeout,
                otlp_endpoint: otlp,
                tls,
                dir,
            }) => {
                let vcores = vcores.unwrap_or_else(|| around.vcores_each(executors));
                let up = ClusterUp {
                    executors,
                    vcores,
                    scheduler_port,
                    device,
                    executor_program: executor_program.map(|program| around.absolute(&program)),
                    timeout,
                    tls: tls.resolve_for_members(around)?,
                    otlp,
                };
                (dir, ClusterAction::Up(up))
            }
        };
        let dir = match dir {
            Some(dir) => around.absolute(&dir),
            None => around.in_state_dir("cluster", "--dir")?,
        };
        Ok(Self { dir, action })
    }
}

impl Demo {
    fn resolve(args: DemoRossmannArgs, around: &Surroundings) -> Result<Self> {
        let out = around.absolute(&args.out);
        let data = match args.data {
            Some(data) => DemoData::At(around.absolute(&data)),
            None => DemoData::Generate(Generate {
                out: out.join("data"),
                stores: args.stores.unwrap_or(100),
                seed: args.seed,
            }),
        };
        let timeout = args.engine.connect_timeout;
        let otlp = args.engine.otlp_endpoint.clone();
        let (engine, tls, credential) = EngineConfig::resolve(args.engine, around)?;
        let executors = match &engine {
            EngineConfig::Embedded(embedded) => Some(embedded.executors),
            EngineConfig::Scheduler(_) | EngineConfig::Found(_) => None,
        };
        let ranks = args.ranks.or(executors).unwrap_or(2);
        if let Some(executors) = executors.filter(|executors| *executors < ranks) {
            let expected = "a rank needs an executor of its own: raise --executors";
            return Err(mistake(format!(
                "--ranks {ranks} on {executors} executor(s): {expected}"
            )));
        }
        let store = directory_url(&out.join("store"))?;
        Ok(Self {
            data,
            out,
            epochs: args.epochs,
            ranks,
            batch_size: args.batch_size,
            seed: args.seed,
            closed_as_zero: args.closed_as_zero,
            connection: Connection {
                engine,
                store,
                settings: Vec::new(),
                timeout,
                tls,
                credential,
                otlp,
            },
        })
    }
}

/// Returns the store's URL: as typed, or of a directory.
fn store_url(typed: &str, around: &Surroundings) -> Result<Url> {
    if typed.contains("://") {
        Url::parse(typed).map_err(|error| mistake(format!("--store {typed}: {error}")))
    } else {
        directory_url(&around.absolute(Path::new(typed)))
    }
}

fn directory_url(path: &Path) -> Result<Url> {
    ModelStore::directory_url(path).map_err(|error| mistake(error.to_string()))
}

/// Returns the error of a command that asks a cluster when none runs.
fn no_cluster(command: &str) -> clap::Error {
    let mut message = format!(
        "{command}: no cluster is running: \"volley cluster up\" starts one, and --scheduler HOST:PORT (or \
         VOLLEY_SCHEDULER) names another."
    );
    if command == "jobs" {
        message.push_str(
            " A statement in a plain \"volley\" runs inside that program: press Ctrl-C in its terminal to cancel it.",
        );
    }
    // Without the usage, which is right as it was typed.
    clap::Error::raw(ErrorKind::ValueValidation, message + "\n")
}

/// Returns an error about arguments that clap could not detect, printed like clap's own.
fn mistake(message: impl std::fmt::Display) -> clap::Error {
    Args::command().error(ErrorKind::ValueValidation, message)
}

#[cfg(test)]
mod tests;
