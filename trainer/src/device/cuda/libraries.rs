//! Looks for CUDA's libraries: the binding panics where one is missing.

use cudarc::{cublas, driver, nvrtc};

use crate::{Error, Result};

/// Sees that the driver, the run-time compiler and the products are there.
///
/// # Errors
/// With the library's name and what to install.
pub(super) fn check(device: &str) -> Result<()> {
    // SAFETY: each loads a library of NVIDIA's by its own name, whose initializers have no conditions, and lets it go.
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
