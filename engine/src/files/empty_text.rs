//! Marks that stand for texts without characters where CSV would make NULL of them.
//!
//! In a CSV file `""` is a text and an empty value is NULL, as PostgreSQL and DuckDB write them. Arrow's parser and writer
//! drop the quotes. So a mark stands for such a text while Arrow has it. Not here: where in a file the text is, which
//! [`QuoteCheck`](crate::QuoteCheck) finds and the [writer](crate::write) replaces.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, LargeStringArray, StringArray, StringViewArray};
use datafusion::arrow::datatypes::DataType;
use uuid::Uuid;

/// The first of 16 code points that Unicode reserves for use within a program.
const FIRST: u32 = 0xfdd0;

/// A text that no other has: 128 random bits in characters that are in no text, and that CSV gives no meaning.
#[derive(Debug, Clone)]
pub struct EmptyTextMark(Arc<str>);

impl EmptyTextMark {
    /// Draws a mark.
    #[expect(clippy::new_without_default, reason = "no two marks are the same")]
    pub fn new() -> Self {
        let random = Uuid::new_v4().as_u128();
        let nibbles = (0..32).map(|nibble| ((random >> (4 * nibble)) & 0xf) as u32);
        let mark: String = nibbles
            .filter_map(|nibble| char::from_u32(FIRST + nibble))
            .collect();
        Self(mark.into())
    }

    /// Returns the mark.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Puts the mark for texts without characters. Columns of other types stay.
    pub fn put(&self, column: &ArrayRef) -> ArrayRef {
        replaced(column, "", &self.0)
    }

    /// Puts texts without characters for the mark. Columns of other types stay.
    pub fn take(&self, column: &ArrayRef) -> ArrayRef {
        replaced(column, &self.0, "")
    }
}

/// Puts one text for another.
fn replaced(column: &ArrayRef, from: &str, to: &str) -> ArrayRef {
    fn swapped<'a, A: FromIterator<Option<&'a str>>>(
        texts: impl Iterator<Item = Option<&'a str>> + Clone,
        (from, to): (&str, &'a str),
    ) -> Option<A> {
        let is_there = texts.clone().any(|text| text == Some(from));
        let swap = |text| if text == from { to } else { text };
        is_there.then(|| texts.map(|text| text.map(swap)).collect())
    }
    let texts = (from, to);
    let replaced: Option<ArrayRef> = match column.data_type() {
        DataType::Utf8 => swapped::<StringArray>(column.as_string::<i32>().iter(), texts)
            .map(|column| Arc::new(column) as _),
        DataType::LargeUtf8 => swapped::<LargeStringArray>(column.as_string::<i64>().iter(), texts)
            .map(|column| Arc::new(column) as _),
        DataType::Utf8View => swapped::<StringViewArray>(column.as_string_view().iter(), texts)
            .map(|column| Arc::new(column) as _),
        _ => None,
    };
    replaced.unwrap_or_else(|| Arc::clone(column))
}
