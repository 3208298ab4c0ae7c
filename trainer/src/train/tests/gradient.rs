//! Networks' gradients against finite differences of an independent network in `f64` that reads the same
//! description.

use std::collections::HashMap;
use std::f64::consts::TAU;

use burn::backend::{Autodiff, Flex};
use volley_proto::spec::{
    Activation, EmbeddingWidth, EnsembleSize, FREQUENCIES, Layer, Linear, Network,
    NumericEmbedding, Output, PERIODIC_WIDTH, PIECEWISE_WIDTH,
};

use crate::device::{Cuda, Emulated, Factors};
use crate::network::{
    Architecture, Compute, Host, HostDevice, Inference, Input, Mask, Piece, Plan, PlanDevice,
    Scratch, Sizes, Tensors, attribute,
};
use crate::random::{Key, Purpose};
use crate::testing::{custom_layers, squash};

const ROWS: usize = 3;
const CODES: [usize; 2] = [4, 3];
const NUMBERS: usize = 2;
/// Edges of each number's bins; rows are within, between and beyond them.
const EDGES: [&[f32]; NUMBERS] = [&[-2.0, -0.5, 0.0, 0.75, 1.0], &[-1.5, 0.5]];

fn network(layers: Vec<Layer>) -> Network {
    Network {
        embedding_dim: EmbeddingWidth::Same(2),
        batch_norm: true,
        numeric_embedding: NumericEmbedding::None,
        layers,
        output: Output::Identity,
        linear: Linear::None,
        factors: 0,
        ensemble_size: EnsembleSize::ONE,
    }
}

fn dense(units: usize, activation: Activation) -> Vec<Layer> {
    vec![Layer::Dense(units), Layer::Activation(activation)]
}

/// Returns networks with every part, each with its number of outputs.
pub(super) fn networks() -> Vec<(Network, usize)> {
    let plain = Layer::stack(&[5, 4], Activation::Relu, &[0.2, 0.5]);
    let mut all = vec![(network(plain.clone()), 1), (network(plain.clone()), 3)];
    for output in [Output::Sigmoid, Output::ScaledSigmoid] {
        let network = Network {
            output,
            ..network(plain.clone())
        };
        all.push((network, 1));
    }
    let activations = Activation::ALL.map(|(_, activation)| activation);
    all.extend(activations.map(|function| (network(dense(5, function)), 1)));
    let graph = vec![
        Layer::Dense(6),
        Layer::Dropout(0.5),
        Layer::LayerNorm,
        Layer::Residual(dense(6, Activation::Gelu)),
        Layer::Residual([dense(4, Activation::Relu), vec![Layer::Dropout(0.25)]].concat()),
        Layer::Concat(vec![
            vec![Layer::Cross(2)],
            [dense(3, Activation::Tanh), vec![Layer::LayerNorm]].concat(),
            vec![],
        ]),
        Layer::Dense(3),
        Layer::Residual(vec![Layer::Activation(Activation::Relu)]),
    ];
    let whole = Network {
        embedding_dim: EmbeddingWidth::Columns(vec![("a".into(), 3), ("b".into(), 1)]),
        numeric_embedding: NumericEmbedding::Periodic,
        linear: Linear::Beside,
        factors: 2,
        ..network(graph)
    };
    let binned = Network {
        numeric_embedding: NumericEmbedding::PiecewiseLinear,
        batch_norm: false,
        ..whole.clone()
    };
    let ensemble = Network {
        ensemble_size: EnsembleSize::Of(3),
        ..whole.clone()
    };
    let binned_ensemble = Network {
        ensemble_size: EnsembleSize::Of(2),
        ..binned.clone()
    };
    all.extend([(ensemble.clone(), 1), (ensemble, 2), (binned_ensemble, 1)]);
    all.extend([(whole.clone(), 1), (whole, 3), (binned, 3)]);
    let cross = network(vec![Layer::Cross(2)]);
    all.push((cross, 1));
    // One branch, nested branches, and the same value twice.
    let branch = vec![Layer::Concat(vec![dense(4, Activation::Silu)])];
    let twice = Layer::Concat(vec![vec![], vec![]]);
    let nested = vec![Layer::Concat(vec![
        vec![Layer::Concat(vec![dense(3, Activation::Relu), vec![]])],
        vec![twice, Layer::Dense(2)],
    ])];
    all.extend([branch, nested].map(|layers| (network(layers), 1)));
    for outputs in [1, 3] {
        let wide = Network {
            linear: Linear::Beside,
            ..network(plain.clone())
        };
        let factors = Network {
            linear: Linear::Alone,
            factors: 2,
            batch_norm: false,
            ..network(vec![])
        };
        let alone = Network {
            factors: 0,
            ..factors.clone()
        };
        all.extend([(wide, outputs), (alone, outputs), (factors, outputs)]);
    }
    all
}

/// Returns networks with custom layers, which the host computes.
fn custom_networks() -> Vec<(Network, usize)> {
    let layers = vec![
        squash(4, 2.0),
        Layer::Residual(vec![squash(4, -0.75)]),
        Layer::Concat(vec![vec![Layer::Dense(2), squash(3, 0.5)], vec![]]),
    ];
    let ensemble = Network {
        ensemble_size: EnsembleSize::Of(3),
        ..network([layers.clone(), vec![Layer::Dropout(0.5)]].concat())
    };
    // Members of one that has no layer before share the numbers.
    let alone = network(vec![squash(1, 3.0)]);
    vec![(network(layers), 2), (ensemble, 2), (alone, 1)]
}

fn input(architecture: &Architecture) -> Input {
    let codes = vec![0, 4, 2, 6, 2, 5]; // one embedding twice
    let continuous = vec![0.5, -1.0, 2.0, 0.25, -0.75, 1.5];
    of_rows(architecture, codes, continuous)
}

/// Returns a batch of these codes and numbers.
fn of_rows(architecture: &Architecture, codes: Vec<u32>, continuous: Vec<f32>) -> Input {
    let rows = codes.len() / CODES.len();
    let masks = architecture.dropouts().iter().enumerate();
    let masks = masks.map(|(at, dropout)| {
        let key = Key::new(5, Purpose::Dropout).with(at as u64);
        Some(Mask {
            keys: (0..rows as u64).map(|row| key.with(row)).collect(),
            units: dropout.width,
            share: dropout.share,
        })
    });
    Input {
        rows,
        codes,
        continuous,
        dropout: masks.collect(),
    }
}

/// Returns weights away from the kinks of ReLU.
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

/// Returns weights in the precision of networks.
fn narrow(weights: &[Vec<f64>]) -> Vec<Vec<f32>> {
    let narrow = weights.iter();
    let narrow = narrow.map(|w| w.iter().map(|w| *w as f32).collect());
    narrow.collect()
}

/// Independent implementation of the forward pass of one row.
struct Reference<'a> {
    weights: HashMap<&'a str, &'a [f64]>,
    input: &'a Input,
    row: usize,
    masks: usize,
}

impl Reference<'_> {
    fn weights(&self, name: &str) -> &[f64] {
        self.weights[name]
    }

    /// Returns each member's outputs, side by side.
    fn outputs(&mut self, network: &Network, widths: [usize; 2], outputs: usize) -> Vec<f64> {
        let members = network.ensemble_size.of(0);
        let mut y = vec![0.0; members * outputs];
        let x_n = &self.input.continuous[self.row * NUMBERS..][..NUMBERS];
        let x_n: Vec<f64> = x_n.iter().map(|x| f64::from(*x)).collect();
        let codes = &self.input.codes[self.row * 2..][..2];
        let codes = [codes[0] as usize, codes[1] as usize - CODES[0]];
        if network.linear != Linear::Alone {
            y = (0..members)
                .flat_map(|member| {
                    let path = match members {
                        1 => String::new(),
                        _ => format!("member.{member}."),
                    };
                    let mut x = Vec::new();
                    let table = self.weights("embedding");
                    let second = CODES[0] * widths[0] * members;
                    for (first, code, width) in
                        [(0, codes[0], widths[0]), (second, codes[1], widths[1])]
                    {
                        let row = first + code * width * members;
                        x.extend_from_slice(&table[row + member * width..][..width]);
                    }
                    for (n, x_n) in x_n.iter().enumerate() {
                        let number = match network.batch_norm {
                            true => {
                                let of = |name| self.weights(&format!("{path}bn.{name}"))[n];
                                x_n * of("gamma") + of("beta")
                            }
                            false => *x_n,
                        };
                        match network.numeric_embedding {
                            NumericEmbedding::None => x.push(number),
                            NumericEmbedding::Periodic => {
                                x.push(number);
                                x.extend(self.periodic(&path, n, number));
                            }
                            NumericEmbedding::PiecewiseLinear => {
                                x.extend(self.piecewise(&path, n, number));
                            }
                        }
                    }
                    let x = self.layers(&network.layers, &path, x);
                    self.dense(&format!("{path}output"), &x, outputs, true)
                })
                .collect();
        }
        if network.linear != Linear::None {
            let values = self.weights("linear.values");
            for (at, y) in y.iter_mut().enumerate() {
                let k = at % outputs;
                *y += values[codes[0] * outputs + k] + values[(CODES[0] + codes[1]) * outputs + k];
                for (n, x) in x_n.iter().enumerate() {
                    *y += x * self.weights("linear.numbers")[n * outputs + k];
                }
                let bias = self.weights.get("linear.bias");
                *y += bias.map_or(0.0, |bias| bias[k]);
            }
        }
        if network.factors > 0 {
            let f = network.factors;
            let row = |table: &[f64], row: usize, x: f64, k: usize| -> Vec<f64> {
                let factors = &table[(row * outputs + k) * f..][..f];
                factors.iter().map(|v| v * x).collect()
            };
            for (at, y) in y.iter_mut().enumerate() {
                let k = at % outputs;
                let values = self.weights("factors.values");
                let mut all = vec![
                    row(values, codes[0], 1.0, k),
                    row(values, CODES[0] + codes[1], 1.0, k),
                ];
                let numbers = self.weights("factors.numbers");
                let of_numbers = x_n.iter().enumerate();
                all.extend(of_numbers.map(|(n, x)| row(numbers, n, *x, k)));
                // Pair by pair.
                for (at, a) in all.iter().enumerate() {
                    for b in &all[at + 1..] {
                        *y += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                    }
                }
            }
        }
        y
    }

    fn periodic(&self, path: &str, number: usize, x: f64) -> Vec<f64> {
        let d = PERIODIC_WIDTH - 1;
        let of = |wave: usize, to: usize| {
            let at = number * FREQUENCIES + wave;
            let angle = TAU * self.weights(&format!("{path}periodic.frequency"))[at] * x
                + self.weights(&format!("{path}periodic.phase"))[at];
            angle.cos() * self.weights(&format!("{path}periodic.kernel"))[at * d + to]
        };
        let bias = |to: usize| self.weights(&format!("{path}periodic.bias"))[number * d + to];
        (0..d)
            .map(|to| bias(to) + (0..FREQUENCIES).map(|wave| of(wave, to)).sum::<f64>())
            .collect()
    }

    fn piecewise(&self, path: &str, number: usize, x: f64) -> Vec<f64> {
        let d = PIECEWISE_WIDTH;
        let most = EDGES.iter().map(|edges| edges.len() - 1).max().unwrap();
        let bins = EDGES[number].windows(2).enumerate();
        let shares = bins.map(|(bin, edges)| {
            let [low, high] = [edges[0], edges[1]].map(f64::from);
            (bin, ((x - low) / (high - low)).clamp(0.0, 1.0))
        });
        let of = |to: usize| {
            let straight = x * self.weights(&format!("{path}piecewise.weight"))[number * d + to]
                + self.weights(&format!("{path}piecewise.bias"))[number * d + to];
            let kernel = self.weights(&format!("{path}piecewise.kernel"));
            let terms = shares
                .clone()
                .map(|(bin, share)| share * kernel[(number * most + bin) * d + to]);
            straight + terms.sum::<f64>()
        };
        (0..d).map(of).collect()
    }

    fn dense(&self, name: &str, x: &[f64], units: usize, bias: bool) -> Vec<f64> {
        let kernel = self.weights(&format!("{name}.kernel"));
        let unit = |to: usize| {
            let terms = x.iter().enumerate();
            let sum: f64 = terms.map(|(from, x)| x * kernel[from * units + to]).sum();
            match bias {
                true => sum + self.weights(&format!("{name}.bias"))[to],
                false => sum,
            }
        };
        (0..units).map(unit).collect()
    }

    fn layers(&mut self, layers: &[Layer], path: &str, mut x: Vec<f64>) -> Vec<f64> {
        let mut counts = HashMap::new();
        for layer in layers {
            let mut name = |kind: &'static str| {
                let count = counts.entry(kind).or_insert(0);
                *count += 1;
                format!("{path}{kind}.{}", *count - 1)
            };
            x = match layer {
                Layer::Dense(units) => self.dense(&name("dense"), &x, *units, true),
                Layer::Activation(function) => {
                    x.into_iter().map(|x| activated(*function, x)).collect()
                }
                Layer::Dropout(_) => {
                    let own = self.input.dropout[self.masks].as_ref().unwrap();
                    let mut mask = vec![0.0; own.keys.len() * own.units];
                    own.draw(0..own.keys.len(), &mut mask);
                    self.masks += 1;
                    let mask = &mask[self.row * x.len()..][..x.len()];
                    x.iter()
                        .zip(mask)
                        .map(|(x, mask)| x * f64::from(*mask))
                        .collect()
                }
                Layer::LayerNorm => {
                    let name = name("norm");
                    let count = x.len() as f64;
                    let mean = x.iter().sum::<f64>() / count;
                    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                    let gamma = self.weights(&format!("{name}.gamma"));
                    let beta = self.weights(&format!("{name}.beta"));
                    let of = |(at, x): (usize, &f64)| {
                        gamma[at] * (x - mean) / (variance + 1e-5).sqrt() + beta[at]
                    };
                    x.iter().enumerate().map(of).collect()
                }
                Layer::Residual(inner) => {
                    let name = name("residual");
                    let made = self.layers(inner, &format!("{name}."), x.clone());
                    if made.len() != x.len() {
                        x = self.dense(&name, &x, made.len(), false);
                    }
                    x.iter().zip(made).map(|(x, made)| x + made).collect()
                }
                Layer::Cross(layers) => {
                    let (name, first) = (name("cross"), x.clone());
                    for at in 0..*layers {
                        let made = self.dense(&format!("{name}.{at}"), &x, first.len(), true);
                        let terms = x.iter().zip(first.iter().zip(made));
                        x = terms.map(|(x, (first, made))| x + first * made).collect();
                    }
                    x
                }
                Layer::Custom { arguments, .. } => {
                    let name = format!("{}.squash", name("custom"));
                    let [units, amplitude] = arguments[..] else {
                        panic!("it is made of two arguments")
                    };
                    let y = self.dense(&name, &x, units as usize, true);
                    y.into_iter().map(|y| amplitude * y.tanh()).collect()
                }
                Layer::Concat(branches) => {
                    let name = name("concat");
                    let mut all = Vec::new();
                    for (at, inner) in branches.iter().enumerate() {
                        all.extend(self.layers(inner, &format!("{name}.{at}."), x.clone()));
                    }
                    all
                }
            };
        }
        x
    }
}

fn activated(function: Activation, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match function {
        Activation::Relu => x.max(0.0),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::LeakyRelu if x < 0.0 => x / 100.0,
        Activation::Elu if x < 0.0 => x.exp() - 1.0,
        Activation::Selu if x < 0.0 => 1.758_099_340_847_376_6 * (x.exp() - 1.0),
        Activation::Selu => 1.050_700_987_355_480_5 * x,
        Activation::LeakyRelu | Activation::Elu => x,
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Silu => x * sigmoid,
        Activation::Mish => x * (1.0 + x.exp()).ln().tanh(),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid,
    }
}

/// Computes Σ slope · output, in `f64` and one row at a time.
fn reference(
    network: &Network,
    architecture: &Architecture,
    weights: &[Vec<f64>],
    slopes: &[f64],
) -> f64 {
    let input = input(architecture);
    let named = architecture.parameters().iter().zip(weights);
    let named: HashMap<_, _> = named
        .map(|(p, w)| (p.name.as_str(), w.as_slice()))
        .collect();
    let widths = ["a", "b"].map(|column| network.embedding_dim.of(column, 0));
    let outputs = (0..ROWS).flat_map(|row| {
        let mut reference = Reference {
            weights: named.clone(),
            input: &input,
            row,
            masks: 0,
        };
        reference.outputs(network, widths, architecture.outputs)
    });
    let activated = outputs.map(|y| {
        let sigmoid = 1.0 / (1.0 + (-y).exp());
        match network.output {
            Output::Identity => y,
            Output::Sigmoid => sigmoid,
            Output::ScaledSigmoid => sigmoid * architecture.output_scale,
        }
    });
    activated.zip(slopes).map(|(y, slope)| slope * y).sum()
}

#[test]
fn gradients_are_finite_differences() {
    gradients_of::<Host>(networks(), &HostDevice::default());
    gradients_of::<Host>(custom_networks(), &HostDevice::default());
    gradients_of::<Tensors<Autodiff<Flex>>>(networks(), &Default::default());
}

#[test]
fn gradients_of_plans_are_finite_differences() {
    if let Some(device) = emulated(Factors::F32) {
        gradients_of::<Plan>(networks(), &device);
        gradients_of::<Plan>(custom_networks(), &device);
    }
}

#[test]
fn many_rows_have_the_host_s_outputs_and_gradient_in_plans() {
    on_emulated(many_rows_have_the_host_s::<Plan>);
}

#[test]
fn inference_has_the_host_s_outputs() {
    on_emulated(inference_has_the_host_s);
}

#[test]
#[ignore = "it needs a GPU"]
fn inference_on_a_gpu_has_the_host_s_outputs() {
    on_gpu(inference_has_the_host_s);
}

fn inference_has_the_host_s(device: &PlanDevice, within: f32) {
    for (network, outputs) in networks() {
        let architecture = architecture(&network, outputs);
        let weights = narrow(&weights(&architecture));
        let mut host = Host::new(&architecture, weights.clone(), &HostDevice::default()).unwrap();
        let mut inference = Inference::new(&architecture, &weights, device).unwrap();
        // Fewer rows after more, in the same memory, and then more than it holds.
        for rows in [100, 1, 256, 17, 700] {
            let input = || Input {
                dropout: vec![],
                ..drawn(&architecture, rows)
            };
            are_near(
                &host.predict(input()).unwrap(),
                &inference.predict(&input()).unwrap(),
                within,
                &format!("outputs of {network:?}, {rows} rows"),
            );
        }
        assert!(inference.predict(&Input::default()).unwrap().is_empty());
    }
}

#[test]
fn attributions_on_a_device_are_the_host_s() {
    on_emulated(attributions_are_the_host_s);
}

#[test]
#[ignore = "it needs a GPU"]
fn attributions_on_a_gpu_are_the_host_s() {
    on_gpu(attributions_are_the_host_s);
}

fn attributions_are_the_host_s(device: &PlanDevice, within: f32) {
    for (network, outputs) in networks() {
        let architecture = architecture(&network, outputs);
        let weights = narrow(&weights(&architecture));
        let baseline = Input {
            dropout: vec![],
            ..of_rows(&architecture, vec![1, 5], vec![0.1, -0.2])
        };
        let mut inference = Inference::new(&architecture, &weights, device).unwrap();
        // Fewer rows after more, in the same memory, and as many as before.
        let counts: &[usize] = match device.factors {
            Factors::F32 => &[9, 1, 5, 5],
            Factors::Tf32 | Factors::Bf16 => &[9],
        };
        for rows in counts.iter().copied() {
            let input = Input {
                dropout: vec![],
                ..drawn(&architecture, rows)
            };
            let chosen: Vec<usize> = (0..rows).map(|row| (row + 1) % outputs).collect();
            let scratch = &mut Scratch::default();
            let due = attribute(&architecture, &weights, &input, &baseline, &chosen, scratch);
            let found = inference.attribute(&input, &baseline, &chosen).unwrap();
            let of = |all: &[f64]| -> Vec<f32> { all.iter().map(|x| *x as f32).collect() };
            for (what, due, found) in [
                ("attributions", &due.inputs, &found.inputs),
                ("outputs", &due.outputs, &found.outputs),
                ("outputs of the baseline", &due.baselines, &found.baselines),
            ] {
                let what = format!("{what} of {network:?}, {rows} rows");
                are_near(&of(due), &of(found), within, &what);
            }
        }
        let found = inference.attribute(&Input::default(), &baseline, &[]);
        assert!(found.unwrap().inputs.is_empty());
    }
}

/// Checks that buckets have the bits of the whole gradient, also of a step's last piece.
fn buckets_of<C: Compute>(device: &C::Device) {
    let mut several = 0;
    for (network, outputs) in networks() {
        let architecture = architecture(&network, outputs);
        let weights = weights(&architecture);
        let mut computed = C::new(&architecture, narrow(&weights), device).unwrap();
        let ranges = computed.buckets();
        if ranges.len() < 2 {
            continue;
        }
        several += 1;
        let input = || input(&architecture);
        let slopes = |y: &[f32]| (0..y.len()).map(|at| (at as f32).sin()).collect();
        let len = weights.iter().map(Vec::len).sum();
        let [first, last] = [true, false].map(|first| Piece {
            first,
            last: !first,
        });
        for pieces in [vec![Piece::WHOLE], vec![first, last]] {
            let mut due = vec![0.0; len];
            for piece in &pieces {
                let gradient = computed.gradient(input(), slopes, *piece, &mut due);
                gradient.unwrap();
            }
            computed.read_gradient(&mut due).unwrap();
            let (last, before) = pieces.split_last().unwrap();
            let mut found = vec![f32::NAN; len];
            for piece in before {
                let gradient = computed.gradient(input(), slopes, *piece, &mut found);
                gradient.unwrap();
            }
            // Others, at the end of a bucket, stay.
            let buckets = ranges.iter().map(|range| vec![7.0; range.len() + 2]);
            let mut next = ranges.iter();
            let mut done = |bucket: Vec<f32>| {
                let range = next.next().unwrap();
                let (own, others) = bucket.split_at(range.len());
                found[range.clone()].copy_from_slice(own);
                assert_eq!(others, [7.0; 2]);
            };
            let buckets = buckets.collect();
            computed
                .gradient_in_buckets(input(), slopes, *last, buckets, &mut done)
                .unwrap();
            assert_eq!(found, due, "{network:?}, {} pieces", pieces.len());
        }
    }
    assert!(several > 7, "{several} networks have several buckets");
}

#[test]
fn buckets_have_the_bits_of_the_gradient() {
    buckets_of::<Host>(&HostDevice::default());
    if let Some(device) = emulated(Factors::F32) {
        buckets_of::<Plan>(&device);
    }
}

/// Returns a batch of drawn rows.
fn drawn(architecture: &Architecture, rows: usize) -> Input {
    let key = Key::new(6, Purpose::Sample);
    let draw = |at: usize| key.at(at as u64);
    let codes = (0..2 * rows).map(|at| match at % 2 {
        0 => (draw(at) % CODES[0] as u64) as u32,
        _ => (CODES[0] as u64 + draw(at) % CODES[1] as u64) as u32,
    });
    let numbers = (0..2 * rows).map(|at| (draw(at) % 997) as f32 / 300.0 - 1.7);
    of_rows(architecture, codes.collect(), numbers.collect())
}

/// Returns the emulated device, if there is a C++ compiler.
fn emulated(factors: Factors) -> Option<PlanDevice> {
    let runtime = Emulated::find()?;
    Some(PlanDevice { runtime, factors })
}

/// Checks the emulated device, if there is a C++ compiler, in each precision and within its tolerance.
fn on_emulated(check: impl Fn(&PlanDevice, f32)) {
    for (factors, within) in PRECISIONS {
        if let Some(device) = emulated(factors) {
            check(&device, within);
        }
    }
}

/// Checks a GPU likewise.
fn on_gpu(check: impl Fn(&PlanDevice, f32)) {
    for (factors, within) in PRECISIONS {
        let device = PlanDevice {
            runtime: Cuda::open(0).unwrap(),
            factors,
        };
        check(&device, within);
    }
}

#[test]
fn the_host_rounds_factors_as_a_gpu_does() {
    for (factors, within) in PRECISIONS {
        let device = HostDevice {
            factors,
            ..HostDevice::default()
        };
        many_rows_have_the_host_s::<Host>(&device, within);
    }
}

/// Devices sum over many rows in groups, and by parts of a table: see `broadcast` and `pick`.
#[test]
fn many_rows_have_the_host_s_outputs_and_gradient_in_tensors() {
    many_rows_have_the_host_s::<Tensors<Autodiff<Flex>>>(&Default::default(), F32);
}

#[test]
#[ignore = "it needs a GPU"]
fn gradients_of_plans_on_a_gpu_are_finite_differences_and_the_host_s() {
    on_gpu(|device, within| {
        many_rows_have_the_host_s::<Plan>(device, within);
        if device.factors == Factors::F32 {
            gradients_of::<Plan>(networks(), device);
            gradients_of::<Plan>(custom_networks(), device);
        }
    });
}

/// Tolerance for sums in another order, as a share of the greatest number.
pub(super) const F32: f32 = 2e-4;
/// Precisions of factors, and their tolerances: with fewer bits in factors, a unit may be on the other side
/// of a kink, which changes its row's whole share of the gradient.
const PRECISIONS: [(Factors, f32); 3] = [
    (Factors::F32, F32),
    (Factors::Tf32, 5e-2),
    (Factors::Bf16, 4e-1),
];

pub(super) fn many_rows_have_the_host_s<C: Compute>(device: &C::Device, within: f32) {
    for (network, outputs) in networks() {
        let architecture = architecture(&network, outputs);
        let weights = weights(&architecture);
        let len = weights.iter().map(Vec::len).sum();
        for rows in [100, 256, 1500] {
            let input = || drawn(&architecture, rows);
            let slopes = |y: &[f32]| (0..y.len()).map(|at| (at as f32).sin()).collect();
            let (mut due, mut found) = (vec![0.0; len], vec![0.0; len]);
            let weights = || narrow(&weights);
            let mut host = Host::new(&architecture, weights(), &HostDevice::default()).unwrap();
            host.gradient(input(), slopes, Piece::WHOLE, &mut due)
                .unwrap();
            let mut computed = C::new(&architecture, weights(), device).unwrap();
            computed
                .gradient(input(), slopes, Piece::WHOLE, &mut found)
                .unwrap();
            computed.read_gradient(&mut found).unwrap();
            are_near(
                &due,
                &found,
                within,
                &format!("gradient of {network:?}, {rows} rows"),
            );
            let (due, found) = (
                host.predict(input()).unwrap(),
                computed.predict(input()).unwrap(),
            );
            are_near(
                &due,
                &found,
                within,
                &format!("outputs of {network:?}, {rows} rows"),
            );
        }
    }
}

/// Checks that numbers differ by less than this share of the greatest, or of 1 if that is greater.
fn are_near(due: &[f32], found: &[f32], within: f32, what: &str) {
    assert_eq!(due.len(), found.len(), "{what}");
    let most = due.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
    for (at, (due, found)) in due.iter().zip(found).enumerate() {
        let differ = (due - found).abs();
        assert!(differ < within * most, "{what}, {at}: {found}, not {due}");
    }
}

fn architecture(network: &Network, outputs: usize) -> Architecture {
    let sizes = Sizes {
        codes: CODES.to_vec(),
        continuous: NUMBERS,
        bins: EDGES.map(<[f32]>::to_vec).to_vec(),
        outputs,
        rows: 0,
    };
    Architecture::of(network, &["a", "b"], &sizes, 3.0, &custom_layers()).unwrap()
}

pub(super) fn gradients_of<C: Compute>(networks: Vec<(Network, usize)>, device: &C::Device) {
    for (network, outputs) in networks {
        let architecture = architecture(&network, outputs);
        let mut weights = weights(&architecture);
        let slopes = [0.7, -0.4, 0.9, 0.3, -1.1, 0.2, 0.5, -0.6, 0.8];
        let slopes = slopes.iter().cycle().copied();
        let slopes: Vec<f64> = slopes.take(ROWS * architecture.members * outputs).collect();
        let slopes = &slopes[..];

        let mut computed = C::new(&architecture, narrow(&weights), device).unwrap();
        let mut gradient = vec![f32::NAN; weights.iter().map(Vec::len).sum()];
        // Twice: state kept between batches must not count.
        for _ in 0..2 {
            let mut value = 0.0;
            let given = |predictions: &[f32]| {
                let terms = predictions.iter().zip(slopes);
                value = terms.map(|(y, slope)| f64::from(*y) * slope).sum();
                slopes.iter().map(|slope| *slope as f32).collect()
            };
            let input = input(&architecture);
            computed
                .gradient(input, given, Piece::WHOLE, &mut gradient)
                .unwrap();
            computed.read_gradient(&mut gradient).unwrap();
            let due = reference(&network, &architecture, &weights, slopes);
            assert!(
                (value - due).abs() < 2e-5 * (1.0 + due.abs()),
                "{network:?}: {value} {due}"
            );
        }
        let mut flat = gradient.iter();
        let (h, mut not_zero) = (1e-6, 0);
        for at in 0..weights.len() {
            for i in 0..weights[at].len() {
                let center = weights[at][i];
                weights[at][i] = center + h;
                let above = reference(&network, &architecture, &weights, slopes);
                weights[at][i] = center - h;
                let below = reference(&network, &architecture, &weights, slopes);
                weights[at][i] = center;
                let (measured, actual) = (
                    (above - below) / (2.0 * h),
                    f64::from(*flat.next().unwrap()),
                );
                let name = &architecture.parameters()[at].name;
                assert!(
                    (measured - actual).abs() < 1e-4 * (1.0 + measured.abs()),
                    "{network:?} {name}[{i}]: {actual}, {measured}"
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
