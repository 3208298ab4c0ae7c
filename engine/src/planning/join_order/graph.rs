//! A tree of inner joins as numbers: relations with their rows, columns that must be equal, and filters.
//!
//! ```text
//!   sales ─── item ───┐       class {sales.item, item.id, stock.item}: any two of them are a join key
//!     └──── stock ────┘       class {sales.day, date.id}
//!     └──── date              filter {sales, stock}: stock.quantity < sales.quantity
//! ```

/// Relations of a tree that is looked at, at most: a set of them is a word.
pub(super) const MOST: usize = 64;

/// Some of a graph's relations, a bit each.
pub(super) type Set = u64;

/// The relations in a set, by their indexes.
pub(super) fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..MOST).filter(move |relation| set >> relation & 1 == 1)
}

/// The set of one relation; none beyond [`MOST`].
pub(super) fn only(relation: usize) -> Set {
    let relation = u32::try_from(relation).ok();
    relation
        .and_then(|relation| 1_u64.checked_shl(relation))
        .unwrap_or(0)
}

/// What an order is chosen by.
#[derive(Debug, Clone, Default)]
pub(super) struct Graph {
    pub(super) relations: Vec<Relation>,
    pub(super) classes: Vec<Class>,
    pub(super) filters: Vec<Filter>,
}

/// How many rows a relation has, and would have if none were filtered out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Relation {
    pub(super) rows: f64,
    pub(super) unfiltered: f64,
}

/// Columns that have the same value in every row of the result, at most one of a relation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Class {
    /// By relation.
    pub(super) members: Vec<(usize, Values)>,
}

impl Class {
    pub(super) fn set(&self) -> Set {
        let members = self.members.iter();
        members.fold(0, |set, (relation, _)| set | only(*relation))
    }

    /// Whether it gives two sets of relations a key to join on.
    pub(super) fn joins(&self, left: Set, right: Set) -> bool {
        self.set() & left != 0 && self.set() & right != 0
    }
}

/// About the values of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values {
    /// How many there are.
    pub(super) distinct: f64,
    /// How many there are among the rows before the relation's filters.
    pub(super) unfiltered: f64,
    /// The least and the greatest before filters, of integers and dates.
    pub(super) range: Option<(f64, f64)>,
}

/// A condition that is no equality of two columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Filter {
    /// Whose columns it reads.
    pub(super) relations: Set,
    pub(super) selectivity: f64,
}

impl Filter {
    /// Whether it can be evaluated where two sets of relations are joined, and not before.
    pub(super) fn joins(&self, left: Set, right: Set) -> bool {
        let within = |set: Set| self.relations & !set == 0;
        within(left | right) && !within(left) && !within(right)
    }
}

impl Graph {
    /// All its relations.
    pub(super) fn all(&self) -> Set {
        (0..self.relations.len()).fold(0, |set, relation| set | only(relation))
    }

    /// Whether two sets have a key to join on.
    pub(super) fn keyed(&self, left: Set, right: Set) -> bool {
        self.classes.iter().any(|class| class.joins(left, right))
    }

    /// Whether two sets have a key or a condition to join on.
    pub(super) fn linked(&self, left: Set, right: Set) -> bool {
        let filtered = || self.filters.iter().any(|filter| filter.joins(left, right));
        self.keyed(left, right) || filtered()
    }

    /// Whether keys lead from any relation to any other.
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

    /// Whether nothing links a set to the relations that are not in it.
    pub(super) fn is_apart(&self, set: Set) -> bool {
        let crosses = |relations: Set| relations & set != 0 && relations & !set != 0;
        let classes = self.classes.iter().map(Class::set);
        let filters = self.filters.iter().map(|filter| filter.relations);
        !classes.chain(filters).any(crosses)
    }
}

/// An order of joins.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Relation(usize),
    Join(Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn join(left: Self, right: Self) -> Self {
        Self::Join(Box::new(left), Box::new(right))
    }

    /// The relations in it.
    pub(super) fn set(&self) -> Set {
        match self {
            Self::Relation(relation) => only(*relation),
            Self::Join(left, right) => left.set() | right.set(),
        }
    }
}
