//! Measured speed of one thread of this host's processor, for estimates of a training's time.
//!
//! It takes a few hundredths of a second, and is done once in a process. It is no benchmark: another process may take the
//! core meanwhile, so the best of several passes counts.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use volley_proto::spec::ThreadSpeed;

use crate::network::matmul::{Epilogue, Matrix, Workspace};
use crate::threads::Threads;

/// Rows and columns of the measured product: a batch by weights, all in the second-level cache.
const PRODUCT: usize = 256;
/// Numbers of each of the two measured vectors, more than the caches of a core hold.
const VECTOR: usize = 4 << 20;
/// Time for each of the two measurements.
const TIME: Duration = Duration::from_millis(15);
/// Minimum passes of a measurement: the first one also loads code and memory.
const PASSES: usize = 3;

/// Returns the speed of one thread of this host's processor, measured at the first call.
pub fn thread_speed() -> ThreadSpeed {
    static MEASURED: LazyLock<ThreadSpeed> = LazyLock::new(measure);
    *MEASURED
}

fn measure() -> ThreadSpeed {
    let numbers = vec![0.5_f32; PRODUCT * PRODUCT];
    let mut product = vec![0.0; PRODUCT * PRODUCT];
    let matrix = Matrix::new(&numbers, PRODUCT, PRODUCT);
    let (mut workspace, alone) = (Workspace::default(), Threads::default());
    let seconds = best(|| {
        workspace.multiply(&alone, &mut product, matrix, matrix, Epilogue::default());
    });
    let products = 2.0 * (PRODUCT as f64).powi(3) / seconds;
    drop((numbers, product));

    let (added, mut sums) = (vec![0.5_f32; VECTOR], vec![0.0_f32; VECTOR]);
    let seconds = best(|| {
        for (sum, number) in sums.iter_mut().zip(&added) {
            *sum += *number;
        }
        std::hint::black_box(&mut sums);
    });
    // A sum is read and written.
    let memory = (3 * size_of::<f32>() * VECTOR) as f64 / seconds;
    ThreadSpeed { products, memory }
}

/// Returns the seconds of the fastest pass.
fn best(mut pass: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut least = f64::MAX;
    let mut passes = 0;
    while passes < PASSES || begun.elapsed() < TIME {
        let start = Instant::now();
        pass();
        // A clock may be too coarse for a pass.
        least = least.min(start.elapsed().as_secs_f64().max(1e-9));
        passes += 1;
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_computes_something_and_always_the_same() {
        let speed = thread_speed();
        assert!(speed.products > 0.0 && speed.products.is_finite());
        assert!(speed.memory > 0.0 && speed.memory.is_finite());
        assert_eq!(thread_speed(), speed, "it is measured once");
    }
}
