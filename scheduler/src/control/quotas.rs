//! Quotas: limits of a role on all jobs of one user together, and the use that counts against them, decided purely.
//!
//! ```text
//!   memory      what running tasks of the user's queries may hold ──► a task waits until its slots' share is left
//!   gpu_hours   GPU time of the user's ranks in a window of days ───► a training is refused, or waits to begin
//! ```
//!
//! A task may hold its slots' share of its executor's memory for queries, or less where a limit of its job says so, and the
//! executor sees to that. So the sum of what running tasks may hold bounds what they do hold. The memory of ranks is
//! computed and not enforced by the byte, so it does not count. A training that has begun goes on beyond its quota: only
//! those that have not are held up.
//!
//! Not here: the tasks that hold memory ([`super::slots`]), and the time for which GPUs are held ([`super::ledger`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use serde::{Deserialize, Serialize};
use volley_proto::access::Role;
use volley_proto::limits::USAGE_DAYS;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;
/// Last day of the year 9999, after which times have no text.
const LAST_DAY: u32 = 2_932_896;

/// Limits on the memory of a user's queries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryQuota {
    /// Most bytes that all running tasks of the user's queries may hold together.
    pub(crate) limit: Option<u64>,
    /// Most bytes that a task of this job may hold for each of its slots.
    pub(crate) slot: Option<u64>,
}

impl MemoryQuota {
    /// Returns the bytes that a task may hold for a slot, on an executor that gives each slot this share.
    pub(crate) fn of_slot(&self, share: u64) -> u64 {
        self.slot.map_or(share, |slot| slot.min(share))
    }
}

/// Memory that running tasks of users' queries may hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldMemory {
    users: BTreeMap<Arc<str>, u64>,
}

impl HeldMemory {
    pub(crate) fn add(&mut self, user: &Arc<str>, bytes: u64) {
        if bytes > 0 {
            let held = self.users.entry(Arc::clone(user)).or_default();
            *held = held.saturating_add(bytes);
        }
    }

    pub(crate) fn remove(&mut self, user: &str, bytes: u64) {
        if let Some(held) = self.users.get_mut(user) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.users.remove(user);
            }
        }
    }

    /// Returns the bytes of a user.
    pub(crate) fn of(&self, user: &str) -> u64 {
        self.users.get(user).copied().unwrap_or(0)
    }
}

/// Limit on the GPU time of a user's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuQuota {
    /// GPUs, times the time for which ranks hold them.
    pub(crate) time: Duration,
    /// Days of the window, of which the current one is the last.
    pub(crate) days: u32,
}

/// GPU seconds of a user by day; only the newest days are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u32, f64>", into = "BTreeMap<u32, f64>")]
pub(crate) struct GpuDays {
    seconds: BTreeMap<u32, f64>,
}

/// Returns the number of a time's day since 1970 (UTC).
pub(crate) fn day_of(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs() / DAY).map_or(LAST_DAY, |day| day.min(LAST_DAY))
}

/// Returns the time at which a day begins.
fn begin_of(day: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::from(day.min(LAST_DAY)) * DAY)
}

impl From<BTreeMap<u32, f64>> for GpuDays {
    fn from(seconds: BTreeMap<u32, f64>) -> Self {
        Self::restored(seconds)
    }
}

impl From<GpuDays> for BTreeMap<u32, f64> {
    fn from(days: GpuDays) -> Self {
        days.seconds
    }
}

impl GpuDays {
    /// Restores days of an earlier scheduler.
    pub(crate) fn restored(seconds: impl IntoIterator<Item = (u32, f64)>) -> Self {
        let mut days = Self::default();
        for (day, seconds) in seconds {
            days.add(day, seconds);
        }
        days
    }

    pub(crate) fn add(&mut self, day: u32, seconds: f64) {
        if seconds.is_finite() && seconds > 0.0 {
            *self.seconds.entry(day).or_default() += seconds;
            while self.seconds.len() > USAGE_DAYS as usize {
                self.seconds.pop_first();
            }
        }
    }

    /// Returns the seconds of each day of the window that ends with today.
    fn window(&self, days: u32, today: u32) -> impl Iterator<Item = (u32, f64)> {
        let first = today.saturating_sub(days.saturating_sub(1));
        let window = self.seconds.range(first..=today);
        window.map(|(day, seconds)| (*day, *seconds))
    }

    /// Returns the seconds in a window of this many days.
    pub(crate) fn within(&self, days: u32, today: u32) -> f64 {
        let window = self.window(days, today);
        window.fold(0.0, |sum, (_, seconds)| sum + seconds)
    }

    /// Returns the use of a quota that is used up; `None` if some of it is left.
    pub(crate) fn spent(&self, quota: GpuQuota, today: u32) -> Option<(Duration, SystemTime)> {
        let (GpuQuota { time, days }, limit) = (quota, quota.time.as_secs_f64());
        let used = self.within(days, today);
        if used < limit {
            return None;
        }
        let mut left = used;
        let mut window = self.window(days, today);
        let leaves = window.find(|(_, seconds)| {
            left -= seconds;
            left < limit
        });
        let (day, _) = leaves.unwrap_or((today, 0.0));
        let used = Duration::try_from_secs_f64(used).unwrap_or(time);
        Some((used, begin_of(day.saturating_add(days))))
    }
}

/// A quota of GPU hours that is used up, for users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpentGpuHours {
    pub(crate) user: Arc<str>,
    /// Role that sets the quota.
    pub(crate) role: Role,
    pub(crate) quota: GpuQuota,
    /// GPU time in the window.
    pub(crate) used: Duration,
    /// Time at which so much of it has left the window that trainings begin again.
    pub(crate) until: SystemTime,
}

/// Returns a time in hours.
pub(crate) fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3600.0
}

impl fmt::Display for SpentGpuHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            role,
            quota: GpuQuota { time, days },
            used,
            until,
        } = self;
        let window = match days {
            1 => "today (UTC)".to_owned(),
            days => format!("in the last {days} days"),
        };
        write!(
            f,
            "trainings of {user} have used {:.2} GPU hours {window}, and the limit gpu_hours of the role {role} is \
             {}/{days}d: the next one on a GPU begins from {}, when enough of them are older; device = 'cpu' takes no GPU",
            hours(*used),
            hours(*time),
            format_rfc3339_seconds(*until),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3600.0;

    fn quota(hours: u64, days: u32) -> GpuQuota {
        GpuQuota {
            time: Duration::from_secs(hours * 3600),
            days,
        }
    }

    #[test]
    fn a_slot_has_the_smallest_share() {
        let of_slot = |slot, share| MemoryQuota { limit: None, slot }.of_slot(share);
        assert_eq!(of_slot(None, 7), 7);
        assert_eq!(of_slot(Some(3), 7), 3);
        assert_eq!(of_slot(Some(9), 7), 7);
    }

    #[test]
    fn memory_that_nobody_holds_takes_none() {
        let (mut held, user) = (HeldMemory::default(), Arc::from("u"));
        held.add(&user, 5);
        held.add(&user, 2);
        held.remove(&user, 5);
        assert_eq!((held.of("u"), held.of("v")), (2, 0));
        held.remove(&user, 2);
        assert!(held.users.is_empty());
    }

    #[test]
    fn hours_count_for_as_many_days_as_the_window_has() {
        let mut days = GpuDays::default();
        days.add(100, 3.0 * HOUR);
        days.add(102, 2.0 * HOUR);
        days.add(102, HOUR);
        let within = |window, today| days.within(window, today) / HOUR;
        assert_eq!(within(3, 102), 6.0);
        assert_eq!(within(2, 102), 3.0);
        assert_eq!(within(1, 103), 0.0);
        assert_eq!(within(92, 50), 0.0, "the clock was set back");
        assert_eq!(within(0, 102), 3.0, "there is no such window");
    }

    #[test]
    fn a_spent_quota_tells_when_use_falls_below_it() {
        let mut days = GpuDays::default();
        for (day, hours) in [(100, 1.0), (101, 4.0), (103, 5.0)] {
            days.add(day, hours * HOUR);
        }
        assert_eq!(days.spent(quota(11, 10), 103), None);
        // Without the first day, nine hours are left, which is not below the limit of nine.
        let (used, until) = days.spent(quota(9, 10), 103).unwrap();
        assert_eq!(hours(used), 10.0);
        assert_eq!(until, begin_of(111));
        let (_, until) = days.spent(quota(10, 10), 103).unwrap();
        assert_eq!(until, begin_of(110));
        // Then it is as it was said.
        assert_eq!(days.spent(quota(10, 10), day_of(until)), None);
        assert!(days.spent(quota(10, 10), day_of(until) - 1).is_some());
        let (_, until) = days.spent(quota(1, 1), 103).unwrap();
        assert_eq!(until, begin_of(104));
    }

    #[test]
    fn only_days_of_the_longest_window_are_kept() {
        let days = GpuDays::restored((0..1000).map(|day| (day, 1.0)));
        assert_eq!(days.seconds.len(), USAGE_DAYS as usize);
        assert_eq!(days.within(USAGE_DAYS, 999), f64::from(USAGE_DAYS));
        let none = GpuDays::restored([(1, f64::NAN), (2, f64::INFINITY), (3, -1.0)]);
        assert_eq!(none, GpuDays::default(), "a record may have anything");
    }

    #[test]
    fn a_spent_quota_names_its_use_its_limit_and_its_end() {
        let spent = SpentGpuHours {
            user: "alice".into(),
            role: Role::Run,
            quota: quota(40, 30),
            used: Duration::from_secs(145_800),
            until: begin_of(20_000),
        };
        let text = spent.to_string();
        for part in [
            "trainings of alice have used 40.50 GPU hours in the last 30 days",
            "the limit gpu_hours of the role run is 40/30d",
            "from 2024-10-04T00:00:00Z",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(day_of(begin_of(20_000)), 20_000);
        assert_eq!(begin_of(u32::MAX), begin_of(LAST_DAY));
    }
}
