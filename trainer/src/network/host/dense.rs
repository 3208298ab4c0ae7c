//! What a dense layer's gradient passes through before its products: ReLU, and the sums that are its bias'.

use super::add;

/// Takes a gradient by ReLU's outputs `y`, `[B × W]`, to one by its inputs, if there is ReLU, and adds up the rows for
/// the bias' gradient, if it is wanted.
pub(super) fn pass(dy: &mut [f32], y: Option<&[f32]>, sums: Option<&mut [f32]>, width: usize) {
    match (y, sums) {
        (Some(y), Some(sums)) => {
            sums.fill(0.0);
            for (dy, y) in dy.chunks_exact_mut(width).zip(y.chunks_exact(width)) {
                // What ReLU or dropout has made zero passes nothing on.
                let terms = dy.iter_mut().zip(y);
                for (sum, (d, y)) in sums.iter_mut().zip(terms) {
                    *d = if *y > 0.0 { *d } else { 0.0 };
                    *sum += *d;
                }
            }
        }
        (Some(y), None) => {
            let terms = dy.iter_mut().zip(y);
            terms.for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 });
        }
        (None, Some(sums)) => {
            sums.fill(0.0);
            dy.chunks_exact(width).for_each(|dy| add(sums, dy));
        }
        (None, None) => {}
    }
}
