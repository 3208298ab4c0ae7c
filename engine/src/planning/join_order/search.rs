//! The search for the cheapest order of joins: exact for few relations, heuristic for many.
//!
//! For few relations it enumerates all subsets, each split in two in every way (DPsub of Moerkotte and Neumann,
//! "Analysis of two existing and one new dynamic programming algorithm for the generation of optimal bushy join trees
//! without cross products", VLDB 2006, <https://dl.acm.org/doi/10.5555/1182635.1164207>): that is 3ⁿ steps. For more,
//! it repeatedly joins the two trees with the smallest result, which is among the better heuristics (Steinbrunn,
//! Moerkotte and Kemper, "Heuristic and randomized optimization for the join ordering problem", VLDB Journal 1997,
//! <https://doi.org/10.1007/s007780050040>).
//!
//! A cross product is allowed only with a side that nothing links to any other relation; the search tries no others.

use super::graph::{Set, Tree, only};
use super::sizes::Sizes;

/// Maximum number of relations for the exact search.
const FEW: usize = 10;

/// Returns the cheapest order without unnecessary cross products, if there is one.
pub(super) fn best_tree(sizes: &mut Sizes<'_>) -> Option<Tree> {
    match sizes.graph().relations.len() {
        0 => None,
        1..=FEW => exact(sizes),
        _ => greedy(sizes),
    }
}

fn exact(sizes: &mut Sizes<'_>) -> Option<Tree> {
    let graph = sizes.graph();
    let all = graph.all();
    // For each set, its cost and the half of it that has its first relation.
    let mut best: Vec<Option<(f64, Set)>> = vec![None; index(all) + 1];
    for set in 1..=all {
        let first = set & set.wrapping_neg();
        if set == first {
            best[index(set)] = Some((0.0, set));
            continue;
        }
        let rest = set & !first;
        // All proper subsets of the rest, each with the first relation.
        let mut others = rest;
        while others != 0 {
            others = (others - 1) & rest;
            let (left, right) = (others | first, set & !(others | first));
            let halves = best[index(left)].zip(best[index(right)]);
            if let Some(((a, _), (b, _))) = halves
                && (graph.linked(left, right) || graph.is_apart(left) || graph.is_apart(right))
            {
                let cost = a + b + sizes.join_cost(left, right);
                if best[index(set)].is_none_or(|(least, _)| cost < least) {
                    best[index(set)] = Some((cost, left));
                }
            }
        }
    }
    tree(&best, all)
}

fn index(set: Set) -> usize {
    usize::try_from(set).expect("a set of few relations is a small number")
}

fn tree(best: &[Option<(f64, Set)>], set: Set) -> Option<Tree> {
    let (_, left) = best[index(set)]?;
    if left == set {
        let relation = set.trailing_zeros();
        return Some(Tree::Relation(usize::try_from(relation).ok()?));
    }
    Some(Tree::join(tree(best, left)?, tree(best, set & !left)?))
}

fn greedy(sizes: &mut Sizes<'_>) -> Option<Tree> {
    let graph = sizes.graph();
    let relations = 0..graph.relations.len();
    let mut trees: Vec<_> = relations
        .map(|relation| (only(relation), Tree::Relation(relation)))
        .collect();
    while trees.len() > 1 {
        let mut least: Option<(f64, usize, usize)> = None;
        for b in 1..trees.len() {
            for a in 0..b {
                let (left, right) = (trees[a].0, trees[b].0);
                if graph.linked(left, right) || graph.is_apart(left) || graph.is_apart(right) {
                    let cost = sizes.join_cost(left, right);
                    if least.is_none_or(|(least, ..)| cost < least) {
                        least = Some((cost, a, b));
                    }
                }
            }
        }
        let (_, a, b) = least?;
        // Removes the later one first, so that the other keeps its index.
        let (right_set, right) = trees.remove(b);
        let (left_set, left) = trees.remove(a);
        trees.push((left_set | right_set, Tree::join(left, right)));
    }
    trees.pop().map(|(_, tree)| tree)
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Class, Graph, Relation, Values};
    use super::*;

    /// Builds a fact table with filtered dimensions, and last a second fact table with the first one's ids.
    fn star(dimensions: usize) -> Graph {
        let relation = |rows, unfiltered| Relation { rows, unfiltered };
        let ids = |count: f64| Values {
            distinct: count,
            unfiltered: 1000.0,
            range: Some((1.0, 1000.0)),
        };
        let mut relations = vec![relation(1e6, 1e6)];
        let mut classes = Vec::new();
        for dimension in 1..=dimensions {
            relations.push(relation(600.0, 1000.0));
            classes.push(Class {
                members: vec![(0, ids(1000.0)), (dimension, ids(600.0))],
            });
        }
        relations.push(relation(1e7, 1e7));
        classes.push(Class {
            members: vec![(0, ids(1000.0)), (dimensions + 1, ids(1000.0))],
        });
        Graph {
            relations,
            classes,
            filters: vec![],
        }
    }

    fn depth(tree: &Tree, relation: usize) -> usize {
        match tree {
            Tree::Relation(_) => 0,
            Tree::Join(left, right) => {
                let side = [left, right].into_iter();
                let mut side = side.filter(|side| side.set() & only(relation) != 0);
                1 + depth(side.next().unwrap(), relation)
            }
        }
    }

    #[test]
    fn what_multiplies_rows_comes_after_what_thins_them() {
        for dimensions in [2, 5, 8, 12, 20] {
            let graph = star(dimensions);
            let mut sizes = Sizes::new(&graph);
            let tree = best_tree(&mut sizes).unwrap();
            assert_eq!(tree.set(), graph.all());
            assert_eq!(depth(&tree, dimensions + 1), 1, "{tree:?}");
            assert_eq!(sizes.products(&tree), 0);
        }
    }

    #[test]
    fn greedy_is_no_better_than_exact() {
        for dimensions in 1..=7 {
            let graph = star(dimensions);
            let mut sizes = Sizes::new(&graph);
            let (exact, greedy) = (exact(&mut sizes).unwrap(), greedy(&mut sizes).unwrap());
            assert!(sizes.cost(&exact) <= sizes.cost(&greedy));
        }
    }

    #[test]
    fn what_nothing_links_is_multiplied_once() {
        let mut graph = star(2);
        graph.relations.push(Relation {
            rows: 2.0,
            unfiltered: 2.0,
        });
        let mut sizes = Sizes::new(&graph);
        let tree = best_tree(&mut sizes).unwrap();
        assert_eq!(tree.set(), graph.all());
        assert_eq!(sizes.products(&tree), 1, "{tree:?}");
    }
}
