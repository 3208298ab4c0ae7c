//! Deep stacks for what calls itself for each level of a plan or an expression, on threads that may be a program's own.
//!
//! Threads of Volley's own have [`STACK`] from the start, and nothing changes for them. One of a program that uses the
//! library has two megabytes, which planning a nested query overruns: its work goes on with another stack, as
//! DataFusion's own recursion does.
//!
//! Not here: bounds of how deeply a query nests, which are in [`crate::nesting`] and [`crate::limits`].

use std::future::poll_fn;
use std::pin::pin;

use crate::limits::STACK;

/// The red zone: with fewer bytes left, another stack is allocated. Limits of nesting are for a whole one.
const RED_ZONE: usize = STACK / 8 * 7;

/// Runs a function on a deep stack.
pub fn deep<T>(run: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(RED_ZONE, STACK, run)
}

/// Runs a future on deep stacks, one for each time that it is polled.
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
        // Without optimization, more than the larger of the threads has.
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
