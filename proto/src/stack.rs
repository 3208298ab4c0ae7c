//! Deep stacks for functions that recurse over the levels of a plan or an expression, also on a host program's threads.
//!
//! Volley's own threads have [`STACK`] from the start, and nothing changes for them. A thread of a program that uses
//! the library has two megabytes, which planning a nested query overruns: it continues on another stack, as
//! DataFusion's own recursion does.
//!
//! This module does not limit how deeply a query nests: see [`crate::nesting`] and [`crate::limits`].

use std::future::poll_fn;
use std::pin::pin;

use crate::limits::STACK;

/// Red zone: with fewer bytes left, another stack is allocated. Nesting limits assume a whole one.
const RED_ZONE: usize = STACK / 8 * 7;

/// Runs a function on a deep stack.
pub fn deep<T>(run: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(RED_ZONE, STACK, run)
}

/// Runs a future on deep stacks, one for each poll.
pub async fn deeply<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| deep(|| future.as_mut().poll(context))).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of_levels(levels: u64) -> u64 {
        let frame = std::hint::black_box([levels; 64]);
        match levels {
            0 => 0,
            _ => frame[0] + sum_of_levels(levels - 1),
        }
    }

    #[test]
    fn a_thread_with_a_smaller_stack_recurses_deeply() {
        // Without optimization, this needs more than the larger thread has.
        let levels = 50_000;
        for stack in [64 << 10, STACK / 2] {
            let thread = std::thread::Builder::new().stack_size(stack);
            let thread = thread.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                let summed = async { sum_of_levels(levels) };
                runtime.unwrap().block_on(deeply(summed))
            });
            assert_eq!(thread.unwrap().join().unwrap(), levels * (levels + 1) / 2);
        }
    }
}
