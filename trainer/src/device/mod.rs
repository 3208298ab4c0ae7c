//! Devices: the resolution of a user's choice to a device of this host.
//!
//! Burn panics when a GPU's driver is missing, so a GPU is used only after it was found here.

mod answer;
#[cfg(any(test, feature = "wgpu"))]
mod burn;
mod cache;
mod cuda;
mod driver;
#[cfg(test)]
mod emulated;
#[cfg(feature = "cuda")]
mod kernels;
mod lock;
mod runtime;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;
use std::rc::Rc;

use volley_proto::spec::Device;
use volley_proto::{Gpu, GpuId};

#[cfg(test)]
pub(crate) use self::burn::Mistake;
#[cfg(any(test, feature = "wgpu"))]
pub(crate) use self::burn::{BurnDevice, caught};
pub(crate) use self::cache::keep;
pub(crate) use self::cuda::Cuda;
#[cfg(test)]
pub(crate) use self::emulated::Emulated;
pub(crate) use self::lock::Shared;
pub use self::lock::{Alone, GpuLock};
#[cfg(test)]
pub(crate) use self::runtime::Counters;
pub(crate) use self::runtime::{
    Address, Call, Factors, HostWork, Identity, Launch, Memory, Number, Operand, Pinned, Product,
    Recorded, Records, Runtime, Summed, Transfer, Words, Work,
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
    /// GPU by its ordinal among those that wgpu finds.
    #[cfg(feature = "wgpu")]
    Wgpu {
        ordinal: usize,
        either: bool,
    },
    /// Burn on the CPU, with a mistake.
    #[cfg(test)]
    Flex(Mistake, bool),
    /// Emulated device: its memory in bytes, a kernel to skip, if any, permission for the CPU to compute instead, and the
    /// place where outcomes of trials are kept, if they are.
    #[cfg(test)]
    Emulated(u64, Option<&'static str>, bool, Option<&'static Records>),
}

/// Device that is ready to compute.
#[derive(Debug)]
pub(crate) enum Opened {
    Cpu {
        /// Reason why it is the CPU instead of a GPU.
        instead: Option<String>,
    },
    Gpu {
        runtime: Rc<dyn Runtime>,
        index: usize,
        /// The CPU may compute where it is faster.
        either: bool,
    },
    #[cfg(any(test, feature = "wgpu"))]
    Burn {
        device: BurnDevice,
        name: String,
        /// The CPU may compute where it is faster.
        either: bool,
    },
}

impl Opened {
    /// Returns whether the CPU may compute where it is faster than this GPU.
    pub(crate) fn is_either(&self) -> bool {
        match self {
            Self::Cpu { .. } => false,
            Self::Gpu { either, .. } => *either,
            #[cfg(any(test, feature = "wgpu"))]
            Self::Burn { either, .. } => *either,
        }
    }
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
        Self(Kind::Emulated(bytes, spoilt, either, None))
    }

    /// Returns the emulated device with a place where outcomes of trials are kept.
    #[cfg(test)]
    pub(crate) fn with_records(mut self, kept: &'static Records) -> Self {
        if let Kind::Emulated(_, _, _, records) = &mut self.0 {
            *records = Some(kept);
        }
        self
    }

    /// Returns Burn on the CPU, which computes with this mistake.
    #[cfg(test)]
    pub(crate) fn flex(mistake: Mistake, either: bool) -> Self {
        Self(Kind::Flex(mistake, either))
    }

    /// Returns the device with permission for the CPU to compute instead where it is faster.
    pub fn or_cpu(self) -> Self {
        let mut own = self.0;
        match &mut own {
            Kind::Cpu => {}
            Kind::Cuda { either, .. } => *either = true,
            #[cfg(feature = "wgpu")]
            Kind::Wgpu { either, .. } => *either = true,
            #[cfg(test)]
            Kind::Flex(_, either) | Kind::Emulated(_, _, either, _) => *either = true,
        }
        Self(own)
    }

    /// Returns whether only Burn computes on it, which has no custom layers, and the CPU may not stand in for it.
    pub(crate) fn is_burn_alone(self) -> bool {
        match self.0 {
            Kind::Cpu | Kind::Cuda { .. } => false,
            #[cfg(feature = "wgpu")]
            Kind::Wgpu { either, .. } => !either,
            #[cfg(test)]
            Kind::Flex(_, either) => !either,
            #[cfg(test)]
            Kind::Emulated(..) => false,
        }
    }

    /// Opens the device on the thread that is to compute.
    ///
    /// # Errors
    /// When a library is missing, or the GPU does not respond.
    pub(crate) fn open(self) -> Result<Opened> {
        let or_cpu = |opened: Result<Opened>, either: bool| match opened {
            Err(error) if either => Ok(Opened::Cpu {
                instead: Some(error.chain()),
            }),
            opened => opened,
        };
        match self.0 {
            Kind::Cpu => Ok(Opened::Cpu { instead: None }),
            Kind::Cuda { index, either } => {
                let opened = Cuda::open(index).map(|runtime| Opened::Gpu {
                    runtime,
                    index,
                    either,
                });
                or_cpu(opened, either)
            }
            #[cfg(feature = "wgpu")]
            Kind::Wgpu { ordinal, either } => {
                let opened = wgpu::open(ordinal).map(|device| Opened::Burn {
                    device: BurnDevice::Wgpu(device),
                    name: self.to_string(),
                    either,
                });
                or_cpu(opened, either)
            }
            #[cfg(test)]
            Kind::Flex(mistake, either) => Ok(Opened::Burn {
                device: BurnDevice::Flex(mistake),
                name: self.to_string(),
                either,
            }),
            #[cfg(test)]
            Kind::Emulated(bytes, spoilt, either, records) => {
                let runtime = Emulated::of(bytes).expect("tests have looked for it");
                runtime.spoilt.set(spoilt);
                runtime.records.set(records);
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
            #[cfg(feature = "wgpu")]
            Kind::Wgpu { ordinal, .. } => write!(f, "wgpu:{ordinal}"),
            #[cfg(test)]
            Kind::Flex(..) => f.write_str("flex"),
            #[cfg(test)]
            Kind::Emulated(..) => f.write_str("emulated"),
        }
    }
}

/// Finds the device on this host: `auto` is its first NVIDIA GPU, or the CPU if it has none, `cuda` is its first NVIDIA
/// GPU, and `wgpu` the first that wgpu finds.
///
/// # Errors
/// When it is a GPU that this host does not have, or that this build cannot use.
pub fn resolve_device(device: Device) -> Result<ResolvedDevice> {
    match device {
        Device::Cpu => Ok(ResolvedDevice::CPU),
        Device::Auto => Ok(gpu(0, true).unwrap_or(ResolvedDevice::CPU)),
        Device::AnyCuda => gpu(0, false).map_err(|reason| missing(&device, reason)),
        Device::Cuda(index) => gpu(index, false).map_err(|reason| missing(&device, reason)),
        Device::AnyWgpu => by_wgpu(0).map_err(|reason| missing(&device, reason)),
        Device::Wgpu(ordinal) => by_wgpu(ordinal).map_err(|reason| missing(&device, reason)),
    }
}

#[cfg(feature = "wgpu")]
fn by_wgpu(ordinal: usize) -> std::result::Result<ResolvedDevice, String> {
    wgpu::find(ordinal)?;
    let either = false;
    Ok(ResolvedDevice(Kind::Wgpu { ordinal, either }))
}

#[cfg(not(feature = "wgpu"))]
fn by_wgpu(_: usize) -> std::result::Result<ResolvedDevice, String> {
    Err("built without wgpu: build volley-executor with --features wgpu".into())
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

    #[test]
    fn a_build_without_wgpu_says_how_to_get_it() {
        for device in [Device::AnyWgpu, Device::Wgpu(4096)] {
            let error = resolve_device(device);
            // A host may have a GPU for the first.
            if cfg!(feature = "wgpu") && error.is_ok() {
                assert_eq!(device, Device::AnyWgpu);
                continue;
            }
            let Err(Error::Device {
                device: named,
                reason,
            }) = error
            else {
                panic!("{error:?}")
            };
            assert_eq!(named, device.to_string());
            let due = match cfg!(feature = "wgpu") {
                true => "wgpu finds ",
                false => "built without wgpu: build volley-executor with --features wgpu",
            };
            assert!(reason.starts_with(due), "{reason}");
        }
    }
}
