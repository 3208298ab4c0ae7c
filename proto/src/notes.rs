//! Notes that clients show and read: that a training's refit follows, since its progress counts the epochs of both, and
//! that a query runs again.

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

/// Returns the end of the note about a job that is run again.
pub fn runs_again(attempt: usize, most: &str) -> String {
    format!("{RUNS_AGAIN}{attempt}{most})")
}

/// Returns whether a note is about a job that is run again.
pub fn is_rerun(note: &str) -> bool {
    note.contains(RUNS_AGAIN)
}

/// Part of the note about a job that is run again, before the attempt's number.
const RUNS_AGAIN: &str = "it runs again (attempt ";

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
