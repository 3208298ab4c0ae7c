//! Plans as people read them: each under its name, operators indented below what reads them. On a terminal, lines are cut
//! to its width.

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema};
use unicode_width::UnicodeWidthChar;

use super::table::MORE;

/// Columns of a result of `EXPLAIN`.
const COLUMNS: [&str; 2] = ["plan_type", "plan"];

/// Checks for a result of `EXPLAIN`.
pub(super) fn is_plan(schema: &Schema) -> bool {
    let fields = schema.fields().iter();
    let mut fields = fields.map(|field| (field.name().as_str(), field.data_type()));
    schema.fields().len() == COLUMNS.len()
        && COLUMNS
            .iter()
            .all(|name| fields.next() == Some((name, &DataType::Utf8)))
}

/// Prints the plans of a batch of such a result, with lines of this many characters at most.
pub(super) fn print(batch: &RecordBatch, width: Option<usize>) -> String {
    let [names, plans]: [&StringArray; 2] = [0, 1].map(|column| batch.column(column).as_string());
    let mut text = String::new();
    for (name, plan) in names.iter().zip(plans) {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            text += &format!("{name}\n");
        }
        for line in plan.unwrap_or_default().lines() {
            let line = format!("  {}", line.trim_end());
            text += &width.map_or_else(|| line.clone(), |width| cut(&line, width));
            text.push('\n');
        }
    }
    text
}

/// Cuts a line to this many characters, with a sign if something is cut.
fn cut(line: &str, width: usize) -> String {
    let mut kept = String::new();
    let mut room = width;
    for character in line.chars().filter(|character| !character.is_control()) {
        let needed = character.width().unwrap_or(0);
        if needed > room {
            while room < 1 {
                let Some(last) = kept.pop() else { break };
                room += last.width().unwrap_or(0);
            }
            return kept + MORE;
        }
        kept.push(character);
        room -= needed;
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn plans_stand_under_their_names_within_a_width() {
        let names = StringArray::from(vec!["logical_plan", "physical_plan"]);
        let plans = StringArray::from(vec![
            "Filter: a\n  TableScan: t",
            "FilterExec: größer > 1\n",
        ]);
        let columns = [
            ("plan_type", Arc::new(names) as _),
            ("plan", Arc::new(plans) as _),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        assert!(is_plan(&batch.schema()));
        assert_eq!(
            print(&batch, None),
            "logical_plan\n  Filter: a\n    TableScan: t\nphysical_plan\n  FilterExec: größer > 1\n"
        );
        assert_eq!(
            print(&batch, Some(17)),
            "logical_plan\n  Filter: a\n    TableScan: t\nphysical_plan\n  FilterExec: gr…\n"
        );
        let other = batch.project(&[1, 0]).unwrap();
        assert!(!is_plan(&other.schema()));
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("ab漢字", 6), "ab漢字");
        assert_eq!(cut("ab漢字", 5), "ab漢…");
        assert_eq!(cut("ab漢字", 4), "ab…");
    }
}
