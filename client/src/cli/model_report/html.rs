//! Text and numbers in the report's HTML.

/// Escapes text of the user's, so that it is not read as markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Formats a number with 0, 3 or 5 decimals, depending on its size; a dash if it is missing or not finite.
pub(super) fn number(value: impl Into<Option<f64>>) -> String {
    let value: Option<f64> = value.into();
    match value.filter(|value| value.is_finite()) {
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 1.0 => format!("{value:.3}"),
        Some(value) => format!("{value:.5}"),
        None => "–".to_owned(),
    }
}

/// Formats a part of a whole in percent; a dash if that is not finite.
pub(super) fn percent(part: f64, whole: f64) -> String {
    match 100.0 * part / whole {
        share if share.is_finite() => format!("{share:.1} %"),
        _ => "–".to_owned(),
    }
}

/// Shortens text to at most `most` characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => {
            let kept = text.chars().take(most.saturating_sub(1));
            kept.chain(['…']).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_users_is_no_markup() {
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn numbers_have_the_digits_that_are_read() {
        let shown = [Some(12345.6), Some(1.23456), Some(0.012345), None].map(number);
        assert_eq!(shown, ["12346", "1.235", "0.01235", "–"]);
        assert_eq!(number(f64::NAN), "–");
        assert_eq!([percent(1.0, 8.0), percent(0.0, 0.0)], ["12.5 %", "–"]);
    }

    #[test]
    fn long_names_end_in_an_ellipsis() {
        assert_eq!(shortened("größer", 6), "größer");
        assert_eq!(shortened("größer", 5), "größ…");
    }
}
