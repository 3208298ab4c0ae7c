//! A [`Buffer`]: numbers that ranks sum repeatedly, such as a gradient; each rank of a host reads the others'
//! in place.
//!
//! Ranks on one host keep their numbers in anonymous files (`memfd_create(2)`) that the others map too. A
//! rank writes only to its own, and copies from those of others, which are never exposed as slices, since a
//! slice's contents must not change while it is borrowed. `all_reduce` computes the sums; this module holds
//! only the memory, and the exchange by which ranks find each other's: each announces where its file can be
//! opened and which file it is.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::{Deref, DerefMut, Range};

use bytes::{Buf, BufMut};
use memmap2::{MmapMut, MmapOptions, MmapRaw};

use super::hosts::Hosts;

/// Numbers of one rank, for [`all_reduce_sum`](super::Communicator::all_reduce_sum). Initially zero.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Memory,
    /// Memory that ranks of a host share, if any rank does.
    shared: Option<Shared>,
}

#[derive(Debug)]
enum Memory {
    Own(Vec<f32>),
    Mapped(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Own(vec![])
    }
}

#[derive(Debug)]
struct Shared {
    /// By rank; `None` at the own rank, and at ranks of other hosts.
    peers: Vec<Option<PeerMemory>>,
    hosts: Hosts,
}

/// The numbers of another rank, which writes to them.
#[derive(Debug)]
pub(super) struct PeerMemory(MmapRaw);

impl PeerMemory {
    /// Copies numbers from `start` on. Call it only between two meetings of an all-reduce during which the
    /// peer does not write to this range; at other times the values are arbitrary.
    ///
    /// # Panics
    /// If the range exceeds the numbers.
    pub(super) fn read(&self, start: usize, into: &mut [f32]) {
        let numbers = self.0.len() / size_of::<f32>();
        assert!(start <= numbers && into.len() <= numbers - start);
        let from = self.0.as_ptr().cast::<f32>();
        // SAFETY: the range is within the mapping, as asserted, and the mapping's size is sealed; a page is
        // aligned, and any bits are a valid number. The peer writes to the range only between other meetings
        // than the two around this call.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(start), into.as_mut_ptr(), into.len());
        }
    }
}

/// Contiguous numbers of a [`Buffer`] that are summed by themselves.
#[derive(Debug)]
pub struct BufferPart<'a> {
    numbers: &'a mut [f32],
    /// Their offset in the buffer.
    start: usize,
    shared: Option<&'a Shared>,
}

impl BufferPart<'_> {
    /// Returns the part's range in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.numbers.len()
    }

    /// Returns the part as shared memory, if any rank shares its memory.
    pub(super) fn views(&mut self) -> Option<Views<'_>> {
        let Shared { peers, hosts } = self.shared?;
        Some(Views {
            own: self.numbers,
            start: self.start,
            peers,
            hosts,
        })
    }
}

impl Deref for BufferPart<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.numbers
    }
}

impl DerefMut for BufferPart<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.numbers
    }
}

/// Shared memory of a part, as an all-reduce uses it.
pub(super) struct Views<'a> {
    pub(super) own: &'a mut [f32],
    /// Offset of the part in each rank's buffer.
    pub(super) start: usize,
    /// By rank; `None` at the own rank, and at ranks of other hosts.
    pub(super) peers: &'a [Option<PeerMemory>],
    pub(super) hosts: &'a Hosts,
}

impl Buffer {
    /// Creates a buffer of these numbers in ordinary memory.
    pub(super) fn own(numbers: Vec<f32>) -> Self {
        Self {
            memory: Memory::Own(numbers),
            shared: None,
        }
    }

    /// Creates a buffer of `len` numbers for a rank that is alone on its host while other ranks share theirs.
    pub(super) fn alone(len: usize, hosts: Hosts) -> Self {
        Self {
            memory: Memory::Own(vec![0.0; len]),
            shared: Some(Shared {
                peers: vec![],
                hosts,
            }),
        }
    }

    #[cfg(test)]
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns the parts with these ranges, in this order.
    ///
    /// # Panics
    /// If ranges overlap or exceed the buffer.
    pub(super) fn parts(&mut self, ranges: &[Range<usize>]) -> Vec<BufferPart<'_>> {
        let Self { memory, shared } = self;
        let mut rest = memory.numbers_mut();
        let mut passed = 0;
        let mut by_place: Vec<_> = ranges.iter().enumerate().collect();
        by_place.sort_by_key(|(_, range)| (range.start, range.end));
        let parts = by_place.into_iter().map(|(at, range)| {
            let gap = range.start.checked_sub(passed);
            let gap = gap.expect("parts do not overlap");
            let mut next = |len| {
                let next = rest.split_off_mut(..len);
                next.expect("parts are within the buffer")
            };
            next(gap);
            passed = range.end;
            let part = BufferPart {
                numbers: next(range.len()),
                start: range.start,
                shared: shared.as_ref(),
            };
            (at, part)
        });
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|(at, _)| *at);
        parts.into_iter().map(|(_, part)| part).collect()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.memory {
            Memory::Own(numbers) => numbers,
            Memory::Mapped(own) => bytemuck::cast_slice(own),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.memory.numbers_mut()
    }
}

impl Memory {
    fn numbers_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Own(numbers) => numbers,
            Self::Mapped(own) => bytemuck::cast_slice_mut(own),
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
    /// Creates a file of `len` numbers, at least one.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let bytes = len * size_of::<f32>();
        let file = anonymous_file(bytes as u64)?;
        // SAFETY: the file belongs to this process alone until a peer is told of it. By then its size is
        // sealed, so it cannot shrink under the mapping, and so are further writes: no one else changes these
        // pages.
        #[allow(unsafe_code)]
        let own = unsafe { MmapMut::map_mut(&file)? };
        seal(&file)?;
        Ok(Self { file, own })
    }

    /// Returns the place at which a peer on this host finds the file.
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

    /// Opens the peer's file. In different containers the same process id may name different processes; the
    /// opened file must be the one that the peer announced.
    pub(super) fn open(&self, mut place: &[u8]) -> io::Result<PeerMemory> {
        use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
        const PLACE_BYTES: usize = 32;
        if place.len() != PLACE_BYTES {
            return Err(io::Error::other("the peer shares no memory"));
        }
        let (process, fd) = (place.get_u32_le(), place.get_i32_le());
        let meant = [place.get_u64_le(), place.get_u64_le(), place.get_u64_le()];
        if meant[2] != self.own.len() as u64 {
            return Err(io::Error::other("the peer's memory has another size"));
        }
        let is_meant = |metadata: &Metadata| {
            metadata.is_file() && meant == [metadata.dev(), metadata.ino(), metadata.size()]
        };
        let another = || io::Error::other("another file is in the place of the peer's");
        let path = format!("/proc/{process}/fd/{fd}");
        // Checks the file before opening it: opening a pipe may wait for its other end, and opening a device
        // may act on it.
        if !is_meant(&fs::metadata(&path)?) {
            return Err(another());
        }
        let mut options = File::options();
        let file = options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let file = file.open(&path)?;
        if !is_meant(&file.metadata()?) {
            return Err(another());
        }
        if !is_sealed(&file) {
            return Err(io::Error::other("the peer's memory could be cut off"));
        }
        Ok(PeerMemory(MmapOptions::new().map_raw_read_only(&file)?))
    }

    /// Creates the buffer over this file and those of this host's peers, by rank.
    pub(super) fn share(self, peers: Vec<Option<PeerMemory>>, hosts: Hosts) -> Buffer {
        Buffer {
            memory: Memory::Mapped(self.own),
            shared: Some(Shared { peers, hosts }),
        }
    }
}

/// Creates a file without a name, of `bytes` zero bytes.
#[cfg(target_os = "linux")]
fn anonymous_file(bytes: u64) -> io::Result<File> {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("volley-buffer", flags)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// Seals a file's size, and its contents against all writers but existing mappings.
#[cfg(target_os = "linux")]
fn seal(file: &File) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    let future_write = SealFlag::from_bits_retain(nix::libc::F_SEAL_FUTURE_WRITE);
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | future_write;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL))?;
    Ok(())
}

/// Returns true if a file cannot shrink: truncating a mapped file ends the process.
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
fn seal(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
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
        let read = |start| {
            let mut read = [7.0; 2];
            seen.read(start, &mut read);
            read
        };
        assert_eq!(read(0), [0.0; 2]);
        near.own[4..8].copy_from_slice(&1.5_f32.to_le_bytes());
        assert_eq!((read(0), read(1)), ([0.0, 1.5], [1.5, 0.0]));
        assert!(std::panic::catch_unwind(|| read(2)).is_err(), "too far");
    }

    #[test]
    fn parts_are_disjoint_and_in_the_order_asked_for() {
        let mut buffer = Buffer::own((0..6).map(|at| at as f32).collect());
        let ranges = [4..6, 0..1, 2..2, 2..4];
        let parts = buffer.parts(&ranges);
        assert!(parts.iter().map(BufferPart::range).eq(ranges));
        assert_eq!((&*parts[0], &*parts[1]), (&[4.0, 5.0][..], &[0.0][..]));
        let refused = |ranges: &[Range<usize>]| {
            let parts = || Buffer::own(vec![0.0; 6]).parts(ranges).len();
            std::panic::catch_unwind(parts).is_err()
        };
        assert!(refused(&[0..3, 2..4]));
        assert!(refused(&[0..1, 5..7]));
    }

    #[test]
    fn no_one_else_can_write() {
        let near = Offered::new(3).unwrap();
        let path = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&near.file)
        );
        let file = File::options().write(true).open(path).unwrap();
        let written = std::os::unix::fs::FileExt::write_at(&file, &[1], 0);
        assert!(written.is_err(), "{written:?}");
    }

    #[test]
    fn a_pipe_is_refused_without_waiting_for_its_other_end() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let near = Offered::new(3).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Holds the pipe open without its other end: opening it again for reading would wait.
        let mut options = File::options();
        let options = std::os::unix::fs::OpenOptionsExt::custom_flags(
            options.read(true),
            nix::libc::O_NONBLOCK,
        );
        let pipe = options.open(&path).unwrap();
        let metadata = pipe.metadata().unwrap();
        let mut place = Vec::new();
        place.put_u32_le(std::process::id());
        place.put_i32_le(pipe.as_raw_fd());
        for number in [metadata.dev(), metadata.ino(), near.own.len() as u64] {
            place.put_u64_le(number);
        }
        let error = near.open(&place).expect_err("is refused").to_string();
        assert!(error.contains("another file"), "{error}");
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
