//! NCCL, which sums over the GPUs of a host: loaded where it is installed, and called by its published signatures.
//!
//! The binding does not know the name under which NVIDIA's packages install it. Nothing here decides which GPUs are
//! linked, or when a peer counts as lost.
//!
//! The invariants of its `unsafe`: functions were found by their names in a library that is never unloaded, and have the
//! signatures of `nccl.h`; a communicator is used by one thread at a time, and not after [`Link::abort`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use cudarc::driver::{CudaContext, CudaStream};
use libloading::Library;

use crate::device::runtime::{Number, Summed};

const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Version 2.18, as `ncclGetVersion` encodes it.
const OLDEST: c_int = 21_800;

/// `ncclSuccess` of `ncclResult_t`, `ncclFloat32` and `ncclFloat64` of `ncclDataType_t`, and `ncclSum` of `ncclRedOp_t`.
const SUCCESS: c_int = 0;
const F32: c_int = 7;
const F64: c_int = 8;
const SUM: c_int = 0;

type Communicator = *mut c_void;
type Stream = *mut c_void;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

/// The library's functions.
pub(super) struct Nccl {
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int) -> c_int,
    abort: unsafe extern "C" fn(Communicator) -> c_int,
    async_error: unsafe extern "C" fn(Communicator, *mut c_int) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    #[allow(clippy::type_complexity)]
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Communicator,
        Stream,
    ) -> c_int,
}

/// Returns the library, or the reason why it cannot be used.
pub(super) fn load() -> Result<&'static Nccl, &'static str> {
    // Loaded once per process, since its threads may outlive a communicator.
    static NCCL: OnceLock<Result<Nccl, String>> = OnceLock::new();
    NCCL.get_or_init(Nccl::open)
        .as_ref()
        .map_err(String::as_str)
}

impl Nccl {
    fn open() -> Result<Self, String> {
        // SAFETY: loading runs the initializers of NVIDIA's library, found by the names that its packages install.
        let library = NAMES
            .iter()
            .find_map(|name| unsafe { Library::new(name) }.ok());
        let library = library.ok_or(
            "NCCL (libnccl.so.2) is not found: install nvidia-nccl-cu13 by pip, or -cu12 with CUDA 12, and name its \
             folder in LD_LIBRARY_PATH",
        )?;
        // SAFETY: the signatures are those of nccl.h, stable since NCCL 2.4; the library is never unloaded.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> c_int =
                symbol(&library, "ncclGetVersion")?;
            let mut version: c_int = 0;
            if get_version(&raw mut version) != SUCCESS || version < OLDEST {
                return Err(format!(
                    "NCCL is too old: its version number is {version}, and {OLDEST} (2.18) is needed"
                ));
            }
            let all = Self {
                error_text: symbol(&library, "ncclGetErrorString")?,
                unique_id: symbol(&library, "ncclGetUniqueId")?,
                init_rank: symbol(&library, "ncclCommInitRank")?,
                abort: symbol(&library, "ncclCommAbort")?,
                async_error: symbol(&library, "ncclCommGetAsyncError")?,
                group_start: symbol(&library, "ncclGroupStart")?,
                group_end: symbol(&library, "ncclGroupEnd")?,
                all_reduce: symbol(&library, "ncclAllReduce")?,
            };
            std::mem::forget(library);
            Ok(all)
        }
    }

    fn check(&self, result: c_int) -> Result<(), String> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library returns a text of its own for every number.
        let text = unsafe { CStr::from_ptr((self.error_text)(result)) };
        Err(format!("NCCL: {}", text.to_string_lossy()))
    }

    /// Creates the id of a link.
    pub(super) fn id(&self) -> Result<Vec<u8>, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the id outlives the call that writes it.
        self.check(unsafe { (self.unique_id)(&raw mut id) })?;
        Ok(id.0.to_vec())
    }
}

/// Returns a function of the library.
///
/// # Safety
/// `T` must be a pointer to a function with the signature of the one so named, and not be used once the library is
/// unloaded.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found
        .map(|symbol| *symbol)
        .map_err(|error| format!("NCCL lacks {name}: {error}"))
}

/// A communicator that can be moved to another thread.
struct Handle(Communicator);

// SAFETY: NCCL lets any thread use a communicator, one at a time; the value is not shared.
unsafe impl Send for Handle {}

/// This GPU's end of a link.
pub(super) struct Link {
    nccl: &'static Nccl,
    state: State,
}

enum State {
    /// The thread that waits for the other GPUs sends its result.
    Joining(Receiver<Result<Handle, String>>),
    Joined(Handle),
}

impl Link {
    /// Begins to link the context's GPU with those of the other ranks.
    pub(super) fn join(
        nccl: &'static Nccl,
        context: &Arc<CudaContext>,
        id: &[u8],
        (rank, world_size): (usize, usize),
    ) -> Result<Self, String> {
        let id = UniqueId(id.try_into().map_err(|_| "malformed id of NCCL")?);
        let context = Arc::clone(context);
        let (sender, receiver) = channel();
        let joins = move || {
            let join = || -> Result<Handle, String> {
                let bound = context.bind_to_thread();
                bound.map_err(|error| error.to_string())?;
                let mut communicator: Communicator = std::ptr::null_mut();
                // SAFETY: the context is bound to this thread, and the output outlives the call.
                let result = unsafe {
                    let (world_size, rank) = (world_size as c_int, rank as c_int);
                    (nccl.init_rank)(&raw mut communicator, world_size, id, rank)
                };
                nccl.check(result)?;
                Ok(Handle(communicator))
            };
            if let Err(unwanted) = sender.send(join())
                && let Ok(handle) = unwanted.0
            {
                // The link was left meanwhile.
                // SAFETY: nothing else has this communicator.
                unsafe { (nccl.abort)(handle.0) };
            }
        };
        // It blocks until all have joined; if a peer is lost, until NCCL itself notices.
        let spawned = thread::Builder::new().name("nccl-join".into()).spawn(joins);
        spawned.map_err(|error| error.to_string())?;
        Ok(Self {
            nccl,
            state: State::Joining(receiver),
        })
    }

    /// Returns true once all have joined.
    ///
    /// # Errors
    /// NCCL's reason why this GPU cannot join, or for which a queued sum has failed.
    pub(super) fn is_joined(&mut self) -> Result<bool, String> {
        match &self.state {
            State::Joining(joining) => match joining.try_recv() {
                Ok(joined) => self.state = State::Joined(joined?),
                Err(TryRecvError::Empty) => return Ok(false),
                Err(TryRecvError::Disconnected) => return Err("NCCL's thread has ended".into()),
            },
            State::Joined(handle) => {
                let mut failed: c_int = SUCCESS;
                // SAFETY: the communicator is in use, and the output outlives the call.
                let result = unsafe { (self.nccl.async_error)(handle.0, &raw mut failed) };
                self.nccl.check(result)?;
                self.nccl.check(failed)?;
            }
        }
        Ok(true)
    }

    /// Queues sums, in place.
    pub(super) fn all_reduce(&self, all: &[Summed], stream: &CudaStream) -> Result<(), String> {
        let State::Joined(handle) = &self.state else {
            return Err("the link is not complete".into());
        };
        let nccl = self.nccl;
        let stream: Stream = stream.cu_stream().cast();
        // SAFETY: the addresses are in memory that `network::plan` holds, with as many numbers as are said; the stream
        // is of the communicator's GPU. A group that was started is ended.
        unsafe {
            nccl.check((nccl.group_start)())?;
            let queued = all.iter().try_for_each(|of| {
                let kind = match of.kind {
                    Number::F32 => F32,
                    Number::F64 => F64,
                };
                let at = of.at as *mut c_void;
                nccl.check((nccl.all_reduce)(
                    at, at, of.len, kind, SUM, handle.0, stream,
                ))
            });
            let ended = nccl.check((nccl.group_end)());
            queued.and(ended)
        }
    }

    /// Ends the link and the sums that are queued. NCCL waits until no recorded step refers to the link, so another
    /// thread does it. That ends once it is done, and drops its end of the channel.
    pub(super) fn abort(self, context: &Arc<CudaContext>) -> Receiver<()> {
        let (sender, receiver) = channel();
        let Self { nccl, state } = self;
        let State::Joined(handle) = state else {
            return receiver;
        };
        let context = Arc::clone(context);
        let aborts = move || {
            // The whole of it, which is `Send`.
            let handle: Handle = handle;
            if context.bind_to_thread().is_ok() {
                // SAFETY: the link has given its communicator away.
                unsafe { (nccl.abort)(handle.0) };
            }
            drop(sender);
        };
        let spawned = thread::Builder::new()
            .name("nccl-abort".into())
            .spawn(aborts);
        if let Err(error) = spawned {
            tracing::warn!(%error, "NCCL cannot be ended");
        }
        receiver
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Joining(_) => "joining",
            State::Joined(_) => "joined",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_makes_ids_where_it_is_installed_else_the_reason_names_its_package() {
        match load() {
            Ok(nccl) => assert_ne!(nccl.id().unwrap(), nccl.id().unwrap()),
            Err(reason) => assert!(reason.contains("nvidia-nccl-cu13"), "{reason}"),
        }
    }
}
