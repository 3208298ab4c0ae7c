//! External names in a statement: tables that do not exist, and places that cannot be reached.

use std::path::Path;

use datafusion::common::TableReference;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::prelude::SessionContext;
use volley_engine::object_stores::shown;
use volley_proto::did_you_mean;
use volley_proto::object_stores::{SCHEMES, is_read_only};

use crate::Error;

const READING: &str = "reading";

/// Returns the error of the table that planning did not find, among those that a statement names, with the nearest
/// existing one; `None` if the error is about something else.
pub(super) fn missing_table(
    context: &SessionContext,
    tables: Vec<TableReference>,
    error: &DataFusionError,
) -> Option<Error> {
    let said = error.to_string();
    let state = context.state();
    let catalog = &state.config_options().catalog;
    for table in tables {
        let of = table
            .clone()
            .resolve(&catalog.default_catalog, &catalog.default_schema);
        if !said.contains(&format!("table '{of}' not found")) {
            continue;
        }
        let schema = context
            .catalog(&of.catalog)
            .and_then(|catalog| catalog.schema(&of.schema));
        let names = schema
            .map(|schema| schema.table_names())
            .unwrap_or_default();
        let mut hint = did_you_mean(&of.table, names.iter().map(String::as_str));
        if hint.is_empty() && !names.is_empty() && names.len() <= 12 {
            hint = format!("; there are {}", names.join(", "));
        }
        if Path::new(table.table()).is_dir() {
            let folder = table.table();
            hint = format!("; there is a folder {folder}: write '{folder}/'");
        }
        // `FROM sales.csv` is a table of a schema.
        if is_file_name(&of.table) {
            hint = format!("; a file is written in single quotes: '{table}'");
        }
        return Some(Error::UnknownTable {
            table: table.to_string(),
            hint,
        });
    }
    None
}

/// Checks whether a table has the name of an ending of files.
fn is_file_name(table: &str) -> bool {
    const ENDINGS: [&str; 9] = [
        "csv", "tsv", "json", "jsonl", "ndjson", "parquet", "avro", "arrow", "gz",
    ];
    ENDINGS.contains(&table)
}

/// Refuses places that the cluster cannot read from or write to, formats that it cannot write, and statements about
/// functions.
///
/// # Errors
/// Names the refused place, format or statement.
pub(super) fn check_places(plan: &LogicalPlan) -> Result<(), Error> {
    match plan {
        LogicalPlan::Copy(copy) if copy.file_type.get_ext() == "avro" => {
            return Err(Error::not_supported(
                "writing files of avro: ARROW, CSV, JSON and PARQUET can be written",
            ));
        }
        LogicalPlan::Ddl(DdlStatement::CreateFunction(_) | DdlStatement::DropFunction(_)) => {
            return Err(Error::not_supported(
                "user-defined functions in SQL: SHOW FUNCTIONS lists the built-in ones",
            ));
        }
        _ => {}
    }
    if let LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) = plan {
        let format = table.file_type.to_ascii_uppercase();
        if matches!(format.as_str(), "DELTATABLE" | "ICEBERG" | "HUDI") {
            return Err(Error::not_supported(format!(
                "tables of {format}: DELTA tables can be read, and CSV, JSON, PARQUET, AVRO and ARROW files, which a \
                 table's own tools export"
            )));
        }
    }
    let (what, places) = match plan {
        LogicalPlan::Copy(copy) => ("writing to", std::slice::from_ref(&copy.output_url)),
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) => {
            (READING, table.locations.as_slice())
        }
        _ => return Ok(()),
    };
    for place in places {
        let Some((scheme, _)) = place.split_once("://") else {
            continue;
        };
        let scheme = scheme.to_ascii_lowercase();
        let known = SCHEMES.iter().copied();
        let known = known.filter(|known| what == READING || !is_read_only(known));
        let known: Vec<_> = known.collect();
        if scheme == "file" || known.contains(&scheme.as_str()) {
            continue;
        }
        return Err(Error::not_supported(format!(
            "{what} {}: give a path or a file:// URL that every executor sees, or a URL of {}://",
            shown(place),
            known.join("://, ")
        )));
    }
    Ok(())
}
