//! Queries as trees that print themselves as SQL, so that they can be reduced.
//!
//! An expression is text with holes: only its type and its reduction depend on its structure. Parts that make a
//! result *one* result (the order of a window by a unique key) are text without holes: they stay while the rest is
//! reduced.

mod draw;
mod print;
mod smaller;
mod spelled;

pub(crate) use draw::{draw, draw_typed};
pub(crate) use smaller::smaller;
pub(crate) use spelled::{with_numbers, without_in};

use crate::tables::Type;

/// Query: `WITH …, SELECT … ORDER BY … LIMIT …`.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) with: Vec<Cte>,
    pub(crate) body: Body,
    /// Columns of the result that it is ordered by.
    pub(crate) order: Vec<Key>,
    pub(crate) limit: Option<usize>,
    pub(crate) offset: Option<usize>,
    /// True if all columns are keys of the order: then a limit leaves no choice.
    pub(crate) total: bool,
}

/// Named query in a `WITH` clause.
#[derive(Debug, Clone)]
pub(crate) struct Cte {
    pub(crate) name: String,
    pub(crate) query: Named,
}

/// Content of a named query.
#[derive(Debug, Clone)]
pub(crate) enum Named {
    Query(Query),
    /// Recursive query with its columns, as text that is not reduced.
    Recursive(String),
}

/// Producer of rows.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Select(Box<Select>),
    Set {
        /// Operator, such as `UNION ALL`.
        operator: &'static str,
        left: Box<Body>,
        right: Box<Body>,
    },
    /// Rows of constants, with column names.
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
    /// Condition on a window.
    pub(crate) qualify: Option<Expr>,
}

/// Column of the result, with its name.
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
    /// Grouping sets, each as positions of expressions.
    Sets(Vec<Vec<usize>>),
}

/// Source of rows.
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
        /// Kind of join, such as `LEFT JOIN`.
        kind: &'static str,
        left: Box<Source>,
        right: Box<Source>,
        /// Conditions that must all hold; empty for a cross join.
        on: Vec<Expr>,
    },
}

/// Column of the result that rows are ordered by.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) descending: bool,
    pub(crate) nulls_first: Option<bool>,
}

/// Expression: text with holes.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) parts: Vec<Part>,
    /// Type; `None` if no other expression has it.
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
    /// Returns a query that consists of a body only.
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
    /// Returns the names of its columns.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Select(select) => select.items.iter().map(|item| item.name.clone()).collect(),
            Self::Set { left, .. } => left.names(),
            Self::Values { names, .. } => names.clone(),
        }
    }
}

impl Expr {
    /// Returns an expression from a template with `{}` for its parts.
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

    /// Returns an expression without holes.
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
