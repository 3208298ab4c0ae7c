//! Kernel launches: their grids, and their arguments in the order in which `kernels.cu` reads them.

use crate::device::{Address, Launch, Runtime, Words, Work};

/// Value of a batch, or the gradient by it: `[M × B × W]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tensor {
    pub(super) at: Address,
    /// Row stride, in numbers.
    pub(super) ld: usize,
    /// Lane stride, in numbers; 0 where lanes share the tensor.
    pub(super) lane: usize,
    pub(super) width: usize,
    pub(super) lanes: usize,
}

impl Tensor {
    /// Placeholder for an absent tensor.
    pub(super) const NONE: Self = Self {
        at: 0,
        ld: 0,
        lane: 0,
        width: 0,
        lanes: 1,
    };

    /// Lays out `[M × B × W]` with this row stride.
    pub(super) fn new(at: Address, [lanes, rows, width]: [usize; 3], ld: usize) -> Self {
        Self {
            at,
            ld,
            lane: if lanes > 1 { rows * ld } else { 0 },
            width,
            lanes,
        }
    }

    /// Returns its rows from `row` on.
    pub(super) fn rows_from(self, row: usize) -> Self {
        Self {
            at: self.at + 4 * (row * self.ld) as u64,
            ..self
        }
    }

    /// Returns some of its columns.
    pub(super) fn columns(self, first: usize, width: usize) -> Self {
        Self {
            at: self.at + 4 * first as u64,
            width,
            ..self
        }
    }
}

/// Arguments of a kernel.
#[derive(Debug, Default)]
pub(super) struct Arguments(Vec<u64>);

impl Arguments {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn address(mut self, at: Address) -> Self {
        self.0.push(at);
        self
    }

    pub(super) fn number(mut self, number: usize) -> Self {
        self.0.push(number as u64);
        self
    }

    pub(super) fn flag(self, flag: bool) -> Self {
        self.number(usize::from(flag))
    }

    pub(super) fn real(mut self, real: f32) -> Self {
        self.0.push(u64::from(real.to_bits()));
        self
    }

    pub(super) fn precise(mut self, precise: f64) -> Self {
        self.0.push(precise.to_bits());
        self
    }

    pub(super) fn tensor(self, tensor: Tensor) -> Self {
        let Tensor { at, ld, lane, .. } = tensor;
        self.address(at).number(ld).number(lane)
    }
}

/// Grid sizes of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Threads per block.
    pub(super) threads: usize,
    /// Number of blocks that keeps the device busy.
    pub(super) blocks: usize,
}

impl Grid {
    pub(super) fn of(runtime: &dyn Runtime) -> Self {
        Self {
            threads: runtime.threads() as usize,
            blocks: runtime.blocks() as usize,
        }
    }

    pub(super) fn launch(self, kernel: &'static str, blocks: usize, arguments: Arguments) -> Work {
        Work::Launch(Launch {
            kernel,
            blocks: blocks.max(1) as u32,
            threads: self.threads as u32,
            words: Words::new(&arguments.0),
        })
    }

    /// Launches a kernel whose threads each compute some columns of a row.
    pub(super) fn rows(
        self,
        kernel: &'static str,
        [rows, lanes, width]: [usize; 3],
        arguments: Arguments,
    ) -> Work {
        let shift = width.next_power_of_two().min(self.threads).ilog2();
        let blocks = (rows * lanes).div_ceil(self.threads >> shift);
        let first = Arguments::new().number(rows).number(lanes);
        let first = first.number(shift as usize).number(width);
        self.launch(kernel, blocks, first.then(arguments))
    }

    /// Launches a kernel whose threads each compute a column of `chunk` rows.
    pub(super) fn columns(
        self,
        kernel: &'static str,
        [rows, lanes, width]: [usize; 3],
        chunk: usize,
        arguments: Arguments,
    ) -> Work {
        let threads = rows.div_ceil(chunk) * lanes * width;
        let first = Arguments::new().number(rows).number(lanes);
        let first = first.number(chunk).number(width);
        self.launch(
            kernel,
            threads.div_ceil(self.threads),
            first.then(arguments),
        )
    }

    /// Launches a kernel with a block for each row.
    pub(super) fn block_a_row(
        self,
        kernel: &'static str,
        [rows, lanes, width]: [usize; 3],
        arguments: Arguments,
    ) -> Work {
        let first = Arguments::new().number(rows).number(lanes);
        let first = first.number(0).number(width);
        self.launch(kernel, rows * lanes, first.then(arguments))
    }
}

impl Arguments {
    pub(super) fn then(mut self, mut others: Self) -> Self {
        self.0.append(&mut others.0);
        self
    }
}
