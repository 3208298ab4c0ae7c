//! Precision of matrix products: the one that a training asks for, and the one that a device computes with.
//!
//! These are pure functions; the trainer computes in the precision.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Device, name_of};
use crate::{Error, Result, did_you_mean};

/// Precision of matrix products.
///
/// It is that of their factors: sums are `f32`, and so are weights, gradients, the optimizer's moments and everything
/// that is not a matrix product, whatever the precision. A device computes in the precision asked for or in a finer
/// one, as [`on`](Self::on) determines. On a CPU, coarser precisions only save time where the processor multiplies in
/// bfloat16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// IEEE 754's binary32: 8 bits of exponent and 23 of fraction.
    F32,
    /// NVIDIA's TensorFloat-32: 8 bits of exponent and 10 of fraction.
    Tf32,
    /// bfloat16: 8 bits of exponent and 7 of fraction.
    Bf16,
}

impl Precision {
    /// All precisions with their names, finest first.
    pub const ALL: [(&'static str, Self); 3] = [
        ("f32", Self::F32),
        ("tf32", Self::Tf32),
        ("bf16", Self::Bf16),
    ];

    /// Returns the precision in which a device computes, given the one asked for, if any.
    ///
    /// wgpu computes in `f32` only. The CPU and an NVIDIA GPU compute in any of them, by default in `f32` and in TF32: GPUs
    /// of a compute capability below 8.0 are refused.
    ///
    /// ```
    /// use volley_proto::spec::{DeviceKind, Precision};
    ///
    /// assert_eq!(Precision::on(DeviceKind::Cuda, None), Precision::Tf32);
    /// assert_eq!(Precision::on(DeviceKind::Wgpu, Some(Precision::Bf16)), Precision::F32);
    /// ```
    pub fn on(device: DeviceKind, asked: Option<Self>) -> Self {
        match device {
            DeviceKind::Wgpu => Self::F32,
            DeviceKind::Cpu => asked.unwrap_or(Self::F32),
            DeviceKind::Cuda => asked.unwrap_or(Self::Tf32),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, self))
    }
}

impl std::str::FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = Self::ALL.iter().find(|(name, _)| *name == text);
        named.map(|(_, precision)| *precision).ok_or_else(|| {
            let hint = did_you_mean(text, Self::ALL.iter().map(|(name, _)| *name));
            let expected = format!("expected f32, tf32 or bf16{hint}");
            Error::option("precision", text, expected)
        })
    }
}

/// Kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A GPU of any vendor, through wgpu.
    Wgpu,
}

impl Device {
    /// Returns the kind; `None` for [`Auto`](Self::Auto), which each executor resolves.
    pub fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Auto => None,
            Self::Cpu => Some(DeviceKind::Cpu),
            Self::AnyCuda | Self::Cuda(_) => Some(DeviceKind::Cuda),
            Self::AnyWgpu | Self::Wgpu(_) => Some(DeviceKind::Wgpu),
        }
    }
}

/// Device and precision that a rank computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankDevice {
    /// Kind of device.
    pub device: DeviceKind,
    /// Precision of matrix products.
    pub precision: Precision,
}

impl RankDevice {
    /// Returns a device of this kind, with the precision that follows from the one asked for.
    pub fn new(device: DeviceKind, asked: Option<Precision>) -> Self {
        Self {
            device,
            precision: Precision::on(device, asked),
        }
    }

    /// Returns the precisions of these ranks and their reasons, for users to read; each kind of device once.
    ///
    /// ```
    /// use volley_proto::spec::{DeviceKind, Precision, RankDevice};
    ///
    /// let asked = Some(Precision::Bf16);
    /// let ranks = [DeviceKind::Cuda; 2].map(|device| RankDevice::new(device, asked));
    /// assert_eq!(RankDevice::reasons(&ranks, asked), "bf16 on a GPU, as asked for");
    /// ```
    pub fn reasons(ranks: &[Self], asked: Option<Precision>) -> String {
        let mut texts: Vec<_> = ranks.iter().map(|rank| rank.reason(asked)).collect();
        texts.sort_unstable();
        texts.dedup();
        texts.join("; ")
    }

    fn reason(self, asked: Option<Precision>) -> String {
        let Self { device, precision } = self;
        let place = match device {
            DeviceKind::Cpu => "the CPU",
            DeviceKind::Cuda => "a GPU",
            DeviceKind::Wgpu => "a GPU by wgpu",
        };
        let reason = match (asked, device) {
            (None, _) => ", by default".to_owned(),
            (Some(asked), _) if asked == precision => ", as asked for".to_owned(),
            (Some(asked), DeviceKind::Wgpu) => {
                format!(", which computes in no other (asked for: {asked})")
            }
            (Some(asked), DeviceKind::Cpu | DeviceKind::Cuda) => format!(" (asked for: {asked})"),
        };
        format!("{precision} on {place}{reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceKind::{Cpu, Cuda, Wgpu};
    use super::Precision::{Bf16, F32, Tf32};
    use super::*;
    use crate::store::Manifest;

    #[test]
    fn names_are_read_and_written() {
        for (name, precision) in Precision::ALL {
            assert_eq!(precision.to_string(), name);
            assert_eq!(name.parse::<Precision>().unwrap(), precision);
            let json = format!("\"{name}\"");
            assert_eq!(serde_json::to_string(&precision).unwrap(), json);
            assert_eq!(serde_json::from_str::<Precision>(&json).unwrap(), precision);
        }
        let error = |text: &str| text.parse::<Precision>().unwrap_err().to_string();
        assert_eq!(
            error("fp8"),
            "option precision = fp8: expected f32, tf32 or bf16"
        );
        assert_eq!(
            error("bf_16"),
            "option precision = bf_16: expected f32, tf32 or bf16; did you mean \"bf16\"?"
        );
    }

    #[test]
    fn manifests_of_old_say_nothing_of_it() {
        let old = include_str!("../__fuzz__/manifest/corpus/whole.json");
        let mut manifest: Manifest = serde_json::from_str(old).unwrap();
        assert_eq!(
            (manifest.spec.precision, manifest.precision()),
            (None, None)
        );
        let json = serde_json::to_string(&manifest).unwrap();
        assert!(!json.contains("\"precision\"") && !json.contains("\"rank_devices\""));

        manifest.spec.precision = Some(Tf32);
        manifest.rank_devices = vec![RankDevice::new(Cuda, Some(Tf32))];
        let json = serde_json::to_string(&manifest).unwrap();
        assert!(json.contains(r#""rank_devices":[{"device":"cuda","precision":"tf32"}]"#));
        assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
        let text = "tf32 on a GPU, as asked for".to_owned();
        assert_eq!(manifest.precision(), Some(text));
    }

    #[test]
    fn devices_compute_as_asked_or_finer() {
        let on = |device| {
            [None, Some(F32), Some(Tf32), Some(Bf16)].map(|asked| Precision::on(device, asked))
        };
        assert_eq!(on(Wgpu), [F32; 4]);
        assert_eq!(on(Cpu), [F32, F32, Tf32, Bf16]);
        assert_eq!(on(Cuda), [Tf32, F32, Tf32, Bf16]);
    }

    #[test]
    fn only_an_executor_knows_what_auto_is() {
        let kinds = [Device::Auto, Device::Cpu, Device::Cuda(3), Device::Wgpu(1)].map(Device::kind);
        assert_eq!(kinds, [None, Some(Cpu), Some(Cuda), Some(Wgpu)]);
    }

    #[test]
    fn devices_are_read_and_written() {
        use Device::{AnyCuda, AnyWgpu, Auto};
        let numbered = [Device::Cuda(0), Device::Wgpu(12)];
        for device in [Auto, Device::Cpu, AnyCuda, AnyWgpu]
            .into_iter()
            .chain(numbered)
        {
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
            let json = serde_json::to_string(&device).unwrap();
            assert_eq!(serde_json::from_str::<Device>(&json).unwrap(), device);
        }
        for text in ["gpu", "wgpu:", "wgpu:-1", "wgpu:x", "cpu:0", "WGPU", ":1"] {
            text.parse::<Device>().unwrap_err();
        }
    }

    #[test]
    fn says_what_is_computed_and_why() {
        let reasons = |asked, devices: &[DeviceKind]| {
            let ranks = devices.iter().map(|device| RankDevice::new(*device, asked));
            RankDevice::reasons(&ranks.collect::<Vec<_>>(), asked)
        };
        for (asked, devices, due) in [
            (None, &[Cpu, Cpu][..], "f32 on the CPU, by default"),
            (None, &[Cuda], "tf32 on a GPU, by default"),
            (Some(F32), &[Cpu], "f32 on the CPU, as asked for"),
            (
                Some(Bf16),
                &[Cpu, Cuda, Cpu],
                "bf16 on a GPU, as asked for; bf16 on the CPU, as asked for",
            ),
            (
                Some(Tf32),
                &[Wgpu],
                "f32 on a GPU by wgpu, which computes in no other (asked for: tf32)",
            ),
        ] {
            assert_eq!(reasons(asked, devices), due);
        }
        // A GPU without bfloat16.
        let old = RankDevice {
            device: Cuda,
            precision: F32,
        };
        let text = RankDevice::reasons(&[old], Some(Bf16));
        assert_eq!(text, "f32 on a GPU (asked for: bf16)");
    }
}
