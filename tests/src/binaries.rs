//! The workspace's own binaries, built once for all tests of a process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of one of the workspace's binaries, built with the profile of the running test.
///
/// # Panics
/// When the binaries cannot be built.
pub fn binary(name: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(build).join(name)
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    // …/<profile>/deps/<test>
    let profile_dir = test
        .ancestors()
        .nth(2)
        .expect("a test lies two folders deep");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo tells tests their package in these variables. Build scripts of dependencies depend on them: with them
    // set, the scripts and everything above would be built anew, and again by the next build.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        let of_test = ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"];
        if of_test.iter().any(|prefix| told.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    cargo
        .args(["build", "--workspace", "--bins", "--locked", "--quiet"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env(
            "CARGO_TARGET_DIR",
            profile_dir.parent().expect("a profile has a target folder"),
        );
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.status().expect("cargo is there when its tests run");
    assert!(built.success(), "the workspace's binaries do not build");
    profile_dir.to_owned()
}
