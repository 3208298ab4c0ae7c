//! The configuration of JSON Web Tokens: the location of the issuer's key set, and the required claims. It reads no
//! key.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::{Host, Url};
use volley_proto::Error;

/// Configuration for verifying JSON Web Tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// Location of the issuer's key set.
    pub keys: KeySetLocation,
    /// Required value of the claim `iss`.
    pub issuer: String,
    /// Required value of the claim `aud`, or of an item in its list.
    pub audience: String,
    /// Name of the claim that has the role.
    pub role_claim: String,
}

/// Location of a key set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySetLocation {
    /// File.
    File(PathBuf),
    /// URL: `https`, or `http` on this host.
    Url(Url),
}

impl JwtConfig {
    /// Builds the configuration from the options of these names; `None` if they are not given.
    ///
    /// # Errors
    /// When a key set is given without issuer or audience, or one of them without a key set, or its location is
    /// invalid.
    pub fn from_options(
        jwks: Option<&str>,
        issuer: Option<String>,
        audience: Option<String>,
        role_claim: String,
    ) -> Result<Option<Self>, Error> {
        match (jwks, issuer, audience) {
            (None, None, None) => Ok(None),
            (Some(keys), Some(issuer), Some(audience)) => Ok(Some(Self {
                keys: keys.parse()?,
                issuer,
                audience,
                role_claim,
            })),
            (Some(keys), ..) => Err(Error::option(
                "--jwks",
                keys,
                "--jwt-issuer and --jwt-audience must be given, too: a key set alone lets in the tokens that its issuer \
                 has made for any other service",
            )),
            (None, Some(issuer), _) => Err(Error::option("--jwt-issuer", issuer, WITHOUT_KEYS)),
            (None, None, Some(audience)) => {
                Err(Error::option("--jwt-audience", audience, WITHOUT_KEYS))
            }
        }
    }
}

const WITHOUT_KEYS: &str = "it is for JSON Web Tokens: give --jwks FILE|URL, too";

impl FromStr for KeySetLocation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if !text.contains("://") {
            return Ok(Self::File(PathBuf::from(text)));
        }
        let url = Url::parse(text);
        let url = url.map_err(|error| Error::option("--jwks", text, format!("no URL: {error}")))?;
        let is_safe = match url.scheme() {
            "https" => true,
            "http" => is_loopback(&url),
            _ => false,
        };
        match is_safe {
            true => Ok(Self::Url(url)),
            false => Err(Error::option(
                "--jwks",
                text,
                "expected a file, an https URL, or an http URL on loopback: keys that are read over the network in the \
                 clear can be replaced on their way",
            )),
        }
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

impl fmt::Display for KeySetLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(
        jwks: Option<&str>,
        issuer: Option<&str>,
        audience: Option<&str>,
    ) -> Result<Option<JwtConfig>, Error> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        JwtConfig::from_options(jwks, owned(issuer), owned(audience), "role".to_owned())
    }

    #[test]
    fn a_key_set_needs_an_issuer_and_an_audience() {
        assert_eq!(options(None, None, None).unwrap(), None);
        assert!(
            options(Some("keys"), Some("i"), Some("a"))
                .unwrap()
                .is_some()
        );
        for (jwks, issuer, audience, option) in [
            (Some("keys"), None, None, "--jwks"),
            (Some("keys"), Some("i"), None, "--jwks"),
            (Some("keys"), None, Some("a"), "--jwks"),
            (None, Some("i"), None, "--jwt-issuer"),
            (None, None, Some("a"), "--jwt-audience"),
        ] {
            let error = options(jwks, issuer, audience).unwrap_err();
            assert!(matches!(error, Error::Option { option: of, .. } if of == option));
        }
    }

    #[test]
    fn a_key_set_is_not_read_over_the_network_in_the_clear() {
        for right in [
            "https://issuer.example/jwks.json",
            "http://127.0.0.1:8080/keys",
            "http://[::1]/keys",
            "http://localhost/keys",
        ] {
            let found: KeySetLocation = right.parse().unwrap();
            assert!(matches!(found, KeySetLocation::Url(_)), "{right}");
        }
        for wrong in [
            "http://issuer.example/jwks.json",
            "http://10.0.0.7/keys",
            "http://localhost.example/keys",
            "ftp://127.0.0.1/keys",
            "https://",
        ] {
            assert!(wrong.parse::<KeySetLocation>().is_err(), "{wrong}");
        }
        let file: KeySetLocation = "/etc/volley/keys.json".parse().unwrap();
        assert_eq!(file, KeySetLocation::File("/etc/volley/keys.json".into()));
    }
}
