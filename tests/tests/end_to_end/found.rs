//! The cluster of `volley cluster up`, which commands find by themselves.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use volley_proto::access::Token;
use volley_tests::binary;

/// Cluster of a folder; stopped when dropped.
pub(crate) struct Up {
    dir: TempDir,
}

impl Up {
    /// Starts so many executors, of a slot each.
    pub(crate) fn start(executors: usize) -> Self {
        let up = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let started = up.volley(&[
            "cluster",
            "up",
            "--executors",
            &executors.to_string(),
            "--vcores",
            "1",
            "--dir",
            ".",
        ]);
        assert!(started.status.success(), "{}", errors(&started));
        up
    }

    /// Returns the folder, which is where commands run.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("volley"));
        command
            .args(arguments)
            .current_dir(&self.dir)
            // Its user has no other clusters, tokens or settings.
            .env("HOME", self.dir.path())
            .env("VOLLEY_CLUSTER_DIR", self.dir.path());
        command
    }

    pub(crate) fn volley(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let down = self.volley(&["cluster", "down", "--dir", "."]);
        if !std::thread::panicking() {
            assert!(down.status.success(), "{}", errors(&down));
        }
    }
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_that_is_up_is_found_and_a_given_token_wins() {
    let up = Up::start(1);
    let note = "(started by volley cluster up)";
    let query = ["--format", "csv", "-c", "SELECT 1 AS one"];
    let found = up.volley(&query);
    assert_eq!(found.stdout, b"one\n1\n", "{}", errors(&found));
    assert!(errors(&found).contains(note), "{}", errors(&found));
    let token = up.volley(&["cluster", "token"]);
    assert!(errors(&token).contains(note), "{}", errors(&token));
    let own = String::from_utf8(token.stdout).unwrap().trim().to_owned();

    let wrong = Token::generate();
    let commands: [&[&str]; 4] = [&query, &["jobs"], &["executors"], &["doctor"]];
    for command in commands {
        let given = |token: &str| up.volley(&[command, &["--token", token]].concat());
        let refused = given(wrong.reveal());
        assert!(!refused.status.success(), "{command:?}");
        let said = errors(&refused) + &String::from_utf8_lossy(&refused.stdout);
        assert!(said.contains("refuses"), "{command:?}: {said}");
        let taken = given(&own);
        assert!(taken.status.success(), "{command:?}: {}", errors(&taken));
        let is_told = errors(&taken).contains(note);
        assert!(
            is_told || command == ["doctor"],
            "{command:?}: {}",
            errors(&taken)
        );
        let mut from_environment = up.command(command);
        from_environment.env("VOLLEY_TOKEN", wrong.reveal());
        assert!(
            !from_environment.output().unwrap().status.success(),
            "{command:?}"
        );
    }
    let quiet = up.volley(&["jobs", "--quiet", "--format", "csv"]);
    assert_eq!(errors(&quiet), "");
}
