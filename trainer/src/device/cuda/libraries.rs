//! A check for CUDA's libraries: the binding panics where one is missing.

use cudarc::{cublas, driver, nvrtc};

use crate::{Error, Result};

/// Checks that the driver, the run-time compiler and cuBLAS are installed.
///
/// # Errors
/// The missing library's name and what to install.
pub(super) fn check(device: &str) -> Result<()> {
    // SAFETY: each loads an NVIDIA library by its own name, whose initializers have no preconditions, and unloads it.
    let all = unsafe {
        [
            (
                driver::sys::is_culib_present(),
                "the NVIDIA driver (libcuda.so.1) is not installed",
            ),
            (
                nvrtc::sys::is_culib_present(),
                "CUDA's run-time compiler (libnvrtc.so.13 or .12) is not found: install the CUDA toolkit, or \
                 nvidia-cuda-nvrtc by pip and name its folder in LD_LIBRARY_PATH",
            ),
            (
                cublas::sys::is_culib_present(),
                "cuBLAS (libcublas.so.13 or .12) is not found: install the CUDA toolkit, or nvidia-cublas by pip and \
                 name its folder in LD_LIBRARY_PATH",
            ),
        ]
    };
    match all.into_iter().find(|(is_there, _)| !is_there) {
        None => Ok(()),
        Some((_, reason)) => Err(Error::Device {
            device: device.to_owned(),
            reason: reason.to_owned(),
        }),
    }
}
