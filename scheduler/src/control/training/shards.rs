//! Sticky assignment of virtual shards to the ranks of a generation: the assignment is even, and as few shards move
//! as possible.
//!
//! An executor caches encoded shards for the attempt's next generation; a shard that moves is streamed again. With
//! the same number of ranks, a replacement takes all shards of the lost rank, so sums are equal to the last bit to
//! those of the generation before.

/// Assigns shards to ranks on these executors, given those of the generation before. A rank that had too many keeps
/// the first of them.
pub(super) fn assign(
    shards: usize,
    executors: &[&str],
    had: &[(&str, &[usize])],
) -> Vec<Vec<usize>> {
    let had_by = |executor: &str| {
        let had = had.iter().find(|(of, _)| *of == executor);
        had.map_or(&[][..], |(_, shards)| shards)
    };
    let (each, over) = (shards / executors.len(), shards % executors.len());
    // The remainder goes to ranks that had one more, then to replacements.
    let mut order: Vec<usize> = (0..executors.len()).collect();
    order.sort_by_key(|at| match had_by(executors[*at]).len() {
        had if had > each => 0,
        0 => 1,
        _ => 2,
    });
    let mut room = vec![each; executors.len()];
    order.iter().take(over).for_each(|at| room[*at] += 1);
    let mut taken = vec![false; shards];
    let mut assigned: Vec<Vec<usize>> = vec![];
    for (executor, room) in executors.iter().zip(&room) {
        let own = had_by(executor).iter().copied();
        let kept: Vec<_> = own.filter(|shard| *shard < shards).take(*room).collect();
        kept.iter().for_each(|shard| taken[*shard] = true);
        assigned.push(kept);
    }
    let mut left = (0..shards).filter(|shard| !taken[*shard]);
    for (shards, room) in assigned.iter_mut().zip(room) {
        let more = room - shards.len();
        shards.extend(left.by_ref().take(more));
        shards.sort_unstable();
    }
    assigned
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

    fn next(shards: usize, executors: &[&str], before: &[(&str, Vec<usize>)]) -> Vec<Vec<usize>> {
        let had: Vec<_> = before.iter().map(|(of, had)| (*of, &had[..])).collect();
        let assigned = assign(shards, executors, &had);
        let mut all: Vec<_> = assigned.iter().flatten().copied().collect();
        all.sort_unstable();
        assert!(
            all.into_iter().eq(0..shards),
            "each shard once: {assigned:?}"
        );
        let sizes = || assigned.iter().map(Vec::len);
        assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        assigned
    }

    fn of<'a>(executors: &[&'a str], shards: Vec<Vec<usize>>) -> Vec<(&'a str, Vec<usize>)> {
        executors.iter().copied().zip(shards).collect()
    }

    #[test]
    fn the_first_generation_has_runs_of_shards() {
        let assigned = next(8, &["a", "b", "c"], &[]);
        assert_eq!(assigned, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
    }

    #[test]
    fn whoever_replaces_a_lost_rank_takes_its_shards() {
        for lost in 0..3 {
            let before = of(&["a", "b", "c"], next(8, &["a", "b", "c"], &[]));
            let mut executors = vec!["a", "b", "c"];
            executors.remove(lost);
            executors.push("d");
            let after = next(8, &executors, &before);
            assert_eq!(after[2], before[lost].1, "{lost}");
            assert_eq!(moved(&executors, &before, &after), before[lost].1.len());
        }
    }

    #[test]
    fn as_few_move_as_can_where_a_rank_joins_or_leaves() {
        let mut executors = vec!["a", "b"];
        let mut before = of(&executors, next(60, &executors, &[]));
        for (joins, share) in [("c", 20), ("d", 15), ("e", 12)] {
            executors.push(joins);
            let after = next(60, &executors, &before);
            assert_eq!(moved(&executors, &before, &after), share, "{joins}");
            before = of(&executors, after);
        }
        executors.remove(1);
        let after = next(60, &executors, &before);
        assert_eq!(
            moved(&executors, &before, &after),
            12,
            "those of the one that left"
        );
    }
}
