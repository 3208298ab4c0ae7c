//! GPUs of a host, as the NVIDIA driver describes them and the scheduler assigns them to ranks.
//!
//! This module neither finds GPUs nor decides which rank gets which.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::spec::{Clocks, Precision};
use crate::wire;
use crate::{Error, Result};

/// GPU of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// UUID of the device.
    pub uuid: GpuId,
    /// Product name: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Total memory in bytes.
    pub memory: u64,
    /// Compute capability.
    pub capability: Capability,
    /// Clocks and widths.
    pub clocks: Clocks,
}

impl Gpu {
    /// Returns the peak of its matrix products in FLOP/s, if it is known.
    pub fn products(&self, precision: Precision) -> Option<f64> {
        let Capability { major, minor } = self.capability;
        self.clocks.products((major, minor), precision)
    }
}

/// UUID of a GPU, the same in every process, independent of `CUDA_VISIBLE_DEVICES`.
///
/// ```
/// use volley_proto::GpuId;
///
/// let id: GpuId = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".parse()?;
/// assert_eq!(id.to_string(), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
/// # Ok::<(), volley_proto::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(Uuid);

impl GpuId {
    /// Makes an id from a `CUuuid`'s bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

/// Compute capability: the version of a GPU's instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// The architecture's generation.
    pub major: u32,
    /// The variant.
    pub minor: u32,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uuid,
            name,
            memory,
            capability,
            ..
        } = self;
        let memory = bytesize(*memory);
        write!(
            f,
            "{name}, {memory}, compute capability {capability}, {uuid}"
        )
    }
}

/// Formats bytes in GiB, as GPU data sheets do.
fn bytesize(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU-{}", self.0)
    }
}

impl FromStr for GpuId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let uuid = Uuid::parse_str(text.strip_prefix("GPU-").unwrap_or(text));
        uuid.map(Self)
            .map_err(|source| Error::malformed("GPU's UUID", source))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl From<Gpu> for wire::Gpu {
    fn from(gpu: Gpu) -> Self {
        Self {
            uuid: gpu.uuid.to_string(),
            name: gpu.name,
            memory_bytes: gpu.memory,
            capability_major: gpu.capability.major,
            capability_minor: gpu.capability.minor,
            multiprocessors: gpu.clocks.multiprocessors,
            clock_khz: gpu.clocks.clock_khz,
            memory_clock_khz: gpu.clocks.memory_khz,
            memory_bus_bits: gpu.clocks.bus_bits,
        }
    }
}

impl TryFrom<wire::Gpu> for Gpu {
    type Error = Error;

    fn try_from(gpu: wire::Gpu) -> Result<Self> {
        Ok(Self {
            uuid: gpu.uuid.parse()?,
            name: gpu.name,
            memory: gpu.memory_bytes,
            capability: Capability {
                major: gpu.capability_major,
                minor: gpu.capability_minor,
            },
            clocks: Clocks {
                multiprocessors: gpu.multiprocessors,
                clock_khz: gpu.clock_khz,
                memory_khz: gpu.memory_clock_khz,
                bus_bits: gpu.memory_bus_bits,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> Gpu {
        Gpu {
            uuid: GpuId::from_bytes(*b"0123456789abcdef"),
            name: "NVIDIA H100 80GB HBM3".into(),
            memory: 85_520_809_984,
            capability: Capability { major: 9, minor: 0 },
            clocks: Clocks {
                multiprocessors: 132,
                clock_khz: 1_980_000,
                memory_khz: 2_619_000,
                bus_bits: 5120,
            },
        }
    }

    #[test]
    fn a_gpu_crosses_the_wire_unchanged() {
        let wire = wire::Gpu::from(gpu());
        assert_eq!(Gpu::try_from(wire.clone()).unwrap(), gpu());
        let unnamed = wire::Gpu {
            uuid: "GPU-0".into(),
            ..wire
        };
        assert!(Gpu::try_from(unnamed).is_err());
    }

    #[test]
    fn a_gpu_is_described_in_a_line() {
        assert_eq!(
            gpu().to_string(),
            "NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, GPU-30313233-3435-3637-3839-616263646566"
        );
    }

    #[test]
    fn an_id_is_read_as_the_driver_s_tools_write_it_and_without_its_prefix() {
        let id = GpuId::from_bytes([7; 16]);
        let text = id.to_string();
        assert_eq!(text.parse::<GpuId>().unwrap(), id);
        assert_eq!(text["GPU-".len()..].parse::<GpuId>().unwrap(), id);
        assert!("cuda:0".parse::<GpuId>().is_err());
    }
}
