//! Test that the table of options in `docs/sql.md` equals the table that is parsed.

use super::train_options;

const DOCUMENT: &str = include_str!("../../../../docs/sql.md");

#[test]
fn every_option_is_documented_as_it_is() {
    let rows: Vec<String> = train_options()
        .map(|option| {
            let cell = |text: &str| text.replace('|', "\\|");
            format!(
                "| `{}` | {} | {} | {} |",
                option.name,
                cell(option.values),
                cell(option.default),
                cell(option.about)
            )
        })
        .collect();
    let table = rows.join("\n");
    assert!(
        DOCUMENT.contains(&table),
        "docs/sql.md should have these rows:\n{table}"
    );
}
