//! Tests that `docs/sql.md` has an entry for each option, made from the table that is parsed, and links to it.

use std::fmt::Write;
use std::{env, fs};

use super::train_options;

/// Lines around the entries.
const MARKS: [&str; 2] = [
    "<!-- options: from client/src/sql/options/table -->\n",
    "<!-- end of options -->\n",
];

/// Maximum width of a line of the page, in characters.
const WIDTH: usize = 110;

/// Breaks a text into lines; those after the first are indented.
fn wrapped(text: &str, indent: &str) -> String {
    let mut wrapped = String::new();
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            wrapped.push('\n');
            wrapped.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            wrapped.push(' ');
            width += 1;
        }
        wrapped.push_str(word);
        width += length;
    }
    wrapped
}

#[test]
fn every_option_has_an_entry_in_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sql.md");
    let page = fs::read_to_string(path).unwrap();
    let mut entries = String::new();
    for option in train_options() {
        let about = wrapped(option.about, "");
        let values = wrapped(&format!("- Values: {}", option.values), "  ");
        let default = wrapped(&format!("- Default: {}", option.default), "  ");
        let (name, example) = (option.name, option.example);
        writeln!(
            entries,
            "\n#### {name}\n\n{about}\n\n{values}\n{default}\n- Example: `{example}`"
        )
        .unwrap();
    }
    entries.push('\n');
    let [begin, end] = MARKS.map(|mark| page.find(mark).expect("the page has both marks"));
    let begin = begin + MARKS[0].len();
    for option in train_options() {
        let link = format!("](#{})", option.name);
        assert!(
            page[..begin].contains(&link),
            "a group has a link to {}",
            option.name
        );
    }
    if page[begin..end] != entries {
        if env::var_os("VOLLEY_WRITE_DOCS").is_some() {
            fs::write(path, [&page[..begin], &entries, &page[end..]].concat()).unwrap();
            return;
        }
        panic!("docs/sql.md has other entries: VOLLEY_WRITE_DOCS=1 writes these\n{entries}");
    }
}
