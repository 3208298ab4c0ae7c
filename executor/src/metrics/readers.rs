//! Readers of the metrics: whose token is accepted.

use volley_proto::access::{Credential, Holder, Token, TokenHash, bearer};
use volley_proto::schedulers::Schedulers;

use crate::ExecutorConfig;
use crate::config::MetricsConfig;

/// Readers of an executor's metrics.
#[derive(Debug)]
pub(super) enum Readers {
    /// Everybody, because the executor was started with `--insecure` and without a token for them.
    Anybody,
    /// Holders of a token with one of these hashes.
    Tokens(Vec<TokenHash>),
    /// The user who has started the scheduler on this host, with the token that it has made for clients.
    OfScheduler(Schedulers),
}

impl Readers {
    /// Returns the readers that a configuration permits.
    pub(super) fn of(config: &ExecutorConfig, metrics: &MetricsConfig) -> Self {
        match metrics.tokens.is_empty() {
            false => Self::Tokens(metrics.tokens.clone()),
            true if config.insecure => Self::Anybody,
            true => Self::OfScheduler(config.scheduler.clone()),
        }
    }

    /// Returns why nobody can read the metrics at present, if that is so.
    pub(super) fn nobody(&self) -> Option<String> {
        let Self::OfScheduler(schedulers) = self else {
            return None;
        };
        let found = Credential::Found.token(schedulers.current(), Holder::Client);
        let is_found = matches!(found, Ok(Some(_)));
        (!is_found).then(|| {
            format!(
                "/metrics refuses every token: the scheduler at {schedulers} has made none for this user on this host, so \
                 give --metrics-token HASH"
            )
        })
    }

    /// Checks an `authorization` header; may read the small file of the scheduler's tokens.
    pub(super) fn include(&self, header: Option<&str>) -> bool {
        let sent = || header.and_then(bearer)?.parse::<Token>().ok();
        // Hashes are compared, so the time taken says nothing about the token.
        match self {
            Self::Anybody => true,
            Self::Tokens(known) => sent().is_some_and(|sent| known.contains(&sent.hash())),
            Self::OfScheduler(schedulers) => sent().is_some_and(|sent| {
                let found = Credential::Found.token(schedulers.current(), Holder::Client);
                matches!(found, Ok(Some(found)) if found.hash() == sent.hash())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use volley_proto::access::LocalTokens;

    use super::*;

    fn readers(insecure: bool, tokens: &[&Token]) -> Readers {
        let local = ExecutorConfig::local("e", "127.0.0.1:9", "unused".into());
        let config = ExecutorConfig { insecure, ..local };
        let metrics = MetricsConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            tokens: tokens.iter().map(|token| token.hash()).collect(),
        };
        Readers::of(&config, &metrics)
    }

    #[test]
    fn metrics_are_for_who_has_a_token() {
        let (token, other) = (Token::generate(), Token::generate());
        let ask = |readers: &Readers, token: &Token| {
            readers.include(Some(&format!("Bearer {}", token.reveal())))
        };
        for insecure in [false, true] {
            let readers = readers(insecure, &[&Token::generate(), &token]);
            assert!(ask(&readers, &token) && !ask(&readers, &other));
            assert!(!readers.include(None) && !readers.include(Some("Basic x")));
            assert!(!readers.include(Some(&token.hash().to_string())));
        }
        assert!(readers(true, &[]).include(None));
        let listens: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let found = LocalTokens::generate();
        let closed = readers(false, &[]);
        assert!(!closed.include(None) && !ask(&closed, &found.client));
        let _held = found.hold(listens);
        assert!(ask(&closed, &found.client));
        assert!(!ask(&closed, &found.executor) && !ask(&closed, &other));
    }
}
