//! Command-line arguments as typed: flags, subcommands, environment variables, and their help.
//!
//! This module decides nothing; [`Config`](super::Config) is the meaning of the arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, value_parser};
use volley_proto::ModelName;
use volley_proto::access::{Role, Token};
use volley_proto::spec::Device;
use volley_proto::traces::OtlpEndpoint;
use volley_rossmann::FULL_SIZE;

use super::format::Format;

const EXAMPLES: &str = "\
Examples:
  volley                                     a prompt, with a cluster inside this process
  volley -c 'SELECT 1' -c 'SHOW MODELS'      run statements and exit
  volley -f train.sql --define data=/data    run a file, with ${data} replaced
  volley --scheduler host:50050 < train.sql  run a script on a running cluster
  volley --format csv -c 'SELECT …' > x.csv  rows only, for other programs
  volley cluster up --executors 4            a cluster of processes on this machine
  volley --trace -f train.sql                train, and trace the ranks
  volley jobs attach ID                      follow a running job, and print its rows at the end
  volley demo rossmann                       from seven tables to submission.csv
  volley doctor --scheduler host:50050       check a cluster for problems

Defaults of options: config.toml in ~/.config/volley, or the file in VOLLEY_CONFIG, has lines such as
format = \"box\"; an environment variable wins over it, and an option over both.
Exit code: 0, or 1 after an error, 2 for a mistake in the arguments, 130 after Ctrl-C.
Logging: VOLLEY_LOG (or RUST_LOG), for example VOLLEY_LOG=volley=debug; by default, warnings of this program, and nothing
of a cluster inside it, which VOLLEY_LOG=warn adds.";

/// A distributed dataframe engine with an integrated trainer
///
/// Runs SQL on a Volley cluster: DataFusion's SQL, and CREATE MODEL, ML.PREDICT, ML.EVALUATE and
/// SHOW MODELS. Without -c or -f, a terminal gets a prompt and anything else is read as a script.
#[derive(Debug, Parser)]
#[command(
    name = "volley",
    version,
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) query: QueryArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Generate example data
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Start, show or stop a cluster of processes on this machine
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List, cancel, inspect or follow the jobs of a cluster
    Jobs(JobsArgs),
    /// List or drain the executors of a cluster
    Executors(ExecutorsArgs),
    /// Run a whole example, from tables to predictions
    #[command(subcommand)]
    Demo(DemoCommand),
    /// Write a report of a model, its training and its quality as one HTML file
    #[command(after_help = REPORT)]
    Report(ReportArgs),
    /// Check, clean up or copy a model store
    Store(StoreArgs),
    /// Check this machine and a cluster: ports, disk, store, versions, devices, exchange
    Doctor(DoctorArgs),
    /// Print a script that completes this command's arguments in a shell
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `volley man | man -l -`
    Man,
    /// Print the help of a command, the syntax of a statement, or the entry of an option of CREATE MODEL
    #[command(after_help = HELP)]
    Help {
        /// A command, a statement, a function or an option; `options` lists the options
        #[arg(value_name = "TOPIC")]
        topic: Vec<String>,
    },
}

const COMPLETIONS: &str = "\
Install it:
  bash  volley completions bash > ~/.local/share/bash-completion/completions/volley
  zsh   volley completions zsh > \"${fpath[1]}/_volley\"
  fish  volley completions fish > ~/.config/fish/completions/volley.fish";

const HELP: &str = "\
Examples:
  volley help jobs              the options of volley jobs
  volley help create model      the syntax of CREATE MODEL
  volley help options           the options of CREATE MODEL
  volley help hidden_units      one of them";

const REPORT: &str = "\
Example, with errors on validation rows by store and month:
  volley report rossmann -D data=/data -f tables.sql -f features.sql \\
         --rows \"SELECT * FROM training_set WHERE split = 'EVAL'\" --by Store --by Month --publish";

#[derive(Debug, clap::Args)]
pub(super) struct StoreArgs {
    #[command(subcommand)]
    pub(super) command: StoreCommand,
    /// The store: a directory, or a URL
    #[arg(
        long,
        value_name = "DIR|URL",
        default_value = "volley-store",
        env = "VOLLEY_STORE",
        global = true
    )]
    pub(super) store: String,
    /// Only this model
    #[arg(long, value_name = "NAME", global = true)]
    pub(super) model: Option<ModelName>,
    /// Output format of rows
    #[arg(
        long,
        value_enum,
        default_value_t,
        env = "VOLLEY_FORMAT",
        global = true
    )]
    pub(super) format: Format,
}

#[derive(Debug, Subcommand)]
pub(super) enum StoreCommand {
    /// List the contents of the store and verify all files against their hashes; exit code 1 if something is damaged
    Check,
    /// Remove checkpoints and files of runs that ended long ago, and superseded versions
    Gc {
        /// Age from which the checkpoints and files of an unpublished run count as abandoned
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = duration)]
        older_than: Duration,
        /// Keep this many versions of each model, the newest [default: all]
        #[arg(long, value_name = "N", value_parser = positive)]
        keep_versions: Option<usize>,
        /// List what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        cluster: StoreClusterArgs,
    },
    /// Copy published versions to another store, except those that it has already
    Backup {
        /// The other store: a directory, or a URL
        #[arg(value_name = "DIR|URL")]
        to: String,
    },
    /// Copy published versions from another store, except those that this store has already; replace damaged files of
    /// these
    Restore {
        /// The other store: a directory, or a URL
        #[arg(value_name = "DIR|URL")]
        from: String,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct StoreClusterArgs {
    /// Ask this scheduler, or several separated by commas, about the runs: those that were cancelled are removed whatever their
    /// age, and those that run are kept
    #[arg(long, value_name = "HOST:PORT[,…]")]
    pub(super) scheduler: Option<String>,
    #[command(flatten, next_help_heading = "Cluster")]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// The model
    #[arg(value_name = "MODEL")]
    pub(super) model: String,
    /// Its version [default: the newest]
    #[arg(long = "model-version", value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(super) version: Option<u32>,
    /// The file to write [default: MODEL.html]
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Keep the report beside the model as well, where the scheduler's web page links to it
    #[arg(long)]
    pub(super) publish: bool,
    /// A query of labelled rows to evaluate the model on: adds metrics and charts of the predictions' fit
    #[arg(long, value_name = "SQL")]
    pub(super) rows: Option<String>,
    /// A column of these rows to break their errors down by; may be given several times
    #[arg(long, value_name = "COLUMN")]
    pub(super) by: Vec<String>,
    /// Run the statements of a file first, such as those that make tables and views
    #[arg(short, long = "file", value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Replace ${NAME} by VALUE in them
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE", value_parser = pair)]
    pub(super) defines: Vec<(String, String)>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) session: SessionArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) session: SessionArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct JobsArgs {
    #[command(subcommand)]
    pub(super) action: Option<JobsAction>,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExecutorsArgs {
    #[command(subcommand)]
    pub(super) command: Option<ExecutorsCommand>,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
}

/// Options of commands that ask a running cluster, before or after their subcommand.
#[derive(Debug, clap::Args)]
#[command(
    mut_args(|arg| arg.global(true)),
    mut_arg("tls_cert", |arg| arg.help("Client certificate, PEM"))
)]
pub(super) struct RemoteArgs {
    /// Address of the running cluster's scheduler, or of several, separated by commas; a cluster inside a process ends
    /// with the process
    #[arg(long, value_name = "HOST:PORT[,…]", env = "VOLLEY_SCHEDULER")]
    pub(super) scheduler: Option<String>,
    /// Time limit for the scheduler's answer
    #[arg(
        long, value_name = "TIME", default_value = "5s", env = "VOLLEY_CONNECT_TIMEOUT",
        value_parser = duration
    )]
    pub(super) connect_timeout: Duration,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    /// Output format of rows
    #[arg(long, value_enum, default_value_t, env = "VOLLEY_FORMAT")]
    pub(super) format: Format,
    /// Print rows only: no notes or progress
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

/// Action on the jobs of a cluster.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub(super) enum JobsAction {
    /// List the jobs that the scheduler knows, newest first [default]
    List,
    /// Cancel a job
    Cancel {
        /// The job, as `volley jobs` lists it
        id: String,
    },
    /// Show a job's events and its error
    Logs {
        /// The job, as `volley jobs` lists it
        id: String,
    },
    /// Follow a job to its end and print its rows; Ctrl-C detaches and leaves it running
    Attach {
        /// The job, as `volley jobs` lists it
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ExecutorsCommand {
    /// List the executors of the cluster [default]
    List,
    /// Drain executors: they take no new tasks, and leave once their data is not needed; waits until they have left
    Drain {
        /// The executors, as `volley executors` lists them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct QueryArgs {
    /// Run SQL; may be given several times, also mixed with -f, and runs in the order typed
    // SQL may begin with a comment.
    #[arg(
        short = 'c',
        long = "command",
        value_name = "SQL",
        allow_hyphen_values = true,
        value_parser = sql
    )]
    pub(super) commands: Vec<String>,
    /// Run the statements of a file; `-` is standard input
    #[arg(short, long = "file", value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Replace ${NAME} by VALUE in everything that is run; $${ stands for ${
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE", value_parser = pair)]
    pub(super) defines: Vec<(String, String)>,
    /// Output format of rows
    #[arg(long, value_enum, default_value_t, env = "VOLLEY_FORMAT")]
    pub(super) format: Format,
    /// Print rows only: no messages, row counts or progress
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Leave the CREATE MODEL at the end running on the cluster: print the job id and exit
    #[arg(long)]
    pub(super) detach: bool,
    /// Write a trace of training's ranks beside the model, for ui.perfetto.dev
    #[arg(long)]
    pub(super) trace: bool,
    /// Print how long each statement took (always done at the prompt)
    #[arg(long)]
    pub(super) timing: bool,
    /// The prompt's history [default: history in the state directory, ~/.local/state/volley]
    #[arg(long, value_name = "FILE", env = "VOLLEY_HISTORY")]
    pub(super) history: Option<PathBuf>,
    /// Statements and commands that the prompt runs first [default: ~/.volleyrc, if there is one]
    #[arg(long, value_name = "FILE", env = "VOLLEY_RC")]
    pub(super) rc: Option<PathBuf>,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
    #[command(flatten)]
    pub(super) session: SessionArgs,
}

/// Token of the caller.
#[derive(Debug, clap::Args)]
pub(super) struct TokenArgs {
    /// The token for the scheduler; the same user's scheduler on this host needs none
    #[arg(
        long,
        value_name = "TOKEN",
        env = "VOLLEY_TOKEN",
        hide_env_values = true
    )]
    pub(super) token: Option<Token>,
    /// A file with that token
    #[arg(long, value_name = "FILE", env = "VOLLEY_TOKEN_FILE")]
    pub(super) token_file: Option<PathBuf>,
}

/// Cluster that runs the plans.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct EngineArgs {
    /// Use a running cluster instead of one inside this process [default: the cluster of volley cluster up, if it runs]
    #[arg(long, value_name = "HOST:PORT", env = "VOLLEY_SCHEDULER")]
    pub(super) scheduler: Option<String>,
    /// Executors inside this process; training has at most one rank on each [default: 2]
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "scheduler")]
    pub(super) executors: Option<usize>,
    /// Tasks that one executor runs at once [default: this machine's cores, divided among the executors]
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "scheduler")]
    pub(super) vcores: Option<usize>,
    /// Training device of executors inside this process: auto, cpu, cuda, cuda:N, wgpu or wgpu:N [default: auto]
    #[arg(long, conflicts_with = "scheduler")]
    pub(super) device: Option<Device>,
    /// Time limit for the scheduler's answer
    #[arg(
        long, value_name = "TIME", default_value = "5s", env = "VOLLEY_CONNECT_TIMEOUT",
        value_parser = duration
    )]
    pub(super) connect_timeout: Duration,
    /// Collector to send traces of jobs to, by OTLP over gRPC, such as http://collector:4317; a running cluster's processes
    /// have this option too [default: none]
    #[arg(long, value_name = "URL", env = "VOLLEY_OTLP_ENDPOINT")]
    pub(super) otlp_endpoint: Option<OtlpEndpoint>,
    #[command(flatten)]
    pub(super) token: TokenArgs,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

/// TLS options of the connection to a running cluster.
#[derive(Debug, Default, clap::Args)]
pub(super) struct TlsArgs {
    /// Certificates of the cluster's authority, PEM; enables TLS
    #[arg(long, value_name = "FILE", env = "VOLLEY_TLS_CA")]
    pub(super) tls_ca: Option<PathBuf>,
    /// Client certificate, PEM; with cluster up, certificate of the scheduler and the executors
    #[arg(long, value_name = "FILE", env = "VOLLEY_TLS_CERT")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", env = "VOLLEY_TLS_KEY")]
    pub(super) tls_key: Option<PathBuf>,
}

/// Initial settings of a session.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Session")]
pub(super) struct SessionArgs {
    /// Model store: a directory, or a URL, that the executors can reach too
    #[arg(
        long,
        value_name = "DIR|URL",
        default_value = "volley-store",
        env = "VOLLEY_STORE"
    )]
    pub(super) store: String,
    /// Set an option of DataFusion, Ballista or Volley, as SQL's SET does
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) settings: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub(super) enum GenerateCommand {
    /// The seven tables of the Rossmann store sales, in their real shape
    Rossmann(GenerateRossmannArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct GenerateRossmannArgs {
    /// The directory to write to
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Number of stores; the real tables have 1115
    #[arg(long, value_name = "N", default_value_t = FULL_SIZE, value_parser = value_parser!(u32).range(1..))]
    pub(super) stores: u32,
    /// Seed; the same seed makes the same files
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(super) seed: u64,
}

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Start a scheduler and executors, which keep running when this command ends
    Up(ClusterUpArgs),
    /// Show the cluster's processes; exit code 1 when one is dead
    Status(ClusterDirArgs),
    /// Stop the cluster's processes
    Down(ClusterDirArgs),
    /// Make an authority and certificates for trying TLS
    #[command(after_help = CERTS)]
    Certs(ClusterCertsArgs),
    /// Make a token for a user, or show the one that a scheduler on this host has made for you
    #[command(after_help = TOKENS)]
    Token(ClusterTokenArgs),
}

const CERTS: &str = "\
Writes ca.pem and ca.key, HOST.pem and HOST.key for each host, client.pem and client.key; keys are readable by their
owner alone. Certificates are valid for a year. Every host's certificate is valid for localhost too.";

#[derive(Debug, clap::Args)]
pub(super) struct ClusterCertsArgs {
    /// The directory to write to; existing files are not replaced
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Names or addresses of hosts, as clients dial them; *.NAME.NAME stands for all hosts of that domain
    #[arg(
        long,
        value_name = "HOST,…",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    pub(super) hosts: Vec<String>,
}

const TOKENS: &str = "\
Example, for a scheduler that is started with --tokens tokens:
  volley cluster token --name alice --role run >> tokens

The line for that file goes to standard output, and the token to standard error, or to the file of --out. Otherwise it is
stored nowhere, so it is shown only this once. Roles: read (queries, and system tables), run (also statements that write,
and training), administer (also everybody's jobs), executor (volley-executor --join-token FILE).";

#[derive(Debug, clap::Args)]
pub(super) struct ClusterTokenArgs {
    /// Name of its owner
    #[arg(long, value_name = "NAME", requires = "role")]
    pub(super) name: Option<String>,
    /// Role of its owner: read, run, administer or executor
    #[arg(long, value_name = "ROLE", requires = "name")]
    pub(super) role: Option<Role>,
    /// Write the token to this new file, which only you can read, instead of showing it
    #[arg(long, value_name = "FILE", requires = "name")]
    pub(super) out: Option<PathBuf>,
    /// Show the token of the scheduler that you have started there, for the login on its web page [default: the
    /// scheduler of volley cluster up]
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["name", "role", "out"])]
    pub(super) scheduler: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct ClusterUpArgs {
    /// Number of executors to start
    #[arg(long, value_name = "N", default_value = "2", value_parser = positive)]
    pub(super) executors: usize,
    /// Tasks that one executor runs at once [default: this machine's cores, divided among the executors]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) vcores: Option<usize>,
    /// The scheduler's port; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(super) scheduler_port: u16,
    /// Training device of the executors: auto, cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, default_value_t = Device::Auto)]
    pub(super) device: Device,
    /// The executors' program, such as one with layers of your own [default: volley-executor beside this program]
    #[arg(long, value_name = "FILE")]
    pub(super) executor_program: Option<PathBuf>,
    /// Time limit for all to be ready
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(super) timeout: Duration,
    /// Collector that the processes send traces of jobs to, by OTLP over gRPC, such as http://collector:4317 [default: none]
    #[arg(long, value_name = "URL", env = "VOLLEY_OTLP_ENDPOINT")]
    pub(super) otlp_endpoint: Option<OtlpEndpoint>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    #[command(flatten)]
    pub(super) dir: ClusterDirArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ClusterDirArgs {
    /// Directory of the cluster's state, logs and scratch files [default: cluster in the state directory]
    #[arg(long, value_name = "DIR", env = "VOLLEY_CLUSTER_DIR")]
    pub(super) dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum DemoCommand {
    /// Forecast store sales: tables, features, checks, training, evaluation, submission.csv
    Rossmann(Box<DemoRossmannArgs>),
}

#[derive(Debug, clap::Args)]
pub(super) struct DemoRossmannArgs {
    /// The directory of the seven tables; generated if not given
    #[arg(long, value_name = "DIR", conflicts_with = "stores")]
    pub(super) data: Option<PathBuf>,
    /// Stores to generate [default: 100]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(super) stores: Option<u32>,
    /// Seed of the generated tables and of training
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(super) seed: u64,
    /// Passes over the training rows
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive)]
    pub(super) epochs: usize,
    /// Ranks that train [default: one for each executor inside this process, else 2]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) ranks: Option<usize>,
    /// Rows of one rank in one step
    #[arg(long, value_name = "N", default_value = "50", value_parser = positive)]
    pub(super) batch_size: usize,
    /// Predict zero sales for stores that are closed
    #[arg(long)]
    pub(super) closed_as_zero: bool,
    /// Directory for results: generated data, model store, submission.csv
    #[arg(long, value_name = "DIR", default_value = "volley-demo")]
    pub(super) out: PathBuf,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "expected a time, such as 5s or 2min".into())
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number, at least 1".into()),
    }
}

/// Parses SQL, which may begin with a comment but must not be an option.
fn sql(text: &str) -> Result<String, String> {
    match text.starts_with('-') && !text.contains(char::is_whitespace) {
        true => Err("that is an option, not SQL".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_command_may_begin_with_a_comment() {
        let typed = [
            "volley",
            "-c",
            "-- one\nSELECT 1",
            "-c",
            "SELECT 2",
            "--quiet",
        ];
        let args = Args::try_parse_from(typed).unwrap();
        assert_eq!(args.query.commands, ["-- one\nSELECT 1", "SELECT 2"]);
        assert!(args.query.quiet);
        let error = Args::try_parse_from(["volley", "-c", "--quiet"]).unwrap_err();
        assert!(error.to_string().contains("an option, not SQL"), "{error}");
    }

    #[test]
    fn pairs_split_at_the_first_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }

    #[test]
    fn counts_start_at_one() {
        assert_eq!(positive("3"), Ok(3));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
    }
}
