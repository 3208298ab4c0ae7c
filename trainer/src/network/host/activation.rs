//! Activation functions and their slopes: see [`Activation`] for their definitions.

use multiversion::multiversion;
use volley_proto::spec::Activation;

use super::functions::exp;

/// Slope of the leaky ReLU below 0.
const LEAK: f32 = 0.01;
/// SELU's λ and λ·α.
const SELU: [f32; 2] = [1.050_701, 1.758_099_3];
/// GELU's √(2/π) and the coefficient of its cubic term, in the tanh approximation.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// Expands to a loop for each function, so that the function is matched once.
macro_rules! for_each {
    ($function:ident, $body:expr) => {
        for_each!($function, $body, Relu Relu6 LeakyRelu Elu Selu Gelu Silu Mish Tanh Sigmoid)
    };
    ($function:ident, $body:expr, $($name:ident)*) => {
        match $function {
            $(Activation::$name => {
                let $function = Activation::$name;
                $body
            })*
        }
    };
}

/// Applies the function to each number.
#[multiversion(targets = "simd")]
pub(super) fn forward(function: Activation, x: &[f32], y: &mut [f32]) {
    for_each!(function, {
        for (y, x) in y.iter_mut().zip(x) {
            *y = of(function, *x);
        }
    });
}

/// Replaces the gradient by the output with that by `x`.
#[multiversion(targets = "simd")]
pub(super) fn backward(function: Activation, x: &[f32], dy: &mut [f32]) {
    for_each!(function, {
        for (d, x) in dy.iter_mut().zip(x) {
            *d *= slope(function, *x);
        }
    });
}

#[inline(always)]
fn of(function: Activation, x: f32) -> f32 {
    match function {
        // NaN stays NaN.
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::LeakyRelu => x.max(LEAK * x),
        Activation::Elu => {
            if x < 0.0 {
                exp_m1(x)
            } else {
                x
            }
        }
        Activation::Selu => {
            if x < 0.0 {
                SELU[1] * exp_m1(x)
            } else {
                SELU[0] * x
            }
        }
        Activation::Gelu => 0.5 * x * (1.0 + tanh(gelu_argument(x))),
        Activation::Silu => x * sigmoid(x),
        Activation::Mish => x * tanh_of_softplus(x),
        Activation::Tanh => tanh(x),
        Activation::Sigmoid => sigmoid(x),
    }
}

/// Returns the slope at x, or the slope to the left of a kink.
#[inline(always)]
fn slope(function: Activation, x: f32) -> f32 {
    let step = |on: bool| if on { 1.0 } else { 0.0 };
    match function {
        Activation::Relu => step(x > 0.0),
        Activation::Relu6 => step(x > 0.0 && x <= 6.0),
        Activation::LeakyRelu => LEAK + (1.0 - LEAK) * step(x > 0.0),
        Activation::Elu => {
            if x < 0.0 {
                exp(x)
            } else {
                1.0
            }
        }
        Activation::Selu => {
            if x < 0.0 {
                SELU[1] * exp(x)
            } else {
                SELU[0]
            }
        }
        Activation::Gelu => {
            let tanh = tanh(gelu_argument(x));
            let inner = GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
        }
        Activation::Silu => {
            let y = sigmoid(x);
            y * (1.0 + x * (1.0 - y))
        }
        Activation::Mish => {
            let tanh = tanh_of_softplus(x);
            tanh + x * (1.0 - tanh * tanh) * sigmoid(x)
        }
        Activation::Tanh => {
            let y = tanh(x);
            1.0 - y * y
        }
        Activation::Sigmoid => {
            let y = sigmoid(x);
            y * (1.0 - y)
        }
    }
}

#[inline(always)]
fn gelu_argument(x: f32) -> f32 {
    GELU[0] * (x + GELU[1] * x * x * x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns eˣ − 1 for x below 0, by its series where a small x would lose digits.
#[inline(always)]
fn exp_m1(x: f32) -> f32 {
    let series = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0)))));
    if x > -0.1 { series } else { exp(x) - 1.0 }
}

/// Returns (1 − e⁻²ˣ) / (1 + e⁻²ˣ), by its series where that would lose digits.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let w = exp(-2.0 * x.abs());
    let large = ((1.0 - w) / (1.0 + w)).copysign(x);
    let z = x * x;
    let small =
        x * (1.0 + z * (-1.0 / 3.0 + z * (2.0 / 15.0 + z * (-17.0 / 315.0 + z * (62.0 / 2835.0)))));
    if z < 0.04 { small } else { large }
}

/// Returns tanh(ln(1 + eˣ)) = (w² + 2w) / (w² + 2w + 2), with w = eˣ; from 20 on it is 1.
#[inline(always)]
fn tanh_of_softplus(x: f32) -> f32 {
    let w = exp(x.min(20.0));
    let n = w * (w + 2.0);
    n / (n + 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_definitions() {
        // Computed from the formulas in 64 bits.
        let due = [
            (Activation::Relu, [0.0, 0.7]),
            (Activation::Relu6, [0.0, 0.7]),
            (Activation::LeakyRelu, [-0.013, 0.7]),
            (Activation::Elu, [-0.727_468, 0.7]),
            (Activation::Selu, [-1.278_961, 0.735_491]),
            (Activation::Gelu, [-0.126_071, 0.530_57]),
            (Activation::Silu, [-0.278_415, 0.467_731]),
            (Activation::Mish, [-0.307_382, 0.561_148]),
            (Activation::Tanh, [-0.861_723, 0.604_368]),
            (Activation::Sigmoid, [0.214_165, 0.668_188]),
        ];
        assert_eq!(due.map(|(f, _)| f), Activation::ALL.map(|(_, f)| f));
        for (function, due) in due {
            for (x, due) in [-1.3, 0.7].into_iter().zip(due) {
                let y = of(function, x);
                assert!((y - due).abs() < 2e-6, "{function}({x}) = {y}, {due}");
            }
            for at in -2000..2000 {
                let x = at as f32 / 100.0;
                let (y, around) = (
                    of(function, x),
                    [x - 0.005, x + 0.005].map(|x| of(function, x)),
                );
                assert!(
                    around[0].min(around[1]) - 1e-3 <= y && y <= around[0].max(around[1]) + 1e-3
                );
                let due = (around[1] - around[0]) / 0.01;
                let kink = [0.0, 6.0].iter().any(|kink| (x - kink).abs() < 0.01);
                let slope = slope(function, x);
                assert!(
                    kink || (slope - due).abs() < 2e-3,
                    "{function}'({x}) = {slope}, {due}"
                );
            }
            assert!(of(function, f32::NAN).is_nan(), "{function}");
            assert!(of(function, -90.0).is_finite() && of(function, 90.0).is_finite());
            assert!(slope(function, -90.0).is_finite() && slope(function, 90.0).is_finite());
        }
    }
}
