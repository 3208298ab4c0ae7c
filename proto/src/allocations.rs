//! Allocator that measures a test's largest allocation. It is for test binaries only, in this crate and in the trainer.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that a decoder may allocate at once, in addition to `TIMES` bytes for each input byte.
const MOST: usize = 8 << 20;
/// Bytes for each byte of the input.
const TIMES: usize = 64;

struct Measured;

#[global_allocator]
static MEASURED: Measured = Measured;

fn note(bytes: usize) {
    // A backtrace takes more memory than decoding does.
    if std::thread::panicking() {
        return;
    }
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Decodes bytes, and checks that no allocation is far larger than they are.
pub(crate) fn bounded<T>(bytes: &[u8], decode: impl FnOnce(&[u8]) -> T) -> T {
    LARGEST.set(0);
    let decoded = decode(bytes);
    let (largest, most) = (LARGEST.get(), MOST + TIMES * bytes.len());
    assert!(
        largest <= most,
        "{largest} bytes at once, of {} bytes",
        bytes.len()
    );
    decoded
}
