//! `volley cluster token`: makes a token and the line that registers it with a scheduler, or shows an existing one.

use anyhow::Context;
use volley_proto::access::{LocalTokens, Token};

use super::super::Ended;
use super::super::config::NewToken;
use super::FoundCluster;

/// Makes or shows a token.
///
/// # Errors
/// When the scheduler belongs to another user, or does not run.
pub(super) fn run(asked: &NewToken) -> anyhow::Result<Ended> {
    match asked {
        NewToken::Make { name, role } => {
            let token = Token::generate();
            eprintln!("the token of {name}, shown only now:\n{}", token.reveal());
            println!("{name} {role} {}", token.hash());
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
            println!("{}", found.client.reveal());
        }
    }
    Ok(Ended::Done)
}
