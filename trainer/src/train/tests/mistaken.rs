//! Burn on the CPU, with a mistake: what a GPU with a wrong driver does.

use burn::backend::{Autodiff, Flex};

use crate::Result;
use crate::device::Mistake;
use crate::network::{Architecture, Compute, Input, Piece, Tensors, Update};

type Right = Tensors<Autodiff<Flex>>;

/// Network that computes as [`Tensors`] does, but for its mistake.
#[derive(Debug)]
pub(in crate::train) struct Mistaken {
    right: Right,
    mistake: Mistake,
    /// Steps so far.
    steps: u64,
}

impl Compute for Mistaken {
    type Device = Mistake;
    type Numbers = <Right as Compute>::Numbers;

    fn new(architecture: &Architecture, values: Vec<Vec<f32>>, mistake: &Mistake) -> Result<Self> {
        Ok(Self {
            right: Right::new(architecture, values, &Default::default())?,
            mistake: *mistake,
            steps: 0,
        })
    }

    fn predict(&mut self, input: Input) -> Result<Vec<f32>> {
        self.right.predict(input)
    }

    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>> {
        self.right.predict_by_member(input)
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        flat: &mut [f32],
    ) -> Result<()> {
        let factor = match self.mistake {
            Mistake::Gradient => 1.001,
            _ => 1.0,
        };
        let slopes = |outputs: &[f32]| {
            let slopes = slopes(outputs).into_iter();
            slopes.map(|slope| factor * slope).collect()
        };
        self.right.gradient(input, slopes, piece, flat)
    }

    fn zero_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        self.right.zero_gradient(flat)
    }

    fn read_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        self.right.read_gradient(flat)
    }

    fn write_gradient(&mut self, flat: &[f32]) -> Result<()> {
        self.right.write_gradient(flat)
    }

    fn non_finite_gradient(&mut self, flat: &[f32]) -> Result<Option<f64>> {
        self.right.non_finite_gradient(flat)
    }

    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Self::Numbers],
        flat: &mut [f32],
    ) -> Result<()> {
        if self.mistake == Mistake::Panic(self.steps) {
            panic!("the device is lost");
        }
        self.steps += 1;
        self.right.apply(update, slots, flat)
    }

    fn upload(&self, numbers: Vec<f32>) -> Result<Self::Numbers> {
        self.right.upload(numbers)
    }

    fn download(numbers: Self::Numbers) -> Result<Vec<f32>> {
        Right::download(numbers)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        self.right.values()
    }

    fn put(&mut self, values: &[Vec<f32>]) -> Result<()> {
        self.right.put(values)
    }
}
