//! Queries as trees that print themselves as SQL, so that they can be made smaller.
//!
//! An expression is text with holes: what it is made of matters for its type and for making it
//! smaller, not for anything else. What a result depends on to be *one* result (the order of a window
//! by a unique key) is text without holes: it stays while the rest gets smaller.

mod draw;
mod print;
mod smaller;
mod spelled;

pub(crate) use draw::{draw, draw_typed};
pub(crate) use smaller::smaller;
pub(crate) use spelled::{with_numbers, without_in};

use crate::tables::Type;

/// A query: `WITH …, SELECT … ORDER BY … LIMIT …`.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) with: Vec<Cte>,
    pub(crate) body: Body,
    /// Columns of the result that it is ordered by.
    pub(crate) order: Vec<Key>,
    pub(crate) limit: Option<usize>,
    pub(crate) offset: Option<usize>,
    /// All columns are keys of the order: a limit leaves no choice.
    pub(crate) total: bool,
}

/// A named query before the query.
#[derive(Debug, Clone)]
pub(crate) struct Cte {
    pub(crate) name: String,
    pub(crate) query: Named,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Query(Query),
    /// A recursive one, with its columns: text that stays as it is.
    Recursive(String),
}

/// What rows are made of.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Select(Box<Select>),
    Set {
        /// `UNION ALL` and the like.
        operator: &'static str,
        left: Box<Body>,
        right: Box<Body>,
    },
    /// Rows of constants, under these names.
    Values {
        names: Vec<String>,
        rows: Vec<Vec<Expr>>,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Select {
    pub(crate) distinct: bool,
    pub(crate) items: Vec<Item>,
    pub(crate) from: Option<Source>,
    /// Predicates that must all hold.
    pub(crate) filters: Vec<Expr>,
    pub(crate) group: Option<Group>,
    pub(crate) having: Option<Expr>,
    /// A condition of a window.
    pub(crate) qualify: Option<Expr>,
}

/// A column of the result, and its name.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) expr: Expr,
    pub(crate) name: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) by: Vec<Expr>,
    pub(crate) form: Grouping,
}

#[derive(Debug, Clone)]
pub(crate) enum Grouping {
    Plain,
    Rollup,
    Cube,
    /// Each set by the positions of its expressions.
    Sets(Vec<Vec<usize>>),
}

/// What rows are read from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Table {
        name: String,
        alias: String,
    },
    Query {
        query: Box<Query>,
        alias: String,
    },
    Join {
        /// `LEFT JOIN` and the like.
        kind: &'static str,
        left: Box<Source>,
        right: Box<Source>,
        /// Conditions that must all hold; none for a cross join.
        on: Vec<Expr>,
    },
}

/// A column of the result that rows are ordered by.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) descending: bool,
    pub(crate) nulls_first: Option<bool>,
}

/// An expression: text with holes.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) parts: Vec<Part>,
    /// `None` where nothing else has its type.
    pub(crate) of: Option<Type>,
}

#[derive(Debug, Clone)]
pub(crate) enum Part {
    Text(String),
    /// Text that can be left out.
    Optional(String),
    Expr(Expr),
    Query(Box<Query>),
}

impl Query {
    /// A query that is a body and nothing else.
    pub(crate) fn of(body: Body) -> Self {
        Self {
            with: Vec::new(),
            body,
            order: Vec::new(),
            limit: None,
            offset: None,
            total: false,
        }
    }
}

impl Body {
    /// The names of its columns.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Select(select) => select.items.iter().map(|item| item.name.clone()).collect(),
            Self::Set { left, .. } => left.names(),
            Self::Values { names, .. } => names.clone(),
        }
    }
}

impl Expr {
    /// Text with `{}` where its parts go.
    pub(crate) fn of(of: Type, template: &str, holes: Vec<Part>) -> Self {
        Self::any(Some(of), template, holes)
    }

    fn any(of: Option<Type>, template: &str, holes: Vec<Part>) -> Self {
        let mut parts = Vec::new();
        let mut holes = holes.into_iter();
        for (number, text) in template.split("{}").enumerate() {
            if number > 0 {
                parts.push(holes.next().expect("a part for each hole"));
            }
            if !text.is_empty() {
                parts.push(Part::Text(text.to_owned()));
            }
        }
        assert!(holes.next().is_none(), "a hole for each part");
        Self { parts, of }
    }

    /// Text without holes.
    pub(crate) fn text(of: Type, text: impl Into<String>) -> Self {
        Self {
            parts: vec![Part::Text(text.into())],
            of: Some(of),
        }
    }
}

impl From<Expr> for Part {
    fn from(expr: Expr) -> Self {
        Self::Expr(expr)
    }
}

impl From<Query> for Part {
    fn from(query: Query) -> Self {
        Self::Query(Box::new(query))
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}
