//! Scripts of a run: events in, answers out.

use super::*;

fn bound(now: Instant) -> Run {
    let mut run = Run::default();
    run.starts("j", vec![(0, "a".into()), (1, "b".into())], now);
    run
}

fn joined(now: Instant) -> Run {
    let mut run = bound(now);
    for (task, executor) in [(0, "a"), (1, "b")] {
        assert_eq!(run.joins(("j", task), executor, "X".into()), Ok(1));
    }
    run
}

/// The next generation of the same attempt, on the same executors.
fn again(run: &mut Run, now: Instant) {
    run.starts("j", vec![(0, "a".into()), (1, "b".into())], now);
}

fn steps(total: u64) -> Steps {
    Steps {
        total,
        ..Steps::default()
    }
}

fn failure(rank: usize, error: &str) -> Failure {
    Failure {
        rank,
        executor: "x".into(),
        error: error.into(),
    }
}

fn elastic() -> Elastic {
    Elastic {
        min_ranks: 1,
        max_ranks: Some(3),
        regroup_timeout: Duration::from_secs(30),
        too_few: TooFew::Fail,
    }
}

#[test]
fn membership_is_handed_out_once_all_have_joined() {
    let mut run = bound(Instant::now());
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
    run.starts("k", vec![(0, "a".into())], Instant::now());
    assert!(run.joins(("k", 0), "a", "A".into()).is_ok());
    let next = run.membership(0).unwrap();
    assert_ne!(membership.secret, next.secret, "another generation's");
}

#[test]
fn strangers_do_not_join() {
    let mut run = bound(Instant::now());
    for (task, executor) in [(7, "a"), (0, "b")] {
        let refused = run.joins(("j", task), executor, "A".into());
        assert_eq!(refused, Err("generation 1 has no such task".to_owned()));
    }
}

#[test]
fn a_late_task_of_a_dead_attempt_takes_no_seat() {
    let now = Instant::now();
    let mut run = joined(now);
    run.starts("k", vec![(0, "a".into()), (1, "b".into())], now);
    let late = run.joins(("j", 0), "a", "dead".into()).unwrap_err();
    assert_eq!(late, "its attempt is over: generation 2 is of attempt k");
    assert_eq!(run.missing(), "rank 0 on executor a, rank 1 on executor b");
    assert_eq!(run.joins(("k", 0), "a", "A".into()), Ok(2));
}

#[test]
fn a_new_generation_starts_without_members_endpoints() {
    let now = Instant::now();
    let mut run = joined(now);
    run.starts("j", vec![(2, "a".into()), (3, "c".into())], now);
    assert_eq!(run.membership(2), None);
    run.reports(1, Event::Note("stale".into()));
    let stale = Event::Note("stale".into());
    assert!(run.events().iter().all(|(_, event)| *event != stale));
    assert_eq!(run.ended(1).unwrap(), "generation 2 has begun");
    assert_eq!(run.ended(2), None);
}

#[test]
fn the_root_cause_is_the_first_failure_that_is_not_a_lost_peer() {
    let now = Instant::now();
    let mut run = bound(now);
    run.fails(1, failure(0, "peer 1 closed"), true);
    assert_eq!(run.verdict(1, 0), None);
    run.fails(1, failure(1, "label is null"), false);
    run.fails(1, failure(0, "other"), false);
    assert_eq!(run.root().unwrap().error, "label is null");
    assert_eq!(
        run.verdict(1, 0),
        Some(Verdict::Root(failure(1, "label is null")))
    );
    assert_eq!(run.verdict(1, 1), Some(Verdict::Own));
    run.fails(9, failure(0, "stale"), false);
    assert_eq!(run.root().unwrap().rank, 1);
}

#[test]
fn a_lost_executor_ends_the_generation_for_all() {
    let now = Instant::now();
    let mut run = joined(now);
    assert_eq!(run.loses("z", now), None);
    assert_eq!(run.ended(1), None);
    assert_eq!(run.loses("b", now), None);
    assert_eq!(run.ended(1).unwrap(), "rank 1 was lost with executor b");
    assert_eq!(run.verdict(1, 0), Some(Verdict::Regroup));
    assert!(run.awaits_ranks());
    let mut wish = |after: u64| {
        let now = now + Duration::from_secs(after);
        run.wish(Ranks::All, &elastic(), 1, now)
    };
    let expected = |patience_over| Wish::Regroup {
        wanted: 2,
        least: 1,
        most: 3,
        patience_over,
        too_few: TooFew::Fail,
    };
    assert_eq!((wish(29), wish(30)), (expected(false), expected(true)));
}

#[test]
fn ranks_that_lose_each_other_meet_again_but_not_for_ever() {
    let now = Instant::now();
    let mut run = joined(now);
    for generation in 1..FRUITLESS as u64 {
        let verdict = run.gives_up(generation, &failure(0, "closed"), now);
        assert_eq!(verdict, Verdict::Regroup, "generation {generation}");
        again(&mut run, now);
    }
    let last = FRUITLESS as u64;
    let mut progressing = joined(now);
    assert_eq!(run.gives_up(last, &failure(1, "closed"), now), Verdict::Own);
    assert_eq!(run.root().unwrap().rank, 1);

    for generation in 1..20 {
        progressing.steps(generation, 0, steps(generation * 10), now);
        let verdict = progressing.gives_up(generation, &failure(0, "closed"), now);
        assert_eq!(verdict, Verdict::Regroup);
        again(&mut progressing, now);
    }
}

/// How many generations lose a rank until the run gives up, if each does something before.
fn losses(mut before: impl FnMut(&mut Run, u64)) -> u64 {
    let now = Instant::now();
    let mut run = joined(now);
    for generation in 1..100 {
        before(&mut run, generation);
        if let Some(reason) = run.loses("b", now) {
            let root = run.root().unwrap();
            assert_eq!((root.rank, &root.error), (1, &reason));
            assert!(run.void(generation).is_some(), "the others are told");
            return generation;
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
    let loads =
        |run: &mut Run, generation: u64| run.streams(generation, vec![1, generation.min(2)]);
    assert_eq!(losses(loads), 2 + allowed);
    let stale = |run: &mut Run, generation: u64| run.streams(generation - 1, vec![generation]);
    assert_eq!(losses(stale), allowed, "of another generation");
    let now = Instant::now();
    let same = |run: &mut Run, generation: u64| run.steps(generation, 0, steps(7), now);
    assert_eq!(losses(same), 1 + allowed, "steps that were done before");
    let more = |run: &mut Run, generation: u64| run.steps(generation, 0, steps(generation), now);
    assert_eq!(losses(more), 100);
}

#[test]
fn a_run_grows_once_it_has_taken_steps_for_a_while() {
    let now = Instant::now();
    let mut run = joined(now);
    let loading = now + 10 * SETTLE;
    assert_eq!(run.may_grow(loading), None, "it has taken no step");
    run.steps(1, 0, steps(1), loading);
    run.steps(1, 0, steps(2), loading + SETTLE / 2);
    assert_eq!(run.may_grow(loading), None);
    assert_eq!(run.may_grow(loading + SETTLE), Some(2));
    again(&mut run, loading + SETTLE);
    assert_eq!(run.may_grow(loading + 3 * SETTLE), None, "a new generation");
    let stepping = |end: fn(&mut Run)| {
        let mut run = joined(now);
        run.steps(1, 0, steps(1), now);
        end(&mut run);
        run.may_grow(now + SETTLE)
    };
    assert_eq!(stepping(|_| {}), Some(2));
    assert_eq!(stepping(Run::finishes), None);
    assert_eq!(stepping(|run| run.trained = true), None);
    let of_most = |run: &mut Run, most| {
        let store = Url::parse("file:///models/").unwrap();
        run.is_of(&"m".parse().unwrap(), &store, most);
    };
    for (most, grows) in [(3, Some(2)), (2, None)] {
        let mut run = joined(now);
        of_most(&mut run, most);
        run.steps(1, 0, steps(1), now);
        assert_eq!(run.may_grow(now + SETTLE), grows, "at most {most}");
    }
}

#[test]
fn a_run_that_cannot_begin_gives_up() {
    let (mut run, now) = (Run::default(), Instant::now());
    let mut gives_up = |registered, after| {
        let now = now + Duration::from_secs(after);
        match run.wish(Ranks::Exactly(2), &elastic(), registered, now) {
            Wish::Begin { gives_up, .. } => gives_up,
            Wish::Regroup { .. } => panic!("it has not begun"),
        }
    };
    assert!(!gives_up(1, 0) && !gives_up(1, 29) && gives_up(1, 30));
    assert!(!gives_up(2, 40) && !gives_up(1, 41), "there were enough");
}

#[test]
fn waiting_is_said_once() {
    let mut run = Run::default();
    run.waits("a".into());
    run.waits("a".into());
    run.waits("b".into());
    assert_eq!(run.events().len(), 2);
}
