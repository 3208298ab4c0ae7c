//! The gradient of a dense layer before its products: through ReLU, and summed for the bias.

use super::add;
use super::backward::sum_rows;
use crate::threads::Threads;

/// Replaces a gradient by ReLU's outputs `y`, `[B × W]`, with that by its inputs, if there is ReLU, and sums the rows
/// for the bias' gradient, if it is wanted.
pub(super) fn pass(
    threads: &Threads,
    dy: &mut [f32],
    y: Option<&[f32]>,
    sums: Option<&mut [f32]>,
    width: usize,
) {
    if let Some(y) = y {
        threads.rows(dy, 1, 1, |own, dy| {
            // Units that ReLU or dropout zeroed pass no gradient on.
            let terms = dy.iter_mut().zip(&y[own]);
            terms.for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 });
        });
    }
    if let Some(sums) = sums {
        sum_rows(threads, dy.len() / width, sums, |row, columns, sums| {
            add(sums, &dy[row * width..][columns]);
        });
    }
}
