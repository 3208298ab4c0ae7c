//! The micro-kernels: the inner loops, for each kind of processor.
//!
//! Where a processor multiplies in bfloat16 itself, a place of a panel holds the numbers of two depths.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use super::pack::Lines;
use crate::device::Factors;

/// Block of a row-major matrix, written by one thread while others write other blocks.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// Start of the matrix.
    ///
    /// Invariant: nothing but this block refers to the numbers of its rows and columns, all of which are in the matrix.
    start: *mut f32,
    /// Row length of the matrix.
    stride: usize,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a block is equivalent to a mutable reference to its numbers, which is `Send`.
unsafe impl Send for Block<'_> {}

impl<'a> Block<'a> {
    /// Splits a matrix with rows of length `stride` into the blocks of these rows and columns.
    ///
    /// # Panics
    /// If parts overlap, or are outside the matrix.
    pub(super) fn split(
        matrix: &'a mut [f32],
        stride: usize,
        rows: &[Range<usize>],
        columns: &[Range<usize>],
    ) -> Vec<Self> {
        for (parts, end) in [(rows, matrix.len() / stride), (columns, stride)] {
            let ends = parts.iter().scan(0, |end, part| {
                let before = std::mem::replace(end, part.end);
                Some(before <= part.start && part.start <= part.end)
            });
            assert!(ends.fold(true, |all, apart| all & apart), "parts overlap");
            assert!(
                parts.last().is_none_or(|last| last.end <= end),
                "a part's end"
            );
        }
        let start = matrix.as_mut_ptr();
        let block = |rows: &Range<usize>, columns: &Range<usize>| Self {
            start,
            stride,
            rows: rows.clone(),
            columns: columns.clone(),
            matrix: PhantomData,
        };
        let all = rows
            .iter()
            .flat_map(|rows| columns.iter().map(move |columns| block(rows, columns)));
        all.collect()
    }

    /// Returns a tile of the block.
    ///
    /// # Panics
    /// If the tile is empty or not within the block.
    pub(super) fn tile(&mut self, rows: Range<usize>, columns: Range<usize>) -> Tile<'_> {
        for (whole, part) in [(&self.rows, &rows), (&self.columns, &columns)] {
            assert!(whole.start <= part.start && part.start < part.end && part.end <= whole.end);
        }
        Tile {
            // SAFETY: the matrix has these rows and columns.
            start: unsafe { self.start.add(rows.start * self.stride + columns.start) },
            stride: self.stride,
            height: rows.len(),
            width: columns.len(),
            block: PhantomData,
        }
    }
}

/// Tile of a row-major matrix.
#[derive(Debug)]
pub(super) struct Tile<'a> {
    /// Invariant: nothing else refers to the numbers of the tile.
    start: *mut f32,
    stride: usize,
    height: usize,
    width: usize,
    block: PhantomData<&'a mut f32>,
}

impl<'a> Tile<'a> {
    /// Returns a tile of consecutive rows.
    pub(super) fn of<const WIDTH: usize>(rows: &'a mut [[f32; WIDTH]]) -> Self {
        Self {
            height: rows.len(),
            start: rows.as_mut_ptr().cast(),
            stride: WIDTH,
            width: WIDTH,
            block: PhantomData,
        }
    }

    /// # Panics
    /// If the tile has no such row.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.height);
        // SAFETY: the row is in the tile.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.width) }
    }
}

/// Addend of a tile's sums.
#[derive(Debug, Clone, Copy)]
pub(super) enum Base<'a> {
    Nothing,
    /// Current numbers of the tile.
    Place,
    /// One row, added to each row of the tile.
    Row(&'a [f32]),
}

/// Kind of processor, detected at run time, with tiles of up to `MR × NR`.
pub(super) trait Processor<const MR: usize, const NR: usize>: Copy {
    /// Number of depths of a lane that share a place of a micro-panel, once it is [rounded](Self::round).
    const SHARED: usize = 1;

    /// Rounds a packed panel to the precision of factors. Where depths share places, those of the panel's beginning are
    /// used.
    fn round<const LANES: usize>(self, panel: &mut [[f32; LANES]], factors: Factors) {
        factors.round(panel.as_flattened_mut());
    }

    /// Replaces a tile by the product of two micro-panels, of the left one's first `H` lanes, plus the base, but at
    /// least `floor`. NaN stays NaN.
    ///
    /// # Panics
    /// If the panels differ in depth, or the tile or the base is too small.
    fn tile<const H: usize>(
        self,
        left: &[[f32; MR]],
        right: &[[f32; NR]],
        into: Tile<'_>,
        base: Base<'_>,
        floor: f32,
        next: &mut Lines<'_>,
    );

    /// Writes the columns of these rows as rows.
    ///
    /// # Panics
    /// If a row is shorter than the panel's depth.
    fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]);
}

/// Vector register of numbers.
///
/// # Safety
/// All functions require a processor with such registers, and must be inlined where the compiler knows that.
trait Vector: Copy {
    const LEN: usize;

    unsafe fn splat(number: f32) -> Self;

    /// # Safety
    /// All its numbers must be readable at `from`.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// All its numbers must be writable at `to`.
    unsafe fn store(self, to: *mut f32);

    unsafe fn add(self, other: Self) -> Self;

    /// Returns the larger of each two numbers; NaN in `self` stays NaN.
    unsafe fn at_least(self, floor: Self) -> Self;

    /// Returns `self + a · b`.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
}

/// Implements [`Processor::tile`], two vectors wide.
///
/// # Safety
/// The same as for `Vector`.
#[inline(always)]
unsafe fn tile<V: Vector, const H: usize, const MR: usize, const NR: usize>(
    left: &[[f32; MR]],
    right: &[[f32; NR]],
    into: Tile<'_>,
    base: Base<'_>,
    floor: f32,
    next: &mut Lines<'_>,
) {
    const { assert!(0 < H && H <= MR && NR == 2 * V::LEN) }
    assert_eq!(left.len(), right.len(), "the depth of panels");
    assert!(into.height >= H && into.width >= NR, "a tile's end");
    let stride = into.stride;
    let base = match base {
        Base::Nothing => None,
        Base::Place => Some((into.start.cast_const(), stride)),
        Base::Row(row) => {
            assert!(row.len() >= NR, "a base's end");
            Some((row.as_ptr(), 0))
        }
    };
    for row in 0..H {
        prefetch(into.start.wrapping_add(row * stride));
        prefetch(into.start.wrapping_add(row * stride + NR - 1));
    }
    // SAFETY: the assertions bound the indices; the caller guarantees the rest.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; H];
        // Loop counters take one instruction in six: a fifth of the time if another thread shares the core.
        let (lefts, left) = left.as_chunks::<4>();
        let (rights, right) = right.as_chunks::<4>();
        let fetched = next.share().div_ceil(lefts.len().max(1));
        for (left, right) in lefts.iter().zip(rights) {
            next.prefetch(fetched);
            for (left, right) in left.iter().zip(right) {
                add_outer(&mut sums, left, right);
            }
        }
        for (left, right) in left.iter().zip(right) {
            add_outer(&mut sums, left, right);
        }
        if let Some((base, stride)) = base {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(base.add(row * stride + at * V::LEN)));
                }
            }
        }
        let floor = V::splat(floor);
        for (row, sums) in sums.iter().enumerate() {
            for (at, sum) in sums.iter().enumerate() {
                let to = into.start.add(row * stride + at * V::LEN);
                sum.at_least(floor).store(to);
            }
        }
    }
}

/// Writes [`Processor::tile`] of a processor that was detected, with vectors that need these of its features.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
macro_rules! tile_with {
    ($features:literal, $vector:ty, $rows:literal, $columns:literal) => {
        fn tile<const H: usize>(
            self,
            left: &[[f32; $rows]],
            right: &[[f32; $columns]],
            into: Tile<'_>,
            base: Base<'_>,
            floor: f32,
            next: &mut Lines<'_>,
        ) {
            #[target_feature(enable = $features)]
            fn detected<const H: usize>(
                left: &[[f32; $rows]],
                right: &[[f32; $columns]],
                into: Tile<'_>,
                base: Base<'_>,
                floor: f32,
                next: &mut Lines<'_>,
            ) {
                // SAFETY: the function enables the vector's features.
                unsafe { tile::<$vector, H, $rows, $columns>(left, right, into, base, floor, next) }
            }
            // SAFETY: the processor was detected.
            unsafe { detected::<H>(left, right, into, base, floor, next) }
        }
    };
}

/// Adds the product of a column and a row.
///
/// # Safety
/// The same as for `Vector`. The row is two vectors.
#[inline(always)]
unsafe fn add_outer<V: Vector, const H: usize, const MR: usize, const NR: usize>(
    sums: &mut [[V; 2]; H],
    left: &[f32; MR],
    right: &[f32; NR],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let right = right.as_ptr();
        let right = [V::load(right), V::load(right.add(V::LEN))];
        for (sums, left) in sums.iter_mut().zip(left) {
            let left = V::splat(*left);
            sums[0] = sums[0].add_product(left, right[0]);
            sums[1] = sums[1].add_product(left, right[1]);
        }
    }
}

/// Prefetches a number into the first-level cache, where the processor supports it.
#[inline(always)]
pub(in crate::network) fn prefetch<T>(number: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read; a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(number.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: nothing is read; a prefetch of any address is harmless.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) number, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = number;
}

/// Prefetches a number into the second-level cache, where the processor supports it.
#[inline(always)]
pub(super) fn prefetch_early(number: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nothing is read; a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(number.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: nothing is read; a prefetch of any address is harmless.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) number, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = number;
}

/// Any processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

impl Processor<6, 8> for Portable {
    fn tile<const H: usize>(
        self,
        left: &[[f32; 6]],
        right: &[[f32; 8]],
        into: Tile<'_>,
        base: Base<'_>,
        floor: f32,
        next: &mut Lines<'_>,
    ) {
        // SAFETY: the vectors are arrays, which any processor supports.
        unsafe { tile::<[f32; 4], H, 6, 8>(left, right, into, base, floor, next) }
    }

    fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
        transpose(rows, panel, |square| {
            std::array::from_fn(|column| square.map(|row| row[column]))
        });
    }
}

/// Implements [`Processor::transpose`], in squares of eight by eight.
#[inline(always)]
fn transpose<const LANES: usize>(
    rows: [&[f32]; LANES],
    panel: &mut [[f32; LANES]],
    square: impl Fn([&[f32; 8]; 8]) -> [[f32; 8]; 8],
) {
    let rows = rows.map(|row| row[..panel.len()].as_chunks::<8>());
    let whole = 8 * (panel.len() / 8);
    // Backwards: a square at the end of the lanes writes its excess into the first lanes of the next depths.
    for start in (0..LANES).step_by(8).rev() {
        // The last lane stands in for missing ones.
        let eight: [_; 8] = std::array::from_fn(|lane| rows[(start + lane).min(LANES - 1)]);
        let lanes = LANES.min(start + 8) - start;
        let flat = panel.as_flattened_mut();
        for at in 0..whole / 8 {
            let columns = square(eight.map(|(squares, _)| &squares[at]));
            let first = 8 * at * LANES + start;
            match flat.get_mut(first..first + 7 * LANES + 8) {
                Some(places) => {
                    for (at, column) in columns.iter().enumerate() {
                        places[at * LANES..][..8].copy_from_slice(column);
                    }
                }
                None => {
                    for (places, column) in flat[first..].chunks_mut(LANES).zip(&columns) {
                        places[..lanes].copy_from_slice(&column[..lanes]);
                    }
                }
            }
        }
    }
    for (at, panel) in panel[whole..].iter_mut().enumerate() {
        let lanes = panel.iter_mut().zip(rows);
        lanes.for_each(|(to, (_, rest))| *to = rest[at]);
    }
}

impl Vector for [f32; 4] {
    const LEN: usize = 4;

    #[inline(always)]
    unsafe fn splat(number: f32) -> Self {
        [number; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        std::array::from_fn(|at| self[at] + other[at])
    }

    #[inline(always)]
    unsafe fn at_least(self, floor: Self) -> Self {
        std::array::from_fn(|at| {
            if self[at] < floor[at] {
                floor[at]
            } else {
                self[at]
            }
        })
    }

    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|at| self[at] + a[at] * b[at])
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Avx512Bf16};

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;
    use std::arch::is_aarch64_feature_detected;

    use super::{Base, Lines, Processor, Tile, Vector, tile, transpose};

    /// Processor with 32 registers of 4 numbers. A value exists only where it was detected.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Neon(());

    impl Neon {
        pub(in super::super) fn find() -> Option<Self> {
            is_aarch64_feature_detected!("neon").then_some(Self(()))
        }
    }

    impl Processor<12, 8> for Neon {
        tile_with!("neon", float32x4_t, 12, 8);

        fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
            transpose(rows, panel, |square| {
                std::array::from_fn(|column| square.map(|row| row[column]))
            });
        }
    }

    // SAFETY: the caller guarantees each call.
    impl Vector for float32x4_t {
        const LEN: usize = 4;

        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            unsafe { vdupq_n_f32(number) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { vld1q_f32(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { vst1q_f32(to, self) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { vaddq_f32(self, other) }
        }

        #[inline(always)]
        unsafe fn at_least(self, floor: Self) -> Self {
            unsafe { vmaxq_f32(self, floor) }
        }

        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            unsafe { vfmaq_f32(self, a, b) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::is_x86_feature_detected as has;

    use super::{Base, Factors, Lines, Processor, Tile, Vector, tile, transpose};

    /// Processor with 16 registers of 8 numbers. A value exists only where it was detected.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Avx2(());

    /// Processor with 32 registers of 16 numbers. A value exists only where it was detected.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Avx512(Avx2);

    /// Processor that also multiplies pairs of numbers in bfloat16. A value exists only where it was detected.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Avx512Bf16(Avx512);

    /// Sixteen places: the sums are numbers, and each factor is a pair in bfloat16, the lower depth in the lower half.
    #[derive(Debug, Clone, Copy)]
    struct Pairs(__m512);

    impl Avx2 {
        pub(in super::super) fn find() -> Option<Self> {
            (has!("avx2") && has!("fma")).then_some(Self(()))
        }
    }

    impl Avx512 {
        pub(in super::super) fn find() -> Option<Self> {
            Avx2::find().filter(|_| has!("avx512f")).map(Self)
        }
    }

    impl Avx512Bf16 {
        pub(in super::super) fn find() -> Option<Self> {
            Avx512::find()
                .filter(|_| has!("avx512bf16") && has!("avx512bw"))
                .map(Self)
        }
    }

    impl Processor<6, 16> for Avx2 {
        tile_with!("avx2,fma", __m256, 6, 16);

        fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
            #[target_feature(enable = "avx")]
            fn avx<const LANES: usize>(rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
                transpose(rows, panel, |rows| square(rows));
            }
            // SAFETY: the processor was detected.
            unsafe { avx(rows, panel) }
        }
    }

    impl Processor<12, 32> for Avx512 {
        tile_with!("avx512f", __m512, 12, 32);

        fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
            #[target_feature(enable = "avx512f")]
            fn avx512<const LANES: usize>(rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
                let rows = rows.map(|row| &row[..panel.len()]);
                let (squares, rest) = panel.as_chunks_mut::<16>();
                for start in (0..LANES).step_by(16) {
                    let lanes = LANES.min(start + 16) - start;
                    let mask = u16::MAX >> (16 - lanes);
                    for (at, square) in squares.iter_mut().enumerate() {
                        let columns = square_of_16(std::array::from_fn(|lane| {
                            // The last lane stands in for missing ones.
                            let row = rows[(start + lane).min(LANES - 1)];
                            // SAFETY: each row is as long as the panel is deep.
                            unsafe { _mm512_loadu_ps(row.as_ptr().add(16 * at)) }
                        }));
                        for (to, column) in square.iter_mut().zip(columns) {
                            // SAFETY: the mask ends with the lanes.
                            unsafe {
                                _mm512_mask_storeu_ps(to.as_mut_ptr().add(start), mask, column);
                            }
                        }
                    }
                }
                let whole = 16 * squares.len();
                for (at, panel) in rest.iter_mut().enumerate() {
                    let lanes = panel.iter_mut().zip(rows);
                    lanes.for_each(|(to, row)| *to = row[whole + at]);
                }
            }
            // SAFETY: the processor was detected.
            unsafe { avx512(rows, panel) }
        }
    }

    impl Processor<12, 32> for Avx512Bf16 {
        const SHARED: usize = 2;

        fn round<const LANES: usize>(self, panel: &mut [[f32; LANES]], _: Factors) {
            #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
            fn avx512bf16<const LANES: usize>(panel: &mut [[f32; LANES]]) {
                // A number of the lower depth, then its neighbour in the same lane.
                let order: [u16; 32] = std::array::from_fn(|at| (at / 2 + 16 * (at % 2)) as u16);
                // SAFETY: the array has 32 numbers of 16 bits.
                let order = unsafe { _mm512_loadu_epi16(order.as_ptr().cast()) };
                for at in 0..panel.len().div_ceil(2) {
                    for start in (0..LANES).step_by(16) {
                        let lanes = LANES.min(start + 16) - start;
                        let mask = u16::MAX >> (16 - lanes);
                        let load = |depth: usize| match panel.get(depth) {
                            // SAFETY: the mask ends with the lanes.
                            Some(lanes) => unsafe {
                                _mm512_maskz_loadu_ps(mask, lanes.as_ptr().add(start))
                            },
                            None => _mm512_setzero_ps(),
                        };
                        let [low, high] = [2 * at, 2 * at + 1].map(load);
                        let both = _mm512_cvtne2ps_pbh(high, low);
                        // SAFETY: both types are 512 bits, whatever they mean.
                        let both = unsafe { std::mem::transmute::<__m512bh, __m512i>(both) };
                        let pairs = _mm512_permutexvar_epi16(order, both);
                        let to = panel[at].as_mut_ptr();
                        // SAFETY: the mask ends with the lanes.
                        unsafe {
                            _mm512_mask_storeu_ps(to.add(start), mask, _mm512_castsi512_ps(pairs));
                        }
                    }
                }
            }
            // SAFETY: the processor was detected.
            unsafe { avx512bf16(panel) }
        }

        tile_with!("avx512f,avx512bf16", Pairs, 12, 32);

        fn transpose<const LANES: usize>(self, rows: [&[f32]; LANES], panel: &mut [[f32; LANES]]) {
            self.0.transpose(rows, panel);
        }
    }

    // SAFETY: the caller guarantees each call.
    impl Vector for Pairs {
        const LEN: usize = 16;

        #[inline(always)]
        unsafe fn splat(number: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(number) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn at_least(self, floor: Self) -> Self {
            // The instruction returns its second operand where one is NaN.
            Self(unsafe { _mm512_max_ps(floor.0, self.0) })
        }

        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: both types are 512 bits, whatever they mean.
            unsafe {
                let [a, b] = [a, b].map(|factor| std::mem::transmute::<__m512, __m512bh>(factor.0));
                Self(_mm512_dpbf16_ps(self.0, a, b))
            }
        }
    }

    /// Transposes a square of sixteen by sixteen: squares of four within its rows, then those among each other.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn square_of_16(rows: [__m512; 16]) -> [__m512; 16] {
        let pairs = |a, b| {
            let [a, b] = [_mm512_castps_pd(a), _mm512_castps_pd(b)];
            let [low, high] = [_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)];
            [_mm512_castpd_ps(low), _mm512_castpd_ps(high)]
        };
        // Of each four rows, those columns that have the same remainder by four.
        let (fours, _) = rows.as_chunks::<4>();
        let quarters: [[__m512; 4]; 4] = std::array::from_fn(|at| {
            let [a, b, c, d] = fours[at];
            let [first, second] = pairs(_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let [third, fourth] = pairs(_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            [first, second, third, fourth]
        });
        let mut columns = [_mm512_setzero_ps(); 16];
        for at in 0..4 {
            let [a, b, c, d] = quarters.map(|quarter| quarter[at]);
            let even = [
                _mm512_shuffle_f32x4::<0x88>(a, b),
                _mm512_shuffle_f32x4::<0x88>(c, d),
            ];
            let odd = [
                _mm512_shuffle_f32x4::<0xDD>(a, b),
                _mm512_shuffle_f32x4::<0xDD>(c, d),
            ];
            columns[at] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
            columns[at + 4] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
            columns[at + 8] = _mm512_shuffle_f32x4::<0xDD>(even[0], even[1]);
            columns[at + 12] = _mm512_shuffle_f32x4::<0xDD>(odd[0], odd[1]);
        }
        columns
    }

    /// Transposes a square: pairs of rows, then pairs of pairs, then halves.
    #[target_feature(enable = "avx")]
    #[inline]
    fn square(rows: [&[f32; 8]; 8]) -> [[f32; 8]; 8] {
        // SAFETY: a row has eight numbers.
        let rows = rows.map(|row| unsafe { _mm256_loadu_ps(row.as_ptr()) });
        let half = |at: usize| {
            let [a, b, c, d] = [rows[at], rows[at + 1], rows[at + 2], rows[at + 3]];
            let low = [_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d)];
            let high = [_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d)];
            [
                _mm256_shuffle_ps::<0x44>(low[0], low[1]),
                _mm256_shuffle_ps::<0xEE>(low[0], low[1]),
                _mm256_shuffle_ps::<0x44>(high[0], high[1]),
                _mm256_shuffle_ps::<0xEE>(high[0], high[1]),
            ]
        };
        let (upper, lower) = (half(0), half(4));
        let mut columns = [[0.0; 8]; 8];
        for at in 0..4 {
            let left = _mm256_permute2f128_ps::<0x20>(upper[at], lower[at]);
            let right = _mm256_permute2f128_ps::<0x31>(upper[at], lower[at]);
            // SAFETY: a column has eight numbers.
            unsafe {
                _mm256_storeu_ps(columns[at].as_mut_ptr(), left);
                _mm256_storeu_ps(columns[at + 4].as_mut_ptr(), right);
            }
        }
        columns
    }

    macro_rules! vector {
        ($vector:ty, $len:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $max:ident, $fma:ident) => {
            // SAFETY: the caller guarantees each call.
            impl Vector for $vector {
                const LEN: usize = $len;

                #[inline(always)]
                unsafe fn splat(number: f32) -> Self {
                    unsafe { $splat(number) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    unsafe { $store(to, self) }
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                unsafe fn at_least(self, floor: Self) -> Self {
                    // The instruction returns its second operand where one is NaN.
                    unsafe { $max(floor, self) }
                }

                #[inline(always)]
                unsafe fn add_product(self, a: Self, b: Self) -> Self {
                    unsafe { $fma(a, b, self) }
                }
            }
        };
    }

    vector!(
        __m256,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_max_ps,
        _mm256_fmadd_ps
    );
    vector!(
        __m512,
        16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_max_ps,
        _mm512_fmadd_ps
    );
}
