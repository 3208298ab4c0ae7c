//! The two stacks for aggregates of one column of floats, with plain numbers as states.

use std::fmt::Debug;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::Accumulator;

/// Aggregate state of some rows; the default is the state of rows without a value.
pub(super) trait Part: Debug + Copy + Default + Send + Sync + 'static {
    /// Returns the state of one value.
    fn of(value: f64) -> Self;

    /// Returns the state of these rows and others.
    fn and(self, other: Self) -> Self;
}

/// Sum and count of values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    sum: f64,
    count: u64,
}

impl Part for Total {
    fn of(sum: f64) -> Self {
        Self { sum, count: 1 }
    }

    fn and(self, other: Self) -> Self {
        Self {
            sum: self.sum + other.sum,
            count: self.count + other.count,
        }
    }
}

impl Total {
    pub(super) fn sum(self) -> Option<f64> {
        (self.count > 0).then_some(self.sum)
    }

    pub(super) fn mean(self) -> Option<f64> {
        self.sum().map(|sum| sum / self.count as f64)
    }
}

/// Mean, sum of squared deviations from it, and count of values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Part for Moments {
    fn of(mean: f64) -> Self {
        Self {
            count: 1,
            mean,
            // The squared deviation of an infinity is NaN.
            squares: if mean.is_finite() { 0.0 } else { f64::NAN },
        }
    }

    /// Combines two parts as Chan, Golub and LeVeque do (Updating Formulae and a Pairwise Algorithm for Computing
    /// Sample Variances, 1979).
    fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        if self.count == 0 || other.count == 0 {
            return if other.count == 0 { self } else { other };
        }
        let apart = other.mean - self.mean;
        let share = other.count as f64 / count as f64;
        Self {
            count,
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart * apart * share * self.count as f64,
        }
    }
}

impl Moments {
    pub(super) fn population(self) -> Option<f64> {
        (self.count > 0).then(|| self.squares / self.count as f64)
    }

    pub(super) fn sample(self) -> Option<f64> {
        (self.count > 1).then(|| self.squares / (self.count - 1) as f64)
    }

    pub(super) fn population_deviation(self) -> Option<f64> {
        self.population().map(f64::sqrt)
    }

    pub(super) fn sample_deviation(self) -> Option<f64> {
        self.sample().map(f64::sqrt)
    }
}

/// Rows of a frame with their aggregate states.
#[derive(Debug)]
pub(super) struct Stacks<P> {
    value: fn(P) -> Option<f64>,
    back: Vec<P>,
    of_back: P,
    /// States from each row on; the last is the oldest row's.
    front: Vec<P>,
}

impl<P: Part> Stacks<P> {
    /// Creates the stacks of an empty frame.
    pub(super) fn new(value: fn(P) -> Option<f64>) -> Self {
        Self {
            value,
            back: vec![],
            of_back: P::default(),
            front: vec![],
        }
    }
}

impl<P: Part> Accumulator for Stacks<P> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else {
            return internal_err!("an aggregate of nothing");
        };
        let values = cast(values, &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>() {
            let row = value.map_or_else(P::default, P::of);
            self.of_back = self.of_back.and(row);
            self.back.push(row);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let leaving = values.first().map_or(0, |column| column.len());
        for _ in 0..leaving {
            if self.front.is_empty() {
                let mut from_there = P::default();
                for row in self.back.drain(..).rev() {
                    from_there = row.and(from_there);
                    self.front.push(from_there);
                }
                self.of_back = P::default();
            }
            self.front.pop();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let front = self.front.last().copied().unwrap_or_default();
        let value = (self.value)(front.and(self.of_back));
        Ok(ScalarValue::Float64(value))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is computed in one step")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is computed in one step")
    }

    fn size(&self) -> usize {
        size_of::<Self>() + (self.back.capacity() + self.front.capacity()) * size_of::<P>()
    }
}
