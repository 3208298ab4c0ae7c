//! Drawing of queries that have exactly one answer.
//!
//! The questions avoid everything that SQL leaves open. Values that depend on the order of rows (`row_number`, a
//! frame of `ROWS`, `array_agg`) are ordered by a unique key. Values that depend on the order of additions (sums of
//! floats) are columns of the result and never keys or parts of conditions. Nothing divides by zero or overflows,
//! because SQL also leaves open the rows for which an error is raised.

mod aggregate;
mod predicate;
mod scalar;
mod select;
mod source;
mod window;

use std::mem::take;

use super::{Body, Cte, Expr, Item, Key, Named, Query, Select, Source};
use crate::dice::Dice;
use crate::tables::{Table, Type};

/// Column of a table or of a query.
#[derive(Debug, Clone)]
struct Col {
    name: String,
    /// Type of the column; `None` if nothing can be made of it.
    of: Option<Type>,
    /// True if its values do not depend on the order of rows; a sum of floats does.
    exact: bool,
}

/// Relation to read from: a table, a query, or one of them under an alias.
#[derive(Debug, Clone)]
struct Relation {
    /// Name of the table that is read; empty for others.
    source: String,
    name: String,
    columns: Vec<Col>,
    /// Columns that are unique together.
    unique: Option<Vec<String>>,
    /// Rough maximum of the number of rows.
    rows: usize,
}

/// Maximum number of rows of a join.
const MOST_ROWS: usize = 6_000;

/// Draws a query over these tables.
pub(crate) fn draw(dice: &mut Dice, tables: &[Table]) -> Query {
    let known = tables.iter().map(relation).collect();
    let mut draw = Draw {
        dice,
        known,
        aliases: 0,
    };
    draw.whole()
}

/// Draws a query with its columns' types, all of which `may_be` admits; its rows have no order.
pub(crate) fn draw_typed(
    dice: &mut Dice,
    tables: &[Table],
    may_be: impl Fn(Type) -> bool,
) -> (Query, Vec<(String, Type)>) {
    let mut draw = Draw {
        dice,
        known: tables.iter().map(relation).collect(),
        aliases: 0,
    };
    loop {
        let (query, shape) = draw.inner(1);
        let typed = |column: &Col| Some((column.name.clone(), column.of.filter(|of| may_be(*of))?));
        if let Some(columns) = shape.columns.iter().map(typed).collect() {
            return (query, columns);
        }
    }
}

fn relation(table: &Table) -> Relation {
    let column = |column: &crate::tables::Column| Col {
        name: column.name.clone(),
        of: Some(column.data_type),
        exact: true,
    };
    Relation {
        source: table.name.clone(),
        name: table.name.clone(),
        columns: table.columns.iter().map(column).collect(),
        unique: Some(vec!["id".to_owned()]),
        rows: table.rows(),
    }
}

struct Draw<'a> {
    dice: &'a mut Dice,
    /// Tables and named queries.
    known: Vec<Relation>,
    aliases: usize,
}

impl Relation {
    /// Returns the exact columns of the type.
    fn of_type(&self, of: Type) -> impl Iterator<Item = &Col> {
        let usable = move |column: &&Col| column.exact && column.of == Some(of);
        self.columns.iter().filter(usable)
    }

    fn types(&self) -> Option<Vec<Type>> {
        self.columns.iter().map(|column| column.of).collect()
    }

    /// Returns whether all columns can be keys of an order.
    fn can_be_ordered(&self) -> bool {
        let mut columns = self.columns.iter();
        columns.all(|column| column.exact && column.of.is_some_and(|of| !of.is_nested()))
    }
}

/// Limit above every number of rows.
const ALL: usize = 1_000_000;

impl Draw<'_> {
    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("r{}", self.aliases)
    }

    fn whole(&mut self) -> Query {
        let mut with = Vec::new();
        while self.dice.chance(15) && with.len() < 2 {
            with.push(self.cte());
        }
        let depth = self.dice.pick(&[1, 1, 2, 2, 3]);
        let (body, shape) = self.body(depth, None);
        let mut query = Query::of(body);
        query.with = with;
        match self.dice.below(100) {
            0..35 => {}
            35..65 => self.order_by_some(&mut query, &shape),
            65..90 => {
                self.limit_in_order(&mut query, &shape);
                if self.dice.chance(15) {
                    query = self.limit_again(query, &shape);
                }
            }
            _ => {
                if self.dice.chance(50) {
                    self.order_by_some(&mut query, &shape);
                }
                query.limit = Some(self.dice.below(8));
            }
        }
        query
    }

    /// Draws a query within another.
    fn inner(&mut self, depth: usize) -> (Query, Relation) {
        let (body, mut shape) = self.body(depth, None);
        let mut query = Query::of(body);
        if self.dice.chance(20) {
            self.limit_in_order(&mut query, &shape);
            if query.order.len() > 1 && self.dice.chance(25) {
                // All rows, in an order that leaves part of it open.
                query.order.pop();
                (query.limit, query.offset, query.total) = (Some(ALL), None, false);
            }
            shape.rows = shape.rows.min(query.limit.unwrap_or(usize::MAX));
            if self.dice.chance(15) {
                query = self.limit_again(query, &shape);
            }
        }
        (query, shape)
    }

    fn cte(&mut self) -> Cte {
        let name = format!("w{}", self.known.len());
        if self.dice.chance(35) {
            let (text, shape) = self.recursive(&name);
            self.known.push(shape);
            return Cte {
                name,
                query: Named::Recursive(text),
            };
        }
        let (query, mut shape) = self.inner(1);
        (shape.source, shape.name) = (name.clone(), name.clone());
        self.known.push(shape);
        Cte {
            name,
            query: Named::Query(query),
        }
    }

    /// Draws a recursive query that ends.
    fn recursive(&mut self, name: &str) -> (String, Relation) {
        let steps = self.dice.between(0, 6);
        let all = self.dice.pick(&["UNION ALL", "UNION ALL", "UNION"]);
        let ints = |names: &[&str]| {
            let column = |name: &&str| Col {
                name: (*name).to_owned(),
                of: Some(Type::Int),
                exact: true,
            };
            names.iter().map(column).collect()
        };
        let tables: Vec<_> = self
            .known
            .iter()
            .filter(|known| known.name.starts_with('t'))
            .collect();
        let table = tables[self.dice.below(tables.len())];
        if table.rows == 0 || table.rows > 1_000 || self.dice.chance(50) {
            let text = format!(
                "(n, d) AS (SELECT CAST(1 AS BIGINT) AS n, CAST(0 AS BIGINT) AS d {all} \
                 SELECT n * 2, d + 1 FROM {name} WHERE d < {steps})"
            );
            let shape = Relation {
                source: name.to_owned(),
                name: name.to_owned(),
                columns: ints(&["n", "d"]),
                unique: Some(vec!["d".to_owned()]),
                rows: 7,
            };
            return (text, shape);
        }
        // Each row leads to at most one other: the row whose id equals its key.
        let text = format!(
            "(n, k, d) AS (SELECT id, CAST(k AS BIGINT), CAST(0 AS BIGINT) FROM {table} \
             WHERE id < 5 {all} SELECT b.id, CAST(b.k AS BIGINT), a.d + 1 \
             FROM {name} a JOIN {table} b ON a.k = b.id WHERE a.d < {steps})",
            table = table.name
        );
        let shape = Relation {
            source: name.to_owned(),
            name: name.to_owned(),
            columns: ints(&["n", "k", "d"]),
            unique: None,
            rows: 60,
        };
        (text, shape)
    }

    /// Draws rows of some form, with these types if they are given.
    fn body(&mut self, depth: usize, want: Option<&[Type]>) -> (Body, Relation) {
        if depth > 0 && self.dice.chance(15) {
            return self.set(depth - 1, want);
        }
        if self.dice.chance(4) {
            return self.values(want);
        }
        self.select(depth, want)
    }

    fn set(&mut self, depth: usize, want: Option<&[Type]>) -> (Body, Relation) {
        let (left, mut shape) = self.body(depth, want);
        let Some(types) = shape.types() else {
            return (left, shape);
        };
        let (right, of_right) = self.body(depth, Some(&types));
        for (column, of_right) in shape.columns.iter_mut().zip(&of_right.columns) {
            column.exact &= of_right.exact;
        }
        // Only exact values may be compared.
        let operator = match shape.can_be_ordered() {
            true => self.dice.weighted(&[
                (6, "UNION ALL"),
                (3, "UNION"),
                (2, "INTERSECT"),
                (2, "EXCEPT"),
                (1, "INTERSECT ALL"),
                (1, "EXCEPT ALL"),
            ]),
            false => "UNION ALL",
        };
        let names = shape.columns.iter().map(|column| column.name.clone());
        let distinct = matches!(operator, "UNION" | "INTERSECT" | "EXCEPT");
        shape.unique = distinct.then(|| names.collect());
        if operator.starts_with("UNION") {
            shape.rows += of_right.rows;
        }
        let body = Body::Set {
            operator,
            left: Box::new(left),
            right: Box::new(right),
        };
        (body, shape)
    }

    fn values(&mut self, want: Option<&[Type]>) -> (Body, Relation) {
        let types = match want {
            Some(types) => types.to_vec(),
            None => (0..self.dice.pick(&[1, 2, 3]))
                .map(|_| self.dice.pick(&Type::PLAIN))
                .collect(),
        };
        let count = self.dice.pick(&[1, 1, 3, 6]);
        let rows = (0..count)
            .map(|_| types.iter().map(|of| self.literal(*of)).collect())
            .collect();
        let columns: Vec<_> = types
            .iter()
            .enumerate()
            .map(|(at, of)| col(at, *of))
            .collect();
        let body = Body::Values {
            names: columns.iter().map(|column| column.name.clone()).collect(),
            rows,
        };
        let shape = Relation {
            source: String::new(),
            name: String::new(),
            columns,
            unique: None,
            rows: count,
        };
        (body, shape)
    }

    /// Orders by some of the columns that can be keys.
    fn order_by_some(&mut self, query: &mut Query, shape: &Relation) {
        let mut names: Vec<_> = shape
            .columns
            .iter()
            .filter(|column| column.exact && column.of.is_some_and(|of| !of.is_nested()))
            .map(|column| column.name.clone())
            .collect();
        self.dice.shuffle(&mut names);
        names.truncate(1 + self.dice.below(3));
        query.order = names.into_iter().map(|name| self.key(name)).collect();
    }

    /// Orders by all columns and limits the rows.
    fn limit_in_order(&mut self, query: &mut Query, shape: &Relation) {
        if !shape.can_be_ordered() {
            return;
        }
        let mut names: Vec<_> = shape
            .columns
            .iter()
            .map(|column| column.name.clone())
            .collect();
        self.dice.shuffle(&mut names);
        query.order = names.into_iter().map(|name| self.key(name)).collect();
        query.total = true;
        if self.dice.chance(90) {
            query.limit = Some(
                self.dice
                    .weighted(&[(1, 0), (4, 1), (6, 5), (6, 20), (2, 1_000)]),
            );
        }
        if self.dice.chance(30) {
            query.offset = Some(self.dice.weighted(&[(1, 0), (3, 1), (3, 4), (1, 50)]));
        }
    }

    /// Limits the rows that a limit left again, in the same order.
    fn limit_again(&mut self, mut within: Query, shape: &Relation) -> Query {
        let alias = self.alias();
        let (with, order, total) = (take(&mut within.with), within.order.clone(), within.total);
        let items = shape.columns.iter().map(|column| Item {
            expr: Expr {
                parts: vec![format!("{alias}.{}", column.name).into()],
                of: column.of,
            },
            name: column.name.clone(),
        });
        let items = items.collect();
        let query = Box::new(within);
        let mut query = Query::of(Body::Select(Box::new(Select {
            distinct: false,
            items,
            from: Some(Source::Query { query, alias }),
            filters: Vec::new(),
            group: None,
            having: None,
            qualify: None,
        })));
        (query.with, query.order, query.total) = (with, order, total);
        if total {
            query.limit = Some(self.dice.weighted(&[(1, 0), (4, 1), (6, 5), (6, 20)]));
            if self.dice.chance(30) {
                query.offset = Some(self.dice.weighted(&[(3, 1), (3, 4)]));
            }
        }
        query
    }

    fn key(&mut self, name: String) -> Key {
        Key {
            name,
            descending: self.dice.chance(40),
            nulls_first: self.dice.pick(&[None, Some(true), Some(false)]),
        }
    }
}

/// Returns a column of a result by its number.
fn col(at: usize, of: Type) -> Col {
    Col {
        name: format!("c{at}"),
        of: Some(of),
        exact: true,
    }
}

/// Returns the columns that are unique together in a join of these relations, as SQL expressions.
fn total_key(scope: &[Relation]) -> Option<Vec<String>> {
    let mut keys = Vec::new();
    for relation in scope {
        let unique = relation.unique.as_ref()?;
        keys.extend(
            unique
                .iter()
                .map(|name| format!("{}.{name}", relation.name)),
        );
    }
    Some(keys)
}

/// Returns a reference to a column.
fn reference(relation: &Relation, column: &Col) -> Expr {
    Expr {
        parts: vec![format!("{}.{}", relation.name, column.name).into()],
        of: column.of,
    }
}
