//! Parsers and setters of values, for each kind of option.

use std::time::Duration;

use volley_proto::did_you_mean;

use super::super::OptionValue;
use super::Refusal;
use crate::Result;

pub(super) fn expected(what: &str) -> Refusal {
    Refusal::Expected(what.to_owned())
}

pub(super) fn set<T>(to: &mut T, value: T) -> Result<(), Refusal> {
    *to = value;
    Ok(())
}

pub(super) fn whole(value: &OptionValue) -> Result<usize, Refusal> {
    match value.number() {
        Some(number) if number > 0 => Ok(number),
        _ => Err(expected("a whole number from 1")),
    }
}

pub(super) fn number(value: &OptionValue) -> Result<f64, Refusal> {
    value.number().ok_or_else(|| expected("a number"))
}

pub(super) fn boolean(value: &OptionValue) -> Result<bool, Refusal> {
    match value {
        OptionValue::Bool(on) => Ok(*on),
        _ => Err(expected("true or false")),
    }
}

pub(super) fn text(value: &OptionValue) -> Option<String> {
    value.text().map(str::to_owned)
}

pub(super) fn column(value: &OptionValue) -> Result<String, Refusal> {
    let expects = || expected(&format!("a column, such as 'split'{}", quotes(value)));
    text(value).ok_or_else(expects)
}

/// Returns how to write a column that is typed as a name, or in double quotes; nothing for other values.
pub(super) fn quotes(value: &OptionValue) -> String {
    let word = |value: &OptionValue| match value {
        OptionValue::Word(word) => Some(format!("'{word}'")),
        _ => None,
    };
    let written = match value {
        OptionValue::List(values) => {
            let any = values.iter().find_map(word);
            any.map(|word| format!("[{word}]"))
        }
        value => word(value),
    };
    let hint = |written| format!("; names of columns are in single quotes here: write {written}");
    written.map(hint).unwrap_or_default()
}

pub(super) fn columns(value: &OptionValue) -> Result<Vec<String>, Refusal> {
    let columns = value.list(text);
    columns.ok_or_else(|| {
        let quotes = quotes(value);
        expected(&format!(
            "a list of columns, such as ['store', 'weekday']{quotes}"
        ))
    })
}

pub(super) fn duration(value: &OptionValue) -> Result<Duration, Refusal> {
    match value.text().map(humantime::parse_duration) {
        Some(Ok(duration)) if !duration.is_zero() => Ok(duration),
        _ => Err(expected("a duration, such as '60s' or '2min'")),
    }
}

pub(super) fn choose<T: Copy>(value: &OptionValue, choices: &[(&str, T)]) -> Result<T, Refusal> {
    let text = value.text().unwrap_or_default();
    if let Some((_, choice)) = choices
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
    {
        return Ok(*choice);
    }
    let names: Vec<_> = choices
        .iter()
        .map(|(name, _)| format!("'{name}'"))
        .collect();
    let hint = did_you_mean(text, choices.iter().map(|(name, _)| *name));
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => Err(Refusal::Expected(format!(
            "{} or {last}{hint}",
            first.join(", ")
        ))),
        _ => Err(Refusal::Expected(format!("{}{hint}", names.join("")))),
    }
}
