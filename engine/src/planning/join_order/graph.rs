//! A tree of inner joins as numbers: relations with their rows, columns that must be equal, and filters.
//!
//! ```text
//!   sales ─── item ───┐       class {sales.item, item.id, stock.item}: any two of them are a join key
//!     └──── stock ────┘       class {sales.day, date.id}
//!     └──── date              filter {sales, stock}: stock.quantity < sales.quantity
//! ```

/// Maximum number of relations of a reordered tree: a set of them is one word.
pub(super) const MOST: usize = 64;

/// Set of a graph's relations, a bit each.
pub(super) type Set = u64;

/// Returns the indexes of the relations in a set.
pub(super) fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..MOST).filter(move |relation| set >> relation & 1 == 1)
}

/// Returns the set of one relation; empty beyond [`MOST`].
pub(super) fn only(relation: usize) -> Set {
    let relation = u32::try_from(relation).ok();
    relation
        .and_then(|relation| 1_u64.checked_shl(relation))
        .unwrap_or(0)
}

/// Relations, equal columns and filters, from which an order is chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    pub(super) relations: Vec<Relation>,
    pub(super) classes: Vec<Class>,
    pub(super) filters: Vec<Filter>,
}

/// Number of rows of a relation, with and without its filters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Relation {
    pub(super) rows: f64,
    pub(super) unfiltered: f64,
}

/// Columns that have the same value in every output row, at most one of a relation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Class {
    /// Relation and values of each member.
    pub(super) members: Vec<(usize, Values)>,
}

impl Class {
    pub(super) fn set(&self) -> Set {
        let members = self.members.iter();
        members.fold(0, |set, (relation, _)| set | only(*relation))
    }

    /// Checks whether the class gives two sets of relations a join key.
    pub(super) fn joins(&self, left: Set, right: Set) -> bool {
        self.set() & left != 0 && self.set() & right != 0
    }
}

/// Statistics of a column's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values {
    /// Number of distinct values.
    pub(super) distinct: f64,
    /// Number of distinct values before the relation's filters.
    pub(super) unfiltered: f64,
    /// Minimum and maximum before filters, of integers and dates.
    pub(super) range: Option<(f64, f64)>,
}

/// Condition other than an equality of two columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Filter {
    /// Relations whose columns it reads.
    pub(super) relations: Set,
    pub(super) selectivity: f64,
}

impl Filter {
    /// Checks whether the filter can be evaluated where two sets of relations are joined, and not before.
    pub(super) fn joins(&self, left: Set, right: Set) -> bool {
        let within = |set: Set| self.relations & !set == 0;
        within(left | right) && !within(left) && !within(right)
    }
}

impl Graph {
    /// Returns the set of all relations.
    pub(super) fn all(&self) -> Set {
        (0..self.relations.len()).fold(0, |set, relation| set | only(relation))
    }

    /// Checks whether two sets have a join key.
    pub(super) fn keyed(&self, left: Set, right: Set) -> bool {
        self.classes.iter().any(|class| class.joins(left, right))
    }

    /// Checks whether two sets have a join key or filter.
    pub(super) fn linked(&self, left: Set, right: Set) -> bool {
        let filtered = || self.filters.iter().any(|filter| filter.joins(left, right));
        self.keyed(left, right) || filtered()
    }

    /// Checks whether keys lead from any relation to any other.
    pub(super) fn is_keyed(&self) -> bool {
        let mut reached = self.all() & 1;
        loop {
            let classes = self.classes.iter().map(Class::set);
            let next = classes.filter(|class| class & reached != 0);
            let next = next.fold(reached, |set, class| set | class);
            if next == reached {
                return reached == self.all();
            }
            reached = next;
        }
    }

    /// Checks that nothing links a set to the relations outside it.
    pub(super) fn is_apart(&self, set: Set) -> bool {
        let crosses = |relations: Set| relations & set != 0 && relations & !set != 0;
        let classes = self.classes.iter().map(Class::set);
        let filters = self.filters.iter().map(|filter| filter.relations);
        !classes.chain(filters).any(crosses)
    }
}

/// Order of joins.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Relation(usize),
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn join(left: Self, right: Self) -> Self {
        Self::Join(Box::new(left), Box::new(right))
    }

    /// Returns the set of relations in the tree.
    pub(super) fn set(&self) -> Set {
        match self {
            Self::Relation(relation) => only(*relation),
            Self::Join(left, right) => left.set() | right.set(),
        }
    }
}
