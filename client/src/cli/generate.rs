//! `volley generate`: tables to try Volley with.

use volley_rossmann::{GenerateOptions, GenerateSummary};

use super::config::Generate;
use super::report::print;

/// Writes the tables, and prints a line about each.
///
/// # Errors
/// When a file or standard output cannot be written.
pub(super) fn run(generate: &Generate) -> anyhow::Result<()> {
    for table in write(generate)?.tables {
        let (name, rows, path) = (table.name, table.rows, table.path.display());
        print(&format!("{name:<14} {rows:>9} rows  {path}\n"))?;
    }
    Ok(())
}

/// Writes the tables.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(generate: &Generate) -> Result<GenerateSummary, volley_rossmann::Error> {
    let options = GenerateOptions {
        stores: generate.stores,
        seed: generate.seed,
    };
    volley_rossmann::generate(&generate.out, &options)
}
