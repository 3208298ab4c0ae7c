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

pub(super) fn whole(to: &mut usize, value: &OptionValue) -> Result<(), Refusal> {
    match value.number() {
        Some(number) if number > 0 => set(to, number),
        _ => Err(expected("a whole number from 1")),
    }
}

pub(super) fn number(to: &mut f64, value: &OptionValue) -> Result<(), Refusal> {
    value
        .number()
        .map_or_else(|| Err(expected("a number")), |number| set(to, number))
}

pub(super) fn some_whole(to: &mut Option<usize>, value: &OptionValue) -> Result<(), Refusal> {
    let mut given = 0;
    whole(&mut given, value)?;
    set(to, Some(given))
}

pub(super) fn some_number(to: &mut Option<f64>, value: &OptionValue) -> Result<(), Refusal> {
    let mut given = 0.0;
    number(&mut given, value)?;
    set(to, Some(given))
}

pub(super) fn some_bool(to: &mut Option<bool>, value: &OptionValue) -> Result<(), Refusal> {
    match value {
        OptionValue::Bool(on) => set(to, Some(*on)),
        _ => Err(expected("true or false")),
    }
}

pub(super) fn text(value: &OptionValue) -> Option<String> {
    value.text().map(str::to_owned)
}

pub(super) fn column(to: &mut Option<String>, value: &OptionValue) -> Result<(), Refusal> {
    text(value).map_or_else(
        || Err(expected("a column, such as 'split'")),
        |c| set(to, Some(c)),
    )
}

pub(super) fn columns(to: &mut Option<Vec<String>>, value: &OptionValue) -> Result<(), Refusal> {
    match value.list(text) {
        Some(columns) => set(to, Some(columns)),
        None => Err(expected("a list of columns, such as ['store', 'weekday']")),
    }
}

pub(super) fn duration(to: &mut Duration, value: &OptionValue) -> Result<(), Refusal> {
    match value.text().map(humantime::parse_duration) {
        Some(Ok(duration)) if !duration.is_zero() => set(to, duration),
        _ => Err(expected("a duration, such as '60s' or '2min'")),
    }
}

pub(super) fn choose<T: Copy>(
    to: &mut T,
    value: &OptionValue,
    choices: &[(&str, T)],
) -> Result<(), Refusal> {
    let text = value.text().unwrap_or_default();
    if let Some((_, choice)) = choices
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
    {
        return set(to, *choice);
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
