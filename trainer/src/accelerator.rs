//! Prediction and its explanation on this host's GPUs: a thread that owns a GPU, and computes the batches that other
//! threads have encoded.
//!
//! ```text
//!  thread  encode ──▶ input ──▶┐                                              ┌──▶ outputs
//!  thread  encode ──▶ input ──▶┤ lock a GPU ─ open it ─ try the model ─ batch ├──▶ outputs
//!  thread  encode ──▶ input ──▶┘            the accelerator's thread          └──▶ none: the thread computes them
//! ```
//!
//! The thread takes a GPU at the first batch, gives it back after a while without any, and leaves it to a
//! [rank that has it alone](GpuLock) within a batch. A model's first batch on a GPU is compared with the CPU's outputs:
//! where they differ by more than the precision allows, the CPU computes. If either may compute, the faster one does.
//! Attributions of outputs, which explain predictions, are compared and measured by themselves. Whatever fails on a GPU
//! is logged, and never fails a query.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use volley_proto::spec::{DeviceKind, RankDevice};

use crate::device::{Factors, GpuLock, Opened, Runtime, Shared};
use crate::model::{BATCH as BATCH_OF_HOST, EXPLAINED as EXPLAINED_BY_HOST, Explanation, Model};
use crate::network::{
    Architecture, Attributions, Inference, Input, PlanDevice, Scratch, uncovered, unexplained,
};
use crate::train::{columns_differ, factors};
use crate::{Error, ResolvedDevice, Result};

/// Maximum number of rows of a batch.
const BATCH: usize = 1 << 14;
/// Maximum number of rows of a batch that is explained, each of which costs about 150 predictions.
const EXPLAINED: usize = 1 << 11;
/// Number of rows that are compared and measured on the CPU.
const COMPARED: usize = 1024;
/// The same of explained rows, and the fewest of a large network's.
const ATTRIBUTED: usize = 64;
const ATTRIBUTED_AT_LEAST: usize = 8;
/// Approximate number of multiplications that explained rows may take on the CPU in a trial: a few seconds.
const MULTIPLIED: usize = 20_000_000_000;
/// Forward and backward passes that explain a row.
const PASSES: usize = 100;
/// Interval at which a thread without batches checks whether a rank wants its GPU.
const TICK: Duration = Duration::from_millis(100);
/// Time without batches after which a GPU is given back, and the memory of a model.
const IDLE: Duration = Duration::from_secs(5);
/// Time after which a GPU that has failed, or whose memory was short, is tried again.
const RETRY: Duration = Duration::from_secs(30);
/// Time limit of a batch, with those before it and opening the GPU.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of batches that wait for the GPU.
const WAITING: usize = 64;

/// GPUs of this host on which models may predict. Threads may share it. Its own thread ends when it is dropped.
#[derive(Debug)]
pub struct Accelerator {
    batches: SyncSender<Call>,
    /// Number of calls that the thread has answered.
    answered: Arc<AtomicU64>,
    /// The thread has not answered for too long, or has panicked.
    lost: AtomicBool,
}

/// A model that predicts and explains on an [`Accelerator`] where it can, else on the CPU.
#[derive(Debug)]
pub struct AcceleratedModel {
    subject: Arc<Subject>,
    accelerator: Arc<Accelerator>,
}

/// A model, and what is known of it on the GPUs.
#[derive(Debug)]
struct Subject {
    model: Arc<Model>,
    predictions: Trust,
    explanations: Trust,
}

/// State of trust in a model's predictions on the GPUs, or in its explanations.
#[derive(Debug, Default)]
struct Trust {
    /// The GPU cannot compute them, or not rightly.
    unfit: AtomicBool,
    /// The CPU is faster.
    slower: AtomicBool,
    trials: Mutex<Trials>,
}

#[derive(Debug, Default)]
struct Trials {
    /// GPUs that were right, by number.
    right: BTreeSet<usize>,
    measured: bool,
    /// Time of the next attempt, after memory was short.
    next: Option<Instant>,
}

/// Batch that waits for the GPU, with the sender of the answer.
type Call = Box<dyn FnOnce(&mut Server) + Send>;

/// Rows about which something is asked.
#[derive(Debug)]
struct Batch<Q> {
    subject: Arc<Subject>,
    input: Arc<Input>,
    /// The CPU may compute where it is faster.
    either: bool,
    question: Q,
}

/// Computation about a batch: outputs or attributions.
trait Question: fmt::Debug + Send + 'static {
    type Answer: Send + 'static;

    /// Fewest rows of a batch on which a model is tried: numbers of few rows may be so small that rounding is their
    /// length.
    const TRIED: usize;
    /// Fewest rows of a batch on the GPU where the CPU may compute as well.
    const LEAST: usize;
    /// Verb for the log, with the CPU as its subject.
    const DOES: &'static str;

    fn trust(subject: &Subject) -> &Trust;

    fn compute(&self, inference: &mut Inference, input: &Input) -> Result<Self::Answer>;

    /// Computes rows from all over a batch on the CPU. Returns a difference from the device's answer that the precision
    /// does not allow, if there is one, and the time that the whole batch would take.
    fn compare(
        &self,
        subject: &Subject,
        input: &Input,
        answer: &Self::Answer,
    ) -> (Option<String>, Duration);
}

/// The outputs of rows.
#[derive(Debug)]
struct Outputs;

/// The attributions of an output of each row to its inputs.
#[derive(Debug)]
struct Attributed {
    baseline: Arc<Input>,
    chosen: Vec<usize>,
}

impl Question for Outputs {
    type Answer = Vec<f32>;

    const TRIED: usize = 256;
    const LEAST: usize = 1024;
    const DOES: &'static str = "predicts";

    fn trust(subject: &Subject) -> &Trust {
        &subject.predictions
    }

    fn compute(&self, inference: &mut Inference, input: &Input) -> Result<Vec<f32>> {
        inference.predict(input)
    }

    fn compare(
        &self,
        subject: &Subject,
        input: &Input,
        answer: &Vec<f32>,
    ) -> (Option<String>, Duration) {
        let model = &subject.model;
        let rows = || spread(input.rows, COMPARED);
        let some = select(&model.architecture, input, rows());
        let start = Instant::now();
        let due = model.outputs(&some, &mut Scratch::default());
        let spent = of_all(start.elapsed(), input.rows, some.rows);
        let width = model.architecture.outputs;
        let found = rows().flat_map(|row| &answer[row * width..][..width]);
        let found: Vec<f32> = found.copied().collect();
        let differs = columns_differ("outputs", &due, &found, width, subject.factors());
        (differs, spent)
    }
}

impl Question for Attributed {
    type Answer = Attributions;

    const TRIED: usize = ATTRIBUTED;
    const LEAST: usize = ATTRIBUTED;
    const DOES: &'static str = "explains";

    fn trust(subject: &Subject) -> &Trust {
        &subject.explanations
    }

    fn compute(&self, inference: &mut Inference, input: &Input) -> Result<Attributions> {
        inference.attribute(input, &self.baseline, &self.chosen)
    }

    fn compare(
        &self,
        subject: &Subject,
        input: &Input,
        answer: &Attributions,
    ) -> (Option<String>, Duration) {
        let model = &subject.model;
        let rows = || spread(input.rows, attributed(&model.architecture));
        let some = select(&model.architecture, input, rows());
        let chosen: Vec<usize> = rows().map(|row| self.chosen[row]).collect();
        let start = Instant::now();
        let scratch = &mut Scratch::default();
        let due = model.attributions(&some, &self.baseline, &chosen, scratch);
        let spent = of_all(start.elapsed(), input.rows, some.rows);
        let width = model.architecture.categorical + model.architecture.continuous;
        let inputs = |of: &Attributions, row: usize| -> Vec<f32> {
            let all = of.inputs[row * width..][..width].iter();
            all.map(|x| *x as f32).collect()
        };
        let outputs = |of: &Attributions, row: usize| {
            [of.outputs[row], of.baselines[row]].map(|output| output as f32)
        };
        let factors = subject.factors();
        let differs = {
            let due: Vec<f32> = (0..some.rows).flat_map(|row| inputs(&due, row)).collect();
            let found: Vec<f32> = rows().flat_map(|row| inputs(answer, row)).collect();
            columns_differ("attributions", &due, &found, width, factors)
        };
        let differs = differs.or_else(|| {
            let due: Vec<f32> = (0..some.rows).flat_map(|row| outputs(&due, row)).collect();
            let found: Vec<f32> = rows().flat_map(|row| outputs(answer, row)).collect();
            columns_differ("explained outputs", &due, &found, 2, factors)
        });
        (differs, spent)
    }
}

/// Returns how many rows of a network are compared with the CPU's attributions.
fn attributed(architecture: &Architecture) -> usize {
    let is_table = |at: &usize| architecture.tables().iter().any(|table| table.at == *at);
    let parameters = architecture.parameters().iter().enumerate();
    // The rows of tables are looked up, not multiplied.
    let parameters = parameters.filter(|(at, _)| !is_table(at));
    let numbers: usize = parameters.map(|(_, parameter)| parameter.len()).sum();
    let rows = MULTIPLIED / (PASSES * numbers.max(1));
    rows.clamp(ATTRIBUTED_AT_LEAST, ATTRIBUTED)
}

/// Iterates over at most this many rows from all over a batch, the last one first.
fn spread(rows: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..rows).rev().step_by(rows.div_ceil(most).max(1))
}

/// Returns the time that all rows would take, from that of some.
fn of_all(spent: Duration, all: usize, some: usize) -> Duration {
    spent.mul_f64(all as f64 / some.max(1) as f64)
}

impl Accelerator {
    /// Starts the thread, which uses the first of these GPUs that it can take. The GPU computes for as many threads as
    /// predict at the same time, of which there are `threads`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        gpus: Vec<(ResolvedDevice, GpuLock)>,
        threads: NonZeroUsize,
    ) -> std::io::Result<Self> {
        let (batches, waiting) = sync_channel(WAITING);
        let gpus: Vec<_> = gpus
            .into_iter()
            .map(|(device, lock)| Gpu {
                device,
                lock,
                next: None,
            })
            .collect();
        let serve = move || {
            let server = Server {
                gpus,
                threads: threads.get() as u32,
                open: None,
            };
            server.serve(&waiting);
        };
        thread::Builder::new()
            .name("accelerator".into())
            .spawn(serve)?;
        Ok(Self {
            batches,
            answered: Arc::default(),
            lost: AtomicBool::new(false),
        })
    }

    /// Returns the model, to predict and explain on these GPUs. Nothing is copied to a GPU before the first batch.
    pub fn with(self: &Arc<Self>, model: Arc<Model>) -> AcceleratedModel {
        let trust = |reason: Option<&'static str>, does: &str| {
            if let Some(reason) = reason {
                tracing::info!(?model, reason, "the CPU {does}");
            }
            Trust {
                unfit: AtomicBool::new(reason.is_some()),
                ..Trust::default()
            }
        };
        AcceleratedModel {
            subject: Arc::new(Subject {
                predictions: trust(uncovered(&model.architecture), Outputs::DOES),
                explanations: trust(unexplained(&model.architecture), Attributed::DOES),
                model,
            }),
            accelerator: Arc::clone(self),
        }
    }

    /// Answers a question about a batch; `None` if the CPU is to answer it.
    fn ask<Q: Question>(
        &self,
        subject: &Arc<Subject>,
        input: &Arc<Input>,
        question: Q,
        either: bool,
    ) -> Option<Q::Answer> {
        let (done, answers) = sync_channel(1);
        let batch = Batch {
            subject: Arc::clone(subject),
            input: Arc::clone(input),
            either,
            question,
        };
        let answered = Arc::clone(&self.answered);
        let before = answered.load(Ordering::Relaxed);
        let call: Call = Box::new(move |server| {
            let answer = server.answer(&batch);
            answered.fetch_add(1, Ordering::Relaxed);
            // The thread that waited may have given up.
            done.send(answer).ok();
        });
        match self.batches.try_send(call) {
            Err(TrySendError::Full(_)) => return None,
            // Without the thread, there is no answer.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
        let answer = answers.recv_timeout(PATIENCE);
        // It may only be slow: then this batch is the CPU's, and later ones are asked for.
        let is_slow = matches!(answer, Err(RecvTimeoutError::Timeout))
            && self.answered.load(Ordering::Relaxed) > before;
        if answer.is_err() && !is_slow && !self.lost.swap(true, Ordering::Relaxed) {
            tracing::warn!("the GPU does not answer: the CPU predicts from now on");
        }
        answer.ok().flatten()
    }
}

impl AcceleratedModel {
    /// Returns the columns of [`Model::predict`]. With `either`, the faster of the GPU and the CPU computes them, else
    /// the GPU wherever it can.
    ///
    /// # Errors
    /// The errors of [`Model::predict`].
    pub fn predict(&self, rows: &RecordBatch, either: bool) -> Result<Vec<ArrayRef>> {
        let model = &self.subject.model;
        if self.is_left_to_host::<Outputs>(rows.num_rows(), either) {
            return model.predict(rows);
        }
        let mut outputs = Vec::with_capacity(rows.num_rows() * model.architecture.outputs);
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(BATCH) {
            let rows = rows.slice(start, BATCH.min(rows.num_rows() - start));
            let input = Arc::new(model.input(&rows)?);
            outputs.extend(self.outputs(&input, either, &mut scratch));
        }
        model.columns(outputs)
    }

    /// Returns the columns of [`Model::explain`], computed as those of [`predict`](Self::predict).
    ///
    /// # Errors
    /// The errors of [`Model::explain`].
    pub fn explain(&self, rows: &RecordBatch, top: usize, either: bool) -> Result<Vec<ArrayRef>> {
        let model = &self.subject.model;
        if self.is_left_to_host::<Attributed>(rows.num_rows(), either) {
            return model.explain(rows, top);
        }
        let baseline = Arc::new(model.baseline());
        let mut explanation = Explanation::new(model, top);
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(EXPLAINED) {
            let rows = rows.slice(start, EXPLAINED.min(rows.num_rows() - start));
            let input = Arc::new(model.input(&rows)?);
            let outputs = self.outputs(&input, either, &mut scratch);
            let chosen = model.chosen(&outputs);
            let found = self.attributions(&input, &baseline, chosen, either, &mut scratch);
            explanation.add(outputs, &found);
        }
        explanation.finish()
    }

    /// Computes a batch's outputs, on the GPU where it can.
    fn outputs(&self, input: &Arc<Input>, either: bool, scratch: &mut Scratch) -> Vec<f32> {
        if !self.is_left_to_host::<Outputs>(input.rows, either) {
            let found = self.accelerator.ask(&self.subject, input, Outputs, either);
            if let Some(outputs) = found {
                return outputs;
            }
        }
        let model = &self.subject.model;
        let mut outputs = Vec::with_capacity(input.rows * model.architecture.outputs);
        for first in (0..input.rows).step_by(BATCH_OF_HOST) {
            let some = first..input.rows.min(first + BATCH_OF_HOST);
            let input = select(&model.architecture, input, some);
            outputs.extend(model.outputs(&input, scratch));
        }
        outputs
    }

    /// Attributes each row's chosen output, on the GPU where it can.
    fn attributions(
        &self,
        input: &Arc<Input>,
        baseline: &Arc<Input>,
        chosen: Vec<usize>,
        either: bool,
        scratch: &mut Scratch,
    ) -> Attributions {
        if !self.is_left_to_host::<Attributed>(input.rows, either) {
            let question = Attributed {
                baseline: Arc::clone(baseline),
                chosen: chosen.clone(),
            };
            let found = self.accelerator.ask(&self.subject, input, question, either);
            if let Some(attributions) = found {
                return attributions;
            }
        }
        let model = &self.subject.model;
        let mut all = Attributions::default();
        for first in (0..input.rows).step_by(EXPLAINED_BY_HOST) {
            let some = first..input.rows.min(first + EXPLAINED_BY_HOST);
            let chosen = &chosen[some.clone()];
            let input = select(&model.architecture, input, some);
            let found = model.attributions(&input, baseline, chosen, scratch);
            all.inputs.extend(found.inputs);
            all.outputs.extend(found.outputs);
            all.baselines.extend(found.baselines);
        }
        all
    }

    fn is_left_to_host<Q: Question>(&self, rows: usize, either: bool) -> bool {
        (either && rows < Q::LEAST)
            || self.accelerator.lost.load(Ordering::Relaxed)
            || Q::trust(&self.subject).is_left_to_host(either)
    }
}

impl Trust {
    fn is_left_to_host(&self, either: bool) -> bool {
        self.unfit.load(Ordering::Relaxed) || (either && self.slower.load(Ordering::Relaxed))
    }
}

impl Subject {
    fn factors(&self) -> Factors {
        let asked = self.model.manifest().spec.precision;
        factors(RankDevice::new(DeviceKind::Cuda, asked).precision)
    }
}

/// Returns some rows of a batch.
fn select(architecture: &Architecture, input: &Input, rows: impl Iterator<Item = usize>) -> Input {
    let Architecture {
        categorical,
        continuous,
        ..
    } = *architecture;
    let mut some = Input::default();
    for row in rows {
        some.rows += 1;
        let codes = &input.codes[row * categorical..][..categorical];
        some.codes.extend_from_slice(codes);
        let numbers = &input.continuous[row * continuous..][..continuous];
        some.continuous.extend_from_slice(numbers);
    }
    some
}

/// GPU that may be used.
#[derive(Debug)]
struct Gpu {
    device: ResolvedDevice,
    lock: GpuLock,
    /// Time of the next attempt, after it has failed.
    next: Option<Instant>,
}

impl Gpu {
    fn fail(&mut self, reason: &dyn fmt::Display) {
        tracing::warn!(gpu = %self.device, %reason, "the GPU is not used: the CPU predicts");
        self.next = Some(Instant::now() + RETRY);
    }
}

/// GPU in use. Memory is freed before the GPU is unlocked.
#[derive(Debug)]
struct Open {
    models: Vec<OnGpu>,
    runtime: Rc<dyn Runtime>,
    /// Its number.
    gpu: usize,
    used: Instant,
    _held: Shared,
}

/// Model with its weights on the GPU.
#[derive(Debug)]
struct OnGpu {
    subject: Weak<Subject>,
    inference: Inference,
    used: Instant,
}

/// State of the accelerator's thread.
struct Server {
    gpus: Vec<Gpu>,
    /// Threads that the GPU computes for.
    threads: u32,
    open: Option<Open>,
}

impl Server {
    fn serve(mut self, batches: &Receiver<Call>) {
        loop {
            let next = match &self.open {
                Some(_) => batches.recv_timeout(TICK),
                None => batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(call) => call(&mut self),
                Err(RecvTimeoutError::Timeout) => self.give_back(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Frees memory that is not used any more. Closes the GPU if a rank wants it, or if nothing is computed on it.
    fn give_back(&mut self) {
        let Some(open) = &mut self.open else {
            return;
        };
        let gpu = &self.gpus[open.gpu];
        // A lock that cannot be read is left.
        let wanted = gpu.lock.is_wanted().unwrap_or(true);
        if wanted || open.used.elapsed() >= IDLE {
            tracing::debug!(gpu = %gpu.device, wanted, "the GPU is given back");
            self.open = None;
            return;
        }
        open.models
            .retain(|model| model.subject.strong_count() > 0 && model.used.elapsed() < IDLE);
    }

    fn answer<Q: Question>(&mut self, batch: &Batch<Q>) -> Option<Q::Answer> {
        let subject = &batch.subject;
        let trust = Q::trust(subject);
        {
            let trials = trust.trials.lock();
            let is_early = trials.next.is_some_and(|next| Instant::now() < next);
            let is_small = trials.right.is_empty() && batch.input.rows < Q::TRIED;
            if is_early || is_small || trust.is_left_to_host(batch.either) {
                return None;
            }
        }
        self.give_back();
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(take(&mut self.gpus)?),
        };
        open.used = Instant::now();
        let answer = open.answer(batch, self.threads);
        // A batch may take longer than what counts as idle.
        open.touch(subject);
        match answer {
            Ok(answer) => answer,
            Err(error @ Error::DeviceMemory { .. }) => {
                open.forget(subject);
                let reason = error.chain();
                tracing::warn!(model = ?subject.model, reason, "the CPU {}", Q::DOES);
                trust.trials.lock().next = Some(Instant::now() + RETRY);
                None
            }
            Err(error) => {
                let gpu = open.gpu;
                self.open = None;
                self.gpus[gpu].fail(&error.chain());
                None
            }
        }
    }
}

/// Takes and opens the first GPU that is free.
fn take(gpus: &mut [Gpu]) -> Option<Open> {
    for (number, gpu) in gpus.iter_mut().enumerate() {
        if gpu.next.is_some_and(|next| Instant::now() < next) {
            continue;
        }
        let held = match gpu.lock.share() {
            Ok(Some(held)) => held,
            Ok(None) => {
                tracing::debug!(gpu = %gpu.device, "a rank has the GPU");
                continue;
            }
            Err(error) => {
                gpu.fail(&format!("its lock cannot be taken: {error}"));
                continue;
            }
        };
        match gpu.device.open() {
            Ok(Opened::Gpu { runtime, .. }) => {
                return Some(Open {
                    models: Vec::new(),
                    runtime,
                    gpu: number,
                    used: Instant::now(),
                    _held: held,
                });
            }
            #[cfg(any(test, feature = "wgpu"))]
            Ok(Opened::Burn { .. }) => gpu.fail(&"it is not an NVIDIA GPU"),
            Ok(Opened::Cpu { instead }) => {
                gpu.fail(&instead.unwrap_or_else(|| "it is the CPU".into()))
            }
            Err(error) => gpu.fail(&error.chain()),
        }
    }
    None
}

impl Open {
    fn position(&self, subject: &Arc<Subject>) -> Option<usize> {
        let is = |model: &OnGpu| std::ptr::eq(model.subject.as_ptr(), Arc::as_ptr(subject));
        self.models.iter().position(is)
    }

    /// Notes that the GPU, and this model if it is there, were just used.
    fn touch(&mut self, subject: &Arc<Subject>) {
        self.used = Instant::now();
        if let Some(at) = self.position(subject) {
            self.models[at].used = self.used;
        }
    }

    fn forget(&mut self, subject: &Arc<Subject>) {
        if let Some(at) = self.position(subject) {
            self.models.remove(at);
        }
    }

    /// Answers a question about a batch. `None` if the CPU is to answer it.
    fn answer<Q: Question>(&mut self, batch: &Batch<Q>, threads: u32) -> Result<Option<Q::Answer>> {
        let Batch {
            subject,
            input,
            either,
            question,
        } = batch;
        let trust = Q::trust(subject);
        let mut trials = trust.trials.lock();
        let is_right = trials.right.contains(&self.gpu);
        let measures = *either && !trials.measured;
        if !is_right && input.rows < Q::TRIED {
            return Ok(None);
        }
        let at = match self.position(subject) {
            Some(at) => at,
            None => {
                let (model, factors) = (&subject.model, subject.factors());
                let runtime = Rc::clone(&self.runtime);
                let device = PlanDevice { runtime, factors };
                self.models.push(OnGpu {
                    inference: Inference::new(&model.architecture, &model.values, &device)?,
                    subject: Arc::downgrade(subject),
                    used: self.used,
                });
                self.models.len() - 1
            }
        };
        let OnGpu {
            inference, used, ..
        } = &mut self.models[at];
        *used = self.used;
        let answer = question.compute(inference, input)?;
        if is_right && !measures {
            return Ok(Some(answer));
        }
        let device = self.runtime.name();
        let (differs, on_host) = question.compare(subject, input, &answer);
        if let Some(what) = differs {
            tracing::warn!(model = ?subject.model, device, what, "the CPU {}", Q::DOES);
            trust.unfit.store(true, Ordering::Relaxed);
            self.models.remove(at);
            return Ok(None);
        }
        trials.right.insert(self.gpu);
        if measures {
            let start = Instant::now();
            question.compute(inference, input)?;
            // While the GPU computes for all threads in turn, each of them could compute for itself.
            let on_device = threads * start.elapsed();
            trials.measured = true;
            if on_host < on_device {
                tracing::info!(model = ?subject.model, device, ?on_host, ?on_device, "the CPU is faster, and {}", Q::DOES);
                trust.slower.store(true, Ordering::Relaxed);
                return Ok(None);
            }
        }
        Ok(Some(answer))
    }
}

#[cfg(test)]
mod tests;
