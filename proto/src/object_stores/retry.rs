//! Retries of requests to a store, with exponential backoff.
//!
//! `object_store`'s client retries what cannot have been done. This is for what it does not: requests that may have been
//! done, where that does no harm (idempotent ones), and truncated responses.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::client::HttpError;
use object_store::{Error, Result};
use uuid::Uuid;

/// How often a request is retried, for how long, and with which backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts, the first included.
    pub attempts: u32,
    /// How long one may take; one that transfers much, without anything arriving.
    pub idle_timeout: Duration,
    /// How long after the first attempt another may begin.
    pub retry_timeout: Duration,
    /// The backoff before the second attempt; it doubles with each, up to five seconds.
    pub backoff: Duration,
}

impl RetryPolicy {
    /// For stores over a network.
    pub const REMOTE: Self = Self {
        attempts: 8,
        idle_timeout: Duration::from_secs(120),
        retry_timeout: Duration::from_secs(60),
        backoff: Duration::from_millis(100),
    };
    /// For folders: what fails is told at once.
    pub const LOCAL: Self = Self {
        attempts: 1,
        idle_timeout: Duration::MAX,
        retry_timeout: Duration::ZERO,
        backoff: Duration::ZERO,
    };
    const MOST_BACKOFF: Duration = Duration::from_secs(5);
}

/// The attempts at one request.
pub(crate) struct Attempts {
    policy: RetryPolicy,
    since: Instant,
    made: u32,
}

impl Attempts {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self {
            policy,
            since: Instant::now(),
            made: 0,
        }
    }

    /// Waits until the next attempt, or gives up after too many.
    pub(crate) async fn again(&mut self, failure: Error) -> Result<()> {
        self.made += 1;
        let RetryPolicy {
            attempts,
            retry_timeout,
            backoff,
            ..
        } = self.policy;
        if self.made >= attempts || self.since.elapsed() > retry_timeout {
            return Err(failure);
        }
        let backoff = backoff.saturating_mul(1 << (self.made - 1).min(16));
        let backoff = backoff.min(RetryPolicy::MOST_BACKOFF);
        // Jitter, from half of it to all of it: those who failed together do not come back together.
        let share = Uuid::new_v4().as_u128() % 1000;
        let backoff = backoff.mul_f64(0.5 + share as f64 / 2000.0);
        tracing::debug!(%failure, attempt = self.made, ?backoff, "a request to the store is retried");
        tokio::time::sleep(backoff).await;
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

/// Whether the body of a response was truncated. The client retries requests that fail, and resumes `GET` of an object, but
/// retries neither a truncated listing nor a truncated upload id.
pub fn is_truncated(failure: &Error) -> bool {
    // A failed request has an error of its own between these two.
    matches!(failure, Error::Generic { source, .. } if source.source().is_some_and(|cause| cause.is::<HttpError>()))
}

/// Retries a request for as long as it fails so that it `may_succeed` later.
///
/// Boxed requests: the compiler can tell then that what waits for one may change threads.
///
/// # Errors
/// The last failure, when there were too many or they went on for too long.
pub async fn retried<'a, T>(
    policy: RetryPolicy,
    may_succeed: fn(&Error) -> bool,
    request: impl Fn() -> BoxFuture<'a, Result<T>>,
) -> Result<T> {
    let mut attempts = Attempts::new(policy);
    loop {
        match request().await {
            Ok(done) => return Ok(done),
            Err(failure) if may_succeed(&failure) => attempts.again(failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}
