//! The schedule of rows: the step at which each row is trained on, a pure function of seed, epoch and shard
//! sizes.
//!
//! All training rows of the world form a line, shard after shard, with each shard's rows permuted anew in
//! every epoch. The row at place `g` of the line belongs to step `(g + r) mod S`, where S is the number of
//! steps and r is drawn for the epoch:
//!
//! ```text
//!  shard        0           1       2
//!  line     a b c d e   f g h   i j k l      S = 4, r = 0
//!  step     0 1 2 3 0   1 2 3   0 1 2 3
//! ```
//!
//! The order of a shard lists its rows as the steps take them, so those of a step are adjacent. If rows in
//! files are copied in that order, a step's values are adjacent too.
//!
//! So every row is used once per epoch; all global batches have the same number of rows, or one less; each
//! contains every shard's share; ranks with neighbouring shards get even work; and a global batch does not
//! depend on the distribution of shards over ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::seq::SliceRandom;

use crate::encode::{Rows, Settled, Stored};
use crate::random::{Key, Purpose};

/// A training row of this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the shard on this rank.
    pub(super) shard: u32,
    /// Index of the row in the shard's canonical order.
    pub(super) row: u32,
    /// Index of its values among those that are read.
    pub(super) at: u32,
}

/// Returns the steps per epoch.
pub(super) fn steps_per_epoch(rows: u64, global_batch: u64) -> u64 {
    rows.div_ceil(global_batch)
}

/// One rank's part in the order of training.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    seed: u64,
    steps: u64,
    shards: Vec<Span>,
}

#[derive(Debug, Clone)]
struct Span {
    /// Global number of the shard.
    id: usize,
    /// Place of its first row in the line.
    first: u64,
    rows: u32,
}

impl Schedule {
    /// Creates the schedule of the rank that holds the shards `mine`; `shards` gives the rows of all shards.
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

    /// Returns the maximum rows that this rank has in a step of any epoch; adjacent shards are dealt
    /// together.
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

    /// Returns this rank's rows in an epoch, step by step, read from the shards in place.
    pub(super) fn epoch(&self, epoch: usize) -> Epoch {
        let shards = 0..self.shards.len();
        let shards = shards.map(|shard| Ordered {
            order: self.order(epoch, shard).into(),
            rows: None,
        });
        self.epoch_of(epoch, shards.collect())
    }

    /// Returns this rank's rows in an epoch, given its ordered shards.
    pub(super) fn epoch_of(&self, epoch: usize, shards: Vec<Ordered>) -> Epoch {
        let spans = self.shards.iter().zip(shards);
        let dealt = spans.map(|(span, of)| Dealt {
            deal: self.deal(epoch, span),
            of,
        });
        Epoch {
            steps: self.steps,
            shards: dealt.collect(),
        }
    }

    /// Returns a shard's rows in the order in which an epoch's steps take them. `shard` is its index on this
    /// rank.
    pub(super) fn order(&self, epoch: usize, shard: usize) -> Vec<u32> {
        let span = &self.shards[shard];
        let mut line: Vec<u32> = (0..span.rows).collect();
        let key = Key::new(self.seed, Purpose::Order)
            .with(epoch as u64)
            .with(span.id as u64);
        line.shuffle(&mut key.stream());
        let deal = self.deal(epoch, span);
        let firsts = (deal.first..self.steps.min(deal.rows)).chain(0..deal.first.min(deal.rows));
        let of_step = |first: u64| line[first as usize..].iter().step_by(self.steps as usize);
        firsts.flat_map(of_step).copied().collect()
    }

    fn deal(&self, epoch: usize, span: &Span) -> Deal {
        let rotation = Key::new(self.seed, Purpose::Rotation).at(epoch as u64) % self.steps;
        let step_of_first_row = (span.first + rotation) % self.steps;
        Deal {
            first: (self.steps - step_of_first_row) % self.steps,
            rows: u64::from(span.rows),
        }
    }
}

/// Assignment of a shard's rows to the steps of an epoch.
#[derive(Debug)]
struct Deal {
    /// Index, within the shard's part of the line, of the first row of step 0, even if the shard has fewer
    /// rows.
    first: u64,
    rows: u64,
}

impl Deal {
    /// Returns the number of rows in the steps before `step`, with `steps` steps per epoch.
    fn before(&self, step: u64, steps: u64) -> usize {
        let (rounds, rest) = (self.rows / steps, self.rows % steps);
        let end = self.first + step;
        let more = end.min(steps).min(rest).saturating_sub(self.first);
        let around = end.saturating_sub(steps).min(rest);
        (rounds * step + more + around) as usize
    }
}

/// A shard's rows in the order of an epoch.
#[derive(Debug)]
pub(super) struct Ordered {
    /// Indices of the rows in the shard.
    pub(super) order: Stored<u32>,
    /// Values of the rows in that order, if they were copied.
    pub(super) rows: Option<Rows>,
}

#[derive(Debug)]
struct Dealt {
    deal: Deal,
    of: Ordered,
}

/// One rank's rows in one epoch.
#[derive(Debug)]
pub(super) struct Epoch {
    steps: u64,
    shards: Vec<Dealt>,
}

impl Epoch {
    /// Returns this rank's rows, step after step, as pairs of the shard's index and the row.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, u32)> {
        let steps = (0..self.steps).flat_map(|step| self.step(step));
        steps.map(|place| (place.shard as usize, place.row))
    }

    /// Returns the start of each step's rows, and the end of the last step's.
    pub(super) fn starts(&self) -> Vec<u32> {
        let start = |step| {
            let before = self.shards.iter();
            let before = before.map(|shard| shard.deal.before(step, self.steps));
            before.sum::<usize>() as u32
        };
        (0..=self.steps).map(start).collect()
    }

    /// Returns this rank's rows in a step, perhaps none.
    pub(super) fn step(&self, step: u64) -> Vec<Place> {
        let mut places = Vec::new();
        for (shard, dealt) in self.shards.iter().enumerate() {
            let range = self.range(dealt, step, 1);
            let rows = &dealt.of.order[range.clone()];
            places.extend(rows.iter().zip(range).map(|(row, at)| Place {
                shard: shard as u32,
                row: *row,
                at: match dealt.of.rows {
                    Some(_) => at as u32,
                    None => *row,
                },
            }));
        }
        places
    }

    /// Returns the range of `count` steps' rows in a shard's order.
    fn range(&self, dealt: &Dealt, step: u64, count: u64) -> Range<usize> {
        let before = |step: u64| dealt.deal.before(step.min(self.steps), self.steps);
        before(step)..before(step + count)
    }

    /// Returns the values of a shard's training rows, as `Place::at` indexes them.
    pub(super) fn rows<'r>(&'r self, shard: usize, shards: &'r [Settled]) -> &'r Rows {
        self.shards[shard]
            .of
            .rows
            .as_ref()
            .unwrap_or(&shards[shard].train)
    }

    /// Asks the system to read copied rows ahead of their steps, about `bytes` bytes at a time: those of the
    /// next block of steps, and at the `first` step taken also those of its own block.
    pub(super) fn read_ahead(&self, step: u64, first: bool, bytes: usize) {
        let copied = || {
            let shards = self.shards.iter();
            shards.filter_map(|dealt| Some((dealt, dealt.of.rows.as_ref()?)))
        };
        let of_epoch: usize = copied()
            .map(|(_, rows)| rows.len() * rows.row_bytes())
            .sum();
        if of_epoch == 0 {
            return;
        }
        let steps = (bytes as u64 * self.steps / of_epoch as u64).max(1);
        let read = |step| {
            for (dealt, rows) in copied() {
                let rows_of_steps = self.range(dealt, step, steps);
                rows.will_need(rows_of_steps.clone());
                dealt.of.order.will_need(rows_of_steps);
            }
        };
        let begun = step / steps * steps;
        if first {
            read(begun);
        }
        if first || step == begun {
            read(begun + steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns each step's rows as (shard, row), over ranks with these shards.
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
                let places = epoch.step(step as u64);
                assert!(places.iter().all(|place| place.at == place.row));
                for place in places {
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

    /// Compares with the definition, which is slow to compute.
    #[test]
    fn a_step_takes_the_rows_whose_places_in_the_line_are_its_own() {
        for (sizes, steps) in [([13, 0, 40, 7, 22], 9), ([3, 1, 0, 2, 5], 30), ([4; 5], 1)] {
            let shards: BTreeMap<_, _> = sizes.into_iter().enumerate().collect();
            let schedule = Schedule::new(9, steps, &shards, 0..5);
            for number in 0..7 {
                let epoch = schedule.epoch(number);
                let rotation = Key::new(9, Purpose::Rotation).at(number as u64) % steps;
                let mut due = vec![vec![]; steps as usize];
                let mut place = 0;
                for (shard, rows) in sizes.into_iter().enumerate() {
                    let mut line: Vec<u32> = (0..rows as u32).collect();
                    let key = Key::new(9, Purpose::Order).with(number as u64);
                    line.shuffle(&mut key.with(shard as u64).stream());
                    for row in line {
                        due[((place + rotation) % steps) as usize].push((shard, row));
                        place += 1;
                    }
                }
                let found: Vec<_> = epoch.places().collect();
                assert_eq!(found, due.concat());
                let starts = due.iter().scan(0, |start, step| {
                    *start += step.len() as u32;
                    Some(*start)
                });
                let starts: Vec<u32> = [0].into_iter().chain(starts).collect();
                assert_eq!(epoch.starts(), starts);
            }
        }
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
