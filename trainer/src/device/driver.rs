//! Queries to the NVIDIA driver about this host's GPUs, without linking it.
//!
//! They call C functions by their published signatures, which is `unsafe`. Kernels are compiled at run time, so the
//! compiler, NVRTC, must be installed as well.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};

use libloading::Library;
use volley_proto::Gpu;

use super::answer::Answer;

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

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `_CLOCK_RATE`, `_MEMORY_CLOCK_RATE` and `_GLOBAL_MEMORY_BUS_WIDTH`.
const CLOCKS: [c_int; 4] = [16, 13, 36, 37];

/// Returns the number of GPUs, or the reason why there can be none.
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

/// Returns the GPUs by ordinal, or the reason why there can be none. The driver has applied `CUDA_VISIBLE_DEVICES`.
pub(super) fn gpus() -> Result<Vec<Gpu>, String> {
    type OfDevice<T> = unsafe extern "C" fn(*mut T, c_int) -> c_int;

    let count = devices()?;
    let driver = open(&DRIVER).ok_or("the NVIDIA driver (libcuda.so.1) is not installed")?;
    // SAFETY: the signatures are those of the CUDA driver API: CUresult cuDeviceGet(CUdevice *, int) and CUresult
    // cuDeviceGetName(char *, int, CUdevice) since CUDA 2.0, CUresult cuDeviceTotalMem_v2(size_t *, CUdevice) since
    // 3.2, CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice) since 5.0, CUresult
    // cuDeviceGetUuid(CUuuid *, CUdevice) since 9.2 and cuDeviceGetUuid_v2, which distinguishes MIG instances, since
    // 11.4. CUdevice is an int, the attribute an enum, and CUuuid 16 bytes. `devices` has called cuInit. The symbols do
    // not outlive `driver`, the outputs outlive each call, and the name's length is that of its array.
    unsafe {
        let text = |error: libloading::Error| error.to_string();
        let get = driver
            .get::<OfDevice<c_int>>(b"cuDeviceGet\0")
            .map_err(text)?;
        let uuid_of = driver
            .get::<OfDevice<[u8; 16]>>(b"cuDeviceGetUuid_v2\0")
            .or_else(|_| driver.get::<OfDevice<[u8; 16]>>(b"cuDeviceGetUuid\0"))
            .map_err(text)?;
        let name_of = driver
            .get::<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(b"cuDeviceGetName\0")
            .map_err(text)?;
        let memory_of = driver
            .get::<OfDevice<usize>>(b"cuDeviceTotalMem_v2\0")
            .map_err(text)?;
        let attribute_of = driver
            .get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(
                b"cuDeviceGetAttribute\0",
            )
            .map_err(text)?;
        let mut gpus = Vec::with_capacity(count);
        for ordinal in 0..count {
            let mut device: c_int = 0;
            let mut answer = Answer::EMPTY;
            let name = answer.name.as_mut_ptr().cast();
            let room = answer.name.len() as c_int;
            let mut results = vec![
                get(&raw mut device, ordinal as c_int),
                uuid_of(&raw mut answer.uuid, device),
                name_of(name, room, device),
                memory_of(&raw mut answer.memory, device),
            ];
            for (number, attribute) in answer.capability.iter_mut().zip(CAPABILITY) {
                let number: *mut c_int = number;
                results.push(attribute_of(number, attribute, device));
            }
            for (number, attribute) in answer.clocks.iter_mut().zip(CLOCKS) {
                // A driver may have given an attribute up; estimates do without it.
                if attribute_of(number, attribute, device) != SUCCESS {
                    *number = 0;
                }
            }
            if let Some(failed) = results.into_iter().find(|result| *result != SUCCESS) {
                return Err(format!(
                    "the NVIDIA driver describes GPU {ordinal} with CUresult {failed}"
                ));
            }
            gpus.push(answer.gpu());
        }
        Ok(gpus)
    }
}

/// Returns the GPUs' compute capability and the driver's CUDA version, which compiled kernels depend on. `None` where
/// GPUs differ.
#[cfg(feature = "cuda")]
pub(super) fn architecture() -> Option<String> {
    let count = c_int::try_from(devices().ok()?).ok()?;
    let driver = open(&DRIVER)?;
    // SAFETY: the signatures are those of the CUDA driver API, stable since CUDA 5.0: CUresult cuDriverGetVersion(int
    // *), CUresult cuDeviceGet(CUdevice *, int), CUresult cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice),
    // where CUdevice is an int and the attribute an enum. `devices` has called cuInit. The symbols do not outlive
    // `driver`, and the outputs outlive each call.
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
