//! Products of matrices in host memory, on the calling thread.

/// A matrix of `rows × columns` in row-major order, perhaps read as its transpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    /// Distance between elements of a row, and between rows.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// # Panics
    /// If there are not `rows · columns` numbers.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "{rows} × {columns}");
        Self {
            data,
            rows,
            columns,
            strides: [1, columns],
        }
    }

    pub(super) fn transposed(self) -> Self {
        let [within, between] = self.strides;
        Self {
            rows: self.columns,
            columns: self.rows,
            strides: [between, within],
            ..self
        }
    }
}

/// What becomes of the numbers that are in the place of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// The product replaces them.
    Replace,
    /// The product is added to them.
    Add,
}

/// `product = a · b`, or `product += a · b`.
///
/// # Panics
/// If the sizes do not fit.
pub(super) fn multiply(product: &mut [f32], into: Into, a: Matrix<'_>, b: Matrix<'_>) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "the inner sizes of a product");
    assert_eq!(product.len(), m * n, "a product of {m} × {n}");
    let stride = |stride: usize| isize::try_from(stride).expect("a slice's length fits");
    let ([a_within, a_between], [b_within, b_between]) =
        (a.strides.map(stride), b.strides.map(stride));
    let add = into == Into::Add;
    // SAFETY: the matrices' constructor and the assertions above bound every index by the slices'
    // lengths, and `product` is borrowed mutably, so that it overlaps neither of the others.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            product.as_mut_ptr(),
            1,
            stride(n),
            add,
            a.data.as_ptr(),
            a_within,
            a_between,
            b.data.as_ptr(),
            b_within,
            b_between,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_transposes_and_sums() {
        let a: Vec<f32> = (0_u8..6).map(f32::from).collect(); // 2 × 3
        let b: Vec<f32> = (0_u8..12).map(f32::from).collect(); // 3 × 4
        let expected = [20.0, 23.0, 26.0, 29.0, 56.0, 68.0, 80.0, 92.0];
        let mut product = vec![f32::NAN; 8];
        let (a_2x3, b_3x4) = (Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 4));
        multiply(&mut product, Into::Replace, a_2x3, b_3x4);
        assert_eq!(product, expected);
        multiply(&mut product, Into::Add, a_2x3, b_3x4);
        assert_eq!(product, expected.map(|x| 2.0 * x));
        // (a · b)ᵀ = bᵀ · aᵀ
        multiply(
            &mut product,
            Into::Replace,
            b_3x4.transposed(),
            a_2x3.transposed(),
        );
        let transposed: Vec<f32> = (0..4)
            .flat_map(|n| [expected[n], expected[n + 4]])
            .collect();
        assert_eq!(product, transposed);
    }

    #[test]
    #[should_panic(expected = "inner sizes")]
    fn sizes_that_do_not_fit() {
        let [a, b] = [[0.0; 6], [0.0; 6]];
        let (a, b) = (Matrix::new(&a, 2, 3), Matrix::new(&b, 2, 3));
        multiply(&mut [0.0; 6], Into::Replace, a, b);
    }
}
