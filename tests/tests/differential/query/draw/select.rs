//! Drawing of a `SELECT`: plain, `DISTINCT`, with windows or with groups.

use super::{Col, Draw, Relation, col, reference, total_key};
use crate::query::{Body, Expr, Item, Part, Select};
use crate::tables::Type;

/// Form of a `SELECT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Distinct,
    Windows,
    Groups,
}

/// Items of a `SELECT` drawn so far.
#[derive(Default)]
pub(super) struct Items {
    pub(super) items: Vec<Item>,
    pub(super) columns: Vec<Col>,
}

impl Items {
    pub(super) fn add(&mut self, expr: Expr, exact: bool) {
        let mut column = col(self.items.len(), Type::Int);
        (column.of, column.exact) = (expr.of, exact);
        let name = column.name.clone();
        self.columns.push(column);
        self.items.push(Item { expr, name });
    }
}

impl Draw<'_> {
    pub(super) fn select(&mut self, depth: usize, want: Option<&[Type]>) -> (Body, Relation) {
        if self.dice.chance(4) {
            return self.constants(want);
        }
        let (from, scope) = self.source(depth);
        let filters = match self.dice.chance(35) {
            true => (0..self.dice.pick(&[1, 1, 2]))
                .map(|_| self.filter(&scope))
                .collect(),
            false => Vec::new(),
        };
        let rows = scope
            .iter()
            .map(|relation| relation.rows)
            .max()
            .unwrap_or(1);
        let nested = want.is_some_and(|types| types.iter().any(|of| of.is_nested()));
        let form = self.dice.weighted(&[
            (8, Form::Plain),
            (2, Form::Distinct),
            (6, Form::Windows),
            (7, Form::Groups),
        ]);
        let form = if nested { Form::Plain } else { form };
        let mut select = Select {
            distinct: form == Form::Distinct,
            items: Vec::new(),
            from: Some(from),
            filters,
            group: None,
            having: None,
            qualify: None,
        };
        let shape = |items: &Items, unique| Relation {
            source: String::new(),
            name: String::new(),
            columns: items.columns.clone(),
            unique,
            rows,
        };
        let mut items = Items::default();
        let unique = match form {
            Form::Groups => self.groups(&scope, want, &mut items, &mut select),
            Form::Plain | Form::Distinct | Form::Windows => {
                let whole = self.plain(&scope, want, form, &mut items);
                if form == Form::Windows && self.dice.chance(20) {
                    let key = total_key(&scope);
                    let number = self.window_of(Type::Int, &scope, key.as_deref());
                    let at_most = Part::Text(self.dice.between(0, 6).to_string());
                    select.qualify = number.map(|number| {
                        Expr::of(Type::Bool, "{} <= {}", vec![number.into(), at_most])
                    });
                }
                let names = items.columns.iter().map(|column| column.name.clone());
                match form {
                    Form::Distinct => Some(names.collect()),
                    _ => whole,
                }
            }
        };
        let shape = shape(&items, unique);
        select.items = items.items;
        (Body::Select(Box::new(select)), shape)
    }

    /// Draws one row of constants, without a source.
    fn constants(&mut self, want: Option<&[Type]>) -> (Body, Relation) {
        let types = match want {
            Some(types) => types.to_vec(),
            None => vec![Type::Int, self.dice.pick(&Type::PLAIN)],
        };
        let mut items = Items::default();
        for of in types {
            let literal = self.literal(of);
            items.add(literal, true);
        }
        let shape = Relation {
            source: String::new(),
            name: String::new(),
            columns: items.columns,
            unique: Some(vec!["c0".to_owned()]),
            rows: 1,
        };
        let select = Select {
            distinct: false,
            items: items.items,
            from: None,
            filters: Vec::new(),
            group: None,
            having: None,
            qualify: None,
        };
        (Body::Select(Box::new(select)), shape)
    }

    /// Draws items for each row. Returns the names of those that are unique together, if there are any.
    fn plain(
        &mut self,
        scope: &[Relation],
        want: Option<&[Type]>,
        form: Form,
        items: &mut Items,
    ) -> Option<Vec<String>> {
        let key = total_key(scope);
        let windows = if form == Form::Windows {
            self.dice.pick(&[1, 1, 2, 3])
        } else {
            0
        };
        let types = match want {
            Some(types) => types.to_vec(),
            None => (0..self.dice.pick(&[1, 2, 3, 4]))
                .map(|_| self.item_type(scope))
                .collect(),
        };
        for (at, of) in types.iter().enumerate() {
            if want.is_some()
                && at < windows
                && let Some(window) = self.window_of(*of, scope, key.as_deref())
            {
                items.add(window, true);
                continue;
            }
            let expr = match self.dice.chance(6) && !of.is_nested() {
                true => self.scalar_query(*of, scope),
                false => self.scalar(*of, scope, 2),
            };
            items.add(expr, true);
        }
        if want.is_some() {
            return None;
        }
        for _ in 0..windows {
            let (expr, exact) = self.window(scope, key.as_deref());
            items.add(expr, exact);
        }
        // Inexact values may be passed on, but not used otherwise.
        if form != Form::Distinct && self.dice.chance(30) {
            for relation in scope {
                let inexact = relation.columns.iter().find(|column| !column.exact);
                if let Some(column) = inexact {
                    items.add(reference(relation, column), false);
                }
            }
        }
        if !self.dice.chance(60) || form == Form::Distinct {
            return None;
        }
        // With the keys of its relations, each row is unique.
        let mut unique = Vec::new();
        for relation in scope {
            for name in relation.unique.as_ref()? {
                let column = relation
                    .columns
                    .iter()
                    .find(|column| column.name == *name)?;
                unique.push(format!("c{}", items.items.len()));
                items.add(reference(relation, column), column.exact);
            }
        }
        Some(unique)
    }

    /// Draws the type of an item: most often one that a column has.
    fn item_type(&mut self, scope: &[Relation]) -> Type {
        let types: Vec<_> = scope
            .iter()
            .flat_map(|relation| &relation.columns)
            .filter(|column| column.exact)
            .filter_map(|column| column.of)
            .collect();
        match types.is_empty() || self.dice.chance(15) {
            true => self.dice.pick(&Type::PLAIN),
            false => self.dice.pick(&types),
        }
    }
}
