//! What an all-reduce can add up.

use std::ops::AddAssign;

use super::call::ElementType;

/// A number that travels as it lies in memory.
pub(super) trait Element: bytemuck::Pod + AddAssign + Send {
    const TYPE: ElementType;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}

impl Element for f64 {
    const TYPE: ElementType = ElementType::F64;
}

/// `sums[i] += terms[i]`, as far as both go.
pub(super) fn add<T: Element>(sums: &mut [T], terms: &[T]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += *term;
    }
}
