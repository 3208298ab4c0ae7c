//! GPUs as a resource: which of them a rank may take, and which are held.
//!
//! ```text
//!   DeviceRequest of a training ──┐
//!   device and GPUs of an executor┴─► Choice: the CPU │ a GPU where one is open, else the CPU │ a GPU
//! ```
//!
//! A rank holds its GPU as its task holds slots, from when it is bound until it has ended: see [`super::slots`]. Only
//! ranks of trainings that share hold one together. GPUs are known by host and UUID, for executors of one host may see
//! the same ones, by whatever ordinals.
//!
//! Not here: which executor gets which GPU, which is for [`super::placement`].

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

/// Devices that the ranks of a training ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceRequest {
    pub(crate) device: Device,
    /// Lets other ranks that share use the same GPU.
    pub(crate) shares: bool,
}

/// What a rank on some executor may compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice<'a> {
    Cpu,
    /// One of these GPUs where one is open, else the CPU.
    Prefers(&'a [HostGpu]),
    /// One of these GPUs.
    Needs(&'a [HostGpu]),
}

impl DeviceRequest {
    /// Whether each rank needs a GPU, on whichever executor.
    pub(crate) fn needs_gpu(self) -> bool {
        matches!(self.device, Device::AnyCuda | Device::Cuda(_))
    }

    /// What a rank may compute on where an executor's own device and GPUs are these. A training that leaves the device
    /// open computes on the executor's.
    pub(crate) fn choice(self, device: Device, gpus: &[HostGpu]) -> Choice<'_> {
        let device = match self.device {
            Device::Auto => device,
            asked => asked,
        };
        match device {
            Device::Cpu => Choice::Cpu,
            Device::Auto => Choice::Prefers(gpus),
            Device::AnyCuda => Choice::Needs(gpus),
            Device::Cuda(ordinal) => Choice::Needs(gpus.get(ordinal..=ordinal).unwrap_or(&[])),
        }
    }
}

impl<'a> Choice<'a> {
    /// The GPUs among which there is a choice.
    pub(crate) fn gpus(self) -> &'a [HostGpu] {
        match self {
            Self::Cpu => &[],
            Self::Prefers(gpus) | Self::Needs(gpus) => gpus,
        }
    }

    /// Whether there is nothing without a GPU.
    pub(crate) fn needs_gpu(self) -> bool {
        matches!(self, Self::Needs(_))
    }
}

/// A GPU that a task holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) gpu: HostGpu,
    /// The run whose rank the task is.
    pub(crate) train: TrainId,
    pub(crate) shares: bool,
}

/// The GPUs that ranks hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldGpus {
    held: BTreeMap<HostGpu, Hold>,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    ranks: usize,
    /// All of them share.
    shared: bool,
}

impl HeldGpus {
    /// A rank takes a GPU.
    pub(crate) fn take(&mut self, gpu: &HostGpu, shares: bool) {
        let free = Hold {
            ranks: 0,
            shared: true,
        };
        let hold = self.held.entry(gpu.clone()).or_insert(free);
        hold.ranks += 1;
        hold.shared &= shares;
    }

    /// A rank gives its GPU back.
    pub(crate) fn give_back(&mut self, gpu: &HostGpu) {
        if let Some(hold) = self.held.get_mut(gpu) {
            hold.ranks -= 1;
            if hold.ranks == 0 {
                self.held.remove(gpu);
            }
        }
    }

    /// Whether a rank that shares, or does not, may take a GPU.
    pub(crate) fn is_open(&self, gpu: &HostGpu, shares: bool) -> bool {
        let hold = self.held.get(gpu);
        hold.is_none_or(|hold| shares && hold.shared)
    }

    /// Number of ranks that hold a GPU.
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
        use Device::{AnyCuda, Auto, Cpu, Cuda};
        let gpus = [gpu(0), gpu(1)];
        for (asked, own, expected) in [
            (Cpu, Auto, Choice::Cpu),
            (Cpu, AnyCuda, Choice::Cpu),
            (Auto, Cpu, Choice::Cpu),
            (Auto, Auto, Choice::Prefers(&gpus)),
            (Auto, AnyCuda, Choice::Needs(&gpus)),
            (Auto, Cuda(1), Choice::Needs(&gpus[1..])),
            (AnyCuda, Cpu, Choice::Needs(&gpus)),
            (Cuda(0), Cuda(1), Choice::Needs(&gpus[..1])),
            (Cuda(2), Auto, Choice::Needs(&[])),
            (Cuda(usize::MAX), Auto, Choice::Needs(&[])),
        ] {
            assert_eq!(asks(asked).choice(own, &gpus), expected, "{asked} on {own}");
        }
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
