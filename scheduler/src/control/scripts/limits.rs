//! Scripts of jobs whose owner's role has limits.

use volley_proto::access;

use super::*;

/// Limits of ten seconds and a hundred rows.
const LIMITS: Option<JobLimits> = Some(JobLimits {
    time: Some(Duration::from_secs(10)),
    rows: Some(100),
    ..JobLimits::none(access::Role::Read)
});

fn limited(job: &str) -> Submission {
    Submission {
        limits: LIMITS,
        ..Submission::query(job)
    }
}

fn rows(rows: u64) -> AttemptEnd {
    AttemptEnd::Succeeded { rows: Some(rows) }
}

#[test]
fn a_job_ends_with_an_error_when_its_time_is_over() {
    let mut script = Script::new(&["a"]);
    script.submit_with(limited("j"));
    script.submit("k", None);
    script.offer(&[slices("j", 1)]);
    assert!(script.after(9).is_empty());
    assert_eq!(script.after(1), ["release j", "cancel j"]);
    let error = script.error("j");
    assert!(
        error.contains("10s, the limit query_time of the role read"),
        "{error}"
    );
    // The engine reports an attempt that was ended on purpose as cancelled.
    assert_eq!(
        script.ended("j", AttemptEnd::Cancelled),
        ["remove rows of j", "offer"]
    );
    assert_eq!(script.error("j"), error);
    assert_eq!(script.state("k"), JobState::Running, "it has none");
}

#[test]
fn attempts_share_the_time_of_their_job() {
    let mut script = Script::new(&["a"]);
    script.submit_with(limited("j"));
    script.after(6);
    let lost = AttemptEnd::Lost(effect("j", "a", None, true).data.unwrap());
    script.ended("j", lost);
    script.resubmitted("j", "k");
    assert!(script.after(3).is_empty());
    assert_eq!(
        script.after(1),
        ["remove rows of j", "release j", "cancel k"]
    );
    assert!(script.error("j").contains("query_time"));
}

#[test]
fn a_run_takes_its_time_too() {
    let mut script = Script::new(&["a"]);
    script.submit_with(Submission {
        train: Some(TrainId::generate()),
        ..limited("t")
    });
    // A client's description of its job does not raise the limit.
    assert_eq!(script.after(10), ["release t", "cancel t"]);
    assert!(script.error("t").contains("query_time"));
}

#[test]
fn a_result_of_too_many_rows_is_an_error_and_not_a_part_of_it() {
    let mut script = Script::new(&["a"]);
    script.submit_with(limited("j"));
    assert_eq!(script.ended("j", rows(100)), ["release j"]);
    assert_eq!(script.state("j"), JobState::Succeeded);

    script.submit_with(limited("k"));
    let ended = script.ended("k", rows(101));
    assert_eq!(ended, ["remove rows of k", "release k"]);
    let error = script.error("k");
    for part in ["101 rows", "limit result_rows of the role read"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(script.after(2).is_empty(), "once");

    // The engine may be done before the job is known.
    assert!(script.ended("l", rows(101)).is_empty());
    let ended = script.on(Event::JobSubmitted(limited("l")));
    assert_eq!(ended, ["remove rows of l", "release l"]);
    assert!(script.error("l").contains("result_rows"));
}
