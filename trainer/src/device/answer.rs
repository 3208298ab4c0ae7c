//! The NVIDIA driver's answer about one device, and its conversion to a [`Gpu`].
//!
//! It makes no calls, so it is tested without a GPU.

use std::ffi::{CStr, c_int};

use volley_proto::spec::Clocks;
use volley_proto::{Capability, Gpu, GpuId};

/// Answer of the driver about one device, as it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Bytes of a `CUuuid`.
    pub(super) uuid: [u8; 16],
    /// Text up to a NUL.
    pub(super) name: [u8; 128],
    pub(super) memory: usize,
    /// Major and minor.
    pub(super) capability: [c_int; 2],
    /// Multiprocessors, their clock, the memory's clock, both in kHz, and the width of the memory's bus in bits; 0 where
    /// the driver does not tell.
    pub(super) clocks: [c_int; 4],
}

impl Answer {
    pub(super) const EMPTY: Self = Self {
        uuid: [0; 16],
        name: [0; 128],
        memory: 0,
        capability: [0; 2],
        clocks: [0; 4],
    };

    pub(super) fn gpu(&self) -> Gpu {
        let name = match CStr::from_bytes_until_nul(&self.name) {
            Ok(name) => name.to_bytes(),
            Err(_) => &self.name,
        };
        let [major, minor] = self.capability.map(|number| number.try_into().unwrap_or(0));
        let clocks = self.clocks.map(|number| number.try_into().unwrap_or(0));
        let [multiprocessors, clock_khz, memory_khz, bus_bits] = clocks;
        Gpu {
            uuid: GpuId::from_bytes(self.uuid),
            name: String::from_utf8_lossy(name).trim().to_owned(),
            memory: self.memory as u64,
            capability: Capability { major, minor },
            clocks: Clocks {
                multiprocessors,
                clock_khz,
                memory_khz,
                bus_bits,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8]) -> Answer {
        let mut answer = Answer::EMPTY;
        answer.name[..name.len()].copy_from_slice(name);
        answer
    }

    #[test]
    fn an_answer_describes_a_gpu() {
        let answer = Answer {
            uuid: *b"\x89\x32\xf9\x37\xd7\x2c\x41\x06\xc1\x2f\x20\xbd\x9f\xae\xd9\xf6",
            memory: 85_520_809_984,
            capability: [9, 0],
            clocks: [132, 1_980_000, -1, 5120],
            ..named(b"NVIDIA H100 80GB HBM3\0left over")
        };
        let gpu = answer.gpu();
        assert_eq!(
            gpu.uuid.to_string(),
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
        );
        assert_eq!(gpu.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(gpu.memory, 85_520_809_984);
        assert_eq!(gpu.capability, Capability { major: 9, minor: 0 });
        assert_eq!(gpu.clocks.multiprocessors, 132);
        assert_eq!(gpu.clocks.memory(), None, "no memory has such a clock");
    }

    #[test]
    fn a_name_may_fill_its_place_or_be_no_text() {
        assert_eq!(named(&[b'x'; 128]).gpu().name, "x".repeat(128));
        assert_eq!(named(b"Tesla\xff\0").gpu().name, "Tesla\u{fffd}");
        assert_eq!(Answer::EMPTY.gpu().name, "");
    }
}
