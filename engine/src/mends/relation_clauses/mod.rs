//! Clauses of relations in `FROM`.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    TableAlias, TableFactor, TableFunctionArgs, TableSampleKind,
};

use crate::mends::clauses::{Clause, refuse_if};
use crate::mends::list::{Act, Mend, Upstream};
use crate::mends::query_clauses as queries;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "relation_clauses",
    wrong: "`TABLESAMPLE` returns all rows, and `WITH ORDINALITY` and other clauses of relations are ignored",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Relation(check))],
};

/// Words before `JOIN`, from DuckDB and ClickHouse, that the parser takes for a relation's alias.
const KINDS_OF_JOINS: [&str; 3] = ["positional", "paste", "any"];

/// Rewrites or refuses clauses of a relation.
fn check(relation: &mut TableFactor) -> Result<()> {
    match relation {
        TableFactor::Table {
            name,
            alias: named,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample: sampled,
            index_hints,
        } => {
            named.as_ref().map_or(Ok(()), alias)?;
            sample(sampled.as_ref())?;
            if let Some(TableFunctionArgs { args: _, settings }) = args {
                refuse_if(settings.is_some(), || format!("SETTINGS of {name}()"))?;
            }
            refuse_if(version.is_some(), || {
                format!("a version of {name}: files are read as they are now")
            })?;
            ordinality(*with_ordinality)?;
            refuse_if(!partitions.is_empty(), || {
                format!(
                    "PARTITION of {name}: a condition on its partition columns reads only these"
                )
            })?;
            refuse_if(json_path.is_some(), || format!("a path into {name}"))?;
            let hints = !with_hints.is_empty() || !index_hints.is_empty();
            refuse_if(hints, || format!("hints about {name}"))
        }
        TableFactor::Derived {
            lateral: _,
            subquery: _,
            alias: named,
            sample: sampled,
        } => {
            named.as_ref().map_or(Ok(()), alias)?;
            sample(sampled.as_ref())
        }
        TableFactor::Function {
            lateral: _,
            name: _,
            args: _,
            with_ordinality,
            alias: named,
        } => {
            named.as_ref().map_or(Ok(()), alias)?;
            ordinality(*with_ordinality)
        }
        TableFactor::NestedJoin {
            table_with_joins,
            alias: named,
        } => {
            named.as_ref().map_or(Ok(()), alias)?;
            queries::joins(table_with_joins)
        }
        TableFactor::UNNEST {
            alias: named,
            array_exprs: _,
            with_offset: _,
            with_offset_alias: _,
            with_ordinality: _,
        } => named.as_ref().map_or(Ok(()), alias),
        TableFactor::Pivot { .. } => refuse(
            "PIVOT: sum(x) FILTER (WHERE k = 'a') AS a, … GROUP BY has a column for each value",
        ),
        TableFactor::Unpivot { .. } => refuse(
            "UNPIVOT: SELECT 'a' AS name, a AS value FROM t UNION ALL SELECT 'b', b FROM t has a row for each column",
        ),
        TableFactor::MatchRecognize { .. } => refuse(
            "MATCH_RECOGNIZE: window functions such as lag(x) OVER (ORDER BY y) compare rows",
        ),
        TableFactor::TableFunction { .. } => refuse("TABLE(…): name the function in FROM"),
        TableFactor::JsonTable { .. } | TableFactor::OpenJsonTable { .. } => {
            refuse("tables of a JSON text")
        }
        TableFactor::XmlTable { .. } => refuse("XMLTABLE"),
        TableFactor::SemanticView { .. } => refuse("SEMANTIC_VIEW"),
    }
}

fn refuse(what: &str) -> Result<()> {
    refuse_if(true, || what.to_owned())
}

/// Refuses clauses of a relation's alias.
pub(super) fn alias(alias: &TableAlias) -> Result<()> {
    let TableAlias {
        explicit,
        name,
        columns,
        at,
    } = alias;
    let is_kind = |kind: &&str| name.value.eq_ignore_ascii_case(kind);
    let is_kind = !explicit && name.quote_style.is_none() && KINDS_OF_JOINS.iter().any(is_kind);
    refuse_if(is_kind, || {
        format!("{name} JOIN; a relation of this name is named by AS \"{name}\"")
    })?;
    refuse_if(at.is_some(), || {
        format!("AT after {name}: row_number() OVER () numbers rows")
    })?;
    let typed = columns.iter().find(|column| column.data_type.is_some());
    refuse_if(typed.is_some(), || {
        format!("types of the columns of {name}: use CAST(x AS type) in the SELECT list")
    })
}

fn sample(sample: Option<&TableSampleKind>) -> Result<()> {
    refuse_if(sample.is_some(), || {
        "TABLESAMPLE: WHERE random() < 0.1 keeps about a tenth of the rows, ORDER BY random() LIMIT 100 as many"
            .to_owned()
    })
}

fn ordinality(is_there: bool) -> Result<()> {
    refuse_if(is_there, || {
        "WITH ORDINALITY: row_number() OVER () numbers rows".to_owned()
    })
}
