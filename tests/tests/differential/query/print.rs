//! Printing of trees as SQL.

use std::fmt::{Display, Formatter, Result};

use super::{Body, Cte, Expr, Group, Grouping, Item, Key, Named, Part, Query, Select, Source};

/// Writes a list with a separator.
fn list<T: Display>(f: &mut Formatter<'_>, items: &[T], between: &str) -> Result {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if !self.with.is_empty() {
            let recursive = |cte: &Cte| matches!(cte.query, Named::Recursive(_));
            f.write_str(match self.with.iter().any(recursive) {
                true => "WITH RECURSIVE ",
                false => "WITH ",
            })?;
            list(f, &self.with, ", ")?;
            f.write_str(" ")?;
        }
        self.body.fmt(f)?;
        if !self.order.is_empty() {
            f.write_str(" ORDER BY ")?;
            list(f, &self.order, ", ")?;
        }
        if let Some(limit) = self.limit {
            write!(f, " LIMIT {limit}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " OFFSET {offset}")?;
        }
        Ok(())
    }
}

impl Display for Cte {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.query {
            Named::Query(query) => write!(f, "{} AS ({query})", self.name),
            Named::Recursive(text) => write!(f, "{} {text}", self.name),
        }
    }
}

impl Display for Body {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Select(select) => select.fmt(f),
            Self::Set {
                operator,
                left,
                right,
            } => write!(f, "({left}) {operator} ({right})"),
            Self::Values { names, rows } => {
                f.write_str("SELECT ")?;
                let named = names.iter().enumerate();
                let named = named.map(|(at, name)| format!("column{} AS {name}", at + 1));
                list(f, &named.collect::<Vec<_>>(), ", ")?;
                f.write_str(" FROM (VALUES ")?;
                for (number, row) in rows.iter().enumerate() {
                    f.write_str(if number > 0 { ", (" } else { "(" })?;
                    list(f, row, ", ")?;
                    f.write_str(")")?;
                }
                f.write_str(") AS v")
            }
        }
    }
}

impl Display for Select {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(if self.distinct {
            "SELECT DISTINCT "
        } else {
            "SELECT "
        })?;
        list(f, &self.items, ", ")?;
        if let Some(from) = &self.from {
            write!(f, " FROM {from}")?;
        }
        if !self.filters.is_empty() {
            f.write_str(" WHERE ")?;
            list(f, &self.filters, " AND ")?;
        }
        if let Some(group) = &self.group {
            write!(f, "{group}")?;
        }
        if let Some(having) = &self.having {
            write!(f, " HAVING {having}")?;
        }
        if let Some(qualify) = &self.qualify {
            write!(f, " QUALIFY {qualify}")?;
        }
        Ok(())
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} AS {}", self.expr, self.name)
    }
}

impl Display for Group {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.by.is_empty() {
            return Ok(());
        }
        f.write_str(match self.form {
            Grouping::Plain => " GROUP BY ",
            Grouping::Rollup => " GROUP BY ROLLUP (",
            Grouping::Cube => " GROUP BY CUBE (",
            Grouping::Sets(_) => " GROUP BY GROUPING SETS (",
        })?;
        match &self.form {
            Grouping::Plain => return list(f, &self.by, ", "),
            Grouping::Rollup | Grouping::Cube => list(f, &self.by, ", ")?,
            Grouping::Sets(sets) => {
                let expr = |at: &usize| self.by.get(*at).map(ToString::to_string);
                let set = |set: &Vec<usize>| {
                    let exprs: Vec<_> = set.iter().filter_map(expr).collect();
                    format!("({})", exprs.join(", "))
                };
                list(f, &sets.iter().map(set).collect::<Vec<_>>(), ", ")?;
            }
        }
        f.write_str(")")
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Table { name, alias } => write!(f, "{name} {alias}"),
            Self::Query { query, alias } => write!(f, "({query}) {alias}"),
            Self::Join {
                kind,
                left,
                right,
                on,
            } => {
                write!(f, "{left} {kind} ")?;
                match **right {
                    Self::Join { .. } => write!(f, "({right})")?,
                    Self::Table { .. } | Self::Query { .. } => right.fmt(f)?,
                }
                if !on.is_empty() {
                    f.write_str(" ON ")?;
                    list(f, on, " AND ")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let direction = if self.descending { "DESC" } else { "ASC" };
        write!(f, "{} {direction}", self.name)?;
        match self.nulls_first {
            Some(true) => f.write_str(" NULLS FIRST"),
            Some(false) => f.write_str(" NULLS LAST"),
            None => Ok(()),
        }
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for part in &self.parts {
            match part {
                Part::Text(text) | Part::Optional(text) => f.write_str(text)?,
                Part::Expr(expr) => expr.fmt(f)?,
                Part::Query(query) => query.fmt(f)?,
            }
        }
        Ok(())
    }
}
