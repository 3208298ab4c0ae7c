//! What computes a training on a rank: the host, a plan on a GPU, or Burn on a GPU.
//!
//! ```text
//!  device 'cpu' ───────────────────────────────────▶ Host
//!  a GPU ─ plan covers the network ─ plan is right ─▶ Plan      unless 'auto' finds the host faster
//!            │ no: custom layers       │ no
//!            ▼                         └───────────▶ Tensors (Burn), where it is built in, else Host
//!           Host
//! ```
//!
//! A plan is right where its outputs, losses and gradient of a batch are those of the host within what the precision of
//! products allows: no GPU is trusted that was not asked. What differs is told, as a warning.

use std::time::{Duration, Instant};

use volley_proto::spec::{DeviceKind, Precision, RankDevice, TrainSpec};

use super::loss;
use crate::Result;
use crate::device::{Factors, Opened};
use crate::encode::{Rows, Settled};
use crate::network::{
    Architecture, Compute, Host, Input, Mask, Normalization, Piece, Plan, PlanDevice, uncovered,
};
use crate::random::{Key, Purpose};

/// Rows of the batch that a plan is tried on, at most.
const ROWS: usize = 256;
/// How often both are timed, where the faster is wanted.
const TIMED: usize = 3;

/// What computes.
#[derive(Debug)]
pub(super) enum Chosen {
    Host,
    Plan(PlanDevice),
    #[cfg(feature = "cuda")]
    Tensors(burn_cuda::CudaDevice),
}

/// What is trained, as far as a choice depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) spec: &'a TrainSpec,
    pub(super) architecture: &'a Architecture,
    pub(super) weights: &'a [Vec<f32>],
    pub(super) running: &'a Normalization,
    pub(super) shards: &'a [Settled],
}

/// Chooses for a rank that has opened this device, and says what it is.
pub(super) fn choose(opened: Opened, subject: Subject<'_>) -> (Chosen, RankDevice) {
    let asked = subject.spec.precision;
    let cpu = || (Chosen::Host, RankDevice::new(DeviceKind::Cpu, asked));
    let Opened::Gpu {
        runtime,
        index,
        either,
    } = opened
    else {
        return cpu();
    };
    let device = runtime.name();
    let gpu = RankDevice::new(DeviceKind::Cuda, asked);
    let plan = PlanDevice {
        runtime,
        factors: factors(gpu.precision),
    };
    if let Some(reason) = uncovered(subject.architecture) {
        tracing::info!(%device, reason, "the CPU computes this network");
        return cpu();
    }
    match compare(&plan, subject) {
        Ok(Compared { spent, .. }) if either && spent[0] < spent[1] => {
            let [host, plan] = spent;
            tracing::info!(%device, ?host, ?plan, "the CPU is faster than the GPU for this network");
            cpu()
        }
        Ok(Compared { differs: None, .. }) => (Chosen::Plan(plan), gpu),
        Ok(Compared {
            differs: Some(what),
            ..
        }) => {
            tracing::warn!(%device, "a plan's {what}: it is not used on this device");
            without_plan(index).map_or_else(cpu, |chosen| (chosen, gpu))
        }
        Err(error) => {
            tracing::warn!(%device, %error, "a plan fails on this device, and is not used");
            without_plan(index).map_or_else(cpu, |chosen| (chosen, gpu))
        }
    }
}

/// Burn on the GPU with this ordinal, if it is built in.
fn without_plan(index: usize) -> Option<Chosen> {
    #[cfg(feature = "cuda")]
    return Some(Chosen::Tensors(crate::device::burn_device(index)));
    #[cfg(not(feature = "cuda"))]
    {
        let _ = index;
        None
    }
}

fn factors(precision: Precision) -> Factors {
    match precision {
        Precision::F32 => Factors::F32,
        Precision::Tf32 => Factors::Tf32,
        Precision::Bf16 => Factors::Bf16,
    }
}

/// By which share of the host's length a gradient or outputs may differ.
fn tolerance(factors: Factors) -> f64 {
    match factors {
        Factors::F32 => 2e-4,
        // A unit that is on the other side of a kink has another gradient.
        Factors::Tf32 => 5e-2,
        Factors::Bf16 => 2e-1,
    }
}

/// How a plan's batch compares with the host's.
#[derive(Debug)]
struct Compared {
    /// What differs by more than the precision allows, and by how much.
    differs: Option<String>,
    /// The least time of the host's gradient, and of the plan's.
    spent: [Duration; 2],
}

/// Computes a batch of this rank's first rows on both.
fn compare(device: &PlanDevice, subject: Subject<'_>) -> Result<Compared> {
    let batch = Sample::of(subject);
    let (host, plan) = (
        batch.compute::<Host>(subject, &())?,
        batch.compute::<Plan>(subject, device)?,
    );
    let most = tolerance(device.factors);
    let pairs = [
        (
            "outputs differ from the CPU's",
            &host.outputs,
            &plan.outputs,
        ),
        (
            "gradient differs from the CPU's",
            &host.gradient,
            &plan.gradient,
        ),
    ];
    let differs = pairs.into_iter().find_map(|(what, due, found)| {
        let share = difference(due, found);
        let within = share <= most;
        (!within).then(|| {
            format!(
                "{what} by {:.2} %, more than {:.2} %",
                100.0 * share,
                100.0 * most
            )
        })
    });
    Ok(Compared {
        differs,
        spent: [host.spent, plan.spent],
    })
}

/// How long the difference of two vectors is, as a share of the first one's length.
fn difference(due: &[f32], found: &[f32]) -> f64 {
    let square = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>();
    let pairs = due.iter().zip(found);
    let apart = square(&mut pairs.map(|(due, found)| f64::from(*due) - f64::from(*found)));
    let whole = square(&mut due.iter().map(|x| f64::from(*x)));
    match whole > 0.0 {
        true => (apart / whole).sqrt(),
        false => apart.sqrt(),
    }
}

/// Rows to compare by, with their masks.
struct Sample {
    input: Input,
    labels: Vec<f32>,
}

/// What a batch came to.
struct Found {
    outputs: Vec<f32>,
    gradient: Vec<f32>,
    spent: Duration,
}

impl Sample {
    fn of(subject: Subject<'_>) -> Self {
        let Subject {
            architecture,
            running,
            shards,
            ..
        } = subject;
        let mut input = Input::default();
        let mut labels = Vec::new();
        for Settled { train, .. } in shards {
            let rows = train.len().min(ROWS - input.rows);
            let Rows {
                codes,
                continuous,
                labels: all,
                ..
            } = train;
            let first = |all: usize| all.checked_div(train.len()).unwrap_or(0) * rows;
            input.codes.extend_from_slice(&codes[..first(codes.len())]);
            let numbers = &continuous[..first(continuous.len())];
            input.continuous.extend_from_slice(numbers);
            labels.extend_from_slice(&all[..first(all.len())]);
            input.rows += rows;
        }
        if architecture.batch_norm {
            running.apply(&mut input.continuous);
        }
        let key = Key::new(subject.spec.seed, Purpose::Sample);
        let dropouts = architecture.dropouts().iter().enumerate();
        let masks = dropouts.map(|(at, dropout)| {
            let key = key.with(at as u64);
            (dropout.share > 0.0).then(|| Mask {
                keys: (0..input.rows as u64).map(|row| key.with(row)).collect(),
                units: dropout.width,
                share: dropout.share,
            })
        });
        input.dropout = masks.collect();
        Self { input, labels }
    }

    fn compute<C: Compute>(&self, subject: Subject<'_>, device: &C::Device) -> Result<Found> {
        let Subject {
            spec,
            architecture,
            weights,
            ..
        } = subject;
        let mut found = Found {
            outputs: Vec::new(),
            gradient: vec![0.0; weights.iter().map(Vec::len).sum()],
            spent: Duration::MAX,
        };
        let mut network = C::new(architecture, weights.to_vec(), device)?;
        if self.input.rows == 0 {
            return Ok(found);
        }
        for _ in 0..TIMED {
            let start = Instant::now();
            let slopes = |outputs: &[f32]| {
                found.outputs = outputs.to_vec();
                self.slopes(spec, architecture, outputs)
            };
            network.gradient(
                self.input.clone(),
                slopes,
                Piece::WHOLE,
                &mut found.gradient,
            )?;
            // A device is waited for by reading.
            network.read_gradient(&mut found.gradient)?;
            found.spent = found.spent.min(start.elapsed());
        }
        Ok(found)
    }

    fn slopes(&self, spec: &TrainSpec, architecture: &Architecture, outputs: &[f32]) -> Vec<f32> {
        let width = architecture.outputs;
        let mut slopes = vec![0.0; width];
        let mut all = Vec::with_capacity(outputs.len());
        let labels = self.labels.chunks_exact(spec.label.columns.len());
        let rows = outputs.chunks_exact(width * architecture.members);
        for (outputs, labels) in rows.zip(labels) {
            for outputs in outputs.chunks_exact(width) {
                let weights = &spec.label.loss_weights;
                loss::of_labels(&spec.loss, weights, outputs, labels, &mut slopes);
                all.extend(
                    slopes
                        .iter()
                        .map(|slope| (*slope / self.input.rows as f64) as f32),
                );
            }
        }
        all
    }
}
