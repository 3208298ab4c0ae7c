//! Prediction on this host's GPUs: a thread that owns a GPU, and computes the batches that other threads have encoded.
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
//! Whatever fails on a GPU is logged, and never fails a prediction. Explanations are not computed here.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use volley_proto::spec::{DeviceKind, RankDevice};

use crate::device::{Factors, GpuLock, Opened, Runtime, Shared};
use crate::model::{BATCH as BATCH_OF_HOST, Model};
use crate::network::{Architecture, Inference, Input, PlanDevice, Scratch, uncovered};
use crate::train::{factors, outputs_differ};
use crate::{Error, ResolvedDevice, Result};

/// Maximum number of rows of a batch.
const BATCH: usize = 1 << 14;
/// Number of rows that are compared and measured on the CPU.
const COMPARED: usize = 1024;
/// Fewest rows of a batch on which a model is tried: outputs of few rows may be so small that rounding is their length.
const TRIED: usize = 256;
/// Fewest rows of a batch on the GPU where the CPU may compute as well.
const LEAST: usize = 1024;
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
    batches: SyncSender<Batch>,
    /// The thread has not answered in time, or has panicked.
    lost: AtomicBool,
}

/// A model that predicts on an [`Accelerator`] where it can, else on the CPU.
#[derive(Debug)]
pub struct AcceleratedModel {
    subject: Arc<Subject>,
    accelerator: Arc<Accelerator>,
}

/// A model, and what is known of it on the GPUs.
#[derive(Debug)]
struct Subject {
    model: Arc<Model>,
    /// The GPU cannot compute it, or not rightly.
    unfit: AtomicBool,
    /// The CPU is faster.
    slower: AtomicBool,
    trials: Mutex<Trials>,
}

#[derive(Debug, Default)]
struct Trials {
    /// GPUs whose outputs were right, by number.
    right: BTreeSet<usize>,
    measured: bool,
    /// Time of the next attempt, after memory was short.
    next: Option<Instant>,
}

/// Batch that waits for the GPU.
#[derive(Debug)]
struct Batch {
    subject: Arc<Subject>,
    input: Arc<Input>,
    /// The CPU may compute where it is faster.
    either: bool,
    outputs: SyncSender<Option<Vec<f32>>>,
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
            lost: AtomicBool::new(false),
        })
    }

    /// Returns the model, to predict on these GPUs. Nothing is copied to a GPU before the first batch.
    pub fn with(self: &Arc<Self>, model: Arc<Model>) -> AcceleratedModel {
        let reason = uncovered(&model.architecture);
        if let Some(reason) = reason {
            tracing::info!(?model, reason, "the CPU predicts");
        }
        AcceleratedModel {
            subject: Arc::new(Subject {
                model,
                unfit: AtomicBool::new(reason.is_some()),
                slower: AtomicBool::new(false),
                trials: Mutex::default(),
            }),
            accelerator: Arc::clone(self),
        }
    }

    /// Computes a batch's outputs; `None` if the CPU is to compute them.
    fn outputs(
        &self,
        subject: &Arc<Subject>,
        input: &Arc<Input>,
        either: bool,
    ) -> Option<Vec<f32>> {
        let (done, outputs) = sync_channel(1);
        let batch = Batch {
            subject: Arc::clone(subject),
            input: Arc::clone(input),
            either,
            outputs: done,
        };
        match self.batches.try_send(batch) {
            Err(TrySendError::Full(_)) => return None,
            // Without the thread, there is no answer.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
        let outputs = outputs.recv_timeout(PATIENCE);
        if outputs.is_err() && !self.lost.swap(true, Ordering::Relaxed) {
            tracing::warn!("the GPU does not answer: the CPU predicts from now on");
        }
        outputs.ok().flatten()
    }
}

impl AcceleratedModel {
    /// Returns the columns of [`Model::predict`]. With `either`, the faster of the GPU and the CPU computes them, else
    /// the GPU wherever it can.
    ///
    /// # Errors
    /// The errors of [`Model::predict`].
    pub fn predict(&self, rows: &RecordBatch, either: bool) -> Result<Vec<ArrayRef>> {
        let Self {
            subject,
            accelerator,
        } = self;
        let model = &subject.model;
        let is_small = either && rows.num_rows() < LEAST;
        let is_lost = accelerator.lost.load(Ordering::Relaxed);
        if is_small || is_lost || subject.is_left_to_host(either) {
            return model.predict(rows);
        }
        let mut outputs = Vec::with_capacity(rows.num_rows() * model.architecture.outputs);
        let mut scratch = Scratch::default();
        for start in (0..rows.num_rows()).step_by(BATCH) {
            let rows = rows.slice(start, BATCH.min(rows.num_rows() - start));
            let input = Arc::new(model.input(&rows)?);
            if let Some(found) = accelerator.outputs(subject, &input, either) {
                outputs.extend(found);
                continue;
            }
            for first in (0..input.rows).step_by(BATCH_OF_HOST) {
                let some = first..input.rows.min(first + BATCH_OF_HOST);
                let input = select(&model.architecture, &input, some);
                outputs.extend(model.outputs(&input, &mut scratch));
            }
        }
        model.columns(outputs)
    }
}

impl Subject {
    fn is_left_to_host(&self, either: bool) -> bool {
        self.unfit.load(Ordering::Relaxed) || (either && self.slower.load(Ordering::Relaxed))
    }

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
    fn serve(mut self, batches: &Receiver<Batch>) {
        loop {
            let next = match &self.open {
                Some(_) => batches.recv_timeout(TICK),
                None => batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(batch) => {
                    let outputs = self.outputs(&batch);
                    // The thread that waited may have given up.
                    batch.outputs.send(outputs).ok();
                }
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

    fn outputs(&mut self, batch: &Batch) -> Option<Vec<f32>> {
        let subject = &batch.subject;
        {
            let trials = subject.trials.lock();
            let is_early = trials.next.is_some_and(|next| Instant::now() < next);
            let is_small = trials.right.is_empty() && batch.input.rows < TRIED;
            if is_early || is_small || subject.is_left_to_host(batch.either) {
                return None;
            }
        }
        self.give_back();
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(take(&mut self.gpus)?),
        };
        open.used = Instant::now();
        let outputs = open.outputs(batch, self.threads);
        // A batch may take longer than what counts as idle.
        open.touch(subject);
        match outputs {
            Ok(outputs) => outputs,
            Err(error @ Error::DeviceMemory { .. }) => {
                open.forget(subject);
                let reason = error.chain();
                tracing::warn!(model = ?subject.model, reason, "the CPU predicts");
                subject.trials.lock().next = Some(Instant::now() + RETRY);
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

    /// Computes a batch. `None` if the CPU is to compute it.
    fn outputs(&mut self, batch: &Batch, threads: u32) -> Result<Option<Vec<f32>>> {
        let Batch {
            subject,
            input,
            either,
            ..
        } = batch;
        let mut trials = subject.trials.lock();
        let is_right = trials.right.contains(&self.gpu);
        let measures = *either && !trials.measured;
        if !is_right && input.rows < TRIED {
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
        let outputs = inference.predict(input)?;
        if is_right && !measures {
            return Ok(Some(outputs));
        }
        let device = self.runtime.name();
        let (due, found, on_host) = compare(&subject.model, input, &outputs);
        let width = subject.model.architecture.outputs;
        if let Some(what) = outputs_differ(&due, &found, width, subject.factors()) {
            tracing::warn!(model = ?subject.model, device, what, "the CPU predicts");
            subject.unfit.store(true, Ordering::Relaxed);
            self.models.remove(at);
            return Ok(None);
        }
        trials.right.insert(self.gpu);
        if measures {
            let start = Instant::now();
            inference.predict(input)?;
            // While the GPU computes for all threads in turn, each of them could compute for itself.
            let on_device = threads * start.elapsed();
            trials.measured = true;
            if on_host < on_device {
                tracing::info!(model = ?subject.model, device, ?on_host, ?on_device, "the CPU is faster, and predicts");
                subject.slower.store(true, Ordering::Relaxed);
                return Ok(None);
            }
        }
        Ok(Some(outputs))
    }
}

/// Computes rows from all over a batch on the CPU. Returns their outputs, the device's outputs for them, and the time
/// that the whole batch would take.
fn compare(model: &Model, input: &Input, outputs: &[f32]) -> (Vec<f32>, Vec<f32>, Duration) {
    let apart = input.rows.div_ceil(COMPARED).max(1);
    let rows = || (0..input.rows).rev().step_by(apart);
    let some = select(&model.architecture, input, rows());
    let start = Instant::now();
    let due = model.outputs(&some, &mut Scratch::default());
    let share = input.rows as f64 / some.rows.max(1) as f64;
    let spent = start.elapsed().mul_f64(share);
    let width = model.architecture.outputs;
    let found = rows().flat_map(|row| &outputs[row * width..][..width]);
    (due, found.copied().collect(), spent)
}

#[cfg(test)]
mod tests;
