//! Scripts of many jobs at once: queues, users, priorities, and gangs between them.

use super::*;

/// A query of a user in a queue.
fn of(job: &str, queue: &str, owner: &str) -> Submission {
    Submission {
        queue: queue.into(),
        owner: owner.into(),
        ..Submission::query(job)
    }
}

/// A task of an attempt succeeds, and the same stages are offered.
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
    // It ends with its job, and its slot is free when the executor says so.
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

#[test]
fn a_reservation_yields_to_queries_for_one_round() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    let gang = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    script.submit("t", Some(gang.train));
    script.submit("u", None);
    let stages = || [barrier("t", &gang, &[], true), slices("u", 2)];
    assert!(script.offer(&stages()).is_empty(), "b is reserved");
    let waits = script.waits("u").unwrap();
    assert!(waits.starts_with("the training of job t"), "{waits}");
    let heard = |script: &mut Script| {
        for job in ["j", "u"] {
            script.on(Event::ClientAsked { job: job.into() });
        }
    };
    for _ in 0..3 {
        heard(&mut script);
        script.after(19);
        assert!(script.offer(&stages()).is_empty());
    }
    heard(&mut script);
    assert_eq!(script.after(3), ["offer"], "time alone ends that");
    assert_eq!(script.offer(&stages()), ["bind u: b"]);
    // The rest of u waits for the gang again.
    let rest = || [barrier("t", &gang, &[], true), slices("u", 1)];
    assert!(succeeds(&mut script, "b", task("u", 0), &rest()).is_empty());
    // A gang that can start does.
    assert_eq!(
        succeeds(&mut script, "a", task("j", 0), &rest()),
        ["bind t: a b"]
    );
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
