//! The controller's part in usage: what each user has used, its record for a later scheduler, and quotas of GPU hours.
//!
//! ```text
//!   jobs, ledger ─► changed users ─► Change::Usage, every ten seconds ─► the record ─► restore_usage
//! ```
//!
//! The numbers of jobs are with the [jobs](super::jobs), and times in the [ledger](super::ledger). Not here: the memory of
//! queries, which placement compares with its quota.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use volley_proto::access::Role;
use volley_proto::tables::{self, millis};

use super::clock::Now;
use super::controller::Controller;
use super::devices::DeviceRequest;
use super::event::{Command, Gang, Topic};
use super::jobs::JobLimits;
use super::ledger::Held;
use super::placement::WaitReason;
use super::quotas::{GpuQuota, SpentGpuHours, day_of, hours};
use super::recorded::{Change, RecordedUsage, UserUsage};

/// Interval at which usage is recorded while it changes.
const INTERVAL: Duration = Duration::from_secs(10);

impl Controller {
    /// Returns the rows of the table of usage, of a user or of all. Brings the time held up to now.
    pub(crate) fn usage_rows(&mut self, owner: Option<&str>, now: Now) -> Vec<tables::Usage> {
        self.slots.pass(now);
        let (ledger, today) = (self.slots.ledger(), day_of(now.time));
        let mut rows: BTreeMap<&str, tables::Usage> = BTreeMap::new();
        for (user, held) in ledger.users() {
            let row = rows.entry(user).or_default();
            row.slot_seconds = held.slot_seconds;
            row.rank_seconds = held.rank_seconds;
            row.gpu_seconds = held.gpu_seconds;
        }
        for (user, of_owner) in self.jobs.owners() {
            let (row, totals) = (rows.entry(user).or_default(), of_owner.totals);
            (row.jobs, row.succeeded) = (totals.submitted, totals.succeeded);
            (row.failed, row.cancelled) = (totals.failed, totals.cancelled);
            let Some(limits) = of_owner.limits else {
                continue;
            };
            row.jobs_limit = limits.jobs;
            row.memory_limit_bytes = limits.memory.limit;
            if let Some(GpuQuota { time, days }) = limits.gpus {
                let within = |held: &Held| held.gpu_days.within(days, today) / 3600.0;
                row.gpu_hours = Some(ledger.of(user).map_or(0.0, within));
                row.gpu_hours_limit = Some(hours(time));
                row.gpu_hours_days = Some(days.into());
            }
        }
        for job in self.jobs.iter().filter(|job| !job.has_ended()) {
            rows.entry(&job.owner).or_default().running += 1;
        }
        let wanted = rows.into_iter();
        // Slots of jobs without an owner are nobody's.
        let wanted = wanted.filter(|(user, _)| match owner {
            Some(owner) => owner == *user,
            None => !user.is_empty(),
        });
        let named = wanted.map(|(user, row)| tables::Usage {
            owner: user.to_owned(),
            since: ledger.since().map(millis),
            memory_bytes: Some(self.slots.memory().of(user)),
            ..row
        });
        named.collect()
    }

    /// Counts a user's jobs that have not ended.
    pub(crate) fn running_jobs(&self, owner: &str) -> usize {
        let jobs = self.jobs.iter();
        jobs.filter(|job| job.owner == owner && !job.has_ended())
            .count()
    }

    /// Takes over the usage that an earlier scheduler has recorded. Its jobs are [restored](Self::restore) later.
    pub(crate) fn restore_usage(&mut self, usage: RecordedUsage) {
        let RecordedUsage { since, users } = usage;
        let held = users.into_iter().map(|user| {
            let UserUsage { owner, jobs, held } = user;
            let user: Arc<str> = owner.as_str().into();
            self.jobs.restore_totals(owner, jobs);
            (user, held)
        });
        self.slots.ledger_mut().restore(since, held);
    }

    /// Records the usage of the users for whom it has changed since it was last recorded.
    pub(crate) fn record_usage(&mut self, now: Now) {
        self.slots.pass(now);
        self.usage_recorded = Some(now.instant);
        let mut changed = self.jobs.take_changed();
        let ledger = self.slots.ledger_mut();
        changed.extend(ledger.take_changed().iter().map(ToString::to_string));
        // Jobs without an owner are nobody's.
        changed.remove("");
        let (Some(since), false) = (ledger.since(), changed.is_empty()) else {
            return;
        };
        let users = changed.into_iter().map(|owner| UserUsage {
            jobs: self
                .jobs
                .owners()
                .get(&owner)
                .map_or_else(Default::default, |of| of.totals),
            held: ledger.users().get(&*owner).cloned().unwrap_or_default(),
            owner,
        });
        let users = users.collect();
        self.command(Command::Record(Change::Usage(RecordedUsage {
            since,
            users,
        })));
    }

    /// Records usage if it was not for a while.
    pub(super) fn record_usage_in_time(&mut self, now: Now) {
        let last = self.usage_recorded;
        if last.is_none_or(|last| now.instant.saturating_duration_since(last) >= INTERVAL) {
            self.record_usage(now);
        }
    }

    /// Returns a user's quota of GPU hours if it is used up.
    pub(crate) fn spent_gpu_hours(
        &self,
        user: &str,
        (role, quota): (Role, GpuQuota),
        now: Now,
    ) -> Option<SpentGpuHours> {
        let held = self.slots.ledger().of(user)?;
        let (used, until) = held.gpu_days.spent(quota, day_of(now.time))?;
        Some(SpentGpuHours {
            user: user.into(),
            role,
            quota,
            used,
            until,
        })
    }

    /// Checks whether ranks with this request may take GPUs of this cluster.
    pub(crate) fn may_take_gpus(&self, request: DeviceRequest) -> bool {
        self.pool.deals_gpus(request)
    }

    /// Checks whether a gang that has not begun is to wait for GPU hours of its user, and says so.
    pub(super) fn awaits_gpu_hours(
        &mut self,
        gang: &Gang,
        (job, user): (&str, &str),
        limits: JobLimits,
        now: Now,
    ) -> bool {
        let quota = limits.gpus.filter(|_| self.may_take_gpus(gang.device));
        let spent = quota.and_then(|quota| self.spent_gpu_hours(user, (limits.role, quota), now));
        let Some(spent) = spent else {
            return false;
        };
        self.awaits_day = Some(day_of(now.time));
        if self.runs.entry(&gang.train).waits(spent.to_string(), now) {
            self.wake(Topic::Run(gang.train));
        }
        self.job_waits(job, Some(WaitReason::GpuHours(spent)));
        true
    }

    /// Checks whether GPU hours may have come back to a training that waits for some.
    pub(super) fn gpu_hours_come_back(&self, now: Now) -> bool {
        let waited = self.awaits_day;
        waited.is_some_and(|day| day != day_of(now.time))
    }

    /// Holds attempts of unknown jobs back until [`opened`](Self::opened): the engine may begin with a job before its owner,
    /// and so its quotas, are known.
    pub(crate) fn opens(&mut self) {
        self.opening += 1;
    }

    /// Ends what [`opens`](Self::opens) has begun.
    pub(crate) fn opened(&mut self) {
        self.opening = self.opening.saturating_sub(1);
        if self.opening == 0 && !self.early.is_empty() {
            self.command(Command::Offer);
        }
    }
}
