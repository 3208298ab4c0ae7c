//! Products of matrices in host memory.
//!
//! The method is that of Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication", in the terms
//! of BLIS: blocks of both matrices are [packed](pack) into micro-panels, which a [micro-kernel](kernel) reads from
//! beginning to end while it keeps a tile of the product in registers.
//!
//! It is tuned for a rank's products: batches of a hundred rows and more by weights that fill the second-level cache
//! several times over. With a hundred rows, a weight is used only a hundred times, so the cost of fetching and packing
//! it matters: each micro-panel of weights is packed just before its use, in memory that stays in the first-level cache,
//! and the next one's weights are prefetched meanwhile, a line every few depths, because a processor has few misses in
//! flight. Transposed matrices are packed in vectors.
//!
//! Each thread computes a block of the product. Every number is summed in the same order, whatever its block.
//!
//! Factors may be [rounded](Factors) where they are packed. Processors with instructions for bfloat16 multiply in it, which
//! is faster; on others, rounding only costs time. Sums are `f32`.
//!
//! This is not a linear algebra library: no type but `f32`, no strides but a row's length.

mod kernel;
mod pack;

use std::ops::Range;

pub(super) use kernel::prefetch;
use kernel::{Base, Block, Portable, Processor, Tile};
use pack::{Lines, Source};
use parking_lot::Mutex;

use crate::device::Factors;
use crate::threads::Threads;

/// Depth of a block, which is summed in registers: a micro-panel of the right-hand matrix, 16 KiB with AVX2, must fit
/// half the first-level cache.
const KC: usize = 256;
/// Rows of a block of the left-hand matrix, which must fit half a second-level cache of 512 KiB.
const MC: usize = 240;
/// Columns of a block of the right-hand matrix, which must fit the third-level cache, in 4 MiB.
const NC: usize = 4096;

/// Numbers in a cache line.
const LINE: usize = 16;

/// Minimum number of multiply-adds that are worth another thread: a few microseconds.
/// Tests split small products too.
const WORTH: usize = if cfg!(test) { 1 << 8 } else { 1 << 17 };
/// Cost of packing a number, in multiply-adds.
const PACKING: usize = 8;

/// Matrix of `rows × columns` in row-major order, optionally read as its transpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    /// `data` holds the columns, one after the other.
    transposed: bool,
}

impl<'a> Matrix<'a> {
    /// # Panics
    /// If there are not `rows · columns` numbers.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "{rows} × {columns}");
        Self {
            data,
            rows,
            columns,
            transposed: false,
        }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            transposed: !self.transposed,
            ..self
        }
    }
}

/// Operation on a product where it is written: the epilogue, in the terms of BLIS.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Epilogue<'a> {
    /// Bias, added to every row.
    pub(crate) bias: Option<&'a [f32]>,
    /// ReLU, applied after the bias.
    pub(crate) relu: bool,
}

/// Precision of products, and memory of each thread for packed blocks, kept between products.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    factors: Factors,
    packed: Vec<Mutex<Packed>>,
}

/// Memory for packed blocks of both matrices.
#[derive(Debug, Default)]
struct Packed {
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Workspace {
    /// Creates a workspace for products of this precision.
    pub(crate) fn new(factors: Factors) -> Self {
        Self {
            factors,
            packed: Vec::new(),
        }
    }

    /// Computes `product = epilogue(a · b)`.
    ///
    /// # Panics
    /// If the sizes do not fit, or the inner size is 0.
    pub(crate) fn multiply(
        &mut self,
        threads: &Threads,
        product: &mut [f32],
        a: Matrix<'_>,
        b: Matrix<'_>,
        epilogue: Epilogue<'_>,
    ) {
        assert_eq!(a.columns, b.rows, "the inner sizes of a product");
        let (m, n) = (a.rows, b.columns);
        assert_eq!(product.len(), m * n, "a product of {m} × {n}");
        if let Some(bias) = epilogue.bias {
            assert_eq!(bias.len(), n, "a bias of {m} × {n}");
        }
        if product.is_empty() {
            return;
        }
        assert!(a.columns > 0, "a product of nothing");
        #[cfg(target_arch = "x86_64")]
        {
            // Sums take all registers except those for factors.
            let rounds = self.factors == Factors::Bf16;
            if let Some(processor) = kernel::Avx512Bf16::find().filter(|_| rounds) {
                return self.run::<_, 4, 8, 12, 32>(processor, threads, product, a, b, epilogue);
            }
            if let Some(processor) = kernel::Avx512::find() {
                return self.run::<_, 4, 8, 12, 32>(processor, threads, product, a, b, epilogue);
            }
            if let Some(processor) = kernel::Avx2::find() {
                return self.run::<_, 2, 4, 6, 16>(processor, threads, product, a, b, epilogue);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(processor) = kernel::Neon::find() {
            return self.run::<_, 4, 8, 12, 8>(processor, threads, product, a, b, epilogue);
        }
        self.run::<_, 2, 4, 6, 8>(Portable, threads, product, a, b, epilogue);
    }

    /// Computes the product, one block per thread.
    fn run<P, const LOW: usize, const MID: usize, const MR: usize, const NR: usize>(
        &mut self,
        processor: P,
        threads: &Threads,
        product: &mut [f32],
        a: Matrix<'_>,
        b: Matrix<'_>,
        epilogue: Epilogue<'_>,
    ) where
        P: Processor<MR, NR> + Sync,
    {
        let (m, n, k) = (a.rows, b.columns, a.columns);
        let [rows, columns] = grid(threads.count(), [m, n, k], [MR, NR]);
        let blocks = Block::split(product, n, &rows, &columns);
        self.packed.resize_with(threads.count(), Mutex::default);
        let (packed, factors) = (&self.packed, self.factors);
        threads.each_of(blocks, |thread, block| {
            let packed = &mut packed[thread].lock();
            packed.run::<P, LOW, MID, MR, NR>(processor, factors, block, a, b, epilogue);
        });
    }
}

impl Packed {
    /// Computes a block of the product in tiles of `MR × NR`. The lowest tiles may have `LOW` or `MID` rows.
    fn run<P, const LOW: usize, const MID: usize, const MR: usize, const NR: usize>(
        &mut self,
        processor: P,
        factors: Factors,
        mut block: Block<'_>,
        a: Matrix<'_>,
        b: Matrix<'_>,
        epilogue: Epilogue<'_>,
    ) where
        P: Processor<MR, NR>,
    {
        let (all_rows, all_columns) = (block.rows.clone(), block.columns.clone());
        let (m, n, k) = (all_rows.len(), all_columns.len(), a.columns);
        let (left, right) = (Source::of(a.transposed()), Source::of(b));
        let [mc, nc, kc] = [even(m, MC, MR), even(n, NC, NR), even(k, KC, 1)];
        // With one block of rows, each panel of the right-hand matrix is used at once, from the first-level cache.
        // With more, all panels of some depths are kept, so that a block of the product stays in cache meanwhile.
        let at_once = m <= mc;
        let depths = if at_once { 1 } else { KC * NC / (kc * nc) };
        let panels = if at_once { 1 } else { nc / NR };
        let left_panels = room::<MR>(&mut self.left, mc * kc);
        let right_panels = room::<NR>(
            &mut self.right,
            panels * NR * kc * depths.min(k.div_ceil(kc)),
        );
        let blocks = parts(all_columns, nc).flat_map(|columns| {
            parts(0..k, kc * depths).map(move |depth| (columns.clone(), depth))
        });
        for (columns, depths) in blocks {
            for rows in parts(all_rows.clone(), mc) {
                let is_first = rows.start == all_rows.start;
                let right_panels = right_panels.chunks_mut(panels * kc);
                for (depth, right_panels) in parts(depths.clone(), kc).zip(right_panels) {
                    let kc = depth.len();
                    let places = kc.div_ceil(P::SHARED);
                    let floor = match epilogue.relu && depth.end == k {
                        true => 0.0,
                        false => f32::NEG_INFINITY,
                    };
                    let panels = left_panels.chunks_exact_mut(kc);
                    for (lanes, panel) in parts(rows.clone(), MR).zip(panels) {
                        left.pack::<_, MR, NR, MR>(processor, lanes, depth.clone(), panel);
                        processor.round(panel, factors);
                    }
                    for (at, lanes) in parts(columns.clone(), NR).enumerate() {
                        let at = if at_once { 0 } else { at };
                        let (right_panel, others) = right_panels[at * kc..].split_at_mut(kc);
                        let base = match epilogue.bias {
                            _ if depth.start > 0 => Base::Place,
                            Some(bias) => Base::Row(&bias[lanes.clone()]),
                            None => Base::Nothing,
                        };
                        let next = if is_first {
                            right.pack::<_, MR, NR, NR>(
                                processor,
                                lanes.clone(),
                                depth.clone(),
                                right_panel,
                            );
                            processor.round(right_panel, factors);
                            let following = lanes.end..columns.end.min(lanes.end + NR);
                            right.lines(following, depth.clone())
                        } else {
                            Lines::of(others.get(..places).unwrap_or_default().as_flattened())
                        };
                        let mut next = next.over(rows.len().div_ceil(MR));
                        let panels = left_panels.chunks_exact(kc);
                        let right_panel = &right_panel[..places];
                        for (rows, left_panel) in parts(rows.clone(), MR).zip(panels) {
                            let left_panel = &left_panel[..places];
                            let (height, width) = (rows.len(), lanes.len());
                            let mut to = block.tile(rows, lanes.clone());
                            let tile = match height {
                                _ if height <= LOW => P::tile::<LOW>,
                                _ if height <= MID => P::tile::<MID>,
                                _ => P::tile::<MR>,
                            };
                            let next = &mut next;
                            if width == NR && [LOW, MID, MR].contains(&height) {
                                tile(processor, left_panel, right_panel, to, base, floor, next);
                                continue;
                            }
                            // A partial tile is computed as a whole one, in its own memory.
                            let mut whole = [[0.0; NR]; MR];
                            for (row, whole) in whole.iter_mut().enumerate().take(height) {
                                match base {
                                    Base::Nothing => {}
                                    Base::Place => whole[..width].copy_from_slice(to.row(row)),
                                    Base::Row(base) => whole[..width].copy_from_slice(base),
                                }
                            }
                            let place = Tile::of(&mut whole);
                            let base = Base::Place;
                            tile(processor, left_panel, right_panel, place, base, floor, next);
                            for (row, from) in whole.iter().enumerate().take(height) {
                                to.row(row).copy_from_slice(&from[..width]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the rows and columns of the blocks of a product of `m × k` by `k × n`, for at most this many threads, such
/// that the largest block takes the least time.
fn grid(threads: usize, [m, n, k]: [usize; 3], [mr, nr]: [usize; 2]) -> [Vec<Range<usize>>; 2] {
    let most = threads.min(m * n * k / WORTH).max(1);
    let block = |whole: usize, parts: usize, unit: usize| {
        let units = whole.div_ceil(unit);
        units.div_ceil(parts) * unit
    };
    let time = |by_rows: usize| {
        let rows = block(m, by_rows, mr);
        let columns = block(n, most / by_rows, nr);
        rows * columns + PACKING * (rows + columns)
    };
    let by_rows = (1..=most).min_by_key(|by_rows| time(*by_rows)).unwrap_or(1);
    let rows = parts(0..m, block(m, by_rows, mr));
    let columns = parts(0..n, block(n, most / by_rows, nr));
    [rows.collect(), columns.collect()]
}

/// Splits a range into parts of a length; the last may be shorter.
fn parts(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(len)
        .map(move |start| start..end.min(start + len))
}

/// Returns a length for about equal parts of `whole`: at most `most`, and a multiple of `unit`.
fn even(whole: usize, most: usize, unit: usize) -> usize {
    let parts = whole.div_ceil(most).max(1);
    whole.div_ceil(parts).next_multiple_of(unit)
}

/// Returns memory for `len` numbers, a multiple of the lanes, aligned to a cache line.
fn room<const LANES: usize>(memory: &mut Vec<f32>, len: usize) -> &mut [[f32; LANES]] {
    let needed = len + LINE;
    if memory.len() < needed {
        memory.resize(needed, 0.0);
    }
    let start = memory
        .as_ptr()
        .align_offset(LINE * size_of::<f32>())
        .min(LINE);
    memory[start..][..len].as_chunks_mut().0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers whose sums are exact.
    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len)
            .map(|at| ((at * 7 + seed) % 13) as f32 - 6.0)
            .collect()
    }

    fn transpose(data: &[f32], columns: usize) -> Vec<f32> {
        let column = |at| data.iter().skip(at).step_by(columns);
        (0..columns).flat_map(column).copied().collect()
    }

    type Multiply = fn(&mut Workspace, &Threads, &mut [f32], Matrix<'_>, Matrix<'_>, Epilogue<'_>);

    /// Returns each kind of processor that this one supports.
    fn processors() -> Vec<(&'static str, Multiply)> {
        let mut all: Vec<(&str, Multiply)> =
            vec![("portable", |workspace, threads, product, a, b, epilogue| {
                workspace.run::<_, 2, 4, 6, 8>(Portable, threads, product, a, b, epilogue);
            })];
        #[cfg(target_arch = "aarch64")]
        if kernel::Neon::find().is_some() {
            all.push(("neon", |workspace, threads, product, a, b, epilogue| {
                let processor = kernel::Neon::find().expect("it was there");
                workspace.run::<_, 4, 8, 12, 8>(processor, threads, product, a, b, epilogue);
            }));
        }
        #[cfg(target_arch = "x86_64")]
        {
            if kernel::Avx2::find().is_some() {
                all.push(("avx2", |workspace, threads, product, a, b, epilogue| {
                    let processor = kernel::Avx2::find().expect("it was there");
                    workspace.run::<_, 2, 4, 6, 16>(processor, threads, product, a, b, epilogue);
                }));
            }
            if kernel::Avx512::find().is_some() {
                all.push(("avx512", |workspace, threads, product, a, b, epilogue| {
                    let processor = kernel::Avx512::find().expect("it was there");
                    workspace.run::<_, 4, 8, 12, 32>(processor, threads, product, a, b, epilogue);
                }));
            }
            if kernel::Avx512Bf16::find().is_some() {
                all.push((
                    "avx512bf16",
                    |workspace, threads, product, a, b, epilogue| {
                        let processor = kernel::Avx512Bf16::find().expect("it was there");
                        workspace
                            .run::<_, 4, 8, 12, 32>(processor, threads, product, a, b, epilogue);
                    },
                ));
            }
        }
        all
    }

    #[test]
    fn every_size_and_order_of_every_processor() {
        let sizes = [
            [1, 1, 1],
            [1, 500, 1],
            [7, 3, 1],
            [100, 198, 50],
            [100, 257, 33],
            [13, 100, 65],
            [MC + 1, KC + 9, 17],
            [3, 5, NC + 7],
        ];
        let threads = [1, 3].map(|count| Threads::start(count.try_into().unwrap()));
        for ((name, multiply), threads) in processors().into_iter().zip(threads.iter().cycle()) {
            let mut workspace = Workspace::default();
            for [m, k, n] in sizes {
                let (a, b) = (numbers(m * k, 1), numbers(k * n, 5));
                let (a_t, b_t) = (transpose(&a, k), transpose(&b, n));
                let plain: Vec<f32> = (0..m * n)
                    .map(|at| (0..k).map(|i| a[at / n * k + i] * b[i * n + at % n]).sum())
                    .collect();
                let bias = numbers(n, 3);
                let lefts = [Matrix::new(&a, m, k), Matrix::new(&a_t, k, m).transposed()];
                let rights = [Matrix::new(&b, k, n), Matrix::new(&b_t, n, k).transposed()];
                for (a, b) in lefts.into_iter().flat_map(|a| rights.map(|b| (a, b))) {
                    let mut product = vec![f32::NAN; m * n];
                    multiply(
                        &mut workspace,
                        threads,
                        &mut product,
                        a,
                        b,
                        Epilogue::default(),
                    );
                    assert!(product == plain, "{name}, {m} × {k} × {n}");
                    let biased = Epilogue {
                        bias: Some(&bias),
                        relu: false,
                    };
                    multiply(&mut workspace, threads, &mut product, a, b, biased);
                    let sums = || plain.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b);
                    assert!(
                        product.iter().copied().eq(sums()),
                        "{name}, {m} × {k} × {n}, a bias"
                    );
                    let relu = Epilogue {
                        relu: true,
                        ..biased
                    };
                    multiply(&mut workspace, threads, &mut product, a, b, relu);
                    let positive = sums().map(|x| x.max(0.0));
                    assert!(
                        product.iter().copied().eq(positive),
                        "{name}, {m} × {k} × {n}, ReLU"
                    );
                }
            }
        }
    }

    /// Inexact sums reveal their order.
    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let [m, k, n] = [101, 700, 333];
        let numbers = |len: usize| (0..len).map(|at| (at as f32).sin()).collect::<Vec<_>>();
        let (a, b) = (numbers(m * k), numbers(k * n));
        let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
        for (name, multiply) in processors() {
            let product = |threads: usize| {
                let threads = Threads::start(threads.try_into().unwrap());
                let mut product = vec![0.0; m * n];
                let mut workspace = Workspace::default();
                multiply(
                    &mut workspace,
                    &threads,
                    &mut product,
                    a,
                    b,
                    Epilogue::default(),
                );
                product
            };
            let alone = product(1);
            for threads in [2, 3, 7, 16] {
                assert!(product(threads) == alone, "{name}, {threads} threads");
            }
        }
    }

    /// The reference rounds the factors first, and sums in `f64`.
    #[test]
    fn factors_are_rounded_to_their_precision() {
        for [m, k, n] in [[7, 33, 40], [101, 700, 33], [MC + 1, KC + 1, 5]] {
            let numbers = |len: usize, shift: f32| {
                let numbers = (0..len).map(|at| (at as f32 + shift).sin());
                numbers.collect::<Vec<_>>()
            };
            let (a, b) = (numbers(m * k, 0.0), numbers(k * n, 0.5));
            let products = [Factors::F32, Factors::Tf32, Factors::Bf16].map(|factors| {
                let rounded = |numbers: &[f32]| {
                    let mut rounded = numbers.to_vec();
                    factors.round(&mut rounded);
                    rounded
                };
                let (x, y) = (rounded(&a), rounded(&b));
                let due = (0..m * n).map(|at| {
                    let terms = (0..k).map(|i| (x[at / n * k + i], y[i * n + at % n]));
                    terms.map(|(x, y)| f64::from(x) * f64::from(y)).sum::<f64>()
                });
                let mut product = vec![0.0; m * n];
                Workspace::new(factors).multiply(
                    &Threads::default(),
                    &mut product,
                    Matrix::new(&a, m, k),
                    Matrix::new(&b, k, n),
                    Epilogue::default(),
                );
                for (found, due) in product.iter().zip(due) {
                    let apart = (f64::from(*found) - due).abs();
                    assert!(
                        apart < 1e-6 * k as f64,
                        "{factors:?}, {k}: {found}, not {due}"
                    );
                }
                product
            });
            let [exact, tf32, bf16] = &products;
            assert!(exact != tf32 && tf32 != bf16);
        }
    }

    #[test]
    fn a_product_is_split_where_parts_are_even() {
        let ends = |threads, size| {
            let parts = grid(threads, size, [12, 32]);
            parts.map(|parts| parts.iter().map(|part| part.end).collect::<Vec<_>>())
        };
        assert_eq!(ends(2, [100, 1000, 500]), [vec![100], vec![512, 1000]]);
        assert_eq!(ends(2, [1000, 64, 500]), [vec![504, 1000], vec![64]]);
        // Waking a thread takes longer than this product.
        assert_eq!(ends(2, [3, 5, 7]), [[3], [5]]);
    }

    #[test]
    fn what_is_no_number_is_not_hidden() {
        for (name, multiply) in processors() {
            let (a, b) = ([f32::NAN, 1.0], [1.0]);
            let (a, b) = (Matrix::new(&a, 2, 1), Matrix::new(&b, 1, 1));
            let epilogue = Epilogue {
                bias: None,
                relu: true,
            };
            let mut product = [0.0; 2];
            multiply(
                &mut Workspace::default(),
                &Threads::default(),
                &mut product,
                a,
                b,
                epilogue,
            );
            assert!(product[0].is_nan() && product[1] == 1.0, "{name}");
        }
    }

    #[test]
    fn products_without_rows() {
        let (a, b) = (Matrix::new(&[], 0, 3), Matrix::new(&[0.0; 6], 3, 2));
        Workspace::default().multiply(&Threads::default(), &mut [], a, b, Epilogue::default());
    }

    #[test]
    #[should_panic(expected = "inner sizes")]
    fn sizes_that_do_not_fit() {
        let [a, b] = [[0.0; 6], [0.0; 6]];
        let (a, b) = (Matrix::new(&a, 2, 3), Matrix::new(&b, 2, 3));
        Workspace::default().multiply(
            &Threads::default(),
            &mut [0.0; 6],
            a,
            b,
            Epilogue::default(),
        );
    }
}
