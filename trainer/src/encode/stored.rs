//! Stored columns: numbers on the heap or in a map, of a file or of memory, and the writers of such maps.
//!
//! Readers see a slice either way; a column is copied to the heap before it is changed. A column in a mapped file takes no
//! memory that the system cannot reclaim: it drops pages and reads them again. If the disk fails to read a page, the process
//! ends (`SIGBUS`), as it does for pages of the program itself.
//!
//! Memory of its own, unlike the heap's, is of the columns' size and goes back to the system as soon as they are dropped: an
//! allocator keeps freed pages for other threads in vain, since each allocates from its own part of the heap.
//!
//! ```text
//!  bytes of a header ─ column ─ column ─ …      each aligned, in the byte order of this host
//! ```
//!
//! This module does not decide which shards are in files.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::{NoUninit, Pod};
use memmap2::{Advice, Mmap, MmapMut};

/// Alignment of a column in a file.
const ALIGNMENT: usize = 64;

/// Least bytes of columns that are worth a map. In tests it is tiny, so that small columns are mapped too.
const MAPPED: usize = if cfg!(test) { 1 << 8 } else { 1 << 17 };

/// Numbers on the heap or in a map.
#[derive(Clone)]
pub(crate) struct Stored<T>(Place<T>);

#[derive(Clone)]
enum Place<T> {
    Heap(Vec<T>),
    Map {
        map: Arc<Mmap>,
        /// The column's bytes, aligned.
        bytes: Range<usize>,
        of: PhantomData<T>,
    },
}

impl<T: Pod> Stored<T> {
    /// Returns the numbers for changes, copied to the heap first if they are in a map.
    pub(crate) fn to_mut(&mut self) -> &mut Vec<T> {
        if let Place::Map { .. } = self.0 {
            self.0 = Place::Heap(self.to_vec());
        }
        match &mut self.0 {
            Place::Heap(numbers) => numbers,
            Place::Map { .. } => unreachable!("they were copied"),
        }
    }

    /// Returns the numbers on the heap.
    pub(crate) fn into_vec(mut self) -> Vec<T> {
        std::mem::take(self.to_mut())
    }

    /// Asks the system to read some of a file's numbers ahead of use.
    pub(crate) fn will_need(&self, numbers: Range<usize>) {
        if let Place::Map { map, bytes, .. } = &self.0 {
            let start = bytes.start + numbers.start * size_of::<T>();
            let len = numbers.len() * size_of::<T>();
            if let Err(error) = map.advise_range(Advice::WillNeed, start, len) {
                tracing::debug!(%error, "rows are not read ahead");
            }
        }
    }
}

impl<T: Pod> Deref for Stored<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Place::Heap(numbers) => numbers,
            Place::Map { map, bytes, .. } => bytemuck::cast_slice(&map[bytes.clone()]),
        }
    }
}

impl<T> Default for Stored<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T> From<Vec<T>> for Stored<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self(Place::Heap(numbers))
    }
}

impl<T> FromIterator<T> for Stored<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        Vec::from_iter(numbers).into()
    }
}

impl<'s, T: Pod> IntoIterator for &'s Stored<T> {
    type Item = &'s T;
    type IntoIter = std::slice::Iter<'s, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Pod> AsRef<[T]> for Stored<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Pod + PartialEq, Other: AsRef<[T]>> PartialEq<Other> for Stored<T> {
    fn eq(&self, other: &Other) -> bool {
        **self == *other.as_ref()
    }
}

/// Writer of a map of columns.
#[derive(Debug)]
pub(super) struct ColumnWriter<W: Write> {
    out: BufWriter<W>,
    at: usize,
}

impl<W: Write> ColumnWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out: BufWriter::new(out),
            at: 0,
        }
    }

    /// Appends raw bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len();
        self.out.write_all(bytes)
    }

    /// Appends a column, given in parts.
    pub(super) fn column<'n, T: NoUninit>(
        &mut self,
        parts: impl IntoIterator<Item = &'n [T]>,
    ) -> io::Result<()> {
        let padding = self.at.next_multiple_of(ALIGNMENT) - self.at;
        self.bytes(&[0; ALIGNMENT][..padding])?;
        let mut parts = parts.into_iter();
        parts.try_for_each(|part| self.bytes(bytemuck::cast_slice(part)))
    }

    /// Flushes and returns the file.
    pub(super) fn finish(self) -> io::Result<W> {
        Ok(self.out.into_inner()?)
    }
}

/// Reader of a map of columns, in the order in which they were written.
#[derive(Debug)]
pub(super) struct ColumnReader {
    map: Arc<Mmap>,
    at: usize,
}

impl ColumnReader {
    /// Limits read-ahead to what [is asked for](Stored::will_need).
    pub(super) fn read_as_told(&self) {
        if let Err(error) = self.map.advise(Advice::Random) {
            tracing::debug!(%error, "the system reads more of a file than it is told to");
        }
    }

    /// Maps a file that is not modified any more.
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: files of columns lie in folders that only the executor uses. This module writes them, and opens them
        // by name only once they are complete; nobody writes to or truncates them afterwards, and a removed file stays
        // while it is mapped.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(file)? };
        let map = Arc::new(map);
        Ok(Self { map, at: 0 })
    }

    /// Maps memory for columns of so many bytes each, in this order, and has them written to it; `None` if they are too
    /// small to be worth a map, or the system has none.
    pub(super) fn in_memory(
        columns: &[usize],
        write: impl FnOnce(&mut ColumnWriter<&mut [u8]>) -> io::Result<()>,
    ) -> Option<Self> {
        let end = |end: usize, bytes: &usize| end.next_multiple_of(ALIGNMENT) + bytes;
        let len = columns.iter().fold(0, end);
        if len < MAPPED {
            return None;
        }
        let written = || {
            let mut map = MmapMut::map_anon(len)?;
            #[cfg(target_os = "linux")]
            if let Err(error) = map.advise(Advice::HugePage) {
                tracing::debug!(%error, "rows are not on huge pages");
            }
            let mut file = ColumnWriter::new(&mut map[..]);
            write(&mut file)?;
            file.finish()?;
            map.make_read_only()
        };
        match written() {
            Ok(map) => Some(Self {
                map: Arc::new(map),
                at: 0,
            }),
            Err(error) => {
                tracing::debug!(%error, "rows are on the heap");
                None
            }
        }
    }

    pub(super) fn bytes(&mut self, len: usize) -> io::Result<&[u8]> {
        let start = self.at;
        self.at = start.saturating_add(len);
        self.map.get(start..self.at).ok_or_else(malformed)
    }

    /// Maps the next column, of `len` numbers.
    pub(super) fn column<T: Pod>(&mut self, len: usize) -> io::Result<Stored<T>> {
        self.at = self.at.next_multiple_of(ALIGNMENT);
        let (map, start) = (Arc::clone(&self.map), self.at);
        self.bytes(len.saturating_mul(size_of::<T>()))?;
        let bytes = start..self.at;
        let of = PhantomData;
        Ok(Stored(Place::Map { map, bytes, of }))
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.map.len()
    }
}

pub(super) fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not as it was written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_back_as_they_were_written() {
        let mut file = ColumnWriter::new(tempfile::tempfile().unwrap());
        file.bytes(b"header").unwrap();
        let numbers = [1.5, -0.0, f64::INFINITY];
        file.column([&numbers[..1], &numbers[1..]]).unwrap();
        file.column([&[7_u8; 3][..]]).unwrap();
        file.column::<u32>([]).unwrap();
        file.column([&[u32::MAX, 0][..]]).unwrap();
        let file = file.finish().unwrap();
        let mut reader = ColumnReader::new(&file).unwrap();
        assert_eq!(reader.bytes(6).unwrap(), b"header");
        let mut column: Stored<f64> = reader.column(3).unwrap();
        column.will_need(1..3);
        assert_eq!(column, &numbers[..]);
        assert_eq!(reader.column::<u8>(3).unwrap(), vec![7; 3]);
        assert!(reader.column::<u32>(0).unwrap().is_empty());
        assert!(!reader.is_at_end());
        assert_eq!(reader.column::<u32>(2).unwrap(), vec![u32::MAX, 0]);
        assert!(reader.is_at_end());
        assert!(reader.column::<u8>(1).is_err());
        assert!(reader.column::<u64>(usize::MAX).is_err());
        // The file, and other columns that map it, are unchanged.
        let other = column.clone();
        column.to_mut().push(2.0);
        assert_eq!((column.len(), other.len()), (4, 3));
    }

    #[test]
    fn columns_in_memory_are_as_long_as_they_are() {
        let (codes, numbers) = (vec![7_u32; 100], vec![0.5_f64; 33]);
        let columns = [size_of_val(&*codes), size_of_val(&*numbers)];
        let mut map = ColumnReader::in_memory(&columns, |file| {
            file.column([&*codes])?;
            file.column([&numbers[..30], &numbers[30..]])
        })
        .unwrap();
        assert_eq!(map.column::<u32>(100).unwrap(), codes);
        let stored: Stored<f64> = map.column(33).unwrap();
        assert!(map.is_at_end());
        assert_eq!(stored, numbers);
        assert_eq!(stored.into_vec(), numbers);
        let small = ColumnReader::in_memory(&[MAPPED - 1], |_| unreachable!("there is no map"));
        assert!(small.is_none());
        // What does not fit is not cut off.
        let cut = ColumnReader::in_memory(&[MAPPED], |file| file.column([&[0_u8; MAPPED + 1][..]]));
        assert!(cut.is_none());
    }
}
