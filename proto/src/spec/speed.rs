//! Estimate of a step's time on a processor or a GPU, from what the step computes and the speed of the device.
//!
//! It is for users, before there is anything to measure: `EXPLAIN CREATE MODEL` shows it. Ranks choose their device by
//! measured steps. Not counted are reading and encoding rows, all-reduce, evaluation and checkpoints.

use super::{Precision, Rule, TrainSpec};

/// Bytes of a number.
const NUMBER: f64 = 4.0;
/// Operations of a weight for a row: a product and a sum, forward and in both products backward.
const OPERATIONS: f64 = 6.0;

/// Measured speed of one thread of a processor; 0 if it was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadSpeed {
    /// FLOP/s of matrix products in `f32`.
    pub products: f64,
    /// Bytes per second of memory that is read and written in order.
    pub memory: f64,
}

/// Speed of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Floating-point operations per second in matrix products.
    pub products: f64,
    /// Bytes per second of memory that is read and written in order.
    pub memory: f64,
    /// Bytes of memory traffic for each output of a layer, in a row's forward and backward pass: dropout, activations,
    /// and what is done to them one by one, in the time that copying so many bytes takes.
    pub output_bytes: f64,
    /// Seconds of a step without rows.
    pub step: f64,
}

impl Speed {
    /// Returns the speed of so many threads of a processor, from that of one. Steps reach two thirds of the measured
    /// speed of memory, because they do not read it in order only.
    ///
    /// For the network of the Rossmann example on an Intel Xeon, with 155 GFLOP/s and 30 GB/s of a thread, that is within
    /// 7 % of the measured steps of 100, 1024 and 8192 rows.
    pub fn of_threads(threads: usize, products: f64, memory: f64) -> Self {
        let threads = threads.max(1) as f64;
        Self {
            products: threads * products,
            memory: threads * memory * 2.0 / 3.0,
            output_bytes: 60.0,
            step: 20e-6,
        }
    }

    /// Returns the speed of a GPU of which products take 0.6 and memory 0.7 of the peaks, with 30 kernels per step.
    pub fn of_gpu(products: f64, memory: f64) -> Self {
        Self {
            products: 0.6 * products,
            memory: 0.7 * memory,
            output_bytes: 24.0,
            step: 75e-6,
        }
    }
}

/// Clocks and widths of a GPU, from which its peaks follow; 0 where the driver does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Clock of the memory, in kHz.
    pub memory_khz: u32,
    /// Width of the memory's bus, in bits.
    pub bus_bits: u32,
}

impl Clocks {
    /// Returns the peak of matrix products in FLOP/s, given the compute capability; `None` if the driver does not tell,
    /// or for a capability that is not known here.
    ///
    /// Multiplications per multiprocessor and clock, by NVIDIA's architecture white papers: of A100 (8.0), GA102 (8.6),
    /// AD102 (8.9), H100 (9.0) and GB100 (10.0).
    pub fn products(self, capability: (u32, u32), precision: Precision) -> Option<f64> {
        let [f32, tf32] = match capability {
            (8, 0) => [64, 512],
            (8, _) => [128, 128],
            (9, _) => [128, 1024],
            (10, _) => [128, 2048],
            _ => return None,
        };
        let each = match precision {
            Precision::F32 => f32,
            Precision::Tf32 => tf32,
            Precision::Bf16 => 2 * tf32,
        };
        let clocks = f64::from(self.multiprocessors) * 1e3 * f64::from(self.clock_khz);
        Some(2.0 * f64::from(each) * clocks).filter(|peak| *peak > 0.0)
    }

    /// Returns the peak of the memory in bytes per second; `None` if the driver does not tell. Memory transfers twice
    /// per clock.
    pub fn memory(self) -> Option<f64> {
        let peak = 2e3 * f64::from(self.memory_khz) * f64::from(self.bus_bits / 8);
        Some(peak).filter(|peak| *peak > 0.0)
    }
}

impl TrainSpec {
    /// Estimates the seconds of a step of a rank that computes `step_rows` rows, in a training on `rows` rows. `None` for
    /// custom layers, and for an optimizer whose step passes over all rows several times.
    pub fn step_seconds(&self, step_rows: u64, rows: u64, speed: &Speed) -> Option<f64> {
        if matches!(self.optimizer.rule, Rule::Lbfgs { .. }) {
            return None;
        }
        let weights = self.parameters(Some(rows))? as f64;
        let outputs = self.row_outputs(rows)? as f64;
        let kept = self.optimizer.kept_numbers();
        // Weights, gradient and what the optimizer keeps are read and written; the gradient is also cleared and checked.
        let touched = NUMBER * weights * (2.0 * (2.0 + kept as f64) + 1.0);
        let step_rows = step_rows as f64;
        let products = OPERATIONS * weights * step_rows / speed.products;
        let memory = (touched + speed.output_bytes * outputs * step_rows) / speed.memory;
        Some(speed.step + products + memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Activation, Layer};
    use crate::store::Manifest;

    #[test]
    fn peaks_are_those_of_data_sheets() {
        // H100 SXM: 132 multiprocessors, 1.98 GHz at most; HBM3 of 2.619 GHz over 5120 bits.
        let h100 = Clocks {
            multiprocessors: 132,
            clock_khz: 1_980_000,
            memory_khz: 2_619_000,
            bus_bits: 5120,
        };
        let tera = |precision| h100.products((9, 0), precision).unwrap() / 1e12;
        assert_eq!(tera(Precision::F32).round(), 67.0);
        assert_eq!(tera(Precision::Tf32).round(), 535.0);
        assert_eq!(tera(Precision::Bf16).round(), 1071.0);
        assert_eq!((h100.memory().unwrap() / 1e9).round(), 3352.0);
        assert_eq!(h100.products((7, 5), Precision::F32), None);
        let untold = Clocks::default();
        assert_eq!(untold.products((9, 0), Precision::F32), None);
        assert_eq!(untold.memory(), None);
    }

    #[test]
    fn a_step_takes_longer_with_more_rows_and_shorter_with_more_threads() {
        let old = include_str!("../__fuzz__/manifest/corpus/whole.json");
        let mut spec = serde_json::from_str::<Manifest>(old).unwrap().spec;
        spec.network.layers = Layer::stack(&[100, 10], Activation::Relu, &[]);
        spec.optimizer.rule = Rule::adam(0.0);
        let seconds = |spec: &TrainSpec, rows, threads| {
            spec.step_seconds(rows, 10_000, &Speed::of_threads(threads, 1e11, 2e10))
        };
        let [few, many] = [100, 1000].map(|rows| seconds(&spec, rows, 1).unwrap());
        assert!(few < many && many < 10.0 * few, "{few} {many}");
        assert!(seconds(&spec, 1000, 2).unwrap() < many);
        spec.network.layers.push(Layer::Custom {
            name: "rbf".into(),
            arguments: vec![],
        });
        assert_eq!(seconds(&spec, 100, 1), None);
    }
}
