//! Drawing of expressions of a type over the columns in scope.

use super::{Draw, Relation, reference};
use crate::query::{Expr, Part};
use crate::tables::Type;

use Type::{Bool, Date, Decimal, Double, Int, List, Small, Struct, Text, Timestamp};

/// Expressions of a type made from values of others.
const FORMS: &[(Type, &str, &[Type])] = &[
    (Int, "({} + {})", &[Int, Int]),
    (Int, "({} - {})", &[Int, Int]),
    (Int, "({} * {})", &[Int, Int]),
    (Int, "({} % nullif({}, 0))", &[Int, Int]),
    (Int, "({} / nullif({}, 0))", &[Int, Int]),
    (Int, "abs({})", &[Int]),
    (Int, "nullif({}, {})", &[Int, Int]),
    (Int, "greatest({}, {})", &[Int, Int]),
    (Int, "CAST({} AS BIGINT)", &[Small]),
    (Int, "CAST({} AS BIGINT)", &[Bool]),
    (Int, "CAST(length({}) AS BIGINT)", &[Text]),
    (Int, "TRY_CAST({} AS BIGINT)", &[Text]),
    (Int, "CAST(extract(month FROM {}) AS BIGINT)", &[Date]),
    (Int, "CAST(extract(hour FROM {}) AS BIGINT)", &[Timestamp]),
    (Int, "{}['a']", &[Struct]),
    (Int, "{}[1]", &[List]),
    (Int, "CAST(array_length({}) AS BIGINT)", &[List]),
    (Int, "CAST(strpos({}, {}) AS BIGINT)", &[Text, Text]),
    (Int, "CAST(levenshtein({}, {}) AS BIGINT)", &[Text, Text]),
    (Int, "CAST(ascii({}) AS BIGINT)", &[Text]),
    (Int, "CAST(date_part('dow', {}) AS BIGINT)", &[Date]),
    (Int, "to_unixtime({})", &[Timestamp]),
    (Int, "(({} & 7) | {})", &[Int, Int]),
    (Int, "CAST(array_position({}, {}) AS BIGINT)", &[List, Int]),
    (Small, "({} + {})", &[Small, Small]),
    (Small, "({} - CAST(1 AS INT))", &[Small]),
    (Small, "CAST({} % 1000 AS INT)", &[Int]),
    (Double, "({} + {})", &[Double, Double]),
    (Double, "abs({})", &[Double]),
    (Double, "floor({})", &[Double]),
    (Double, "CAST({} AS DOUBLE)", &[Int]),
    (Double, "CAST({} AS DOUBLE)", &[Decimal]),
    (Double, "CAST({} AS DOUBLE)", &[Small]),
    (
        Decimal,
        "CAST({} + {} AS DECIMAL(12, 2))",
        &[Decimal, Decimal],
    ),
    (Decimal, "CAST({} AS DECIMAL(12, 2))", &[Small]),
    (Decimal, "abs({})", &[Decimal]),
    (Decimal, "CAST(round({}, 1) AS DECIMAL(12, 2))", &[Decimal]),
    (
        Decimal,
        "CAST(coalesce(round({}, 1), {} * 0) AS DECIMAL(12, 2))",
        &[Decimal, Decimal],
    ),
    (Text, "({} || {})", &[Text, Text]),
    (Text, "concat({}, '-', {})", &[Text, Int]),
    (Text, "upper({})", &[Text]),
    (Text, "lower({})", &[Text]),
    (Text, "substr({}, 2, 2)", &[Text]),
    (Text, "left({}, 1)", &[Text]),
    (Text, "replace({}, 'a', 'bb')", &[Text]),
    (Text, "lpad({}, 4, '*')", &[Text]),
    (Text, "split_part({}, 'b', 1)", &[Text]),
    (Text, "regexp_replace({}, '[a-c]+', '_')", &[Text]),
    (Text, "translate({}, 'ab', 'bA')", &[Text]),
    (Text, "initcap(reverse({}))", &[Text]),
    (Text, "to_char({}, '%Y-%m')", &[Date]),
    (Text, "array_to_string({}, '-')", &[List]),
    (Text, "CAST({} AS VARCHAR)", &[Int]),
    (Text, "CAST({} AS VARCHAR)", &[Date]),
    (Text, "CAST({} AS VARCHAR)", &[Bool]),
    (Text, "CAST({} AS VARCHAR)", &[Decimal]),
    (Text, "CAST({} AS VARCHAR)", &[Timestamp]),
    (Text, "{}['b']", &[Struct]),
    (Date, "({} + INTERVAL '3' DAY)", &[Date]),
    (Date, "({} - INTERVAL '1' MONTH)", &[Date]),
    (Date, "CAST({} AS DATE)", &[Timestamp]),
    (Date, "CAST(date_trunc('month', {}) AS DATE)", &[Date]),
    (Timestamp, "date_trunc('day', {})", &[Timestamp]),
    (Timestamp, "date_bin(INTERVAL '7' HOUR, {})", &[Timestamp]),
    (Timestamp, "({} - INTERVAL '90' MINUTE)", &[Timestamp]),
    (Timestamp, "CAST({} AS TIMESTAMP)", &[Date]),
    (List, "make_array({}, {})", &[Int, Int]),
    (List, "array_append({}, {})", &[List, Int]),
    (Struct, "named_struct('a', {}, 'b', {})", &[Int, Text]),
];

impl Draw<'_> {
    /// Draws an expression of the type.
    pub(super) fn scalar(&mut self, of: Type, scope: &[Relation], depth: usize) -> Expr {
        if depth > 0 && !of.is_nested() && self.dice.chance(2) {
            return self.lone_query(of);
        }
        if depth == 0 || self.dice.chance(55) {
            return self.leaf(of, scope, depth);
        }
        if self.dice.chance(25) && !of.is_nested() {
            return self.choice(of, scope, depth - 1);
        }
        if of == Bool {
            return self.predicate(scope, depth - 1);
        }
        let forms: Vec<_> = FORMS.iter().filter(|(made, ..)| *made == of).collect();
        let (_, template, types) = forms[self.dice.below(forms.len())];
        // An array of a type without columns would be a constant, which tests little.
        let is_rare = |needed: &Type| needed.is_nested() && column(scope, *needed).is_empty();
        if types.iter().any(is_rare) {
            return self.leaf(of, scope, depth);
        }
        let holes = types
            .iter()
            .map(|of| self.scalar(*of, scope, depth - 1).into());
        let holes = holes.collect();
        Expr::of(of, template, holes)
    }

    /// Draws a choice between values.
    fn choice(&mut self, of: Type, scope: &[Relation], depth: usize) -> Expr {
        let value = |draw: &mut Self| Part::from(draw.scalar(of, scope, depth));
        let (a, b) = (value(self), value(self));
        match self.dice.below(4) {
            0 => Expr::of(of, "coalesce({}, {})", vec![a, b]),
            1 => {
                let when = self.predicate(scope, depth).into();
                Expr::of(of, "CASE WHEN {} THEN {} END", vec![when, a])
            }
            2 => Expr::of(of, "nullif({}, {})", vec![a, b]),
            _ => {
                let when = self.predicate(scope, depth).into();
                Expr::of(of, "CASE WHEN {} THEN {} ELSE {} END", vec![when, a, b])
            }
        }
    }

    /// Draws a column, or a constant if there is none of the type.
    pub(super) fn leaf(&mut self, of: Type, scope: &[Relation], depth: usize) -> Expr {
        let columns = column(scope, of);
        if columns.is_empty() && of.is_nested() && depth == 0 && !scope.is_empty() {
            // Made from columns rather than from constants.
            let (_, template, types) = FORMS
                .iter()
                .find(|(made, ..)| *made == of)
                .expect("there is a form for each nested type");
            let holes = types.iter().map(|of| self.leaf(*of, scope, 0).into());
            let holes = holes.collect();
            return Expr::of(of, template, holes);
        }
        match columns.is_empty() || self.dice.chance(12) {
            true => self.literal(of),
            false => self.dice.pick(&columns),
        }
    }

    /// Draws a column of some comparable type.
    pub(super) fn some_column(&mut self, scope: &[Relation]) -> Option<(Type, Expr)> {
        let columns: Vec<_> = Type::PLAIN
            .iter()
            .flat_map(|of| column(scope, *of).into_iter().map(|column| (*of, column)))
            .collect();
        (!columns.is_empty()).then(|| self.dice.pick(&columns))
    }

    /// Draws a constant, sometimes NULL.
    pub(super) fn literal(&mut self, of: Type) -> Expr {
        let number = self.dice.between(-2, 9);
        if self.dice.chance(8) {
            return match of {
                Struct => Expr::text(of, "named_struct('a', CAST(NULL AS BIGINT), 'b', 'x')"),
                List => Expr::text(of, "make_array(CAST(NULL AS BIGINT))"),
                _ => Expr::text(of, format!("CAST(NULL AS {})", of.sql())),
            };
        }
        let text = match of {
            Bool => self.dice.pick(&["true", "false"]).to_owned(),
            Small => format!("CAST({number} AS INT)"),
            Int => match number < 0 {
                true => format!("CAST({number} AS BIGINT)"),
                false => number.to_string(),
            },
            Double => format!("CAST({}.25 AS DOUBLE)", number.abs()),
            Decimal => format!("CAST({}.50 AS DECIMAL(12, 2))", number.abs()),
            Text => self
                .dice
                .pick(&["'a'", "'b'", "'abc'", "'x'", "''", "'it''s'"])
                .to_owned(),
            Date => format!("DATE '2021-0{}-15'", number.rem_euclid(9) + 1),
            Timestamp => format!("TIMESTAMP '2020-09-1{}T08:00:00'", number.rem_euclid(10)),
            List => format!("make_array(CAST({number} AS BIGINT))"),
            Struct => format!("named_struct('a', CAST({number} AS BIGINT), 'b', 'x')"),
        };
        Expr::text(of, text)
    }
}

/// Returns the columns of a type.
pub(super) fn column(scope: &[Relation], of: Type) -> Vec<Expr> {
    scope
        .iter()
        .flat_map(|relation| {
            let columns = relation.of_type(of);
            columns.map(|column| reference(relation, column))
        })
        .collect()
}
