//! Which rows are trained on at which step: a pure function of seed, epoch and shard sizes.
//!
//! Lay all training rows of the world in a line, shard after shard, each shard's rows permuted
//! anew in every epoch. The row at place `g` of the line belongs to step `(g + r) mod S`, where S
//! is the number of steps and r is drawn for the epoch:
//!
//! ```text
//!  shard        0           1       2
//!  line     a b c d e   f g h   i j k l      S = 4, r = 0
//!  step     0 1 2 3 0   1 2 3   0 1 2 3
//! ```
//!
//! So every row is used once an epoch; all global batches have the same number of rows, or one
//! less; each holds every shard's share; ranks with neighbouring shards get even work; and a
//! global batch does not depend on which rank has which shard.

use std::collections::BTreeMap;

use rand::seq::SliceRandom;

use crate::random::{Key, Purpose};

/// A training row of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The shard, by its index on this rank.
    pub(super) shard: u32,
    /// The row, by its place in the shard's canonical order.
    pub(super) row: u32,
}

/// Steps that an epoch takes.
pub(super) fn steps_per_epoch(rows: u64, global_batch: u64) -> u64 {
    rows.div_ceil(global_batch)
}

/// One rank's part in the order of training.
#[derive(Debug)]
pub(super) struct Schedule {
    seed: u64,
    steps: u64,
    shards: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    /// The shard's global number.
    id: usize,
    /// Where its rows begin in the line.
    first: u64,
    rows: u32,
}

impl Schedule {
    /// The schedule of the rank that has the shards `mine`, of all `shards` and their rows.
    pub(super) fn new(
        seed: u64,
        steps: u64,
        shards: &BTreeMap<usize, u64>,
        mine: impl IntoIterator<Item = usize>,
    ) -> Self {
        let mut first = 0;
        let line: BTreeMap<usize, (u64, u64)> = shards
            .iter()
            .map(|(id, rows)| {
                let begin = first;
                first += rows;
                (*id, (begin, *rows))
            })
            .collect();
        let span = |id| {
            let (first, rows) = line[&id];
            let rows = u32::try_from(rows).expect("a shard has fewer than 2^32 rows");
            Span { id, first, rows }
        };
        Self {
            seed,
            steps,
            shards: mine.into_iter().map(span).collect(),
        }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The most rows that this rank has in a step of any epoch: its neighbouring shards are dealt in turn.
    pub(super) fn most_rows(&self) -> usize {
        let mut spans: Vec<_> = self.shards.iter().filter(|span| span.rows > 0).collect();
        spans.sort_by_key(|span| span.first);
        let (mut most, mut run, mut end) = (0, 0, 0);
        for span in spans {
            if span.first != end {
                most += u64::div_ceil(run, self.steps);
                run = 0;
            }
            run += u64::from(span.rows);
            end = span.first + u64::from(span.rows);
        }
        (most + run.div_ceil(self.steps)) as usize
    }

    /// This rank's rows in an epoch, step by step.
    pub(super) fn epoch(&self, epoch: usize) -> Epoch {
        let rotation = Key::new(self.seed, Purpose::Rotation).at(epoch as u64) % self.steps;
        let orders: Vec<Vec<u32>> = self
            .shards
            .iter()
            .map(|span| self.order(epoch, span))
            .collect();
        let step =
            |span: &Span, at: usize| ((span.first + at as u64 + rotation) % self.steps) as usize;

        // A counting sort by step.
        let mut ends = vec![0_usize; self.steps as usize + 1];
        for (span, order) in self.shards.iter().zip(&orders) {
            (0..order.len()).for_each(|at| ends[step(span, at) + 1] += 1);
        }
        (0..self.steps as usize).for_each(|step| ends[step + 1] += ends[step]);
        let starts = ends.clone();
        let mut places = vec![Place { shard: 0, row: 0 }; ends[self.steps as usize]];
        for (shard, (span, order)) in self.shards.iter().zip(&orders).enumerate() {
            for (at, row) in order.iter().enumerate() {
                let slot = &mut ends[step(span, at)];
                places[*slot] = Place {
                    shard: shard as u32,
                    row: *row,
                };
                *slot += 1;
            }
        }
        Epoch { places, starts }
    }

    fn order(&self, epoch: usize, span: &Span) -> Vec<u32> {
        let mut order: Vec<u32> = (0..span.rows).collect();
        let key = Key::new(self.seed, Purpose::Order)
            .with(epoch as u64)
            .with(span.id as u64);
        order.shuffle(&mut key.stream());
        order
    }
}

/// One rank's rows in one epoch.
#[derive(Debug)]
pub(super) struct Epoch {
    places: Vec<Place>,
    starts: Vec<usize>,
}

impl Epoch {
    /// This rank's rows, step after step.
    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Where each step's rows begin, and where the last one's end.
    pub(super) fn starts(&self) -> Vec<u32> {
        self.starts.iter().map(|start| *start as u32).collect()
    }

    /// This rank's rows in a step; there may be none.
    pub(super) fn step(&self, step: u64) -> &[Place] {
        let step = step as usize;
        &self.places[self.starts[step]..self.starts[step + 1]]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each step's rows as (shard, row), over ranks that have these shards.
    fn global_batches(
        sizes: &[u64],
        steps: u64,
        epoch: usize,
        ranks: &[&[usize]],
    ) -> Vec<BTreeSet<(usize, u32)>> {
        let shards: BTreeMap<_, _> = sizes.iter().copied().enumerate().collect();
        let mut batches = vec![BTreeSet::new(); steps as usize];
        for mine in ranks {
            let epoch = Schedule::new(9, steps, &shards, mine.iter().copied()).epoch(epoch);
            for (step, batch) in batches.iter_mut().enumerate() {
                for place in epoch.step(step as u64) {
                    let new = batch.insert((mine[place.shard as usize], place.row));
                    assert!(new, "a row twice in a step");
                }
            }
        }
        batches
    }

    #[test]
    fn every_row_is_used_once_an_epoch() {
        for sizes in [
            &[5, 3, 4][..],
            &[1],
            &[0, 7, 0],
            &[1, 1, 1, 1, 1, 1],
            &[100, 1, 33],
        ] {
            let total: u64 = sizes.iter().sum();
            for global_batch in [1, 2, 5, 64, 1000] {
                let steps = steps_per_epoch(total, global_batch);
                let all: Vec<usize> = (0..sizes.len()).collect();
                let batches = global_batches(sizes, steps, 3, &[&all]);
                let rows: Vec<_> = batches.iter().flatten().copied().collect();
                assert_eq!(rows.len() as u64, total);
                assert_eq!(rows.iter().collect::<BTreeSet<_>>().len() as u64, total);
                let lens: BTreeSet<_> = batches.iter().map(BTreeSet::len).collect();
                let (least, most) = (*lens.first().unwrap(), *lens.last().unwrap());
                assert!(least >= 1 && most <= global_batch as usize && most - least <= 1);
            }
        }
    }

    #[test]
    fn global_batches_do_not_depend_on_who_has_which_shard() {
        let sizes = [13, 0, 40, 7, 22];
        let one = global_batches(&sizes, 9, 1, &[&[0, 1, 2, 3, 4]]);
        assert_eq!(one, global_batches(&sizes, 9, 1, &[&[0, 1], &[2], &[3, 4]]));
        assert_eq!(
            one,
            global_batches(&sizes, 9, 1, &[&[4, 1], &[], &[3, 0, 2]])
        );
        assert_ne!(one, global_batches(&sizes, 9, 2, &[&[0, 1, 2, 3, 4]]));
    }

    #[test]
    fn ranks_with_neighbouring_shards_have_even_work() {
        let shards: BTreeMap<_, _> = (0..64)
            .map(|shard| (shard, 50 + shard as u64 % 7))
            .collect();
        let epoch = Schedule::new(1, 10, &shards, 0..32).epoch(0);
        let lens: Vec<_> = (0..10).map(|step| epoch.step(step).len()).collect();
        let schedule = Schedule::new(1, 10, &shards, (0..32).chain(40..43));
        for epoch in 0..20 {
            let epoch = schedule.epoch(epoch);
            let most = (0..10).map(|step| epoch.step(step).len()).max();
            assert!((schedule.most_rows() - 1..=schedule.most_rows()).contains(&most.unwrap()));
        }
        assert!(
            lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1,
            "{lens:?}"
        );
    }
}
