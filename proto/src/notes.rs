//! The note of a training whose refit follows, which clients show and read: its progress counts the epochs of both.

/// Returns the note of a training of at most `selecting` epochs that a refit follows.
pub fn refit_follows(selecting: u64) -> String {
    format!("at most {selecting} epochs; then a refit on all rows, with the best number of epochs")
}

/// Reads the number of epochs before the refit from its note; `None` if the text is another.
pub fn epochs_before_refit(note: &str) -> Option<u64> {
    let rest = note.strip_prefix("at most ")?;
    let (epochs, rest) = rest.split_once(' ')?;
    let is_ours = rest.starts_with("epochs; then a refit ");
    epochs.parse().ok().filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_as_it_was_written() {
        assert_eq!(epochs_before_refit(&refit_follows(3000)), Some(3000));
        for other in [
            "",
            "at most",
            "at most 3 epochs",
            "at most x epochs; then a refit ",
            "refit on all rows, to epoch 10",
        ] {
            assert_eq!(epochs_before_refit(other), None, "{other}");
        }
    }
}
