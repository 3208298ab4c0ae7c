//! Retries of requests to a store, with exponential backoff.
//!
//! `object_store`'s client retries requests that cannot have been done. This module retries the others: requests that
//! may have been done, if that does no harm (idempotent ones), and truncated responses.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use object_store::client::HttpError;
use object_store::{Error, Result};
use uuid::Uuid;

/// Retry policy: the number of attempts, their time limits, and the backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of attempts, the first included.
    pub attempts: u32,
    /// Time limit of an attempt; for a large transfer, of a pause in which nothing arrives.
    pub idle_timeout: Duration,
    /// Time after the first attempt in which another may begin.
    pub retry_timeout: Duration,
    /// Backoff before the second attempt; it doubles with each, up to five seconds.
    pub backoff: Duration,
}

impl RetryPolicy {
    /// Policy for stores over a network.
    pub const REMOTE: Self = Self {
        attempts: 8,
        idle_timeout: Duration::from_secs(120),
        retry_timeout: Duration::from_secs(60),
        backoff: Duration::from_millis(100),
    };
    /// Policy for folders: a failure is reported at once.
    pub const LOCAL: Self = Self {
        attempts: 1,
        idle_timeout: Duration::MAX,
        retry_timeout: Duration::ZERO,
        backoff: Duration::ZERO,
    };
    const MOST_BACKOFF: Duration = Duration::from_secs(5);
}

/// Attempts at one request.
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
        // Jitter, from half of the backoff to all of it: requests that failed together do not return together.
        let share = Uuid::new_v4().as_u128() % 1000;
        let backoff = backoff.mul_f64(0.5 + share as f64 / 2000.0);
        tracing::debug!(%failure, attempt = self.made, ?backoff, "a request to the store is retried");
        tokio::time::sleep(backoff).await;
        Ok(())
    }
}

/// Checks whether the same request may succeed later. A refused condition is retried only if no object was found that
/// explains it.
pub(crate) fn is_transient(failure: &Error) -> bool {
    is_unanswered(failure)
        || matches!(
            failure,
            Error::AlreadyExists { .. } | Error::Precondition { .. }
        )
}

/// Checks whether a request may have been done or not: its connection broke, it timed out, or the server failed.
pub fn is_unanswered(failure: &Error) -> bool {
    // Errors without a class in the client.
    matches!(failure, Error::Generic { .. } | Error::JoinError { .. })
}

/// Checks whether the body of a response was truncated. The client retries failed requests, and resumes `GET` of an
/// object, but retries neither a truncated listing nor a truncated upload id.
pub fn is_truncated(failure: &Error) -> bool {
    // A failed request has another error between these two.
    matches!(failure, Error::Generic { source, .. } if source.source().is_some_and(|cause| cause.is::<HttpError>()))
}

/// Retries a request as long as its failure `may_succeed` later.
///
/// Requests are boxed, which lets the compiler prove that futures waiting for them are `Send`.
///
/// # Errors
/// The last failure, after too many attempts or too long a time.
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
