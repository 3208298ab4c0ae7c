//! Ids of jobs: short, and in the order in which jobs arrived.
//!
//! Ballista's own generator has a thread that wakes a thousand times a second to read the time.

use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use ballista_scheduler::scheduler_server::JobIdGenerator;
use parking_lot::Mutex;

/// Generator of job ids. An id is the microsecond at which its job arrived, in hexadecimal, or the first later one
/// that is free: a restarted scheduler does not repeat ids.
#[derive(Debug, Default)]
pub(crate) struct JobIds {
    last: Mutex<u64>,
}

impl JobIds {
    fn next(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_micros() as u64);
        let mut last = self.last.lock();
        *last = now.max(*last + 1);
        format!("{:013x}", *last)
    }
}

#[async_trait]
impl JobIdGenerator for JobIds {
    async fn next_id(&self) -> String {
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn no_two_jobs_have_one_id_and_later_ones_have_greater() {
        let ids = JobIds::default();
        let thousand = || {
            let ids: Vec<_> = (0..1000).map(|_| ids.next()).collect();
            assert!(ids.is_sorted());
            ids
        };
        let all: BTreeSet<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(thousand)).collect();
            let ids = threads.into_iter().map(|thread| thread.join().unwrap());
            ids.flatten().collect()
        });
        assert_eq!(all.len(), 4000);
    }
}
