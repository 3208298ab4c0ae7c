//! Exponentials, sines and cosines that the compiler vectorizes, unlike calls of the C library's functions.
//!
//! They are polynomials after an argument reduction, without fused multiply-adds: the same bits on every processor.
//! Exponentials are within two units of their last place. Sines and cosines have an absolute error of at most 1.2e-7,
//! so those near 0 have fewer digits. Angles beyond [`MOST_ANGLE`] are left to the C library.

use std::f32::consts::{FRAC_2_PI, LOG2_E};

/// Rounding constant: adding and subtracting it rounds a small number to a whole one.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the first with few digits.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// π/2 in three parts, the first two with few digits.
const HALF_PI: [f32; 3] = [1.570_312_5, 4.837_513e-4, 7.549_79e-8];

/// Largest angle at which the three parts of π/2 suffice for the reduction.
pub(super) const MOST_ANGLE: f32 = 8192.0;

/// Returns eˣ, with x clamped to -87..=87, where neither eˣ nor its inverse is subnormal.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 87.0);
    let rounded = x * LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let r = (x - whole * LN_2[0]) - whole * LN_2[1];
    // Cephes' expf.
    let mut p = 1.987_569_1e-4;
    for c in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + c;
    }
    let e = p * r * r + r + 1.0;
    // The lowest bits of `rounded` are the whole number; the exponent is above 23 bits of fraction.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    e * power
}

/// Returns sin x and cos x, for x up to [`MOST_ANGLE`].
#[inline(always)]
pub(super) fn sin_cos(x: f32) -> (f32, f32) {
    let rounded = x * FRAC_2_PI + ROUND;
    let whole = rounded - ROUND;
    let r = ((x - whole * HALF_PI[0]) - whole * HALF_PI[1]) - whole * HALF_PI[2];
    let z = r * r;
    // Cephes' sinf and cosf.
    let sine = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * r + r;
    let cosine =
        ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
    // The lowest bits of `rounded` count quarter turns.
    let quarters = rounded.to_bits();
    let is_odd = quarters & 1 == 1;
    let s = if is_odd { cosine } else { sine };
    let c = if is_odd { sine } else { cosine };
    let sign = |x: f32, turned: u32| f32::from_bits(x.to_bits() ^ ((turned & 2) << 30));
    (sign(s, quarters), sign(c, quarters.wrapping_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error in units of the last place.
    fn apart(found: f32, due: f64) -> f64 {
        let unit = f64::from((due as f32).abs().max(f32::MIN_POSITIVE) * f32::EPSILON);
        (f64::from(found) - due).abs() / unit
    }

    #[test]
    fn exponentials_have_all_digits() {
        for at in 0..2_000_000 {
            let x = -87.0 + 174.0 * at as f32 / 2_000_000.0;
            let e = exp(x);
            assert!(apart(e, f64::from(x).exp()) < 2.0, "e^{x} = {e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(-200.0) < 2e-38);
        assert!(exp(f32::INFINITY) > 6e37 && exp(f32::INFINITY).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sines_and_cosines_have_the_digits_of_numbers_around_one() {
        for at in -2_000_000_i32..2_000_000 {
            let x = (at as f32 / 2_000_000.0).powi(3) * MOST_ANGLE;
            let (s, c) = sin_cos(x);
            let (due_s, due_c) = f64::from(x).sin_cos();
            let apart = [f64::from(s) - due_s, f64::from(c) - due_c].map(f64::abs);
            assert!(apart[0].max(apart[1]) < 1.2e-7, "{x}: {s}, {c}");
        }
        let (s, c) = sin_cos(f32::NAN);
        assert!(s.is_nan() && c.is_nan());
    }
}
