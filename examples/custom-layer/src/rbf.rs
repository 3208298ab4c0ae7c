//! Gaussian radial basis functions, `custom('rbf', units)` or `custom('rbf', units, sharpness)`: proximity of a row
//! to trained centers (Broomhead & Lowe 1988).
//!
//! ```text
//!  d_c = mean over f of (x_f − μ_cf)²      y_c = exp(−e^s_c · d_c)
//! ```
//!
//! Shapes: B rows of F numbers, C centers μ, each with the logarithm s of its sharpness.

use std::error::Error;

use volley_executor::custom::{CustomBatch, CustomLayer, CustomOperation, Initializer, Parameter};

/// Layer type, which builds the operations of networks.
#[derive(Debug)]
pub(crate) struct Rbf;

/// Operation for rows of a given width.
#[derive(Debug)]
struct Functions {
    /// F
    inputs: usize,
    /// C
    units: usize,
    /// Initial value of e^s.
    sharpness: f32,
}

impl CustomLayer for Rbf {
    fn build(
        &self,
        width: usize,
        arguments: &[f64],
    ) -> Result<Box<dyn CustomOperation>, Box<dyn Error + Send + Sync>> {
        let (units, sharpness) = match *arguments {
            [units] => (units, 1.0),
            [units, sharpness] => (units, sharpness),
            _ => return Err("expected units, or units and a sharpness".into()),
        };
        if units < 1.0 || units.fract() != 0.0 {
            return Err(format!("expected a whole number of units instead of {units}").into());
        }
        if sharpness <= 0.0 {
            return Err(format!("expected a sharpness above 0 instead of {sharpness}").into());
        }
        Ok(Box::new(Functions {
            inputs: width,
            units: units as usize,
            sharpness: sharpness as f32,
        }))
    }
}

impl CustomOperation for Functions {
    fn width(&self) -> usize {
        self.units
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: &str, shape: &[usize], initializer| Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            initializer,
            // Centers and sharpness are not weights: smaller is not simpler.
            penalized: false,
        };
        let sharpness = Initializer::Constant(self.sharpness.ln());
        vec![
            parameter(
                "centers",
                &[self.units, self.inputs],
                Initializer::Normal(1.0),
            ),
            parameter("log_sharpness", &[self.units], sharpness),
        ]
    }

    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]) {
        let [centers, sharpness] = batch.parameters else {
            panic!("it has two parameters");
        };
        let rows = batch.x.chunks_exact(self.inputs);
        for (x, y) in rows.zip(y.chunks_exact_mut(self.units)) {
            let centers = centers.chunks_exact(self.inputs).zip(sharpness);
            for (y, (center, s)) in y.iter_mut().zip(centers) {
                *y = (-s.exp() * distance(x, center)).exp();
            }
        }
    }

    fn backward(
        &self,
        batch: CustomBatch<'_>,
        y: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        mut gradients: Option<&mut [&mut [f32]]>,
    ) {
        let [centers, sharpness] = batch.parameters else {
            panic!("it has two parameters");
        };
        let (width, units) = (self.inputs, self.units);
        let entered = batch.x.chunks_exact(width).zip(dx.chunks_exact_mut(width));
        let put_out = y.chunks_exact(units).zip(dy.chunks_exact(units));
        for ((x, dx), (y, dy)) in entered.zip(put_out) {
            for c in 0..units {
                let center = &centers[c * width..][..width];
                let sharp = sharpness[c].exp();
                // ∂y/∂d = −e^s · y, and ∂d/∂x_f = 2 · (x_f − μ_cf) / F.
                let by_distance = -dy[c] * sharp * y[c];
                let scale = 2.0 * by_distance / width as f32;
                for (dx, (x, m)) in dx.iter_mut().zip(x.iter().zip(center)) {
                    *dx += scale * (x - m);
                }
                if let Some([by_centers, by_sharpness]) = gradients.as_deref_mut() {
                    let sums = by_centers[c * width..].iter_mut();
                    for (sum, (x, m)) in sums.zip(x.iter().zip(center)) {
                        *sum -= scale * (x - m);
                    }
                    by_sharpness[c] += by_distance * distance(x, center);
                }
            }
        }
    }
}

/// Returns the mean squared difference of two rows.
fn distance(x: &[f32], center: &[f32]) -> f32 {
    let squares = x.iter().zip(center).map(|(x, m)| (x - m) * (x - m));
    squares.sum::<f32>() / x.len() as f32
}

#[cfg(test)]
mod tests {
    use volley_executor::custom::check_layer;

    use super::*;

    #[test]
    fn its_gradient_is_right() {
        check_layer(Rbf, 5, &[7.0]).unwrap();
        check_layer(Rbf, 1, &[3.0, 0.5]).unwrap();
    }

    #[test]
    fn it_refuses_what_is_no_number_of_units() {
        for arguments in [&[][..], &[0.5], &[4.0, 0.0], &[4.0, 1.0, 1.0]] {
            Rbf.build(3, arguments).unwrap_err();
        }
    }
}
