//! An NVIDIA GPU: memory and kernels through CUDA's driver, products through cuBLAS, recorded steps as CUDA graphs.
//!
//! Work is queued on one stream and copies from and to pinned memory on another, by the thread that opened the device.
//! Libraries are loaded when they are needed: building Volley requires nothing of CUDA.
//!
//! It calls C functions, which is `unsafe`. The invariants: handles were returned by the same library, and live as long
//! as the value that holds them; an address in work or in a copy was [allocated](Runtime::allocate) and is
//! [freed](Runtime::release) only after waiting for both streams; pinned memory is [accessed](Runtime::access) and freed
//! only after waiting for the copies from and to it.
#![allow(unsafe_code)]

mod compile;
mod libraries;
mod nccl;
mod pinned;
mod products;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result, sys};

use self::pinned::Staged;
use self::products::Products;
use super::cache;
use super::runtime::{
    Address, Buffer, Counters, Identity, Recorded, Records, Runtime, Transfer, Words, Work, count,
};
use crate::{Error, Result};

/// Functions of the driver that are called.
const SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Threads per block.
const THREADS: u32 = 256;
/// Memory left to the driver, for graphs and the rounding of blocks.
const RESERVE: u64 = 192 << 20;
/// Approximate number of these blocks that a multiprocessor runs at once.
const BLOCKS_OF_PROCESSOR: u32 = 4;

/// Time within which queued work ends once its link was left.
const LEAVES: Duration = Duration::from_secs(30);

/// GPU with the kernels loaded.
pub(crate) struct Cuda {
    name: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Stream of copies from and to pinned memory.
    copies: Arc<CudaStream>,
    pinned: RefCell<BTreeMap<Buffer, Staged>>,
    module: sys::CUmodule,
    functions: RefCell<HashMap<&'static str, sys::CUfunction>>,
    products: ManuallyDrop<Products>,
    recorded: RefCell<BTreeMap<usize, CudaGraph>>,
    counters: Cell<Counters>,
    /// Bytes of each allocation.
    held: RefCell<HashMap<Address, u64>>,
    blocks: u32,
    link: RefCell<Option<nccl::Link>>,
    /// True if queued work does not end: then nothing may wait for it, and its memory stays.
    stuck: Cell<bool>,
}

/// Describes the driver: its CUDA version and, since several releases have the same, its release where Linux tells it.
fn driver() -> Option<String> {
    let mut version = 0;
    // SAFETY: it outlives the call that writes it.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    asked.result().ok()?;
    let release = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let release = release.lines().next().unwrap_or("unknown release");
    Some(format!("CUDA {version}, {release}"))
}

/// Returns a conversion of a library's errors that names what failed.
fn failed<E: fmt::Display>(name: &str, what: &str) -> impl Fn(E) -> Error + use<E> {
    let (device, what) = (name.to_owned(), what.to_owned());
    move |error| Error::DeviceFailed {
        device: device.clone(),
        what: what.clone(),
        reason: error.to_string(),
    }
}

/// Minimum major compute capability: the first with TF32 and bfloat16.
const CAPABILITY: i32 = 8;

impl Cuda {
    /// Opens the GPU with this ordinal.
    ///
    /// # Errors
    /// When a CUDA library is missing or too old, the GPU is too old, or it does not respond.
    pub(crate) fn open(index: usize) -> Result<Rc<Self>> {
        let name = format!("cuda:{index}");
        let name = name.as_str();
        libraries::check(name)?;
        let fail = |what| failed(name, what);
        let context = CudaContext::new(index).map_err(fail("open the device"))?;
        // SAFETY: memory is allocated and freed here, on one stream, so no events are needed to keep it alive.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(fail("make a stream"))?;
        let copies = context.new_stream().map_err(fail("make a stream"))?;
        let (major, minor) = context
            .compute_capability()
            .map_err(fail("ask for the compute capability"))?;
        if major < CAPABILITY {
            let found = format!("its compute capability is {major}.{minor}");
            let reason = format!("{found}, and {CAPABILITY}.0 is needed");
            return Err(failed(name, "use it")(reason));
        }
        let capability = major as u32 * 10 + minor as u32;
        let load = |anew| {
            let image = compile::image(name, capability, anew)?;
            // SAFETY: the image is a CUBIN, or a PTX text that ends with zero; the driver rejects a damaged one.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
            module.map_err(fail("load the kernels"))
        };
        // The cached image may be damaged.
        let module = load(false).or_else(|_| load(true))?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors = context
            .attribute(attribute)
            .map_err(fail("count multiprocessors"))?;
        Ok(Rc::new(Self {
            products: ManuallyDrop::new(Products::new(name, &stream)?),
            name: name.to_owned(),
            context,
            stream,
            copies,
            pinned: RefCell::default(),
            module,
            functions: RefCell::default(),
            recorded: RefCell::default(),
            counters: Cell::default(),
            held: RefCell::default(),
            blocks: processors.max(1) as u32 * BLOCKS_OF_PROCESSOR,
            link: RefCell::default(),
            stuck: Cell::default(),
        }))
    }

    fn failed<E: fmt::Display>(&self, what: &str) -> impl Fn(E) -> Error + use<E> {
        failed(&self.name, what)
    }

    fn function(&self, kernel: &'static str) -> Result<sys::CUfunction> {
        if let Some(function) = self.functions.borrow().get(kernel) {
            return Ok(*function);
        }
        let text = CString::new(kernel).expect("names have no zero");
        // SAFETY: the module lives as long as `self`.
        let function = unsafe { result::module::get_function(self.module, text) };
        let function = function.map_err(self.failed(&format!("find kernel {kernel}")))?;
        let registers = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS;
        // SAFETY: the function was just found. Reading an attribute loads it.
        unsafe { result::function::get_function_attribute(function, registers) }
            .map_err(self.failed(&format!("load kernel {kernel}")))?;
        self.functions.borrow_mut().insert(kernel, function);
        Ok(function)
    }

    fn queue(&self, work: &[Work]) -> Result<()> {
        for work in work {
            match work {
                Work::Product(product) => self.products.queue(product)?,
                Work::Launch(launch) => {
                    let function = self.function(launch.kernel)?;
                    let mut words: Words = launch.words;
                    let mut parameters = [(&raw mut words).cast::<c_void>()];
                    let (grid, block) = ((launch.blocks, 1, 1), (launch.threads, 1, 1));
                    let stream = self.stream.cu_stream();
                    // SAFETY: kernels have one argument, `Words`, which the call copies; its addresses are in memory
                    // that `network::plan` holds.
                    unsafe {
                        result::launch_kernel(function, grid, block, 0, stream, &mut parameters)
                    }
                    .map_err(self.failed(&format!("launch kernel {}", launch.kernel)))?;
                }
                Work::AllReduce(all) => {
                    let link = self.link.borrow();
                    let link = link.as_ref().ok_or("it is not linked".to_owned());
                    link.and_then(|link| link.all_reduce(all, &self.stream))
                        .map_err(self.failed("sum over GPUs"))?;
                }
                Work::Call(call) => unreachable!("{call:?} is not queued"),
            }
        }
        Ok(())
    }

    /// Fails if queued work does not end: waiting for it would never end either.
    fn usable(&self) -> Result<()> {
        match self.stuck.get() {
            false => Ok(()),
            true => {
                let reason = "its sums with other GPUs have not ended";
                Err(self.failed("use it again")(reason))
            }
        }
    }

    /// Returns true if all queued work is done.
    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream lives as long as `self`.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) }.result() {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(self.failed("compute")(error)),
        }
    }

    /// Waits until queued work ends after its link was left.
    fn drain(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_idle()? {
            if start.elapsed() > LEAVES {
                let reason = format!("its work has not ended within {LEAVES:?}");
                return Err(self.failed("leave the other GPUs")(reason));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Loads the code that work runs. The driver and cuBLAS would do so at its first use, but must not while a step is
    /// recorded. Loading runs the products, whose results the step computes anew. NCCL was loaded when the link was
    /// tried.
    fn load(&self, work: &[Work]) -> Result<()> {
        for work in work {
            match work {
                Work::Product(product) => self.products.queue(product)?,
                Work::Launch(launch) => {
                    self.function(launch.kernel)?;
                }
                Work::AllReduce(_) | Work::Call(_) => {}
            }
        }
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        self.usable()?;
        let waited = self.stream.synchronize();
        waited.map_err(self.failed("compute"))
    }
}

impl Runtime for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn threads(&self) -> u32 {
        THREADS
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn free(&self) -> Result<u64> {
        let memory = self.context.mem_get_info();
        let (free, _) = memory.map_err(self.failed("ask for free memory"))?;
        Ok((free as u64).saturating_sub(RESERVE))
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the context is bound to this thread; `release` frees the memory.
        let at = unsafe { result::malloc_sync(bytes) };
        let at = match at {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(Error::DeviceMemory {
                    device: self.name.clone(),
                    bytes: bytes as u64,
                    free: self.free()?,
                });
            }
            at => at.map_err(self.failed("allocate memory"))?,
        };
        // SAFETY: this many bytes from there on were just allocated.
        let cleared = unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) };
        cleared.map_err(self.failed("clear memory"))?;
        self.held.borrow_mut().insert(at, bytes as u64);
        count(&self.counters, |counters| {
            counters.bytes_held += bytes as u64
        });
        Ok(at)
    }

    fn release(&self, at: Address) {
        if self.stuck.get() {
            return;
        }
        // Queued work and copies may still use it. A device that has failed has nothing to free.
        // SAFETY: it was allocated here, and is freed once, after waiting for both streams.
        if self.stream.synchronize().is_ok() && self.copies.synchronize().is_ok() {
            let _ = unsafe { result::free_sync(at) };
            let bytes = self.held.borrow_mut().remove(&at).unwrap_or(0);
            count(&self.counters, |counters| counters.bytes_held -= bytes);
        }
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        // SAFETY: `Memory` has checked that there is room, or `network::plan` holds it for a call; `bytes` are borrowed until
        // they are copied.
        let written = unsafe { result::memcpy_htod_async(at, bytes, self.stream.cu_stream()) };
        written.map_err(self.failed("write to memory"))?;
        self.wait()?;
        count(&self.counters, |counters| {
            counters.writes += 1;
            counters.bytes_written += bytes.len() as u64;
        });
        Ok(())
    }

    fn read(&self, at: Address, bytes: &mut [u8]) -> Result<()> {
        self.usable()?;
        let len = bytes.len() as u64;
        // SAFETY: `Memory` has checked that so many are there, or `network::plan` holds them for a call; the stream is waited
        // for before `bytes` are used.
        let read = unsafe { result::memcpy_dtoh_async(bytes, at, self.stream.cu_stream()) };
        read.map_err(self.failed("read memory"))?;
        self.wait()?;
        count(&self.counters, |counters| {
            counters.reads += 1;
            counters.bytes_read += len;
        });
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        let stream = self.stream.cu_stream();
        // SAFETY: the caller holds this many bytes from both addresses on.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, stream) };
        copied.map_err(self.failed("copy memory"))
    }

    fn enqueue(&self, work: &[Work]) -> Result<()> {
        self.usable()?;
        self.queue(work)?;
        count(&self.counters, |counters| {
            counters.launches += work.len() as u64
        });
        Ok(())
    }

    fn record(&self, work: &[Work]) -> Result<Recorded> {
        self.load(work)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let began = self.stream.begin_capture(mode);
        began.map_err(self.failed("begin to record a step"))?;
        let queued = self.queue(work);
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        let graph = graph.map_err(self.failed("record a step"))?;
        queued?;
        let nothing = || self.failed("record a step")("there is nothing in it");
        let graph = graph.ok_or_else(nothing)?;
        graph.upload().map_err(self.failed("upload a step"))?;
        let mut all = self.recorded.borrow_mut();
        let at = all.keys().next_back().map_or(0, |last| last + 1);
        all.insert(at, graph);
        count(&self.counters, |counters| {
            counters.recorded = work.len() as u64
        });
        Ok(Recorded(at))
    }

    fn replay(&self, recorded: Recorded) -> Result<()> {
        let all = self.recorded.borrow();
        let launched = all[&recorded.0].launch();
        launched.map_err(self.failed("replay a step"))?;
        count(&self.counters, |counters| counters.replays += 1);
        Ok(())
    }

    fn forget(&self, recorded: Recorded) {
        if self.stuck.get() {
            return;
        }
        // A graph that is still running must stay.
        let _ = self.stream.synchronize();
        self.recorded.borrow_mut().remove(&recorded.0);
    }

    fn pin(&self, bytes: usize) -> Result<Buffer> {
        let staged = Staged::new(bytes).map_err(self.failed("pin host memory"))?;
        let mut all = self.pinned.borrow_mut();
        let buffer = Buffer(all.keys().next_back().map_or(0, |last| last.0 + 1));
        all.insert(buffer, staged);
        count(&self.counters, |counters| {
            counters.bytes_pinned += bytes as u64
        });
        Ok(buffer)
    }

    fn unpin(&self, buffer: Buffer) {
        let staged = self.pinned.borrow_mut().remove(&buffer);
        let staged = staged.expect("a buffer is given back once");
        count(&self.counters, |counters| {
            counters.bytes_pinned -= staged.bytes() as u64
        });
        // A device that has failed may still read or write it: then it stays.
        match self.copies.synchronize() {
            Ok(()) => drop(staged),
            Err(_) => std::mem::forget(staged),
        }
    }

    fn access(&self, buffer: Buffer, using: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.usable()?;
        let mut all = self.pinned.borrow_mut();
        let staged = all.get_mut(&buffer).expect("the buffer is held");
        let free = staged
            .wait()
            .map_err(self.failed("copy from or to pinned memory"))?;
        using(free);
        Ok(())
    }

    fn transfer(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()> {
        let all = self.pinned.borrow();
        let staged = &all[&buffer];
        // SAFETY: `Pinned` has checked the offsets, and addresses are in memory that `network::plan` holds.
        unsafe { staged.transfer(transfers, &self.copies) }
            .map_err(self.failed("copy from pinned memory"))?;
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes).sum();
        count(&self.counters, |counters| {
            counters.transfers += transfers.len() as u64;
            counters.bytes_transferred += bytes as u64;
        });
        Ok(())
    }

    fn collect(&self, buffer: Buffer, transfers: &[Transfer]) -> Result<()> {
        self.usable()?;
        let all = self.pinned.borrow();
        let staged = &all[&buffer];
        // SAFETY: `Pinned` has checked the offsets; addresses are in memory that `network::plan` holds, and the work that it
        // queues before it takes the buffer does not write to them.
        unsafe { staged.collect(transfers, &self.stream, &self.copies) }
            .map_err(self.failed("copy to pinned memory"))?;
        let bytes: usize = transfers.iter().map(|transfer| transfer.bytes).sum();
        count(&self.counters, |counters| {
            counters.reads += transfers.len() as u64;
            counters.bytes_read += bytes as u64;
        });
        Ok(())
    }

    fn arrive(&self, buffer: Buffer) -> Result<()> {
        let arrived = self.pinned.borrow()[&buffer].arrive(&self.stream);
        arrived.map_err(self.failed("wait for copies"))
    }

    fn retire(&self, buffer: Buffer) -> Result<()> {
        let retired = self.pinned.borrow()[&buffer].retire(&self.stream);
        retired.map_err(self.failed("mark the last use of a copy"))
    }

    fn identity(&self) -> Result<Identity> {
        let uuid = self.context.uuid();
        let uuid = uuid.map_err(self.failed("ask for the UUID"))?.bytes;
        let name = self.context.name();
        let name = name.map_err(self.failed("ask for the name"))?;
        Ok(Identity {
            uuid: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
            kind: format!("{name}, {} blocks", self.blocks),
            unlinked: nccl::load().err().map(str::to_owned),
        })
    }

    fn records(&self) -> Option<Records> {
        let (major, minor) = self.context.compute_capability().ok()?;
        let kernels = compile::name(major as u32 * 10 + minor as u32);
        let device = format!(
            "{}, {} blocks; {kernels}; {}; cuBLAS {}; {}",
            self.context.name().ok()?,
            self.blocks,
            driver()?,
            self.products.version()?,
            cache::program()?
        );
        let folder = cache::folder()?;
        Some(Records { folder, device })
    }

    fn link_id(&self) -> Result<Vec<u8>> {
        let id = nccl::load()
            .map_err(str::to_owned)
            .and_then(|nccl| nccl.id());
        id.map_err(self.failed("make an id for GPUs to meet"))
    }

    fn join(&self, id: &[u8], rank: usize, world_size: usize) -> Result<()> {
        let nccl = nccl::load().map_err(str::to_owned);
        let link =
            nccl.and_then(|nccl| nccl::Link::join(nccl, &self.context, id, (rank, world_size)));
        let link = link.map_err(self.failed("meet the other GPUs"))?;
        *self.link.borrow_mut() = Some(link);
        Ok(())
    }

    fn leave(&self) -> Result<()> {
        let Some(link) = self.link.borrow_mut().take() else {
            return Ok(());
        };
        let aborted = link.abort(&self.context);
        // Sums end at once now, and what is queued behind them goes on.
        if let Err(error) = self.drain() {
            self.stuck.set(true);
            return Err(error);
        }
        self.recorded.borrow_mut().clear();
        if aborted.recv_timeout(LEAVES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(device = self.name, "NCCL has not freed its memory");
        }
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        if let Some(link) = self.link.borrow_mut().as_mut() {
            let joined = link.is_joined();
            if !joined.map_err(self.failed("sum over GPUs"))? {
                return Ok(false);
            }
        }
        self.is_idle()
    }

    fn counters(&self) -> &Cell<Counters> {
        &self.counters
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "a GPU's work does not end");
        }
        if self.stuck.get() {
            // Freeing any of these would wait for the work.
            std::mem::forget(std::mem::take(&mut *self.recorded.borrow_mut()));
            std::mem::forget((Arc::clone(&self.stream), Arc::clone(&self.context)));
            return;
        }
        let _ = self.stream.synchronize();
        let _ = self.copies.synchronize();
        self.recorded.borrow_mut().clear();
        // SAFETY: it was loaded here, and no queued work uses it any more; the products are dropped once.
        unsafe {
            let _ = result::module::unload(self.module);
            ManuallyDrop::drop(&mut self.products);
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
