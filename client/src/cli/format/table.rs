//! Rows as an aligned table: numbers to the right, within the width of a terminal where there is one.
//!
//! Where a table is too wide, long texts are cut, then other cells as well, then columns without a value are left out, and
//! then columns in the middle.
//! Elsewhere everything is printed. Borders and alignment are comfy-table's.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use comfy_table::{Cell, CellAlignment, Table, presets};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width to which cells are cut before columns are left out.
const CUT: usize = 16;
/// Sign of what is cut or left out.
pub(super) const MORE: &str = "…";
/// Text of NULL. The same text as a value is quoted.
const NULL: &str = "NULL";

/// Lines around the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Borders {
    Ascii,
    Box,
    Markdown,
}

/// Column of texts.
struct Column {
    name: String,
    cells: Vec<String>,
    alignment: CellAlignment,
    /// True for numbers, times and booleans, of which a part says little.
    is_whole: bool,
}

/// Table, or a part of one below another, as text with a newline at its end.
#[derive(Debug)]
pub(super) struct Printed {
    /// The rows, below the header in the first part.
    pub(super) text: String,
    /// The line below the last row, if the borders have one.
    pub(super) end: String,
    /// Widths of the columns.
    pub(super) widths: Vec<usize>,
    /// Number of columns that were left out.
    pub(super) left_out: usize,
}

/// Prints batches of one schema, of which there is at least one, as a table of this many characters at most. Below
/// another part with columns of the widths `above`, there is no header, and the columns are at least as wide.
///
/// # Errors
/// When a value has no text.
pub(super) fn print(
    batches: &[RecordBatch],
    borders: Borders,
    width: Option<usize>,
    above: Option<&[usize]>,
) -> Result<Printed, ArrowError> {
    let mut columns = columns(batches)?;
    if let Some(widths) = above {
        // In the place of the names, which are cut off below: these only keep the widths.
        for (column, width) in columns.iter_mut().zip(widths) {
            column.name = "-".repeat(*width);
        }
    }
    if borders == Borders::Markdown {
        for text in columns.iter_mut().flat_map(Column::texts) {
            *text = text.replace('|', "\\|").replace('\n', "<br>");
        }
    }
    let mut left_out = 0..0;
    let mut without_values = 0;
    if let Some(width) = width {
        for text in columns.iter_mut().flat_map(Column::texts) {
            // The width of a tab depends on where it stands, and other characters control the terminal.
            *text = text.replace('\t', "    ");
            text.retain(|character| character == '\n' || !character.is_control());
        }
        let fitted = |columns: &[Column]| {
            let widths: Vec<_> = columns
                .iter()
                .map(|column| (column.width(), column.is_whole))
                .collect();
            fit(&widths, width)
        };
        let (mut cuts, mut without) = fitted(&columns);
        if !without.is_empty() && columns.iter().any(Column::has_value) {
            let all = columns.len();
            columns.retain(Column::has_value);
            without_values = all - columns.len();
            (cuts, without) = fitted(&columns);
        }
        for (column, cut) in columns.iter_mut().zip(cuts) {
            column.cut(cut);
        }
        left_out = without;
    }
    let mut table = Table::new();
    table.load_preset(match borders {
        Borders::Ascii => "||--+-++|    ++++++",
        Borders::Box => presets::UTF8_FULL_CONDENSED,
        Borders::Markdown => presets::ASCII_MARKDOWN,
    });
    let kept = |row: Vec<Cell>| {
        let mut row: Vec<_> = row.into_iter().map(Some).collect();
        if !left_out.is_empty() {
            row[left_out.start] = Some(Cell::new(MORE));
            row[left_out.start + 1..left_out.end].fill_with(|| None);
        }
        row.into_iter().flatten().collect::<Vec<_>>()
    };
    table.set_header(kept(
        columns
            .iter()
            .map(|column| Cell::new(&column.name).set_alignment(column.alignment))
            .collect(),
    ));
    let rows = columns.first().map_or(0, |column| column.cells.len());
    for row in 0..rows {
        table.add_row(kept(
            columns
                .iter()
                .map(|column| Cell::new(&column.cells[row]).set_alignment(column.alignment))
                .collect(),
        ));
    }
    let has_ends = usize::from(borders != Borders::Markdown);
    let printed = format!("{table}\n");
    let lines: Vec<_> = printed.split_inclusive('\n').collect();
    let header = match above {
        Some(_) => has_ends + 2,
        None => 0,
    };
    let (rows, end) = lines[header..].split_at(lines.len() - header - has_ends);
    Ok(Printed {
        text: rows.concat(),
        end: end.concat(),
        widths: columns.iter().map(Column::width).collect(),
        left_out: without_values + left_out.len(),
    })
}

/// Prints batches of one schema as a line for each value, under a line for each row, of which `first` were printed before.
///
/// # Errors
/// When a value has no text.
pub(super) fn lines(batches: &[RecordBatch], first: usize) -> Result<String, ArrowError> {
    let columns = columns(batches)?;
    let widths = columns.iter().map(|column| column.name.width());
    let width = widths.max().unwrap_or(0);
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let mut text = String::new();
    for row in 0..rows {
        text += &format!("-[ row {} ]-\n", first + row + 1);
        for column in &columns {
            let pad = width - column.name.width();
            // Further lines of a value stand below its first.
            let value = column.cells[row].replace('\n', &format!("\n{:width$} | ", ""));
            text += &format!("{}{:pad$} | {value}\n", column.name, "");
        }
    }
    Ok(text)
}

/// Formats all values.
fn columns(batches: &[RecordBatch]) -> Result<Vec<Column>, ArrowError> {
    let options = FormatOptions::default().with_display_error(true);
    let Some(first) = batches.first() else {
        return Ok(Vec::new());
    };
    let schema = first.schema();
    let columns = schema.fields().iter().enumerate().map(|(at, field)| {
        let mut cells = Vec::new();
        for batch in batches {
            let column = batch.column(at);
            let nulls = column.logical_nulls();
            let values = ArrayFormatter::try_new(column, &options)?;
            for row in 0..column.len() {
                cells.push(match &nulls {
                    Some(nulls) if nulls.is_null(row) => NULL.to_owned(),
                    _ => match values.value(row).try_to_string()? {
                        text if text == NULL => format!("\"{NULL}\""),
                        text => text,
                    },
                });
            }
        }
        Ok(Column {
            name: field.name().clone(),
            cells,
            alignment: match field.data_type().is_numeric() {
                true => CellAlignment::Right,
                false => CellAlignment::Left,
            },
            is_whole: {
                let of = field.data_type();
                of.is_numeric() || of.is_temporal() || *of == DataType::Boolean
            },
        })
    });
    columns.collect()
}

impl Column {
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.name).chain(&mut self.cells)
    }

    /// Checks whether a row has a value in it; without rows, there may be some.
    fn has_value(&self) -> bool {
        self.cells.is_empty() || self.cells.iter().any(|cell| cell != NULL)
    }

    /// Returns the width of the longest line.
    fn width(&self) -> usize {
        let texts = std::iter::once(&self.name).chain(&self.cells);
        let lines = texts.flat_map(|text| text.lines());
        lines.map(UnicodeWidthStr::width).max().unwrap_or(0)
    }

    /// Cuts each line of the texts, such as those of plans.
    fn cut(&mut self, width: usize) {
        for text in self.texts() {
            if text.lines().any(|line| line.width() > width) {
                let lines: Vec<_> = text.lines().map(|line| cut(line, width)).collect();
                *text = lines.join("\n");
            }
        }
    }
}

/// Returns a line of this many characters at most, with a sign where it is cut.
fn cut(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let mut kept = 0;
    let end = line.char_indices().find(|(_, character)| {
        kept += character.width().unwrap_or(0);
        kept >= width
    });
    let end = end.map_or(line.len(), |(end, _)| end);
    format!("{}{MORE}", &line[..end])
}

/// Returns the widths to which columns are cut, and the columns that are left out for one that says so, for all to fit into
/// `room` characters. Each column has its width, and whether it stays whole as long as cutting others is enough.
fn fit(columns: &[(usize, bool)], room: usize) -> (Vec<usize>, std::ops::Range<usize>) {
    let widths: Vec<_> = columns.iter().map(|(width, _)| *width).collect();
    // Each cell has a line and two spaces around it; the last line ends the row.
    let fits = |widths: &[usize]| widths.iter().map(|width| width + 3).sum::<usize>() < room;
    if fits(&widths) {
        return (widths, 0..0);
    }
    let widest = widths.iter().copied().max().unwrap_or(0).min(room);
    for keeps_whole in [true, false] {
        let cut_to = |cut: usize| -> Vec<_> {
            let cut = |(width, is_whole): &(usize, bool)| match keeps_whole && *is_whole {
                true => *width,
                false => (*width).min(cut),
            };
            columns.iter().map(cut).collect()
        };
        let mut cuts = (CUT..=widest).rev().map(cut_to);
        if let Some(cuts) = cuts.find(|cuts| fits(cuts)) {
            return (cuts, 0..0);
        }
    }
    // Columns of both ends are kept, those at the beginning first.
    let left = room.saturating_sub(1 + 4);
    let (mut begin, mut end, mut used) = (0, widths.len(), 0);
    while begin < end {
        let is_first = begin <= widths.len() - end;
        let next = if is_first { begin } else { end - 1 };
        used += widths[next].min(CUT) + 3;
        if used > left {
            break;
        }
        match is_first {
            true => begin += 1,
            false => end -= 1,
        }
    }
    let (cut, left_out) = match begin {
        // One column is always there.
        0 => (
            room.saturating_sub(4 + 4).clamp(1, CUT),
            1.min(widths.len())..widths.len(),
        ),
        _ => (CUT, begin..end),
    };
    (vec![cut; widths.len()], left_out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMillisecondArray};

    use super::*;

    fn row(values: &[(&str, &str)]) -> RecordBatch {
        let columns = values.iter().map(|(name, value)| {
            let column: ArrayRef = match value.parse() {
                Ok(number) => Arc::new(Int64Array::from(vec![number, 1])),
                Err(_) => Arc::new(StringArray::from(vec![Some(*value), None])),
            };
            (*name, column, true)
        });
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn printed(rows: &RecordBatch, width: usize) -> (String, usize) {
        let rows = std::slice::from_ref(rows);
        let printed = print(rows, Borders::Ascii, Some(width), None).unwrap();
        let (text, left_out) = (printed.text + &printed.end, printed.left_out);
        assert!(
            text.lines().all(|line| line.width() <= width),
            "{width}:\n{text}"
        );
        (text, left_out)
    }

    #[test]
    fn numbers_stand_to_the_right_and_null_is_told_apart() {
        let rows = row(&[("n", "1234"), ("s", "NULL")]);
        let (text, _) = printed(&rows, 80);
        let expected = "\
+------+--------+
|    n | s      |
+------+--------+
| 1234 | \"NULL\" |
|    1 | NULL   |
+------+--------+
";
        assert_eq!(text, expected);
    }

    #[test]
    fn long_cells_are_cut_before_columns_are_left_out() {
        let long = "äö".repeat(50);
        let rows = row(&[("a", "1"), ("long", &long), ("z", "2")]);
        let (text, left_out) = printed(&rows, 60);
        assert!(text.contains("ö…") || text.contains("ä…"), "{text}");
        assert!(left_out == 0 && text.contains("| z |"), "{text}");
        let (text, left_out) = printed(&rows, 200);
        assert!(left_out == 0 && text.contains(&long), "{text}");
    }

    #[test]
    fn texts_are_cut_before_numbers_and_times() {
        let time: ArrayRef = Arc::new(
            TimestampMillisecondArray::from(vec![1_700_000_000_000, 0]).with_timezone("+00:00"),
        );
        let texts = row(&[("text", &"a".repeat(200)), ("n", "12345678901234567")]);
        let rows = RecordBatch::try_from_iter_with_nullable([
            ("at", time, true),
            ("text", Arc::clone(texts.column(0)), true),
            ("n", Arc::clone(texts.column(1)), true),
        ])
        .unwrap();
        let (text, left_out) = printed(&rows, 72);
        for whole in [
            "| 2023-11-14T22:13:20Z |",
            "| 12345678901234567 |",
            "aaa… |",
        ] {
            assert!(text.contains(whole), "{whole} in\n{text}");
        }
        assert_eq!(left_out, 0);
        // Where that is not enough, everything is cut.
        let (text, left_out) = printed(&rows, 60);
        assert!(text.contains("2023-11-14T22:1…"), "{text}");
        assert_eq!(left_out, 0);
    }

    #[test]
    fn plans_keep_their_lines() {
        let plan = format!("Sort\n  Scan {}\n\tEnd", "x".repeat(200));
        let rows = row(&[("plan_type", "logical"), ("plan", &plan)]);
        let (text, left_out) = printed(&rows, 80);
        assert_eq!((text.lines().count(), left_out), (8, 0), "{text}");
        assert!(
            text.contains("|   Scan xxx") && text.contains("x… |"),
            "{text}"
        );
    }

    #[test]
    fn columns_in_the_middle_are_left_out() {
        let names: Vec<_> = (0..22).map(|n| format!("column_{n}")).collect();
        let values: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), "1234567"))
            .collect();
        let rows = row(&values);
        for width in [1, 5, 9, 12, 20, 40, 80, 120, 200] {
            let rows = std::slice::from_ref(&rows);
            let printed = print(rows, Borders::Box, Some(width), None).unwrap();
            let text = printed.text.clone() + &printed.end;
            let lines: Vec<_> = text.lines().collect();
            assert!(
                width < 9 || lines.iter().all(|line| line.width() <= width),
                "{}",
                printed.text
            );
            assert_eq!(lines.len(), 6);
            assert!(printed.left_out > 0 && lines[1].contains('…'));
            assert!(width < 40 || lines[1].contains("column_0 ") && lines[1].contains("column_21"));
            let shown = lines[1].matches("column_").count();
            assert!(
                width < 40 || shown + printed.left_out == 22,
                "{}",
                printed.text
            );
        }
    }

    #[test]
    fn columns_without_a_value_are_left_out_first() {
        let names: Vec<_> = (0..12).map(|n| format!("column_{n}")).collect();
        let columns = names.iter().enumerate().map(|(at, name)| {
            let value = (at % 2 == 0).then_some(1234567);
            let column: ArrayRef = Arc::new(Int64Array::from(vec![None, value]));
            (name.as_str(), column, true)
        });
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let (text, left_out) = printed(&rows, 80);
        assert_eq!(left_out, 6, "{text}");
        assert!(
            text.contains("column_6") && !text.contains("column_7"),
            "{text}"
        );
        let (text, left_out) = printed(&rows, 40);
        assert!(left_out > 6 && text.contains('…'), "{text}");
        let (text, left_out) = printed(&rows, 200);
        assert!(left_out == 0 && text.contains("column_7"), "{text}");
    }

    #[test]
    fn lines_number_rows_and_align_names() {
        let rows = row(&[("n", "5"), ("name", "a\nb")]);
        let expected = "\
-[ row 8 ]-
n    | 5
name | a
     | b
-[ row 9 ]-
n    | 1
name | NULL
";
        assert_eq!(lines(&[rows], 7).unwrap(), expected);
    }
}
