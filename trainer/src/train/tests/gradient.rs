//! The network's gradient against finite differences of an independent network in `f64`.

use burn::backend::{Autodiff, Flex};
use volley_proto::spec::{Linear, Output};

use crate::network::{Architecture, Compute, Host, Input, Tensors};
use crate::random::{Key, Purpose};

const ROWS: usize = 3;

fn architecture(output: Output, outputs: usize, linear: Linear) -> Architecture {
    let deep = linear != Linear::Alone;
    Architecture {
        table_rows: 7,
        embedding_dim: 2,
        categorical: 2,
        continuous: 2,
        batch_norm: deep,
        hidden: if deep { vec![5, 4] } else { vec![] },
        outputs,
        output,
        output_scale: 3.0,
        linear,
    }
}

fn input() -> Input {
    Input {
        rows: ROWS,
        codes: vec![0, 4, 2, 6, 2, 5], // one embedding twice
        continuous: vec![0.5, -1.0, 2.0, 0.25, -0.75, 1.5],
        dropout: vec![
            Some(vec![
                1.25, 1.25, 0.0, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25, 0.0, 1.25, 0.0, 1.25, 1.25,
                1.25,
            ]),
            Some(vec![
                2.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 2.0, 0.0, 2.0, 2.0, 2.0,
            ]),
        ],
    }
}

/// Weights away from the kinks of ReLU.
fn weights(architecture: &Architecture) -> Vec<Vec<f64>> {
    let key = Key::new(4, Purpose::Weights);
    let draw = |at: usize, len: usize| {
        (0..len)
            .map(|i| key.with(at as u64).with(i as u64).unit() * 1.4 - 0.5)
            .collect()
    };
    architecture
        .parameters()
        .iter()
        .enumerate()
        .map(|(at, p)| draw(at, p.len()))
        .collect()
}

/// Σ slope · output, written down once more, in `f64` and one row at a time.
fn reference(architecture: &Architecture, weights: &[Vec<f64>], slopes: &[f64]) -> f64 {
    let Input {
        codes,
        continuous,
        dropout,
        ..
    } = input();
    let outputs_of = |row: usize| {
        if !architecture.is_deep() {
            return (vec![0.0; architecture.outputs], weights);
        }
        let mut x = Vec::new();
        for code in &codes[row * 2..row * 2 + 2] {
            x.extend_from_slice(&weights[0][*code as usize * 2..*code as usize * 2 + 2]);
        }
        for n in 0..2 {
            x.push(f64::from(continuous[row * 2 + n]) * weights[1][n] + weights[2][n]);
        }
        let mut layers = weights[3..].chunks(2);
        for (width, mask) in architecture.hidden.iter().zip(&dropout) {
            x = dense(&x, layers.next().unwrap(), *width);
            let mask = &mask.as_ref().unwrap()[row * width..(row + 1) * width];
            x.iter_mut()
                .zip(mask)
                .for_each(|(x, mask)| *x = x.max(0.0) * f64::from(*mask));
        }
        let outputs = dense(&x, layers.next().unwrap(), architecture.outputs);
        (outputs, &weights[9..])
    };
    let predict = |row: usize| {
        let (mut outputs, rest) = outputs_of(row);
        for (k, y) in outputs.iter_mut().enumerate() {
            if let [values, numbers, bias @ ..] = rest {
                let codes = &codes[row * 2..row * 2 + 2];
                let width = architecture.outputs;
                *y += codes
                    .iter()
                    .map(|code| values[*code as usize * width + k])
                    .sum::<f64>();
                let x = continuous[row * 2..row * 2 + 2].iter().enumerate();
                *y += x
                    .map(|(n, x)| f64::from(*x) * numbers[n * width + k])
                    .sum::<f64>();
                *y += bias.first().map_or(0.0, |bias| bias[k]);
            }
        }
        let activated = outputs.into_iter().map(|y| {
            let sigmoid = 1.0 / (1.0 + (-y).exp());
            match architecture.output {
                Output::Identity => y,
                Output::Sigmoid => sigmoid,
                Output::ScaledSigmoid => sigmoid * architecture.output_scale,
            }
        });
        activated.collect::<Vec<_>>()
    };
    let outputs = (0..ROWS).flat_map(predict);
    outputs.zip(slopes).map(|(y, slope)| slope * y).sum()
}

fn dense(x: &[f64], layer: &[Vec<f64>], width: usize) -> Vec<f64> {
    let [kernel, bias] = layer else {
        unreachable!("a layer is a kernel and a bias")
    };
    let unit = |to| {
        x.iter()
            .enumerate()
            .map(|(from, x)| x * kernel[from * width + to])
            .sum::<f64>()
    };
    (0..width).map(|to| unit(to) + bias[to]).collect()
}

#[test]
fn gradients_are_finite_differences() {
    gradients_of::<Host>();
    gradients_of::<Tensors<Autodiff<Flex>>>();
}

fn gradients_of<C: Compute<Device: Default>>() {
    for (output, outputs, linear) in [
        (Output::Identity, 1, Linear::None),
        (Output::Sigmoid, 1, Linear::None),
        (Output::ScaledSigmoid, 1, Linear::Beside),
        (Output::Identity, 3, Linear::None),
        (Output::Identity, 3, Linear::Beside),
        (Output::Identity, 1, Linear::Alone),
        (Output::Identity, 3, Linear::Alone),
    ] {
        let architecture = architecture(output, outputs, linear);
        let mut weights = weights(&architecture);
        let slopes = [0.7, -0.4, 0.9, 0.3, -1.1, 0.2, 0.5, -0.6, 0.8];
        let slopes = &slopes[..ROWS * outputs];

        let narrow = weights
            .iter()
            .map(|w| w.iter().map(|w| *w as f32).collect())
            .collect();
        let mut network = C::new(&architecture, narrow, &C::Device::default());
        let mut gradient = vec![f32::NAN; weights.iter().map(Vec::len).sum()];
        let mut value = 0.0;
        let given = |predictions: &[f32]| {
            let terms = predictions.iter().zip(slopes);
            value = terms.map(|(y, slope)| f64::from(*y) * slope).sum();
            slopes.iter().map(|slope| *slope as f32).collect()
        };
        network.gradient(input(), given, &mut gradient);

        assert!((value - reference(&architecture, &weights, slopes)).abs() < 1e-5);
        let mut flat = gradient.iter();
        let (h, mut not_zero) = (1e-6, 0);
        for at in 0..weights.len() {
            for i in 0..weights[at].len() {
                let center = weights[at][i];
                weights[at][i] = center + h;
                let above = reference(&architecture, &weights, slopes);
                weights[at][i] = center - h;
                let below = reference(&architecture, &weights, slopes);
                weights[at][i] = center;
                let (measured, actual) = (
                    (above - below) / (2.0 * h),
                    f64::from(*flat.next().unwrap()),
                );
                let name = &architecture.parameters()[at].name;
                assert!(
                    (measured - actual).abs() < 1e-4,
                    "{output:?} {linear:?} {name}[{i}]: {actual}, {measured}"
                );
                not_zero += usize::from(actual != 0.0);
            }
        }
        assert!(
            not_zero > gradient.len() / 2,
            "the check must reach most weights"
        );
    }
}
