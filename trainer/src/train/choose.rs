//! The choice of a rank's compute implementation: the host, a plan on an NVIDIA GPU, or Burn on a GPU.
//!
//! ```text
//!  device 'cpu' ───────────────────────────────────▶ Host
//!  a GPU ─ plan is right ──────────────────────────▶ Plan         unless 'auto' finds the host faster
//!            │ no
//!            └─────────────────────────────────────▶ Tensors (Burn), where it is built in, else Host
//!  a GPU by wgpu ─ Burn is right ──────────────────▶ Tensors      unless 'auto' finds the host faster
//!                    │ no, or custom layers
//!                    └─────────────────────────────▶ Host
//! ```
//!
//! A plan, or Burn, is right if two steps over some of the rank's rows give the same results as on the host, within the
//! precision of products: losses, gradients, weights, batch norm's statistics, and the evaluation loss. No plan is trusted
//! before it was [tried](super::tried) with the same shapes, driver and program. The user is told why a plan does not compute.
//!
//! All ranks step at the pace of the slowest, so they decide together whether the host is faster.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use volley_proto::spec::{DeviceKind, Keep, Optimizer, Precision, RankDevice, Rule, TrainSpec};
use volley_proto::store::Position;

use super::TrainingState;
use super::agree::{World, gather};
use super::coverage::Covered;
use super::fit::{Fit, Tools};
use super::optimizer::fresh_slots;
use super::state::ShardRows;
use super::tried::Tried;
use crate::collective::{Communicator, Options};
use crate::device::{Factors, Opened};
use crate::encode::{Rows, Settled, Storage};
use crate::network::{
    Architecture, Compute, Host, HostDevice, Parameter, Plan, PlanDevice, uncovered,
};
use crate::threads::Threads;
use crate::{Error, Result};

/// Maximum rows per step of a comparison, and rows per step of the first measurement.
const ROWS: u64 = 256;
/// Growth of the rows per step from one measurement to the next.
const GROWTH: u64 = 16;
/// Seconds below which a measurement is repeated: another process may have had the core.
const SHORT: f64 = 0.05;
/// Number of measurements of a short time, of which the least counts.
const MEASUREMENTS: usize = 3;
/// Steps of a trial.
const STEPS: u64 = 2;
/// A learning rate so low that weights stay, while momentum keeps the gradient's digits.
const STAY: f64 = 1e-30;
/// Length of a trial's step, as a share of the weights' length: so short that differences do not grow.
const MOVE: f64 = 1e-3;
/// Minimum length of a parameter's gradient in a comparison, as a share of the whole gradient's.
const SMALL: f64 = 0.05;

/// Reason why a rank without rows computes on the host.
const NO_ROWS: &str = "there are no rows";

/// An implementation of [`Compute`] with its device.
#[derive(Debug)]
pub(super) enum Chosen {
    Host,
    Plan(PlanDevice),
    #[cfg(feature = "cuda")]
    Tensors(burn_cuda::CudaDevice),
    /// Burn on a device of another kind, with its name.
    #[cfg(any(test, feature = "wgpu"))]
    Burn(crate::device::BurnDevice, String),
}

/// The training for which a choice is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) spec: &'a TrainSpec,
    pub(super) architecture: &'a Architecture,
    pub(super) state: &'a TrainingState,
    pub(super) world: &'a World,
    pub(super) shards: &'a [Settled],
}

/// A choice.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) chosen: Chosen,
    pub(super) computed: RankDevice,
    /// Reason why it is not the plan on the GPU, if the rank has one.
    pub(super) reason: Option<String>,
}

/// Chooses for all ranks, each of which has opened its device.
///
/// # Errors
/// If a peer is lost.
pub(super) fn choose(
    opened: Opened,
    subject: Subject<'_>,
    threads: &Threads,
    communicator: &mut Communicator,
) -> Result<Choice> {
    let either = opened.is_either();
    let mut choice = alone(opened, subject, threads);
    let is_open = either && !matches!(choice.chosen, Chosen::Host);
    if gather(&is_open, "device", communicator)?.contains(&true) {
        let own = match &choice.chosen {
            Chosen::Plan(plan) => spent::<Plan>(plan, subject, threads),
            #[cfg(any(test, feature = "wgpu"))]
            Chosen::Burn(device, name) => super::on_burn::spent_on(device, name, subject, threads),
            // Its device computes whatever the others do.
            _ => spent_on_host(subject, threads).map(|host| [host; 2]),
        };
        let own = own.unwrap_or_else(|error| {
            tracing::warn!(%error, "a step cannot be measured");
            [0.0, f64::MAX]
        });
        let slowest =
            |of: fn(&[f64; 2]) -> f64, all: &[[f64; 2]]| all.iter().map(of).fold(0.0, f64::max);
        let all = gather(&own, "time of a step", communicator)?;
        // All ranks step at the pace of the slowest.
        let [host, device] = [
            slowest(|[host, _]| *host, &all),
            slowest(|[_, device]| *device, &all),
        ];
        if is_open && host < device {
            let reason = match device == f64::MAX {
                true => "the GPU of a rank cannot take a step of this training".to_owned(),
                false => {
                    let [host, device] = [host, device].map(|seconds| 1e3 * seconds);
                    format!(
                        "the CPU is faster for this network: {host:.2} ms a step, {device:.2} on the GPU"
                    )
                }
            };
            choice = Choice::on_host(subject, Some(reason));
        }
    }
    if let Some(reason) = &choice.reason {
        tracing::warn!(computes = ?choice.computed.device, reason, "not all of it computes as asked for");
    }
    Ok(choice)
}

impl Choice {
    fn on_host(subject: Subject<'_>, reason: Option<String>) -> Self {
        Self {
            chosen: Chosen::Host,
            computed: RankDevice::new(DeviceKind::Cpu, subject.spec.precision),
            reason,
        }
    }
}

/// Chooses for one rank, whatever the others do and however long a step takes.
fn alone(opened: Opened, subject: Subject<'_>, threads: &Threads) -> Choice {
    let (runtime, index, either) = match opened {
        Opened::Cpu { instead } => return Choice::on_host(subject, instead),
        Opened::Gpu {
            runtime,
            index,
            either,
        } => (runtime, index, either),
        #[cfg(any(test, feature = "wgpu"))]
        Opened::Burn { device, name, .. } => return with_burn(device, name, subject, threads),
    };
    let gpu = RankDevice::new(DeviceKind::Cuda, subject.spec.precision);
    let plan = PlanDevice {
        runtime,
        factors: factors(gpu.precision),
    };
    let on_plan = |plan| Choice {
        chosen: Chosen::Plan(plan),
        computed: gpu,
        reason: None,
    };
    if !has_rows(subject) {
        return Choice::on_host(subject, Some(NO_ROWS.to_owned()));
    }
    let has_peers = subject.world.ranks > 1;
    let hosted = uncovered(subject.architecture).is_some();
    let links = has_peers
        && !hosted
        && plan
            .runtime
            .identity()
            .is_ok_and(|own| own.unlinked.is_none());
    let tried = Tried::of(&*plan.runtime, gpu.precision, links, subject);
    let differs = match tried.as_ref().and_then(Tried::outcome) {
        Some(differs) => Ok(differs),
        None => {
            let differs = differs::<Plan>((&plan, links), plan.factors, subject, threads);
            if let (Some(tried), Ok(differs)) = (tried, &differs) {
                tried.keep(differs.as_deref());
            }
            differs
        }
    };
    match differs {
        Ok(None) => on_plan(plan),
        Ok(Some(what)) => {
            let device = plan.runtime.name();
            let reason = Some(format!("on {device}, the plan's {what}"));
            match without_plan(index, gpu).filter(|_| !hosted) {
                Some(chosen) => Choice {
                    chosen,
                    computed: gpu,
                    reason,
                },
                None => Choice::on_host(subject, reason),
            }
        }
        // The training itself reports this for a whole step, with what would fit.
        Err(Error::DeviceMemory { .. } | Error::DeviceBatch { .. }) if !either => on_plan(plan),
        // A device that has failed once may not answer again.
        Err(error) => Choice::on_host(subject, Some(error.chain())),
    }
}

/// Chooses between Burn on a device and the host.
#[cfg(any(test, feature = "wgpu"))]
fn with_burn(
    device: crate::device::BurnDevice,
    name: String,
    subject: Subject<'_>,
    threads: &Threads,
) -> Choice {
    let reason = uncovered(subject.architecture).or((!has_rows(subject)).then_some(NO_ROWS));
    if let Some(reason) = reason {
        return Choice::on_host(subject, Some(reason.to_owned()));
    }
    match super::on_burn::differs_from_host(&device, &name, subject, threads) {
        Ok(None) => Choice {
            chosen: Chosen::Burn(device, name),
            computed: RankDevice::new(DeviceKind::Wgpu, subject.spec.precision),
            reason: None,
        },
        Ok(Some(what)) => Choice::on_host(subject, Some(format!("on {name}, Burn's {what}"))),
        // A device that has failed once may not answer again.
        Err(error) => Choice::on_host(subject, Some(error.chain())),
    }
}

/// Returns false for a rank that has nothing to compute, on which no GPU is tried.
fn has_rows(subject: Subject<'_>) -> bool {
    subject.shards.iter().any(|shard| shard.train.len() > 0)
}

/// Returns Burn on the GPU with this ordinal, if it is built in and equally precise: it always multiplies in
/// TF32.
fn without_plan(index: usize, due: RankDevice) -> Option<Chosen> {
    #[cfg(feature = "cuda")]
    return (due.precision == Precision::Tf32)
        .then(|| Chosen::Tensors(crate::device::burn_device(index)));
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (index, due);
        None
    }
}

pub(crate) fn factors(precision: Precision) -> Factors {
    match precision {
        Precision::F32 => Factors::F32,
        Precision::Tf32 => Factors::Tf32,
        Precision::Bf16 => Factors::Bf16,
    }
}

/// Returns the host's threads with the precision that the training asks for there.
pub(super) fn on_host(subject: Subject<'_>, threads: &Threads) -> HostDevice {
    let RankDevice { precision, .. } = RankDevice::new(DeviceKind::Cpu, subject.spec.precision);
    HostDevice {
        threads: threads.clone(),
        factors: factors(precision),
    }
}

/// Returns the share of the host's length by which a gradient or outputs may differ.
fn tolerance(factors: Factors) -> f64 {
    match factors {
        Factors::F32 => 2e-4,
        // A unit on the other side of a kink has another gradient.
        Factors::Tf32 => 5e-2,
        Factors::Bf16 => 2e-1,
    }
}

/// Returns the seconds of a step on the host and on the device, at the training's own rows per step where that matters.
pub(super) fn spent<C: Compute>(
    device: &C::Device,
    subject: Subject<'_>,
    threads: &Threads,
) -> Result<[f64; 2]> {
    let whole = rows_of_step(subject);
    let mut rows = whole.min(ROWS);
    loop {
        let trial = Trial::of(subject, rows);
        let host = least(|| trial.run::<Host>(subject, &on_host(subject, threads)))?;
        let device = match least(|| trial.run::<C>(subject, device)) {
            Ok(seconds) => seconds,
            Err(error) => {
                tracing::warn!(%error, rows, "a step fails on this device");
                return Ok([host, f64::MAX]);
            }
        };
        // More rows favour the GPU, and cost the host no more than this many steps of the GPU.
        if device <= host || rows == whole {
            let share = whole as f64 / rows as f64;
            return Ok([host, device].map(|seconds| share * seconds));
        }
        rows = whole.min(GROWTH * rows);
    }
}

/// Returns the seconds of a trial's step.
fn least(run: impl Fn() -> Result<Found>) -> Result<f64> {
    let mut least = run()?.spent.as_secs_f64();
    for _ in 1..MEASUREMENTS {
        if least < SHORT {
            least = least.min(run()?.spent.as_secs_f64());
        }
    }
    Ok(least)
}

fn spent_on_host(subject: Subject<'_>, threads: &Threads) -> Result<f64> {
    if subject.shards.iter().all(|shard| shard.train.len() == 0) {
        return Ok(0.0);
    }
    let whole = rows_of_step(subject);
    let rows = whole.min(ROWS);
    let trial = Trial::of(subject, rows);
    let seconds = least(|| trial.run::<Host>(subject, &on_host(subject, threads)))?;
    Ok(whole as f64 / rows as f64 * seconds)
}

/// Returns the rows of a step of a trial.
pub(super) fn rows_of_trial(subject: Subject<'_>) -> u64 {
    rows_of_step(subject).min(ROWS)
}

/// Returns this rank's rows in a step.
fn rows_of_step(subject: Subject<'_>) -> u64 {
    (subject.state.global_batch / subject.world.ranks as u64).max(1)
}

/// Takes steps over some of this rank's rows on the host and on the device, and returns the first difference that the
/// precision of its products does not allow. With `links`, ranks with peers may link the device with theirs.
pub(super) fn differs<C: Compute>(
    (device, links): (&C::Device, bool),
    factors: Factors,
    subject: Subject<'_>,
    threads: &Threads,
) -> Result<Option<String>> {
    let mut trial = Trial::of(subject, rows_of_trial(subject));
    // Every precision is compared with `f32`.
    let exact = HostDevice::exact(threads);
    let stay = trial.run::<Host>(subject, &exact)?;
    let gradient = length(&stay.gradients) / STAY;
    if gradient > 0.0 {
        let weights: Vec<f64> = trial
            .state
            .weights
            .values
            .iter()
            .flatten()
            .map(|w| f64::from(*w))
            .collect();
        trial.spec.optimizer.learn_rate = MOVE * length(&weights).max(1.0) / gradient;
    }
    let host = trial.run::<Host>(subject, &exact)?;
    let parameters = subject.architecture.parameters().iter();
    let lengths: Vec<usize> = parameters.map(Parameter::len).collect();
    let most = tolerance(factors);
    let by_parameter = |due: &[f64], found: &[f64]| {
        // A part that is small beside the whole may have a larger relative difference.
        let least = SMALL * length(due);
        let mut start = 0;
        let shares = lengths.iter().map(|len| {
            let span = start..start + len;
            start = span.end;
            difference(&due[span.clone()], &found[span], least)
        });
        shares.fold(0.0, f64::max)
    };
    let shares = |found: &Found| {
        [
            (
                "losses differ",
                difference(&host.losses, &found.losses, 0.0),
                most,
            ),
            (
                "gradients differ",
                by_parameter(&host.gradients, &found.gradients),
                most,
            ),
            // Weights keep few digits of small changes.
            (
                "weights differ",
                by_parameter(&host.changes, &found.changes),
                most.max(5e-2),
            ),
            (
                "statistics differ",
                difference(&host.running, &found.running, 0.0),
                1e-6,
            ),
        ]
    };
    // Ranks with linked devices record steps as a rank alone does; other ranks with peers take them in parts.
    let alone = subject.world.ranks == 1;
    for by_itself in [alone].into_iter().chain((links && !alone).then_some(true)) {
        let found = trial.run_by::<C>(subject, device, by_itself)?;
        let all = shares(&found);
        let differs = all
            .into_iter()
            .find_map(|(what, share, most)| exceeds(what, share, most));
        if differs.is_some() {
            return Ok(differs);
        }
    }
    Ok(None)
}

/// Returns the first difference between the host's columns of outputs, or of `what` else, and a device's that the
/// precision does not allow; rows have this many columns.
pub(crate) fn columns_differ(
    what: &str,
    due: &[f32],
    found: &[f32],
    columns: usize,
    factors: Factors,
) -> Option<String> {
    let pairs = due.iter().zip(found);
    // Numbers that are not finite must be the same, and have no length.
    let pairs = pairs.map(|(due, found)| match due.is_finite() {
        true => [*due, *found].map(f64::from),
        false if due == found || (due.is_nan() && found.is_nan()) => [0.0; 2],
        false => [0.0, f64::INFINITY],
    });
    let pairs: Vec<[f64; 2]> = pairs.collect();
    let whole: Vec<f64> = pairs.iter().map(|[due, _]| *due).collect();
    let least = SMALL * length(&whole);
    (0..columns).find_map(|column| {
        let own = pairs.iter().skip(column).step_by(columns);
        let (due, found): (Vec<f64>, Vec<f64>) = own.map(|[due, found]| (*due, *found)).unzip();
        let share = difference(&due, &found, least);
        exceeds(&format!("{what} differ"), share, tolerance(factors))
    })
}

/// Describes a difference that is greater than allowed.
fn exceeds(what: &str, share: f64, most: f64) -> Option<String> {
    let within = share <= most;
    let [share, most] = [share, most].map(|share| 100.0 * share);
    (!within).then(|| format!("{what} from the CPU's by {share:.3} %, more than {most} %"))
}

fn length(of: &[f64]) -> f64 {
    of.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Returns the length of the difference of two vectors, relative to the first's length or `least`, whichever
/// is greater.
fn difference(due: &[f64], found: &[f64], least: f64) -> f64 {
    let pairs = due.iter().zip(found);
    let apart = pairs.map(|(due, found)| match due == found {
        // Equal infinities do not differ.
        true => 0.0,
        false => due - found,
    });
    let apart = length(&apart.collect::<Vec<_>>());
    let whole = length(due).max(least);
    if whole > 0.0 { apart / whole } else { apart }
}

/// A training of two steps over some of a rank's rows, from its current weights.
#[derive(Debug)]
struct Trial {
    spec: TrainSpec,
    world: World,
    shards: Vec<Settled>,
    state: TrainingState,
}

/// Results of a trial.
#[derive(Debug)]
struct Found {
    /// Loss of each step, then of evaluation.
    losses: Vec<f64>,
    /// The gradients' sum in momentum.
    gradients: Vec<f64>,
    changes: Vec<f64>,
    running: Vec<f64>,
    spent: Duration,
}

impl Trial {
    /// Builds a trial of steps of at most this many rows.
    fn of(subject: Subject<'_>, rows: u64) -> Self {
        let Subject {
            spec,
            state,
            world,
            shards,
            ..
        } = subject;
        let mut left = (rows * STEPS) as usize;
        let shards = shards.iter().map(|shard| {
            let rows = shard.train.len().min(left);
            left -= rows;
            Settled {
                id: shard.id,
                train: shard.train.first(rows),
                eval: Rows::default(),
                storage: Storage::Memory,
            }
        });
        let shards: Vec<Settled> = shards.collect();
        let of_shards = shards.iter().map(|shard| (shard.id, ShardRows::of(shard)));
        let of_shards: BTreeMap<_, _> = of_shards.collect();
        let mut train = Covered::default();
        of_shards.values().for_each(|rows| train.add(rows.train));
        let optimizer = Optimizer {
            learn_rate: STAY,
            rule: Rule::Sgd {
                momentum: 0.9,
                nesterov: false,
            },
            ..Optimizer::default()
        };
        let len = state.weights.values.iter().map(Vec::len).sum();
        Self {
            state: TrainingState {
                global_batch: train.rows.div_ceil(STEPS).max(1),
                position: Position::START,
                slots: fresh_slots(&optimizer, len),
                progress: Default::default(),
                history: vec![],
                kept: None,
                selected: None,
                ..state.clone()
            },
            world: World {
                shards: of_shards,
                train,
                eval: Covered::default(),
                ranks: 1,
                ..world.clone()
            },
            shards,
            spec: TrainSpec {
                optimizer,
                batch_size: None,
                epochs: Some(1),
                keep: Keep::Last,
                trace: false,
                ..spec.clone()
            },
        }
    }

    fn run<C: Compute>(&self, subject: Subject<'_>, device: &C::Device) -> Result<Found> {
        self.run_by::<C>(subject, device, subject.world.ranks == 1)
    }

    /// Takes the steps in turns on a device if `by_itself`, else one by one as a rank with peers does.
    fn run_by<C: Compute>(
        &self,
        subject: Subject<'_>,
        device: &C::Device,
        by_itself: bool,
    ) -> Result<Found> {
        let Self {
            spec,
            world,
            shards,
            state,
        } = self;
        let architecture = subject.architecture;
        let never = CancellationToken::new();
        let mut alone = Communicator::in_process(1, &Options::default(), &never)?;
        let alone = &mut alone[0];
        let tools = Tools::alone(architecture, alone)?;
        let network = C::new(architecture, state.weights.values.clone(), device)?;
        let state = state.clone();
        let before = state.weights.values.concat();
        let mut fit = Fit::new(spec, architecture, state, world, shards, network, tools)?;
        let (mut losses, spent) = fit.steps_of_an_epoch(by_itself, alone)?;
        losses.push(fit.evaluate_training(alone, &never)?);
        let state = fit.state()?;
        let after = state.weights.values.concat();
        let changes = after.iter().zip(&before);
        let changes = changes.map(|(after, before)| f64::from(*after) - f64::from(*before));
        let gradients = state.slots.concat().into_iter();
        let running = state.weights.running;
        Ok(Found {
            losses,
            gradients: gradients.map(f64::from).collect(),
            changes: changes.collect(),
            running: [running.mean, running.variance].concat(),
            spent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_differ_where_one_column_of_them_does() {
        let due = [1.0, 100.0, 2.0, 200.0, 3.0, f32::NAN];
        let differs = |found: [f32; 6]| columns_differ("outputs", &due, &found, 2, Factors::F32);
        assert_eq!(differs(due), None);
        assert_eq!(differs([1.0, 100.01, 2.0, 200.0, 3.0, f32::NAN]), None);
        let text = differs([1.0, 100.0, 2.0, 201.0, 3.0, f32::NAN]).unwrap();
        assert!(
            text.starts_with("outputs differ from the CPU's by "),
            "{text}"
        );
        // Beside the other column, this is little.
        assert!(differs([1.2, 100.0, 2.0, 200.0, 3.0, f32::NAN]).is_some());
        assert!(differs([1.0, 100.0, 2.0, 200.0, 3.0, 300.0]).is_some());
        assert!(differs([1.0, 100.0, 2.0, f32::NAN, 3.0, f32::NAN]).is_some());
    }
}
