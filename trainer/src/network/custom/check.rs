//! A test for custom layers: gradients against finite differences, and independence of rows.
//!
//! Outputs are `f32`, so differences are taken over wide steps, of two widths: where these disagree, the function has a
//! kink and is not compared.

use std::sync::Arc;

use rand::RngExt;
use volley_proto::spec::Layer;

use super::{CustomBatch, CustomLayer, CustomLayers, CustomOperation};
use crate::random::{Key, Purpose};
use crate::{Error, Result};

/// Rows of the test batch.
const ROWS: usize = 4;
/// Half the width of the wider difference.
const STEP: f32 = 1.0 / 64.0;
/// Tolerance of a gradient, relative to itself.
const TOLERANCE: f64 = 0.01;
/// Tolerance of a gradient, relative to the largest of its tensor.
const TOLERANCE_OF_LARGEST: f64 = 2e-3;
/// Rounding error of a difference, relative to the largest output or 1, if that is larger.
const NOISE: f64 = 5e-4;
/// Tolerance between a row's outputs alone and in a batch.
const ROUNDING: f32 = 1e-5;

/// Checks a layer on random rows of `width` numbers, with parameters near their initial values. Outputs must be finite,
/// the same each time, and independent of the batch's other rows; gradients must match finite differences, except at
/// kinks.
///
/// A wrong gradient goes unnoticed below about 0.0005, or where the layer is far steeper or flatter than 1: pass
/// arguments of a usual size.
///
/// # Errors
/// [`Error::BuildLayer`] or [`Error::Layer`], with what is wrong.
pub fn check_layer(
    layer: impl CustomLayer + 'static,
    width: usize,
    arguments: &[f64],
) -> Result<()> {
    let layers = CustomLayers::new().with("checked", layer);
    let typed = Layer::Custom {
        name: "checked".to_owned(),
        arguments: arguments.to_vec(),
    };
    let (custom, to, parameters) = layers.operation(&typed, width)?;
    let key = Key::new(0, Purpose::Content);
    let mut stream = key.with(0).stream();
    let values = parameters.iter().map(|parameter| {
        let mut values = parameter.initializer.draw(parameter.len(), &mut stream);
        // A parameter of 0 would zero the gradients of what it multiplies.
        let values_mut = values.iter_mut();
        values_mut.for_each(|value| *value += stream.random_range(-0.25_f32..0.25));
        values
    });
    let values = values.collect();
    let mut stream = key.with(1).stream();
    let x = (0..ROWS * width).map(|_| stream.random_range(-1.5_f32..1.5));
    let x = x.collect();
    let slopes = (0..ROWS * to).map(|at| {
        let slope = stream.random_range(0.5_f32..1.5);
        if at % 3 == 1 { -slope } else { slope }
    });
    let trial = Trial {
        operation: custom.operation,
        width,
        to,
        parameters: values,
        x,
        slopes: slopes.collect(),
    };
    let names = parameters.iter().map(|parameter| parameter.name.as_str());
    let names: Vec<&str> = names.collect();
    trial.run(&names).map_err(|problem| Error::Layer {
        layer: typed.to_string(),
        problem,
    })
}

/// Operation with its test data.
struct Trial {
    operation: Arc<dyn CustomOperation>,
    /// Input width, F.
    width: usize,
    /// Output width, W.
    to: usize,
    parameters: Vec<Vec<f32>>,
    /// `[B × F]`
    x: Vec<f32>,
    /// Weight of each output in the sum whose gradient is compared, `[B × W]`.
    slopes: Vec<f32>,
}

impl Trial {
    /// Runs all checks; the error says what is wrong.
    fn run(&self, names: &[&str]) -> Result<(), String> {
        let y = self.forward(&self.x, &self.parameters);
        self.check_outputs(&y)?;
        let (dx, gradients) = self.backward(&y, true);
        let (dx_alone, _) = self.backward(&y, false);
        if dx != dx_alone {
            return Err(
                "its gradient by x differs when gradients by parameters are not requested"
                    .to_owned(),
            );
        }
        let largest = y
            .iter()
            .fold(1.0_f64, |most, y| most.max(f64::from(y.abs())));
        let noise = NOISE * largest;
        self.compare("x", &dx, noise, |at, step| {
            let mut x = self.x.clone();
            x[at] += step;
            self.forward(&x, &self.parameters)
        })?;
        for (which, (name, gradient)) in names.iter().zip(&gradients).enumerate() {
            self.compare(name, gradient, noise, |at, step| {
                let mut parameters = self.parameters.clone();
                parameters[which][at] += step;
                self.forward(&self.x, &parameters)
            })?;
        }
        Ok(())
    }

    /// Computes the outputs of any number of rows.
    fn forward(&self, x: &[f32], parameters: &[Vec<f32>]) -> Vec<f32> {
        let rows = x.len() / self.width;
        let mut y = vec![0.0; rows * self.to];
        let batch = CustomBatch {
            rows,
            x,
            parameters,
        };
        self.operation.forward(batch, &mut y);
        y
    }

    /// Computes the gradients by x and, if they are `wanted`, by each parameter.
    fn backward(&self, y: &[f32], wanted: bool) -> (Vec<f32>, Vec<Vec<f32>>) {
        let batch = CustomBatch {
            rows: ROWS,
            x: &self.x,
            parameters: &self.parameters,
        };
        let mut dx = vec![0.0; self.x.len()];
        let zeros = self.parameters.iter().map(|values| vec![0.0; values.len()]);
        let mut gradients: Vec<Vec<f32>> = zeros.collect();
        let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(Vec::as_mut_slice).collect();
        let slices = wanted.then_some(slices.as_mut_slice());
        self.operation
            .backward(batch, y, &self.slopes, &mut dx, slices);
        (dx, gradients)
    }

    fn check_outputs(&self, y: &[f32]) -> Result<(), String> {
        if let Some(at) = y.iter().position(|y| !y.is_finite()) {
            let (row, column) = (at / self.to, at % self.to);
            return Err(format!("its output {column} of row {row} is {}", y[at]));
        }
        if y != self.forward(&self.x, &self.parameters) {
            return Err("its output is not the same each time".to_owned());
        }
        let rows = self.x.chunks_exact(self.width);
        for (row, (x, y)) in rows.zip(y.chunks_exact(self.to)).enumerate() {
            let alone = self.forward(x, &self.parameters);
            let differs = |(y, alone): (&f32, &f32)| (y - alone).abs() > ROUNDING * (1.0 + y.abs());
            if y.iter().zip(&alone).any(differs) {
                return Err(format!(
                    "its output of row {row} depends on the other rows of the batch"
                ));
            }
        }
        Ok(())
    }

    /// Compares a gradient with finite differences. `outputs` returns the outputs with the number at an index shifted.
    fn compare(
        &self,
        name: &str,
        gradient: &[f32],
        noise: f64,
        outputs: impl Fn(usize, f32) -> Vec<f32>,
    ) -> Result<(), String> {
        let measure = |at: usize, step: f32| {
            let (above, below) = (outputs(at, step), outputs(at, -step));
            let terms = above.iter().zip(&below).zip(&self.slopes);
            let terms = terms.map(|((above, below), slope)| {
                (f64::from(*above) - f64::from(*below)) * f64::from(*slope)
            });
            terms.sum::<f64>() / f64::from(2.0 * step)
        };
        let both = |at| (measure(at, STEP), measure(at, STEP / 2.0));
        let measured: Vec<(f64, f64)> = (0..gradient.len()).map(both).collect();
        let largest = measured.iter().map(|(_, narrow)| narrow.abs());
        let largest = largest.fold(0.0, f64::max);
        let mut kinks = 0;
        for (at, ((wide, narrow), found)) in measured.iter().zip(gradient).enumerate() {
            let slack = TOLERANCE * narrow.abs() + TOLERANCE_OF_LARGEST * largest + noise;
            let found = f64::from(*found);
            let is_smooth = (wide - narrow).abs() <= slack;
            if !found.is_finite() || is_smooth && (found - narrow).abs() > slack {
                return Err(format!(
                    "its gradient by {name}[{at}] is {found}, finite differences say {narrow}"
                ));
            }
            kinks += usize::from(!is_smooth);
        }
        match 2 * kinks > gradient.len() {
            true => Err(format!(
                "finite differences by {name} do not agree with each other at {kinks} of {} places: its output is too \
                 steep, or jumps",
                gradient.len()
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Initializer, Parameter};
    use crate::testing::Squash;

    type Failure = Box<dyn std::error::Error + Send + Sync>;

    /// Mistake of a layer.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Mistake {
        None,
        /// The gradient by the bias is doubled.
        Parameter,
        /// The gradient by the input is missing.
        Input,
        /// The gradient by the input is missing where parameter gradients are not wanted.
        InputAlone,
        /// The mean of the batch is subtracted from each row.
        Rows,
        /// One output is NaN.
        Output,
        /// Outputs jump.
        Steps,
    }

    /// `max(x + b, 0)`, with a mistake.
    #[derive(Debug, Clone, Copy)]
    struct Hinge(Mistake, usize);

    impl CustomLayer for Hinge {
        fn build(&self, width: usize, _: &[f64]) -> Result<Box<dyn CustomOperation>, Failure> {
            Ok(Box::new(Self(self.0, width)))
        }
    }

    impl CustomOperation for Hinge {
        fn width(&self) -> usize {
            self.1
        }

        fn parameters(&self) -> Vec<Parameter> {
            vec![Parameter {
                name: "bias".to_owned(),
                shape: vec![self.1],
                initializer: Initializer::Constant(0.0),
                penalized: false,
            }]
        }

        fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]) {
            let bias = batch.parameters[0].iter().cycle();
            for ((y, x), b) in y.iter_mut().zip(batch.x).zip(bias) {
                *y = match self.0 {
                    Mistake::Steps => (100.0 * (x + b)).round(),
                    _ => (x + b).max(0.0),
                };
            }
            if self.0 == Mistake::Rows {
                let mean = batch.x.iter().sum::<f32>() / batch.x.len() as f32;
                y.iter_mut().for_each(|y| *y -= mean);
            }
            if self.0 == Mistake::Output {
                y[1] = f32::NAN;
            }
        }

        fn backward(
            &self,
            batch: CustomBatch<'_>,
            _: &[f32],
            dy: &[f32],
            dx: &mut [f32],
            gradients: Option<&mut [&mut [f32]]>,
        ) {
            let is_alone = gradients.is_none();
            let slopes = batch.x.iter().zip(batch.parameters[0].iter().cycle());
            let terms = slopes.zip(dy).map(|((x, b), d)| match x + b > 0.0 {
                true => *d,
                false => 0.0,
            });
            let terms: Vec<f32> = terms.collect();
            let is_lost = match self.0 {
                Mistake::Input => true,
                Mistake::InputAlone => is_alone,
                _ => false,
            };
            if !is_lost {
                dx.copy_from_slice(&terms);
            }
            if let Some(gradients) = gradients {
                for terms in terms.chunks_exact(self.1) {
                    let sums = gradients[0].iter_mut().zip(terms);
                    sums.for_each(|(sum, term)| *sum += term);
                }
                if self.0 == Mistake::Parameter {
                    gradients[0].iter_mut().for_each(|sum| *sum *= 2.0);
                }
            }
        }
    }

    #[test]
    fn a_layer_without_mistakes_passes() {
        check_layer(Squash, 5, &[3.0, 2.0]).unwrap();
        check_layer(Squash, 1, &[1.0, 0.5]).unwrap();
        check_layer(Hinge(Mistake::None, 0), 6, &[]).unwrap();
    }

    #[test]
    fn every_mistake_is_found() {
        for (mistake, due) in [
            (Mistake::Parameter, "bias["),
            (Mistake::Input, "x["),
            (Mistake::InputAlone, "not requested"),
            (Mistake::Rows, "other rows"),
            (Mistake::Output, "NaN"),
            (Mistake::Steps, "finite differences"),
        ] {
            let found = check_layer(Hinge(mistake, 0), 6, &[]).unwrap_err();
            let Error::Layer { problem, .. } = found else {
                panic!("{mistake:?}: {found}")
            };
            assert!(problem.contains(due), "{mistake:?}: {problem}");
        }
        let refused = check_layer(Squash, 5, &[]).unwrap_err();
        assert!(matches!(refused, Error::BuildLayer { .. }), "{refused}");
    }
}
