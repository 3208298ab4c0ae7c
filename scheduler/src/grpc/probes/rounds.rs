//! The order in which links are probed.

/// Returns every link from one of `count` peers to another, once, in rounds in which each peer dials one and is
/// dialled by one: links measured at the same time share no end in either direction.
pub(super) fn rounds(count: usize) -> impl Iterator<Item = Vec<(usize, usize)>> {
    let link = move |from: usize, step: usize| (from, (from + step) % count);
    (1..count).map(move |step| (0..count).map(|from| link(from, step)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_way_is_tried_once_and_no_end_twice_in_a_round() {
        for count in 0..8 {
            let mut all = BTreeSet::new();
            for round in rounds(count) {
                let distinct = |end: fn(&(usize, usize)) -> usize| {
                    round.iter().map(end).collect::<BTreeSet<_>>().len()
                };
                assert_eq!(
                    (distinct(|link| link.0), distinct(|link| link.1)),
                    (count, count)
                );
                for (from, to) in round {
                    assert!(from != to && all.insert((from, to)), "{from} to {to}");
                }
            }
            assert_eq!(all.len(), count * count.saturating_sub(1));
        }
    }
}
