//! Plans as people read them: each under its name, drawn as a tree of operators below what reads them.
//!
//! On a terminal, the lines of trees are cut to its width, and those of other texts, such as what a training takes, are
//! broken between words.

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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

/// Space before the lines of a plan.
const MARGIN: &str = "  ";

/// Prints the plans of a batch of such a result, with lines of this many characters at most.
pub(super) fn print(batch: &RecordBatch, width: Option<usize>) -> String {
    let [names, plans]: [&StringArray; 2] = [0, 1].map(|column| batch.column(column).as_string());
    let mut text = String::new();
    for (name, plan) in names.iter().zip(plans) {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            text += &format!("{name}\n");
        }
        let lines: Vec<_> = plan.unwrap_or_default().lines().collect();
        let room = width.map(|width| width.saturating_sub(MARGIN.len()));
        let shown: Vec<String> = match (tree(&lines), room) {
            (Some(tree), None) => tree
                .into_iter()
                .map(|(branch, name)| branch + name)
                .collect(),
            (Some(tree), Some(room)) => {
                let fitted = tree.into_iter().map(|(branch, name)| {
                    let branch = last_part(branch, room / 2);
                    cut(&(branch + name), room)
                });
                fitted.collect()
            }
            (None, None) => lines.iter().map(|line| (*line).to_owned()).collect(),
            (None, Some(room)) => {
                let broken = lines.iter().flat_map(|line| broken(line, room));
                broken.collect()
            }
        };
        for line in shown {
            text += format!("{MARGIN}{line}").trim_end();
            text.push('\n');
        }
    }
    text
}

/// Draws the lines of a plan as a tree; none if they are not a tree: one line, and further ones indented below it by two spaces
/// for each level. Returns the branches before each line, and the line.
fn tree<'a>(lines: &[&'a str]) -> Option<Vec<(String, &'a str)>> {
    let depth = |line: &str| {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        spaces.is_multiple_of(2).then_some(spaces / 2)
    };
    let depths: Vec<_> = lines
        .iter()
        .map(|line| depth(line))
        .collect::<Option<_>>()?;
    let (first, below) = depths.split_first()?;
    let steps = depths.windows(2).all(|pair| pair[1] <= pair[0] + 1);
    if *first != 0 || below.is_empty() || below.contains(&0) || !steps {
        return None;
    }
    // For each level, whether a line further below is of the same parent.
    let mut follows: Vec<bool> = Vec::new();
    let mut drawn = Vec::new();
    for (line, depth) in lines.iter().zip(&depths).rev() {
        follows.truncate(depth + 1);
        follows.resize(depth + 1, false);
        let mut branches = String::new();
        for (level, follows) in follows.iter().enumerate().skip(1) {
            branches += match (level == *depth, *follows) {
                (true, true) => "├─ ",
                (true, false) => "└─ ",
                (false, true) => "│  ",
                (false, false) => "   ",
            };
        }
        follows[*depth] = true;
        drawn.push((branches, line.trim()));
    }
    drawn.reverse();
    Some(drawn)
}

/// Returns the end of the branches of an operator that is so deep that they would leave no room for its name.
fn last_part(branch: String, room: usize) -> String {
    let count = branch.chars().count();
    if count <= room {
        return branch;
    }
    let end = branch.chars().skip(count + 1 - room.max(1));
    format!("{MORE}{}", end.collect::<String>())
}

/// Breaks a line between words into lines of this many characters, the further ones below its second column.
fn broken(line: &str, width: usize) -> Vec<String> {
    if line.width() <= width {
        return vec![line.to_owned()];
    }
    let second = line.find("  ").map(|gap| {
        let rest = &line[gap..];
        line[..gap].width() + rest.len() - rest.trim_start().len()
    });
    let indent = second.filter(|second| *second < width / 2).unwrap_or(0);
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.width() > width {
        let mut used = 0;
        let end = rest.char_indices().find(|(_, character)| {
            used += character.width().unwrap_or(0);
            used > width
        });
        let end = end.map_or(rest.len(), |(end, _)| end);
        let head = &rest[..end];
        let gap = head
            .rfind(' ')
            .filter(|gap| !head[..*gap].trim().is_empty());
        let (at, next) = gap.map_or((end, end), |gap| (gap, gap + 1));
        let further = format!("{:indent$}{}", "", &rest[next..]);
        if at == 0 || further.len() >= rest.len() {
            break;
        }
        lines.push(rest[..at].trim_end().to_owned());
        rest = further;
    }
    lines.push(rest);
    lines
}

/// Cuts a line to this many characters, with a sign if something is cut.
pub(in super::super) fn cut(line: &str, width: usize) -> String {
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
            "logical_plan\n  Filter: a\n  └─ TableScan: t\nphysical_plan\n  FilterExec: größer > 1\n"
        );
        assert_eq!(
            print(&batch, Some(17)),
            "logical_plan\n  Filter: a\n  └─ TableScan: t\nphysical_plan\n  FilterExec:\n  größer > 1\n"
        );
        let other = batch.project(&[1, 0]).unwrap();
        assert!(!is_plan(&other.schema()));
    }

    #[test]
    fn operators_are_drawn_below_what_reads_them() {
        let plan = "Join\n  Filter\n    Scan a\n  Union\n    Scan b\n    Sort\n      Scan c";
        let lines: Vec<_> = plan.lines().collect();
        let drawn =
            "Join\n├─ Filter\n│  └─ Scan a\n└─ Union\n   ├─ Scan b\n   └─ Sort\n      └─ Scan c";
        let lines: Vec<_> = tree(&lines)
            .unwrap()
            .into_iter()
            .map(|(branch, name)| branch + name)
            .collect();
        assert_eq!(lines.join("\n"), drawn);
        assert_eq!(last_part("│  │  └─ ".into(), 4), "…└─ ");
        assert_eq!(last_part("└─ ".into(), 3), "└─ ");
        for other in [
            "ranks  2\nrows  3",
            "[\n  {\n]",
            "one line",
            "a\n    b",
            "┌──┐\n│  │",
            "",
        ] {
            let lines: Vec<_> = other.lines().collect();
            assert_eq!(tree(&lines), None, "{other}");
        }
    }

    #[test]
    fn other_lines_are_broken_below_their_second_column() {
        assert_eq!(
            broken("rows    ~1,000 in all", 40),
            ["rows    ~1,000 in all"]
        );
        assert_eq!(
            broken("rows    ~1,000 in all splits of them", 20),
            ["rows    ~1,000 in", "        all splits", "        of them"]
        );
        assert_eq!(broken("abcdefgh", 3), ["abc", "def", "gh"]);
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("ab漢字", 6), "ab漢字");
        assert_eq!(cut("ab漢字", 5), "ab漢…");
        assert_eq!(cut("ab漢字", 4), "ab…");
    }
}
