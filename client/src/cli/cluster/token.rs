//! `volley cluster token`: makes a token and the line that registers it with a scheduler, or shows an existing one.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use volley_proto::access::{LocalTokens, Token};

use super::super::Ended;
use super::super::config::NewToken;
use super::super::report::print;
use super::FoundCluster;

/// Writes a token to a new file that only its user can read.
fn write(file: &Path, token: &Token) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    writeln!(file, "{}", token.reveal())?;
    file.sync_all()
}

/// Makes or shows a token.
///
/// # Errors
/// When the file exists, it or standard output cannot be written, or the scheduler belongs to another user or does not run.
pub(super) fn run(asked: &NewToken) -> anyhow::Result<Ended> {
    match asked {
        NewToken::Make { name, role, out } => {
            let token = Token::generate();
            match out {
                None => eprintln!("the token of {name}, shown only now:\n{}", token.reveal()),
                Some(file) => {
                    let written = write(file, &token);
                    written.with_context(|| format!("cannot write {}", file.display()))?;
                    eprintln!("the token of {name} is in {}", file.display());
                }
            }
            print(&format!("{name} {role} {}\n", token.hash()))?;
        }
        NewToken::Show {
            scheduler,
            is_found,
        } => {
            if *is_found {
                eprintln!("{}", FoundCluster::note(scheduler));
            }
            let found = LocalTokens::find(scheduler);
            let found = found.with_context(|| {
                format!(
                    "no scheduler of yours at {scheduler} has made a token: it does not run, it was given tokens \
                     (--tokens), or VOLLEY_STATE_DIR is another one"
                )
            })?;
            print(&format!("{}\n", found.client.reveal()))?;
        }
    }
    Ok(Ended::Done)
}
