//! GPUs as a resource: those that a rank may take, and those that are held.
//!
//! ```text
//!   DeviceRequest of a training ──┐
//!   device and GPUs of an executor┴─► Choice: the CPU │ a GPU where one is open, else the CPU │ a GPU
//! ```
//!
//! A rank holds its GPU as its task holds slots, from when it is bound until it has ended: see [`super::slots`]. Only
//! ranks of trainings that share can hold a GPU together. GPUs are identified by host and UUID, because executors on
//! one host may see the same GPUs under different ordinals.
//!
//! Not here: the assignment of GPUs to executors, which is in [`super::placement`].

use std::collections::BTreeMap;
use std::sync::Arc;

use volley_proto::spec::Device;
use volley_proto::{GpuId, TrainId};

/// A GPU of a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostGpu {
    /// The host's id.
    pub(crate) host: Arc<str>,
    pub(crate) uuid: GpuId,
}

/// Devices that the ranks of a training request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceRequest {
    pub(crate) device: Device,
    /// Permission for other ranks that share to use the same GPU.
    pub(crate) shares: bool,
}

/// Devices that a rank on some executor may compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice<'a> {
    /// The CPU, or a GPU that only the rank knows of, through wgpu: it is not reserved.
    Cpu,
    /// One of these GPUs if one is open, else the CPU.
    Prefers(&'a [HostGpu]),
    /// One of these GPUs.
    Needs(&'a [HostGpu]),
}

impl DeviceRequest {
    /// Checks whether each rank needs a GPU, on whichever executor.
    pub(crate) fn needs_gpu(self) -> bool {
        matches!(self.device, Device::AnyCuda | Device::Cuda(_))
    }

    /// Checks whether ranks take no GPU, on whichever executor.
    pub(crate) fn takes_no_gpu(self) -> bool {
        matches!(self.device, Device::Cpu | Device::AnyWgpu | Device::Wgpu(_))
    }

    /// Returns the devices that a rank may compute on, given an executor's own device and GPUs. A training that
    /// leaves the device open computes on the executor's.
    pub(crate) fn choice(self, device: Device, gpus: &[HostGpu]) -> Choice<'_> {
        let device = match self.device {
            Device::Auto => device,
            asked => asked,
        };
        match device {
            Device::Cpu | Device::AnyWgpu | Device::Wgpu(_) => Choice::Cpu,
            Device::Auto => Choice::Prefers(gpus),
            Device::AnyCuda => Choice::Needs(gpus),
            Device::Cuda(ordinal) => Choice::Needs(gpus.get(ordinal..=ordinal).unwrap_or(&[])),
        }
    }
}

impl<'a> Choice<'a> {
    /// Returns the GPUs to choose from.
    pub(crate) fn gpus(self) -> &'a [HostGpu] {
        match self {
            Self::Cpu => &[],
            Self::Prefers(gpus) | Self::Needs(gpus) => gpus,
        }
    }

    /// Checks whether the rank cannot do without a GPU.
    pub(crate) fn needs_gpu(self) -> bool {
        matches!(self, Self::Needs(_))
    }
}

/// A GPU that a task holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) gpu: HostGpu,
    /// Training run of the rank.
    pub(crate) train: TrainId,
    pub(crate) shares: bool,
}

/// GPUs that ranks hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldGpus {
    held: BTreeMap<HostGpu, Hold>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    ranks: usize,
    /// True if all of them share.
    shared: bool,
}

impl HeldGpus {
    /// Records that a rank takes a GPU.
    pub(crate) fn take(&mut self, gpu: &HostGpu, shares: bool) {
        let free = Hold {
            ranks: 0,
            shared: true,
        };
        let hold = self.held.entry(gpu.clone()).or_insert(free);
        hold.ranks += 1;
        hold.shared &= shares;
    }

    /// Records that a rank gives its GPU back.
    pub(crate) fn give_back(&mut self, gpu: &HostGpu) {
        if let Some(hold) = self.held.get_mut(gpu) {
            hold.ranks -= 1;
            if hold.ranks == 0 {
                self.held.remove(gpu);
            }
        }
    }

    /// Checks whether a rank that shares, or does not, may take a GPU.
    pub(crate) fn is_open(&self, gpu: &HostGpu, shares: bool) -> bool {
        let hold = self.held.get(gpu);
        hold.is_none_or(|hold| shares && hold.shared)
    }

    /// Counts the ranks that hold a GPU.
    pub(crate) fn ranks_on(&self, gpu: &HostGpu) -> usize {
        self.held.get(gpu).map_or(0, |hold| hold.ranks)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u8) -> HostGpu {
        HostGpu {
            host: "h".into(),
            uuid: GpuId::from_bytes([number; 16]),
        }
    }

    fn asks(device: Device) -> DeviceRequest {
        DeviceRequest {
            device,
            shares: false,
        }
    }

    #[test]
    fn a_training_s_device_is_asked_for_and_else_the_executor_s() {
        use Device::{AnyCuda, AnyWgpu, Auto, Cpu, Cuda, Wgpu};
        let gpus = [gpu(0), gpu(1)];
        for (asked, own, expected) in [
            (Cpu, Auto, Choice::Cpu),
            (Cpu, AnyCuda, Choice::Cpu),
            (Auto, Cpu, Choice::Cpu),
            (Auto, Auto, Choice::Prefers(&gpus)),
            (Auto, AnyCuda, Choice::Needs(&gpus)),
            (Auto, Cuda(1), Choice::Needs(&gpus[1..])),
            (AnyCuda, Cpu, Choice::Needs(&gpus)),
            (AnyCuda, AnyWgpu, Choice::Needs(&gpus)),
            (AnyWgpu, Auto, Choice::Cpu),
            (Auto, Wgpu(1), Choice::Cpu),
            (Cuda(0), Cuda(1), Choice::Needs(&gpus[..1])),
            (Cuda(2), Auto, Choice::Needs(&[])),
            (Cuda(usize::MAX), Auto, Choice::Needs(&[])),
        ] {
            assert_eq!(asks(asked).choice(own, &gpus), expected, "{asked} on {own}");
        }
        let takes_none = [Cpu, AnyWgpu, Wgpu(0), Auto, AnyCuda, Cuda(0)];
        let takes_none = takes_none.map(|asked| asks(asked).takes_no_gpu());
        assert_eq!(takes_none, [true, true, true, false, false, false]);
    }

    #[test]
    fn a_gpu_is_open_to_ranks_that_share_with_others_that_do() {
        let (mut held, gpu) = (HeldGpus::default(), gpu(0));
        held.take(&gpu, true);
        assert!(held.is_open(&gpu, true));
        assert!(!held.is_open(&gpu, false), "it wants one of its own");
        held.take(&gpu, true);
        held.give_back(&gpu);
        assert_eq!(held.ranks_on(&gpu), 1);
        held.give_back(&gpu);
        assert!(held.is_empty() && held.is_open(&gpu, false));
        held.take(&gpu, false);
        assert!(!held.is_open(&gpu, true), "its rank does not share");
    }
}
