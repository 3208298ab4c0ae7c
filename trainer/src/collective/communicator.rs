//! The [`Communicator`]: the operations, their sequence numbers and counters.
//!
//! It chooses the algorithm, runs it over the mesh, and closes the mesh at the first failure.

use std::io;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{SendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::buffer::{Buffer, BufferPart, Offered};
use super::call::{Algorithm, Call, ElementType, Op};
use super::element::Element;
use super::endpoint::Listener;
use super::error::{Error, Result};
use super::exchange::{Inbox, exchange};
use super::frame::Growing;
use super::hosts::Hosts;
use super::link::{self, Link};
use super::membership::{Membership, Options};
use super::mesh::{Mesh, Wires};
use super::sockets::Sockets;
use super::{all_reduce, broadcast, connect};

/// Time for which [`Communicator::wait_until`] asks without pause, then its pause between two questions.
const EAGER: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(50);

/// One rank's connections with all other ranks of its generation.
///
/// All ranks must call the same operations in the same order. The first error closes all connections, so that
/// no peer waits in vain; later calls fail with [`Error::Broken`]. Dropping it closes them too.
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    generation: u64,
    mesh: Mesh,
    direct_below: usize,
    /// The timeout of patient calls.
    patience: Duration,
    broken: bool,
    /// Number of calls so far, which is also the last one's sequence number.
    calls: u64,
    busy: Duration,
    /// Scratch memory kept between calls; `f64` has the widest alignment of the element types.
    scratch: Vec<f64>,
}

/// Activity of a communicator so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations called.
    pub operations: u64,
    /// Bytes handed to the kernel, headers included.
    pub bytes_sent: u64,
    /// Bytes taken from the kernel, headers included.
    pub bytes_received: u64,
    /// Time spent in operations, waiting for slower ranks included. Of sums
    /// [beside a computation](Communicator::all_reduce_sum_beside), the time after the computation.
    pub time: Duration,
}

impl Communicator {
    /// Connects with all ranks of `membership`: a full mesh, over Unix sockets where both ranks
    /// are on one host and TCP otherwise. Blocks until the mesh is complete.
    ///
    /// `listener` is the one whose endpoint is in the membership; it is closed on return.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectDeadline`] names the ranks that did not connect in time, or one whose host was not
    /// reached within `op_timeout`. [`Error::ConnectRefused`] when a peer does not accept this
    /// rank as a member. Connections *to* this rank that do not belong to the membership are dropped, and
    /// waiting goes on.
    pub fn connect(
        listener: Listener,
        membership: &Membership,
        options: &Options,
        abort: &CancellationToken,
    ) -> Result<Self> {
        membership.validate()?;
        let links = connect::mesh(listener, membership, options, abort)?;
        Ok(Self::over(
            Box::new(Sockets(links)),
            membership.rank,
            membership.generation,
            options,
            abort,
        ))
    }

    /// Creates ranks within one process, for one thread each: generation 0 of a world without listeners, by
    /// rank.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] when no more sockets can be opened.
    ///
    /// # Panics
    ///
    /// If `world_size` is 0.
    pub fn in_process(
        world_size: usize,
        options: &Options,
        abort: &CancellationToken,
    ) -> Result<Vec<Self>> {
        assert!(world_size > 0, "a world has at least one rank");
        let mut meshes: Vec<Vec<Option<Box<dyn Link>>>> = Vec::new();
        for rank in 0..world_size {
            let mut own = Vec::new();
            for lower in &mut meshes {
                let (near, far) = link::in_process().map_err(|source| Error::Connect {
                    rank,
                    generation: 0,
                    source,
                })?;
                own.push(Some(near));
                lower.push(Some(far));
            }
            own.push(None);
            meshes.push(own);
        }
        let ranks = meshes.into_iter().enumerate();
        Ok(ranks
            .map(|(rank, links)| Self::over(Box::new(Sockets(links)), rank, 0, options, abort))
            .collect())
    }

    pub(super) fn over(
        wires: Box<dyn Wires>,
        rank: usize,
        generation: u64,
        options: &Options,
        abort: &CancellationToken,
    ) -> Self {
        Self {
            rank,
            generation,
            mesh: Mesh::new(wires, options, abort.clone()),
            patience: options.connect_timeout.max(options.op_timeout),
            direct_below: options.direct_below,
            broken: false,
            calls: 0,
            busy: Duration::ZERO,
            scratch: Vec::new(),
        }
    }

    /// Returns this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.mesh.world_size()
    }

    /// Returns true if a peer is not known to be on this host.
    pub fn has_distant_peers(&self) -> bool {
        let mut peers = (0..self.world_size()).filter(|peer| *peer != self.rank);
        peers.any(|peer| !self.mesh.is_local(peer))
    }

    /// Returns the generation of these ranks.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the activity so far.
    pub fn counters(&self) -> Counters {
        Counters {
            operations: self.calls,
            bytes_sent: self.mesh.bytes_sent,
            bytes_received: self.mesh.bytes_received,
            time: self.busy,
        }
    }

    /// Creates a buffer of `len` numbers for [`all_reduce_sum`](Self::all_reduce_sum), in memory that the
    /// ranks of a host share if it is large. All ranks call it, with the same `len`.
    ///
    /// # Errors
    ///
    /// Any loss of a peer.
    pub fn buffer(&mut self, len: usize) -> Result<Buffer> {
        let is_small = len * size_of::<f32>() < self.direct_below;
        if self.world_size() == 1 || len == 0 || is_small {
            return Ok(Buffer::own(vec![0.0; len]));
        }
        let unshared = |error: io::Error| {
            tracing::warn!(%error, "ranks share no memory; they send gradients to each other");
        };
        let offer = || Offered::new(len).and_then(|offered| Ok((offered.place()?, offered)));
        let near = self.mesh.has_local_peers().then(offer);
        let near = near.and_then(|offered| offered.map_err(unshared).ok());
        let (place, offered) = near.unzip();
        let places = self.all_gather(&place.unwrap_or_default())?;
        let peers = offered.as_ref().and_then(|offered| {
            let others = places.iter().enumerate();
            let open = |(rank, place): (usize, &Vec<u8>)| {
                let is_near = self.mesh.is_local(rank);
                is_near.then(|| offered.open(place)).transpose()
            };
            let peers: io::Result<Vec<_>> = others.map(open).collect();
            peers.map_err(unshared).ok()
        });
        let shares_with = |rank: &usize| {
            let peer = peers.as_ref().and_then(|peers| peers[*rank].as_ref());
            *rank == self.rank || peer.is_some()
        };
        let shares_with = (0..self.world_size()).filter(shares_with);
        let said: Vec<u8> = shares_with
            .flat_map(|rank| (rank as u64).to_le_bytes())
            .collect();
        // No rank may close its file until all ranks have opened all files.
        let said = self.all_gather(&said)?;
        let ranks = said.iter().map(|bytes| {
            let ranks = bytes.as_chunks().0.iter();
            let ranks = ranks.map(|rank| u64::from_le_bytes(*rank) as usize);
            ranks.collect()
        });
        let Some(hosts) = Hosts::new(&ranks.collect::<Vec<_>>()) else {
            return Ok(Buffer::own(vec![0.0; len]));
        };
        Ok(match (offered, peers) {
            (Some(offered), Some(peers)) => offered.share(peers, hosts),
            _ => Buffer::alone(len, hosts),
        })
    }

    /// Replaces a [buffer](Self::buffer) of this communicator on every rank with the sum over all ranks, with
    /// the same bits on each. Ranks that share memory do not send to each other. All ranks must pass the
    /// same length. After an error the contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] when ranks passed different lengths; any loss of a peer.
    pub fn all_reduce_sum(&mut self, buffer: &mut Buffer) -> Result<()> {
        self.all_reduce_sum_of(buffer, buffer.len())
    }

    /// [`all_reduce_sum`](Self::all_reduce_sum) of the first `len` numbers of the buffer. All ranks must pass
    /// the same `len`.
    ///
    /// # Errors
    ///
    /// As [`all_reduce_sum`](Self::all_reduce_sum).
    ///
    /// # Panics
    ///
    /// If the buffer has fewer than `len` numbers.
    pub fn all_reduce_sum_of(&mut self, buffer: &mut Buffer, len: usize) -> Result<()> {
        let whole = 0..len;
        let mut parts = buffer.parts(std::slice::from_ref(&whole)).into_iter();
        parts.try_for_each(|part| self.sum(part))
    }

    /// Sums the parts of a buffer with these disjoint ranges, one after the other on a second thread, while
    /// `compute` computes those that follow. All ranks must pass the same ranges. After an error the contents are
    /// unspecified.
    ///
    /// `compute` gets the parts and a function, which it calls with each part once the part is complete, in their
    /// order. The function does not wait. If `compute` fails, the communicator is closed as after a sum that fails,
    /// since peers wait for parts that were not handed over.
    ///
    /// The second thread ends before the call does. It is a new one each time, which takes about 15 µs to start and
    /// end: small buffers are better summed at once. If the system cannot start it, the sums follow the computation.
    ///
    /// # Errors
    ///
    /// The error of `compute`; else that of the first sum to fail, as of [`all_reduce_sum`](Self::all_reduce_sum).
    ///
    /// # Panics
    ///
    /// If the ranges overlap or exceed the buffer, if `compute` panics, or if it hands over parts in another order
    /// or, without failing, not all of them.
    pub fn all_reduce_sum_beside<R, E: From<Error>>(
        &mut self,
        buffer: &mut Buffer,
        ranges: &[Range<usize>],
        compute: impl for<'b> FnOnce(
            Vec<BufferPart<'b>>,
            &mut dyn FnMut(BufferPart<'b>),
        ) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        let parts = buffer.parts(ranges);
        let before = self.busy;
        let this = &mut *self;
        let (computed, summed, unsent, since) = thread::scope(|scope| {
            // Both ends are dropped with this closure, even if it panics: then the thread ends.
            let (complete, to_sum) = sync_channel::<BufferPart<'_>>(ranges.len());
            let sums = move || to_sum.into_iter().try_for_each(|part| this.sum(part));
            let thread = thread::Builder::new().name("rank-sums".to_owned());
            let thread = thread.spawn_scoped(scope, sums).inspect_err(|error| {
                tracing::warn!(%error, "no thread for sums; they follow the computation");
            });
            let (mut handed_over, mut unsent) = (0, Vec::new());
            let computed = compute(parts, &mut |part| {
                let due = ranges.get(handed_over);
                assert_eq!(Some(&part.range()), due, "parts are handed over in order");
                handed_over += 1;
                if let Err(SendError(part)) = complete.send(part) {
                    unsent.push(part);
                }
            });
            assert!(
                computed.is_err() || handed_over == ranges.len(),
                "all parts are handed over"
            );
            drop(complete);
            let since = Instant::now();
            let summed = match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => Ok(()),
            };
            (computed, summed, unsent, since)
        });
        let summed = match &computed {
            // Nothing is left, unless there was no thread.
            Ok(_) => summed.and_then(|()| unsent.into_iter().try_for_each(|part| self.sum(part))),
            Err(_) => {
                self.close();
                Ok(())
            }
        };
        self.busy = before + since.elapsed();
        let computed = computed?;
        summed?;
        Ok(computed)
    }

    /// Sums a part of a buffer.
    fn sum(&mut self, mut part: BufferPart<'_>) -> Result<()> {
        let Some(views) = part.views() else {
            return self.all_reduce::<f32>(&mut part);
        };
        let op = Op::AllReduceSum {
            element: ElementType::F32,
            algorithm: Algorithm::SharedMemory,
        };
        let column = size_of_val(views.own).div_ceil(views.hosts.columns());
        self.run(op, size_of_val(views.own), |this, call| {
            let needed = this.scratch_of(Algorithm::SharedMemory, column);
            let scratch = room(&mut this.scratch, needed);
            all_reduce::shared(&mut this.mesh, call, views, scratch)
        })
    }

    /// [`all_reduce_sum`](Self::all_reduce_sum) in double precision, always over the sockets: for row counts,
    /// losses, statistics.
    ///
    /// # Errors
    ///
    /// As [`all_reduce_sum`](Self::all_reduce_sum).
    pub fn all_reduce_sum_f64(&mut self, buffer: &mut [f64]) -> Result<()> {
        self.all_reduce(buffer)
    }

    /// Gives every rank the payload of every rank, by rank. Lengths may differ.
    ///
    /// # Errors
    ///
    /// Any loss of a peer.
    pub fn all_gather(&mut self, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        let rank = self.rank;
        self.run(Op::AllGather, payload.len(), |this, call| {
            let mut gathered: Vec<Growing> =
                (1..this.world_size()).map(|_| Growing::default()).collect();
            let ranks = 0..this.world_size();
            let inboxes = gathered.iter_mut().map(Inbox::Growing);
            exchange(&mut this.mesh, call, ranks, payload, inboxes)?;
            let mut gathered: Vec<Vec<u8>> =
                gathered.into_iter().map(Growing::into_filled).collect();
            gathered.insert(rank, payload.to_vec());
            Ok(gathered)
        })
    }

    /// Replaces `payload` on every rank with that of `root`. After an error a rank other than the root may be
    /// left with an empty payload.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] when ranks named different roots; any loss of a peer.
    ///
    /// # Panics
    ///
    /// If `root` is not a rank.
    pub fn broadcast(&mut self, root: usize, payload: &mut Vec<u8>) -> Result<()> {
        assert!(
            root < self.world_size(),
            "root {root} is a rank of a world of {}",
            self.world_size()
        );
        let is_root = self.rank == root;
        let bytes = if is_root { payload.len() } else { 0 };
        self.run(Op::Broadcast { root }, bytes, |this, call| {
            if this.world_size() == 1 {
                return Ok(());
            }
            if is_root {
                broadcast::send(&mut this.mesh, call, payload)
            } else {
                let reuse = std::mem::take(payload);
                *payload = broadcast::receive(&mut this.mesh, *call, root, reuse)?;
                Ok(())
            }
        })
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    ///
    /// Any loss of a peer.
    pub fn barrier(&mut self) -> Result<()> {
        self.run(Op::Barrier, 0, |this, call| {
            let all: Vec<usize> = (0..this.world_size()).collect();
            all_reduce::meet(&mut this.mesh, call, &all)
        })
    }

    /// Waits for work that ranks do together elsewhere, such as sums between their GPUs: asks `is_done`, which must not
    /// block, until it returns true. It is not counted as an operation, and sends nothing.
    ///
    /// # Errors
    ///
    /// The error of `is_done`, after which the communicator can still be used; the loss of a peer; and
    /// [`Error::DeadlineExceeded`] after the timeout of an operation.
    pub fn wait_until<E: From<Error>>(
        &mut self,
        mut is_done: impl FnMut() -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let start = Instant::now();
        let call = self.call(Op::Elsewhere, 0);
        while !is_done()? {
            if let Err(error) = self.mesh.check_peers(&call, start) {
                self.close();
                return Err(error.into());
            }
            match start.elapsed() < EAGER {
                true => thread::yield_now(),
                false => thread::sleep(PAUSE),
            }
        }
        Ok(())
    }

    /// Makes calls with [`Options::connect_timeout`] as their timeout (or `op_timeout`, if longer), for peers
    /// that are busy for longer than an operation may take: writing a model, evaluating more rows than
    /// others. Lost peers are still detected: a process that ends closes its connections, and connections to
    /// a lost host fail TCP's keepalive. A frozen process is not detected here; heartbeats detect it, and the
    /// abort token ends the call.
    ///
    /// # Errors
    ///
    /// Errors of the calls.
    pub fn patiently<T, E>(
        &mut self,
        calls: impl FnOnce(&mut Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let usual = self.mesh.set_timeout(self.patience);
        let outcome = calls(self);
        self.mesh.set_timeout(usual);
        outcome
    }

    fn all_reduce<T: Element>(&mut self, buffer: &mut [T]) -> Result<()> {
        let bytes = size_of_val(buffer);
        let is_large = bytes >= self.direct_below;
        let algorithm = match (is_large, self.world_size() < all_reduce::MANY) {
            (true, true) => Algorithm::Ring,
            (true, false) => Algorithm::Halving,
            (false, true) => Algorithm::Direct,
            (false, false) => Algorithm::Doubling,
        };
        let op = Op::AllReduceSum {
            element: T::TYPE,
            algorithm,
        };
        self.run(op, bytes, |this, call| {
            if this.world_size() == 1 {
                return Ok(());
            }
            let needed = this.scratch_of(algorithm, bytes);
            let scratch = room(&mut this.scratch, needed);
            let all: Vec<usize> = (0..this.mesh.world_size()).collect();
            let reduce = match algorithm {
                Algorithm::Direct => all_reduce::direct,
                Algorithm::Doubling => all_reduce::doubling,
                Algorithm::Ring | Algorithm::SharedMemory => all_reduce::ring,
                Algorithm::Halving => all_reduce::halving,
            };
            reduce(&mut this.mesh, call, &all, buffer, scratch)
        })
    }

    /// Returns the bytes of scratch memory that an algorithm needs for a sum of this many bytes.
    fn scratch_of(&self, algorithm: Algorithm, bytes: usize) -> usize {
        all_reduce::scratch(algorithm, self.world_size(), bytes, self.mesh.chunk)
    }

    /// Describes the last call.
    fn call(&self, op: Op, bytes: usize) -> Call {
        Call {
            rank: self.rank,
            generation: self.generation,
            sequence: self.calls,
            op,
            bytes: bytes as u64,
        }
    }

    /// Numbers a call, times it, and closes the mesh if it fails.
    fn run<R>(
        &mut self,
        op: Op,
        bytes: usize,
        operation: impl FnOnce(&mut Self, &Call) -> Result<R>,
    ) -> Result<R> {
        let start = Instant::now();
        self.calls += 1;
        let call = self.call(op, bytes);
        if self.broken {
            return Err(Error::Broken { call });
        }
        let outcome = operation(self, &call);
        if outcome.is_err() {
            self.close();
        }
        self.busy += start.elapsed();
        outcome
    }

    /// Closes all connections, by which peers lose this rank; later calls fail.
    pub(crate) fn close(&mut self) {
        self.broken = true;
        self.mesh.close();
    }

    /// Decorates every link.
    #[cfg(test)]
    pub(super) fn wrap_links(
        &mut self,
        mut decorate: impl FnMut(usize, Box<dyn Link>) -> Box<dyn Link>,
    ) {
        self.mesh.wrap(&mut decorate);
    }
}

/// Returns at least `bytes` bytes of `kept` as elements, rounded up to a whole `f64`; grows it if needed.
fn room<T: Element>(kept: &mut Vec<f64>, bytes: usize) -> &mut [T] {
    let needed = bytes.div_ceil(size_of::<f64>());
    if kept.len() < needed {
        kept.resize(needed, 0.0);
    }
    bytemuck::cast_slice_mut(&mut kept[..needed])
}
