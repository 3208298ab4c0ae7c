//! Ranks of one process over a network in virtual time. They run the same collectives as other ranks, byte for byte;
//! only the wires differ.
//!
//! ```text
//!   thread of rank 0   write ─► [lane 0 → 1: bytes, each with a time of arrival] ─► read   thread of rank 1
//!             └────────────── one of them runs at a time: the one whose clock is behind ──────────────┘
//! ```
//!
//! Each rank has a clock, which its calls, its computation and its waits advance. A call takes effect at the rank's
//! time, once no other rank's clock is behind, so the outcome is the same in every run. Hosts have one network
//! interface each, which sends and receives a packet at a time; between them is a switch that never blocks. Ranks of a
//! host share memory.
//!
//! It does not connect ranks, authenticate or encrypt, and it has no deadlines: ranks that wait for each other in vain
//! fail at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::buffer::{Buffer, Offered};
use super::communicator::Communicator;
use super::error::{Error, Result};
use super::hosts::Hosts;
#[cfg(test)]
use super::link::Link;
use super::membership::Options;
use super::mesh::{Interest, Wires};
use super::readiness::Wake;

/// Maximum bytes of a packet, as network interfaces segment and join them.
const PACKET: usize = 64 * 1024;
/// Maximum bytes on their way from one rank to another, as sockets buffer them.
const WINDOW: usize = 4 << 20;
/// Stack of a rank's thread.
const STACK: usize = 512 * 1024;

/// Network between ranks, and what its use costs them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Ranks of each host; the last host may have fewer.
    pub ranks_per_host: usize,
    /// Time from the end of a packet's transmission to its arrival at another host.
    pub latency: Duration,
    /// Bytes that a host sends, and receives at the same time, per second.
    pub bandwidth: f64,
    /// Costs of a rank.
    pub costs: Costs,
}

/// Time that a rank's processor spends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// A system call: a read, a write or a wait.
    pub call: Duration,
    /// Seconds per sent byte.
    pub send: f64,
    /// Seconds per received byte, its addition included.
    pub receive: f64,
    /// Seconds per byte of shared memory that is read and added, or copied.
    pub memory: f64,
    /// Time from a write to its arrival at a rank of the same host.
    pub local_latency: Duration,
}

/// A rank in virtual time.
#[derive(Debug)]
pub struct SimulatedRank {
    /// Its peers.
    pub communicator: Communicator,
    /// Its gradient.
    pub buffer: Buffer,
    clock: Port,
}

impl SimulatedRank {
    /// Lets the rank compute for a while.
    ///
    /// # Errors
    /// When its peers have failed.
    pub fn compute(&self, time: Duration) -> Result<()> {
        let passed = self.clock.world.spend(self.clock.rank, nanos(time));
        passed.map_err(|source| Error::Connect {
            rank: self.clock.rank,
            generation: 0,
            source,
        })
    }

    /// Returns the rank's time.
    pub fn now(&self) -> Duration {
        let state = self.clock.world.state.lock();
        Duration::from_nanos(state.clocks[self.clock.rank])
    }
}

/// Runs `body` for each of `ranks` ranks that share `len` numbers, and returns the results by rank.
///
/// # Errors
/// The first error of a rank, or a lack of memory that ranks can share.
///
/// # Panics
/// If there are no ranks, or `body` panics.
pub fn simulate<R: Send>(
    ranks: usize,
    network: &Network,
    len: usize,
    body: impl Fn(&mut SimulatedRank) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let world = Arc::new(World::new(ranks, *network));
    let options = Options::default();
    let abort = CancellationToken::new();
    let connect = |source| Error::Connect {
        rank: 0,
        generation: 0,
        source,
    };
    let buffers = buffers(ranks, network, len, &options).map_err(connect)?;
    let rank = |(rank, buffer)| {
        let port = || Port {
            rank,
            world: Arc::clone(&world),
        };
        SimulatedRank {
            communicator: Communicator::over(Box::new(port()), rank, 0, &options, &abort),
            buffer,
            clock: port(),
        }
    };
    let ranks: Vec<_> = buffers.into_iter().enumerate().map(rank).collect();
    let (world, body) = (&world, &body);
    thread::scope(|scope| {
        let run = |mut rank: SimulatedRank| {
            let thread = thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, move || {
                let _ends = Ends(world, rank.clock.rank);
                world.begin(rank.clock.rank).map_err(connect)?;
                body(&mut rank)
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        match threads.iter().all(Result::is_ok) {
            true => world.next(&mut world.state.lock()),
            false => world.stop(&mut world.state.lock()),
        }
        let ended = threads.into_iter().map(|thread| {
            let thread = thread.map_err(connect)?;
            thread.join().expect("a rank does not panic")
        });
        ended.collect()
    })
}

/// Creates the buffer of each rank, as [`Communicator::buffer`] does.
fn buffers(
    ranks: usize,
    network: &Network,
    len: usize,
    options: &Options,
) -> io::Result<Vec<Buffer>> {
    let mates = |rank: usize| {
        let first = rank / network.ranks_per_host * network.ranks_per_host;
        (first..ranks.min(first + network.ranks_per_host)).collect::<Vec<_>>()
    };
    let shares_with: Vec<_> = (0..ranks).map(mates).collect();
    let is_small = len * size_of::<f32>() < options.direct_below;
    let Some(hosts) = Hosts::new(&shares_with).filter(|_| !is_small) else {
        return Ok((0..ranks).map(|_| Buffer::own(vec![0.0; len])).collect());
    };
    let mut buffers = Vec::with_capacity(ranks);
    while buffers.len() < ranks {
        let first = buffers.len();
        let host = &shares_with[first];
        let offered = host.iter().map(|_| Offered::new(len));
        let offered = offered.collect::<io::Result<Vec<_>>>()?;
        let places = offered.iter().map(Offered::place);
        let places = places.collect::<io::Result<Vec<_>>>()?;
        let peers = |own: usize| {
            let peer = |rank: usize| {
                let place = rank.checked_sub(first).and_then(|at| places.get(at));
                let place = place.filter(|_| rank != first + own);
                place.map(|place| offered[own].open(place)).transpose()
            };
            (0..ranks).map(peer).collect::<io::Result<Vec<_>>>()
        };
        let peers = (0..host.len()).map(peers).collect::<io::Result<Vec<_>>>()?;
        let shared = offered.into_iter().zip(peers);
        buffers.extend(shared.map(|(own, peers)| own.share(peers, hosts.clone())));
    }
    Ok(buffers)
}

/// Virtual time, in nanoseconds.
type Nanos = u64;

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).expect("a simulation lasts less than centuries")
}

/// Returns the time of `bytes` bytes at `seconds` each.
fn each(bytes: usize, seconds: f64) -> Nanos {
    (bytes as f64 * seconds * 1e9) as Nanos
}

/// One rank's end of the network.
#[derive(Debug)]
struct Port {
    rank: usize,
    world: Arc<World>,
}

#[derive(Debug)]
struct World {
    network: Network,
    state: Mutex<State>,
    /// Signals to each rank that it runs.
    turns: Vec<Condvar>,
}

#[derive(Debug)]
struct State {
    clocks: Vec<Nanos>,
    /// The rank that runs.
    runs: Option<usize>,
    /// Times at which ranks run next; an entry counts if it is the one of `due_at`.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    due_at: Vec<Option<Nanos>>,
    /// Events that each rank waits for.
    waits: Vec<Vec<Interest>>,
    /// Bytes on their way, by sender and receiver.
    lanes: HashMap<(usize, usize), Lane>,
    hosts: Vec<Interface>,
    /// True once no rank can run any more though some have not ended.
    stuck: bool,
}

#[derive(Debug, Default)]
struct Lane {
    packets: VecDeque<Packet>,
    bytes: usize,
}

#[derive(Debug)]
struct Packet {
    arrives: Nanos,
    bytes: Vec<u8>,
    read: usize,
}

/// A host's network interface.
#[derive(Debug, Clone, Default)]
struct Interface {
    /// Time until which it sends.
    sends: Nanos,
    /// Times at which it receives, by their beginnings: packets come in another order than they were written.
    receives: BTreeMap<Nanos, Nanos>,
}

impl Interface {
    /// Sends a packet that is ready at a time. Returns when it is sent.
    fn send(&mut self, ready: Nanos, takes: Nanos) -> Nanos {
        self.sends = self.sends.max(ready) + takes;
        self.sends
    }

    /// Receives a packet whose last byte comes at `end` at the earliest. Returns when it has arrived. No packet that
    /// is written later can come before `now`.
    fn receive(&mut self, end: Nanos, takes: Nanos, now: Nanos) -> Nanos {
        self.receives.retain(|_, until| *until > now);
        let mut start = end - takes;
        for (from, until) in &self.receives {
            if start + takes <= *from {
                break;
            }
            start = start.max(*until);
        }
        let mut until = start + takes;
        // Times without a gap are one.
        until = self.receives.remove(&until).unwrap_or(until);
        let before = self.receives.range_mut(..=start).next_back();
        match before.filter(|(_, before)| **before == start) {
            Some((_, before)) => *before = until,
            None => {
                self.receives.insert(start, until);
            }
        }
        start + takes
    }
}

/// Ends a rank's part when dropped.
struct Ends<'a>(&'a World, usize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.due_at[self.1] = None;
        if state.runs == Some(self.1) {
            self.0.next(&mut state);
        }
    }
}

impl World {
    fn new(ranks: usize, network: Network) -> Self {
        assert!(ranks > 0 && network.ranks_per_host > 0, "there are ranks");
        let mut state = State {
            clocks: vec![0; ranks],
            runs: None,
            due: BinaryHeap::new(),
            due_at: vec![None; ranks],
            waits: vec![Vec::new(); ranks],
            lanes: HashMap::new(),
            hosts: vec![Interface::default(); ranks.div_ceil(network.ranks_per_host)],
            stuck: false,
        };
        (0..ranks).for_each(|rank| state.schedule(rank, 0));
        Self {
            network,
            state: Mutex::new(state),
            turns: (0..ranks).map(|_| Condvar::new()).collect(),
        }
    }

    fn host(&self, rank: usize) -> usize {
        rank / self.network.ranks_per_host
    }

    /// Waits for a rank's first turn.
    fn begin(&self, rank: usize) -> io::Result<()> {
        self.resume(&mut self.state.lock(), rank)
    }

    /// Lets the rank run that is due first.
    fn next(&self, state: &mut State) {
        state.runs = None;
        while let Some(Reverse((at, rank))) = state.due.pop() {
            if state.due_at[rank] == Some(at) {
                state.due_at[rank] = None;
                state.waits[rank].clear();
                state.clocks[rank] = state.clocks[rank].max(at);
                state.runs = Some(rank);
                self.turns[rank].notify_one();
                return;
            }
        }
        // Those that wait, if any do, wait in vain.
        self.stop(state);
    }

    /// Fails all ranks that have not ended.
    fn stop(&self, state: &mut State) {
        state.stuck = true;
        self.turns.iter().for_each(|turn| {
            turn.notify_one();
        });
    }

    /// Returns once the rank runs.
    fn resume(&self, state: &mut MutexGuard<'_, State>, rank: usize) -> io::Result<()> {
        while state.runs != Some(rank) {
            if state.stuck {
                return Err(io::Error::other("all ranks wait for each other"));
            }
            self.turns[rank].wait(state);
        }
        Ok(())
    }

    /// Advances the running rank's clock, and returns once no other rank is behind it.
    fn pass(&self, state: &mut MutexGuard<'_, State>, rank: usize, time: Nanos) -> io::Result<()> {
        state.clocks[rank] += time;
        let now = state.clocks[rank];
        if state.due.peek().is_some_and(|Reverse((at, _))| *at < now) {
            state.schedule(rank, now);
            self.next(state);
            self.resume(state, rank)?;
        }
        Ok(())
    }

    fn spend(&self, rank: usize, time: Nanos) -> io::Result<()> {
        self.pass(&mut self.state.lock(), rank, time)
    }
}

impl State {
    /// Makes a rank run at a time, unless it runs earlier.
    fn schedule(&mut self, rank: usize, at: Nanos) {
        if self.due_at[rank].is_none_or(|due| at < due) {
            self.due_at[rank] = Some(at);
            self.due.push(Reverse((at, rank)));
        }
    }

    /// Makes a rank run if it waits for what happens at this time.
    fn wake(&mut self, rank: usize, at: Nanos, waits: impl Fn(&Interest) -> bool) {
        if self.waits[rank].iter().any(waits) {
            self.schedule(rank, at.max(self.clocks[rank]));
        }
    }

    /// Returns the time at which a rank's interest can be served, if that is known.
    fn served(&self, rank: usize, interest: &Interest) -> Option<Nanos> {
        let now = self.clocks[rank];
        let lane = |from, to| self.lanes.get(&(from, to));
        let reads = || {
            let first = lane(interest.peer, rank)?.packets.front()?;
            Some(first.arrives.max(now))
        };
        let writes = || {
            let is_full = lane(rank, interest.peer).is_some_and(|lane| lane.bytes >= WINDOW);
            (!is_full).then_some(now)
        };
        let reads = interest.read.then(reads).flatten();
        let writes = interest.write.then(writes).flatten();
        reads.into_iter().chain(writes).min()
    }
}

impl Wires for Port {
    fn world_size(&self) -> usize {
        self.world.turns.len()
    }

    fn is_local(&self, peer: usize) -> bool {
        peer != self.rank && self.world.host(peer) == self.world.host(self.rank)
    }

    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { rank, world } = self;
        let (rank, network) = (*rank, &world.network);
        let costs = &network.costs;
        let mut state = world.state.lock();
        let call = nanos(costs.call);
        let room = WINDOW - state.lanes.entry((rank, peer)).or_default().bytes;
        if room == 0 {
            world.pass(&mut state, rank, call)?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.truncate(room);
        let (start, [from, to]) = (
            state.clocks[rank] + call,
            [rank, peer].map(|of| world.host(of)),
        );
        let mut arrived = None;
        for (at, packet) in bytes.chunks(PACKET).enumerate() {
            let ready = start + each(at * PACKET + packet.len(), costs.send);
            let arrives = if from == to {
                ready + nanos(costs.local_latency)
            } else {
                let takes = each(packet.len(), network.bandwidth.recip());
                let now = state.clocks[rank];
                let sent = state.hosts[from].send(ready, takes);
                let arrives = sent + nanos(network.latency);
                state.hosts[to].receive(arrives, takes, now)
            };
            arrived.get_or_insert(arrives);
            let lane = state.lanes.entry((rank, peer)).or_default();
            lane.bytes += packet.len();
            lane.packets.push_back(Packet {
                arrives,
                bytes: packet.to_vec(),
                read: 0,
            });
        }
        if let Some(arrived) = arrived {
            state.wake(peer, arrived, |waits| waits.read && waits.peer == rank);
        }
        let takes = call + each(bytes.len(), costs.send);
        world.pass(&mut state, rank, takes)?;
        Ok(bytes.len())
    }

    fn read(&mut self, peer: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Self { rank, world } = self;
        let (rank, costs) = (*rank, &world.network.costs);
        let mut state = world.state.lock();
        let now = state.clocks[rank];
        let mut read = 0;
        if let Some(lane) = state.lanes.get_mut(&(peer, rank)) {
            for part in parts {
                let mut room = &mut part[..];
                while let Some(packet) = lane.packets.front_mut()
                    && packet.arrives <= now
                    && !room.is_empty()
                {
                    let bytes = &packet.bytes[packet.read..];
                    let (into, rest) = room.split_at_mut(bytes.len().min(room.len()));
                    into.copy_from_slice(&bytes[..into.len()]);
                    packet.read += into.len();
                    read += into.len();
                    room = rest;
                    if packet.read == packet.bytes.len() {
                        lane.packets.pop_front();
                    }
                }
            }
            lane.bytes -= read;
        }
        if read > 0 {
            state.wake(peer, now, |waits| waits.write && waits.peer == rank);
        }
        let takes = nanos(costs.call) + each(read, costs.receive);
        world.pass(&mut state, rank, takes)?;
        match read {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }

    fn wait(&self, interests: &[Interest], _: Instant, _: &CancellationToken) -> io::Result<Wake> {
        let Self { rank, world } = self;
        let mut state = world.state.lock();
        world.pass(&mut state, *rank, nanos(world.network.costs.call))?;
        let served = interests.iter();
        let served = served.filter_map(|interest| state.served(*rank, interest));
        if let Some(at) = served.min() {
            state.schedule(*rank, at);
        }
        state.waits[*rank].extend_from_slice(interests);
        world.next(&mut state);
        world.resume(&mut state, *rank)?;
        Ok(Wake::Ready)
    }

    fn pass_over(&mut self, bytes: usize) {
        let takes = each(bytes, self.world.network.costs.memory);
        // A failure is noticed by the next call.
        self.world.spend(self.rank, takes).ok();
    }

    #[cfg(test)]
    fn wrap(&mut self, _: &mut dyn FnMut(usize, Box<dyn Link>) -> Box<dyn Link>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Costs = Costs {
        call: Duration::ZERO,
        send: 0.0,
        receive: 0.0,
        memory: 0.0,
        local_latency: Duration::ZERO,
    };

    /// Returns a network of 1 GB/s and 10 µs without any other costs.
    fn network(ranks_per_host: usize) -> Network {
        Network {
            ranks_per_host,
            latency: Duration::from_micros(10),
            bandwidth: 1e9,
            costs: FREE,
        }
    }

    /// Sums `len` numbers once; returns the time at which each rank has the sum.
    fn sums(ranks: usize, network: &Network, len: usize) -> Vec<Duration> {
        let whole = (ranks * (ranks + 1) / 2) as f32;
        let times = simulate(ranks, network, len, |rank| {
            let own = (rank.communicator.rank() + 1) as f32;
            rank.buffer.fill(own);
            rank.communicator.all_reduce_sum(&mut rank.buffer)?;
            assert!(rank.buffer.iter().all(|sum| *sum == whole));
            Ok(rank.now())
        });
        times.unwrap()
    }

    #[test]
    fn large_sums_take_as_long_as_their_bytes_and_their_hops() {
        for ranks in [2, 3, 5, 16, 40] {
            let len = ranks * 10_000;
            let times = sums(ranks, &network(1), len);
            // A segment of 40 kB takes 40 µs. A ring has as many hops as segments are sent.
            let segments = 2 * (ranks as u64 - 1);
            let doublings = u64::from(ranks.next_power_of_two().ilog2());
            let hops = if ranks < 8 { segments } else { 2 * doublings };
            let due = Duration::from_micros(40 * segments + 10 * hops);
            let last = *times.iter().max().unwrap();
            assert!(last >= due, "{last:?} of {due:?}, {ranks} ranks");
            assert!(
                last < due.mul_f64(1.05),
                "{last:?} of {due:?}, {ranks} ranks"
            );
        }
    }

    #[test]
    fn an_interface_receives_a_packet_at_a_time_in_any_order() {
        let mut interface = Interface::default();
        assert_eq!(interface.receive(100, 10, 0), 100);
        assert_eq!(interface.receive(100, 10, 0), 110);
        assert_eq!(interface.receive(90, 10, 0), 90, "before both");
        assert_eq!(interface.receive(85, 10, 0), 120, "there is no room before");
        assert_eq!(interface.receive(75, 5, 0), 75);
        assert_eq!(interface.receives, BTreeMap::from([(70, 75), (80, 120)]));
        assert_eq!(interface.receive(140, 10, 118), 140);
        assert_eq!(interface.receives, BTreeMap::from([(80, 120), (130, 140)]));
    }

    #[test]
    fn small_sums_take_a_hop_for_each_doubling() {
        for (ranks, hops) in [(8, 3), (64, 6), (100, 8)] {
            let times = sums(ranks, &network(1), 10);
            let last = *times.iter().max().unwrap();
            assert!(last >= Duration::from_micros(10 * hops));
            assert!(last < Duration::from_micros(11 * hops), "{ranks}: {last:?}");
        }
    }

    #[test]
    fn ranks_of_a_host_send_no_more_than_one_rank_would() {
        let len = 64 * 1024;
        let bytes = |ranks, ranks_per_host| -> u64 {
            let sent = simulate(ranks, &network(ranks_per_host), len, |rank| {
                rank.communicator.all_reduce_sum(&mut rank.buffer)?;
                Ok(rank.communicator.counters().bytes_sent)
            });
            sent.unwrap().into_iter().sum()
        };
        let [alone, shared] = [bytes(4, 1), bytes(16, 4)];
        assert!(
            shared >= alone && shared < alone + alone / 20,
            "{alone} {shared}"
        );
        assert_eq!(sums(8, &network(8), len).len(), 8);
        assert_eq!(sums(7, &network(3), len).len(), 7);
    }

    #[test]
    fn every_run_has_the_same_times() {
        let costs = Costs {
            call: Duration::from_micros(1),
            send: 1e-10,
            receive: 2e-10,
            memory: 1e-10,
            local_latency: Duration::from_micros(2),
        };
        let network = Network {
            costs,
            ..network(4)
        };
        let times = sums(32, &network, 100_000);
        assert_eq!(times, sums(32, &network, 100_000));
        assert!(times.iter().max() > sums(32, &self::network(4), 100_000).iter().max());
    }

    #[test]
    fn ranks_wait_for_the_slowest() {
        let times = simulate(4, &network(1), 10, |rank| {
            let own = rank.communicator.rank() as u64;
            rank.compute(Duration::from_millis(own))?;
            rank.communicator.barrier()?;
            Ok(rank.now())
        });
        let times = times.unwrap();
        assert!(times.iter().all(|time| *time >= Duration::from_millis(3)));
        assert!(times.iter().all(|time| *time < Duration::from_micros(3050)));
    }

    #[test]
    fn ranks_that_wait_in_vain_fail() {
        let ended = simulate(3, &network(1), 10, |rank| match rank.communicator.rank() {
            1 => Ok(()),
            _ => rank.communicator.barrier(),
        });
        assert!(matches!(ended, Err(Error::Wait { .. })), "{ended:?}");
    }
}
