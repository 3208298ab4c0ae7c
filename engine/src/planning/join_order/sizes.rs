//! The estimated sizes of joins, and the cost of an order of joins.
//!
//! Values are assumed to be uniform, and a side's keys to be among the other's where their ranges overlap (Selinger et
//! al., "Access path selection in a relational database management system", SIGMOD 1979,
//! <https://doi.org/10.1145/582095.582099>). Keys of several columns have at most as many values as their relation has
//! rows, so that a correlated column does not count twice.
//!
//! A set of relations has one size in any join order: that of joining its largest relation with the others, in each
//! step the one that leaves the fewest rows.

use std::collections::HashMap;

use super::graph::{Graph, Set, Tree, Values, members, only};

/// Sizes of sets of a graph's relations, each computed once.
#[derive(Debug)]
pub(super) struct Sizes<'a> {
    graph: &'a Graph,
    known: HashMap<Set, f64>,
}

/// Estimates for some joined relations.
#[derive(Debug, Clone)]
struct Joined {
    rows: f64,
    /// Rows of the largest relation, before filters.
    unfiltered: f64,
    /// Values of each class.
    values: Vec<Option<Values>>,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let known = HashMap::new();
        Self { graph, known }
    }

    pub(super) fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// Estimates the rows of the relations, joined and filtered; at least one.
    pub(super) fn rows(&mut self, set: Set) -> f64 {
        let graph = self.graph;
        *self.known.entry(set).or_insert_with(|| rows(graph, set))
    }

    /// Returns the cost of a tree: the rows that its joins make below the root, and the pairs that are compared without
    /// a key (C_out of Cluet and Moerkotte, "On the complexity of generating optimal left-deep processing trees with
    /// cross products", ICDT 1995, <https://doi.org/10.1007/3-540-58907-4_6>).
    pub(super) fn cost(&mut self, tree: &Tree) -> f64 {
        self.cost_with_root(tree) - self.rows(tree.set())
    }

    fn cost_with_root(&mut self, tree: &Tree) -> f64 {
        match tree {
            Tree::Relation(_) => 0.0,
            Tree::Join(left, right) => {
                let below = self.cost_with_root(left) + self.cost_with_root(right);
                below + self.join_cost(left.set(), right.set())
            }
        }
    }

    /// Returns the cost of one join.
    pub(super) fn join_cost(&mut self, left: Set, right: Set) -> f64 {
        let pairs = match self.graph.keyed(left, right) {
            true => 0.0,
            false => self.rows(left) * self.rows(right),
        };
        self.rows(left | right) + pairs
    }

    /// Counts the tree's joins without a key.
    pub(super) fn products(&self, tree: &Tree) -> usize {
        match tree {
            Tree::Relation(_) => 0,
            Tree::Join(left, right) => {
                let here = usize::from(!self.graph.keyed(left.set(), right.set()));
                here + self.products(left) + self.products(right)
            }
        }
    }
}

fn rows(graph: &Graph, set: Set) -> f64 {
    let alone = |relation: usize| Joined::relation(graph, relation);
    let mut left: Vec<_> = members(set).collect();
    left.sort_by(|a, b| {
        let rows = |relation: usize| graph.relations[relation].rows;
        rows(*b).total_cmp(&rows(*a)).then(a.cmp(b))
    });
    let mut left = left.into_iter();
    let Some(largest) = left.next() else {
        return 1.0;
    };
    let (mut joined, mut done) = (alone(largest), only(largest));
    let mut left: Vec<_> = left.collect();
    while !left.is_empty() {
        let next = left.iter().enumerate().map(|(at, relation)| {
            let keyed = graph.keyed(done, only(*relation));
            (at, !keyed, joined.join(&alone(*relation)))
        });
        // Cross products come last.
        let next = next.min_by(|a, b| (a.1.cmp(&b.1)).then(a.2.rows.total_cmp(&b.2.rows)));
        let Some((at, _, next)) = next else { break };
        joined = next;
        done |= only(left.remove(at));
    }
    let filters = graph.filters.iter();
    let filters = filters.filter(|filter| filter.relations & !set == 0);
    let selectivity: f64 = filters.map(|filter| filter.selectivity).product();
    (joined.rows * selectivity).max(1.0)
}

impl Joined {
    fn relation(graph: &Graph, relation: usize) -> Self {
        let of = &graph.relations[relation];
        let values = graph.classes.iter().map(|class| {
            let mut members = class.members.iter();
            let member = members.find(|(member, _)| *member == relation);
            member.map(|(_, values)| *values)
        });
        Self {
            rows: of.rows,
            unfiltered: of.unfiltered,
            values: values.collect(),
        }
    }

    fn join(&self, other: &Self) -> Self {
        // Distinct keys of either side, with and without filters.
        let (mut distinct, mut unfiltered) = ([1.0; 2], [1.0; 2]);
        let mut values = Vec::with_capacity(self.values.len());
        for (a, b) in self.values.iter().zip(&other.values) {
            let (Some(a), Some(b)) = (a, b) else {
                values.push(a.or(*b));
                continue;
            };
            let within = [a.within(b), b.within(a)];
            for (side, own) in [a, b].into_iter().enumerate() {
                distinct[side] *= own.distinct;
                unfiltered[side] *= (own.unfiltered * within[side]).max(1.0);
            }
            values.push(Some(a.common(b, within)));
        }
        let rows = [self.rows, other.rows];
        let limits = [self.unfiltered, other.unfiltered];
        let keys = (0..2).map(|side| {
            let filtered = distinct[side].min(rows[side]);
            filtered.max(unfiltered[side].min(limits[side]))
        });
        let keys = keys.fold(1.0, f64::max);
        Self {
            rows: (rows[0] * rows[1] / keys).max(1.0),
            unfiltered: self.unfiltered.max(other.unfiltered),
            values,
        }
    }
}

impl Values {
    /// Returns the share of the values that lies within the other's range.
    fn within(&self, other: &Self) -> f64 {
        let (Some((low, high)), Some((other_low, other_high))) = (self.range, other.range) else {
            return 1.0;
        };
        let common = high.min(other_high) - low.max(other_low) + 1.0;
        (common / (high - low + 1.0)).clamp(0.0, 1.0)
    }

    /// Estimates the values that both have.
    fn common(&self, other: &Self, within: [f64; 2]) -> Self {
        let unfiltered = (self.unfiltered * within[0]).min(other.unfiltered * within[1]);
        let range = match (self.range, other.range) {
            (Some((a, b)), Some((c, d))) => Some((a.max(c), b.min(d))).filter(|(a, b)| a <= b),
            (a, b) => a.or(b),
        };
        Self {
            distinct: self.distinct.min(other.distinct),
            unfiltered: unfiltered.max(1.0),
            range,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Class, Filter, Relation};
    use super::*;

    fn relation(rows: f64, unfiltered: f64) -> Relation {
        Relation { rows, unfiltered }
    }

    fn values(distinct: f64, unfiltered: f64, range: (f64, f64)) -> Values {
        Values {
            distinct,
            unfiltered,
            range: Some(range),
        }
    }

    /// Builds sales of five years, and one year of a date dimension of two centuries.
    fn sales() -> Graph {
        Graph {
            relations: vec![relation(1e6, 1e6), relation(365.0, 73_000.0)],
            classes: vec![Class {
                members: vec![
                    (0, values(1825.0, 1825.0, (36_500.0, 38_324.0))),
                    (1, values(365.0, 73_000.0, (1.0, 73_000.0))),
                ],
            }],
            filters: vec![],
        }
    }

    #[test]
    fn keys_outside_of_the_other_sides_range_find_nothing() {
        let graph = sales();
        assert_eq!(Sizes::new(&graph).rows(0b11), 200_000.0);
    }

    #[test]
    fn filters_thin_and_products_do_not() {
        let mut graph = sales();
        graph.classes.clear();
        graph.filters = vec![Filter {
            relations: 0b11,
            selectivity: 0.1,
        }];
        assert_eq!(Sizes::new(&graph).rows(0b11), 36.5e6);
        let tree = Tree::join(Tree::Relation(0), Tree::Relation(1));
        assert_eq!(Sizes::new(&graph).cost(&tree), 365e6);
        assert_eq!(Sizes::new(&graph).products(&tree), 1);
    }

    #[test]
    fn keys_of_two_columns_are_no_more_than_rows() {
        // Returns of sales, by item and ticket: each matches its sale.
        let class = |a, b| Class {
            members: vec![
                (0, values(a, a, (1.0, 240_000.0))),
                (1, values(b, b, (1.0, 240_000.0))),
            ],
        };
        let graph = Graph {
            relations: vec![relation(3e6, 3e6), relation(3e5, 3e5)],
            classes: vec![class(18_000.0, 18_000.0), class(240_000.0, 170_000.0)],
            filters: vec![],
        };
        assert_eq!(Sizes::new(&graph).rows(0b11), 3e5);
    }
}
