//! Equivalence classes of the columns of a join tree, by direct and transitive equality.
//!
//! `a.x = b.x AND b.x = c.x` lets `a` and `c` be joined by `x` before `b` is. A class has at most one column of a
//! relation: then joining two sets of relations by one member of each makes all members equal, since those within
//! either set are equal already.

use std::collections::BTreeSet;

/// Builds the classes from pairs of equal columns; `relation` returns the relation of a column.
pub(super) fn classes(
    pairs: &[(usize, usize)],
    relation: impl Fn(usize) -> usize,
) -> Vec<Vec<usize>> {
    let mut classes: Vec<BTreeSet<usize>> = Vec::new();
    for (a, b) in pairs {
        if classes
            .iter()
            .any(|class| class.contains(a) && class.contains(b))
        {
            continue;
        }
        let mut merged = BTreeSet::from([*a, *b]);
        let mut into = Vec::new();
        for (at, class) in classes.iter().enumerate() {
            if !class.contains(a) && !class.contains(b) {
                continue;
            }
            let both: BTreeSet<_> = merged.union(class).copied().collect();
            let relations: BTreeSet<_> = both.iter().map(|column| relation(*column)).collect();
            // If a relation would have a second column in the class, the pair stays a class of its own.
            if relations.len() == both.len() {
                merged = both;
                into.push(at);
            }
        }
        for at in into.into_iter().rev() {
            classes.remove(at);
        }
        classes.push(merged);
    }
    classes
        .into_iter()
        .map(|class| class.into_iter().collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds classes where columns 10 to 19 belong to relation 1, and so on.
    fn of(pairs: &[(usize, usize)]) -> Vec<Vec<usize>> {
        classes(pairs, |column| column / 10)
    }

    #[test]
    fn equality_is_transitive() {
        assert_eq!(of(&[(10, 20), (30, 40), (20, 30)]), [[10, 20, 30, 40]]);
        assert_eq!(of(&[(10, 20), (11, 21)]), [[10, 20], [11, 21]]);
        assert_eq!(of(&[(10, 20), (20, 10)]), [[10, 20]]);
    }

    #[test]
    fn a_class_has_one_column_of_a_relation() {
        // Both columns of relation 1 equal that of 2: neither condition may be lost.
        assert_eq!(of(&[(10, 20), (11, 20)]), [[10, 20], [11, 20]]);
        let found = of(&[(10, 20), (11, 30), (20, 30)]);
        for pair in [[10, 20], [11, 30], [20, 30]] {
            let kept = |class: &Vec<usize>| pair.iter().all(|column| class.contains(column));
            assert!(found.iter().any(kept), "{found:?}");
        }
    }
}
