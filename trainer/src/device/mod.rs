//! Devices: from what the user asked for to what this host has.
//!
//! Burn panics when a GPU's driver is missing, so a GPU is only ever used after it was found here.

#[cfg(any(test, feature = "cuda"))]
mod answer;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod kernels;

use std::fmt;

use volley_proto::spec::Device;
use volley_proto::{Gpu, GpuId};

use crate::{Error, Result};

/// A device that this host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResolvedDevice(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(usize),
}

/// A device as what computes on it names it.
#[derive(Debug)]
pub(crate) enum Backend {
    Cpu,
    #[cfg(feature = "cuda")]
    Cuda(burn_cuda::CudaDevice),
}

impl ResolvedDevice {
    /// The CPU, which every host has.
    pub const CPU: Self = Self(Kind::Cpu);

    pub(crate) fn backend(self) -> Backend {
        match self.0 {
            Kind::Cpu => Backend::Cpu,
            #[cfg(feature = "cuda")]
            Kind::Cuda(index) => {
                kernels::enable_cache();
                Backend::Cuda(burn_cuda::CudaDevice::new(index))
            }
        }
    }
}

impl fmt::Display for ResolvedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Cpu => f.write_str("cpu"),
            #[cfg(feature = "cuda")]
            Kind::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Finds the device on this host; `auto` is its first GPU, or the CPU where there is none, and `cuda` its first GPU.
///
/// # Errors
/// When it is a GPU that this host, or this build, does not have.
pub fn resolve_device(device: Device) -> Result<ResolvedDevice> {
    match device {
        Device::Cpu => Ok(ResolvedDevice::CPU),
        Device::Auto => Ok(gpu(0).unwrap_or(ResolvedDevice::CPU)),
        Device::AnyCuda => gpu(0).map_err(|reason| missing(&device, reason)),
        Device::Cuda(index) => gpu(index).map_err(|reason| missing(&device, reason)),
    }
}

/// Finds the GPU with this UUID on this host, whatever its ordinal.
///
/// # Errors
/// When this host, or this build, does not have it.
pub fn resolve_gpu(uuid: GpuId) -> Result<ResolvedDevice> {
    let gpus = gpus().map_err(|reason| missing(&uuid, reason))?;
    let ordinal = gpus.iter().position(|gpu| gpu.uuid == uuid);
    let found = match ordinal {
        Some(ordinal) => gpu(ordinal),
        None => Err(format!("it is not among the {} GPUs", gpus.len())),
    };
    found.map_err(|reason| missing(&uuid, reason))
}

fn missing(device: &dyn fmt::Display, reason: String) -> Error {
    Error::Device {
        device: device.to_string(),
        reason,
    }
}

/// The GPUs that this process sees, by ordinal: of those of the host, what `CUDA_VISIBLE_DEVICES` leaves.
///
/// # Errors
/// Says why there can be none: no driver, no run-time compiler, or a build without GPU support.
pub fn gpus() -> std::result::Result<Vec<Gpu>, String> {
    described()
}

#[cfg(feature = "cuda")]
fn described() -> std::result::Result<Vec<Gpu>, String> {
    driver::gpus()
}

#[cfg(not(feature = "cuda"))]
fn described() -> std::result::Result<Vec<Gpu>, String> {
    Err(WITHOUT_GPUS.to_owned())
}

#[cfg(not(feature = "cuda"))]
const WITHOUT_GPUS: &str =
    "this executor was built without GPU support: build it with --features cuda";

#[cfg(feature = "cuda")]
fn gpu(index: usize) -> std::result::Result<ResolvedDevice, String> {
    match driver::devices()? {
        0 => Err("the host has no NVIDIA GPU".into()),
        count if index < count => Ok(ResolvedDevice(Kind::Cuda(index))),
        1 => Err("the host has one GPU, cuda:0".into()),
        count => Err(format!(
            "the host has {count} GPUs, cuda:0 to cuda:{}",
            count - 1
        )),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: usize) -> std::result::Result<ResolvedDevice, String> {
    Err(WITHOUT_GPUS.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_always_there() {
        assert_eq!(resolve_device(Device::Cpu).unwrap(), ResolvedDevice::CPU);
        assert_eq!(ResolvedDevice::CPU.to_string(), "cpu");
        assert!(resolve_device(Device::Auto).is_ok());
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error() {
        let error = resolve_device(Device::Cuda(4096)).unwrap_err();
        assert!(matches!(error, Error::Device { ref device, .. } if device == "cuda:4096"));
        let error = resolve_gpu(GpuId::from_bytes([9; 16])).unwrap_err();
        let id = "GPU-09090909-0909-0909-0909-090909090909";
        assert!(matches!(error, Error::Device { ref device, .. } if device == id));
    }
}
