//! `volley cluster up`: starts the processes and waits until they are ready; if one fails, it stops them all.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context, bail, ensure};
use tokio::time::{Instant, sleep};
use volley::{Credential, SchedulerAddress, Scope, SystemTables, TlsFiles};
use volley_proto::tables::Executor;
use volley_proto::tls::url;

use super::super::Ended;
use super::super::config::ClusterUp;
use super::super::report::print;
use super::super::signals::Interrupts;
use super::process::{Launch, POLL};
use super::state::{Component, Process, State};

/// Starts the cluster.
///
/// # Errors
/// When a cluster is up already, or a process fails to start; the others are stopped then.
pub(super) async fn run(up: &ClusterUp, dir: &Path) -> anyhow::Result<Ended> {
    if let Some(state) = State::read(dir)? {
        let up = state.processes.iter().any(Process::is_alive);
        ensure!(
            !up,
            "a cluster is up in {}: stop it with `volley cluster down`, or give another --dir",
            dir.display()
        );
        state.remove(dir)?;
    }
    let mut starting = Starting::new(up, dir)?;
    let started = Interrupts::listen()?.stop(starting.start(up)).await;
    match started {
        ControlFlow::Continue(Ok(())) => {
            let state = starting.state;
            print(&state.table(Process::is_alive))?;
            let scheduler = state.scheduler().unwrap_or("?");
            let page = url(scheduler, up.tls.is_some());
            match &up.tls {
                Some(tls) => print(&format!(
                    "\nUse it with `volley`, which finds it, or name it:\n  export VOLLEY_SCHEDULER={scheduler}\n  export VOLLEY_TLS_CA={}\nIt answers to you only. Its \
                     web page, {page}/, asks for a token; \"volley cluster token --scheduler {scheduler}\" prints it.\n",
                    tls.ca.display()
                ))?,
                None => print(&format!(
                    "\nUse it with `volley`, which finds it, or name it: --scheduler {scheduler}\nIt answers to you only. Its \
                     web page, {page}/, asks for a token; \"volley cluster token\" prints it.\n"
                ))?,
            }
            Ok(Ended::Done)
        }
        ControlFlow::Continue(Err(error)) => {
            starting.undo().await;
            Err(error)
        }
        ControlFlow::Break(code) => {
            starting.undo().await;
            Ok(Ended::Interrupted(code))
        }
    }
}

/// Cluster that is being started.
struct Starting<'a> {
    dir: &'a Path,
    programs: PathBuf,
    state: State,
    children: Vec<Child>,
}

impl<'a> Starting<'a> {
    fn new(up: &ClusterUp, dir: &'a Path) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let programs = this
            .parent()
            .context("this program is in no directory")?
            .to_owned();
        if let Some(program) = &up.executor_program {
            ensure!(
                program.is_file(),
                "--executor-program {}: there is no such file",
                program.display()
            );
        }
        for component in [Component::Scheduler, Component::Executor] {
            if component == Component::Executor && up.executor_program.is_some() {
                continue;
            }
            let program = programs.join(component.program());
            ensure!(
                program.is_file(),
                "{} is missing: build all of Volley's programs with `cargo build --workspace`",
                program.display()
            );
        }
        Ok(Self {
            dir,
            programs,
            state: State {
                tls: Some(up.tls.is_some()),
                tls_ca: up.tls.as_ref().map(|tls| tls.ca.clone()),
                ..State::default()
            },
            children: Vec::new(),
        })
    }

    async fn start(&mut self, up: &ClusterUp) -> anyhow::Result<()> {
        let deadline = Instant::now() + up.timeout;
        let address_file = self.dir.join("scheduler.address");
        // A file left behind by a killed cluster would be mistaken for the new one.
        let _ = fs::remove_file(&address_file);
        self.launch(scheduler(up, self.dir, &address_file))?;
        let scheduler = loop {
            // The file appears complete, by a rename.
            if let Ok(address) = fs::read_to_string(&address_file) {
                break address.trim().to_owned();
            }
            self.wait(deadline, "the scheduler did not write its address")
                .await?;
        };
        self.state.processes[0].address = Some(scheduler.clone());
        self.state.write(self.dir)?;
        for index in 0..up.executors {
            self.launch(executor(up, &scheduler, self.dir, index))?;
        }
        let mut unanswered = None;
        let scheduler = SchedulerAddress::open(scheduler, up.tls.as_ref(), &Credential::Found)?;
        let tables = SystemTables::of(&scheduler);
        loop {
            match tables.rows::<Executor>(Scope::All).await {
                Ok(registered) => self.note_addresses(&registered),
                Err(error) => unanswered = Some(error),
            }
            let missing = self
                .state
                .processes
                .iter()
                .find(|process| process.address.is_none());
            let Some(missing) = missing else { break };
            let mut wanted = format!("{} did not register with the scheduler", missing.id);
            if let Some(error) = &unanswered {
                wanted += &format!(" (its list of executors: {error})");
            }
            self.wait(deadline, &wanted).await?;
        }
        self.state.write(self.dir)
    }

    fn launch(&mut self, launch: Launch) -> anyhow::Result<()> {
        let (child, process) = launch.start(&self.programs, self.dir)?;
        self.children.push(child);
        self.state.processes.push(process);
        self.state.write(self.dir)
    }

    fn note_addresses(&mut self, registered: &[Executor]) {
        for Executor {
            executor_id,
            host,
            port,
            ..
        } in registered
        {
            let mut processes = self.state.processes.iter_mut();
            if let Some(process) = processes.find(|p| p.id == *executor_id) {
                process.address = Some(format!("{host}:{port}"));
            }
        }
    }

    /// Waits one poll interval for the first process without an address; `wanted` describes what is missing.
    ///
    /// # Errors
    /// When a process has ended, or the deadline has passed.
    async fn wait(&mut self, deadline: Instant, wanted: &str) -> anyhow::Result<()> {
        for (child, process) in self.children.iter_mut().zip(&self.state.processes) {
            if let Some(status) = child.try_wait().context("cannot watch a process")? {
                bail!("{} ended ({status}); {}", process.id, process.log_tail());
            }
        }
        if Instant::now() >= deadline {
            let late = self
                .state
                .processes
                .iter()
                .find(|process| process.address.is_none());
            let tail = late.map(Process::log_tail).unwrap_or_default();
            bail!("{wanted} in time; {tail}");
        }
        sleep(POLL).await;
        Ok(())
    }

    /// Stops the started processes. Only logs a failure to do so, because the reason for stopping them matters more.
    async fn undo(self) {
        let undone = super::stop(&self.state).await;
        if let Err(error) = undone.and_then(|()| self.state.remove(self.dir)) {
            tracing::warn!("processes that were started may still run: {error:#}");
        }
    }
}

fn scheduler(up: &ClusterUp, dir: &Path, address_file: &Path) -> Launch {
    let bind = format!("127.0.0.1:{}", up.scheduler_port);
    let address_path = address_file.display().to_string();
    let mut arguments = ["--bind", &bind, "--address-file", &address_path]
        .map(str::to_owned)
        .to_vec();
    // A cluster that is started again goes on with its jobs.
    let record = dir.join("record").display().to_string();
    arguments.extend(["--record".to_owned(), record]);
    arguments.extend(shared_options(up));
    Launch {
        component: Component::Scheduler,
        id: "scheduler".into(),
        mark: address_file.to_owned(),
        program: None,
        arguments,
    }
}

fn executor(up: &ClusterUp, scheduler: &str, dir: &Path, index: usize) -> Launch {
    let id = format!("executor-{index}");
    let work_dir = dir.join(&id);
    let options = [
        ("--scheduler", scheduler.to_owned()),
        ("--vcores", up.vcores.to_string()),
        ("--work-dir", work_dir.display().to_string()),
        ("--bind", "127.0.0.1".to_owned()),
        ("--id", id.clone()),
        // All are told to end together, and have less time than `cluster down` waits.
        ("--drain-timeout", "5s".to_owned()),
        ("--device", up.device.to_string()),
    ];
    let arguments = options
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .chain(shared_options(up))
        .collect();
    Launch {
        component: Component::Executor,
        id,
        mark: work_dir,
        program: up.executor_program.clone(),
        arguments,
    }
}

/// Returns the options that all processes have: those of traces and of TLS.
fn shared_options(up: &ClusterUp) -> Vec<String> {
    let mut options = Vec::new();
    if let Some(to) = &up.otlp {
        options.extend(["--otlp-endpoint".to_owned(), to.to_string()]);
    }
    let Some(TlsFiles { ca, identity }) = &up.tls else {
        return options;
    };
    options.extend(["--tls-ca".to_owned(), ca.display().to_string()]);
    if let Some((cert, key)) = identity {
        options.extend(["--tls-cert".to_owned(), cert.display().to_string()]);
        options.extend(["--tls-key".to_owned(), key.display().to_string()]);
    }
    options
}
