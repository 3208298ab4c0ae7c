//! Requests to a store that are made again: how often, and when.
//!
//! The client of a store repeats what cannot have been done. This is for what it does not: requests that may have been done,
//! where that does no harm, and answers whose body breaks off.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::client::HttpError;
use object_store::{Error, Result};
use uuid::Uuid;

/// How long, and how often, is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Requests until the failure is reported.
    pub(crate) attempts: u32,
    /// How long one may take; one that transfers much, without anything arriving.
    pub(crate) silence: Duration,
    /// How long after the first another may begin.
    pub(crate) until: Duration,
    /// The pause before the second; it doubles with each, up to [`Patience::LONGEST_PAUSE`].
    pub(crate) pause: Duration,
}

impl Patience {
    /// For stores over a network. Their client makes requests again that cannot have been done, for up to a minute: this
    /// is for those that may have been, and for answers that break off.
    pub(crate) const REMOTE: Self = Self {
        attempts: 8,
        silence: Duration::from_secs(120),
        until: Duration::from_secs(60),
        pause: Duration::from_millis(100),
    };
    /// For folders: what fails is told at once.
    pub(crate) const LOCAL: Self = Self {
        attempts: 1,
        silence: Duration::MAX,
        until: Duration::ZERO,
        pause: Duration::ZERO,
    };
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
}

/// The attempts at one request.
pub(crate) struct Attempts {
    patience: Patience,
    since: Instant,
    made: u32,
}

impl Attempts {
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            patience,
            since: Instant::now(),
            made: 0,
        }
    }

    /// Waits until the next attempt, or gives up after too many.
    pub(crate) async fn again(&mut self, failure: Error) -> Result<()> {
        self.made += 1;
        let Patience {
            attempts,
            until,
            pause,
            ..
        } = self.patience;
        if self.made >= attempts || self.since.elapsed() > until {
            return Err(failure);
        }
        let pause = pause.saturating_mul(1 << (self.made - 1).min(16));
        let pause = pause.min(Patience::LONGEST_PAUSE);
        // From half of it to all of it: those who failed together do not come back together.
        let share = Uuid::new_v4().as_u128() % 1000;
        let pause = pause.mul_f64(0.5 + share as f64 / 2000.0);
        tracing::debug!(%failure, attempt = self.made, ?pause, "a request to the store is made again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Whether the same request may succeed later.
pub(crate) fn is_transient(failure: &Error) -> bool {
    // What the client has no name for: connections, 5xx, timeouts. That of a condition stands for a refusal that
    // nothing was found behind.
    matches!(
        failure,
        Error::Generic { .. }
            | Error::JoinError { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
    )
}

/// Whether the body of an answer has broken off. The client repeats requests that fail, and `GET` of an object in the
/// middle, but no listing whose body does.
#[cfg(feature = "plan")]
pub(crate) fn breaks_off(failure: &Error) -> bool {
    // A failed request has an error of its own between these two.
    matches!(failure, Error::Generic { source, .. } if source.source().is_some_and(|cause| cause.is::<HttpError>()))
}

/// Makes a request again for as long as it fails so that it `may_succeed` later.
///
/// Boxed requests: the compiler can tell then that what waits for one may change threads.
pub(crate) async fn retried<'a, T>(
    patience: Patience,
    may_succeed: fn(&Error) -> bool,
    request: impl Fn() -> BoxFuture<'a, Result<T>>,
) -> Result<T> {
    let mut attempts = Attempts::new(patience);
    loop {
        match request().await {
            Ok(done) => return Ok(done),
            Err(failure) if may_succeed(&failure) => attempts.again(failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}
