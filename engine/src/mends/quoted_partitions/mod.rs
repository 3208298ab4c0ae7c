//! Quoted names in `PARTITIONED BY`.
//!
//! The parser of DataFusion 55 keeps the quotes as a part of the name, so that `PARTITIONED BY ("Day")` finds no column.

use datafusion::error::Result;

use crate::mends::clauses::Clause;
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "quoted_partitions",
    wrong: "`PARTITIONED BY (\"Day\")` takes the quotes for a part of the name, and finds no such column",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Partitions(unquote))],
};

/// Takes the quotes off names. A name without quotes contains none.
fn unquote(names: &mut [String]) -> Result<()> {
    for name in names {
        for quote in ['"', '`'] {
            let bare = name
                .strip_prefix(quote)
                .and_then(|name| name.strip_suffix(quote));
            if let Some(bare) = bare {
                *name = bare.replace(&format!("{quote}{quote}"), &quote.to_string());
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_no_part_of_a_name() {
        let mut names =
            ["day", "Day", "\"Day\"", "`Day`", "\"a\"\"b\"", "\"\"\"\""].map(String::from);
        unquote(&mut names).unwrap();
        assert_eq!(names, ["day", "Day", "Day", "Day", "a\"b", "\""]);
    }
}
