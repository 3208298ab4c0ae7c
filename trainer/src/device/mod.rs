//! Devices: from what the user asked for to what this host has.
//!
//! Burn panics when a GPU's driver is missing, so a GPU is only ever used after it was found here.

#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod kernels;

use std::fmt;

use volley_proto::spec::Device;

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

fn missing(device: &dyn fmt::Display, reason: String) -> Error {
    Error::Device {
        device: device.to_string(),
        reason,
    }
}

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
    Err("this executor was built without GPU support: build it with --features cuda".into())
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
    }
}
