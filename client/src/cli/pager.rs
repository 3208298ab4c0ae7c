//! A pager for more than a screen of text: the user's own, or `less`.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::config::Terminal;

/// Exit code of a shell that does not find a command.
const NOT_FOUND: i32 = 127;

impl Terminal {
    /// Shows text in the pager until the user leaves it. Returns false if there is no pager.
    ///
    /// # Errors
    /// When the pager cannot be run.
    pub(super) fn page(&self, text: &[u8]) -> anyhow::Result<bool> {
        let Some(pager) = &self.pager else {
            return Ok(false);
        };
        tokio::task::block_in_place(|| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(pager).stdin(Stdio::piped());
            if std::env::var_os("LESS").is_none() {
                // It leaves the rows on the screen, ends by itself where they fit, and shows colours.
                command.env("LESS", "FRX");
            }
            let cannot = || format!("cannot run the pager {pager:?} (PAGER)");
            let mut running = command.spawn().with_context(cannot)?;
            let written = running.stdin.take().map(|mut rows| rows.write_all(text));
            let ended = running.wait().with_context(cannot)?;
            match written {
                // Unless the user has left before the end.
                Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
                    return Err(error).with_context(cannot);
                }
                _ => {}
            }
            Ok(ended.code() != Some(NOT_FOUND))
        })
    }
}
