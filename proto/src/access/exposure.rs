//! Policy on the addresses that a process may listen on.

use std::net::IpAddr;

use crate::{Error, Result};

/// Refuses to listen where users of other hosts can connect, unless callers must show tokens over TLS, or `insecure`
/// allows it explicitly.
///
/// # Errors
/// Names the missing options.
pub fn may_listen(bind: IpAddr, tokens: bool, tls: bool, insecure: bool) -> Result<()> {
    if insecure || bind.is_loopback() || (tokens && tls) {
        return Ok(());
    }
    let missing = match (tokens, tls) {
        (false, false) => {
            "asked for tokens (--tokens FILE) over TLS (--tls-ca, --tls-cert, --tls-key)"
        }
        (false, true) => "asked for tokens (--tokens FILE)",
        (true, _) => "asked for their tokens over TLS (--tls-ca, --tls-cert, --tls-key)",
    };
    let expected = format!(
        "others than this host's users reach it there, and are not {missing}: bind to 127.0.0.1, or say --insecure \
         where only those reach it who may do everything"
    );
    Err(Error::option("--bind", bind.to_string(), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_loopback_tokens_and_tls_are_wanted() {
        let may = |bind: &str, tokens, tls, insecure| {
            may_listen(bind.parse().unwrap(), tokens, tls, insecure).is_ok()
        };
        for loopback in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert!(may(loopback, false, false, false), "{loopback}");
        }
        for beyond in ["0.0.0.0", "::", "10.0.0.7", "2001:db8::1"] {
            assert!(!may(beyond, false, false, false), "{beyond}");
            assert!(!may(beyond, true, false, false) && !may(beyond, false, true, false));
            assert!(may(beyond, true, true, false) && may(beyond, false, false, true));
        }
        let said = may_listen([10, 0, 0, 7].into(), true, false, false).unwrap_err();
        let said = said.to_string();
        assert!(
            said.contains("over TLS") && said.contains("--insecure"),
            "{said}"
        );
    }
}
