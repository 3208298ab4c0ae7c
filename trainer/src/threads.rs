//! Threads that compute together: a rank's loops, each split into parts that do not depend on one another.
//!
//! They live as long as the rank. Between two loops a thread spins for [a while](LOOKOUT), waiting for the next one, so
//! that loops of some microseconds are worth splitting, and then sleeps. The calling thread computes with them.
//!
//! Parts are assigned to threads in no fixed order, and the assignment must not affect the result: code that splits a
//! loop ensures that a sum is over the same terms in the same order for any number of threads. This is not a scheduler:
//! one loop at a time, no nested loops, and no parts that wait or block.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time that a worker spins, waiting for the next loop, before it parks.
const LOOKOUT: Duration = Duration::from_micros(200);
/// Spins between two yields of the processor.
const LOOKS: usize = 64;

/// Bits that hold the number of workers that compute a loop.
const WORKERS: u32 = 16;

/// Smallest cost, in simple operations, that is worth another thread: about that of waking it. In tests it is tiny, so
/// that loops over a few numbers are split too.
pub(crate) const GRAIN: usize = if cfg!(test) { 4 } else { 1 << 13 };

/// Handle to the threads of a rank. By default, the calling thread alone.
#[derive(Clone, Default)]
pub(crate) struct Threads(Option<Arc<Pool>>);

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Lock that the calling thread holds during a loop.
    caller: Mutex<()>,
}

/// Body of a loop, with its lifetime erased; takes the thread's number and the part's.
type Work = dyn Fn(usize, usize) + Sync + 'static;

/// State shared by the threads of a pool.
struct Shared {
    /// Number of the current or last loop, above the `WORKERS` bits that hold how many workers compute it.
    turn: AtomicUsize,
    /// The loop's body and its number of parts.
    ///
    /// Invariant: only the caller writes it, while no worker is within a loop; workers read it after they have seen the
    /// turn that follows the write and includes them, and before they have finished that turn.
    work: UnsafeCell<(*const Work, usize)>,
    /// Next part that no thread has begun.
    next: AtomicUsize,
    /// Workers that have not finished the loop.
    busy: AtomicUsize,
    /// Payload of a worker's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleeps: Vec<AtomicBool>,
    ends: AtomicBool,
}

// SAFETY: the pointer's target may be called by several threads at once, and access follows the invariant of `work`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Threads {
    /// Starts `count` threads, including the caller's; fewer, with a warning, if the system cannot start them.
    pub(crate) fn start(count: NonZeroUsize) -> Self {
        let others = count.get().min(1 << WORKERS) - 1;
        if others == 0 {
            return Self(None);
        }
        let shared = Arc::new(Shared {
            turn: AtomicUsize::new(0),
            work: UnsafeCell::new((std::ptr::null::<fn(usize, usize)>() as *const Work, 0)),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panic: Mutex::new(None),
            sleeps: (0..others).map(|_| AtomicBool::new(false)).collect(),
            ends: AtomicBool::new(false),
        });
        let mut pool = Pool {
            shared: Arc::clone(&shared),
            workers: Vec::with_capacity(others),
            caller: Mutex::new(()),
        };
        for worker in 0..others {
            let shared = Arc::clone(&shared);
            let work = move || shared.serve(worker);
            let worker = thread::Builder::new().name(format!("rank-thread-{}", worker + 1));
            match worker.spawn(work) {
                Ok(worker) => pool.workers.push(worker),
                Err(error) => {
                    let started = pool.workers.len() + 1;
                    tracing::warn!(%error, "only {started} of {count} threads could be started");
                    break;
                }
            }
        }
        Self(Some(Arc::new(pool)))
    }

    /// Returns the number of threads.
    pub(crate) fn count(&self) -> usize {
        self.0.as_ref().map_or(1, |pool| pool.workers.len() + 1)
    }

    /// Computes each part once, and returns when all are done. `work` gets the number of the thread, less than their
    /// [count](Self::count), and the part's.
    ///
    /// # Panics
    /// If a part panics or itself computes in parts.
    pub(crate) fn each(&self, parts: usize, work: impl Fn(usize, usize) + Sync) {
        let pool = match &self.0 {
            Some(pool) if parts > 1 => pool,
            _ => return (0..parts).for_each(|part| work(0, part)),
        };
        pool.compute(parts, &work);
    }

    /// Moves each part to a thread that computes with it; `work` gets the thread's number too.
    pub(crate) fn each_of<T: Send>(&self, parts: Vec<T>, work: impl Fn(usize, T) + Sync) {
        if self.0.is_none() || parts.len() < 2 {
            return parts.into_iter().for_each(|part| work(0, part));
        }
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| Mutex::new(Some(part)))
            .collect();
        self.each(parts.len(), |thread, at| {
            let part = parts[at].lock().take();
            work(thread, part.expect("a part is computed once"));
        });
    }

    /// Returns the result of each, in order.
    pub(crate) fn map<T: Send, R: Send>(&self, of: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let mut results: Vec<Option<R>> = of.iter().map(|_| None).collect();
        let parts = of.into_iter().zip(&mut results).collect();
        self.each_of(parts, |_, (part, result)| *result = Some(work(part)));
        results.into_iter().flatten().collect()
    }

    /// Computes as [`each_of`](Self::each_of) does, but on the calling thread if another is not worthwhile. `cost` is
    /// the total of all parts, in simple operations.
    pub(crate) fn spread<T: Send>(&self, cost: usize, parts: Vec<T>, work: impl Fn(T) + Sync) {
        match cost < GRAIN {
            true => parts.into_iter().for_each(work),
            false => self.each_of(parts, |_, part| work(part)),
        }
    }

    /// Splits rows of `width` numbers into blocks: `work` gets the range of rows and their numbers. `cost` is that of
    /// one number, in simple operations.
    pub(crate) fn rows<T: Send>(
        &self,
        numbers: &mut [T],
        width: usize,
        cost: usize,
        work: impl Fn(Range<usize>, &mut [T]) + Sync,
    ) {
        if numbers.is_empty() {
            return;
        }
        let rows = numbers.len() / width;
        let block = self.block(rows, width * cost);
        let blocks = numbers.chunks_mut(block * width).enumerate();
        self.each_of(blocks.collect(), |_, (at, numbers)| {
            let start = at * block;
            work(start..start + numbers.len() / width, numbers);
        });
    }

    /// Returns the rows per block for `rows` rows of `cost` each: an even share per thread, but enough to be worth a
    /// thread.
    pub(crate) fn block(&self, rows: usize, cost: usize) -> usize {
        let count = self.count();
        if count == 1 {
            return rows.max(1);
        }
        let even = rows.div_ceil(count);
        even.max(GRAIN.div_ceil(cost.max(1))).clamp(1, rows.max(1))
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Threads").field(&self.count()).finish()
    }
}

impl Pool {
    fn compute(&self, parts: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        let Self {
            shared, workers, ..
        } = self;
        let _caller = self
            .caller
            .try_lock()
            .expect("one loop at a time, and none within another");
        // SAFETY: the lifetime is erased only during this call: it returns, or panics, only when no worker is within
        // the loop. No worker reads this while it is written, as all have finished the previous loop.
        unsafe {
            let work: &'static Work = std::mem::transmute(work);
            *shared.work.get() = (work, parts);
        }
        // Other workers are neither woken nor waited for.
        let needed = workers.len().min(parts - 1);
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(needed, Ordering::Relaxed);
        let last = shared.turn.load(Ordering::Relaxed) >> WORKERS;
        // A worker that sees the turn sees the writes above. Here the turn is stored before `sleeps` is read; a worker
        // stores `sleeps` before it reads the turn.
        let turn = last.wrapping_add(1) << WORKERS | needed;
        shared.turn.store(turn, Ordering::SeqCst);
        for (sleeps, worker) in shared.sleeps.iter().zip(workers).take(needed) {
            if sleeps.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| {
            shared.parts(work, parts, workers.len())
        }));
        let mut looks = 0;
        while shared.busy.load(Ordering::Acquire) > 0 {
            look(&mut looks);
        }
        let of_worker = shared.panic.lock().take();
        if let Some(panic) = own.err().or(of_worker) {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    /// Computes parts until none is left.
    fn parts(&self, work: &(dyn Fn(usize, usize) + Sync), parts: usize, thread: usize) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            work(thread, part);
        }
    }

    /// Runs a worker until the pool ends.
    fn serve(&self, worker: usize) {
        let mut done = 0;
        while let Some(turn) = self.wait(worker, done) {
            done = turn;
            if worker >= turn & ((1 << WORKERS) - 1) {
                continue;
            }
            // SAFETY: it was written before this turn, and its caller waits until this worker has finished.
            let (work, parts) = unsafe {
                let (work, parts) = *self.work.get();
                (&*work, parts)
            };
            let computed = catch_unwind(AssertUnwindSafe(|| self.parts(work, parts, worker)));
            if let Err(panic) = computed {
                self.panic.lock().get_or_insert(panic);
            }
            // Makes the results visible to the caller.
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a turn other than `done`; returns `None` when the pool ends.
    fn wait(&self, worker: usize, done: usize) -> Option<usize> {
        let due = || Some(self.turn.load(Ordering::SeqCst)).filter(|turn| *turn != done);
        let (since, mut looks) = (Instant::now(), 0);
        while !self.ends.load(Ordering::Relaxed) {
            if let Some(turn) = due() {
                return Some(turn);
            }
            let may_sleep = look(&mut looks) && since.elapsed() > LOOKOUT;
            if !may_sleep {
                continue;
            }
            self.sleeps[worker].store(true, Ordering::SeqCst);
            while due().is_none() && !self.ends.load(Ordering::SeqCst) {
                thread::park();
            }
            self.sleeps[worker].store(false, Ordering::SeqCst);
        }
        None
    }
}

/// Spins once. Returns true if it yielded the processor.
fn look(looks: &mut usize) -> bool {
    *looks += 1;
    let yields = looks.is_multiple_of(LOOKS);
    match yields {
        true => thread::yield_now(),
        false => std::hint::spin_loop(),
    }
    yields
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // The caller has already received its panics.
            worker.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn threads(count: usize) -> Threads {
        Threads::start(NonZeroUsize::new(count).unwrap())
    }

    #[test]
    fn each_part_is_computed_once_in_loops_on_end() {
        for count in [1, 2, 3, 8] {
            let threads = threads(count);
            assert_eq!(threads.count(), count);
            for parts in [0, 1, 2, 7, 300] {
                for turn in 0..50 {
                    let computed: Vec<AtomicU64> = (0..parts).map(|_| AtomicU64::new(0)).collect();
                    threads.each(parts, |thread, part| {
                        assert!(thread < count);
                        computed[part].fetch_add(1, Ordering::Relaxed);
                    });
                    let counts = computed.iter().map(|count| count.load(Ordering::Relaxed));
                    assert!(counts.clone().all(|count| count == 1), "{count} threads");
                    // Some loops find the other threads asleep.
                    if turn % 25 == 0 {
                        thread::sleep(2 * LOOKOUT);
                    }
                }
            }
        }
    }

    #[test]
    fn what_comes_of_each_is_in_their_order() {
        let squares = threads(3).map((0..100).collect(), |at: u32| at * at);
        assert!(squares.into_iter().eq((0..100).map(|at| at * at)));
    }

    #[test]
    fn rows_are_split_into_blocks() {
        let threads = threads(3);
        let mut numbers = vec![0_u32; 3 * 100_000];
        threads.rows(&mut numbers, 3, 1, |rows, numbers| {
            for (row, numbers) in rows.zip(numbers.chunks_exact_mut(3)) {
                numbers.iter_mut().for_each(|number| *number += row as u32);
            }
        });
        let due = (0..100_000).flat_map(|row| [row; 3]);
        assert!(numbers.into_iter().eq(due));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_next_loop_is_computed() {
        let threads = threads(4);
        for bad in 0..8 {
            let failed = catch_unwind(AssertUnwindSafe(|| {
                threads.each(8, |_, part| assert_ne!(part, bad, "the bad part"));
            }));
            let panic = failed.unwrap_err();
            let text = panic.downcast_ref::<String>().unwrap();
            assert!(text.contains("the bad part"), "{text}");
            let sum = AtomicU64::new(0);
            threads.each(8, |_, part| {
                sum.fetch_add(part as u64, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 28);
        }
    }

    #[test]
    #[should_panic(expected = "none within another")]
    fn loops_are_not_nested() {
        let threads = threads(2);
        threads.each(2, |_, _| threads.each(2, |_, _| ()));
    }
}
