//! Channel that adds the caller's token, and its version, to its requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::{Credential, Holder, Token};
use crate::schedulers::Schedulers;
use crate::version::{HEADER, Version};
use crate::{Error, Result};

/// Channel to a scheduler that sends the token and the version with each request.
pub type Authorized = InterceptedService<Channel, Bearer>;

/// Header marked as sensitive: it is hidden in output, and header compression does not keep it.
type Header = Option<MetadataValue<Ascii>>;

/// Interceptor that adds the version to each request, and the token if there is one; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bearer {
    credential: Credential,
    scheduler: Schedulers,
    holder: Holder,
    version: MetadataValue<Ascii>,
    known: Arc<Mutex<(Instant, Header)>>,
}

impl Bearer {
    /// Cache time of a token: a restarted scheduler has another one. It is shorter than an executor's registration takes,
    /// so that no rank sends the previous scheduler's token.
    pub const FRESH: Duration = Duration::from_millis(100);

    /// Creates it with the token for a scheduler, by its address or addresses.
    ///
    /// # Errors
    /// When there should be a token, and it cannot be read.
    pub fn new(
        credential: &Credential,
        scheduler: impl Into<Schedulers>,
        holder: Holder,
    ) -> Result<Self> {
        let scheduler = scheduler.into();
        let header = header(credential.token(scheduler.current(), holder)?.as_ref())?;
        Ok(Self {
            credential: credential.clone(),
            scheduler,
            holder,
            version: MetadataValue::try_from(Version::own().header())
                .map_err(|error| Error::malformed("version", error))?,
            known: Arc::new(Mutex::new((Instant::now(), header))),
        })
    }

    /// Returns a channel that sends the token.
    pub fn over(self, channel: Channel) -> Authorized {
        InterceptedService::new(channel, self)
    }

    fn header(&self) -> Header {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0.elapsed() >= Self::FRESH {
            known.0 = Instant::now();
            let token = self.credential.token(self.scheduler.current(), self.holder);
            match token.and_then(|token| header(token.as_ref())) {
                Ok(found) => known.1 = found,
                Err(error) => tracing::debug!(%error, "a token cannot be read anew"),
            }
        }
        known.1.clone()
    }
}

fn header(token: Option<&Token>) -> Result<Header> {
    let header = |token: &Token| {
        let header = MetadataValue::try_from(format!("Bearer {}", token.reveal()));
        let mut header = header.map_err(|e| Error::malformed("token", e))?;
        header.set_sensitive(true);
        Ok(header)
    };
    token.map(header).transpose()
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(header) = self.header() {
            request.metadata_mut().insert("authorization", header);
        }
        request.metadata_mut().insert(HEADER, self.version.clone());
        Ok(request)
    }
}

/// Returns the token of an `authorization` header, if it is a bearer's.
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
        let of = |credential: &Credential| {
            Bearer::new(credential, "scheduler.example:1", Holder::Client).unwrap()
        };
        let mut carrier = of(&Credential::Given(token.clone()));
        let request = carrier.call(Request::new(())).unwrap();
        let header = request.metadata().get("authorization").unwrap();
        assert_eq!(bearer(header.to_str().unwrap()), Some(token.reveal()));
        assert!(!format!("{request:?} {carrier:?}").contains(token.reveal()));
        let request = of(&Credential::Found).call(Request::new(())).unwrap();
        assert!(!request.metadata().contains_key("authorization"));
        let version = request.metadata().get(HEADER).unwrap().to_str().unwrap();
        assert_eq!(Version::of_header(version), Some(Version::own()));
    }

    #[test]
    fn a_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let carrier = Bearer::new(&Credential::File(file.clone()), "s:1", Holder::Client);
        assert!(carrier.is_err(), "there is no file");
        let tokens = [Token::generate(), Token::generate()];
        std::fs::write(&file, tokens[0].reveal()).unwrap();
        let carrier = Bearer::new(&Credential::File(file.clone()), "s:1", Holder::Client).unwrap();
        let sent = || carrier.header().unwrap().to_str().unwrap().to_owned();
        std::fs::write(&file, tokens[1].reveal()).unwrap();
        assert!(sent().ends_with(tokens[0].reveal()));
        carrier.known.lock().unwrap().0 -= Bearer::FRESH;
        assert!(sent().ends_with(tokens[1].reveal()));
        std::fs::remove_file(&file).unwrap();
        carrier.known.lock().unwrap().0 -= Bearer::FRESH;
        assert!(sent().ends_with(tokens[1].reveal()), "the one before stays");
    }

    #[test]
    fn only_bearers_have_tokens() {
        assert_eq!(bearer("bearer x"), Some("x"));
        for header in ["", "x", "Basic x", "Bearer", "Bearer ", "Bearer  "] {
            assert_eq!(bearer(header), None, "{header:?}");
        }
    }
}
