//! Networks and trainings on the host's first GPU by wgpu, which may be Mesa's software Vulkan.

use burn::backend::wgpu::WgpuDevice;
use burn::backend::{Autodiff, Wgpu};
use volley_proto::spec::Device;

use super::burn::{goes_on_elsewhere, learns_what_the_host_learns};
use super::gradient::{F32, gradients_of, many_rows_have_the_host_s, networks};
use crate::device::{BurnDevice, Opened};
use crate::network::Tensors;
use crate::{ResolvedDevice, resolve_device};

type Network = Tensors<Autodiff<Wgpu>>;

/// Finds the GPU; without one, says that the test is skipped, unless it is required.
fn found() -> Option<ResolvedDevice> {
    match resolve_device(Device::AnyWgpu) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("VOLLEY_WGPU").is_ok_and(|value| value == "required");
            assert!(!required, "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn opened() -> Option<WgpuDevice> {
    match found()?.open().unwrap() {
        Opened::Burn {
            device: BurnDevice::Wgpu(device),
            ..
        } => Some(device),
        other => panic!("{other:?}"),
    }
}

#[test]
fn gradients_by_wgpu_are_finite_differences() {
    if let Some(device) = opened() {
        gradients_of::<Network>(networks(), &device);
    }
}

#[test]
fn many_rows_have_the_host_s_outputs_and_gradient_by_wgpu() {
    if let Some(device) = opened() {
        many_rows_have_the_host_s::<Network>(&device, F32);
    }
}

#[test]
fn wgpu_learns_what_the_host_learns() {
    if let Some(device) = found() {
        learns_what_the_host_learns(device);
    }
}

#[test]
fn a_training_goes_on_from_wgpu_on_the_host_and_back() {
    if let Some(device) = found() {
        goes_on_elsewhere(device);
    }
}
