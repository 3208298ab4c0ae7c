//! An emulated device on the CPU, for tests: the kernels' own text, compiled by the host's C++ compiler, and products
//! by their definition. It is not for training: a thread of a block is a fibre.
//!
//! Work is done as it is queued, up to an all-reduce whose peers, devices of other threads, have not come yet: then it
//! stays queued, as on a GPU. On a link that was left, sums are wrong, and work goes on with them. Work behind copies to
//! the host stays queued too, until something waits for it: the host gets what was copied before the device goes on. A
//! GPU may copy later; so it is checked that the work which was queued meanwhile leaves what is copied.
//!
//! It calls C functions of the library that it compiled, and passes addresses of host memory to kernels, which is
//! `unsafe`.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_char, c_int};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use libloading::Library;
use parking_lot::Mutex;

use super::runtime::{
    Address, Buffer, Counters, Factors, Identity, KERNELS, Number, Operand, Product, Recorded,
    Records, Runtime, Summed, Transfer, Words, Work, count,
};
use crate::{Error, Result};

type Launcher = unsafe extern "C" fn(*const c_char, c_int, c_int, *const Words) -> c_int;

/// Threads of a block: few, since each is a fibre.
const THREADS: u32 = 8;

/// Time after which a call that waits for queued sums gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Replays on a link after which a device that is spoilt by [`Emulated::LOST`] fails.
const REPLAYS: u64 = 9;

/// Copies to the host after which a device that is spoilt by [`Emulated::COLLECT`] fails.
const COLLECTS: u64 = 41;

/// Links that not all devices have joined yet, by id.
static LINKS: Mutex<BTreeMap<u64, Arc<Meeting>>> = Mutex::new(BTreeMap::new());

/// Devices that sum with each other.
#[derive(Debug, Default)]
struct Meeting {
    joined: AtomicU64,
    sums: Mutex<BTreeMap<u64, Sum>>,
}

/// An all-reduce: the numbers of each rank, and how many ranks have taken the sum.
#[derive(Debug)]
struct Sum {
    parts: Vec<Option<Vec<u8>>>,
    taken: usize,
}

/// A device's end of a link.
#[derive(Debug)]
struct Link {
    id: u64,
    meeting: Arc<Meeting>,
    rank: usize,
    world_size: usize,
    /// Number of the next all-reduce.
    next: u64,
    replays: u64,
}

/// CPU as a device.
#[derive(Debug)]
pub(crate) struct Emulated {
    uuid: u64,
    queue: RefCell<VecDeque<Queued>>,
    /// Number of parts of the queue that are done.
    done: Cell<u64>,
    /// Copies to the host, each with the number of parts of the queue until whose end its source must not change.
    watched: RefCell<Vec<(u64, Copied)>>,
    collects: Cell<u64>,
    link: RefCell<Option<Link>>,
    /// True once a link was left.
    left: Cell<bool>,
    launcher: Launcher,
    memory: RefCell<BTreeMap<Address, Layout>>,
    recorded: RefCell<BTreeMap<usize, Vec<Work>>>,
    pinned: RefCell<BTreeMap<Buffer, Staged>>,
    counters: Cell<Counters>,
    /// Size of its memory in bytes, to test running out of memory.
    bytes: u64,
    /// Kernel whose launches are skipped, to test that wrong results are detected; or [`RECORD`](Self::RECORD),
    /// [`UNLINKED`](Self::UNLINKED), [`SUMS`](Self::SUMS), [`LOST`](Self::LOST), [`PIN`](Self::PIN),
    /// [`COLLECT`](Self::COLLECT) or [`COPIES`](Self::COPIES).
    pub(crate) spoilt: Cell<Option<&'static str>>,
    /// Where outcomes of trials are kept: in a test's own folder, if at all.
    pub(crate) records: Cell<Option<&'static Records>>,
}

/// Part of the queue.
#[derive(Debug)]
enum Queued {
    Work(Box<Work>),
    /// Copies to the host.
    Copies(Buffer, Vec<Transfer>),
}

/// Bytes that were copied to the host, and their address.
#[derive(Debug)]
struct Copied(Address, Vec<u8>);

/// Pinned buffer. Its copies are made as late as they may be, so that work which does not wait for them is wrong.
#[derive(Debug)]
struct Staged {
    /// Its contents, aligned as pinned memory is for numbers of 8 bytes.
    words: Vec<u64>,
    bytes: usize,
    /// Copies that work has not waited for.
    due: Vec<Transfer>,
    /// Device memory that was copied to since the buffer was last retired.
    used: Vec<Transfer>,
    /// Copies to the buffer that were made since it was last accessed.
    collected: Vec<Copied>,
}

/// Returns the kernels as a library of the host, or the reason why there is none.
fn library() -> std::result::Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let compile = || {
        let fail = |error: std::io::Error| error.to_string();
        let folder = tempfile::tempdir().map_err(fail)?;
        let [text, library] = ["kernels.cpp", "kernels.so"].map(|name| folder.path().join(name));
        let preamble = include_str!("emulated.cpp");
        std::fs::write(&text, [preamble, KERNELS].concat()).map_err(fail)?;
        let output = Command::new("c++")
            .args(["-O2", "-ffp-contract=off", "-shared", "-fPIC", "-o"])
            .args([&library, &text])
            .output()
            .map_err(|error| format!("c++, a C++ compiler, does not run: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        // SAFETY: the library was just compiled; its initializers fill a list of kernels.
        unsafe { Library::new(&library) }.map_err(|error| error.to_string())
    };
    let library = LIBRARY.get_or_init(compile);
    library.as_ref().map_err(String::as_str)
}

impl Emulated {
    /// Spoils recording, which then fails.
    pub(crate) const RECORD: &str = "record";

    /// Spoils linking, as if the library for it were missing.
    pub(crate) const UNLINKED: &str = "unlinked";

    /// Spoils sums over devices, which are then wrong.
    pub(crate) const SUMS: &str = "sums";

    /// Spoils replaying: the device fails among the steps that it takes with others.
    pub(crate) const LOST: &str = "lost";

    /// Spoils pinning host memory, which is refused. Such a device cannot be linked, and neither can those below.
    pub(crate) const PIN: &str = "pin";

    /// Spoils copies to the host: the device fails among those of a step.
    pub(crate) const COLLECT: &str = "collect";

    /// Spoils copies to the host, which leave what was in the buffer.
    pub(crate) const COPIES: &str = "copies";

    /// Opens the device with this many bytes of memory. Without a C++ compiler, prints so and returns `None`.
    ///
    /// # Panics
    /// If there is no compiler and `VOLLEY_EMULATED=required` demands one, or if kernels do not compile.
    pub(crate) fn of(bytes: u64) -> Option<Rc<Self>> {
        let library = match library() {
            Ok(library) => library,
            Err(reason) if reason.contains("does not run") => {
                let required = std::env::var("VOLLEY_EMULATED").is_ok_and(|is| is == "required");
                assert!(!required, "{reason}");
                eprintln!("left out: the emulated device; {reason}");
                return None;
            }
            Err(reason) => panic!("the kernels do not compile: {reason}"),
        };
        // SAFETY: the function has the signature in `emulated.cpp`, and the library stays loaded.
        let launcher = unsafe { library.get::<Launcher>(b"volley_launch\0") };
        static OPENED: AtomicU64 = AtomicU64::new(0);
        Some(Rc::new(Self {
            uuid: OPENED.fetch_add(1, Ordering::Relaxed),
            queue: RefCell::default(),
            done: Cell::default(),
            watched: RefCell::default(),
            collects: Cell::default(),
            link: RefCell::default(),
            left: Cell::default(),
            launcher: *launcher.expect("emulated.cpp has it"),
            memory: RefCell::default(),
            recorded: RefCell::default(),
            pinned: RefCell::default(),
            counters: Cell::default(),
            bytes,
            spoilt: Cell::default(),
            records: Cell::default(),
        }))
    }

    /// Opens the device with unlimited memory.
    pub(crate) fn find() -> Option<Rc<dyn Runtime>> {
        Self::of(u64::MAX).map(|device| device as Rc<dyn Runtime>)
    }

    /// Asserts that bytes lie in allocated memory.
    fn check(&self, at: Address, bytes: usize) {
        let memory = self.memory.borrow();
        let (start, layout) = memory.range(..=at).next_back().expect("memory is held");
        assert!(
            at + bytes as u64 <= start + layout.size() as u64,
            "in bounds"
        );
    }

    /// Makes the copies that are due.
    fn settle(&self, staged: &mut Staged) {
        let bytes: &[u8] = bytemuck::cast_slice(&staged.words);
        for transfer in staged.due.drain(..) {
            self.check(transfer.at, transfer.bytes);
            // SAFETY: this many bytes from there on are allocated, and nothing else refers to them now.
            let to =
                unsafe { std::slice::from_raw_parts_mut(transfer.at as *mut u8, transfer.bytes) };
            to.copy_from_slice(&bytes[transfer.offset..][..transfer.bytes]);
        }
    }

    /// Returns a copy of some bytes of memory.
    fn contents(&self, at: Address, bytes: usize) -> Vec<u8> {
        self.check(at, bytes);
        // SAFETY: this many bytes from there on are allocated, and nothing changes them meanwhile.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec()
    }

    /// Copies to a buffer.
    fn copy_out(&self, buffer: Buffer, transfers: &[Transfer]) {
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        for transfer in transfers {
            let bytes = self.contents(transfer.at, transfer.bytes);
            if self.spoilt.get() != Some(Self::COPIES) {
                let to: &mut [u8] = bytemuck::cast_slice_mut(&mut staged.words);
                to[transfer.offset..][..transfer.bytes].copy_from_slice(&bytes);
            }
            staged.collected.push(Copied(transfer.at, bytes));
        }
    }

    /// Does queued work up to the last copies to a buffer, or all of it; at most up to an all-reduce whose peers have not
    /// come. Returns true if nothing of it is left.
    fn advance(&self, until: Option<Buffer>) -> bool {
        loop {
            if until.is_some_and(|buffer| !self.copies_to(Some(buffer))) {
                return true;
            }
            let Some(queued) = self.queue.borrow_mut().pop_front() else {
                return true;
            };
            let is_done = match &queued {
                Queued::Work(work) => self.work(work),
                Queued::Copies(buffer, transfers) => {
                    self.copy_out(*buffer, transfers);
                    true
                }
            };
            if !is_done {
                self.queue.borrow_mut().push_front(queued);
                return false;
            }
            self.done.set(self.done.get() + 1);
            self.compare();
        }
    }

    /// Returns true if copies to this buffer, or to any, are queued.
    fn copies_to(&self, buffer: Option<Buffer>) -> bool {
        let queue = self.queue.borrow();
        let is_copy = |queued: &Queued| match queued {
            Queued::Copies(of, _) => buffer.is_none_or(|buffer| buffer == *of),
            Queued::Work(_) => false,
        };
        queue.iter().any(is_copy)
    }

    /// Checks what was copied, once the work is done that was queued before the host knew of the copy.
    fn compare(&self) {
        let watched = self.watched.take().into_iter();
        let (due, left): (Vec<_>, _) = watched.partition(|(until, _)| *until <= self.done.get());
        *self.watched.borrow_mut() = left;
        for (_, Copied(at, bytes)) in due {
            let is_same = self.contents(at, bytes.len()) == bytes;
            assert!(is_same, "work changes what is copied to the host");
        }
    }

    /// Returns the number of parts of the queue that are not done.
    pub(crate) fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Waits for all queued work.
    fn finish(&self) -> Result<()> {
        self.reach(None)
    }

    /// Waits for the copies to a buffer, or for all queued work.
    fn reach(&self, until: Option<Buffer>) -> Result<()> {
        let start = Instant::now();
        while !self.advance(until) {
            if start.elapsed() > PATIENCE {
                return Err(self.failed("sum with its peers", "they have not come"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Does a part of a step. Returns false if its peers have not come.
    fn work(&self, work: &Work) -> bool {
        match work {
            Work::Product(product) => self.multiply(product),
            Work::Launch(launch) if self.spoilt.get() == Some(launch.kernel) => {}
            Work::Launch(launch) => {
                let name = CString::new(launch.kernel).expect("names have no zero");
                let (blocks, threads) = (launch.blocks as c_int, launch.threads as c_int);
                // SAFETY: the kernel reads and writes memory that its words address, which `network::plan` has
                // allocated for it; the name and the words outlive the call.
                let code =
                    unsafe { (self.launcher)(name.as_ptr(), blocks, threads, &launch.words) };
                assert_eq!(code, 0, "there is no kernel {}", launch.kernel);
            }
            Work::AllReduce(all) => return self.all_reduce(all),
            Work::Call(call) => unreachable!("{call:?} is not queued"),
        }
        true
    }

    /// Sums over the linked devices in the order of ranks. Returns false if one of them has not come.
    fn all_reduce(&self, all: &[Summed]) -> bool {
        let mut link = self.link.borrow_mut();
        let Some(link) = link.as_mut() else {
            assert!(self.left.get(), "sums are over linked devices");
            return true;
        };
        let mut sums = link.meeting.sums.lock();
        let sum = sums.entry(link.next).or_insert_with(|| Sum {
            parts: vec![None; link.world_size],
            taken: 0,
        });
        sum.parts[link.rank].get_or_insert_with(|| {
            let own = all.iter().flat_map(|of| self.bytes(of).to_vec());
            own.collect()
        });
        let Some(parts) = sum.parts.iter().cloned().collect::<Option<Vec<_>>>() else {
            return false;
        };
        let mut start = 0;
        for of in all {
            let bytes = self.bytes(of);
            let span = start..start + bytes.len();
            start = span.end;
            let parts = parts.iter().map(|part| &part[span.clone()]);
            match of.kind {
                Number::F32 => add::<f32>(parts, bytemuck::cast_slice_mut(bytes)),
                Number::F64 => add::<f64>(parts, bytemuck::cast_slice_mut(bytes)),
            }
            if self.spoilt.get() == Some(Self::SUMS) {
                bytes.fill(0);
            }
        }
        assert!(parts.iter().all(|part| part.len() == start), "ranks agree");
        sum.taken += 1;
        if sum.taken == link.world_size {
            sums.remove(&link.next);
        }
        link.next += 1;
        true
    }

    /// Returns the bytes of summed numbers.
    #[allow(clippy::mut_from_ref)]
    fn bytes(&self, of: &Summed) -> &mut [u8] {
        let bytes = of.len
            * match of.kind {
                Number::F32 => 4,
                Number::F64 => 8,
            };
        self.check(of.at, bytes);
        // SAFETY: this many bytes from there on are allocated, and nothing else refers to them now.
        unsafe { std::slice::from_raw_parts_mut(of.at as *mut u8, bytes) }
    }

    fn failed(&self, what: &str, reason: &str) -> Error {
        Error::DeviceFailed {
            device: self.name(),
            what: what.into(),
            reason: reason.into(),
        }
    }

    fn multiply(&self, product: &Product) {
        let [m, n, k] = product.sizes;
        for lane in 0..product.lanes {
            let a = self.matrix(&product.a, lane, [m, k], product.factors);
            let b = self.matrix(&product.b, lane, [k, n], product.factors);
            let mut sums = vec![0.0; m * n];
            for (a, sums) in a.chunks_exact(k).zip(sums.chunks_exact_mut(n)) {
                for (a, b) in a.iter().zip(b.chunks_exact(n)) {
                    let terms = sums.iter_mut().zip(b);
                    terms.for_each(|(sum, b)| *sum += a * b);
                }
            }
            for (row, sums) in sums.chunks_exact(n).enumerate() {
                let at = address(&product.c, lane, row);
                self.check(at, 4 * n);
                // SAFETY: the row is in allocated memory, and nothing else refers to it now.
                let to = unsafe { std::slice::from_raw_parts_mut(at as *mut f32, n) };
                for (to, sum) in to.iter_mut().zip(sums) {
                    *to = if product.add { *to + sum } else { *sum };
                }
            }
        }
    }

    /// Reads a factor, row-major, rounded to its precision.
    fn matrix(
        &self,
        of: &Operand,
        lane: usize,
        [rows, columns]: [usize; 2],
        factors: Factors,
    ) -> Vec<f32> {
        let mut all = vec![0.0; rows * columns];
        let [lines, length] = match of.transposed {
            true => [columns, rows],
            false => [rows, columns],
        };
        for line in 0..lines {
            let at = address(of, lane, line);
            self.check(at, 4 * length);
            // SAFETY: the line is in allocated memory, and nothing changes it meanwhile.
            let numbers = unsafe { std::slice::from_raw_parts(at as *const f32, length) };
            for (at, number) in numbers.iter().enumerate() {
                let place = match of.transposed {
                    true => at * columns + line,
                    false => line * columns + at,
                };
                all[place] = *number;
            }
        }
        factors.round(&mut all);
        all
    }
}

/// Replaces numbers with the sums of each rank's, which may not be aligned.
fn add<'a, T: bytemuck::Pod + std::ops::Add<Output = T>>(
    parts: impl Iterator<Item = &'a [u8]>,
    sums: &mut [T],
) {
    for (rank, part) in parts.enumerate() {
        let part: Vec<T> = bytemuck::pod_collect_to_vec(part);
        for (sum, own) in sums.iter_mut().zip(part) {
            *sum = if rank == 0 { own } else { *sum + own };
        }
    }
}

fn address(of: &Operand, lane: usize, row: usize) -> Address {
    of.at + 4 * (lane * of.lane + row * of.ld) as u64
}

impl Runtime for Emulated {
    fn name(&self) -> String {
        "the emulated device".into()
    }

    fn threads(&self) -> u32 {
        THREADS
    }

    fn blocks(&self) -> u32 {
        3
    }

    fn free(&self) -> Result<u64> {
        Ok(self.bytes - self.counters.get().bytes_held.min(self.bytes))
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        if bytes as u64 > self.free()? {
            return Err(Error::DeviceMemory {
                device: self.name(),
                bytes: bytes as u64,
                free: self.free()?,
            });
        }
        let layout = Layout::from_size_align(bytes, 256).expect("256 is a power of two");
        // SAFETY: the layout is not empty: `Memory` allocates at least 16 bytes.
        let at = unsafe { alloc_zeroed(layout) } as Address;
        self.memory.borrow_mut().insert(at, layout);
        count(&self.counters, |counters| {
            counters.bytes_held += bytes as u64
        });
        Ok(at)
    }

    fn release(&self, at: Address) {
        // Queued work may still use it.
        self.finish()
            .expect("a link is left before memory is freed");
        let layout = self.memory.borrow_mut().remove(&at);
        let layout = layout.expect("memory is given back once");
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { dealloc(at as *mut u8, layout) };
        let bytes = layout.size() as u64;
        count(&self.counters, |counters| counters.bytes_held -= bytes);
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<()> {
        self.finish()?;
        self.check(at, bytes.len());
        // SAFETY: this many bytes from there on are allocated, and nothing else refers to them now.
        let to = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes.len()) };
        to.copy_from_slice(bytes);
        count(&self.counters, |counters| {
            counters.writes += 1;
            counters.bytes_written += bytes.len() as u64;
        });
        Ok(())
    }

    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<()> {
        self.finish()?;
        self.check(at, bytes.len());
        // SAFETY: this many bytes from there on are allocated, and nothing changes them meanwhile.
        bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(at as *const u8, bytes.len()) });
        count(&self.counters, |counters| {
            counters.reads += 1;
            counters.bytes_read += bytes.len() as u64;
        });
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.finish()?;
        self.check(from, bytes);
        self.check(to, bytes);
        // SAFETY: this many bytes are allocated from both addresses on, and nothing else refers to them now.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn enqueue(&self, work: &[Work]) -> Result<()> {
        let queued = work.iter().cloned().map(Box::new).map(Queued::Work);
        self.queue.borrow_mut().extend(queued);
        if !self.copies_to(None) {
            self.advance(None);
        }
        count(&self.counters, |counters| {
            counters.launches += work.len() as u64
        });
        Ok(())
    }

    fn record(&self, work: &[Work]) -> Result<Recorded> {
        if self.spoilt.get() == Some(Self::RECORD) {
            return Err(self.failed("record a step", "it is spoilt"));
        }
        // As a GPU does, whose libraries load what they need then.
        if self.queue.borrow().is_empty() {
            for part in work {
                if let Work::Product(product) = part {
                    self.multiply(product);
                }
            }
        }
        let mut all = self.recorded.borrow_mut();
        let at = all.keys().next_back().map_or(0, |last| last + 1);
        all.insert(at, work.to_vec());
        count(&self.counters, |counters| {
            counters.recorded = work.len() as u64
        });
        Ok(Recorded(at))
    }

    fn replay(&self, recorded: Recorded) -> Result<()> {
        if let Some(link) = self.link.borrow_mut().as_mut() {
            link.replays += 1;
            if self.spoilt.get() == Some(Self::LOST) && link.replays > REPLAYS {
                return Err(self.failed("replay a step", "it is spoilt"));
            }
        }
        let work = self.recorded.borrow()[&recorded.0].clone();
        let before = self.counters.get().launches;
        self.enqueue(&work)?;
        count(&self.counters, |counters| {
            counters.launches = before;
            counters.replays += 1;
        });
        Ok(())
    }

    fn forget(&self, recorded: Recorded) {
        self.recorded.borrow_mut().remove(&recorded.0);
    }

    fn pin(&self, bytes: usize) -> Result<Buffer> {
        if self.spoilt.get() == Some(Self::PIN) {
            return Err(self.failed("pin host memory", "it is spoilt"));
        }
        let mut all = self.pinned.borrow_mut();
        let buffer = Buffer(all.keys().next_back().map_or(0, |last| last.0 + 1));
        let staged = Staged {
            words: vec![0; bytes.div_ceil(8)],
            bytes,
            due: vec![],
            used: vec![],
            collected: vec![],
        };
        all.insert(buffer, staged);
        count(&self.counters, |counters| {
            counters.bytes_pinned += bytes as u64
        });
        Ok(buffer)
    }

    fn unpin(&self, buffer: Buffer) {
        self.reach(Some(buffer))
            .expect("a link is left before memory is freed");
        let staged = self.pinned.borrow_mut().remove(&buffer);
        let bytes = staged.expect("a buffer is given back once").bytes as u64;
        count(&self.counters, |counters| counters.bytes_pinned -= bytes);
    }

    fn access(&self, buffer: Buffer, using: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.reach(Some(buffer))?;
        let is_due = |staged: &Staged| !staged.due.is_empty();
        if self.pinned.borrow().get(&buffer).is_some_and(is_due) {
            // Copies from the buffer may be to memory that queued work reads.
            self.finish()?;
        }
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        let until = self.done.get() + self.queue.borrow().len() as u64;
        let copied = staged.collected.drain(..).map(|copied| (until, copied));
        self.watched.borrow_mut().extend(copied);
        self.compare();
        self.settle(staged);
        using(&mut bytemuck::cast_slice_mut(&mut staged.words)[..staged.bytes]);
        Ok(())
    }

    fn transfer(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()> {
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        for transfer in transfers {
            let end = |of: &Transfer| of.at + of.bytes as u64;
            let overlaps = |used: &Transfer| used.at < end(transfer) && transfer.at < end(used);
            assert!(
                !staged.used.iter().any(overlaps),
                "rows are replaced while work may use them"
            );
        }
        staged.due.extend(transfers);
        staged.used.extend(transfers);
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes).sum();
        count(&self.counters, |counters| {
            counters.transfers += transfers.len() as u64;
            counters.bytes_transferred += bytes as u64;
        });
        Ok(())
    }

    fn collect(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()> {
        self.collects.set(self.collects.get() + 1);
        if self.spoilt.get() == Some(Self::COLLECT) && self.collects.get() > COLLECTS {
            return Err(self.failed("copy to the host", "it is spoilt"));
        }
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        assert!(staged.due.is_empty(), "copies from the buffer have arrived");
        let words: &mut [u8] = bytemuck::cast_slice_mut(&mut staged.words);
        for transfer in transfers {
            self.check(transfer.at, transfer.bytes);
            // Not a number, until it is copied.
            words[transfer.offset..][..transfer.bytes].fill(u8::MAX);
        }
        let copies = Queued::Copies(buffer, transfers.to_vec());
        self.queue.borrow_mut().push_back(copies);
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes).sum();
        count(&self.counters, |counters| {
            counters.reads += transfers.len() as u64;
            counters.bytes_read += bytes as u64;
        });
        Ok(())
    }

    fn identity(&self) -> Result<Identity> {
        let apart = [Self::UNLINKED, Self::PIN, Self::COLLECT, Self::COPIES];
        let unlinked = self.spoilt.get().is_some_and(|how| apart.contains(&how));
        Ok(Identity {
            uuid: format!("emulated {}", self.uuid),
            kind: self.name(),
            unlinked: unlinked.then(|| "its library is not found".to_owned()),
        })
    }

    fn records(&self) -> Option<Records> {
        self.records.get().cloned()
    }

    fn link_id(&self) -> Result<Vec<u8>> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Ok(id.to_le_bytes().to_vec())
    }

    fn join(&self, id: &[u8], rank: usize, world_size: usize) -> Result<()> {
        let id = id.try_into().map(u64::from_le_bytes);
        let id = id.map_err(|_| self.failed("join a link", "it is no id"))?;
        let mut links = LINKS.lock();
        let meeting = Arc::clone(links.entry(id).or_default());
        let joined = meeting.joined.fetch_add(1, Ordering::AcqRel) + 1;
        if joined == world_size as u64 {
            links.remove(&id);
        }
        *self.link.borrow_mut() = Some(Link {
            id,
            meeting,
            rank,
            world_size,
            next: 0,
            replays: 0,
        });
        Ok(())
    }

    fn arrive(&self, buffer: Buffer) -> Result<()> {
        // Queued work may read the memory that is copied to.
        self.finish()?;
        let mut all = self.pinned.borrow_mut();
        self.settle(all.get_mut(&buffer).expect("the buffer is held"));
        Ok(())
    }

    fn retire(&self, buffer: Buffer) -> Result<()> {
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        staged.used.clear();
        Ok(())
    }

    fn leave(&self) -> Result<()> {
        let Some(link) = self.link.borrow_mut().take() else {
            return Ok(());
        };
        // Of a link that was never complete.
        LINKS.lock().remove(&link.id);
        self.left.set(true);
        self.finish()?;
        self.recorded.borrow_mut().clear();
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        let is_complete = self.link.borrow().as_ref().is_none_or(|link| {
            link.meeting.joined.load(Ordering::Acquire) == link.world_size as u64
        });
        Ok(is_complete && self.advance(None))
    }

    fn counters(&self) -> &Cell<Counters> {
        &self.counters
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.leave().expect("work of a link that was left ends");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::device::runtime::{Launch, Memory, Pinned};

    const NUMBERS: usize = 10;

    /// Returns a device with ones in its memory, and room for a copy of them.
    fn ones() -> Option<(Rc<Emulated>, Memory, Pinned)> {
        let device = Emulated::of(u64::MAX)?;
        let runtime = Rc::clone(&device) as Rc<dyn Runtime>;
        let memory = Memory::of(&runtime, &[1_f32; NUMBERS]).unwrap();
        let pinned = Pinned::new(&runtime, 4 * NUMBERS + 4).unwrap();
        Some((device, memory, pinned))
    }

    /// Returns the work that sets these numbers to zero.
    fn clear(from: Address, numbers: usize) -> Work {
        Work::Launch(Launch {
            kernel: "clear",
            blocks: numbers.div_ceil(THREADS as usize) as u32,
            threads: THREADS,
            words: Words::new(&[from, numbers as u64]),
        })
    }

    /// Returns the copy of all numbers but the last, behind the first of the buffer.
    fn most(memory: &Memory) -> Transfer {
        Transfer {
            offset: 4,
            at: memory.at(),
            bytes: 4 * (NUMBERS - 1),
        }
    }

    fn numbers(pinned: &Pinned) -> Vec<f32> {
        let mut found = vec![];
        let take = |bytes: &[u8]| found = bytemuck::cast_slice(bytes).to_vec();
        pinned.take(take).unwrap();
        found
    }

    #[test]
    fn copies_to_the_host_are_behind_earlier_work_and_before_later_work_ends() {
        let Some((device, memory, pinned)) = ones() else {
            return;
        };
        let before = device.counters().get();
        let half = NUMBERS / 2;
        device.run(&[clear(memory.at(), half)]).unwrap();
        pinned.collect(&[most(&memory)]).unwrap();
        // The last number is not copied.
        let last = memory.at() + 4 * (NUMBERS - 1) as u64;
        device.run(&[clear(last, 1)]).unwrap();
        assert_eq!(device.queued(), 2, "neither is done before it is asked for");
        let due = |last: f32| [vec![0.0; half], vec![1.0; NUMBERS - half - 1], vec![last]].concat();
        assert_eq!(numbers(&pinned)[1..NUMBERS], due(1.0)[..NUMBERS - 1]);
        assert_eq!(device.queued(), 1, "the host goes on before the device");
        let after = device.counters().get();
        assert_eq!(after.reads - before.reads, 1);
        let bytes = 4 * (NUMBERS - 1) as u64;
        assert_eq!(after.bytes_read - before.bytes_read, bytes);
        let mut found = [7_f32; NUMBERS];
        memory.read(0, &mut found).unwrap();
        assert_eq!(found[..], due(0.0)[..]);
        // A buffer that is on its way is waited for when it is freed.
        pinned.collect(&[most(&memory)]).unwrap();
        drop(pinned);
        assert_eq!(
            (device.queued(), device.counters().get().bytes_pinned),
            (0, 0)
        );
    }

    #[test]
    fn a_buffer_goes_to_the_device_and_back() {
        let Some((_, memory, pinned)) = ones() else {
            return;
        };
        for round in 0..3 {
            let due: Vec<f32> = (0..NUMBERS).map(|at| (at + round) as f32).collect();
            pinned.retire().unwrap();
            pinned
                .fill(|bytes| {
                    let to: &mut [f32] = bytemuck::cast_slice_mut(bytes);
                    to[1..NUMBERS].copy_from_slice(&due[..NUMBERS - 1]);
                })
                .unwrap();
            pinned.transfer(&[most(&memory)]).unwrap();
            pinned.arrive().unwrap();
            pinned.collect(&[most(&memory)]).unwrap();
            assert_eq!(numbers(&pinned)[1..NUMBERS], due[..NUMBERS - 1]);
        }
    }

    #[test]
    fn work_that_changes_what_is_on_its_way_to_the_host_is_found() {
        for is_asked_for_first in [true, false] {
            let Some((device, memory, pinned)) = ones() else {
                return;
            };
            pinned.collect(&[most(&memory)]).unwrap();
            device.run(&[clear(memory.at(), NUMBERS)]).unwrap();
            let mut found = [7_f32; NUMBERS];
            let ends = catch_unwind(AssertUnwindSafe(|| {
                if is_asked_for_first {
                    numbers(&pinned);
                    memory.read(0, &mut found).unwrap();
                } else {
                    memory.read(0, &mut found).unwrap();
                    numbers(&pinned);
                }
            }));
            assert!(ends.is_err(), "{is_asked_for_first}");
            // Once the host has the copy, work may change its source.
            let Some((device, memory, pinned)) = ones() else {
                return;
            };
            pinned.collect(&[most(&memory)]).unwrap();
            numbers(&pinned);
            device.run(&[clear(memory.at(), NUMBERS)]).unwrap();
            memory.read(0, &mut found).unwrap();
            assert_eq!(found, [0.0; NUMBERS]);
        }
    }
}
