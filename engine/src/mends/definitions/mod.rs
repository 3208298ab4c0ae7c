//! Clauses of statements that create and drop tables, views and schemas.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    ColumnDef, ColumnOption, CreateTable, CreateView, ObjectType, Statement,
};

use crate::mends::clauses::{Clause, refuse_if};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "definitions",
    wrong: "`COLLATE` and `GENERATED` columns and `DROP … CASCADE` are ignored",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[
        Act::Clause(Clause::Statement(statement)),
        Act::Clause(Clause::Columns(check)),
    ],
};

/// Refuses clauses of a statement that creates or drops something.
fn statement(statement: &Statement) -> Result<()> {
    match statement {
        Statement::CreateTable(CreateTable { columns, .. }) => check(columns),
        Statement::CreateSchema {
            schema_name: _,
            if_not_exists: _,
            with,
            options,
            default_collate_spec,
            clone,
        } => {
            let said = with.is_some()
                || options.is_some()
                || default_collate_spec.is_some()
                || clone.is_some();
            refuse_if(said, || {
                format!("options of a schema: {statement}; CREATE SCHEMA name has none")
            })
        }
        // The planner handles the other fields.
        Statement::CreateView(CreateView {
            or_alter,
            secure,
            params,
            columns,
            ..
        }) => {
            refuse_if(*or_alter || *secure || params.is_some(), || {
                "OR ALTER, SECURE and parameters of a view; CREATE OR REPLACE VIEW name AS query has none".to_owned()
            })?;
            let typed = columns.iter().find(|column| column.data_type.is_some());
            refuse_if(typed.is_some(), || {
                "types of a view's columns: use CAST(x AS type) in its SELECT list".to_owned()
            })
        }
        Statement::Drop {
            object_type,
            if_exists: _,
            names: _,
            cascade,
            restrict,
            purge,
            temporary,
            table,
        } => {
            let has_dependents = *object_type != ObjectType::Schema && (*cascade || *restrict);
            refuse_if(has_dependents, || {
                format!("CASCADE and RESTRICT of DROP {object_type}: its views always stay")
            })?;
            refuse_if(*purge || *temporary || table.is_some(), || {
                format!("PURGE, TEMPORARY and ON of DROP: use DROP {object_type} [IF EXISTS] name")
            })
        }
        _ => Ok(()),
    }
}

/// Refuses column options of a table that would be lost.
fn check(columns: &[ColumnDef]) -> Result<()> {
    let options = columns.iter().flat_map(|column| {
        let ColumnDef {
            name,
            data_type: _,
            options,
        } = column;
        options.iter().map(move |option| (name, &option.option))
    });
    for (name, option) in options {
        let is_lost = match option {
            // These are kept, refused by the planner, or do not affect rows.
            ColumnOption::Null
            | ColumnOption::NotNull
            | ColumnOption::Default(_)
            | ColumnOption::PrimaryKey(_)
            | ColumnOption::Unique(_)
            | ColumnOption::ForeignKey(_)
            | ColumnOption::Check(_)
            | ColumnOption::Comment(_) => false,
            ColumnOption::Materialized(_)
            | ColumnOption::Ephemeral(_)
            | ColumnOption::Alias(_)
            | ColumnOption::DialectSpecific(_)
            | ColumnOption::CharacterSet(_)
            | ColumnOption::Collation(_)
            | ColumnOption::OnUpdate(_)
            | ColumnOption::Generated { .. }
            | ColumnOption::Options(_)
            | ColumnOption::Identity(_)
            | ColumnOption::OnConflict(_)
            | ColumnOption::Policy(_)
            | ColumnOption::Tags(_)
            | ColumnOption::Srid(_)
            | ColumnOption::Invisible => true,
        };
        refuse_if(is_lost, || {
            let instead = match option {
                ColumnOption::Collation(_) => {
                    "; texts are compared by their bytes, and lower(…) tells no case"
                }
                _ => "; a column has NOT NULL, DEFAULT, PRIMARY KEY and UNIQUE",
            };
            format!("{option} of column {name}{instead}")
        })?;
    }
    Ok(())
}
