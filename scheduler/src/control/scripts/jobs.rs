//! Scripts of jobs: losses, cancellation, clients that are gone, and retention.

use super::*;

#[test]
fn a_job_whose_only_executor_dies_is_run_again_under_its_id() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    let lost = script.loses("a", vec![effect("j", "a", None, true)]);
    assert_eq!(lost, ["cancel j"]);
    assert!(script.offer(&[slices("j", 1)]).is_empty(), "it is to end");
    // The engine reports an attempt that was ended on purpose as cancelled.
    let ended = script.ended("j", AttemptEnd::Cancelled);
    assert_eq!(ended, ["resubmit j", "offer"]);
    assert_eq!(script.state("j"), JobState::Rerunning);
    assert!(script.resubmitted("j", "k").is_empty());
    assert_eq!(script.offer(&[slices("k", 1)]), ["bind k: b"]);
    let succeeded = || AttemptEnd::Succeeded { rows: None };
    assert!(script.ended("j", succeeded()).is_empty(), "stale");
    assert_eq!(
        script.ended("k", succeeded()),
        ["remove rows of j", "release j"]
    );
    assert_eq!(script.state("j"), JobState::Succeeded);
    let log = script.log("j");
    let again = "executor a was lost with data of this job";
    assert!(
        log.contains(again) && log.contains("(attempt 2 of 5)"),
        "{log}"
    );
}

#[test]
fn a_job_that_needs_shuffle_data_of_a_lost_executor_ends_before_it_runs_again() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    // Stage 1 has run on both; the stage that reads it runs on b.
    script.offer(&[slices("j", 1)]);
    let task_0 = Event::TaskSucceeded {
        executor: "a".into(),
        task: task("j", 0),
    };
    script.on(task_0);
    let holder = slots::Holder::Query("j".into());
    let account = queues::Account::new("default", "o");
    let slots = &mut script.controller.slots;
    let claim = slots::Claim {
        holder,
        account: Some(account),
        rank_of: None,
        gpu: None,
        memory: 0,
    };
    slots.bind("b", task("j", 1), 1, claim);
    script.controller.refresh("b");
    script.loses("a", vec![effect("j", "a", None, true)]);
    let ended = script.ended("j", AttemptEnd::Cancelled);
    assert_eq!(ended, ["resubmit j", "offer"]);
    script.resubmitted("j", "k");
    assert!(
        script.offer(&[slices("k", 1)]).is_empty(),
        "b computes still"
    );
    assert_eq!(
        script.waits("j").as_deref(),
        Some("job j (over, but still computing) holds the only slot")
    );
    let failed = Event::TaskFailed {
        executor: "b".into(),
        task: task("j", 1),
    };
    assert!(
        script.on(failed).is_empty(),
        "that is what aborting it says"
    );
    assert!(script.offer(&[slices("k", 1)]).is_empty());
    assert_eq!(script.task_ended("b", "j", 1), ["offer"]);
    assert_eq!(script.offer(&[slices("k", 1)]), ["bind k: b"]);
}

#[test]
fn the_loss_of_an_executor_leaves_others_jobs_alone() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    assert!(script.loses("b", vec![]).is_empty());
    let succeeded = AttemptEnd::Succeeded { rows: None };
    assert_eq!(script.ended("j", succeeded), ["release j"]);
}

#[test]
fn a_job_that_loses_data_again_and_again_fails() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    let mut attempt = "j".to_owned();
    for number in 1..5 {
        let end = AttemptEnd::Lost(effect("j", "a", None, true).data.unwrap());
        assert_eq!(script.ended(&attempt, end), ["resubmit j", "offer"]);
        attempt = format!("k{number}");
        script.resubmitted("j", &attempt);
    }
    let end = AttemptEnd::Lost(effect("j", "a", None, true).data.unwrap());
    let removed = ["j", "k1", "k2", "k3", "k4"].map(|attempt| format!("remove rows of {attempt}"));
    let (rows, job) = {
        let mut ended = script.ended(&attempt, end);
        let job = ended.split_off(removed.len());
        (ended, job)
    };
    assert_eq!(rows, removed, "rows that a next attempt could have taken");
    assert_eq!(job, ["release j", "offer"]);
    let error = script.error("j");
    assert!(error.contains("run 5 times"), "{error}");
}

#[test]
fn an_executor_that_drains_takes_no_tasks_and_leaves_once_it_is_drained() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    let drains = || Event::ExecutorDrains {
        executor: "a".into(),
        knows: true,
    };
    let drained = || Event::ExecutorDrained {
        executor: "a".into(),
    };
    assert_eq!(script.offer(&[slices("j", 2)]), ["bind j: a b"]);
    assert!(script.on(drains()).is_empty(), "it has a task");
    assert!(script.controller.idle_draining().is_empty());
    script.on(drained());
    assert_eq!(script.controller.drain("a"), Some(Drain::Draining));
    let ended = Event::TaskSucceeded {
        executor: "a".into(),
        task: task("j", 0),
    };
    assert_eq!(script.on(ended), ["find drained"]);
    assert!(script.offer(&[slices("j", 2)]).is_empty(), "b has a task");
    assert_eq!(script.on(drains()), ["find drained"]);
    assert_eq!(script.controller.idle_draining(), ["a"]);
    script.on(drained());
    assert_eq!(script.controller.drain("a"), Some(Drain::Drained));
    assert!(script.controller.idle_draining().is_empty());
    assert!(script.loses("a", vec![]).is_empty());
    assert_eq!(script.controller.drain("a"), None);
    assert_eq!(script.state("j"), JobState::Running);
    // A process that was only lost drains still.
    script.on(Event::ExecutorDisconnected {
        executor: "a".into(),
        incarnation: "p/1".into(),
    });
    script.joins("a");
    assert_eq!(script.controller.drain("a"), Some(Drain::Draining));
    assert!(script.offer(&[slices("j", 2)]).is_empty());
}

#[test]
fn data_that_leaves_with_a_drained_executor_is_no_failure_of_its_job() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    let mut attempt = "j".to_owned();
    for number in 1..20 {
        script.on(Event::ExecutorDrains {
            executor: "b".into(),
            knows: true,
        });
        let lost = script.loses("b", vec![effect(&attempt, "b", None, true)]);
        assert_eq!(lost, [format!("cancel {attempt}")]);
        let ended = script.ended(&attempt, AttemptEnd::Cancelled);
        assert_eq!(ended, ["resubmit j", "offer"]);
        attempt = format!("k{number}");
        script.resubmitted("j", &attempt);
        script.on(Event::ExecutorDisconnected {
            executor: "b".into(),
            incarnation: "p/1".into(),
        });
        script.joins("b");
    }
    assert_eq!(script.state("j"), JobState::Running);
}

/// Closes the connection of an executor, which the engine then removes with data of an attempt.
fn dies(script: &mut Script, executor: &str, attempts: &[&str]) {
    let incarnation = "p/1".to_owned();
    let disconnected = Event::ExecutorDisconnected {
        executor: executor.into(),
        incarnation,
    };
    let removed = format!("remove {executor}: its connection closed");
    assert_eq!(script.on(disconnected), [removed]);
    let effects = attempts.iter();
    let effects = effects.map(|attempt| effect(attempt, executor, None, true));
    script.loses(executor, effects.collect());
}

#[test]
fn a_stage_whose_tasks_end_two_executors_is_not_tried_again() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    dies(&mut script, "a", &["j"]);
    assert_eq!(
        script.ended("j", AttemptEnd::Cancelled),
        ["resubmit j", "offer"]
    );
    script.resubmitted("j", "k");
    script.joins("b");
    assert_eq!(script.offer(&[slices("k", 1)]), ["bind k: b"]);
    dies(&mut script, "b", &["k"]);
    assert_eq!(
        script.ended("k", AttemptEnd::Cancelled),
        ["remove rows of j", "remove rows of k", "release j", "offer"]
    );
    let error = script.error("j");
    assert!(
        error.contains("executors a and b") && error.contains("stage 1 "),
        "{error}"
    );
}

#[test]
fn other_losses_are_no_evidence_against_a_stage() {
    // The executor leaves as planned; it ran tasks of two jobs; it held data, and ran nothing; it comes back.
    for case in 0..4 {
        let mut script = Script::new(&["a"]);
        script.submit("j", None);
        let mut attempt = "j".to_owned();
        for number in 1..4 {
            let executor = format!("e{number}");
            let before = format!("e{}", number - 1);
            let before = match number {
                1 => "a",
                _ => &before,
            };
            let other = format!("other{number}");
            assert_eq!(
                script.offer(&[slices(&attempt, 1)]),
                [format!("bind {attempt}: {before}")]
            );
            match case {
                0 => {
                    script.loses(before, vec![effect(&attempt, before, None, true)]);
                }
                1 => {
                    script.submit(&other, None);
                    let claim = slots::Claim {
                        holder: slots::Holder::Query(other.clone()),
                        account: Some(queues::Account::new("default", "o")),
                        rank_of: None,
                        gpu: None,
                        memory: 0,
                    };
                    script
                        .controller
                        .slots
                        .bind(before, task(&other, 0), 0, claim);
                    dies(&mut script, before, &[&attempt]);
                }
                2 => {
                    script.on(Event::TaskSucceeded {
                        executor: before.into(),
                        task: task(&attempt, 0),
                    });
                    dies(&mut script, before, &[&attempt]);
                }
                _ => {
                    dies(&mut script, before, &[&attempt]);
                    assert_eq!(script.controller.admit(before, "p/2"), Ok(false));
                }
            }
            let ended = script.ended(&attempt, AttemptEnd::Cancelled);
            assert_eq!(ended, ["resubmit j", "offer"], "case {case}");
            attempt = format!("k{number}");
            script.resubmitted("j", &attempt);
            script.joins(&executor);
        }
    }
}

#[test]
fn a_job_can_be_cancelled_at_each_state() {
    let cancel = |script: &mut Script| {
        assert!(script.controller.cancel("j", script.now));
        let commands = script.controller.take_commands();
        commands.iter().filter_map(text).collect::<Vec<_>>()
    };
    let cancelled = |script: &Script| assert_eq!(script.state("j"), JobState::Cancelled);

    // While it is planned, the engine does not know the job yet, so the command is repeated until it does.
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    assert_eq!(cancel(&mut script), ["release j", "cancel j"]);
    cancelled(&script);
    assert_eq!(script.after(1), ["cancel j"]);
    assert!(
        script.controller.jobs().is_ending("j"),
        "it is not submitted"
    );
    let planned = script.ended("j", AttemptEnd::Failed("no plan: Cancelled".into()));
    assert_eq!(planned, ["remove rows of j", "offer"]);
    assert!(script.after(1).is_empty());

    // While it runs.
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.offer(&[slices("j", 1)]);
    assert_eq!(cancel(&mut script), ["release j", "cancel j"]);
    assert_eq!(
        script.ended("j", AttemptEnd::Cancelled),
        ["remove rows of j", "offer"]
    );
    cancelled(&script);
    let ending = script.controller.ending_tasks("a", script.now);
    assert_eq!(ending, [task("j", 0)], "the executor is told");

    // While it is being submitted again: the new attempt is ended.
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    let lost = AttemptEnd::Lost(effect("j", "a", None, true).data.unwrap());
    script.ended("j", lost);
    assert_eq!(cancel(&mut script), ["remove rows of j", "release j"]);
    cancelled(&script);
    assert_eq!(script.resubmitted("j", "k"), ["cancel k"]);
    assert_eq!(
        script.ended("k", AttemptEnd::Cancelled),
        ["remove rows of k", "offer"]
    );
    cancelled(&script);

    // While it is being submitted again, which fails.
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.ended(
        "j",
        AttemptEnd::Lost(effect("j", "a", None, true).data.unwrap()),
    );
    cancel(&mut script);
    let (job, error) = ("j".into(), "no".into());
    assert!(
        script
            .on(Event::ResubmissionFailed { job, error })
            .is_empty()
    );
    cancelled(&script);

    // After it has ended.
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.ended("j", AttemptEnd::Succeeded { rows: None });
    assert!(cancel(&mut script).is_empty());
    assert_eq!(script.state("j"), JobState::Succeeded);
    let now = script.now;
    assert!(!script.controller.cancel("x", now), "there is no such job");
}

#[test]
fn how_an_attempt_was_to_end_counts_for_more_than_the_engine_s_word() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    let (attempt, reason) = ("j".to_owned(), "a task is too large".to_owned());
    let fails = script.on(Event::AttemptFails { attempt, reason });
    assert_eq!(fails, ["cancel j"]);
    script.ended("j", AttemptEnd::Cancelled);
    assert_eq!(script.error("j"), "a task is too large");
}

#[test]
fn an_attempt_may_end_before_its_job_is_told_of() {
    let mut script = Script::new(&["a"]);
    let succeeded = AttemptEnd::Succeeded { rows: None };
    assert!(script.ended("j", succeeded).is_empty());
    let submission = Event::JobSubmitted(Submission::query("j"));
    assert_eq!(script.on(submission), ["release j"]);
    assert_eq!(script.state("j"), JobState::Succeeded);
    script.submit("k", None);
    script.ended(
        "k",
        AttemptEnd::Lost(effect("k", "a", None, true).data.unwrap()),
    );
    script.ended("l", AttemptEnd::Failed("no".into()));
    assert_eq!(
        script.resubmitted("k", "l"),
        ["remove rows of k", "remove rows of l", "release k", "offer"]
    );
    assert_eq!(script.error("k"), "no");
}

#[test]
fn an_attempt_may_be_offered_before_its_job_is_told_of() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    assert!(script.offer(&[slices("k", 1)]).is_empty());
    let submission = Event::JobSubmitted(Submission::query("k"));
    assert_eq!(script.on(submission), ["offer"]);
    script.offer(&[slices("k", 1)]);
    let waits = script.waits("k");
    assert_eq!(waits.as_deref(), Some("job j holds the only slot"));
    assert_eq!(script.waits_for_owner("k"), waits, "both are the owner's");
}

#[test]
fn a_job_is_not_told_of_another_user_s() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
    script.submit_with(Submission {
        owner: "p".into(),
        ..Submission::query("k")
    });
    script.offer(&[slices("k", 1)]);
    let waits = script.waits_for_owner("k").unwrap();
    assert_eq!(waits, "a job of another user holds the only slot");
    assert_eq!(
        script.waits("k").as_deref(),
        Some("job j holds the only slot")
    );
}

#[test]
fn queries_end_with_their_client_and_training_goes_on() {
    let mut script = Script::new(&["a"]);
    let train = TrainId::generate();
    script.submit("j", None);
    script.submit("t", Some(train));
    assert!(script.after(29).is_empty());
    script.on(Event::ClientAsked { job: "j".into() });
    assert!(script.after(29).is_empty());
    assert_eq!(script.after(2), ["release j", "cancel j"]);
    assert_eq!(script.state("j"), JobState::Cancelled);
    assert_eq!(script.state("t"), JobState::Running);
    let log = script.log("j");
    assert!(
        log.contains("its client has sent no request for 30s"),
        "{log}"
    );
}

#[test]
fn a_stop_of_the_scheduler_is_no_silence_of_others() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.now = script.now + Duration::from_secs(3600);
    assert!(script.on(Event::Resumed).is_empty());
    assert!(script.after(29).is_empty());
    assert_eq!(script.after(2), ["release j", "cancel j"]);
}

#[test]
fn a_job_without_executors_waits_for_a_while() {
    let mut script = Script::new(&[]);
    let patient = TrainId::generate();
    script.submit("j", None);
    script.submit("t", Some(patient));
    let run = script.controller.runs.entry(&patient);
    run.is_of(&gang(patient, Ranks::All, TooFew::Wait));
    let heard = |script: &mut Script| script.on(Event::ClientAsked { job: "j".into() });
    assert!(script.after(1).is_empty());
    let waits = script.waits("j");
    assert_eq!(waits.as_deref(), Some("no executor is registered"));
    script.after(20);
    heard(&mut script);
    assert_eq!(script.after(10), ["cancel j"]);
    script.ended("j", AttemptEnd::Cancelled);
    let error = script.error("j");
    assert_eq!(error, "no executor has been registered for 30s");
    assert_eq!(script.state("t"), JobState::Running, "it waits as asked");
}

#[test]
fn a_job_without_executors_is_told_of_those_that_were_refused() {
    let mut script = Script::new(&[]);
    script.submit("j", None);
    assert!(script.after(1).is_empty());
    let reason = "its token is unknown";
    script.on(Event::ExecutorRefused { reason });
    script.on(Event::ClientAsked { job: "j".into() });
    script.after(20);
    script.on(Event::ClientAsked { job: "j".into() });
    assert_eq!(script.after(10), ["cancel j"]);
    script.ended("j", AttemptEnd::Cancelled);
    let error = script.error("j");
    assert!(
        error.ends_with("; an executor was refused in the last minute: its token is unknown"),
        "{error}"
    );
}

#[test]
fn rows_that_nobody_reads_are_removed_and_whoever_comes_later_is_told() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    script.ended("j", AttemptEnd::Succeeded { rows: None });
    assert!(script.after(299).is_empty());
    assert_eq!(script.after(2), ["remove rows of j"]);
    assert!(script.after(2).is_empty(), "once");
    let reading = Reading {
        reader: 1,
        batches: 0,
        done: false,
    };
    let told = script
        .controller
        .read_rows("j", reading, script.now)
        .unwrap();
    assert!(told.unwrap().contains("no client has asked"));
    assert_eq!(script.controller.read_rows("x", reading, script.now), None);
}

#[test]
fn an_executor_is_lost_with_its_stream_and_its_next_incarnation_waits_for_that() {
    let mut script = Script::new(&["a"]);
    let disconnected = |incarnation: &str| Event::ExecutorDisconnected {
        executor: "a".into(),
        incarnation: incarnation.into(),
    };
    assert!(script.on(disconnected("p/0")).is_empty(), "it is not there");
    let removes = script.on(disconnected("p/1"));
    assert_eq!(removes, ["remove a: its connection closed"]);
    assert_eq!(script.controller.admit("a", "p/2"), Ok(true));
    assert!(script.controller.take_commands().is_empty(), "once");
    script.loses("a", vec![]);
    assert!(!script.controller.is_registered("a"));
    assert_eq!(script.controller.presence("a", "p/2"), Presence::Lost);
}

#[test]
fn a_scheduler_that_starts_anew_takes_late_words_for_what_they_are() {
    let mut script = Script::new(&[]);
    let (train, now) = (TrainId::generate(), script.now);
    let report = RankProgress::Event(RunEvent::Note("late".into()));
    for event in [
        Event::TaskSucceeded {
            executor: "a".into(),
            task: task("old", 0),
        },
        Event::TasksEnded {
            executor: "a".into(),
            tasks: vec![task("old", 0)],
        },
        Event::RankReported {
            train,
            generation: generation(3),
            report,
        },
        Event::ExecutorDisconnected {
            executor: "a".into(),
            incarnation: "p/1".into(),
        },
        Event::ClientAsked { job: "old".into() },
    ] {
        assert!(script.on(event).is_empty());
    }
    let controller = &mut script.controller;
    assert_eq!(controller.join(train, ("old", 0), "a", "A".into()), None);
    let failure = Failure {
        rank: 0,
        executor: "a".into(),
        error: "closed".into(),
    };
    assert_eq!(
        controller.resolve(train, &generation(3), &failure, now),
        None
    );
    assert!(controller.job("old").is_none() && controller.run(train).is_none());
    script.joins("a");
    script.submit("j", None);
    assert_eq!(script.offer(&[slices("j", 1)]), ["bind j: a"]);
}

#[test]
fn what_is_kept_of_many_jobs_has_a_bound() {
    let mut script = Script::new(&["a"]);
    for number in 0..20_000 {
        let job = format!("j{number:05}");
        script.submit(&job, None);
        script.offer(&[slices(&job, 1)]);
        let executor = "a".to_owned();
        let task = task(&job, 0);
        script.on(Event::TaskSucceeded { executor, task });
        script.ended(&job, AttemptEnd::Succeeded { rows: None });
        if number % 100 == 0 {
            // Rows of jobs that are long over have been read.
            script.after(301);
        }
    }
    // Eviction needs no further job.
    script.after(301);
    let jobs = script.controller.jobs();
    assert!(jobs.iter().count() <= 256, "{}", jobs.iter().count());
    assert!(jobs.attempts_known() <= 5_000, "{}", jobs.attempts_known());
    assert!(
        !jobs
            .iter()
            .any(|job| job.has_ended() && !job.is_evictable())
    );
}
