//! Sample of training rows for quantiles, and its numbers, the same on every rank.
//!
//! Rows are numbered shard by shard in canonical order, and [`ROWS`] of them are drawn without replacement,
//! keyed by the seed: a uniform sample of rows, in which equal rows count as often as they occur, regardless
//! of weights. It depends on the shards and not on the ranks that hold them, so every rank draws it without
//! asking. A smaller table is its own sample. This module does not compute the quantiles.

use std::collections::BTreeSet;

use rand::RngExt;

use super::agree::World;
use crate::Result;
use crate::collective::Communicator;
use crate::encode::{Settled, Statistics};
use crate::random::{Key, Purpose};

/// Maximum rows drawn, as in scikit-learn's `subsample`.
const ROWS: u64 = 10_000;
/// Numbers exchanged at a time, or those of one feature if they are more.
const NUMBERS: usize = 1 << 20;

/// Returns each continuous feature's numbers in sampled rows, without nulls, ascending. The first and last
/// are the minimum and maximum of all training rows. The shards' rows are not yet scaled.
pub(super) fn numbers(
    seed: u64,
    world: &World,
    shards: &[Settled<f64>],
    communicator: &mut Communicator,
) -> Result<Vec<Vec<f64>>> {
    let drawn = draw(seed, world.train.rows, ROWS);
    let features = world.features.len();
    let mine = drawn_here(&drawn, world, shards, features);
    let at_once = (NUMBERS / drawn.len().max(1)).max(1);
    let mut all = Vec::with_capacity(features);
    for (block, statistics) in world.features.chunks(at_once).enumerate() {
        let first = block * at_once;
        // Feature by feature; a row of another rank contributes 0.
        let mut sums = vec![0.0; statistics.len() * drawn.len()];
        for (place, row) in &mine {
            for (at, x) in row[first..first + statistics.len()].iter().enumerate() {
                sums[at * drawn.len() + place] += x;
            }
        }
        communicator.all_reduce_sum_f64(&mut sums)?;
        let columns = sums.chunks_exact(drawn.len().max(1)).zip(statistics);
        all.extend(columns.map(|(numbers, of)| sorted(numbers, of)));
    }
    Ok(all)
}

/// Draws `most` of `rows` row numbers, ascending, with Floyd's algorithm (Bentley & Floyd 1987,
/// doi:10.1145/30401.315746).
fn draw(seed: u64, rows: u64, most: u64) -> Vec<u64> {
    let mut stream = Key::new(seed, Purpose::Sample).stream();
    let mut drawn = BTreeSet::new();
    for last in rows.saturating_sub(most)..rows {
        if rows <= most || !drawn.insert(stream.random_range(0..=last)) {
            drawn.insert(last);
        }
    }
    drawn.into_iter().collect()
}

/// Returns the numbers of the drawn rows on this rank, each with its index among all drawn rows.
fn drawn_here<'a>(
    drawn: &[u64],
    world: &World,
    shards: &'a [Settled<f64>],
    features: usize,
) -> Vec<(usize, &'a [f64])> {
    let mut here = Vec::new();
    let mut first = 0;
    for (id, held) in &world.shards {
        let end = first + held.train.rows;
        if let Some(shard) = shards.iter().find(|shard| shard.id == *id) {
            let places =
                drawn.partition_point(|row| *row < first)..drawn.partition_point(|row| *row < end);
            here.extend(places.map(|place| {
                let row = (drawn[place] - first) as usize;
                let numbers = &shard.train.continuous[row * features..][..features];
                (place, numbers)
            }));
        }
        first = end;
    }
    here
}

/// Sorts a column's known numbers, and sets the first and last to the range of all training rows.
fn sorted(numbers: &[f64], of: &Statistics) -> Vec<f64> {
    let known = numbers.iter().copied().filter(|x| !x.is_nan());
    let mut known: Vec<f64> = known.collect();
    known.sort_unstable_by(f64::total_cmp);
    let Some([least, greatest]) = of.range else {
        return known;
    };
    match known.len() {
        0 | 1 => vec![least, greatest],
        len => {
            known[0] = least;
            known[len - 1] = greatest;
            known
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio_util::sync::CancellationToken;

    use super::super::agree::{Census, on_rows};
    use super::*;
    use crate::collective::Options;
    use crate::encode::{Rows, Storage};

    #[test]
    fn rows_are_drawn_once_and_alike() {
        assert_eq!(draw(1, 5, 10), [0, 1, 2, 3, 4]);
        assert!(draw(1, 0, 10).is_empty());
        let (rows, most, draws) = (40, 10, 4000);
        let mut counts = BTreeMap::new();
        for seed in 0..draws {
            let drawn = draw(seed, rows, most);
            assert!(drawn.is_sorted_by(|a, b| a < b) && drawn.len() == most as usize);
            drawn
                .into_iter()
                .for_each(|row| *counts.entry(row).or_insert(0_u64) += 1);
        }
        assert_eq!(draw(3, rows, most), draw(3, rows, most));
        // Each row is drawn in a quarter of the draws: 1000, with a standard deviation of 27.
        assert_eq!(counts.len() as u64, rows);
        for (row, count) in counts {
            assert!((860..1140).contains(&count), "{row}: {count}");
        }
    }

    /// Creates a shard with two features; the shards together have more rows than are drawn.
    fn shard(id: usize, rows: usize) -> Settled<f64> {
        let number = |row: usize| match row % 7 {
            3 => f64::NAN,
            _ => (row * (id + 1) % 1000) as f64,
        };
        let train = Rows {
            continuous: (0..rows).flat_map(|row| [number(row), -0.0]).collect(),
            labels: vec![1.0; rows].into(),
            keys: vec![0; rows].into(),
            ..Rows::default()
        };
        Settled {
            id,
            train,
            eval: Rows::default(),
            storage: Storage::Memory,
        }
    }

    fn sampled(ranks: Vec<Vec<Settled<f64>>>) -> Vec<Vec<f64>> {
        let abort = CancellationToken::new();
        let options = Options::default();
        let communicators = Communicator::in_process(ranks.len(), &options, &abort).unwrap();
        std::thread::scope(|scope| {
            let threads = communicators.into_iter().zip(ranks);
            let threads: Vec<_> = threads
                .map(|(mut communicator, shards)| {
                    scope.spawn(move || {
                        let census = Census::take(&shards, 2, 1, 0);
                        let world = on_rows(census, None, &mut communicator).unwrap();
                        numbers(5, &world, &shards, &mut communicator).unwrap()
                    })
                })
                .collect();
            let mut found = threads.into_iter().map(|thread| thread.join().unwrap());
            let first = found.next().unwrap();
            assert!(found.all(|other| other == first));
            first
        })
    }

    #[test]
    fn a_sample_does_not_depend_on_who_has_the_rows() {
        let all = || (0..4).map(|id| shard(id, 3000 * id + 1000));
        let one = sampled(vec![all().collect()]);
        let mut ranks: Vec<Vec<Settled<f64>>> = vec![vec![], vec![], vec![]];
        all().for_each(|shard| ranks[2 - shard.id % 2].insert(0, shard));
        assert_eq!(sampled(ranks), one);
        let rows = ROWS as usize;
        assert!(one[0].is_sorted() && (rows * 5 / 6..rows).contains(&one[0].len()));
        assert_eq!([one[0][0], one[0][one[0].len() - 1]], [0.0, 999.0]);
        assert_eq!(one[1].len(), rows);
        // Close to the median of the rows, within the error of a sample.
        let median = one[0][one[0].len() / 2];
        assert!((470.0..530.0).contains(&median), "{median}");
    }
}
