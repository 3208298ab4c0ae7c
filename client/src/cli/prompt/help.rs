//! Help at the prompt: its commands, the syntax of statements, the options of `CREATE MODEL`.

use anyhow::bail;
use volley::{TrainOption, train_options};
use volley_proto::did_you_mean;

use super::super::format::cut;
use super::commands::COMMANDS;

/// Syntax of the statements, each behind `# ` and its name, in the order in which one meets them.
const STATEMENTS: &str = include_str!("statements.txt");

/// Returns the names of the statements, and their syntax.
fn statements() -> impl Iterator<Item = (&'static str, &'static str)> {
    let entries = STATEMENTS.split("# ").skip(1);
    entries.filter_map(|entry| entry.trim_end().split_once('\n'))
}

/// Returns the commands of the prompt and the first things to type.
pub(super) fn help() -> String {
    let mut help =
        String::from("SQL ends with a semicolon and may span lines. Tab completes names.\n\n");
    for (usage, about) in COMMANDS {
        help.push_str(&format!("  {usage:<18} {about}\n"));
    }
    help.push_str(
        "\nCtrl-C clears the unfinished statement, or cancels the running one; Ctrl-R searches the history.\n\
         Files:  SELECT * FROM 'sales.csv' LIMIT 10;\n\
         Models: CREATE MODEL sales OPTIONS (input_label_cols = ['amount']) AS SELECT …;\n",
    );
    help
}

/// Topic of the list of options.
const OPTIONS: &str = "OPTIONS";
/// Width of that list, in characters.
const WIDTH: usize = 100;

/// Returns the names of statements, functions and options that have an entry.
pub(super) fn topics() -> Vec<String> {
    let statements = statements().map(|(name, _)| name.to_owned());
    let options = train_options().map(|option| option.name.to_owned());
    statements
        .chain([OPTIONS.to_owned()])
        .chain(options)
        .collect()
}

/// Returns the syntax of the statements or functions whose names begin with a text, the entry of an option, or the list of
/// options.
///
/// # Errors
/// When there is no such topic.
pub(in super::super) fn syntax(typed: &str) -> anyhow::Result<String> {
    let typed = typed.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = typed.to_uppercase();
    if name.is_empty() {
        let names = statements().map(|(name, _)| format!("  {name}\n"));
        return Ok(format!(
            "\\h STATEMENT shows the syntax of:\n{}and \\h OPTIONS lists the options of CREATE MODEL\n",
            names.collect::<String>()
        ));
    }
    if name == OPTIONS {
        return Ok(train_options().map(listed).collect());
    }
    // EXPLAIN is a statement, and the first word of others.
    let named = |exact: bool| {
        let mut text = String::new();
        for (statement, syntax) in statements() {
            let rest = statement.strip_prefix(&name);
            if rest.is_some_and(|rest| !exact || rest.is_empty() || rest.starts_with(' ')) {
                text.push_str(syntax);
                text.push('\n');
            }
        }
        text
    };
    let text = match named(true) {
        text if text.is_empty() => named(false),
        text => text,
    };
    if !text.is_empty() {
        return Ok(text);
    }
    if let Some(option) = train_options().find(|option| option.name.eq_ignore_ascii_case(&typed)) {
        let TrainOption {
            name,
            values,
            default,
            about,
            ..
        } = option;
        return Ok(format!(
            "{name}, an option of CREATE MODEL\n  values:  {values}\n  default: {default}\n  {about}\n"
        ));
    }
    let topics = topics();
    let hint = did_you_mean(&typed, topics.iter().map(String::as_str));
    let there_is = if hint.is_empty() { "; there" } else { " There" };
    bail!(
        "no help on {typed}{hint}{there_is} is help on statements, ML functions and options of CREATE MODEL"
    )
}

/// Returns an option as a line of the list: its name and the beginning of its description.
fn listed(option: &TrainOption) -> String {
    let line = format!("  {:<24} {}", option.name, option.about);
    format!("{}\n", cut(&line, WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_and_options_have_entries() {
        for (name, _) in statements() {
            let first = name.split(' ').next().unwrap();
            assert!(
                syntax(&name.to_lowercase()).unwrap().contains(first),
                "{name}"
            );
            assert!(syntax("").unwrap().contains(name));
        }
        assert_eq!(syntax("explain").unwrap().lines().count(), 3);
        let copy = syntax("copy").unwrap();
        assert!(copy.contains("format.has_header") && copy.contains("format.compression"));
        assert_eq!(syntax("create").unwrap().matches("CREATE").count(), 4);
        for option in train_options() {
            assert!(syntax(option.name).unwrap().contains(option.about));
        }
        let listed = syntax("options").unwrap();
        assert_eq!(listed.lines().count(), train_options().count());
        assert!(listed.lines().all(|line| line.chars().count() <= WIDTH));
        let error = syntax("SELCT").unwrap_err().to_string();
        assert!(error.contains("did you mean \"SELECT\""), "{error}");
    }
}
