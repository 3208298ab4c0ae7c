//! The registry of executors: attendance, registration and profiles.
//!
//! ```text
//!   attends (a process, an incarnation) ──► registered (slots) ──► lost ──► comes back as a new incarnation
//!                                               └► drains ──► drained ──► leaves
//! ```
//!
//! An executor attends by a stream of Volley's and registers with the engine below; it belongs to the cluster once it
//! does both. A record is dropped when neither is left. Not here: the tasks that hold an executor's slots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use volley_proto::Gpu;
use volley_proto::spec::{Device, Precision, ThreadSpeed};
use volley_proto::tables::{self, Vitals, millis};

use super::devices::HostGpu;
use super::placement::ExecutorRole;

/// An executor's description of itself when it attends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Profile {
    /// Role: queries, ranks, or both.
    pub(crate) role: ExecutorRole,
    /// Default device of its ranks.
    pub(crate) device: Device,
    /// Id of the host that it runs on.
    pub(crate) host: String,
    /// GPUs, by ordinal.
    pub(crate) gpus: Vec<Gpu>,
    /// Memory for its queries, in bytes.
    pub(crate) memory_bytes: u64,
    /// Memory that each of its ranks may take, in bytes.
    pub(crate) rank_memory_bytes: u64,
    pub(crate) speed: ThreadSpeed,
    pub(crate) version: String,
}

/// Host and ports of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecutorEndpoint {
    pub(crate) host: String,
    /// Port that serves its rows.
    pub(crate) port: u16,
    /// Port that takes tasks.
    pub(crate) task_port: u16,
}

/// Executor as others dial it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisteredExecutor {
    pub(crate) id: String,
    pub(crate) role: ExecutorRole,
    pub(crate) endpoint: ExecutorEndpoint,
}

/// Instruction to an attending incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Continue.
    Current,
    /// Start over, because it was treated as lost.
    Lost,
    /// Do nothing, because another incarnation is there.
    Superseded,
}

/// Executors of a cluster, by id.
#[derive(Debug, Default)]
pub(crate) struct Executors {
    records: BTreeMap<String, Record>,
    /// Executors that left as planned and have not come back, the last ones: the loss of their data may be found later.
    left: VecDeque<Left>,
}

/// Executor that was removed while it drained.
#[derive(Debug)]
struct Left {
    executor: String,
    /// Its process, which drains again if it registers again.
    process: Option<String>,
}

#[derive(Debug, Default)]
struct Record {
    attends: Option<Attendance>,
    /// Profile of the current incarnation; `None` until an earlier one is gone.
    profile: Option<Present>,
    registered: Option<Registration>,
}

/// Profile of an executor that is there.
#[derive(Debug)]
struct Present {
    profile: Profile,
    /// GPUs, identified as those of its host.
    gpus: Arc<[HostGpu]>,
    since: SystemTime,
}

/// Incarnation whose stream is open.
#[derive(Debug)]
struct Attendance {
    /// Incarnation, as `PROCESS/NUMBER`.
    incarnation: String,
    lost: bool,
}

#[derive(Debug)]
struct Registration {
    endpoint: ExecutorEndpoint,
    /// Its process, if it attends.
    process: Option<String>,
    slots: usize,
    /// Time of its last heartbeat.
    heard: Instant,
    /// True once its removal has been requested.
    leaving: bool,
    drain: Drain,
    /// Vital signs of the last minutes, the newest last.
    vitals: VecDeque<Vitals>,
}

/// Most samples of vital signs that are kept of an executor: ten minutes, one in three seconds.
const VITALS: usize = 200;

/// Most executors that have left as planned and are remembered.
const MOST_LEFT: usize = 1024;

/// Progress of an executor's planned departure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Drain {
    /// It stays.
    #[default]
    No,
    /// It takes no new tasks, and leaves once nothing there is needed.
    Draining,
    /// Nothing there is needed.
    Drained,
}

impl Executors {
    /// Admits an incarnation. Returns whether an earlier one is registered, which must be removed first.
    ///
    /// # Errors
    /// When another process has the id.
    pub(crate) fn admit(&mut self, executor: &str, incarnation: &str) -> Result<bool, String> {
        let record = self.records.entry(executor.to_owned()).or_default();
        let before = record.attends.as_ref();
        if before.is_some_and(|before| process(&before.incarnation) != process(incarnation)) {
            return Err(format!(
                "another executor with id {executor:?} is in the cluster: ids are unique"
            ));
        }
        record.attends = Some(Attendance {
            incarnation: incarnation.to_owned(),
            lost: false,
        });
        Ok(record.registered.is_some())
    }

    /// Begins the attendance of an admitted incarnation. Returns false if another one is there by now.
    pub(crate) fn attends(
        &mut self,
        executor: &str,
        incarnation: &str,
        profile: Profile,
        now: SystemTime,
    ) -> bool {
        let Some(record) = self.records.get_mut(executor) else {
            return false;
        };
        match &mut record.attends {
            Some(attends) if attends.incarnation == incarnation => {
                // The incarnation before was lost, not this one.
                attends.lost = false;
                let host: Arc<str> = profile.host.as_str().into();
                let gpus = profile.gpus.iter().map(|gpu| HostGpu {
                    host: Arc::clone(&host),
                    uuid: gpu.uuid,
                });
                record.profile = Some(Present {
                    gpus: gpus.collect(),
                    profile,
                    since: now,
                });
                true
            }
            _ => false,
        }
    }

    /// Returns what an attending incarnation must do.
    pub(crate) fn presence(&self, executor: &str, incarnation: &str) -> Presence {
        let record = self.records.get(executor);
        match record.and_then(|record| record.attends.as_ref()) {
            Some(attends) if attends.incarnation == incarnation => match attends.lost {
                true => Presence::Lost,
                false => Presence::Current,
            },
            _ => Presence::Superseded,
        }
    }

    /// Handles the end of an incarnation's stream. Returns whether the executor must be removed.
    pub(crate) fn departs(&mut self, executor: &str, incarnation: &str) -> bool {
        let Some(record) = self.records.get_mut(executor) else {
            return false;
        };
        let is_current = |attends: &Attendance| attends.incarnation == incarnation;
        if !record.attends.as_ref().is_some_and(is_current) {
            return false;
        }
        record.attends = None;
        self.forget(executor);
        self.begins_removal(executor)
    }

    /// Records that an executor's removal is requested. Returns false if it is not registered, or its removal was
    /// requested before: a second removal would hit the next incarnation.
    pub(crate) fn begins_removal(&mut self, executor: &str) -> bool {
        let record = self.records.get_mut(executor);
        let registered = record.and_then(|record| record.registered.as_mut());
        registered.is_some_and(|registered| !std::mem::replace(&mut registered.leaving, true))
    }

    /// Records that the engine has registered an executor. A process that was lost while it drained goes on draining.
    pub(crate) fn registers(
        &mut self,
        executor: &str,
        endpoint: ExecutorEndpoint,
        slots: usize,
        now: Instant,
    ) {
        let record = self.records.entry(executor.to_owned()).or_default();
        let attends = record.attends.as_ref();
        let process = attends.map(|attends| process(&attends.incarnation).to_owned());
        let before = self.left.iter().position(|left| left.executor == executor);
        let before = before.and_then(|at| self.left.remove(at));
        let drains = before.is_some_and(|left| process.is_some() && left.process == process);
        record.registered = Some(Registration {
            endpoint,
            process,
            slots,
            heard: now,
            leaving: false,
            drain: match drains {
                true => Drain::Draining,
                false => Drain::No,
            },
            vitals: VecDeque::new(),
        });
    }

    /// Records that an executor is to leave. Returns false if it is not registered, or is leaving already.
    pub(crate) fn drains(&mut self, executor: &str) -> bool {
        let record = self.records.get_mut(executor);
        let registered = record.and_then(|record| record.registered.as_mut());
        match registered {
            Some(registered) if registered.drain == Drain::No => {
                registered.drain = Drain::Draining;
                true
            }
            _ => false,
        }
    }

    /// Records that nothing of a draining executor is needed.
    pub(crate) fn drained(&mut self, executor: &str) {
        let record = self.records.get_mut(executor);
        let registered = record.and_then(|record| record.registered.as_mut());
        if let Some(registered) = registered.filter(|registered| registered.drain != Drain::No) {
            registered.drain = Drain::Drained;
        }
    }

    /// Returns the progress of an executor's planned departure; `None` if it is not registered.
    pub(crate) fn drain(&self, executor: &str) -> Option<Drain> {
        let registered = self.records.get(executor)?.registered.as_ref();
        registered.map(|registered| registered.drain)
    }

    /// Returns since when the current incarnation of an executor attends.
    pub(crate) fn since(&self, executor: &str) -> Option<SystemTime> {
        let present = self.records.get(executor)?.profile.as_ref();
        present.map(|present| present.since)
    }

    /// Checks whether an executor drains, or has left as planned.
    pub(crate) fn leaves_as_planned(&self, executor: &str) -> bool {
        match self.drain(executor) {
            Some(drain) => drain != Drain::No,
            None => self.left.iter().any(|left| left.executor == executor),
        }
    }

    /// Returns the executors that drain and may still be needed, ordered by id.
    pub(crate) fn draining(&self) -> impl Iterator<Item = &str> {
        let records = self.records.iter();
        let draining = records.filter(|(_, record)| {
            let registered = record.registered.as_ref();
            registered.is_some_and(|registered| registered.drain == Drain::Draining)
        });
        draining.map(|(id, _)| id.as_str())
    }

    /// Records a heartbeat of a registered executor.
    pub(crate) fn heard(&mut self, executor: &str, now: Instant) {
        let record = self.records.get_mut(executor);
        if let Some(registered) = record.and_then(|record| record.registered.as_mut()) {
            registered.heard = now;
        }
    }

    /// Keeps the vital signs of a registered executor, and drops the oldest when there are too many.
    pub(crate) fn measured(&mut self, vitals: Vitals, now: SystemTime) {
        let record = self.records.get_mut(&vitals.executor_id);
        if let Some(registered) = record.and_then(|record| record.registered.as_mut()) {
            if registered.vitals.len() == VITALS {
                registered.vitals.pop_front();
            }
            registered.vitals.push_back(Vitals {
                at: millis(now),
                ..vitals
            });
        }
    }

    /// Returns the kept vital signs of an executor, or of all, ordered by id and time.
    pub(crate) fn vitals_rows(&self, executor: Option<&str>) -> Vec<Vitals> {
        let records = self.records.iter();
        let wanted = records.filter(|(id, _)| executor.is_none_or(|executor| executor == *id));
        let registered = wanted.filter_map(|(_, record)| record.registered.as_ref());
        registered
            .flat_map(|registered| registered.vitals.iter().cloned())
            .collect()
    }

    /// Gives all registered executors the time for a heartbeat again.
    pub(crate) fn all_heard(&mut self, now: Instant) {
        let records = self.records.values_mut();
        for registered in records.filter_map(|record| record.registered.as_mut()) {
            registered.heard = now;
        }
    }

    /// Returns the registered executors that have sent no heartbeat for `timeout`, ordered by id.
    pub(crate) fn silent(&self, timeout: Duration, now: Instant) -> Vec<String> {
        let records = self.records.iter();
        let silent = records.filter(|(_, record)| {
            let registered = record.registered.as_ref();
            registered.is_some_and(|registered| now - registered.heard >= timeout)
        });
        silent.map(|(id, _)| id.clone()).collect()
    }

    /// Records that the engine removes an executor, which may come back with another profile. Returns whether it was
    /// registered.
    pub(crate) fn leaves(&mut self, executor: &str) -> bool {
        let Some(record) = self.records.get_mut(executor) else {
            return false;
        };
        record.profile = None;
        if let Some(attends) = &mut record.attends {
            attends.lost = true;
        }
        let registered = record.registered.take();
        self.forget(executor);
        let was_registered = registered.is_some();
        if let Some(Registration { drain, process, .. }) = registered
            && drain != Drain::No
        {
            if self.left.len() == MOST_LEFT {
                self.left.pop_front();
            }
            let executor = executor.to_owned();
            self.left.push_back(Left { executor, process });
        }
        was_registered
    }

    /// Drops the record of an executor that neither attends nor is registered.
    fn forget(&mut self, executor: &str) {
        let record = self.records.get(executor);
        if record.is_some_and(|record| record.attends.is_none() && record.registered.is_none()) {
            self.records.remove(executor);
        }
    }

    pub(crate) fn is_registered(&self, executor: &str) -> bool {
        let record = self.records.get(executor);
        record.is_some_and(|record| record.registered.is_some())
    }

    /// Returns the registered executors with their slots, ordered by id.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (&str, usize)> {
        let records = self.records.iter();
        records.filter_map(|(id, record)| Some((id.as_str(), record.registered.as_ref()?.slots)))
    }

    /// Returns the slots of an executor, if it is registered.
    pub(crate) fn slots_of(&self, executor: &str) -> Option<usize> {
        let registered = self.records.get(executor)?.registered.as_ref();
        registered.map(|registered| registered.slots)
    }

    /// Returns the registered executors as others dial them, ordered by id.
    pub(crate) fn registered(&self) -> impl Iterator<Item = RegisteredExecutor> {
        let records = self.records.iter();
        records.filter_map(|(id, record)| {
            Some(RegisteredExecutor {
                id: id.clone(),
                role: record.profile.as_ref()?.profile.role,
                endpoint: record.registered.as_ref()?.endpoint.clone(),
            })
        })
    }

    /// Returns an executor's role: the default, if it is unknown.
    pub(crate) fn role(&self, executor: &str) -> ExecutorRole {
        let profile = self.profile(executor);
        profile.map_or(ExecutorRole::default(), |profile| profile.role)
    }

    /// Returns the bytes of memory that queries may hold for each slot of an executor, which divides its memory in the same
    /// way; 0, if unknown.
    pub(crate) fn slot_memory(&self, executor: &str) -> u64 {
        let slots = self.slots_of(executor).unwrap_or(1).max(1) as u64;
        let profile = self.profile(executor);
        profile.map_or(0, |profile| profile.memory_bytes / slots)
    }

    /// Returns the bytes of memory that an executor offers each of its ranks: unlimited, if unknown.
    pub(crate) fn rank_memory(&self, executor: &str) -> u64 {
        let profile = self.profile(executor);
        profile.map_or(u64::MAX, |profile| profile.rank_memory_bytes)
    }

    /// Returns the default device of an executor's ranks, and its GPUs.
    pub(crate) fn devices(&self, executor: &str) -> (Device, Arc<[HostGpu]>) {
        let record = self.records.get(executor);
        match record.and_then(|record| record.profile.as_ref()) {
            Some(present) => (present.profile.device, Arc::clone(&present.gpus)),
            None => (Device::Auto, Arc::default()),
        }
    }

    /// Returns the GPUs of the executors that run ranks; each once, however many executors see it.
    pub(crate) fn gpus(&self) -> BTreeSet<&HostGpu> {
        let present = self.records.values().filter_map(|record| {
            let present = record.profile.as_ref()?;
            let runs_ranks = record.registered.is_some() && present.profile.role.runs_ranks();
            runs_ranks.then_some(present)
        });
        present.flat_map(|present| present.gpus.iter()).collect()
    }

    fn profile(&self, executor: &str) -> Option<&Profile> {
        let record = self.records.get(executor)?;
        record.profile.as_ref().map(|present| &present.profile)
    }

    /// Returns the executors as rows of their table, given the slots that tasks hold and the holders of GPUs.
    pub(crate) fn rows(
        &self,
        held: &BTreeMap<String, usize>,
        holders: &BTreeMap<&HostGpu, Vec<String>>,
    ) -> Vec<tables::Executor> {
        let row = |(id, record): (&String, &Record)| {
            let Registration {
                endpoint,
                slots,
                drain,
                vitals,
                ..
            } = record.registered.as_ref()?;
            let Present {
                profile,
                gpus,
                since,
            } = record.profile.as_ref()?;
            let free_gpus = gpus.iter().filter(|gpu| !holders.contains_key(gpu));
            let gpu = |(gpu, described): (&HostGpu, &Gpu)| match holders.get(gpu) {
                Some(holders) => format!("{described}: held by {}", holders.join(", ")),
                None => format!("{described}: free"),
            };
            let held = held.get(id).copied().unwrap_or(0);
            let newest = vitals.back();
            Some(tables::Executor {
                executor_id: id.clone(),
                host: endpoint.host.clone(),
                port: u64::from(endpoint.port),
                role: profile.role.to_string(),
                slots: *slots as u64,
                free_slots: slots.saturating_sub(held) as u64,
                tasks: newest.map(|newest| newest.tasks),
                ranks: newest.map_or(0, |newest| newest.ranks),
                device: match profile.device {
                    Device::Auto if gpus.is_empty() => Device::Cpu,
                    Device::Auto => Device::AnyCuda,
                    device => device,
                }
                .to_string(),
                gpus: gpus.iter().zip(&profile.gpus).map(gpu).collect(),
                free_gpus: free_gpus.count() as u64,
                memory_bytes: profile.memory_bytes,
                reserved_bytes: newest.map(|newest| newest.reserved_bytes),
                rank_bytes: newest.and_then(|newest| newest.rank_bytes),
                process_bytes: newest.and_then(|newest| newest.process_bytes),
                machine_bytes: newest.and_then(|newest| newest.machine_bytes),
                cpu_cores: newest.and_then(|newest| newest.cpu_cores).map(rounded),
                disk_free_bytes: newest.and_then(|newest| newest.disk_free_bytes),
                rank_memory_bytes: profile.rank_memory_bytes,
                thread_product_rate: measured(profile.speed.products),
                thread_memory_rate: measured(profile.speed.memory),
                gpu_f32_rate: slowest(&profile.gpus, |gpu| gpu.products(Precision::F32)),
                gpu_tf32_rate: slowest(&profile.gpus, |gpu| gpu.products(Precision::Tf32)),
                gpu_memory_rate: slowest(&profile.gpus, |gpu| gpu.clocks.memory()),
                version: profile.version.clone(),
                since: millis(*since),
                draining: *drain != Drain::No,
                running: Vec::new(),
            })
        };
        self.records.iter().filter_map(row).collect()
    }
}

/// Returns a rate per second, if it was measured, in whole millions: the rest is noise.
fn measured(rate: f64) -> Option<f64> {
    const MILLION: f64 = 1e6;
    let whole = (rate / MILLION).round() * MILLION;
    Some(if whole > 0.0 { whole } else { rate }).filter(|rate| *rate > 0.0)
}

/// Rounds a number to hundredths.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Returns the least rate of these GPUs; `None` if there is none, or one does not tell.
fn slowest(gpus: &[Gpu], rate: impl Fn(&Gpu) -> Option<f64>) -> Option<f64> {
    let rates: Option<Vec<f64>> = gpus.iter().map(rate).collect();
    rates?.into_iter().reduce(f64::min)
}

/// Returns the process of an incarnation.
pub(super) fn process(incarnation: &str) -> &str {
    incarnation.split('/').next().unwrap_or(incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> ExecutorEndpoint {
        ExecutorEndpoint {
            host: "h".into(),
            port: 1,
            task_port: 2,
        }
    }

    fn profile(role: ExecutorRole) -> Profile {
        Profile {
            role,
            device: Device::Cpu,
            host: "h".into(),
            gpus: Vec::new(),
            memory_bytes: 1,
            rank_memory_bytes: 2,
            speed: ThreadSpeed::default(),
            version: "0".into(),
        }
    }

    #[test]
    fn an_id_is_one_process_s_and_its_newest_incarnation_s() {
        let (mut executors, now) = (Executors::default(), SystemTime::now());
        assert_eq!(executors.admit("e", "p/1"), Ok(false));
        assert!(executors.attends("e", "p/1", profile(ExecutorRole::Any), now));
        executors.registers("e", endpoint(), 2, Instant::now());
        let refused = executors.admit("e", "q/1").unwrap_err();
        assert!(refused.contains("ids are unique"), "{refused}");
        assert_eq!(executors.presence("e", "p/1"), Presence::Current);
        assert_eq!(executors.admit("e", "p/2"), Ok(true), "the first is there");
        assert_eq!(executors.presence("e", "p/1"), Presence::Superseded);
        assert!(executors.leaves("e"), "the first is removed");
        assert!(!executors.attends("e", "p/1", profile(ExecutorRole::Any), now));
        assert!(executors.attends("e", "p/2", profile(ExecutorRole::Train), now));
        assert_eq!(executors.presence("e", "p/2"), Presence::Current);
        assert_eq!(executors.role("e"), ExecutorRole::Train);
        assert!(!executors.departs("e", "p/1"), "it is not there");
        executors.registers("e", endpoint(), 2, Instant::now());
        assert!(executors.departs("e", "p/2"));
        assert_eq!(executors.admit("e", "p/3"), Ok(true));
        assert!(!executors.begins_removal("e"), "it is being removed");
    }

    #[test]
    fn an_incarnation_that_was_taken_for_lost_starts_over() {
        let (mut executors, now) = (Executors::default(), SystemTime::now());
        executors.admit("e", "p/1").unwrap();
        executors.attends("e", "p/1", profile(ExecutorRole::Query), now);
        executors.registers("e", endpoint(), 2, Instant::now());
        assert!(executors.leaves("e"));
        assert_eq!(executors.presence("e", "p/1"), Presence::Lost);
        assert!(!executors.departs("e", "p/1"), "it is removed already");
        assert_eq!(
            (executors.slots().count(), executors.role("e")),
            (0, ExecutorRole::Any)
        );
    }

    #[test]
    fn the_newest_vital_signs_are_kept() {
        let (mut executors, now) = (Executors::default(), SystemTime::now());
        executors.admit("e", "p/1").unwrap();
        executors.attends("e", "p/1", profile(ExecutorRole::Any), now);
        executors.registers("e", endpoint(), 2, Instant::now());
        let sample = |executor: &str, tasks: usize| Vitals {
            executor_id: executor.to_owned(),
            tasks: tasks as u64,
            cpu_cores: Some(1.5),
            ..Vitals::default()
        };
        executors.measured(sample("unknown", 1), now);
        for tasks in 0..VITALS + 2 {
            executors.measured(sample("e", tasks), now);
        }
        let kept = executors.vitals_rows(Some("e"));
        assert_eq!(
            (kept.len(), kept[0].tasks, kept[0].at),
            (VITALS, 2, millis(now))
        );
        assert_eq!(executors.vitals_rows(None), kept);
        assert!(executors.vitals_rows(Some("unknown")).is_empty());
        let row = executors.rows(&BTreeMap::new(), &BTreeMap::new()).remove(0);
        assert_eq!((row.cpu_cores, row.process_bytes), (Some(1.5), None));
        assert!(executors.leaves("e"));
        assert!(executors.vitals_rows(None).is_empty());
    }

    #[test]
    fn figures_for_people_are_rounded() {
        assert_eq!(measured(55_278_765_873.042_02), Some(55_279e6));
        assert_eq!((measured(0.0), measured(12.0)), (None, Some(12.0)));
        assert_eq!(rounded(0.102_806_313), 0.1);
    }

    #[test]
    fn nothing_is_kept_of_executors_that_are_gone() {
        let (mut executors, now) = (Executors::default(), SystemTime::now());
        for number in 0..1000 {
            let id = format!("e{number}");
            executors.admit(&id, "p/1").unwrap();
            executors.attends(&id, "p/1", profile(ExecutorRole::Any), now);
            executors.registers(&id, endpoint(), 2, Instant::now());
            assert!(executors.departs(&id, "p/1"));
            assert!(executors.leaves(&id));
        }
        assert!(executors.records.is_empty());
    }

    #[test]
    fn a_process_that_is_lost_while_it_drains_drains_again() {
        let (mut executors, now) = (Executors::default(), SystemTime::now());
        for (incarnation, drain) in [
            ("p/1", Drain::No),
            ("p/2", Drain::Draining),
            ("q/0", Drain::No),
        ] {
            executors.admit("e", incarnation).unwrap();
            executors.attends("e", incarnation, profile(ExecutorRole::Any), now);
            executors.registers("e", endpoint(), 2, Instant::now());
            assert_eq!(executors.drain("e"), Some(drain), "{incarnation}");
            executors.drains("e");
            executors.departs("e", incarnation);
            assert!(executors.leaves("e"));
        }
    }
}
