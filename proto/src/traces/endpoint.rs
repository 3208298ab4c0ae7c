//! Address of a collector.

use std::fmt;
use std::str::FromStr;

use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;

/// Description of a valid address, at the end of errors.
const EXPECTED: &str = "expected http://HOST:PORT, where a collector receives OTLP over gRPC, usually port 4317; for a \
     service behind https, run a collector that forwards to it";

/// Address of a collector that receives OTLP over gRPC.
///
/// ```
/// use volley_proto::traces::OtlpEndpoint;
///
/// assert!("http://collector:4317".parse::<OtlpEndpoint>().is_ok());
/// // OTLP over HTTP has a path.
/// assert!("http://collector:4318/v1/traces".parse::<OtlpEndpoint>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint(Uri);

impl OtlpEndpoint {
    /// Returns the endpoint to connect to.
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint::from(self.0.clone())
    }
}

impl FromStr for OtlpEndpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
        let is_known = uri.scheme_str() == Some("http");
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_user = uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'));
        match is_known && is_bare && has_host && !has_user && uri.port_u16().is_some() {
            true => Ok(Self(uri)),
            false => Err(EXPECTED),
        }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(text.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_collectors_address_is_taken() {
        for text in [
            "http://collector:4317",
            "http://otlp.example.org:4317/",
            "http://[::1]:4317",
        ] {
            let endpoint: OtlpEndpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text.trim_end_matches('/'));
        }
        for text in [
            "",
            "collector:4317",
            "collector",
            "grpc://collector:4317",
            "https://collector:4317",
            "http://collector",
            "http://collector:4318/v1/traces",
            "http://collector:4317/?a=b",
            "http://user:secret@collector:4317",
        ] {
            let refused = text.parse::<OtlpEndpoint>();
            assert_eq!(refused, Err(EXPECTED), "{text}");
        }
    }
}
