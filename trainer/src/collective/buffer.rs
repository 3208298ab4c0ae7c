//! A [`Buffer`]: numbers that ranks add up again and again, a gradient, where each rank of a host
//! reads the others' in place.
//!
//! Ranks on one host have their numbers in anonymous files (`memfd_create(2)`) that the others map
//! too. A rank writes only to its own. How sums come about is `all_reduce`'s; here is only the memory,
//! and how ranks find each other's: each tells where its file is to be opened and which one it is,
//! and unless every rank has every file, all have ordinary memory.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};

use bytes::{Buf, BufMut};
use memmap2::{Mmap, MmapMut};

/// Numbers of one rank, for [`all_reduce_sum`](super::Communicator::all_reduce_sum).
/// They are zero at first.
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    Own(Vec<f32>),
    Shared {
        own: MmapMut,
        /// By rank; none at the own one.
        peers: Vec<Option<Mmap>>,
    },
}

/// What is shared, as an all-reduce uses it.
pub(super) struct Views<'a> {
    pub(super) own: &'a mut [f32],
    /// By rank; none at the own one.
    pub(super) peers: Vec<Option<&'a [f32]>>,
}

impl Buffer {
    /// These numbers, in ordinary memory.
    pub(super) fn own(numbers: Vec<f32>) -> Self {
        Self(Memory::Own(numbers))
    }

    /// What is shared, if it is.
    pub(super) fn views(&mut self) -> Option<Views<'_>> {
        match &mut self.0 {
            Memory::Own(_) => None,
            Memory::Shared { own, peers } => Some(Views {
                own: bytemuck::cast_slice_mut(own),
                peers: peers
                    .iter()
                    .map(|peer| peer.as_deref().map(bytemuck::cast_slice))
                    .collect(),
            }),
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Memory::Own(numbers) => numbers,
            Memory::Shared { own, .. } => bytemuck::cast_slice(own),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Memory::Own(numbers) => numbers,
            Memory::Shared { own, .. } => bytemuck::cast_slice_mut(own),
        }
    }
}

/// One rank's file, until its peers have opened it.
#[derive(Debug)]
pub(super) struct Offered {
    file: File,
    own: MmapMut,
}

impl Offered {
    /// Makes a file of so many numbers, at least one.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let bytes = len * size_of::<f32>();
        let file = anonymous_file(bytes as u64)?;
        // SAFETY: nobody else writes to these pages, peers map them to read, and the file cannot
        // shrink under the mapping: its size is sealed.
        #[allow(unsafe_code)]
        let own = unsafe { MmapMut::map_mut(&file)? };
        Ok(Self { file, own })
    }

    /// Where a peer on this host finds the file.
    pub(super) fn place(&self) -> io::Result<Vec<u8>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let metadata = self.file.metadata()?;
        let mut place = Vec::new();
        place.put_u32_le(std::process::id());
        place.put_i32_le(self.file.as_raw_fd());
        place.put_u64_le(metadata.dev());
        place.put_u64_le(metadata.ino());
        place.put_u64_le(metadata.size());
        Ok(place)
    }

    /// The peer's file. Ranks in different containers may have the same process ids for different
    /// processes; what is opened must be the very file that was meant.
    pub(super) fn open(&self, mut place: &[u8]) -> io::Result<Mmap> {
        use std::os::unix::fs::MetadataExt;
        const PLACE_BYTES: usize = 32;
        if place.len() != PLACE_BYTES {
            return Err(io::Error::other("the peer shares no memory"));
        }
        let (process, fd) = (place.get_u32_le(), place.get_i32_le());
        let meant = [place.get_u64_le(), place.get_u64_le(), place.get_u64_le()];
        let file = File::open(format!("/proc/{process}/fd/{fd}"))?;
        if !is_sealed(&file) {
            return Err(io::Error::other("the peer's memory could be cut off"));
        }
        let metadata = file.metadata()?;
        if meant != [metadata.dev(), metadata.ino(), metadata.size()] {
            return Err(io::Error::other(
                "another file is in the place of the peer's",
            ));
        }
        if meant[2] != self.own.len() as u64 {
            return Err(io::Error::other("the peer's memory has another size"));
        }
        // SAFETY: the size is sealed, and the peer writes to its pages only between calls of an
        // all-reduce, when nobody reads them, and within one only to what nobody else reads.
        #[allow(unsafe_code)]
        unsafe {
            Mmap::map(&file)
        }
    }

    /// The buffer over this file and the peers', by rank.
    pub(super) fn share(self, peers: Vec<Option<Mmap>>) -> Buffer {
        Buffer(Memory::Shared {
            own: self.own,
            peers,
        })
    }
}

/// A file without a name, of so many zero bytes for good.
#[cfg(target_os = "linux")]
fn anonymous_file(bytes: u64) -> io::Result<File> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("volley-buffer", flags)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// Whether a file stays as long as it is: one that is cut off under a mapping ends the process.
#[cfg(target_os = "linux")]
fn is_sealed(file: &File) -> bool {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    let seals = fcntl(file, FcntlArg::F_GET_SEALS);
    let sealed = |seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK);
    seals.is_ok_and(sealed)
}

#[cfg(not(target_os = "linux"))]
fn is_sealed(_: &File) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file(_: u64) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_rank_writes_another_reads() {
        let mut near = Offered::new(3).unwrap();
        let far = Offered::new(3).unwrap();
        let seen = far.open(&near.place().unwrap()).unwrap();
        near.own[..4].copy_from_slice(&1.5_f32.to_le_bytes());
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&seen), [1.5, 0.0, 0.0]);
    }

    #[test]
    fn memory_that_could_be_cut_off_is_refused() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let near = Offered::new(3).unwrap();
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(12).unwrap();
        let metadata = plain.metadata().unwrap();
        let mut place = Vec::new();
        place.put_u32_le(std::process::id());
        place.put_i32_le(plain.as_raw_fd());
        for number in [metadata.dev(), metadata.ino(), metadata.size()] {
            place.put_u64_le(number);
        }
        let error = near.open(&place).expect_err("is refused").to_string();
        assert!(error.contains("cut off"), "{error}");
    }

    #[test]
    fn another_file_or_size_is_refused() {
        let near = Offered::new(3).unwrap();
        let place = near.place().unwrap();
        let refused = |offered: &Offered, place: &[u8]| {
            offered.open(place).expect_err("is refused").to_string()
        };
        assert!(refused(&Offered::new(4).unwrap(), &place).contains("another size"));
        let mut other = place.clone();
        other[16] ^= 1;
        assert!(refused(&near, &other).contains("another file"));
        assert!(refused(&near, &[]).contains("shares no memory"));
        assert!(near.file.set_len(0).is_err(), "the size is sealed");
    }
}
