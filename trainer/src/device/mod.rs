//! Devices: the resolution of a user's choice to a device of this host.
//!
//! Burn panics when a GPU's driver is missing, so a GPU is used only after it was found here.

mod answer;
mod cuda;
mod driver;
#[cfg(test)]
mod emulated;
#[cfg(feature = "cuda")]
mod kernels;
mod lock;
mod runtime;

use std::fmt;
use std::rc::Rc;

use volley_proto::spec::Device;
use volley_proto::{Gpu, GpuId};

pub(crate) use self::cuda::Cuda;
#[cfg(test)]
pub(crate) use self::emulated::Emulated;
pub(crate) use self::lock::Shared;
pub use self::lock::{Alone, GpuLock};
#[cfg(test)]
pub(crate) use self::runtime::Counters;
pub(crate) use self::runtime::{
    Address, Factors, Identity, Launch, Memory, Number, Operand, Pinned, Product, Recorded,
    Runtime, Summed, Transfer, Words, Work,
};

use crate::{Error, Result};

/// Device that this host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResolvedDevice(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Cpu,
    /// GPU by its ordinal; with `either`, the CPU may compute instead.
    Cuda {
        index: usize,
        either: bool,
    },
    /// Emulated device: its memory in bytes, a kernel to skip, if any, and permission for the CPU to compute instead.
    #[cfg(test)]
    Emulated(u64, Option<&'static str>, bool),
}

/// Device that is ready to compute.
#[derive(Debug)]
pub(crate) enum Opened {
    Cpu {
        /// Why it is the CPU instead of a GPU.
        instead: Option<String>,
    },
    Gpu {
        runtime: Rc<dyn Runtime>,
        index: usize,
        /// The CPU may compute where it is faster.
        either: bool,
    },
}

/// Returns a GPU as Burn names it.
#[cfg(feature = "cuda")]
pub(crate) fn burn_device(index: usize) -> burn_cuda::CudaDevice {
    kernels::enable_cache();
    burn_cuda::CudaDevice::new(index)
}

impl ResolvedDevice {
    /// CPU, which every host has.
    pub const CPU: Self = Self(Kind::Cpu);

    /// Returns the emulated device with this much memory, and a kernel that does nothing, if any.
    #[cfg(test)]
    pub(crate) fn emulated(bytes: u64, spoilt: Option<&'static str>, either: bool) -> Self {
        Self(Kind::Emulated(bytes, spoilt, either))
    }

    /// Returns whether it is a GPU that the CPU may not stand in for.
    pub(crate) fn is_gpu_alone(self) -> bool {
        match self.0 {
            Kind::Cpu => false,
            Kind::Cuda { either, .. } => !either,
            #[cfg(test)]
            Kind::Emulated(_, _, either) => !either,
        }
    }

    /// Opens the device on the thread that is to compute.
    ///
    /// # Errors
    /// When a CUDA library is missing, or the GPU does not respond.
    pub(crate) fn open(self) -> Result<Opened> {
        match self.0 {
            Kind::Cpu => Ok(Opened::Cpu { instead: None }),
            Kind::Cuda { index, either } => match Cuda::open(index) {
                Ok(runtime) => Ok(Opened::Gpu {
                    runtime,
                    index,
                    either,
                }),
                Err(error) if either => Ok(Opened::Cpu {
                    instead: Some(error.chain()),
                }),
                Err(error) => Err(error),
            },
            #[cfg(test)]
            Kind::Emulated(bytes, spoilt, either) => {
                let runtime = Emulated::of(bytes).expect("tests have looked for it");
                runtime.spoilt.set(spoilt);
                Ok(Opened::Gpu {
                    runtime,
                    index: 0,
                    either,
                })
            }
        }
    }
}

impl fmt::Display for ResolvedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Cpu => f.write_str("cpu"),
            Kind::Cuda { index, .. } => write!(f, "cuda:{index}"),
            #[cfg(test)]
            Kind::Emulated(..) => f.write_str("emulated"),
        }
    }
}

/// Finds the device on this host: `auto` is its first GPU, or the CPU if it has none, and `cuda` is its first GPU.
///
/// # Errors
/// When it is a GPU that this host does not have.
pub fn resolve_device(device: Device) -> Result<ResolvedDevice> {
    match device {
        Device::Cpu => Ok(ResolvedDevice::CPU),
        Device::Auto => Ok(gpu(0, true).unwrap_or(ResolvedDevice::CPU)),
        Device::AnyCuda => gpu(0, false).map_err(|reason| missing(&device, reason)),
        Device::Cuda(index) => gpu(index, false).map_err(|reason| missing(&device, reason)),
    }
}

/// Finds the GPU with this UUID on this host, whatever its ordinal. With `either`, the CPU computes instead where it is
/// faster.
///
/// # Errors
/// When this host does not have it.
pub fn resolve_gpu(uuid: GpuId, either: bool) -> Result<ResolvedDevice> {
    let gpus = gpus().map_err(|reason| missing(&uuid, reason))?;
    let ordinal = gpus.iter().position(|gpu| gpu.uuid == uuid);
    let found = match ordinal {
        Some(ordinal) => gpu(ordinal, either),
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

/// Returns the GPUs that this process sees, by ordinal: those of the host that `CUDA_VISIBLE_DEVICES` leaves.
///
/// # Errors
/// The reason why there can be none: no driver, or no run-time compiler.
pub fn gpus() -> std::result::Result<Vec<Gpu>, String> {
    driver::gpus()
}

fn gpu(index: usize, either: bool) -> std::result::Result<ResolvedDevice, String> {
    match driver::devices()? {
        0 => Err("the host has no NVIDIA GPU".into()),
        count if index < count => Ok(ResolvedDevice(Kind::Cuda { index, either })),
        1 => Err("the host has one GPU, cuda:0".into()),
        count => Err(format!(
            "the host has {count} GPUs, cuda:0 to cuda:{}",
            count - 1
        )),
    }
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
        let error = resolve_gpu(GpuId::from_bytes([9; 16]), false).unwrap_err();
        let id = "GPU-09090909-0909-0909-0909-090909090909";
        assert!(matches!(error, Error::Device { ref device, .. } if device == id));
    }
}
