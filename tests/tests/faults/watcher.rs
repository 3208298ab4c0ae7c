//! A thread that watches something for as long as a test runs: whatever it sees must be whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Watching thread; it ends when dropped.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    watching: Option<JoinHandle<usize>>,
}

impl Watcher {
    /// Calls `look` repeatedly, and once more at the end. A look panics if something is not whole, and counts what it
    /// sees.
    pub(crate) fn over(mut look: impl FnMut() -> usize + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let watching = std::thread::spawn(move || {
            let mut seen = 0;
            while !is_over.load(Ordering::Relaxed) {
                seen = seen.max(look());
            }
            seen.max(look())
        });
        Self {
            stop,
            watching: Some(watching),
        }
    }

    /// Ends the thread. Returns the largest count of a look.
    ///
    /// # Panics
    /// When it has seen something that is not whole.
    pub(crate) fn ended(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let watching = self.watching.take().expect("it ends once");
        let watched = watching.join();
        watched.expect("it has seen something that is not whole")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
