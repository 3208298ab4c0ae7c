//! The interface of a device to a compiled plan: memory, kernels, products of matrices, and steps that are recorded once and
//! replayed.
//!
//! ```text
//!  network::plan ──▶ Runtime ─┬▶ cuda      NVRTC, cuBLAS, CUDA graphs
//!                             └▶ emulated  the same kernels on the CPU, for tests
//! ```
//!
//! Work is queued in order on one stream; only [`read`](Runtime::read) waits for it. What kernels compute is not known
//! here.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use crate::Result;

/// The text of all kernels.
pub(super) const KERNELS: &str = include_str!("kernels.cu");

/// A place in a device's memory, in bytes.
pub(crate) type Address = u64;

/// The arguments of a kernel: addresses, integers, and floats by their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Words([u64; Words::MOST]);

impl Words {
    /// The most arguments of a kernel.
    pub(crate) const MOST: usize = 32;

    /// These arguments.
    ///
    /// # Panics
    /// If there are more than [`MOST`](Self::MOST).
    pub(crate) fn new(words: &[u64]) -> Self {
        let mut all = [0; Self::MOST];
        all[..words.len()].copy_from_slice(words);
        Self(all)
    }
}

/// A kernel over a grid of blocks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static str,
    pub(crate) blocks: u32,
    /// Threads of a block.
    pub(crate) threads: u32,
    pub(crate) words: Words,
}

/// A row-major matrix of each lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Operand {
    pub(crate) at: Address,
    /// Numbers from row to row.
    pub(crate) ld: usize,
    /// Numbers from lane to lane; 0 where lanes share it.
    pub(crate) lane: usize,
    /// Is read as its transpose.
    pub(crate) transposed: bool,
}

/// `c = a · b`, or `c += a · b`, of each lane: `[m × k] · [k × n]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Product {
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    /// m, n and k.
    pub(crate) sizes: [usize; 3],
    pub(crate) lanes: usize,
    /// Adds the product to `c`.
    pub(crate) add: bool,
    pub(crate) factors: Factors,
}

/// The precision of a product's factors; sums are `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Factors {
    F32,
    /// Ten bits of fraction.
    Tf32,
    /// Seven bits of fraction.
    Bf16,
}

/// A part of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Work {
    Launch(Launch),
    Product(Product),
}

/// A recorded step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded(pub(crate) usize);

/// A count of what a device was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Kernels and products, but for those of recorded steps.
    pub(crate) launches: u64,
    /// Recorded steps that were replayed.
    pub(crate) replays: u64,
    /// Kernels and products of the last step that was recorded.
    pub(crate) recorded: u64,
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
    /// Bytes of memory that is held.
    pub(crate) bytes_held: u64,
}

/// A device. All of it happens on the thread that made it.
pub(crate) trait Runtime: fmt::Debug {
    /// The device as errors name it.
    fn name(&self) -> String;

    /// The threads of a block that every kernel runs with: a power of two.
    fn threads(&self) -> u32;

    /// Blocks that keep the device busy.
    fn blocks(&self) -> u32;

    /// Bytes that can still be had.
    fn free(&self) -> Result<u64>;

    /// Memory of so many bytes, aligned to 256, with zeros in it.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives memory back.
    fn release(&self, at: Address);

    /// Writes host memory into the device's.
    fn write(&self, at: Address, bytes: &[u8]) -> Result<()>;

    /// Reads what is there once all that is queued is done.
    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<()>;

    /// Queues work.
    fn run(&self, work: &[Work]) -> Result<()>;

    /// Records work, which is not run.
    fn record(&self, work: &[Work]) -> Result<Recorded>;

    /// Queues recorded work.
    fn replay(&self, recorded: Recorded) -> Result<()>;

    /// Forgets recorded work.
    fn forget(&self, recorded: Recorded);

    fn counters(&self) -> &Cell<Counters>;
}

/// Adds to a device's counters.
pub(super) fn count(counters: &Cell<Counters>, add: impl FnOnce(&mut Counters)) {
    let mut now = counters.get();
    add(&mut now);
    counters.set(now);
}

/// Memory of a device, given back when it is dropped.
pub(crate) struct Memory {
    runtime: Rc<dyn Runtime>,
    at: Address,
    bytes: usize,
}

impl Memory {
    /// Room for so many bytes, with zeros in it.
    ///
    /// # Errors
    /// When the device has no more.
    pub(crate) fn new(runtime: &Rc<dyn Runtime>, bytes: usize) -> Result<Self> {
        // An address of its own, also of nothing.
        let bytes = bytes.max(16);
        Ok(Self {
            runtime: Rc::clone(runtime),
            at: runtime.allocate(bytes)?,
            bytes,
        })
    }

    /// Room with these numbers in it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of<T: bytemuck::NoUninit>(
        runtime: &Rc<dyn Runtime>,
        numbers: &[T],
    ) -> Result<Self> {
        let memory = Self::new(runtime, size_of_val(numbers))?;
        memory.write(0, numbers)?;
        Ok(memory)
    }

    pub(crate) fn at(&self) -> Address {
        self.at
    }

    /// Writes numbers from a byte on.
    ///
    /// # Panics
    /// If they are more than there is room for.
    pub(crate) fn write<T: bytemuck::NoUninit>(&self, from: usize, numbers: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        assert!(from + bytes.len() <= self.bytes, "room on a device");
        match bytes.is_empty() {
            true => Ok(()),
            false => self.runtime.write(self.at + from as u64, bytes),
        }
    }

    /// Reads numbers from a byte on.
    ///
    /// # Panics
    /// If they are more than there are.
    pub(crate) fn read<T: bytemuck::Pod>(&self, from: usize, numbers: &mut [T]) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(numbers);
        assert!(from + bytes.len() <= self.bytes, "numbers of a device");
        match bytes.is_empty() {
            true => Ok(()),
            false => self.runtime.read(self.at + from as u64, bytes),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.runtime.release(self.at);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.runtime.name())
    }
}
