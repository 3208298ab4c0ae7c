//! What a cluster is started with beyond a trusted network: certificates of an authority of its own, and tokens.

use std::fs;
use std::path::Path;
use std::process::Command;

use volley_proto::access::{Role, Token};

use crate::{Setup, Spread, binary};

impl Setup {
    /// The same over TLS and with tokens, whose files are put into this folder. The test is an administrator.
    ///
    /// # Panics
    /// When there are no certificates to be had.
    pub fn secured(self, dir: &Path) -> Self {
        let hosts = match &self.spread {
            None => vec!["127.0.0.1".to_owned()],
            Some(spread) => Spread::NAMES.map(|host| spread.advertised(host)).to_vec(),
        };
        let certs = dir.join("certs");
        let made = Command::new(binary("volley"))
            .args(["cluster", "certs", "--hosts", &hosts.join(","), "--out"])
            .arg(&certs)
            .output()
            .expect("the command starts");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");

        let [own, executors] = [(); 2].map(|()| Token::generate());
        let [tokens, join] = ["tokens", "join-token"].map(|name| dir.join(name));
        let line =
            |name: &str, role: Role, token: &Token| format!("{name} {role} {}\n", token.hash());
        let lines = [
            line("test", Role::Administer, &own),
            line("executors", Role::Executor, &executors),
        ];
        fs::write(&tokens, lines.concat()).expect("a file in the test's folder");
        fs::write(&join, executors.reveal()).expect("a file in the test's folder");
        let with = |args: &[String], option: &str, file: &Path| {
            [args, &[option.to_owned(), file.display().to_string()]].concat()
        };
        Self {
            scheduler_args: with(&self.scheduler_args, "--tokens", &tokens),
            executor_args: with(&self.executor_args, "--join-token", &join),
            certs: Some(certs),
            token: Some(own),
            ..self
        }
    }
}
