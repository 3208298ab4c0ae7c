//! Scripts of many jobs at once: queues, users, priorities, and gangs between them.

use super::*;

/// Builds a query of a user in a queue.
fn of(job: &str, queue: &str, owner: &str) -> Submission {
    Submission {
        queue: queue.into(),
        owner: owner.into(),
        ..Submission::query(job)
    }
}

/// Reports that a task has succeeded, and offers the same stages.
fn succeeds(script: &mut Script, executor: &str, done: Task, stages: &[Stage]) -> Vec<String> {
    let executor = executor.to_owned();
    script.on(Event::TaskSucceeded {
        executor,
        task: done,
    });
    script.offer(stages)
}

#[test]
fn a_query_in_another_queue_gets_the_next_slot_that_is_free() {
    let mut script = Script::sharing(&["a", "b"], &["etl=1"]);
    script.submit_with(of("j", "etl", "x"));
    assert_eq!(script.offer(&[slices("j", 9)]), ["bind j: a b"]);
    script.submit_with(of("k", "default", "y"));
    let stages = [slices("j", 7), slices("k", 1)];
    assert!(script.offer(&stages).is_empty());
    let waits = script.waits("k").unwrap();
    assert!(
        waits.starts_with("needs a free slot: queue default has 0 of 2 slots, and its share is 1"),
        "{waits}"
    );
    assert_eq!(
        succeeds(&mut script, "b", task("j", 1), &stages),
        ["bind k: b"]
    );
    assert_eq!(script.waits("k"), None);
}

#[test]
fn a_cap_holds_over_all_jobs_of_a_user() {
    let mut script = Script::sharing(&["a", "b"], &["etl=1,user_slots=1"]);
    script.submit_with(of("j", "etl", "bob"));
    script.submit_with(of("k", "etl", "bob"));
    let stages = [slices("j", 1), slices("k", 1)];
    assert_eq!(script.offer(&stages), ["bind j: a"]);
    let waits = script.waits("k");
    assert_eq!(
        waits.as_deref(),
        Some("user bob holds 1 slot, and the cap of queue etl is 1")
    );
    // The task ends with its job, and its slot is free when the executor says so.
    script.ended("j", AttemptEnd::Cancelled);
    assert!(script.offer(&[slices("k", 1)]).is_empty());
    assert_eq!(script.task_ended("a", "j", 0), ["offer"]);
    assert_eq!(script.offer(&[slices("k", 1)]), ["bind k: a"]);
}

#[test]
fn a_job_of_a_higher_priority_goes_first() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.submit_with(Submission {
        priority: 10,
        ..Submission::query("k")
    });
    let stages = [slices("j", 1), slices("k", 1)];
    assert_eq!(script.offer(&stages), ["bind k: a"]);
}

/// Builds two executors: a query holds a, a gang of two waits, and other queries came later.
fn behind_a_gang(later: &[&str]) -> (Script, Gang) {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    let gang = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    script.submit("t", Some(gang.train));
    for job in later {
        script.submit(job, None);
    }
    (script, gang)
}

/// Lets time pass with all clients present; returns the commands at its end.
fn passes(script: &mut Script, seconds: u64) -> Vec<String> {
    let mut commands = Vec::new();
    for _ in 0..seconds {
        for job in ["j", "u", "v", "w"] {
            script.on(Event::ClientAsked { job: job.into() });
        }
        commands = script.after(1);
    }
    commands
}

#[test]
fn a_reservation_holds_queries_up_for_so_long() {
    let (mut script, gang) = behind_a_gang(&["u", "v", "w"]);
    let stages = |left: &[(&str, usize)]| -> Vec<Stage> {
        let left = left.iter().map(|(job, pending)| slices(job, *pending));
        [barrier("t", &gang, &[], true)]
            .into_iter()
            .chain(left)
            .collect()
    };
    let all = stages(&[("u", 2), ("v", 1), ("w", 1)]);
    assert!(script.offer(&all).is_empty(), "b is reserved");
    let waits = script.waits("u").unwrap();
    assert!(
        waits.starts_with("slots are reserved for the training of job t"),
        "{waits}"
    );
    let job = script.controller.job("u").unwrap();
    let told = script.controller.holders(Some("somebody else")).waits(job);
    let told = told.unwrap();
    assert!(
        told.starts_with("slots are reserved for a training of another user"),
        "{told}"
    );
    assert!(passes(&mut script, 59).is_empty());
    assert_eq!(passes(&mut script, 1), ["offer"], "time alone ends that");
    // As many jobs as there are slots go ahead, with all their stages; w does not.
    assert_eq!(script.offer(&all), ["bind u: b"]);
    assert_eq!(
        succeeds(
            &mut script,
            "b",
            task("u", 0),
            &stages(&[("u", 1), ("v", 1), ("w", 1)])
        ),
        ["bind u: b"]
    );
    assert_eq!(script.waits("u"), None);
    let waits = script.waits("w").unwrap();
    assert!(waits.starts_with("slots are reserved"), "{waits}");
    // However long these take, no others follow: the gang starts when they have ended.
    assert!(passes(&mut script, 300).is_empty());
    assert_eq!(
        succeeds(
            &mut script,
            "b",
            task("u", 1),
            &stages(&[("v", 1), ("w", 1)])
        ),
        ["bind v: b"]
    );
    for job in ["u", "v"] {
        script.ended(job, AttemptEnd::Succeeded { rows: None });
    }
    assert!(succeeds(&mut script, "b", task("v", 0), &stages(&[("w", 1)])).is_empty());
    assert_eq!(
        succeeds(&mut script, "a", task("j", 0), &stages(&[("w", 1)])),
        ["bind t: a b"]
    );
}

#[test]
fn a_gang_starts_beside_queries_that_take_longer_than_the_limit() {
    let (mut script, gang) = behind_a_gang(&["u"]);
    let stages = |left: usize| {
        let query = (left > 0).then(|| slices("u", left));
        let gang = barrier("t", &gang, &[], true);
        [gang].into_iter().chain(query).collect::<Vec<_>>()
    };
    assert!(script.offer(&stages(9)).is_empty());
    passes(&mut script, 60);
    assert_eq!(script.offer(&stages(9)), ["bind u: b"]);
    passes(&mut script, 90);
    // u was promoted, and gets free slots until it ends.
    assert_eq!(
        succeeds(&mut script, "a", task("j", 0), &stages(8)),
        ["bind u: a"]
    );
    passes(&mut script, 90);
    assert!(succeeds(&mut script, "b", task("u", 0), &stages(0)).is_empty());
    passes(&mut script, 90);
    assert_eq!(
        succeeds(&mut script, "a", task("u", 1), &stages(0)),
        ["bind t: a b"]
    );
}

#[test]
fn slots_are_counted_to_their_user_also_where_the_job_is_known_late() {
    let mut script = Script::sharing(&["a", "b"], &["etl=1,user_slots=1"]);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    script.submit_with(of("j", "etl", "bob"));
    script.submit_with(of("k", "etl", "bob"));
    assert!(script.offer(&[slices("k", 1)]).is_empty());
    let waits = script.waits("k");
    assert_eq!(
        waits.as_deref(),
        Some("user bob holds 1 slot, and the cap of queue etl is 1")
    );
}

#[test]
fn a_job_that_runs_waits_for_nothing() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    let second = Stage {
        stage: 2,
        ..slices("j", 1)
    };
    let stages = [slices("j", 1), second.clone()];
    assert_eq!(script.offer(&stages), ["bind j: a"]);
    assert_eq!(script.waits("j"), None);
    assert!(script.offer(&[second]).is_empty());
    assert_eq!(script.waits("j"), None);
}

#[test]
fn gangs_come_first_come_first_served_whatever_their_queues() {
    let mut script = Script::sharing(&["a", "b"], &["etl=1", "urgent=100"]);
    let first = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    let second = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    for (job, gang, queue) in [("t", &first, "etl"), ("u", &second, "urgent")] {
        script.submit_with(Submission {
            train: Some(gang.train),
            priority: 100,
            ..of(job, queue, job)
        });
    }
    let stages = [
        barrier("t", &first, &[], true),
        barrier("u", &second, &[], true),
    ];
    assert_eq!(script.offer(&stages), ["bind t: a b"]);
    let waits = script.waits("u").unwrap();
    assert!(
        waits.starts_with("needs a free slot on 2 executors"),
        "{waits}"
    );
}
