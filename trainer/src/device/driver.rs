//! Asks the NVIDIA driver how many GPUs there are, without linking it.
//!
//! It calls two C functions by their published signatures, which is `unsafe`. Kernels are compiled at run time, so the compiler, NVRTC, must be there as well.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use libloading::Library;

const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
const COMPILER: [&str; 4] = [
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
];

/// `CUDA_SUCCESS` and `CUDA_ERROR_NO_DEVICE` of `CUresult`.
const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;

/// The number of GPUs, or why there can be none.
pub(super) fn devices() -> Result<usize, String> {
    let driver = open(&DRIVER).ok_or("the NVIDIA driver (libcuda.so.1) is not installed")?;
    let mut count: c_int = 0;
    // SAFETY: the signatures are those of the CUDA driver API, stable since CUDA 2.0:
    // CUresult cuInit(unsigned int), CUresult cuDeviceGetCount(int *). The symbols do not outlive
    // `driver`, and `count` outlives the call that writes it.
    let result = unsafe {
        let init = driver
            .get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0")
            .map_err(|error| error.to_string())?;
        let get_count = driver
            .get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount\0")
            .map_err(|error| error.to_string())?;
        match init(0) {
            SUCCESS => get_count(&raw mut count),
            failed => failed,
        }
    };
    match result {
        NO_DEVICE => return Ok(0),
        SUCCESS => {}
        failed => return Err(format!("the NVIDIA driver failed with CUresult {failed}")),
    }
    if count > 0 && open(&COMPILER).is_none() {
        return Err("CUDA's run-time compiler (libnvrtc.so) is not installed".into());
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

fn open(names: &[&str]) -> Option<Library> {
    // SAFETY: loading runs the library's initializers; these are NVIDIA's own, found by the names
    // that their packages install, and Burn would load the same ones.
    names
        .iter()
        .find_map(|name| unsafe { Library::new(name) }.ok())
}
