//! Checks of a request's host and origin: the scheduler answers requests to one of its names, from its own pages or
//! from no page.
//!
//! ```text
//!   Host: another name  ───► 421: a page whose name was made to resolve to this address (DNS rebinding)
//!   Origin: another site ──► 403: a page that sends a request here from elsewhere
//! ```
//!
//! This is not authentication. HTTP/2 is checked only if a cookie or an origin shows that a browser asks: gRPC
//! clients may know the scheduler by a name that it was not told.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderName, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use volley_proto::address::ListenAddress;

/// The names of this scheduler.
#[derive(Debug)]
pub(crate) struct Hosts {
    bound: IpAddr,
    advertised: String,
}

impl Hosts {
    pub(crate) fn of(listen: &ListenAddress) -> Self {
        Self {
            bound: listen.bind(),
            advertised: listen.advertise_host().to_owned(),
        }
    }

    /// Returns the reason to refuse a request with these headers, if there is one.
    fn refuses(&self, host: Option<&str>, origin: Option<&str>) -> Option<(StatusCode, String)> {
        // Every browser sends the host.
        let host = host?;
        let asked = host.parse::<Authority>().ok();
        if !asked.is_some_and(|asked| self.is_own(asked.host())) {
            let reason = format!(
                "this scheduler is not {host:?}: it answers to {}, or start it with --advertise-host\n",
                self.advertised
            );
            return Some((StatusCode::MISDIRECTED_REQUEST, reason));
        }
        let origin = origin?;
        let site = origin.split_once("://").map(|(_, site)| site);
        if site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
            return None;
        }
        let reason =
            format!("requests from pages of {origin} are not answered, only from {host}\n");
        Some((StatusCode::FORBIDDEN, reason))
    }

    fn is_own(&self, host: &str) -> bool {
        let bare = |host: &str| {
            host.trim_matches(['[', ']'])
                .trim_end_matches('.')
                .to_lowercase()
        };
        let host = bare(host);
        let everywhere = self.bound.is_unspecified();
        let local = everywhere || self.bound.is_loopback();
        let is_bound = match host.parse::<IpAddr>() {
            // An address cannot be made to resolve to another.
            Ok(address) => everywhere || address == self.bound || (local && address.is_loopback()),
            Err(_) => local && host == "localhost",
        };
        is_bound || host == bare(&self.advertised)
    }
}

/// Refuses requests that are not for this scheduler, or not from its own pages.
pub(crate) async fn check_host(
    State(hosts): State<Arc<Hosts>>,
    request: Request,
    next: Next,
) -> Response {
    let refused = {
        let text = |name: HeaderName| {
            let value = request.headers().get(name);
            value.map(|value| value.to_str().unwrap_or_default())
        };
        let old = [Version::HTTP_09, Version::HTTP_10, Version::HTTP_11];
        // These show a browser that speaks a newer version.
        let browser = [header::COOKIE, header::ORIGIN];
        let browser = browser
            .iter()
            .any(|name| request.headers().contains_key(name));
        let authority = || request.uri().authority().map(|asked| asked.as_str());
        match browser || old.contains(&request.version()) {
            true => hosts.refuses(text(header::HOST).or_else(authority), text(header::ORIGIN)),
            false => None,
        }
    };
    match refused {
        Some(refused) => refused.into_response(),
        None => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(bind: &str, advertised: Option<&str>) -> Hosts {
        let listen = ListenAddress::new(bind.parse().unwrap(), 50050_u16.into(), advertised);
        Hosts::of(&listen.unwrap())
    }

    fn code(hosts: &Hosts, host: &str, origin: Option<&str>) -> u16 {
        let refused = hosts.refuses(Some(host), origin);
        refused.map_or(200, |(code, _)| code.as_u16())
    }

    #[test]
    fn only_names_of_its_own_are_answered_to() {
        let loopback = hosts("127.0.0.1", None);
        for (host, expected) in [
            ("127.0.0.1:50050", 200),
            ("127.0.0.1", 200),
            ("LOCALHOST:50050", 200),
            ("localhost.", 200),
            ("[::1]:50050", 200),
            ("evil.example:50050", 421),
            ("localhost.evil.example", 421),
            ("10.0.0.7:50050", 421),
            ("", 421),
            ("a b", 421),
        ] {
            assert_eq!(code(&loopback, host, None), expected, "{host}");
        }
        let everywhere = hosts("0.0.0.0", Some("scheduler.lan"));
        for (host, expected) in [
            ("scheduler.lan:50050", 200),
            ("10.0.0.7:50050", 200),
            ("localhost:50050", 200),
            ("evil.example", 421),
        ] {
            assert_eq!(code(&everywhere, host, None), expected, "{host}");
        }
        let one = hosts("10.0.0.7", Some("scheduler.lan"));
        for (host, expected) in [
            ("10.0.0.7:50050", 200),
            ("scheduler.lan", 200),
            ("localhost:50050", 421),
            ("10.0.0.8", 421),
        ] {
            assert_eq!(code(&one, host, None), expected, "{host}");
        }
        assert_eq!(one.refuses(None, None), None);
    }

    #[test]
    fn whoever_is_answered_to_named_this_scheduler() {
        let hosts = hosts("127.0.0.1", Some("scheduler.lan"));
        bolero::check!(name = "host")
            .with_iterations(50_000)
            .with_max_len(80)
            .for_each(|bytes| {
                let text = String::from_utf8_lossy(bytes);
                let origin = format!("http://{text}");
                if hosts.refuses(Some(&text), Some(&origin)).is_none() {
                    let host = text.to_lowercase();
                    let own = ["127.", "localhost", "[::1]", "scheduler.lan"];
                    assert!(own.iter().any(|own| host.contains(own)), "{text:?}");
                }
                let _ = hosts.refuses(Some("127.0.0.1:1"), Some(&text));
            });
    }

    #[test]
    fn only_its_own_pages_ask() {
        let hosts = hosts("127.0.0.1", None);
        for (origin, expected) in [
            ("http://127.0.0.1:50050", 200),
            ("http://127.0.0.1:8080", 403),
            ("http://localhost:50050", 403),
            ("https://nightlies.apache.org", 403),
            ("null", 403),
        ] {
            let found = code(&hosts, "127.0.0.1:50050", Some(origin));
            assert_eq!(found, expected, "{origin}");
        }
        assert_eq!(
            code(&hosts, "evil.example", Some("http://evil.example")),
            421
        );
    }
}
