//! Trials and trainings on a device of Burn's: the backend by the kind of device.
//!
//! Panics of Burn's are errors here, which end a trial or a training as a device's own errors do. The decision by the
//! trial is in [`choose`](super::choose).

#[cfg(feature = "wgpu")]
use burn::backend::{Autodiff, Wgpu};

use super::choose::{Subject, differs, spent};
#[cfg(test)]
use super::tests::Mistaken;
use super::{Interrupted, Outcome, Own, Prepared, TrainingState, run};
use crate::Result;
use crate::device::{BurnDevice, Factors, caught};
#[cfg(feature = "wgpu")]
use crate::network::Tensors;
use crate::threads::Threads;

/// Compares with the host as [`differs`] does; the device multiplies in `f32`.
pub(super) fn differs_from_host(
    device: &BurnDevice,
    name: &str,
    subject: Subject<'_>,
    threads: &Threads,
) -> Result<Option<String>> {
    caught(name, "compute", || match device {
        #[cfg(feature = "wgpu")]
        BurnDevice::Wgpu(device) => {
            differs::<Tensors<Autodiff<Wgpu>>>((device, false), Factors::F32, subject, threads)
        }
        #[cfg(test)]
        BurnDevice::Flex(mistake) => {
            differs::<Mistaken>((mistake, false), Factors::F32, subject, threads)
        }
    })
}

/// Measures a step as [`spent`] does.
pub(super) fn spent_on(
    device: &BurnDevice,
    name: &str,
    subject: Subject<'_>,
    threads: &Threads,
) -> Result<[f64; 2]> {
    caught(name, "compute", || match device {
        #[cfg(feature = "wgpu")]
        BurnDevice::Wgpu(device) => spent::<Tensors<Autodiff<Wgpu>>>(device, subject, threads),
        #[cfg(test)]
        BurnDevice::Flex(mistake) => spent::<Mistaken>(mistake, subject, threads),
    })
}

/// Trains on the device.
///
/// # Errors
/// The errors of [`run`]. If the device fails, the state is lost with it.
pub(super) fn run_on(
    device: BurnDevice,
    name: &str,
    prepared: Prepared,
    state: TrainingState,
    own: Own<'_>,
) -> Result<Outcome, Interrupted> {
    let trained = caught(name, "train", || {
        Ok(match device {
            #[cfg(feature = "wgpu")]
            BurnDevice::Wgpu(device) => {
                run::<Tensors<Autodiff<Wgpu>>>(prepared, state, own, device)
            }
            #[cfg(test)]
            BurnDevice::Flex(mistake) => run::<Mistaken>(prepared, state, own, mistake),
        })
    });
    trained.unwrap_or_else(|error| Err(Interrupted { error, state: None }))
}
