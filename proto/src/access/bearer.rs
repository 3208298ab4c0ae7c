//! A channel whose requests say whose they are.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::Token;
use crate::{Error, Result};

/// A channel to a scheduler, with the token that goes along with each request.
pub type Authorized = InterceptedService<Channel, Bearer>;

/// Puts a token into each request, or nothing where there is none.
#[derive(Debug, Clone, Default)]
pub struct Bearer {
    /// It is marked as sensitive: it prints as such, and is not kept by header compression.
    header: Option<MetadataValue<Ascii>>,
}

impl Bearer {
    /// Of a token.
    ///
    /// # Errors
    /// When it cannot go into a header.
    pub fn new(token: Option<&Token>) -> Result<Self> {
        let header = |token: &Token| {
            let header = MetadataValue::try_from(format!("Bearer {}", token.reveal()));
            let mut header = header.map_err(|e| Error::malformed("token", e))?;
            header.set_sensitive(true);
            Ok::<_, Error>(header)
        };
        let header = token.map(header).transpose()?;
        Ok(Self { header })
    }

    /// A channel that carries it.
    pub fn over(self, channel: Channel) -> Authorized {
        InterceptedService::new(channel, self)
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(header) = &self.header {
            let headers = request.metadata_mut();
            headers.insert("authorization", header.clone());
        }
        Ok(request)
    }
}

/// The token of a header `authorization`, if it is one of a bearer.
pub fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim())
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_carry_the_token_that_is_read_from_them() {
        let token = Token::generate();
        let mut carrier = Bearer::new(Some(&token)).unwrap();
        let request = carrier.call(Request::new(())).unwrap();
        let header = request.metadata().get("authorization").unwrap();
        assert_eq!(bearer(header.to_str().unwrap()), Some(token.reveal()));
        assert!(!format!("{request:?} {carrier:?}").contains(token.reveal()));
        let request = Bearer::default().call(Request::new(())).unwrap();
        assert!(request.metadata().is_empty());
    }

    #[test]
    fn only_bearers_have_tokens() {
        assert_eq!(bearer("bearer x"), Some("x"));
        for header in ["", "x", "Basic x", "Bearer", "Bearer ", "Bearer  "] {
            assert_eq!(bearer(header), None, "{header:?}");
        }
    }
}
