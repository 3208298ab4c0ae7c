//! Scripts of a run: events in, answers out.

use volley_proto::TrainId;
use volley_proto::spec::{Device, Elastic};

use super::*;
use crate::control::DeviceRequest;

/// Returns a generation of attempt `j`.
fn generation(number: u64) -> Generation {
    Generation {
        attempt: "j".into(),
        number,
    }
}

/// Builds ranks of these tasks on these executors, with a shard each.
fn ranks(of: &[(usize, &str)]) -> Vec<BoundRank> {
    let rank = |(rank, (task, executor)): (usize, &(usize, &str))| BoundRank {
        task: *task,
        executor: (*executor).to_owned(),
        shards: vec![rank],
        gpu: None,
    };
    of.iter().enumerate().map(rank).collect()
}

fn bound(now: Now) -> Run {
    let mut run = Run::default();
    run.starts("j", ranks(&[(0, "a"), (1, "b")]), now);
    run
}

fn joined(now: Now) -> Run {
    let mut run = bound(now);
    for (task, executor) in [(0, "a"), (1, "b")] {
        assert_eq!(
            run.joins(("j", task), executor, "X".into()),
            Ok(generation(1))
        );
    }
    run
}

/// Starts the next generation of the same attempt on the same executors.
fn again(run: &mut Run, now: Now) {
    run.starts("j", ranks(&[(0, "a"), (1, "b")]), now);
}

fn step_report(total: u64) -> RankProgress {
    let steps = StepReport {
        total,
        ..StepReport::default()
    };
    RankProgress::Steps { rank: 0, steps }
}

fn failure(rank: usize, error: &str) -> Failure {
    Failure {
        rank,
        executor: "x".into(),
        error: error.into(),
    }
}

fn gang(ranks: Ranks) -> Gang {
    Gang {
        train: TrainId::generate(),
        model: "m".parse().unwrap(),
        store: Url::parse("file:///models/").unwrap(),
        ranks,
        most: 3,
        device: DeviceRequest {
            device: Device::Auto,
            shares: false,
        },
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: Some(3),
            regroup_timeout: Duration::from_secs(30),
            too_few: TooFew::Fail,
        },
        resumes: false,
    }
}

#[test]
fn membership_is_handed_out_once_all_have_joined() {
    let mut run = bound(Now::read());
    assert!(run.joins(("j", 1), "b", "B".into()).is_ok());
    assert_eq!(run.membership(1), None);
    assert_eq!(run.missing(), "rank 0 on executor a");
    assert!(run.joins(("j", 0), "a", "A".into()).is_ok());
    let membership = run.membership(1).unwrap();
    assert_eq!((membership.generation, membership.rank), (1, 1));
    assert_eq!(membership.endpoints, ["A", "B"]);
    assert_eq!(membership.executors, ["a", "b"]);
    let other = run.membership(0).unwrap();
    assert_eq!(membership.secret, other.secret, "one of the generation");
    run.starts("k", ranks(&[(0, "a")]), Now::read());
    assert!(run.joins(("k", 0), "a", "A".into()).is_ok());
    let next = run.membership(0).unwrap();
    assert_ne!(membership.secret, next.secret, "another generation's");
}

#[test]
fn strangers_do_not_join() {
    let mut run = bound(Now::read());
    for (task, executor) in [(7, "a"), (0, "b")] {
        let refused = run.joins(("j", task), executor, "A".into());
        assert_eq!(refused, Err("generation 1 has no such task".to_owned()));
    }
}

#[test]
fn a_late_task_of_a_dead_attempt_takes_no_seat() {
    let now = Now::read();
    let mut run = joined(now);
    run.starts("k", ranks(&[(0, "a"), (1, "b")]), now);
    let late = run.joins(("j", 0), "a", "dead".into()).unwrap_err();
    assert_eq!(
        late,
        "its attempt is over: generation 2 belongs to attempt k"
    );
    assert_eq!(run.missing(), "rank 0 on executor a, rank 1 on executor b");
    assert_eq!(
        run.joins(("k", 0), "a", "A".into()).map(|of| of.number),
        Ok(2)
    );
}

#[test]
fn a_new_generation_starts_without_members_endpoints() {
    let now = Now::read();
    let mut run = joined(now);
    run.starts("j", ranks(&[(2, "a"), (3, "c")]), now);
    assert_eq!(run.membership(2), None);
    let stale = RunEvent::Note("stale".into());
    let dead = Generation {
        attempt: "i".into(),
        number: 2,
    };
    for of in [generation(1), dead] {
        run.reports(&of, RankProgress::Event(stale.clone()), now);
        run.fails(&of, failure(0, "stale"), false, now);
        assert!(run.void(&of).is_some());
    }
    assert!(run.events().iter().all(|(_, event)| *event != stale));
    assert_eq!(run.root(), None);
    assert_eq!(run.ended(&generation(1)).unwrap(), "generation 2 has begun");
    assert_eq!(run.ended(&generation(2)), None);
}

#[test]
fn the_root_cause_is_the_first_failure_that_is_not_a_lost_peer() {
    let now = Now::read();
    let mut run = bound(now);
    run.fails(&generation(1), failure(0, "peer 1 closed"), true, now);
    assert_eq!(run.resolution(&generation(1), 0), None);
    run.fails(&generation(1), failure(1, "label is null"), false, now);
    run.fails(&generation(1), failure(0, "other"), false, now);
    assert_eq!(run.root().unwrap().error, "label is null");
    assert_eq!(
        run.resolution(&generation(1), 0),
        Some(Resolution::Root(failure(1, "label is null")))
    );
    assert_eq!(run.resolution(&generation(1), 1), Some(Resolution::Own));
    run.fails(&generation(9), failure(0, "stale"), false, now);
    assert_eq!(run.root().unwrap().rank, 1);
}

#[test]
fn a_lost_executor_ends_the_generation_for_all() {
    let now = Now::read();
    let mut run = joined(now);
    assert_eq!(run.loses("z", now), None);
    assert_eq!(run.ended(&generation(1)), None);
    assert_eq!(run.loses("b", now), None);
    assert_eq!(
        run.ended(&generation(1)).unwrap(),
        "rank 1 was lost with executor b"
    );
    assert_eq!(run.resolution(&generation(1), 0), Some(Resolution::Regroup));
    assert!(run.awaits_ranks());
    let mut request = |after: u64| {
        let now = now + Duration::from_secs(after);
        run.rank_request(&gang(Ranks::All), 1, now.instant)
    };
    let expected = |patience_over| RankRequest::Regroup {
        wanted: 2,
        least: 1,
        most: 3,
        patience_over,
        too_few: TooFew::Fail,
    };
    let found = (request(29), request(30));
    assert_eq!(found, (expected(false), expected(true)));
}

#[test]
fn ranks_that_lose_each_other_meet_again_but_not_for_ever() {
    let now = Now::read();
    let mut run = joined(now);
    for number in 1..FRUITLESS as u64 {
        let resolution = run.gives_up(&generation(number), &failure(0, "closed"), now);
        assert_eq!(resolution, Resolution::Regroup, "generation {number}");
        again(&mut run, now);
    }
    let last = FRUITLESS as u64;
    let mut progressing = joined(now);
    assert_eq!(
        run.gives_up(&generation(last), &failure(1, "closed"), now),
        Resolution::Own
    );
    assert_eq!(run.root().unwrap().rank, 1);

    for number in 1..20 {
        progressing.reports(&generation(number), step_report(number * 10), now);
        let resolution = progressing.gives_up(&generation(number), &failure(0, "closed"), now);
        assert_eq!(resolution, Resolution::Regroup);
        again(&mut progressing, now);
    }
}

/// Counts the generations that lose a rank until the run gives up; `before` acts in each of them first.
fn losses(mut before: impl FnMut(&mut Run, u64)) -> u64 {
    let now = Now::read();
    let mut run = joined(now);
    for number in 1..100 {
        before(&mut run, number);
        if let Some(reason) = run.loses("b", now) {
            let root = run.root().unwrap();
            assert_eq!((root.rank, &root.error), (1, &reason));
            assert!(
                run.void(&generation(number)).is_some(),
                "the others are told"
            );
            return number;
        }
        assert!(run.meets_again());
        again(&mut run, now);
    }
    100
}

#[test]
fn ranks_that_die_while_they_load_do_not_meet_again_for_ever() {
    let allowed = FRUITLESS as u64;
    assert_eq!(losses(|_, _| {}), allowed);
    // Shards are loaded for the first time in the first two generations, and survivors load them again.
    let now = Now::read();
    let streams = |run: &mut Run, number, shards| {
        let streamed = RankProgress::Streamed {
            shards,
            kept_bytes: None,
        };
        run.reports(&generation(number), streamed, now);
    };
    let loads = |run: &mut Run, number: u64| streams(run, number, vec![1, number.min(2)]);
    assert_eq!(losses(loads), 2 + allowed);
    let stale = |run: &mut Run, number: u64| streams(run, number - 1, vec![number]);
    assert_eq!(losses(stale), allowed, "of another generation");
    let steps = |run: &mut Run, number, total| {
        run.reports(&generation(number), step_report(total), now);
    };
    let same = |run: &mut Run, number: u64| steps(run, number, 7);
    assert_eq!(losses(same), 1 + allowed, "steps that were done before");
    let more = |run: &mut Run, number: u64| steps(run, number, number);
    assert_eq!(losses(more), 100);
}

#[test]
fn executors_keep_their_shards_within_an_attempt() {
    let now = Now::read();
    let mut run = Run::default();
    let bound = |run: &Run, executors: &[&str]| -> Vec<BoundRank> {
        let shards = run
            .assign("j", &[0; 6], executors, &[])
            .into_iter()
            .enumerate();
        let shards = shards.zip(executors);
        let rank = |((task, shards), executor): ((usize, _), &&str)| BoundRank {
            task,
            executor: (*executor).to_owned(),
            shards,
            gpu: None,
        };
        shards.map(rank).collect()
    };
    let first = bound(&run, &["a", "b"]);
    run.starts("j", first, now);
    assert_eq!(
        run.assign("j", &[0; 6], &["b", "a"], &[]),
        [vec![3, 4, 5], vec![0, 1, 2]]
    );
    let grown = bound(&run, &["a", "b", "c"]);
    run.starts("j", grown, now);
    assert_eq!(
        run.assign("j", &[0; 6], &["c", "b"], &[]),
        [vec![0, 2, 5], vec![1, 3, 4]]
    );
    assert_eq!(
        run.assign("k", &[0; 6], &["c", "b"], &[]),
        [vec![0, 1, 2], vec![3, 4, 5]]
    );
    let held = [
        ("b".to_owned(), vec![0, 1, 2]),
        ("c".to_owned(), vec![3, 4, 5]),
    ];
    assert_eq!(
        run.assign("k", &[0; 6], &["c", "b"], &held),
        [vec![3, 4, 5], vec![0, 1, 2]],
        "prepared rows"
    );
}

#[test]
fn a_run_grows_once_it_has_taken_steps_for_a_while() {
    let now = Now::read();
    let mut run = joined(now);
    let loading = now + 10 * SETTLE;
    let may_grow = |run: &Run, now: Now| run.may_grow(now.instant);
    assert_eq!(may_grow(&run, loading), None, "it has taken no step");
    run.reports(&generation(1), step_report(1), loading);
    run.reports(&generation(1), step_report(2), loading + SETTLE / 2);
    assert_eq!(may_grow(&run, loading), None);
    assert_eq!(may_grow(&run, loading + SETTLE), Some(2));
    again(&mut run, loading + SETTLE);
    let later = loading + 3 * SETTLE;
    assert_eq!(may_grow(&run, later), None, "a new generation");
    let stepping = |end: fn(&mut Run)| {
        let mut run = joined(now);
        run.reports(&generation(1), step_report(1), now);
        end(&mut run);
        may_grow(&run, now + SETTLE)
    };
    assert_eq!(stepping(|_| {}), Some(2));
    assert_eq!(stepping(Run::finishes), None);
    assert_eq!(stepping(|run| run.trained = true), None);
    for (most, grows) in [(3, Some(2)), (2, None)] {
        let mut run = joined(now);
        run.is_of(&Gang {
            most,
            ..gang(Ranks::All)
        });
        run.reports(&generation(1), step_report(1), now);
        assert_eq!(may_grow(&run, now + SETTLE), grows, "at most {most}");
    }
}

#[test]
fn a_run_that_cannot_begin_gives_up() {
    let now = Now::read();
    for (ranks, enough) in [(Ranks::Exactly(2), 2), (Ranks::All, 1)] {
        let mut run = Run::default();
        let mut gives_up = |registered, after| {
            let now = now + Duration::from_secs(after);
            match run.rank_request(&gang(ranks), registered, now.instant) {
                RankRequest::Begin { patience_over, .. } => patience_over,
                RankRequest::Regroup { .. } => panic!("it has not begun"),
            }
        };
        let few = enough - 1;
        assert!(!gives_up(few, 0) && !gives_up(few, 29) && gives_up(few, 30));
        assert!(
            !gives_up(enough, 40) && !gives_up(few, 41),
            "there were enough"
        );
    }
}

#[test]
fn waiting_is_said_once() {
    let (mut run, now) = (Run::default(), Now::read());
    assert!(run.waits("a".into(), now));
    assert!(!run.waits("a".into(), now));
    assert!(run.waits("b".into(), now));
    assert_eq!(run.events().iter().count(), 2);
}

#[test]
fn a_client_ends_training_in_whatever_generation() {
    let now = Now::read();
    let mut run = joined(now);
    assert!(!run.is_stopped());
    run.stops(now);
    run.stops(now);
    again(&mut run, now);
    assert!(run.is_stopped());
    let note = |event: &RunEvent| matches!(event, RunEvent::Note(note) if note.contains("after this epoch"));
    let events = run.events_since(0).unwrap().events;
    assert_eq!(events.iter().filter(|event| note(event)).count(), 1);
}

#[test]
fn a_run_that_has_ended_is_not_stopped() {
    let now = Now::read();
    let mut run = joined(now);
    run.finishes();
    run.stops(now);
    assert!(!run.is_stopped());
}
