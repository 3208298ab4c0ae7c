//! Steps over rows that a device holds or that are brought to it ahead of them: the host gives their order, and accounts
//! for them.
//!
//! A rank without peers has the device take many steps per turn. So does a rank whose device is
//! [linked](mod@crate::train::link) with those of its peers: then all ranks take the same turns, and a turn counts whole or
//! not at all. Any other rank with peers takes steps one by one, since moments and gradients are summed over ranks in
//! between: the gradient in buckets, each while the device computes the next ones.

use std::time::{Duration, Instant};

use volley_proto::store::Position;

use super::stream::EpochSource;
use super::{Fit, TAIL, write_tail};
use crate::collective::Communicator;
use crate::encode::{Rows, Settled};
use crate::network::{
    AllRows, Compute, EpochRows, Gathered, Normalization, Objective, ShardRows, StepTotal,
};
use crate::train::agree::gather;
use crate::train::coverage::Covered;
use crate::train::schedule::Epoch;
use crate::train::trace::Part;
use crate::train::{dropout, evaluate};
use crate::{Error, Result};

/// Target time of a turn: the interval of progress reports and of checks for cancellation.
const TURN: Duration = Duration::from_millis(50);

/// Maximum number of steps per turn of linked devices: so few that a driver takes all of their kernels, about a thousand,
/// without waiting for one that hangs.
const MOST_LINKED: u64 = 16;

/// Number of steps per turn, which a device takes before the host reads their totals.
#[derive(Debug)]
pub(super) struct Pace(u64);

impl Default for Pace {
    fn default() -> Self {
        Self(1)
    }
}

impl Pace {
    /// Adapts to the time that a turn took.
    fn follow(&mut self, steps: u64, spent: Duration) {
        match () {
            () if spent < TURN / 2 && steps >= self.0 => self.0 *= 2,
            () if spent > 2 * TURN => self.0 = (self.0 / 2).max(1),
            () => {}
        }
    }
}

impl<C: Compute> Fit<'_, C> {
    /// Has the device hold this rank's rows, if it can, or prepare to be brought them. Returns true if it can take steps
    /// with linked devices then.
    pub(super) fn hold(&mut self) -> Result<bool> {
        if self.optimizer.converges() {
            return Ok(false);
        }
        let Some(resident) = self.network.resident() else {
            return Ok(false);
        };
        let rows = rows_of(self.shards, |shard| &shard.train);
        let held = self
            .shards
            .iter()
            .map(|shard| shard.train.len() + shard.eval.len());
        let held = held.sum();
        let members = self.architecture.members;
        let objective = Objective {
            loss: &self.spec.loss,
            loss_weights: &self.spec.label.loss_weights,
            labels: self.spec.label.columns.len(),
            trained: members - usize::from(self.cross_validates),
            unit: self.unit,
            rule: &self.spec.optimizer.rule,
            averages: self.optimizer.averages(),
            shift: self.moments.shift(),
            accumulate: self.spec.accumulate,
            rows: self.schedule.most_rows(),
            evaluated: evaluate::BATCH.min(held),
            linked: self.tools.linked.then(|| self.optimizer.kept().len()),
        };
        if self.tools.linked && resident.hold(&rows, &objective)? {
            self.resident = true;
            return self.hold_evaluated().map(|()| true);
        }
        let apart = Objective {
            linked: None,
            ..objective
        };
        self.resident = resident.hold(&rows, &apart)?;
        self.streams = self.resident && resident.streams();
        self.hold_evaluated()?;
        Ok(false)
    }

    /// Has the device hold the evaluation rows too, if they fit.
    fn hold_evaluated(&mut self) -> Result<()> {
        if !self.resident || self.cross_validates {
            return Ok(());
        }
        match self.network.resident() {
            Some(resident) => resident.hold_evaluated(&rows_of(self.shards, |shard| &shard.eval)),
            None => Ok(()),
        }
    }

    /// Agrees that all ranks [hold](Self::hold) their rows for linked steps; else none takes such steps.
    pub(super) fn agree_to_link(
        &mut self,
        may_link: bool,
        communicator: &mut Communicator,
    ) -> Result<()> {
        if self.tools.linked {
            let all = gather(&may_link, "rows on its GPU", communicator)?;
            self.tools.linked = all.iter().all(|may_link| *may_link);
            if let (false, Some(resident)) = (self.tools.linked, self.network.resident()) {
                resident.unlink()?;
            }
        }
        Ok(())
    }

    /// Passes the rest of an epoch to the device.
    pub(super) fn begin_epoch(&mut self, rows: &Epoch) -> Result<()> {
        let starts = self.shards.iter().scan(0_u32, |end, shard| {
            let start = *end;
            *end += shard.train.len() as u32;
            Some(start)
        });
        let firsts: Vec<u32> = starts.collect();
        let places = (!self.streams).then(|| rows.places()).into_iter();
        let order: Vec<u32> = places
            .flatten()
            .map(|(shard, row)| firsts[shard] + row)
            .collect();
        let Position { epoch, step, steps } = self.position;
        let numbers = (0..self.schedule.steps()).map(|at| match at.checked_sub(step) {
            None => Default::default(),
            Some(ahead) => {
                let rate = self.learn_rate(Position {
                    epoch,
                    step: at,
                    steps: steps + ahead,
                });
                self.optimizer.numbers(ahead, rate)
            }
        });
        let numbers: Vec<_> = numbers.collect();
        let key = dropout::key(self.spec.seed, epoch);
        let dropouts = 0..self.architecture.dropouts().len() as u64;
        let dropouts: Vec<u64> = dropouts.map(|at| key.with(at).hash()).collect();
        let epoch = EpochRows {
            order: &order,
            starts: &rows.starts(),
            numbers: &numbers,
            dropouts: &dropouts,
            running: &self.running,
            step: step as usize,
        };
        self.network
            .resident()
            .expect("rows are held")
            .begin(&epoch)
    }

    /// Has the device take one turn of steps, alone or linked with its peers'. Returns the rows and the loss of each.
    pub(super) fn replay(
        &mut self,
        pace: &mut Pace,
        rows: &Epoch,
        peers: Option<&mut Communicator>,
    ) -> Result<Vec<(u64, f64)>> {
        let start = Instant::now();
        self.tools.trace.begins();
        let Position { step, steps, .. } = self.position;
        let left = self.schedule.steps() - step;
        let until_checkpoint = self
            .spec
            .checkpoint_every
            .map_or(left, |every| every - steps % every);
        let most = match peers {
            Some(_) => MOST_LINKED,
            None => u64::MAX,
        };
        let turn = pace.0.min(left).min(until_checkpoint).min(most);
        let (totals, spent) = match peers {
            Some(peers) => self.turn_with(peers, turn)?,
            None => {
                let rows = EpochSource {
                    epoch: rows,
                    shards: self.shards,
                    ids: &self.ids,
                    first: (self.own.rows == 0).then_some(step),
                    threads: &self.tools.threads,
                };
                let resident = self.network.resident().expect("rows are held");
                let totals = resident.run(turn as usize, self.optimizer.kept(), &rows);
                // Some steps of the turn may have changed the weights.
                self.torn = totals.as_ref().err().map(Error::chain);
                let totals = totals?;
                self.running = resident.running()?;
                (totals, None)
            }
        };
        let taken = totals.iter().take_while(|total| total.taken == 1).count();
        self.optimizer.advance(taken as u64);
        let done = totals[..taken].iter().map(|total| {
            let StepTotal {
                rows,
                weight,
                loss,
                checksum,
                own_rows,
                own_checksum,
                ..
            } = *total;
            let all = Covered {
                rows: rows as u64,
                checksum,
            };
            self.own.add(Covered {
                rows: own_rows as u64,
                checksum: own_checksum,
            });
            self.took(all, weight, self.unit * loss)
        });
        let done = done.collect();
        self.tools.trace.ends(Part::Steps, self.position.steps);
        if let Some(StepTotal { loss, bad, .. }) = totals.get(taken) {
            let loss = self.unit * loss;
            return Err(match loss.is_finite() {
                true => self.diverged("a number of the gradient", *bad),
                false => self.diverged("the loss", loss),
            });
        }
        pace.follow(turn, spent.unwrap_or(start.elapsed()));
        Ok(done)
    }

    /// Has the linked devices take a turn of steps. Returns the steps' totals, and the time that ranks have spent on
    /// average. On an error, the turn is undone.
    fn turn_with(
        &mut self,
        peers: &mut Communicator,
        steps: u64,
    ) -> Result<(Vec<StepTotal>, Option<Duration>)> {
        let turn = self.try_turn(peers, steps as usize);
        if turn.is_err() {
            // Peers that wait for sums hear of it before this GPU leaves the link.
            peers.close();
            let resident = self.network.resident().expect("rows are held");
            let undone = resident.undo(self.optimizer.kept());
            self.torn = undone.err().map(|error| error.chain());
        }
        turn
    }

    fn try_turn(
        &mut self,
        peers: &mut Communicator,
        steps: usize,
    ) -> Result<(Vec<StepTotal>, Option<Duration>)> {
        let start = Instant::now();
        let resident = self.network.resident().expect("rows are held");
        resident.queue(steps, self.optimizer.kept())?;
        // A turn may take longer than an operation of the ranks' own.
        peers.patiently(|peers| peers.wait_until(|| resident.is_done()))?;
        let totals = resident.totals(steps)?;
        let running = resident.running()?;
        // All ranks must take equally many steps in the next turn.
        let mut spent = [start.elapsed().as_secs_f64()];
        peers.all_reduce_sum_f64(&mut spent)?;
        self.running = running;
        let mean = spent[0] / peers.world_size() as f64;
        Ok((totals, Some(Duration::from_secs_f64(mean))))
    }

    /// Has the device gather its rows of a step, and collects the sums that peers need.
    pub(super) fn gather_resident(&mut self, rows: &Epoch) -> Result<Covered> {
        let step = self.position.step as usize;
        let rows = EpochSource {
            epoch: rows,
            shards: self.shards,
            ids: &self.ids,
            first: (self.own.rows == 0).then_some(self.position.step),
            threads: &self.tools.threads,
        };
        let resident = self.network.resident().expect("rows are held");
        let Gathered {
            rows,
            weight,
            checksum,
            moments,
        } = resident.gather(step, &rows)?;
        self.moments.put(rows, &moments);
        let mine = Covered {
            rows: rows as u64,
            checksum,
        };
        self.ride(mine, weight);
        Ok(mine)
    }

    /// Has the device compute the gradient of its rows. Returns the weighted sum of their losses.
    pub(super) fn backward_resident(
        &mut self,
        statistics: &Normalization,
        weight: f64,
    ) -> Result<f64> {
        let resident = self.network.resident().expect("rows are held");
        resident.backward(&AllRows { weight, statistics })
    }

    /// Has the device compute the gradient of its rows, and sums it and its tail over the ranks: each bucket while the
    /// device computes the next ones.
    pub(super) fn backward_and_reduce_resident(
        &mut self,
        statistics: &Normalization,
        weight: f64,
        communicator: &mut Communicator,
    ) -> Result<()> {
        let ranges = self.summed_ranges();
        let (number, end) = (self.position.steps + 1, self.len + TAIL);
        let mut gradient = std::mem::take(&mut self.tools.gradient);
        let summed = communicator.all_reduce_sum_beside(&mut gradient, &ranges, |parts, sum| {
            let resident = self.network.resident().expect("rows are held");
            let mut parts = parts.into_iter();
            let all = AllRows { weight, statistics };
            resident.backward_in_buckets(&all, &mut |loss, copy| {
                let mut part = parts.next().expect("there is a part for each bucket");
                copy(&mut part);
                write_tail(&mut part, end, loss);
                sum(part);
            })?;
            // The rest of the sums is what the device did not hide.
            self.tools.trace.ends(Part::Backward, number);
            Ok(())
        });
        self.tools.gradient = gradient;
        summed
    }

    /// Takes the steps of an epoch without other ranks: in turns on the device if `by_itself`, else one by
    /// one as a rank with peers does, in buckets if there are several. Returns the loss of each, and the time of the last
    /// step or turn.
    pub(in crate::train) fn steps_of_an_epoch(
        &mut self,
        by_itself: bool,
        alone: &mut Communicator,
    ) -> Result<(Vec<f64>, Duration)> {
        self.hold()?;
        self.overlaps = !by_itself && self.network.buckets().len() > 1;
        let rows = self.schedule.epoch(self.position.epoch);
        if self.resident {
            self.begin_epoch(&rows)?;
        }
        let (mut losses, mut spent) = (Vec::new(), Duration::ZERO);
        while self.position.step < self.schedule.steps() {
            let start = Instant::now();
            let steps = match self.resident && by_itself {
                true => self.replay(&mut Pace::default(), &rows, None)?,
                false => vec![self.step(&rows, alone)?],
            };
            losses.extend(steps.into_iter().map(|(_, loss)| loss));
            spent = start.elapsed();
        }
        Ok((losses, spent))
    }
}

/// Returns a part of each shard's rows as the device takes them.
fn rows_of(shards: &[Settled], part: fn(&Settled) -> &Rows) -> Vec<ShardRows<'_>> {
    let of = shards.iter().map(|shard| (shard.id, part(shard)));
    let rows = of.map(|(shard, rows)| ShardRows {
        shard,
        codes: &rows.codes,
        numbers: &rows.continuous,
        labels: &rows.labels,
        weights: &rows.weights,
        keys: &rows.keys,
        folds: &rows.folds,
    });
    rows.collect()
}
