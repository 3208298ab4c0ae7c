//! Drawing of groups and aggregates.

use super::select::Items;
use super::{Draw, Relation, total_key};
use crate::query::{Expr, Group, Grouping, Select};
use crate::tables::Type;

use Type::{Bool, Date, Decimal, Double, Int, List, Small, Text, Timestamp};

/// Aggregates that are exact in any order of rows, with their types of result and argument.
const EXACT: &[(Type, &str, Type)] = &[
    (Int, "count({})", Int),
    (Int, "count({})", Text),
    (Int, "count(DISTINCT {})", Int),
    (Int, "count(DISTINCT {})", Text),
    (Int, "count(DISTINCT {})", Double),
    (Int, "sum({})", Int),
    (Int, "sum({})", Small),
    (Int, "sum(DISTINCT {})", Int),
    (Int, "min({})", Int),
    (Int, "max({})", Int),
    (Int, "bit_xor({})", Int),
    (Int, "bit_and({})", Int),
    (Int, "CAST(approx_distinct({}) AS BIGINT)", Int),
    (Int, "CAST(median({}) AS BIGINT)", Int),
    (
        Int,
        "CAST(array_length(array_agg(DISTINCT {})) AS BIGINT)",
        Text,
    ),
    (Int, "CAST(regr_count({}, 1) AS BIGINT)", Int),
    (Small, "min({})", Small),
    (Small, "max({})", Small),
    (Double, "min({})", Double),
    (Double, "max({})", Double),
    (Decimal, "min({})", Decimal),
    (Decimal, "max({})", Decimal),
    (Decimal, "CAST(sum({}) AS DECIMAL(12, 2))", Decimal),
    (Text, "min({})", Text),
    (Text, "max({})", Text),
    (Bool, "bool_and({})", Bool),
    (Bool, "bool_or({})", Bool),
    (Date, "min({})", Date),
    (Date, "max({})", Date),
    (Timestamp, "min({})", Timestamp),
    (Timestamp, "max({})", Timestamp),
];

/// Aggregates whose rounding depends on the order of rows.
const ROUNDED: &[(&str, Type)] = &[
    ("sum({})", Double),
    ("avg({})", Double),
    ("avg({})", Int),
    ("var_pop({})", Int),
    ("avg({})", Decimal),
    ("corr({}, {})", Int),
    ("covar_samp({}, {})", Small),
    ("stddev({})", Double),
];

impl Draw<'_> {
    /// Groups the rows that a `SELECT` reads. Returns the names of columns that are unique together, if there are
    /// any.
    pub(super) fn groups(
        &mut self,
        scope: &[Relation],
        want: Option<&[Type]>,
        items: &mut Items,
        select: &mut Select,
    ) -> Option<Vec<String>> {
        if let Some(types) = want {
            self.wanted_groups(scope, types, items, select);
            return None;
        }
        let count = self.dice.weighted(&[(2, 0), (6, 1), (4, 2), (2, 3)]);
        let by: Vec<_> = (0..count).filter_map(|_| self.group_key(scope)).collect();
        let form = match by.len() {
            2.. if self.dice.chance(35) => match self.dice.below(3) {
                0 => Grouping::Rollup,
                1 => Grouping::Cube,
                _ => {
                    let all: Vec<_> = (0..by.len()).collect();
                    let mut sets = vec![all.clone(), vec![all[0]], vec![all[1]], Vec::new()];
                    sets.truncate(1 + self.dice.below(4));
                    Grouping::Sets(sets)
                }
            },
            _ => Grouping::Plain,
        };
        let plain = matches!(form, Grouping::Plain);
        for expr in &by {
            items.add(expr.clone(), true);
        }
        for expr in by.iter().filter(|_| !plain) {
            if self.dice.chance(50) {
                let id = Expr::of(
                    Int,
                    "CAST(grouping({}) AS BIGINT)",
                    vec![expr.clone().into()],
                );
                items.add(id, true);
            }
        }
        let unique = (0..by.len()).map(|at| format!("c{at}")).collect();
        for _ in 0..self.dice.pick(&[1, 2, 3]) {
            let (expr, exact) = self.aggregate(scope);
            items.add(expr, exact);
        }
        if self.dice.chance(12) {
            // A window over groups, equal for peers.
            let (of, _) = self.exact_aggregate_type();
            let order = self.aggregate_of(of, scope);
            let rank = self.dice.pick(&[
                "CAST(rank() OVER (ORDER BY {}) AS BIGINT)",
                "CAST(dense_rank() OVER (ORDER BY {} DESC) AS BIGINT)",
                "CAST(sum(count(*)) OVER (ORDER BY {}) AS BIGINT)",
            ]);
            items.add(Expr::of(Int, rank, vec![order.into()]), true);
        }
        if self.dice.chance(25) {
            select.having = Some(self.having(scope));
        }
        select.group = (!by.is_empty()).then_some(Group { by, form });
        plain.then_some(unique)
    }

    /// Groups with items of these types; the first may be a key.
    fn wanted_groups(
        &mut self,
        scope: &[Relation],
        types: &[Type],
        items: &mut Items,
        select: &mut Select,
    ) {
        let mut by = Vec::new();
        for (at, of) in types.iter().enumerate() {
            if at == 0 && self.dice.chance(60) {
                let key = self.scalar(*of, scope, 1);
                if !is_position(&key) {
                    by.push(key.clone());
                    items.add(key, true);
                    continue;
                }
            }
            let aggregate = self.aggregate_of(*of, scope);
            items.add(aggregate, true);
        }
        let form = Grouping::Plain;
        select.group = (!by.is_empty()).then_some(Group { by, form });
    }

    fn group_key(&mut self, scope: &[Relation]) -> Option<Expr> {
        let (of, column) = self.some_column(scope)?;
        if self.dice.chance(75) {
            return Some(column);
        }
        let key = self.scalar(of, scope, 1);
        (!is_position(&key)).then_some(key)
    }

    fn having(&mut self, scope: &[Relation]) -> Expr {
        let (of, _) = self.exact_aggregate_type();
        let aggregate = self.aggregate_of(of, scope).into();
        let value = self.literal(of).into();
        let template = self.dice.pick(&["({} > {})", "({} <> {})", "({} <= {})"]);
        Expr::of(Bool, template, vec![aggregate, value])
    }

    fn exact_aggregate_type(&mut self) -> (Type, usize) {
        let at = self.dice.below(EXACT.len());
        (EXACT[at].0, at)
    }

    /// Draws an aggregate of the type, which must not be nested.
    fn aggregate_of(&mut self, of: Type, scope: &[Relation]) -> Expr {
        let those: Vec<_> = EXACT.iter().filter(|(gives, ..)| *gives == of).collect();
        let (_, template, takes) = those[self.dice.below(those.len())];
        let value = self.scalar(*takes, scope, 1).into();
        Expr::of(of, template, vec![value])
    }

    /// Draws an aggregate, and returns whether it is exact.
    fn aggregate(&mut self, scope: &[Relation]) -> (Expr, bool) {
        let (expr, exact) = match self.dice.below(10) {
            0 => (Expr::text(Int, "count(*)"), true),
            1 => {
                let (template, takes) = self.dice.pick(ROUNDED);
                let count = template.matches("{}").count();
                let values = (0..count).map(|_| self.scalar(takes, scope, 1).into());
                let values = values.collect();
                (
                    Expr {
                        of: None,
                        ..Expr::of(Double, template, values)
                    },
                    false,
                )
            }
            2 | 3 => match self.ordered(scope) {
                Some(ordered) => return self.filtered(scope, ordered, true),
                None => (Expr::text(Int, "count(*)"), true),
            },
            _ => {
                let (of, _) = self.exact_aggregate_type();
                (self.aggregate_of(of, scope), true)
            }
        };
        // A call within a cast cannot have a filter.
        match expr.to_string().starts_with("CAST") {
            true => (expr, exact),
            false => self.filtered(scope, expr, exact),
        }
    }

    fn filtered(&mut self, scope: &[Relation], call: Expr, exact: bool) -> (Expr, bool) {
        if !self.dice.chance(20) {
            return (call, exact);
        }
        let filter = self.predicate(scope, 1).into();
        let of = call.of;
        let filtered = Expr::of(Int, "{} FILTER (WHERE {})", vec![call.into(), filter]);
        (Expr { of, ..filtered }, exact)
    }

    /// Draws an aggregate over rows in a total order, or over values in their own order.
    fn ordered(&mut self, scope: &[Relation]) -> Option<Expr> {
        let (of, column) = self.some_column(scope)?;
        let direction = self
            .dice
            .pick(&["", " DESC", " NULLS FIRST", " DESC NULLS LAST"]);
        if self.dice.chance(30) {
            // Equal values are interchangeable.
            let value = column.to_string();
            return Some(match of {
                Text => Expr::text(
                    Text,
                    format!("string_agg({value}, ',' ORDER BY {value}{direction})"),
                ),
                Int => Expr::text(
                    List,
                    format!("array_agg({value} ORDER BY {value}{direction})"),
                ),
                _ => Expr {
                    of: None,
                    ..Expr::text(
                        of,
                        format!("array_agg({value} ORDER BY {value}{direction})"),
                    )
                },
            });
        }
        let key = total_key(scope)?;
        if key.is_empty() {
            return None;
        }
        let keys: Vec<_> = key.iter().map(|key| format!("{key}{direction}")).collect();
        let first = self.some_column(scope)?.1;
        let keys = match self.dice.chance(40) {
            true => format!("{first}, {}", keys.join(", ")),
            false => keys.join(", "),
        };
        let call = |of: Option<Type>, template: &str| {
            let text = template.replace("KEYS", &keys);
            let expr = Expr::of(Int, &text, vec![column.clone().into()]);
            Expr { of, ..expr }
        };
        let list = (of == Int).then_some(List);
        Some(match self.dice.below(5) {
            0 => call(list, "array_agg({} ORDER BY KEYS)"),
            1 => call(Some(of), "first_value({} ORDER BY KEYS)"),
            2 => call(Some(of), "last_value({} ORDER BY KEYS)"),
            3 => call(Some(of), "nth_value({}, 2 ORDER BY KEYS)"),
            _ if of == Text => call(Some(Text), "string_agg({}, '|' ORDER BY KEYS)"),
            _ => call(list, "array_agg({} ORDER BY KEYS)"),
        })
    }
}

/// Checks for a key that would be read as the position of an item.
fn is_position(key: &Expr) -> bool {
    key.to_string().parse::<i64>().is_ok()
}
