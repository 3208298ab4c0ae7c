//! Devices of Burn's that are not CUDA's, and the conversion of its panics to errors.
//!
//! Burn panics where a driver fails. Here nothing is computed: the networks on these devices are
//! [`Tensors`](crate::network).

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// A device that Burn computes on, by its backend.
#[derive(Debug, Clone)]
pub(crate) enum BurnDevice {
    #[cfg(feature = "wgpu")]
    Wgpu(burn::backend::wgpu::WgpuDevice),
    /// The CPU.
    #[cfg(test)]
    Flex(Mistake),
}

/// Mistake of a device in tests.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mistake {
    None,
    /// Gradients are a thousandth too long.
    Gradient,
    /// It panics instead of taking a network's step of this number, from 0.
    Panic(u64),
}

/// Runs work on a device whose library panics when it fails, and returns the panic as an error.
///
/// # Errors
/// The error of the work, or the panic's message with the device's name.
pub(crate) fn caught<T>(device: &str, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the work has borrowed may be half changed: callers drop it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::DeviceFailed {
            device: device.to_owned(),
            what: what.to_owned(),
            reason: text.unwrap_or("it panicked").to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_what_it_said() {
        assert_eq!(caught("d", "add", || Ok(1 + 1)).unwrap(), 2);
        let works: [fn() -> Result<()>; 2] = [|| panic!("lost"), || panic!("lost {}", "it")];
        for (work, due) in works.into_iter().zip(["lost", "lost it"]) {
            let error = caught("d", "add", work).unwrap_err();
            let Error::DeviceFailed {
                device,
                what,
                reason,
            } = error
            else {
                panic!("{error}")
            };
            assert_eq!([&*device, &*what, &*reason], ["d", "add", due]);
        }
    }
}
