//! Element types of an all-reduce.

use std::ops::AddAssign;

use super::call::ElementType;

/// A number that is sent in its in-memory representation.
pub(super) trait Element: bytemuck::Pod + AddAssign + Send {
    const TYPE: ElementType;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}

impl Element for f64 {
    const TYPE: ElementType = ElementType::F64;
}

/// Adds `terms[i]` to `sums[i]`, up to the length of the shorter slice.
pub(super) fn add<T: Element>(sums: &mut [T], terms: &[T]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += *term;
    }
}
