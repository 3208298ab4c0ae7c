//! Pinned host memory, with the events that order the copies from and to it and the work on what is copied.
//!
//! ```text
//!  host     wait ─ fill ┐         wait: for `copied`
//!  copies               └─ (retired) ─ transfer ─ copied ┐
//!  work                                                  └─ arrive ─ steps ─ retired
//!
//!  work     layers ─ retired ┐ layers before them
//!  copies                    └─ collect ─ copied ┐
//!  host                                          └─ wait ─ take
//! ```
//!
//! It does not decide what is copied where.

use std::ffi::c_void;

use cudarc::driver::{CudaStream, DriverError, result, sys};

use crate::device::runtime::Transfer;

/// Pinned memory and its events. The context must be bound to the thread.
#[derive(Debug)]
pub(super) struct Staged {
    at: *mut c_void,
    bytes: usize,
    /// The last copies from or to the memory are done.
    copied: sys::CUevent,
    /// The last work that uses what was copied, or that computes what is collected, is done.
    retired: sys::CUevent,
}

impl Staged {
    /// Allocates this many bytes, more than none.
    pub(super) fn new(bytes: usize) -> Result<Self, DriverError> {
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let copied = event()?;
        let retired = event().inspect_err(|_| destroy(copied))?;
        // SAFETY: the context is bound to this thread; dropping frees the memory.
        let at = unsafe { result::malloc_host(bytes, 0) };
        let at = at.inspect_err(|_| [copied, retired].into_iter().for_each(destroy))?;
        // SAFETY: this many bytes from there on were just allocated. Their first contents are defined so.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self {
            at,
            bytes,
            copied,
            retired,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits until the copies are done, and returns the memory.
    pub(super) fn wait(&mut self) -> Result<&mut [u8], DriverError> {
        // SAFETY: the event was created here. One that was never recorded counts as done.
        unsafe { result::event::synchronize(self.copied) }?;
        // SAFETY: so many bytes were allocated and set, the borrow is unique, and the device neither reads nor writes them
        // any more: `copied` was recorded behind the last copy.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) })
    }

    /// Queues copies behind the work that `retired` was recorded behind.
    ///
    /// # Safety
    /// Offsets must be within the memory, and addresses in allocated device memory that stays until the stream was
    /// waited for.
    pub(super) unsafe fn transfer(
        &self,
        transfers: &[Transfer],
        copies: &CudaStream,
    ) -> Result<(), DriverError> {
        let stream = copies.cu_stream();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live; the memory is written to only after `copied`, which is recorded last, even if
        // a copy is refused.
        unsafe {
            result::stream::wait_event(stream, self.retired, flags)?;
            let mut queued = Ok(());
            for Transfer { offset, at, bytes } in transfers {
                let from = self.at.cast::<u8>().add(*offset);
                let from = std::slice::from_raw_parts(from, *bytes);
                queued = queued.and_then(|()| result::memcpy_htod_async(*at, from, stream));
            }
            result::event::record(self.copied, stream)?;
            queued
        }
    }

    /// Queues copies to the memory behind the work that is queued by now, for which `retired` is recorded.
    ///
    /// # Safety
    /// As of [`transfer`](Self::transfer); work that is queued later must not write to the addresses before the copies
    /// were waited for.
    pub(super) unsafe fn collect(
        &self,
        transfers: &[Transfer],
        work: &CudaStream,
        copies: &CudaStream,
    ) -> Result<(), DriverError> {
        self.retire(work)?;
        let stream = copies.cu_stream();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live. The host has no reference to the memory until `wait`, which waits for `copied`:
        // it is recorded last, even if a copy is refused. Earlier copies from the memory are before these, on the same
        // stream.
        unsafe {
            result::stream::wait_event(stream, self.retired, flags)?;
            let mut queued = Ok(());
            for Transfer { offset, at, bytes } in transfers {
                let to = self.at.cast::<u8>().add(*offset).cast::<c_void>();
                queued = queued
                    .and_then(|()| sys::cuMemcpyDtoHAsync_v2(to, *at, *bytes, stream).result());
            }
            result::event::record(self.copied, stream)?;
            queued
        }
    }

    /// Lets work that is queued from now on wait for the copies.
    pub(super) fn arrive(&self, work: &CudaStream) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live.
        unsafe { result::stream::wait_event(work.cu_stream(), self.copied, flags) }
    }

    /// Lets later copies wait for the work that is queued by now.
    pub(super) fn retire(&self, work: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: event and stream live.
        unsafe { result::event::record(self.retired, work.cu_stream()) }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // SAFETY: it was allocated here, and is freed once, after its holder has waited for the copies.
        let _ = unsafe { result::free_host(self.at) };
        [self.copied, self.retired].into_iter().for_each(destroy);
    }
}

fn destroy(event: sys::CUevent) {
    // SAFETY: its holder created it, and destroys it once.
    let _ = unsafe { result::event::destroy(event) };
}
