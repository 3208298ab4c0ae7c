//! Scripts of a scheduler that takes over jobs of an earlier one.

use std::collections::BTreeSet;

use volley_proto::settings::OnClientLoss;

use super::super::recorded::{EXECUTORS_PATIENCE, FUTILE};
use super::*;

/// Returns a job that goes on without its client.
fn recorded(job: &str) -> Recorded {
    Recorded {
        submission: Submission {
            on_client_loss: OnClientLoss::Keep,
            ..Submission::query(job)
        },
        submitted: Now::read().time,
        attempts: vec![job.to_owned()],
        futile: 0,
        generation: None,
        end: None,
    }
}

fn executors(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Returns a script without executors whose controller has taken over these jobs, and what it is to record and do.
fn restored(jobs: Vec<Recorded>, before: &[&str]) -> (Script, Vec<Command>) {
    let mut script = Script::new(&[]);
    script
        .controller
        .restore(jobs, executors(before), script.now);
    let commands = script.controller.take_commands();
    (script, commands)
}

#[test]
fn jobs_are_submitted_again_once_the_executors_are_back() {
    let (mut script, _) = restored(vec![recorded("j"), recorded("k")], &["a", "b"]);
    assert_eq!(script.state("j"), JobState::Rerunning);
    assert!(script.after(1).is_empty());
    script.joins("a");
    assert!(script.after(1).is_empty());
    let waits = script.controller.job("j").unwrap().waits.as_ref().unwrap();
    assert_eq!(waits.to_string(), "needs 2 executors: 1 are registered");
    script.joins("b");
    assert_eq!(script.after(1), ["resubmit j", "resubmit k"]);
    assert!(script.after(1).is_empty(), "once");
    script.resubmitted("j", "j2");
    assert_eq!(script.controller.job("j").unwrap().attempts, ["j", "j2"]);
    assert!(script.controller.job("j").unwrap().waits.is_none());
    let done = AttemptEnd::Succeeded { rows: None };
    assert_eq!(script.ended("j2", done), ["remove rows of j", "release j"]);
    assert_eq!(script.state("j"), JobState::Succeeded);
}

#[test]
fn executors_that_do_not_come_back_are_waited_for_until_their_timeout() {
    let (mut script, _) = restored(vec![recorded("j")], &["a", "b"]);
    script.controller.policy.executor_timeout = Duration::from_secs(10);
    script.joins("a");
    assert!(script.after(0).is_empty());
    assert!(script.after(9).is_empty());
    script.on(Event::ExecutorHeartbeat {
        executor: "a".into(),
    });
    assert_eq!(script.after(1), ["resubmit j"]);
}

#[test]
fn executors_are_expected_until_they_are_back() {
    let (mut script, _) = restored(Vec::new(), &["a"]);
    assert!(script.controller.expects_executors());
    script.joins("a");
    assert!(script.after(1).is_empty());
    assert!(!script.controller.expects_executors());
    let (script, _) = restored(Vec::new(), &[]);
    assert!(!script.controller.expects_executors(), "there were none");
}

#[test]
fn others_than_the_first_executor_have_time_to_come() {
    let (mut script, _) = restored(vec![recorded("j")], &[]);
    script.controller.policy.executor_timeout = Duration::from_secs(10);
    script.after(100);
    script.joins("a");
    assert!(script.after(0).is_empty());
    assert!(script.after(9).is_empty());
    script.on(Event::ExecutorHeartbeat {
        executor: "a".into(),
    });
    assert_eq!(script.after(1), ["resubmit j"]);
}

#[test]
fn without_executors_jobs_end_after_a_while() {
    let (mut script, _) = restored(vec![recorded("j")], &["a"]);
    assert!(script.after(EXECUTORS_PATIENCE.as_secs() - 1).is_empty());
    assert_eq!(script.after(1), ["remove rows of j", "release j"]);
    assert!(script.error("j").contains("no executor"));
}

#[test]
fn a_job_of_a_client_waits_for_it() {
    let job = Recorded {
        submission: Submission::query("j"),
        ..recorded("j")
    };
    let (mut script, _) = restored(vec![job.clone(), recorded("k")], &["a"]);
    script.joins("a");
    assert_eq!(script.after(1), ["resubmit k"]);
    assert!(script.after(20).is_empty());
    script.on(Event::ClientAsked { job: "j".into() });
    assert_eq!(script.after(1), ["resubmit j"]);
    let (mut script, _) = restored(vec![job], &["a"]);
    script.joins("a");
    assert!(script.after(30).is_empty(), "it has to find the scheduler");
    let ended = script.after(CLIENT_TIMEOUT.as_secs() + 1);
    assert_eq!(ended, ["remove rows of j", "release j"]);
    assert_eq!(script.state("j"), JobState::Cancelled);
    script.on(Event::ClientAsked { job: "j".into() });
    assert!(script.after(1).is_empty());
}

#[test]
fn a_job_that_waits_for_executors_can_be_cancelled() {
    let (mut script, _) = restored(vec![recorded("j")], &["a"]);
    assert!(script.controller.cancel("j", script.now));
    script.controller.take_commands();
    script.joins("a");
    assert!(script.after(1).is_empty());
    assert_eq!(script.state("j"), JobState::Cancelled);
}

#[test]
fn a_job_that_ends_schedulers_is_not_tried_for_ever() {
    let futile = |futile| Recorded {
        futile,
        ..recorded("j")
    };
    let (script, _) = restored(vec![futile(FUTILE - 1)], &[]);
    assert_eq!(script.state("j"), JobState::Rerunning);
    let (script, commands) = restored(vec![futile(FUTILE)], &[]);
    assert_eq!(script.state("j"), JobState::Failed);
    let is_end = |command: &Command| matches!(command, Command::Record(Change::Ended { .. }));
    assert!(commands.iter().any(is_end));
}

#[test]
fn jobs_that_have_ended_are_history() {
    let end = |state, error: Option<&str>| {
        Some(JobEnd {
            state,
            error: error.map(str::to_owned),
            at: Now::read().time,
            notes: vec![Note {
                at: Now::read().time,
                text: "said".into(),
            }],
        })
    };
    let jobs = [
        ("j", end(JobState::Succeeded, None)),
        ("k", end(JobState::Failed, Some("boom"))),
    ];
    let jobs = jobs.map(|(job, end)| Recorded {
        end,
        ..recorded(job)
    });
    let (script, commands) = restored(jobs.into(), &["a"]);
    assert!(commands.is_empty());
    let job = |id| script.controller.job(id).unwrap();
    assert!(job("j").rows_removed().is_some());
    assert_eq!(job("k").shown_error(), Some("boom"));
    assert_eq!(job("k").notes[0].text, "said");
}

#[test]
fn a_training_goes_on_after_its_last_generation() {
    let train = TrainId::generate();
    let job = Recorded {
        submission: Submission {
            train: Some(train),
            ..Submission::query("t")
        },
        generation: Some((3, 2)),
        ..recorded("t")
    };
    let (mut script, _) = restored(vec![job], &["a"]);
    script.joins("a");
    assert_eq!(script.after(1), ["resubmit t", "offer"]);
    script.resubmitted("t", "t2");
    let run = script.controller.run(train).unwrap();
    assert!(run.has_begun() && run.meets_again());
    assert!(run.generation() > 3, "some may not have been recorded");
}

#[test]
fn what_happens_to_a_job_is_recorded() {
    let mut script = Script::new(&["a"]);
    script.submit("j", None);
    let changes = |commands: Vec<Command>| -> Vec<Change> {
        let changes = commands.into_iter().filter_map(|command| match command {
            Command::Record(change) => Some(change),
            _ => None,
        });
        changes.collect()
    };
    let offer = || Offer {
        stages: vec![slices("j", 1)],
        alive: None,
    };
    let planned = changes(script.controller.place(offer(), script.now));
    assert_eq!(planned, [Change::Planned { job: "j".into() }]);
    assert!(
        changes(script.controller.place(offer(), script.now)).is_empty(),
        "once"
    );
    let mut on = |event| changes(script.controller.on(event, script.now));
    let ended = on(Event::AttemptEnded {
        attempt: "j".into(),
        end: AttemptEnd::Failed("boom".into()),
    });
    let [Change::Ended { end, .. }] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!(
        (end.state, end.error.as_deref()),
        (JobState::Failed, Some("boom"))
    );
    let left = on(Event::ExecutorLeaves {
        executor: "a".into(),
    });
    assert_eq!(left, [Change::Executors(BTreeSet::new())]);
}
