//! Policy on the addresses that a process may listen on.

use std::net::IpAddr;

use crate::{Error, Result};

/// Options that an error names: of the address, and of the tokens.
#[derive(Debug, Clone, Copy)]
pub struct ExposureOptions {
    /// Option of the address to listen on.
    pub bind: &'static str,
    /// Option that gives the tokens, with its value's name.
    pub tokens: &'static str,
}

/// Refuses to listen where users of other hosts can connect, unless callers must show tokens over TLS, or `insecure`
/// allows it explicitly.
///
/// # Errors
/// Names the missing options.
pub fn may_listen(
    bind: IpAddr,
    tokens: bool,
    tls: bool,
    insecure: bool,
    options: ExposureOptions,
) -> Result<()> {
    if insecure || bind.is_loopback() || (tokens && tls) {
        return Ok(());
    }
    let option = options.tokens;
    let missing = match (tokens, tls) {
        (false, false) => {
            format!("asked for tokens ({option}) over TLS (--tls-ca, --tls-cert, --tls-key)")
        }
        (false, true) => format!("asked for tokens ({option})"),
        (true, _) => "asked for their tokens over TLS (--tls-ca, --tls-cert, --tls-key)".to_owned(),
    };
    let expected = format!(
        "other hosts reach it there, and are not {missing}: bind to 127.0.0.1, or give --insecure if everyone \
         who can reach it may do everything"
    );
    Err(Error::option(options.bind, bind.to_string(), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: ExposureOptions = ExposureOptions {
        bind: "--metrics",
        tokens: "--metrics-token HASH",
    };

    #[test]
    fn beyond_loopback_tokens_and_tls_are_wanted() {
        let may = |bind: &str, tokens, tls, insecure| {
            may_listen(bind.parse().unwrap(), tokens, tls, insecure, OPTIONS).is_ok()
        };
        for loopback in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert!(may(loopback, false, false, false), "{loopback}");
        }
        for beyond in ["0.0.0.0", "::", "10.0.0.7", "2001:db8::1"] {
            assert!(!may(beyond, false, false, false), "{beyond}");
            assert!(!may(beyond, true, false, false) && !may(beyond, false, true, false));
            assert!(may(beyond, true, true, false) && may(beyond, false, false, true));
        }
        for (tokens, missing) in [(true, "over TLS"), (false, "--metrics-token HASH")] {
            let said = may_listen([10, 0, 0, 7].into(), tokens, false, false, OPTIONS);
            let said = said.unwrap_err().to_string();
            let named = ["--metrics", missing, "--insecure"];
            assert!(named.iter().all(|name| said.contains(name)), "{said}");
        }
    }
}
