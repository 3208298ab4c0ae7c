//! The main job's SQL files (`examples/rossmann`) against a cluster, and tables for them.

use std::path::Path;
use std::process::Command;

use crate::{Cluster, binary};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/rossmann");

impl Cluster {
    /// Returns `volley` with files of the example in one session, with these values of their variables. Rows are
    /// printed as lines of JSON.
    pub fn example(&self, files: &[&str], defines: &[(&str, &str)]) -> Command {
        let mut command = self.command();
        command.args(["--format", "json"]);
        for (name, value) in defines {
            command.arg(format!("--define={name}={value}"));
        }
        for file in files {
            command.arg("-f").arg(Path::new(FILES).join(file));
        }
        command
    }
}

/// Generates the seven tables in a folder, with this many stores.
///
/// # Panics
/// When they cannot be written.
pub fn generate_example(stores: u64, out: &Path) {
    let generated = Command::new(binary("volley"))
        .args(["generate", "rossmann", "--stores", &stores.to_string()])
        .arg("--out")
        .arg(out)
        .output()
        .expect("the command starts");
    let said = String::from_utf8_lossy(&generated.stderr);
    assert!(generated.status.success(), "{said}");
}
