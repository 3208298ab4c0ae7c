//! Drawing of window functions.
//!
//! Functions that distinguish rows with equal keys are ordered by a unique key at the end; the others (ranks,
//! aggregates whose frame has all rows of equal keys) need none.

use super::{Draw, Relation};
use crate::query::{Expr, Part};
use crate::tables::Type;

use Type::{Date, Decimal, Double, Int, Small, Text, Timestamp};

/// Aggregates over frames, with their types of result and argument.
const FRAMED: &[(Type, &str, Type)] = &[
    (Int, "count({})", Int),
    (Int, "count({})", Text),
    (Int, "sum({})", Int),
    (Int, "sum({})", Small),
    (Int, "min({})", Int),
    (Int, "max({})", Int),
    (Int, "bit_xor({})", Int),
    (Int, "bit_or({})", Int),
    (Double, "min({})", Double),
    (Double, "max({})", Double),
    (Decimal, "max({})", Decimal),
    (Text, "min({})", Text),
    (Text, "max({})", Text),
    (Date, "max({})", Date),
    (Timestamp, "min({})", Timestamp),
    (Small, "max({})", Small),
];

/// Functions of floats, which are as exact as their order allows.
const OF_FLOATS: [&str; 4] = ["sum({})", "avg({})", "stddev({})", "var_pop({})"];

/// Functions that are equal for rows with equal keys.
const RANKS: [&str; 4] = ["rank()", "dense_rank()", "percent_rank()", "cume_dist()"];

const UNITS: [&str; 3] = ["ROWS", "RANGE", "GROUPS"];

impl Draw<'_> {
    /// Draws a window function, and returns whether it is exact. `key` is the unique key in this scope.
    pub(super) fn window(&mut self, scope: &[Relation], key: Option<&[String]>) -> (Expr, bool) {
        let call = self.dice.below(10);
        match (call, key.filter(|key| !key.is_empty())) {
            (0, _) if self.dice.chance(50) => {
                let template = self.dice.pick(&OF_FLOATS);
                (self.framed(Double, template, Double, scope, key), false)
            }
            (0, _) => {
                let rank = self.dice.pick(&RANKS);
                let window = self.over(scope, None, false);
                let exact = rank.contains("rank()") && !rank.contains("percent");
                let of = exact.then_some(Int);
                let template = if exact {
                    "CAST({} OVER {} AS BIGINT)"
                } else {
                    "{} OVER {}"
                };
                let parts = vec![Part::Text(rank.to_owned()), window];
                (
                    Expr {
                        of,
                        ..Expr::of(Int, template, parts)
                    },
                    exact,
                )
            }
            (1 | 2, Some(key)) => {
                let number = self
                    .dice
                    .pick(&["row_number()", "row_number()", "ntile(3)"]);
                let window = self.over(scope, Some(key), false);
                let parts = vec![Part::Text(number.to_owned()), window];
                (Expr::of(Int, "CAST({} OVER {} AS BIGINT)", parts), true)
            }
            (3..=5, Some(key)) => (self.of_one_row(scope, key), true),
            _ => {
                let (of, template, takes) = self.dice.pick(FRAMED);
                (self.framed(of, template, takes, scope, key), true)
            }
        }
    }

    /// Draws an exact window function of this type, if there is one.
    pub(super) fn window_of(
        &mut self,
        of: Type,
        scope: &[Relation],
        key: Option<&[String]>,
    ) -> Option<Expr> {
        let those: Vec<_> = FRAMED
            .iter()
            .filter(|(gives, ..)| *gives == of)
            .copied()
            .collect();
        if those.is_empty() {
            return None;
        }
        let (of, template, takes) = self.dice.pick(&those);
        Some(self.framed(of, template, takes, scope, key))
    }

    /// Draws a function that returns the value of one row.
    fn of_one_row(&mut self, scope: &[Relation], key: &[String]) -> Expr {
        let of = self.some_column(scope).map_or(Int, |(of, _)| of);
        let value = self.scalar(of, scope, 1).into();
        let framed = ["first_value({})", "last_value({})", "nth_value({}, 2)"];
        let shifted = [
            "lag({})",
            "lead({})",
            "lag({}, 2)",
            "lag({}, -2)",
            "lead({}, 2, {})",
            "lag({}, 1, {})",
        ];
        let (call, has_frame) = match self.dice.chance(55) {
            true => (self.dice.pick(&framed), true),
            // A frame has no effect on these.
            false => (self.dice.pick(&shifted), self.dice.chance(30)),
        };
        let mut holes: Vec<Part> = vec![value];
        if call.matches("{}").count() == 2 {
            holes.push(self.literal(of).into());
        }
        let nulls = self.dice.pick(&["", "", " IGNORE NULLS", " RESPECT NULLS"]);
        holes.push(self.over(scope, Some(key), has_frame));
        Expr::of(of, &format!("{call}{nulls} OVER {{}}"), holes)
    }

    fn framed(
        &mut self,
        of: Type,
        template: &str,
        takes: Type,
        scope: &[Relation],
        key: Option<&[String]>,
    ) -> Expr {
        let value = self.scalar(takes, scope, 1).into();
        let mut holes = vec![value];
        let mut template = template.to_owned();
        if self.dice.chance(20) {
            template += " FILTER (WHERE {})";
            holes.push(self.predicate(scope, 1).into());
        }
        let key = key.filter(|key| !key.is_empty() && self.dice.chance(60));
        holes.push(self.over(scope, key, true));
        Expr::of(of, &format!("{template} OVER {{}}"), holes)
    }

    /// Draws `(PARTITION BY … ORDER BY … frame)`, with the key at the end of the order if it is given. Without a
    /// key, frames contain all rows of equal keys.
    fn over(&mut self, scope: &[Relation], key: Option<&[String]>, has_frame: bool) -> Part {
        let mut parts = vec![Part::Text("(".to_owned())];
        let count = self.dice.weighted(&[(4, 0), (5, 1), (1, 2)]);
        let partition: Vec<_> = (0..count).filter_map(|_| self.some_column(scope)).collect();
        if !partition.is_empty() {
            let columns: Vec<_> = partition
                .iter()
                .map(|(_, column)| column.to_string())
                .collect();
            let columns = columns.join(", ");
            parts.push(Part::Optional(format!("PARTITION BY {columns} ")));
        }
        let mut order = Vec::new();
        let mut first = None;
        let count = match key {
            Some(_) => self.dice.pick(&[0, 0, 1, 2]),
            None => self.dice.pick(&[0, 1, 1, 2]),
        };
        for _ in 0..count {
            let column = match partition.is_empty() || self.dice.chance(85) {
                true => self.some_column(scope),
                false => partition.first().cloned(),
            };
            let Some((of, column)) = column else {
                continue;
            };
            first.get_or_insert(of);
            order.push(format!("{column}{}", self.direction()));
        }
        if let Some(key) = key {
            let direction = self.direction();
            order.extend(key.iter().map(|key| format!("{key}{direction}")));
            first.get_or_insert(Int);
        }
        if !order.is_empty() {
            parts.push(Part::Text(format!("ORDER BY {}", order.join(", "))));
        }
        if has_frame && !order.is_empty() && self.dice.chance(75) {
            let one = first.filter(|_| order.len() == 1);
            let frame = self.frame(key.is_some(), one);
            parts.push(Part::Optional(format!(" {frame}")));
        }
        parts.push(Part::Text(")".to_owned()));
        Part::Expr(Expr { parts, of: None })
    }

    fn direction(&mut self) -> &'static str {
        self.dice.pick(&[
            "",
            "",
            " ASC",
            " DESC",
            " DESC",
            " NULLS FIRST",
            " DESC NULLS LAST",
            " DESC NULLS FIRST",
        ])
    }

    /// Draws a frame, of rows only where the order is total. `only_key` is the type of the order's key if there is
    /// only one.
    fn frame(&mut self, total: bool, only_key: Option<Type>) -> String {
        let units = match total {
            true => self.dice.pick(&UNITS),
            false => self.dice.pick(&UNITS[1..]),
        };
        // Distances are numbers, or days for dates; with several keys there is no distance.
        let distances = match (units, only_key) {
            ("RANGE", Some(Int | Small)) | ("ROWS" | "GROUPS", _) => Some(["0", "1", "2", "5"]),
            ("RANGE", Some(Date | Timestamp)) => Some([
                "INTERVAL '0' DAY",
                "INTERVAL '1' DAY",
                "INTERVAL '20' DAY",
                "INTERVAL '1' MONTH",
            ]),
            _ => None,
        };
        let bounds: &[usize] = if distances.is_some() {
            &[0, 1, 2, 3, 4]
        } else {
            &[0, 2, 4]
        };
        let starts: Vec<_> = bounds.iter().copied().filter(|bound| *bound < 4).collect();
        let start = self.dice.pick(&starts);
        let ends: Vec<_> = bounds
            .iter()
            .copied()
            .filter(|end| *end >= start.max(1))
            .collect();
        let end = self.dice.pick(&ends);
        let at = distances.map(|distances| {
            let mut at = [self.dice.below(4), self.dice.below(4)];
            at.sort_unstable();
            // Before the row, the farther bound comes first; after it, last.
            let [near, far] = at.map(|at| distances[at]);
            if start == 1 { [far, near] } else { [near, far] }
        });
        let [of_start, of_end] = at.unwrap_or_default();
        let bound = |bound: usize, distance: &str| match bound {
            0 => "UNBOUNDED PRECEDING".to_owned(),
            1 => format!("{distance} PRECEDING"),
            2 => "CURRENT ROW".to_owned(),
            3 => format!("{distance} FOLLOWING"),
            _ => "UNBOUNDED FOLLOWING".to_owned(),
        };
        format!(
            "{units} BETWEEN {} AND {}",
            bound(start, of_start),
            bound(end, of_end)
        )
    }
}
