//! Sticky assignment of virtual shards to the ranks of a generation: ranks get about as many rows each, and few shards
//! move. All ranks wait for the one with the most rows, so shards are dealt by their rows, not by their number.
//!
//! ```text
//!   first generation      runs of neighbouring shards           [0 1 2] [3 4] [5 6 7]
//!   a rank is replaced    its shards go to the replacement      [0 1 2] [5 6 7] [3 4]
//!   fewer ranks           the largest first, to the least rank
//!   then, or with more    from a rank with more rows to the one with the least, as long as that pays
//! ```
//!
//! An executor caches encoded shards for the attempt's next generation; a shard that moves is streamed again. With
//! the same number of ranks, a replacement takes all shards of the lost rank, so sums are equal to the last bit to
//! those of the generation before.

use std::cmp::Reverse;
use std::fmt::Write;

/// Least gain of moving a shard, as a fraction of a rank's even share.
const GAIN: u64 = 64;
/// Ratio of a rank's rows to an even share from which users are told, in percent.
const UNEVEN: u64 = 125;
/// Most ranks without rows that a note names.
const NAMED: usize = 8;

/// Shards of a rank.
#[derive(Debug, Default)]
struct Hand {
    shards: Vec<usize>,
    load: u64,
}

/// Assigns shards to ranks on these executors, given those of the generation before. `rows` has the rows of each
/// shard, of which there are at least as many as executors; zeros if they are unknown. Each rank gets a shard.
pub(super) fn assign(
    rows: &[u64],
    executors: &[&str],
    had: &[(&str, &[usize])],
) -> Vec<Vec<usize>> {
    // A shard without rows counts as one row, so shards whose rows are unknown are dealt by their number.
    let loads: Vec<u64> = rows.iter().map(|rows| rows.saturating_add(1)).collect();
    let total: u64 = loads.iter().sum();
    let mut hands = keep(&loads, executors, had);
    let mut taken = vec![false; loads.len()];
    let kept = hands.iter().flat_map(|hand| &hand.shards);
    kept.for_each(|shard| taken[*shard] = true);
    let mut free: Vec<usize> = (0..loads.len()).filter(|shard| !taken[*shard]).collect();
    if free.len() == loads.len() {
        let mut before = 0u128;
        for shard in free {
            let middle = 2 * before + u128::from(loads[shard]);
            let rank = middle * hands.len() as u128 / (2 * u128::from(total));
            hands[rank as usize].take(shard, &loads);
            before += u128::from(loads[shard]);
        }
    } else {
        free.sort_by_key(|shard| Reverse(loads[*shard]));
        for shard in free {
            if let Some(least) = hands.iter_mut().min_by_key(|hand| hand.load) {
                least.take(shard, &loads);
            }
        }
    }
    let gain = total / executors.len().max(1) as u64 / GAIN;
    while even_out(&mut hands, &loads, gain) {}
    let sorted = |mut hand: Hand| {
        hand.shards.sort_unstable();
        hand.shards
    };
    hands.into_iter().map(sorted).collect()
}

/// Gives each executor the shards that it had, and each newcomer those of an executor that has left.
fn keep(loads: &[u64], executors: &[&str], had: &[(&str, &[usize])]) -> Vec<Hand> {
    let mut left = had.iter().filter(|(of, _)| !executors.contains(of));
    let hand = |executor: &&str| {
        let own = had.iter().find(|(of, _)| of == executor);
        let kept = own.or_else(|| left.next());
        let shards = kept.map_or(&[][..], |(_, shards)| shards).iter().copied();
        let mut hand = Hand::default();
        shards
            .filter(|shard| *shard < loads.len())
            .for_each(|shard| hand.take(shard, loads));
        hand
    };
    executors.iter().map(hand).collect()
}

/// Moves one shard to the rank with the least rows, from the rank with the most that has a suitable one. Returns false
/// if no move gains enough, and no rank is empty.
fn even_out(hands: &mut [Hand], loads: &[u64], gain: u64) -> bool {
    let Some(least) = (0..hands.len()).min_by_key(|rank| hands[*rank].load) else {
        return false;
    };
    let mut most: Vec<usize> = (0..hands.len()).collect();
    most.sort_by_key(|rank| Reverse(hands[*rank].load));
    for rank in most {
        let (from, to) = (&hands[rank], &hands[least]);
        let fills = to.shards.is_empty() && from.shards.len() > 1;
        let after = |shard: usize| (from.load - loads[shard]).max(to.load + loads[shard]);
        let suits = |at: &usize| fills || after(from.shards[*at]) + gain < from.load;
        // Of equally suitable shards, a rank keeps the first.
        let suited = (0..from.shards.len()).rev().filter(suits);
        let best = suited.min_by_key(|at| after(from.shards[*at]));
        if let Some(at) = best {
            let shard = hands[rank].shards.remove(at);
            hands[rank].load -= loads[shard];
            hands[least].take(shard, loads);
            return true;
        }
    }
    false
}

impl Hand {
    fn take(&mut self, shard: usize, loads: &[u64]) {
        self.shards.push(shard);
        self.load += loads[shard];
    }
}

/// Describes an assignment in which some rank has no rows, or many more than the others; `None` if it is even.
pub(super) fn uneven(rows: &[u64], assigned: &[Vec<usize>]) -> Option<String> {
    let total: u64 = rows.iter().sum();
    if total == 0 {
        return None;
    }
    let of_rank = |shards: &Vec<usize>| shards.iter().map(|shard| rows[*shard]).sum::<u64>();
    let of_ranks: Vec<u64> = assigned.iter().map(of_rank).collect();
    let (rank, most) = of_ranks.iter().enumerate().max_by_key(|(_, rows)| **rows)?;
    let empty: Vec<usize> = (0..of_ranks.len())
        .filter(|rank| of_ranks[*rank] == 0)
        .collect();
    let share = total.div_ceil(of_ranks.len() as u64);
    if most * 100 < share * UNEVEN && empty.is_empty() {
        return None;
    }
    let mut text = format!(
        "shards are uneven: rank {rank} has {most} of {total} rows, where an even share is {share}"
    );
    if !empty.is_empty() {
        let named: Vec<_> = empty.iter().take(NAMED).map(usize::to_string).collect();
        let more = if empty.len() > NAMED { ", …" } else { "" };
        let ranks = if empty.len() == 1 { "rank" } else { "ranks" };
        let has = if empty.len() == 1 { "has" } else { "have" };
        write!(text, ", and {ranks} {}{more} {has} none", named.join(", ")).ok();
    }
    let advice = match assigned[rank].len() {
        1 => "these are one shard: use more shards, or more columns in shard_by",
        _ => "use more shards",
    };
    write!(text, "; every step waits for that rank; {advice}").ok();
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the shards that are new to their rank.
    fn moved(executors: &[&str], before: &[(&str, Vec<usize>)], after: &[Vec<usize>]) -> usize {
        let moved = executors.iter().zip(after).map(|(executor, now)| {
            let had = before.iter().find(|(of, _)| of == executor);
            let is_new = |shard: &&usize| had.is_none_or(|(_, had)| !had.contains(shard));
            now.iter().filter(is_new).count()
        });
        moved.sum()
    }

    fn next(rows: &[u64], executors: &[&str], before: &[(&str, Vec<usize>)]) -> Vec<Vec<usize>> {
        let had: Vec<_> = before.iter().map(|(of, had)| (*of, &had[..])).collect();
        let assigned = assign(rows, executors, &had);
        let mut all: Vec<_> = assigned.iter().flatten().copied().collect();
        all.sort_unstable();
        assert!(
            all.into_iter().eq(0..rows.len()),
            "each shard once: {assigned:?}"
        );
        assert!(assigned.iter().all(|shards| !shards.is_empty()));
        assert!(assigned.iter().all(|shards| shards.is_sorted()));
        assigned
    }

    fn of<'a>(executors: &[&'a str], shards: Vec<Vec<usize>>) -> Vec<(&'a str, Vec<usize>)> {
        executors.iter().copied().zip(shards).collect()
    }

    /// Returns the fewest and the most rows of a rank.
    fn loads(rows: &[u64], assigned: &[Vec<usize>]) -> [u64; 2] {
        let of_rank = |shards: &Vec<usize>| shards.iter().map(|shard| rows[*shard]).sum::<u64>();
        let least = assigned.iter().map(of_rank).min().unwrap();
        [least, assigned.iter().map(of_rank).max().unwrap()]
    }

    #[test]
    fn the_first_generation_has_runs_of_shards() {
        for rows in [0, 1, 1_000_000] {
            let assigned = next(&[rows; 8], &["a", "b", "c"], &[]);
            assert_eq!(assigned, [vec![0, 1, 2], vec![3, 4], vec![5, 6, 7]]);
        }
    }

    #[test]
    fn ranks_have_as_many_rows_however_uneven_the_shards_are() {
        for (rows, due) in [
            (&[100, 1, 1, 1, 97, 0, 0, 50, 50][..], [99, 101]),
            (&[9, 1, 1, 1, 1, 1, 1, 1, 1, 1], [4, 9]),
            (&[5, 5, 5, 5, 5, 5, 5, 5], [10, 15]),
            (&[0, 0, 0, 30], [0, 30]),
            (&[7, 0, 0], [0, 7]),
        ] {
            let assigned = next(rows, &["a", "b", "c"], &[]);
            let [least, most] = loads(rows, &assigned);
            assert_eq!(most, due[1], "{rows:?}: {assigned:?}");
            assert!(least.abs_diff(due[0]) <= 1, "{rows:?}: {assigned:?}");
        }
    }

    #[test]
    fn whoever_replaces_a_lost_rank_takes_its_shards() {
        for rows in [&[3; 8][..], &[8, 1, 9, 0, 0, 4, 2, 7], &[900, 1, 1, 1]] {
            for lost in 0..3 {
                let before = of(&["a", "b", "c"], next(rows, &["a", "b", "c"], &[]));
                let mut executors = vec!["a", "b", "c"];
                executors.remove(lost);
                executors.push("d");
                let after = next(rows, &executors, &before);
                assert_eq!(after[2], before[lost].1, "{lost}");
                assert_eq!(moved(&executors, &before, &after), before[lost].1.len());
            }
        }
    }

    #[test]
    fn as_few_move_as_can_where_a_rank_joins_or_leaves() {
        let rows = [1000; 60];
        let mut executors = vec!["a", "b"];
        let mut before = of(&executors, next(&rows, &executors, &[]));
        for (joins, share) in [("c", 20), ("d", 15), ("e", 12)] {
            executors.push(joins);
            let after = next(&rows, &executors, &before);
            assert_eq!(loads(&rows, &after), [share as u64 * 1000; 2]);
            assert_eq!(moved(&executors, &before, &after), share, "{joins}");
            before = of(&executors, after);
        }
        executors.remove(1);
        let after = next(&rows, &executors, &before);
        assert_eq!(
            moved(&executors, &before, &after),
            12,
            "those of the one that left"
        );
    }

    #[test]
    fn little_is_not_worth_a_move() {
        // Shards of random hashes differ by about the root of their rows.
        let rows: Vec<u64> = (0..60).map(|shard| 14_000 + shard * 37 % 240).collect();
        let before = of(&["a", "b", "c"], next(&rows, &["a", "b", "c"], &[]));
        let after = next(&rows, &["a", "b", "d"], &before);
        assert_eq!(
            after,
            before.into_iter().map(|(_, of)| of).collect::<Vec<_>>()
        );
        assert_eq!(after[0], (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_lost_one_after_the_other_leave_even_work() {
        let names: Vec<String> = (0..40).map(|rank| format!("e{rank}")).collect();
        let mut executors: Vec<&str> = names.iter().map(String::as_str).collect();
        let rows: Vec<u64> = (0..160).map(|shard| 900 + shard * 61 % 200).collect();
        let total: u64 = rows.iter().sum();
        let mut before = of(&executors, next(&rows, &executors, &[]));
        while executors.len() > 1 {
            let lost = executors.len() * 7 / 11;
            executors.remove(lost);
            let after = next(&rows, &executors, &before);
            let [_, most] = loads(&rows, &after);
            let share = total / executors.len() as u64;
            assert!(most < share + 1100, "{} ranks: {most}", executors.len());
            before = of(&executors, after);
        }
    }

    #[test]
    fn uneven_shards_are_told() {
        let said = |rows: &[u64], assigned: &[&[usize]]| {
            let assigned: Vec<_> = assigned.iter().map(|of| of.to_vec()).collect();
            uneven(rows, &assigned)
        };
        assert_eq!(said(&[10, 11, 12], &[&[0], &[1], &[2]]), None);
        assert_eq!(said(&[0; 3], &[&[0], &[1], &[2]]), None, "unknown");
        let empty = said(&[10, 0, 0], &[&[0], &[1], &[2]]).unwrap();
        assert!(empty.contains("rank 0 has 10 of 10 rows"), "{empty}");
        assert!(empty.contains("ranks 1, 2 have none"), "{empty}");
        assert!(empty.contains("shard_by"), "{empty}");
        let uneven = said(&[10, 10, 10], &[&[0, 1], &[2]]).unwrap();
        assert!(uneven.ends_with("use more shards"), "{uneven}");
    }
}
