//! Deep stacks for the threads that tasks run on.
//!
//! An expression is computed by a call for each of its levels. Ballista starts the threads of tasks with the default
//! size of stack, which only a variable of the process sets; one that overruns it ends the process, and what others
//! run there.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::limits::STACK;

/// The variable that the standard library reads the default size from.
const SIZE: &str = "RUST_MIN_STACK";

/// Starts the program anew with deep stacks, under the same process id, unless it was started with a size of stack
/// of its own. To be called first in `main`.
///
/// # Errors
/// When the program cannot be started.
pub fn with_deep_stacks() -> io::Result<()> {
    if std::env::var_os(SIZE).is_some() {
        return Ok(());
    }
    let mut arguments = std::env::args_os();
    let mut program = Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        program.arg0(name);
    }
    // It returns only if it fails.
    Err(program.args(arguments).env(SIZE, STACK.to_string()).exec())
}
