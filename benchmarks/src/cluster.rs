//! The measured processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::machine::{peak_memory_mib, processor_millis};

const START: Duration = Duration::from_secs(30);

/// Scheduler and executors; killed when dropped.
pub(crate) struct Cluster {
    address: String,
    processes: Vec<(String, Owned)>,
    dir: PathBuf,
}

/// Result of one run of the `volley` command.
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) seconds: f64,
    pub(crate) peak_mib: f64,
}

impl Ran {
    /// Runs a `volley` command to its end, with its standard output in a file in `dir`.
    pub(crate) fn of(mut volley: Command, args: &[String], dir: &Path) -> anyhow::Result<Self> {
        let output = dir.join("output");
        let started = Instant::now();
        let mut process = volley
            .arg("--quiet")
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .spawn()?;
        let mut peak_mib = 0.0_f64;
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            peak_mib = peak_memory_mib(process.id()).unwrap_or(0.0).max(peak_mib);
            std::thread::sleep(Duration::from_millis(5));
        };
        let seconds = started.elapsed().as_secs_f64();
        ensure!(status.success(), "volley {args:?} failed: {status}");
        Ok(Self {
            stdout: std::fs::read_to_string(output)?,
            seconds,
            peak_mib,
        })
    }
}

/// Composition of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) executors: usize,
    /// Slots of each executor.
    pub(crate) slots: usize,
    /// Additional options of the executors.
    pub(crate) options: &'a [&'a str],
    /// Additional options of the scheduler.
    pub(crate) scheduler_options: &'a [&'a str],
}

impl Layout<'_> {
    /// Returns a layout of executors with one slot each.
    pub(crate) fn of(executors: usize) -> Self {
        Self {
            executors,
            slots: 1,
            options: &[],
            scheduler_options: &[],
        }
    }
}

impl Cluster {
    pub(crate) fn start(dir: &Path, executors: usize) -> anyhow::Result<Self> {
        Self::start_with(dir, Layout::of(executors))
    }

    /// Starts a cluster with a given layout.
    pub(crate) fn start_with(dir: &Path, layout: Layout<'_>) -> anyhow::Result<Self> {
        let Layout {
            executors,
            scheduler_options,
            ..
        } = layout;
        let address_file = dir.join("address");
        let mut cluster = Self {
            address: String::new(),
            processes: Vec::new(),
            dir: dir.to_owned(),
        };
        let mut scheduler = Command::new(binary("volley-scheduler")?);
        scheduler
            .args(["--bind", "127.0.0.1:0", "--address-file"])
            .arg(&address_file)
            .args(scheduler_options);
        cluster.spawn("scheduler", &mut scheduler)?;
        let started = Instant::now();
        cluster.address = loop {
            match std::fs::read_to_string(&address_file) {
                Ok(address) => break address,
                Err(_) if started.elapsed() < START => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error).context("the scheduler does not start"),
            }
        };
        for number in 0..executors {
            cluster.start_executor(number, &layout)?;
        }
        cluster.await_executors(executors)?;
        Ok(cluster)
    }

    /// Starts another executor, and waits until it is registered.
    pub(crate) fn add_executor(
        &mut self,
        number: usize,
        layout: &Layout<'_>,
    ) -> anyhow::Result<()> {
        let registered = self.registered();
        self.start_executor(number, layout)?;
        self.await_executors(registered + 1)
    }

    fn start_executor(&mut self, number: usize, layout: &Layout<'_>) -> anyhow::Result<()> {
        let id = format!("executor-{number}");
        let slots = layout.slots.to_string();
        let mut executor = Command::new(binary("volley-executor")?);
        executor
            .args([
                "--scheduler",
                &self.address,
                "--vcores",
                &slots,
                "--id",
                &id,
                "--work-dir",
            ])
            .arg(self.dir.join(&id))
            .args(layout.options);
        self.spawn(&id, &mut executor)
    }

    /// Waits until the scheduler has logged so many executors.
    fn await_executors(&self, count: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < START {
            if self.registered() == count {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{count} executors did not register within {START:?}")
    }

    /// Returns the number of executors that have registered so far.
    fn registered(&self) -> usize {
        let log = self.log("scheduler");
        log.matches("executor registered").count()
    }

    /// Kills a process.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let mut processes = self.processes.iter_mut();
        let found = processes.find(|(process, _)| process == name);
        let (_, Owned(child)) = found.with_context(|| format!("there is no process {name}"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Runs `volley` against the cluster, with rows printed as lines of JSON.
    pub(crate) fn run(&self, args: &[String]) -> anyhow::Result<Ran> {
        Ran::of(self.client()?, args, &self.dir)
    }

    /// Returns a `volley` command against the cluster, not started yet: it prints rows as lines of JSON and keeps
    /// models in [`store`](Self::store).
    pub(crate) fn client(&self) -> anyhow::Result<Command> {
        let mut client = Command::new(binary("volley")?);
        client
            .args(["--scheduler", &self.address, "--format", "json", "--store"])
            .arg(self.store())
            .stdin(Stdio::null());
        Ok(client)
    }

    /// Returns the scheduler's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the folder of the cluster's models.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Returns each process's peak memory so far, in MiB.
    pub(crate) fn peaks(&self) -> Vec<(String, f64)> {
        let peak =
            |(name, child): &(String, Owned)| Some((name.clone(), peak_memory_mib(child.0.id())?));
        self.processes.iter().filter_map(peak).collect()
    }

    /// Returns the processor time that the scheduler and all executors together have taken so far, in milliseconds.
    pub(crate) fn processor_millis(&self) -> [f64; 2] {
        let mut taken = [0.0; 2];
        for (name, child) in &self.processes {
            let of = usize::from(name != "scheduler");
            taken[of] += processor_millis(child.0.id()).unwrap_or_default();
        }
        taken
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        let log = File::create(self.dir.join(format!("{name}.log")))?;
        let child = command
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        self.processes.push((name.to_owned(), Owned(child)));
        Ok(())
    }

    /// Returns the log of a process: `scheduler`, `executor-0` and so on.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default()
    }
}

/// Process that is killed when this is dropped.
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // The process may already have ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Makes a folder of a benchmark, which is removed when it is dropped.
pub(crate) fn scratch_folder() -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("volley-benchmark-")
        .tempdir()?;
    Ok(folder)
}

/// TLS certificates for processes on loopback.
#[derive(Debug)]
pub(crate) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Creates certificates in a new folder, by `volley cluster certs`.
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        let made = Command::new(binary("volley")?)
            .args(["cluster", "certs", "--hosts", "127.0.0.1", "--out"])
            .arg(dir)
            .stdout(Stdio::null())
            .status()?;
        ensure!(
            made.success(),
            "certificates cannot be made: the error is above"
        );
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Returns the files of the authority's certificate, a process's certificate and its key.
    pub(crate) fn files(&self) -> [PathBuf; 3] {
        ["ca.pem", "127.0.0.1.pem", "127.0.0.1.key"].map(|file| self.dir.join(file))
    }

    /// Returns the TLS options of a process of the cluster.
    pub(crate) fn of_process(&self) -> Vec<String> {
        let options = ["--tls-ca", "--tls-cert", "--tls-key"];
        let given = options.into_iter().zip(self.files());
        given
            .flat_map(|(option, file)| [option.to_owned(), file.display().to_string()])
            .collect()
    }

    /// Returns the TLS options of a client.
    pub(crate) fn of_client(&self) -> Vec<String> {
        let mut options = self.of_process();
        options.truncate(2);
        options
    }
}

/// Returns a `volley` command with embedded scheduler and executor, not started yet: it prints rows as lines of JSON
/// and keeps models in `dir`.
pub(crate) fn embedded(dir: &Path) -> anyhow::Result<Command> {
    let mut volley = Command::new(binary("volley")?);
    volley.args(["--format", "json", "--store"]);
    volley.arg(dir.join("store"));
    Ok(volley)
}

/// Returns the path of a binary of the same build: beside this one, or in the folder that `VOLLEY_BIN` names.
pub(crate) fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let path = match std::env::var_os("VOLLEY_BIN") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => std::env::current_exe()?.with_file_name(name),
    };
    ensure!(
        path.exists(),
        "{} is missing: cargo build --release --workspace",
        path.display()
    );
    Ok(path)
}
