//! Asks the NVIDIA driver which GPUs there are, without linking it.
//!
//! It calls C functions by their published signatures, which is `unsafe`. Kernels are compiled at run time, so the compiler, NVRTC, must be there as well.
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

/// What compiled kernels depend on: the GPUs' compute capability and the driver's version of CUDA. None where GPUs differ.
pub(super) fn architecture() -> Option<String> {
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    const CAPABILITY: [c_int; 2] = [75, 76];

    let count = c_int::try_from(devices().ok()?).ok()?;
    let driver = open(&DRIVER)?;
    // SAFETY: the signatures are those of the CUDA driver API, stable since CUDA 5.0: CUresult cuDriverGetVersion(int *),
    // CUresult cuDeviceGet(CUdevice *, int), CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice), where
    // CUdevice is an int and the attribute an enum. `devices` has called cuInit. The symbols do not outlive `driver`, and
    // what is written outlives each call.
    unsafe {
        let version_of = driver
            .get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0")
            .ok()?;
        let get = driver
            .get::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(b"cuDeviceGet\0")
            .ok()?;
        let attribute_of = driver
            .get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(
                b"cuDeviceGetAttribute\0",
            )
            .ok()?;
        let mut version: c_int = 0;
        (version_of(&raw mut version) == SUCCESS).then_some(())?;
        let mut all = Vec::new();
        for at in 0..count {
            let mut device: c_int = 0;
            (get(&raw mut device, at) == SUCCESS).then_some(())?;
            let mut capability = [0; 2];
            for (number, attribute) in capability.iter_mut().zip(CAPABILITY) {
                let number: *mut c_int = number;
                (attribute_of(number, attribute, device) == SUCCESS).then_some(())?;
            }
            all.push(capability);
        }
        let [major, minor] = *all.first()?;
        let same = all.iter().all(|other| *other == [major, minor]);
        same.then(|| format!("sm_{major}{minor}-cuda-{version}"))
    }
}

fn open(names: &[&str]) -> Option<Library> {
    // SAFETY: loading runs the library's initializers; these are NVIDIA's own, found by the names
    // that their packages install, and Burn would load the same ones.
    names
        .iter()
        .find_map(|name| unsafe { Library::new(name) }.ok())
}
