//! Second-order interactions of a factorization machine (Rendle 2010, doi:10.1109/ICDM.2010.127), by its linear-time
//! equation.
//!
//! Output k is `½ Σ_f (s² − q)`, with `s = Σ_i v_if·x_i` and `q = Σ_i (v_if·x_i)²` over inputs i, which are codes,
//! whose x is 1, and numbers. Rows of factors are `[K × F]`.

/// Inputs of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// K
    pub(super) outputs: usize,
    /// F
    pub(super) factors: usize,
    /// B
    pub(super) rows: usize,
    /// `[B × C × K·F]`
    pub(super) codes: Option<&'a [f32]>,
    /// `[B × N]`, with their factors, `[N × K·F]`.
    pub(super) numbers: Option<(&'a [f32], &'a [f32])>,
}

impl Of<'_> {
    /// Returns the length of a row of factors.
    fn width(&self) -> usize {
        self.outputs * self.factors
    }

    fn row<'b>(&self, all: &'b [f32], row: usize) -> &'b [f32] {
        let len = all.len() / self.rows;
        &all[row * len..(row + 1) * len]
    }

    /// Computes the sums s and the sums q of a row.
    fn sums(&self, row: usize) -> [Vec<f32>; 2] {
        let width = self.width();
        let mut sums = [vec![0.0; width], vec![0.0; width]];
        let mut add = |factors: &[f32], x: f32| {
            let [s, q] = &mut sums;
            for ((s, q), v) in s.iter_mut().zip(q).zip(factors) {
                let term = v * x;
                *s += term;
                *q += term * term;
            }
        };
        if let Some(codes) = self.codes {
            let factors = self.row(codes, row).chunks_exact(width);
            factors.for_each(|factors| add(factors, 1.0));
        }
        if let Some((numbers, factors)) = self.numbers {
            let numbers = self.row(numbers, row).iter();
            let terms = numbers.zip(factors.chunks_exact(width));
            terms.for_each(|(x, factors)| add(factors, *x));
        }
        sums
    }

    /// Computes `y`, `[B × K]`.
    pub(super) fn forward(&self, y: &mut [f32]) {
        for (row, y) in y.chunks_exact_mut(self.outputs).enumerate() {
            let [s, q] = self.sums(row);
            let of_outputs = s
                .chunks_exact(self.factors)
                .zip(q.chunks_exact(self.factors));
            for (y, (s, q)) in y.iter_mut().zip(of_outputs) {
                let terms = s.iter().zip(q).map(|(s, q)| s * s - q);
                *y = 0.5 * terms.sum::<f32>();
            }
        }
    }

    /// Computes the gradients by the inputs from that by the outputs, `dy`, `[B × K]`, and by numbers' factors if
    /// wanted.
    pub(super) fn backward(
        &self,
        dy: &[f32],
        mut by_codes: Option<&mut [f32]>,
        mut by_numbers: Option<&mut [f32]>,
        mut by_factors: Option<&mut [f32]>,
    ) {
        let (factors, width) = (self.factors, self.width());
        if let Some(sums) = &mut by_factors {
            sums.fill(0.0);
        }
        for (row, dy) in dy.chunks_exact(self.outputs).enumerate() {
            let [s, _] = self.sums(row);
            let slope = |at: usize| dy[at / factors];
            if let (Some(codes), Some(by)) = (self.codes, &mut by_codes) {
                let len = by.len() / self.rows;
                let by = by[row * len..(row + 1) * len].chunks_exact_mut(width);
                for (by, v) in by.zip(self.row(codes, row).chunks_exact(width)) {
                    for (at, (by, v)) in by.iter_mut().zip(v).enumerate() {
                        *by = slope(at) * (s[at] - v);
                    }
                }
            }
            let (Some((numbers, v)), Some(by)) = (self.numbers, &mut by_numbers) else {
                continue;
            };
            let len = by.len() / self.rows;
            let by = by[row * len..(row + 1) * len].iter_mut();
            for (number, (by, x)) in by.zip(self.row(numbers, row)).enumerate() {
                let places = number * width..(number + 1) * width;
                *by = 0.0;
                for (at, v) in v[places.clone()].iter().enumerate() {
                    let rest = slope(at) * (s[at] - v * x);
                    *by += rest * v;
                    if let Some(sums) = &mut by_factors {
                        sums[places.start + at] += rest * x;
                    }
                }
            }
        }
    }
}
