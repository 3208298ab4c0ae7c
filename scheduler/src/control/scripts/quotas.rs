//! Scripts of users with quotas, and of what they have used before a restart.

use volley_proto::access::Role;
use volley_proto::tables;

use super::*;
use crate::control::quotas::day_of;

/// Limits of one slot's memory, and of one GPU hour in seven days.
fn limits() -> JobLimits {
    JobLimits {
        memory: MemoryQuota {
            limit: Some(1 << 30),
            slot: None,
        },
        gpus: Some(GpuQuota {
            time: Duration::from_secs(3600),
            days: 7,
        }),
        ..JobLimits::none(Role::Run)
    }
}

/// Builds a query of user o, with quotas.
fn limited(job: &str) -> Submission {
    Submission {
        limits: Some(limits()),
        ..Submission::query(job)
    }
}

fn on(device: Device, ranks: usize) -> Gang {
    Gang {
        device: DeviceRequest {
            device,
            shares: false,
        },
        ..gang(TrainId::generate(), Ranks::Exactly(ranks), TooFew::Fail)
    }
}

/// Builds a script with executors that have a GPU each, on hosts of their own.
fn with_gpus(executors: &[(&'static str, u8)]) -> Script {
    let mut script = Script::new(&[]);
    for &(executor, gpu) in executors {
        script.joins_with(executor, Device::Auto, (executor, &[gpu]));
    }
    script
}

impl Script {
    /// Submits a training of user o, with quotas, and offers its barrier stage.
    fn trains_limited(&mut self, job: &str, gang: &Gang) -> Vec<String> {
        self.submit_with(Submission {
            train: Some(gang.train),
            ..limited(job)
        });
        self.offer(&[barrier(job, gang, &[], true)])
    }

    fn usage(&mut self, owner: &str) -> tables::Usage {
        let now = self.now;
        let rows = self.controller.usage_rows(Some(owner), now);
        rows.into_iter().next().unwrap()
    }

    /// Lets time pass. Returns the usage that is recorded then.
    fn recorded_after(&mut self, seconds: u64) -> Vec<RecordedUsage> {
        self.now = self.now + Duration::from_secs(seconds);
        let commands = self.controller.on(Event::Tick, self.now);
        let usage = commands.into_iter().filter_map(|command| match command {
            Command::Record(Change::Usage(usage)) => Some(usage),
            _ => None,
        });
        usage.collect()
    }

    fn waits_for_hours(&self, job: &str) -> bool {
        let waits = self.waits(job).unwrap_or_default();
        waits.contains("trainings of o have used") && waits.contains("gpu_hours of the role run")
    }
}

#[test]
fn a_quota_of_memory_holds_over_all_jobs_of_a_user() {
    let mut script = Script::new(&["a", "b", "c"]);
    script.submit_with(limited("j"));
    script.submit_with(limited("k"));
    let stages = [slices("j", 2), slices("k", 1)];
    assert_eq!(script.offer(&stages), ["bind j: a"]);
    let waits = script.waits("k").unwrap();
    assert!(
        waits.starts_with("running tasks of user o may hold 1.0 GiB of memory")
            && waits.contains("the limit memory of the role run is 1.0 GiB"),
        "{waits}"
    );
    assert_eq!(
        script.controller.unmet().tasks,
        1,
        "a slot more would not help k"
    );
    let usage = script.usage("o");
    assert_eq!(usage.memory_bytes, Some(1 << 30));
    assert_eq!(usage.memory_limit_bytes, Some(1 << 30));
    script.submit_with(Submission {
        owner: "p".into(),
        ..Submission::query("l")
    });
    assert_eq!(script.offer(&[slices("l", 1)]), ["bind l: b"]);
    // A task that is to end may hold its memory until the executor says that it has.
    script.ended("j", AttemptEnd::Cancelled);
    assert!(script.offer(&[slices("k", 1)]).is_empty());
    assert_eq!(script.task_ended("a", "j", 0), ["offer"]);
    assert_eq!(script.usage("o").memory_bytes, Some(0));
    assert_eq!(script.offer(&[slices("k", 1)]), ["bind k: a"]);
    assert_eq!(script.waits("k"), None);
}

#[test]
fn a_gang_that_has_begun_goes_on_beyond_its_gpu_hours_and_no_other_begins() {
    let mut script = with_gpus(&[("a", 0), ("b", 1), ("c", 2)]);
    script.joins("bb");
    let gang = on(Device::AnyCuda, 2);
    assert_eq!(script.trains_limited("t", &gang), ["bind t: a b"]);
    for (task, executor) in [(0, "a"), (1, "b")] {
        let seat = ("t", task);
        let controller = &mut script.controller;
        let joined = controller.join(gang.train, seat, executor, "X".into());
        assert!(joined.unwrap().is_ok());
        controller.take_commands();
    }
    script.after(1800);
    let usage = script.usage("o");
    assert_eq!((usage.gpu_hours, usage.gpu_seconds), (Some(1.0), 3600.0));
    assert_eq!(
        (usage.gpu_hours_limit, usage.gpu_hours_days),
        (Some(1.0), Some(7))
    );
    // A GPU is free.
    assert!(
        script
            .trains_limited("u", &on(Device::AnyCuda, 1))
            .is_empty()
    );
    assert!(script.waits_for_hours("u"), "{:?}", script.waits("u"));
    assert_eq!(script.controller.unmet().gangs, 0);
    assert!(script.trains_limited("v", &on(Device::Auto, 1)).is_empty());
    assert!(script.waits_for_hours("v"), "{:?}", script.waits("v"));
    // On the CPU it may.
    assert_eq!(
        script.trains_limited("w", &on(Device::Cpu, 1)),
        ["bind w: bb"]
    );
    script.loses("b", vec![effect("t", "b", Some(gang.train), false)]);
    let (executor, task) = ("a".to_owned(), task("t", 0));
    script.on(Event::TaskFailed { executor, task });
    let again = barrier("t", &gang, &[], true);
    assert_eq!(script.offer(&[again]), ["bind t: a c"]);
}

#[test]
fn gpu_hours_come_back_when_their_day_leaves_the_window() {
    let mut script = with_gpus(&[("a", 0)]);
    assert_eq!(
        script.trains_limited("t", &on(Device::AnyCuda, 1)),
        ["bind t: a"]
    );
    script.after(3600);
    let (executor, task) = ("a".to_owned(), task("t", 0));
    script.on(Event::TaskSucceeded { executor, task });
    script.ended("t", AttemptEnd::Succeeded { rows: None });
    let gang = on(Device::AnyCuda, 1);
    assert!(script.trains_limited("u", &gang).is_empty());
    assert!(script.waits_for_hours("u"), "{:?}", script.waits("u"));
    let commands = script.after(7 * 24 * 3600);
    assert!(commands.contains(&"offer".to_owned()), "{commands:?}");
    assert_eq!(
        script.offer(&[barrier("u", &gang, &[], true)]),
        ["bind u: a"]
    );
    assert_eq!(script.usage("o").gpu_hours, Some(0.0));
}

#[test]
fn nothing_starts_while_a_job_with_quotas_is_not_known_yet() {
    let mut script = Script::new(&["a", "b"]);
    script.controller.opens();
    let stages = [slices("j", 1), slices("p", 1)];
    assert!(script.offer(&stages).is_empty());
    assert_eq!(script.on(Event::JobSubmitted(limited("j"))), ["offer"]);
    // The job of another attempt is never known.
    assert_eq!(script.offer(&stages), ["bind j: a"]);
    script.controller.opened();
    let commands = script.controller.take_commands();
    let commands: Vec<_> = commands.iter().filter_map(text).collect();
    assert_eq!(commands, ["offer"]);
    assert_eq!(script.offer(&[slices("p", 1)]), ["bind p: b"]);
    assert_eq!(script.usage("o").memory_bytes, Some(1 << 30));
}

#[test]
fn usage_is_recorded_while_it_changes_and_counts_for_the_next_scheduler() {
    let mut script = Script::new(&["a"]);
    script.submit_with(limited("j"));
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    let first = script.recorded_after(3);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].users[0].held.slot_seconds, 3.0);
    assert!(script.recorded_after(7).is_empty(), "not with each tick");
    script.on(Event::TaskSucceeded {
        executor: "a".into(),
        task: task("j", 0),
    });
    script.ended("j", AttemptEnd::Succeeded { rows: None });
    let second = script.recorded_after(3);
    let [usage] = &second[..] else {
        panic!("usage is due")
    };
    let [user] = &usage.users[..] else {
        panic!("{usage:?}")
    };
    let counts = (&*user.owner, user.jobs.submitted, user.jobs.succeeded);
    assert_eq!(counts, ("o", 1, 1));
    assert_eq!(user.held.slot_seconds, 10.0);
    assert!(script.recorded_after(20).is_empty(), "nothing has changed");

    let mut next = with_gpus(&[("a", 0)]);
    let mut usage = usage.clone();
    let today = day_of(next.now.time);
    usage.users[0].held.gpu_days = GpuDays::restored([(today, 3600.0)]);
    next.controller.restore_usage(usage.clone());
    assert!(next.recorded_after(20).is_empty(), "it is recorded already");
    let row = next.usage("o");
    assert_eq!((row.jobs, row.succeeded, row.slot_seconds), (1, 1, 10.0));
    assert_eq!(row.since, Some(tables::millis(usage.since)));
    assert!(next.trains_limited("t", &on(Device::AnyCuda, 1)).is_empty());
    assert!(next.waits_for_hours("t"), "{:?}", next.waits("t"));
    assert_eq!(next.usage("o").jobs, 2);
}
