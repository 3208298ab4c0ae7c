//! A scheduler and executors as processes, and the `volley` command against them.

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use volley_proto::access::{Credential, Holder, LocalTokens, Token};

use crate::setup::PORT;
use crate::{Client, ExecutorSetup, Hosts, Process, Setup, Spread, binary, eventually};

/// Timeout of a start: debug builds on a busy machine are slow.
const START: Duration = Duration::from_secs(60);
/// Timeout of a command: none in a test takes longer unless it hangs.
const COMMAND: Duration = Duration::from_secs(300);

/// Name of a folder so long that no socket fits into it.
const LONG: &str = "of-a-name-so-long-that-the-path-of-a-socket-in-it-has-more-bytes-than-the-kernel-takes-for-one-of-them";

/// Cluster on loopback, or over several hosts, with a model store and a folder of its own.
#[derive(Debug)]
pub struct Cluster {
    setup: Setup,
    /// Address at which the test reaches the scheduler.
    address: String,
    /// Address at which executors and clients reach the scheduler.
    dialled: String,
    executors: Vec<Process>,
    /// Scheduler processes; the last one is the current one.
    schedulers: Vec<Process>,
    /// Number of commands started so far.
    clients: AtomicUsize,
    dir: TempDir,
}

/// Output of a command, and its exit code.
#[derive(Debug)]
pub struct Run {
    /// Exit code; `None` if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Run {
    /// Returns the rows that a command printed with `--format json`.
    ///
    /// # Panics
    /// When the command has failed, or has not printed JSON.
    pub fn rows(&self) -> Vec<serde_json::Value> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        let row = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        let lines = self.stdout.lines().filter(|line| !line.is_empty());
        lines.map(row).collect()
    }

    /// Returns the error output of a command that had to fail.
    ///
    /// # Panics
    /// When it has succeeded, or was ended by a signal.
    pub fn error(&self) -> &str {
        assert_eq!(
            self.code,
            Some(1),
            "should fail:\n{}\n{}",
            self.stdout,
            self.stderr
        );
        &self.stderr
    }
}

impl Cluster {
    /// Starts a scheduler and this many executors of one slot each.
    ///
    /// # Panics
    /// When it is not up by the deadline.
    pub fn start(executors: usize) -> Self {
        Self::start_with(Setup {
            executors,
            ..Setup::default()
        })
    }

    /// Starts a scheduler and executors.
    ///
    /// # Panics
    /// When they are not up by the deadline.
    pub fn start_with(setup: Setup) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("volley-test-")
            .tempdir()
            .expect("a folder");
        let bind = match setup.pair {
            true => free_address(),
            false => "127.0.0.1:0".to_owned(),
        };
        let mut schedulers = vec![start_scheduler(&setup, &bind, dir.path(), (0, 0))];
        let mut dialled = eventually("the scheduler's address", START, || {
            std::fs::read_to_string(dir.path().join("address")).ok()
        });
        let address = match &setup.spread {
            None => dialled.clone(),
            Some(spread) => {
                assert_eq!(dialled, spread.scheduler(0));
                format!("{}:{PORT}", spread.hosts.ipv4(Spread::SCHEDULER))
            }
        };
        keep_tokens(&setup, dir.path(), &address);
        if setup.pair {
            let other = match &setup.spread {
                None => free_address(),
                Some(spread) => spread.scheduler(1),
            };
            schedulers.push(start_scheduler(&setup, &other, dir.path(), (1, 1)));
            dialled = format!("{dialled},{other}");
        }
        let executors = setup.executors;
        let mut cluster = Self {
            setup,
            address,
            dialled,
            executors: Vec::new(),
            schedulers,
            clients: AtomicUsize::new(0),
            dir,
        };
        for _ in 0..executors {
            cluster.add_executor();
        }
        cluster.await_executors(executors);
        cluster
    }

    /// Starts one more executor. Returns its number.
    pub fn add_executor(&mut self) -> usize {
        self.add_executor_with(ExecutorSetup::default())
    }

    /// Starts one more executor that differs from the others. Returns its number.
    pub fn add_executor_with(&mut self, setup: ExecutorSetup) -> usize {
        let number = self.executors.len();
        let executor = self.start_executor(number, &setup);
        self.executors.push(executor);
        number
    }

    /// Starts an executor with the id and work folder of an earlier one. Returns the earlier process, which continues
    /// if it has not ended.
    pub fn start_executor_again(&mut self, number: usize) -> Process {
        self.start_executor_again_with(number, ExecutorSetup::default())
    }

    /// Does the same as [`Self::start_executor_again`], with a setup that differs from the others'.
    pub fn start_executor_again_with(&mut self, number: usize, setup: ExecutorSetup) -> Process {
        let executor = self.start_executor(number, &setup);
        std::mem::replace(&mut self.executors[number], executor)
    }

    /// Starts an executor with the id of an earlier one that still has its work folder. Returns the earlier process.
    pub fn start_executor_beside(&mut self, number: usize) -> Process {
        let setup = ExecutorSetup {
            work_dir: Some(self.work_dir(number).join("beside")),
            ..ExecutorSetup::default()
        };
        let executor = self.start_executor(number, &setup);
        std::mem::replace(&mut self.executors[number], executor)
    }

    fn start_executor(&self, number: usize, setup: &ExecutorSetup) -> Process {
        let id = executor_id(number);
        let program = binary(setup.program.as_deref().unwrap_or("volley-executor"));
        let spread = self.setup.spread.as_ref();
        let host = setup.host.unwrap_or_else(|| Spread::host(number));
        let mut executor = match (setup.file_limit, spread) {
            (None, None) => Command::new(program),
            (None, Some(spread)) => {
                let own = [self.work_dir(number)];
                let own = own.each_ref().map(PathBuf::as_path);
                spread.hosts.command(host, &own, &program)
            }
            (Some(kib), _) => {
                // Without the trap, a write beyond the limit would end the process.
                let limited = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
                let mut shell = Command::new("bash");
                shell.args(["-c", &limited]).arg(program);
                shell
            }
        };
        let scheduler = setup.scheduler.as_ref().unwrap_or(&self.dialled);
        let listen = spread.map(|spread| spread.listen(host, ""));
        let join_token = self.dir.path().join(JOIN_TOKEN);
        if join_token.exists() {
            executor.arg("--join-token").arg(join_token);
        }
        executor
            .args(["--scheduler", scheduler, "--id", &id, "--vcores", "1"])
            .arg("--work-dir")
            .arg(
                setup
                    .work_dir
                    .clone()
                    .unwrap_or_else(|| self.work_dir(number)),
            )
            .args(listen.iter().flatten())
            .args(self.setup.tls(host))
            .args(&self.setup.executor_args)
            .args(&setup.args);
        let logs = (0..).map(|start| self.dir.path().join(format!("{id}.{start}.log")));
        executor.envs(self.setup.environment());
        let mut logs = logs.skip_while(|log| log.exists());
        let log = logs.next().expect("there is no end of them");
        Process::start(&mut executor, &log)
    }

    /// Starts the scheduler again, at the same address.
    ///
    /// # Panics
    /// When it does not listen by the deadline.
    pub fn restart_scheduler(&mut self) {
        self.scheduler().kill();
        let number = self.schedulers.len();
        let scheduler = start_scheduler(&self.setup, &self.address, self.dir.path(), (0, number));
        self.schedulers.push(scheduler);
        eventually("the scheduler to listen again", START, || {
            TcpStream::connect(&self.address).ok()
        });
        keep_tokens(&self.setup, self.dir.path(), &self.address);
    }

    /// Returns the processes of a pair of schedulers.
    pub fn schedulers(&mut self) -> &mut [Process] {
        &mut self.schedulers
    }

    /// Waits until one of a pair of schedulers leads, by its number. The test asks it from then on.
    ///
    /// # Panics
    /// When it does not by the deadline.
    pub fn await_leader(&mut self, number: usize) {
        self.address = match &self.setup.spread {
            None => self.scheduler_of_pair(number),
            Some(spread) => {
                let host = spread.hosts.ipv4(Spread::SCHEDULERS[number]);
                format!("{host}:{PORT}")
            }
        };
        eventually("the other scheduler to lead", START, || self.registered());
    }

    /// Starts one of a pair of schedulers again, by its number.
    pub fn start_scheduler_again(&mut self, number: usize) {
        let address = self.scheduler_of_pair(number);
        let log = (2..).find(|log| {
            !self
                .dir
                .path()
                .join(format!("scheduler-{log}.log"))
                .exists()
        });
        let log = log.expect("there is no end of them");
        let dir = self.dir.path();
        self.schedulers[number] = start_scheduler(&self.setup, &address, dir, (number, log));
    }

    /// Returns the address at which executors and clients reach one of a pair of schedulers.
    fn scheduler_of_pair(&self, number: usize) -> String {
        let mut addresses = self.dialled.split(',');
        addresses.nth(number).expect("a pair").to_owned()
    }

    /// Returns the folder of the record of jobs.
    pub fn record(&self) -> PathBuf {
        self.dir.path().join(RECORD)
    }

    /// Waits until this many executors are registered.
    ///
    /// # Panics
    /// When they are not by the deadline.
    pub fn await_executors(&self, count: usize) {
        eventually(&format!("{count} executors to register"), START, || {
            (self.registered()?.len() == count).then_some(())
        });
    }

    /// Returns the authority's file, if TLS is spoken.
    pub fn ca(&self) -> Option<PathBuf> {
        self.setup.certs.as_ref().map(|certs| certs.join("ca.pem"))
    }

    /// Returns the `host:port` at which the test reaches the scheduler.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the hosts that the cluster is spread over.
    ///
    /// # Panics
    /// When the cluster is on loopback.
    pub fn hosts(&self) -> &Hosts {
        let spread = self.setup.spread.as_ref();
        &spread.expect("a cluster over hosts").hosts
    }

    /// Returns the source of the test's own token.
    pub fn credential(&self) -> Credential {
        let file = self.dir.path().join(TOKEN);
        Credential::of(self.setup.token.clone(), file.exists().then_some(file))
    }

    /// Returns the test's own token, if there is one.
    pub fn token(&self) -> Option<Token> {
        self.credential()
            .token(&self.address, Holder::Client)
            .ok()?
    }

    /// Returns a folder of the test's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the folder of the model store.
    pub fn store(&self) -> PathBuf {
        match &self.setup.remote_store {
            Some(remote) => remote.dir.clone(),
            None => self.dir.path().join("store"),
        }
    }

    /// Returns the model store as commands name it.
    fn store_arg(&self) -> OsString {
        match &self.setup.remote_store {
            Some(remote) => remote.url.clone().into(),
            None => self.store().into(),
        }
    }

    /// Returns the work folder of an executor.
    pub fn work_dir(&self, executor: usize) -> PathBuf {
        let long = if self.setup.long_names { LONG } else { "" };
        self.dir.path().join(long).join(executor_id(executor))
    }

    /// Returns the processes of all executors, by number.
    pub fn executors(&mut self) -> &mut [Process] {
        &mut self.executors
    }

    /// Returns the address at which an executor that was started with `--metrics` answers, from its log.
    ///
    /// # Panics
    /// When it does not say so by the deadline.
    pub fn metrics_address(&self, executor: usize) -> String {
        eventually("the address of the metrics", START, || {
            let log = self.executors[executor].output();
            let line = log.lines().find(|line| line.contains("answers /metrics"))?;
            let (_, address) = line.split_once("address=")?;
            Some(address.trim().to_owned())
        })
    }

    /// Returns the scheduler's process.
    pub fn scheduler(&mut self) -> &mut Process {
        self.schedulers.last_mut().expect("it starts with one")
    }

    /// Returns the `volley` command against this cluster and its store.
    pub fn command(&self) -> Command {
        self.command_via(&self.dialled)
    }

    /// Returns the `volley` command against this cluster's scheduler at another address.
    pub fn command_via(&self, scheduler: &str) -> Command {
        let mut command = self.program();
        command
            .args(["--scheduler", scheduler, "--store"])
            .arg(self.store_arg());
        self.let_in(&mut command);
        if self.setup.always_in_stages {
            command.args(["--set", "volley.single_task_bytes=0"]);
        }
        command.current_dir(self.dir.path());
        command
    }

    /// Gives a command the cluster's token and certificates, and the environment for its model store.
    fn let_in(&self, command: &mut Command) {
        command.args(self.setup.client_tls());
        self.give_token(command);
    }

    /// Gives a command the cluster's token, and the environment for its model store.
    fn give_token(&self, command: &mut Command) {
        command.envs(self.setup.environment());
        match self.credential() {
            Credential::Given(token) => command.env("VOLLEY_TOKEN", token.reveal()),
            Credential::File(file) => command.env("VOLLEY_TOKEN_FILE", file),
            Credential::Found => command,
        };
    }

    /// Returns the `volley` command without arguments.
    fn program(&self) -> Command {
        let program = binary("volley");
        match &self.setup.spread {
            None => Command::new(program),
            Some(spread) => spread.hosts.command(Spread::CLIENT, &[], &program),
        }
    }

    /// Starts a command that runs beside the test.
    pub fn spawn(&self, command: &mut Command) -> Client {
        let [stdout, log] = self.client_files();
        Client::start(command, stdout, log)
    }

    /// Starts a command that runs beside the test, which reads its output.
    pub fn spawn_piped(&self, command: &mut Command) -> (Client, ChildStdout) {
        let [_, log] = self.client_files();
        Client::start_piped(command, log)
    }

    fn client_files(&self) -> [PathBuf; 2] {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        ["out", "log"].map(|kind| self.dir.path().join(format!("client-{number}.{kind}")))
    }

    /// Runs `volley` with these arguments to its end.
    pub fn run(&self, args: &[&str]) -> Run {
        self.spawn(self.command().args(args)).wait(COMMAND)
    }

    /// Returns the `volley jobs` command against this cluster.
    pub fn jobs_command(&self) -> Command {
        let mut command = self.program();
        command.args(["jobs", "--scheduler", &self.dialled]);
        self.let_in(&mut command);
        command
    }

    /// Runs `volley jobs` with these arguments to its end.
    pub fn manage_jobs(&self, args: &[&str]) -> Run {
        self.spawn(self.jobs_command().args(args)).wait(COMMAND)
    }

    /// Runs `volley store` with arguments on the cluster's model store.
    pub fn manage_store(&self, args: &[&str]) -> Run {
        let mut command = self.program();
        command.args(["store", "--store"]).arg(self.store_arg());
        command.args(["--format", "json"]).args(args);
        self.give_token(&mut command);
        command.current_dir(self.dir.path());
        self.spawn(&mut command).wait(COMMAND)
    }

    /// Returns the `volley executors` command against this cluster.
    pub fn executors_command(&self) -> Command {
        let mut command = self.program();
        command.args(["executors", "--scheduler", &self.dialled]);
        self.let_in(&mut command);
        command
    }

    /// Runs `volley executors` with these arguments to its end.
    pub fn manage_executors(&self, args: &[&str]) -> Run {
        self.spawn(self.executors_command().args(args))
            .wait(COMMAND)
    }

    /// Runs `volley doctor` to its end.
    pub fn examine(&self) -> Run {
        let mut command = self.program();
        command
            .args(["doctor", "--scheduler", &self.dialled, "--store"])
            .arg(self.store_arg())
            .current_dir(self.dir.path());
        self.let_in(&mut command);
        self.spawn(&mut command).wait(COMMAND)
    }

    /// Runs `volley report` with these arguments to its end.
    pub fn report(&self, args: &[&str]) -> Run {
        let mut command = self.program();
        command
            .args(["report", "--scheduler", &self.dialled, "--store"])
            .arg(self.store_arg())
            .args(args)
            .current_dir(self.dir.path());
        self.let_in(&mut command);
        self.spawn(&mut command).wait(COMMAND)
    }

    /// Runs SQL and returns its rows as JSON.
    ///
    /// # Panics
    /// When it fails.
    pub fn query(&self, sql: &str) -> Vec<serde_json::Value> {
        let run = self.run(&["--format", "json", "--quiet", "-c", sql]);
        assert_eq!(run.code, Some(0), "{sql}\n{}", run.stderr);
        run.rows()
    }

    /// Runs SQL that must fail, and checks that the cluster is alive afterwards. Returns the error output.
    ///
    /// # Panics
    /// When the SQL succeeds, or the cluster no longer answers.
    pub fn fail(&self, sql: &str) -> String {
        let run = self.run(&["--format", "json", "--quiet", "-c", sql]);
        let said = run.error().to_owned();
        assert_eq!(self.query("SELECT 1 AS one")[0]["one"], 1, "after {sql}");
        said
    }
}

/// Files for the tokens that the scheduler has made: through a proxy, nobody finds these by its address.
const TOKEN: &str = "token";
const JOIN_TOKEN: &str = "join-token";
const RECORD: &str = "record";

/// Copies the tokens that a scheduler makes, if it is given none.
fn keep_tokens(setup: &Setup, dir: &Path, address: &str) {
    if !setup.makes_tokens() {
        return;
    }
    let tokens = eventually("the scheduler's tokens", START, || {
        LocalTokens::find(address)
    });
    for (name, token) in [(TOKEN, tokens.client), (JOIN_TOKEN, tokens.executor)] {
        // A client that reads the file meanwhile finds one of the two tokens.
        let partial = dir.join(format!("{name}.partial"));
        std::fs::write(&partial, token.reveal()).expect("a file in the test's folder");
        std::fs::rename(partial, dir.join(name)).expect("a file in the test's folder");
    }
}

/// Returns an address of a port that is free now.
fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.expect("a free port").to_string()
}

/// Returns the id of an executor by its number.
pub fn executor_id(number: usize) -> String {
    format!("executor-{number}")
}

/// Starts a scheduler, by its number in a pair, with the log of this number.
fn start_scheduler(
    setup: &Setup,
    bind: &str,
    dir: &Path,
    (number, log): (usize, usize),
) -> Process {
    let program = binary("volley-scheduler");
    let (mut scheduler, listen) = match &setup.spread {
        None => (
            Command::new(program),
            vec!["--bind".to_owned(), bind.to_owned()],
        ),
        Some(spread) => {
            let host = Spread::SCHEDULERS[number];
            let listen = spread.listen(host, &format!(":{PORT}"));
            (spread.hosts.command(host, &[], &program), listen.to_vec())
        }
    };
    scheduler
        .args(listen)
        .arg("--address-file")
        .arg(dir.join("address"))
        .arg("--record")
        .arg(dir.join(RECORD))
        .args(setup.tls(Spread::SCHEDULERS[number]))
        .args(&setup.scheduler_args)
        .envs(setup.log.map(|filter| ("VOLLEY_LOG", filter)))
        .envs(setup.environment());
    Process::start(&mut scheduler, &dir.join(format!("scheduler-{log}.log")))
}
