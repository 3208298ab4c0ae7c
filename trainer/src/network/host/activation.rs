//! Activations of numbers and their slopes: see [`Activation`] for their definitions.

use volley_proto::spec::Activation;

/// Slope of the leaky ReLU below 0.
const LEAK: f32 = 0.01;
/// SELU's λ and λ·α.
const SELU: [f32; 2] = [1.050_701, 1.758_099_3];
/// √(2/π) and the cubic term's share, of GELU's approximation.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

pub(super) fn of(function: Activation, x: f32) -> f32 {
    match function {
        Activation::Relu => x.max(0.0),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::LeakyRelu => x.max(LEAK * x),
        Activation::Elu if x < 0.0 => x.exp_m1(),
        Activation::Selu if x < 0.0 => SELU[1] * x.exp_m1(),
        Activation::Elu => x,
        Activation::Selu => SELU[0] * x,
        Activation::Gelu => 0.5 * x * (1.0 + gelu_argument(x).tanh()),
        Activation::Silu => x * sigmoid(x),
        Activation::Mish => x * tanh_of_softplus(x),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
    }
}

/// The slope at x; where there is none, that to the left.
pub(super) fn slope(function: Activation, x: f32) -> f32 {
    let step = |on: bool| if on { 1.0 } else { 0.0 };
    match function {
        Activation::Relu => step(x > 0.0),
        Activation::Relu6 => step(x > 0.0 && x <= 6.0),
        Activation::LeakyRelu => LEAK + (1.0 - LEAK) * step(x > 0.0),
        Activation::Elu if x < 0.0 => x.exp(),
        Activation::Selu if x < 0.0 => SELU[1] * x.exp(),
        Activation::Elu => 1.0,
        Activation::Selu => SELU[0],
        Activation::Gelu => {
            let tanh = gelu_argument(x).tanh();
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
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Sigmoid => {
            let y = sigmoid(x);
            y * (1.0 - y)
        }
    }
}

fn gelu_argument(x: f32) -> f32 {
    GELU[0] * (x + GELU[1] * x * x * x)
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// tanh(ln(1 + eˣ)) = (w² + 2w) / (w² + 2w + 2), with w = eˣ; from 20 on it is 1.
fn tanh_of_softplus(x: f32) -> f32 {
    let w = x.min(20.0).exp();
    let n = w * (w + 2.0);
    n / (n + 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_definitions() {
        // Computed in 64 bits from the formulas.
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
            assert!(of(function, -90.0).is_finite() && of(function, 90.0).is_finite());
            assert!(slope(function, -90.0).is_finite() && slope(function, 90.0).is_finite());
        }
    }
}
