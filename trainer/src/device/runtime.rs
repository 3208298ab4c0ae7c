//! The device interface of a compiled plan: memory, kernels, products of matrices, and steps that are recorded once and
//! replayed.
//!
//! ```text
//!  network::plan ──▶ Runtime ─┬▶ cuda      NVRTC, cuBLAS, CUDA graphs
//!                             └▶ emulated  the same kernels on the CPU, for tests
//! ```
//!
//! Work is queued in order on one stream, without waiting for it; [`read`](Runtime::read) waits until all of it is
//! done, and so does a [call](Call) of the host amid the work. Copies from and to pinned host memory are queued on a second
//! stream, beside the work; the two wait for each other only where they are told to. What kernels compute is not known
//! here.
//!
//! Devices of a host can be [linked](Runtime::join); then work may sum over them. While such work is queued,
//! [`is_done`](Runtime::is_done) is the only wait that ends if a peer is lost: every other call may block with it, so
//! callers first ask that, and [leave](Runtime::leave) the link if a peer is gone.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::Result;

/// Source text of all kernels.
pub(super) const KERNELS: &str = include_str!("kernels.cu");

/// Byte address in a device's memory.
pub(crate) type Address = u64;

/// Arguments of a kernel: addresses, integers, and floats by their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Words([u64; Words::MOST]);

impl Words {
    /// Maximum number of arguments of a kernel.
    pub(crate) const MOST: usize = 32;

    /// Packs these arguments.
    ///
    /// # Panics
    /// If there are more than [`MOST`](Self::MOST).
    pub(crate) fn new(words: &[u64]) -> Self {
        let mut all = [0; Self::MOST];
        all[..words.len()].copy_from_slice(words);
        Self(all)
    }
}

/// Launch of a kernel over a grid of blocks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static str,
    pub(crate) blocks: u32,
    /// Threads per block.
    pub(crate) threads: u32,
    pub(crate) words: Words,
}

/// Row-major matrix of each lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Operand {
    pub(crate) at: Address,
    /// Row stride, in numbers.
    pub(crate) ld: usize,
    /// Lane stride, in numbers; 0 where lanes share the matrix.
    pub(crate) lane: usize,
    /// The matrix is read as its transpose.
    pub(crate) transposed: bool,
}

/// Product `c = a · b`, or `c += a · b`, of each lane: `[m × k] · [k × n]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Product {
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    /// m, n and k.
    pub(crate) sizes: [usize; 3],
    pub(crate) lanes: usize,
    /// The product is added to `c`.
    pub(crate) add: bool,
    pub(crate) factors: Factors,
}

/// Precision of a product's factors; sums are `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Factors {
    #[default]
    F32,
    /// Ten bits of fraction.
    Tf32,
    /// Seven bits of fraction.
    Bf16,
}

impl Factors {
    /// Rounds numbers to this precision: to the nearest, and halfway between two to the even one.
    pub(crate) fn round(self, numbers: &mut [f32]) {
        let dropped = match self {
            Self::F32 => return,
            Self::Tf32 => 13,
            Self::Bf16 => 16,
        };
        for number in numbers {
            let bits = number.to_bits();
            let half = (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
            let rounded = f32::from_bits(bits.wrapping_add(half) & (u32::MAX << dropped));
            *number = if number.is_finite() { rounded } else { *number };
        }
    }
}

/// Numbers that are replaced by their sums over all linked devices, with the same bits on each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summed {
    pub(crate) at: Address,
    pub(crate) len: usize,
    pub(crate) kind: Number,
}

/// Type of summed numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    F32,
    F64,
}

/// Computation in host memory, of numbers that a device has computed.
pub(crate) trait HostWork: fmt::Debug {
    /// Computes the numbers to `write`, which are 0 before, from those that were `read`.
    fn compute(&self, read: &[f32], write: &mut [f32]);
}

/// Call of the host between kernels: once the work before it is done, numbers are read from the device, and the
/// results are written to the same place before the work behind it is queued.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) at: Address,
    /// Count of the numbers that are read.
    pub(crate) read: usize,
    /// Count of the numbers that are written.
    pub(crate) write: usize,
    pub(crate) work: Rc<dyn HostWork>,
}

/// Calls are equal if they do the same work at the same place.
impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        let place = |call: &Self| (call.at, call.read, call.write);
        place(self) == place(other) && Rc::ptr_eq(&self.work, &other.work)
    }
}

impl Call {
    /// Makes the call. It costs a read and a write, unless there is nothing to write.
    pub(crate) fn make<R: Runtime + ?Sized>(&self, runtime: &R) -> Result<()> {
        let (mut read, mut write) = (vec![0.0; self.read], vec![0.0; self.write]);
        runtime.read(self.at, bytemuck::cast_slice_mut(&mut read))?;
        self.work.compute(&read, &mut write);
        match write.is_empty() {
            true => Ok(()),
            false => runtime.write(self.at, bytemuck::cast_slice(&write)),
        }
    }
}

/// Part of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Work {
    Launch(Launch),
    Product(Product),
    /// All-reduce over the linked devices, in one operation. All of them queue the same ones in the same order.
    AllReduce(Vec<Summed>),
    /// Call of the host, which waits for the work before it. It is neither queued nor recorded.
    Call(Call),
}

/// Device as its peers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Unique to the device.
    pub(crate) uuid: String,
    /// Devices of one kind update weights with the same bits.
    pub(crate) kind: String,
    /// Reason why it cannot be linked with others, if there is one.
    pub(crate) unlinked: Option<String>,
}

/// Where outcomes of trials on a device are kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Records {
    pub(crate) folder: PathBuf,
    /// What outcomes depend on beside the training: the model of the device, its driver and libraries, and this program.
    pub(crate) device: String,
}

/// Handle of a recorded step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded(pub(crate) usize);

/// Handle of a pinned buffer in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Buffer(pub(crate) usize);

/// Copy between a pinned buffer and a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Offset in the buffer.
    pub(crate) offset: usize,
    pub(crate) at: Address,
    pub(crate) bytes: usize,
}

/// Counts of a device's operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Kernels, products and all-reduces, except those of recorded steps.
    pub(crate) launches: u64,
    /// Replays of recorded steps.
    pub(crate) replays: u64,
    /// Kernels, products and all-reduces of the last recorded step.
    pub(crate) recorded: u64,
    /// Copies to the host, pinned or not.
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
    /// Copies from pinned buffers.
    pub(crate) transfers: u64,
    pub(crate) bytes_transferred: u64,
    /// Bytes of pinned host memory.
    pub(crate) bytes_pinned: u64,
    /// Bytes of allocated memory.
    pub(crate) bytes_held: u64,
}

/// Device, used only by the thread that opened it.
pub(crate) trait Runtime: fmt::Debug {
    /// Returns the device's name for errors.
    fn name(&self) -> String;

    /// Returns the threads per block of every kernel: a power of two.
    fn threads(&self) -> u32;

    /// Returns the number of blocks that keeps the device busy.
    fn blocks(&self) -> u32;

    /// Returns the bytes that can still be allocated.
    fn free(&self) -> Result<u64>;

    /// Allocates this many bytes of zeroed memory, aligned to 256.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Frees memory.
    fn release(&self, at: Address);

    /// Copies host memory to the device's.
    fn write(&self, at: Address, bytes: &[u8]) -> Result<()>;

    /// Copies the device's memory to the host's once all queued work is done.
    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<()>;

    /// Queues a copy within the device's memory.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Queues work.
    ///
    /// # Panics
    /// If there is a call in it.
    fn enqueue(&self, work: &[Work]) -> Result<()>;

    /// Queues work, and makes the calls in it.
    fn run(&self, work: &[Work]) -> Result<()> {
        for part in work.split_inclusive(|work| matches!(work, Work::Call(_))) {
            match part.split_last() {
                Some((Work::Call(call), before)) => {
                    self.enqueue(before)?;
                    call.make(self)?;
                }
                _ => self.enqueue(part)?,
            }
        }
        Ok(())
    }

    /// Records work without running it.
    ///
    /// # Panics
    /// If there is a call in it.
    fn record(&self, work: &[Work]) -> Result<Recorded>;

    /// Queues recorded work.
    fn replay(&self, recorded: Recorded) -> Result<()>;

    /// Forgets recorded work.
    fn forget(&self, recorded: Recorded);

    /// Allocates pinned host memory, from and to which the device copies by itself.
    fn pin(&self, bytes: usize) -> Result<Buffer>;

    /// Frees pinned memory.
    fn unpin(&self, buffer: Buffer);

    /// Gives `using` the pinned memory, once all copies from and to it are done.
    fn access(&self, buffer: Buffer, using: &mut dyn FnMut(&mut [u8])) -> Result<()>;

    /// Queues copies on the second stream, behind the work that was queued before the buffer was last
    /// [retired](Self::retire).
    fn transfer(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()>;

    /// Queues copies to the buffer on the second stream, behind the work that is queued by now and beside the work after
    /// it, which must leave what is copied until the next [`access`](Self::access) returns.
    fn collect(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()>;

    /// Lets work that is queued from now on wait for the copies from the buffer.
    fn arrive(&self, buffer: Buffer) -> Result<()>;

    /// Lets later copies from the buffer wait for the work that is queued by now: the last that uses what was copied.
    fn retire(&self, buffer: Buffer) -> Result<()>;

    fn identity(&self) -> Result<Identity>;

    /// Returns where outcomes of trials on this device are kept, if they are.
    fn records(&self) -> Option<Records>;

    /// Creates the id of a link, on one of its devices.
    fn link_id(&self) -> Result<Vec<u8>>;

    /// Begins to link this device with those of the other ranks, which must call it too. The link is complete once
    /// [`is_done`](Self::is_done).
    fn join(&self, id: &[u8], rank: usize, world_size: usize) -> Result<()>;

    /// Leaves the link, if there is one. Queued work comes to an end, with wrong sums, and recorded work is forgotten.
    ///
    /// # Errors
    /// When queued work does not end. Then the device cannot be used any more.
    fn leave(&self) -> Result<()>;

    /// Returns true if all queued work is done, and the link is complete. Does not wait.
    fn is_done(&self) -> Result<bool>;

    fn counters(&self) -> &Cell<Counters>;
}

/// Updates a device's counters.
pub(super) fn count(counters: &Cell<Counters>, add: impl FnOnce(&mut Counters)) {
    let mut now = counters.get();
    add(&mut now);
    counters.set(now);
}

/// Memory of a device, freed when it is dropped.
pub(crate) struct Memory {
    runtime: Rc<dyn Runtime>,
    at: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates this many bytes of zeroed memory.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub(crate) fn new(runtime: &Rc<dyn Runtime>, bytes: usize) -> Result<Self> {
        // An empty allocation has an address of its own too.
        let bytes = bytes.max(16);
        Ok(Self {
            runtime: Rc::clone(runtime),
            at: runtime.allocate(bytes)?,
            bytes,
        })
    }

    /// Allocates memory with these numbers in it.
    ///
    /// # Errors
    /// The same as [`new`](Self::new), or when the numbers cannot be written.
    pub(crate) fn of<T: bytemuck::NoUninit>(
        runtime: &Rc<dyn Runtime>,
        numbers: &[T],
    ) -> Result<Self> {
        let memory = Self::new(runtime, size_of_val(numbers))?;
        memory.write(0, numbers)?;
        Ok(memory)
    }

    /// Allocates memory with these numbers in it, if there are any.
    ///
    /// # Errors
    /// The same as [`of`](Self::of).
    pub(crate) fn of_some<T: bytemuck::NoUninit>(
        runtime: &Rc<dyn Runtime>,
        numbers: &[T],
    ) -> Result<Option<Self>> {
        let is_some = !numbers.is_empty();
        is_some.then(|| Self::of(runtime, numbers)).transpose()
    }

    /// Allocates memory with these numbers in it, one part after the other. No copy of the whole is made, since parts may
    /// lie in files.
    ///
    /// # Errors
    /// The same as [`of`](Self::of).
    pub(crate) fn of_parts<'a, T: bytemuck::NoUninit>(
        runtime: &Rc<dyn Runtime>,
        parts: impl Iterator<Item = &'a [T]> + Clone,
    ) -> Result<Self> {
        let memory = Self::new(runtime, parts.clone().map(size_of_val).sum())?;
        let mut at = 0;
        for part in parts {
            memory.write(at, part)?;
            at += size_of_val(part);
        }
        Ok(memory)
    }

    pub(crate) fn at(&self) -> Address {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes numbers from this byte on.
    ///
    /// # Panics
    /// If they exceed the memory.
    pub(crate) fn write<T: bytemuck::NoUninit>(&self, from: usize, numbers: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        assert!(from + bytes.len() <= self.bytes, "room on a device");
        match bytes.is_empty() {
            true => Ok(()),
            false => self.runtime.write(self.at + from as u64, bytes),
        }
    }

    /// Reads numbers from this byte on.
    ///
    /// # Panics
    /// If they exceed the memory.
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

/// Pinned host memory, freed when it is dropped.
pub(crate) struct Pinned {
    runtime: Rc<dyn Runtime>,
    buffer: Buffer,
    bytes: usize,
}

impl Pinned {
    /// Allocates this many bytes. Copies from them wait for the work that is queued by now.
    ///
    /// # Errors
    /// When the host does not pin so many.
    pub(crate) fn new(runtime: &Rc<dyn Runtime>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(16);
        let pinned = Self {
            runtime: Rc::clone(runtime),
            buffer: runtime.pin(bytes)?,
            bytes,
        };
        pinned.retire()?;
        Ok(pinned)
    }

    /// Has `fill` write to it, once all copies from and to it are done.
    pub(crate) fn fill(&self, mut fill: impl FnMut(&mut [u8])) -> Result<()> {
        self.runtime.access(self.buffer, &mut fill)
    }

    /// Has `take` read it, once all copies to it are done.
    pub(crate) fn take(&self, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.runtime.access(self.buffer, &mut |bytes| take(bytes))
    }

    /// Queues copies to a device's memory on the second stream.
    ///
    /// # Panics
    /// If they exceed the buffer.
    pub(crate) fn transfer(&self, transfers: &[Transfer]) -> Result<()> {
        self.check(transfers);
        self.runtime.transfer(self.buffer, transfers)
    }

    /// Queues copies from a device's memory on the second stream, behind the work that is queued by now. Work after it
    /// must leave what is copied until the buffer was [taken](Self::take).
    ///
    /// # Panics
    /// If they exceed the buffer.
    pub(crate) fn collect(&self, transfers: &[Transfer]) -> Result<()> {
        self.check(transfers);
        self.runtime.collect(self.buffer, transfers)
    }

    fn check(&self, transfers: &[Transfer]) {
        let within = |transfer: &Transfer| transfer.offset + transfer.bytes <= self.bytes;
        assert!(transfers.iter().all(within), "bytes of a buffer");
    }

    /// Lets work that is queued from now on wait for the copies.
    pub(crate) fn arrive(&self) -> Result<()> {
        self.runtime.arrive(self.buffer)
    }

    /// Lets later copies wait for the work that is queued by now.
    pub(crate) fn retire(&self) -> Result<()> {
        self.runtime.retire(self.buffer)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.runtime.unpin(self.buffer);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes for {}", self.bytes, self.runtime.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_the_bits_of_their_precision() {
        let of = |x: f32, factors: Factors| {
            let mut rounded = [x];
            factors.round(&mut rounded);
            rounded[0]
        };
        let (tf32, bf16) = (Factors::Tf32, Factors::Bf16);
        assert_eq!(of(1.0 + 2_f32.powi(-11), tf32), 1.0);
        assert_eq!(of(1.0 + 2_f32.powi(-10), tf32), 1.0 + 2_f32.powi(-10));
        assert_eq!(of(1.0 + 2_f32.powi(-9), bf16), 1.0);
        assert_eq!(of(-1.0 - 3.0 * 2_f32.powi(-8), bf16), -1.015_625);
        assert_eq!(of(0.1, Factors::F32), 0.1);
        assert_eq!(of(f32::MAX, bf16), f32::INFINITY);
        assert!(of(f32::NAN, tf32).is_nan());
    }
}
