//! The training loop of one rank.
//!
//! The ranks' calls to the communicator are the same, in the same order, whatever rows they have:
//! a rank without rows in a step brings zeros.

use std::time::Instant;

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{Keep, TrainSpec};
use volley_proto::store::EpochRecord;

use super::adam::Adam;
use super::agree::World;
use super::batch::Batch;
use super::metrics::Sums;
use super::schedule::{Place, Schedule, steps_per_epoch};
use super::{dropout, loss};
use crate::collective::Communicator;
use crate::encode::Settled;
use crate::network::{Architecture, Input, Moments, Normalization, Parameters, floats, forward};
use crate::{Error, Result};

/// Rows of one batch of evaluation.
const EVAL_BATCH: usize = 4096;

/// One rank's training under way.
pub(super) struct Fit<'a, B: AutodiffBackend> {
    spec: &'a TrainSpec,
    architecture: &'a Architecture,
    shards: &'a [Settled],
    device: &'a B::Device,
    /// The shards' global numbers.
    ids: Vec<usize>,
    schedule: Schedule,
    /// Training rows of all ranks.
    train_rows: u64,
    parameters: Parameters<B>,
    adam: Adam,
    /// All parameters' gradients, in order.
    gradient: Vec<f32>,
    moments: Moments,
    running: Normalization,
}

/// A network's numbers in host memory.
#[derive(Debug)]
pub(super) struct Weights {
    /// Parameter by parameter.
    pub(super) values: Vec<Vec<f32>>,
    /// Batch norm's running statistics.
    pub(super) running: Normalization,
}

/// How training went.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) history: Vec<EpochRecord>,
    /// The kept epoch, from 1.
    pub(super) epoch: usize,
    /// Its weights; on rank 0 only.
    pub(super) weights: Option<Weights>,
}

impl<'a, B: AutodiffBackend> Fit<'a, B> {
    pub(super) fn new(
        spec: &'a TrainSpec,
        architecture: &'a Architecture,
        values: Vec<Vec<f32>>,
        world: &World,
        shards: &'a [Settled],
        device: &'a B::Device,
    ) -> Self {
        let ids: Vec<usize> = shards.iter().map(|shard| shard.id).collect();
        let global_batch = spec.batch_size as u64 * world.ranks as u64;
        let steps = steps_per_epoch(world.train_rows, global_batch);
        let normalized = if architecture.batch_norm {
            architecture.continuous
        } else {
            0
        };
        let adam = Adam::new(spec.optimizer.clone(), spec.l2, &architecture.parameters());
        Self {
            spec,
            architecture,
            shards,
            device,
            schedule: Schedule::new(spec.seed, steps, &world.shards, ids.iter().copied()),
            train_rows: world.train_rows,
            ids,
            parameters: Parameters::new(values, device),
            gradient: vec![0.0; adam.len()],
            adam,
            moments: Moments::around(world.means[..normalized].to_vec()),
            running: Normalization::unit(normalized),
        }
    }

    /// Trains all epochs.
    pub(super) fn run(
        &mut self,
        communicator: &mut Communicator,
        observer: &dyn Fn(&EpochRecord),
        cancel: &CancellationToken,
    ) -> Result<Kept> {
        let mut kept = Kept {
            history: Vec::new(),
            epoch: 0,
            weights: None,
        };
        let mut best = f64::INFINITY;
        let mut weights = None;
        for epoch in 1..=self.spec.epochs {
            let record = self.epoch(epoch, communicator, cancel)?;
            observer(&record);
            let score = record.eval_loss.unwrap_or(record.loss);
            kept.history.push(record);
            if self.spec.keep == Keep::Last || score < best {
                best = score;
                kept.epoch = epoch;
                if communicator.rank() == 0 {
                    weights = Some((self.parameters.clone(), self.running.clone()));
                }
            }
        }
        kept.weights = weights.map(|(parameters, running)| Weights {
            values: parameters.values(),
            running,
        });
        Ok(kept)
    }

    fn epoch(
        &mut self,
        epoch: usize,
        communicator: &mut Communicator,
        cancel: &CancellationToken,
    ) -> Result<EpochRecord> {
        let (start, reducing) = (Instant::now(), communicator.counters().time);
        let mut sums = Sums::default();
        let rows = self.schedule.epoch(epoch);
        for step in 0..self.schedule.steps() {
            check(cancel)?;
            let places = rows.step(step);
            let loss = self.step(epoch, places, communicator)?;
            sums.trained(places.len(), loss);
        }
        let reduce = (communicator.counters().time - reducing).as_secs_f64();
        sums.spent(start.elapsed().as_secs_f64() - reduce, reduce);
        self.evaluate(&mut sums, cancel)?;
        communicator.all_reduce_sum_f64(sums.as_mut_slice())?;
        let steps = epoch as u64 * self.schedule.steps();
        let seconds = start.elapsed().as_secs_f64();
        let record = sums.record(epoch, steps, communicator.world_size(), seconds);
        assert_eq!(
            record.rows, self.train_rows,
            "every training row is used once an epoch"
        );
        let loss = record.eval_loss.unwrap_or(record.loss);
        match [record.loss, loss]
            .into_iter()
            .find(|loss| !loss.is_finite())
        {
            Some(loss) => Err(Error::Diverged { epoch, loss }),
            None => Ok(record),
        }
    }

    /// One step of all ranks. Returns the sum of this rank's losses.
    fn step(
        &mut self,
        epoch: usize,
        places: &[Place],
        communicator: &mut Communicator,
    ) -> Result<f64> {
        let mut batch = Batch::gather(self.shards, |shard| &shard.train, places);
        let normalized: &[f32] = if self.architecture.batch_norm {
            &batch.continuous
        } else {
            &[]
        };
        self.moments.sum(batch.len(), normalized);
        communicator.all_reduce_sum_f64(self.moments.sums_mut())?;
        if self.architecture.batch_norm {
            let statistics = self.moments.normalization();
            statistics.apply(&mut batch.continuous);
            self.running.follow(&statistics);
        }
        let loss = self.backward(epoch, places, batch);
        communicator.all_reduce_sum(&mut self.gradient)?;
        let mut step = self.adam.step(&self.gradient);
        self.parameters
            .update(|parameter, weights| step.update(parameter, weights));
        Ok(loss)
    }

    /// Fills the gradient with this rank's part of the global batch's. Returns its losses' sum.
    fn backward(&mut self, epoch: usize, places: &[Place], batch: Batch) -> f64 {
        let rows = batch.len();
        if rows == 0 {
            self.gradient.fill(0.0);
            return 0.0;
        }
        let rate = self.spec.network.dropout;
        let dropout = self
            .architecture
            .hidden
            .last()
            .filter(|_| rate > 0.0)
            .map(|units| {
                dropout::mask(
                    dropout::key(self.spec.seed, epoch),
                    &self.ids,
                    places,
                    *units,
                    rate,
                )
            });
        let input = Input {
            rows,
            codes: batch.codes,
            continuous: batch.continuous,
            dropout,
        };
        let leaves = self.parameters.leaves();
        let y_b = forward(self.architecture, &leaves, input, self.device);

        let predictions = y_b.clone().inner().into_data();
        let errors = floats(&predictions)
            .iter()
            .zip(&batch.labels)
            .map(|(y, label)| f64::from(*y) - f64::from(*label));
        let global_rows = self.moments.rows();
        let (mut total, mut slopes) = (0.0, Vec::with_capacity(rows));
        for error in errors {
            total += loss::value(self.spec.loss, error);
            slopes.push((loss::slope(self.spec.loss, error) / global_rows) as f32);
        }
        let slopes = Tensor::from_data(TensorData::new(slopes, [rows]), self.device);
        Parameters::gradient(leaves, (y_b * slopes).sum(), &mut self.gradient);
        total
    }

    /// Adds up the metrics of this rank's evaluation rows.
    fn evaluate(&self, sums: &mut Sums, cancel: &CancellationToken) -> Result<()> {
        let eval_rows = |(shard, settled): (usize, &Settled)| {
            let rows = settled.eval.len() as u32;
            (0..rows).map(move |row| Place {
                shard: shard as u32,
                row,
            })
        };
        let places: Vec<Place> = self.shards.iter().enumerate().flat_map(eval_rows).collect();
        for places in places.chunks(EVAL_BATCH) {
            check(cancel)?;
            let mut batch = Batch::gather(self.shards, |shard| &shard.eval, places);
            if self.architecture.batch_norm {
                self.running.apply(&mut batch.continuous);
            }
            let Batch {
                codes,
                continuous,
                labels,
            } = batch;
            let input = Input {
                rows: labels.len(),
                codes,
                continuous,
                dropout: None,
            };
            let y_b = forward(
                self.architecture,
                self.parameters.plain(),
                input,
                self.device,
            );
            let transform = self.spec.label.transform;
            for (y, label) in floats(&y_b.into_data()).iter().zip(labels) {
                sums.evaluated(self.spec.loss, transform, f64::from(*y), f64::from(label));
            }
        }
        Ok(())
    }
}

fn check(cancel: &CancellationToken) -> Result<()> {
    if cancel.is_cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}
