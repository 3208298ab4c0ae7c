//! A search for non-finite numbers. The reaction to one is the caller's.

use multiversion::multiversion;

/// Numbers per chunk, which is checked without branches, in all vector lanes.
const CHUNK: usize = 1024;

/// Returns the first non-finite number.
#[multiversion(targets = "simd")]
pub(crate) fn first_non_finite(numbers: &[f32]) -> Option<f64> {
    let is_sound = |chunk: &[f32]| chunk.iter().fold(true, |all, x| all & x.is_finite());
    let chunk = numbers.chunks(CHUNK).find(|chunk| !is_sound(chunk))?;
    let found = chunk.iter().find(|x| !x.is_finite())?;
    Some(f64::from(*found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_found_wherever_it_stands() {
        for len in [0, 1, CHUNK, 3 * CHUNK + 7] {
            let mut numbers = vec![f32::MAX; len];
            assert_eq!(first_non_finite(&numbers), None);
            for at in [0, len / 2, len.saturating_sub(1)] {
                let Some(number) = numbers.get_mut(at) else {
                    continue;
                };
                *number = f32::NEG_INFINITY;
                assert_eq!(first_non_finite(&numbers), Some(f64::NEG_INFINITY));
                numbers[at] = f32::NAN;
                assert!(first_non_finite(&numbers).is_some_and(f64::is_nan));
                numbers[at] = 0.0;
            }
        }
    }
}
