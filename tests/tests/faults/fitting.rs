//! Training under way, followed by its client's output, and checked at its end by the model that it published.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use volley_tests::{Client, Cluster, Job, Run, Samples};

use crate::fault::{effort, missed};
use crate::scene::SOON;

/// Number of rows: enough for some tens of steps an epoch.
const ROWS: usize = 1_000;

/// Training job under way.
pub(crate) struct Fit {
    pub(crate) client: Client,
    samples: Samples,
    name: String,
    epochs: usize,
}

/// Setup of training, except for its ranks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) epochs: usize,
    /// Widths of the hidden layers.
    pub(crate) hidden: [usize; 2],
    /// Options of the statement, such as `ranks = 2`.
    pub(crate) options: String,
    /// Arguments of the command.
    pub(crate) args: Vec<String>,
}

/// Sets up training that takes a few seconds, with a name and options such as `ranks = 2`.
pub(crate) fn setup(name: &str, options: &str) -> Setup {
    Setup {
        name: name.to_owned(),
        rows: ROWS,
        epochs: 60 * effort() as usize,
        hidden: [64, 64],
        options: options.to_owned(),
        args: Vec::new(),
    }
}

impl Setup {
    /// Starts the training.
    pub(crate) fn start(self, cluster: &Cluster) -> Fit {
        let samples = Samples::write(cluster.dir(), self.rows);
        let Self {
            name,
            epochs,
            hidden,
            options,
            args,
            ..
        } = self;
        let deadline = match options.contains("collective_timeout") {
            true => "",
            false => ", collective_timeout = '20s'",
        };
        let options = format!(
            "{options}, epochs = {epochs}, batch_size = 16, hidden_units = {hidden:?}, \
             rendezvous_timeout = '20s'{deadline}"
        );
        let sql = format!(
            "{} {}",
            samples.table(),
            samples.create_model(&name, &options)
        );
        let mut command = cluster.command();
        command.args(["--format", "json"]).args(&args);
        let client = cluster.spawn(command.args(["-c", &sql]));
        Fit {
            client,
            samples,
            name,
            epochs,
        }
    }

    /// Sets the number of epochs.
    pub(crate) fn epochs(self, epochs: usize) -> Self {
        Self { epochs, ..self }
    }

    /// Sets the number of rows.
    pub(crate) fn rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Adds an argument of the command.
    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Sets the number of epochs that take at least this many seconds, even if the host does other work now and then.
    ///
    /// Steps of this network take longer to compute than to agree on, so the duration of an epoch does not depend on
    /// the current number of ranks.
    pub(crate) fn lasting(mut self, seconds: f64, cluster: &Cluster) -> Self {
        const TRIED: usize = 10;
        self.hidden = [512, 512];
        let tried = Self {
            name: "tried".to_owned(),
            ..self.clone()
        };
        let (manifest, _) = tried.epochs(TRIED).start(cluster).trained(cluster);
        // The quickest epoch was disturbed least.
        let quickest = history(&manifest)
            .iter()
            .filter_map(|epoch| epoch["seconds"].as_f64())
            .fold(f64::INFINITY, f64::min);
        let epochs = (1.5 * seconds * effort() as f64 / quickest).ceil();
        self.epochs((epochs as usize).clamp(TRIED, 20_000))
    }
}

impl Fit {
    /// Waits for the start of a generation. Returns the executors of its ranks.
    pub(crate) fn await_generation(&mut self, generation: usize) -> Vec<usize> {
        let line = format!("generation {generation}: ");
        let Some(line) = self.client.try_await_line(&line, SOON) else {
            self.missed_if_trained(&line);
            panic!("it ended without {line:?}:\n{}", self.client.said());
        };
        let said: Value = serde_json::from_str(&line).expect("events are JSON where rows are");
        let line = said["event"].as_str().expect("an event is text");
        let (_, executors) = line.split_once(" on ").expect("it says where ranks are");
        let number = |id: &str| {
            let number = id.trim().strip_prefix("executor-");
            number.and_then(|number| number.parse().ok())
        };
        let numbers = executors.split(',').map(number).collect::<Option<_>>();
        numbers.unwrap_or_else(|| panic!("no executors: {line}"))
    }

    /// Waits for the end of an epoch.
    pub(crate) fn await_epoch(&mut self, epoch: usize) {
        self.client.await_line(&format!("epoch {epoch}: "), SOON);
    }

    /// Tries again if training ended before the fault that was to lead to `part`.
    fn missed_if_trained(&mut self, part: &str) {
        if self
            .client
            .process()
            .ended()
            .is_some_and(|status| status.success())
        {
            missed(&format!("training was done before {part:?}"));
        }
    }

    /// Waits for its end and for its model, which must be the only version. Returns the manifest and the client's
    /// output.
    pub(crate) fn trained(self, cluster: &Cluster) -> (Value, Run) {
        let Self {
            client,
            samples,
            name,
            epochs,
        } = self;
        // All epochs may run on busy cores, which takes longer than the consequences of a fault.
        let run = client.wait(3 * SOON);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let manifest = is_whole(cluster, &name, &samples, epochs);
        (manifest, run)
    }

    /// Checks the model that was published while its client was gone.
    pub(crate) fn has_published(&self, cluster: &Cluster) {
        is_whole(cluster, &self.name, &self.samples, self.epochs);
    }

    /// Waits for the error that it must end with.
    pub(crate) fn fails(self) -> String {
        let run = self.client.wait(SOON);
        if run.code == Some(0) {
            missed("training was done before the fault");
        }
        run.error().to_owned()
    }

    /// Returns its job, as the scheduler reports it.
    pub(crate) fn job(&self, cluster: &Cluster) -> Job {
        newest_job(cluster)
    }
}

/// Returns the job that was submitted last.
pub(crate) fn newest_job(cluster: &Cluster) -> Job {
    let jobs = cluster.jobs().unwrap_or_default();
    jobs.into_iter().next().expect("a job was submitted")
}

/// Checks that a model's only version was trained on every row once in each epoch. Returns its manifest.
fn is_whole(cluster: &Cluster, name: &str, samples: &Samples, epochs: usize) -> Value {
    let versions = versions(cluster, name);
    assert_eq!(versions.len(), 1, "it was published once: {versions:?}");
    let manifest = fs::read(versions[0].join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let rows = samples.train_rows();
    assert_eq!(manifest["train_rows"], rows, "{manifest}");
    let checksum = manifest["train_checksum"].as_str().unwrap();
    assert!(!checksum.is_empty(), "{manifest}");
    let history = history(&manifest);
    assert_eq!(history.len(), epochs, "one record an epoch");
    let mut steps = 0;
    for (index, epoch) in history.iter().enumerate() {
        assert_eq!(epoch["epoch"], index as u64 + 1, "{epoch}");
        assert_eq!(epoch["rows"], rows, "every row once: {epoch}");
        assert_eq!(epoch["checksum"], checksum, "the very rows: {epoch}");
        assert!(
            epoch["loss"].as_f64().is_some_and(f64::is_finite),
            "{epoch}"
        );
        let done = epoch["steps"].as_u64().unwrap();
        assert!(done > steps, "{epoch}");
        steps = done;
    }
    let first = history[0]["steps"].as_u64().unwrap();
    assert_eq!(steps, first * epochs as u64, "every epoch has its steps");
    manifest
}

/// Returns a manifest's records of epochs.
pub(crate) fn history(manifest: &Value) -> &[Value] {
    manifest["history"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the weights of the only published version.
pub(crate) fn weights(cluster: &Cluster, name: &str) -> Vec<u8> {
    fs::read(versions(cluster, name)[0].join("weights.safetensors")).unwrap()
}

/// Counts the models that have a published version.
pub(crate) fn published(cluster: &Cluster) -> usize {
    let models = cluster.query("SHOW MODELS");
    let published = models.iter().filter(|model| !model["current"].is_null());
    published.count()
}

/// Returns the folders of a model's published versions.
pub(crate) fn versions(cluster: &Cluster, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(cluster.store().join("models").join(name));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    paths
        .filter(|path| path.join("manifest.json").exists())
        .collect()
}

/// Returns the relative differences between the losses of two histories, by epoch.
pub(crate) fn differences(one: &Value, other: &Value) -> Vec<f64> {
    let losses = |manifest: &Value| -> Vec<[f64; 2]> {
        let of = |epoch: &Value| ["loss", "eval_loss"].map(|loss| epoch[loss].as_f64().unwrap());
        history(manifest).iter().map(of).collect()
    };
    let (one, other) = (losses(one), losses(other));
    assert_eq!(one.len(), other.len());
    let relative = |(a, b): (f64, f64)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE);
    let of_epoch = |([loss, eval], [other, other_eval]): (&[f64; 2], &[f64; 2])| {
        relative((*loss, *other)).max(relative((*eval, *other_eval)))
    };
    one.iter().zip(&other).map(of_epoch).collect()
}
