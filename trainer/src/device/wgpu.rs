//! GPUs of any vendor as wgpu finds them: over Vulkan, or Metal on macOS. Burn computes on them.
//!
//! Ordinals count discrete GPUs first, then integrated ones, virtual ones, and last a driver that computes on the CPU,
//! such as Mesa's llvmpipe. They are not registered with the scheduler, which does not know of them.

use burn::backend::Wgpu;
use burn::backend::wgpu::graphics::{AutoGraphicsApi, GraphicsApi};
use burn::backend::wgpu::{WgpuDevice, WgpuRuntime};
use burn::cubecl::Runtime;
use burn::tensor::Tensor;

use super::burn::caught;
use crate::{Error, Result};

/// Types of adapters in the ids of Burn's devices.
const DISCRETE: u16 = 0;
const INTEGRATED: u16 = 1;
const VIRTUAL: u16 = 2;
const SOFTWARE: u16 = 3;

/// Finds the GPU with this ordinal, or the reason why there is none.
pub(super) fn find(ordinal: usize) -> std::result::Result<WgpuDevice, String> {
    let all = all().map_err(|error| error.chain())?;
    let count = all.len();
    let found = all.into_iter().nth(ordinal);
    found.ok_or_else(|| match count {
        0 => "wgpu finds no GPU: no driver for Vulkan is installed, or it sees none".into(),
        1 => "wgpu finds one GPU, wgpu:0".into(),
        count => format!("wgpu finds {count} GPUs, wgpu:0 to wgpu:{}", count - 1),
    })
}

/// Opens the GPU with this ordinal, and computes a sum on it.
///
/// # Errors
/// When it is not there, or does not compute the sum.
pub(super) fn open(ordinal: usize) -> Result<WgpuDevice> {
    let name = format!("wgpu:{ordinal}");
    let device = find(ordinal).map_err(|reason| super::missing(&name, reason))?;
    if device == WgpuDevice::Cpu {
        tracing::warn!(device = name, "its driver computes on the CPU");
    }
    let sum = caught(&name, "open", || {
        let numbers = Tensor::<Wgpu, 1>::from_data([1.0_f32, 2.0], &device);
        Ok(numbers.sum().into_data().into_vec::<f32>().ok())
    })?;
    match sum.as_deref() {
        Some([3.0]) => Ok(device),
        other => Err(Error::DeviceFailed {
            device: name,
            what: "add 1 and 2".into(),
            reason: format!("it gives {other:?}"),
        }),
    }
}

/// Returns all GPUs by their ordinals.
fn all() -> Result<Vec<WgpuDevice>> {
    let ids = caught("wgpu", "list GPUs", || {
        Ok(WgpuRuntime::enumerate_all_devices(
            &AutoGraphicsApi::backend(),
        ))
    })?;
    let count = |kind| ids.iter().filter(|id| id.type_id == kind).count();
    let discrete = (0..count(DISCRETE)).map(WgpuDevice::DiscreteGpu);
    let integrated = (0..count(INTEGRATED)).map(WgpuDevice::IntegratedGpu);
    let shared = (0..count(VIRTUAL)).map(WgpuDevice::VirtualGpu);
    // Burn opens the first of these only.
    let software = (count(SOFTWARE) > 0).then_some(WgpuDevice::Cpu);
    let all = discrete.chain(integrated).chain(shared).chain(software);
    Ok(all.collect())
}
