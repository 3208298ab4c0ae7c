//! Removal of an attempt's files, as the scheduler asks executors for it.
//!
//! Ballista asks for it as soon as an attempt has failed, by the attempt's id. But the next attempt of the job may take
//! rows from there, so executors wait until the scheduler asks by another name. Not here: what is removed when.

/// Returns the name by which the files of an attempt are removed.
pub fn removal(attempt: &str) -> String {
    format!("{attempt}/")
}

/// Returns the attempt whose files are to be removed; `None` if it has only ended.
pub fn removed(name: &str) -> Option<&str> {
    name.strip_suffix('/')
}
