//! Scripts of training: ranks that die, generations that end, and messages that are late.

use super::*;

/// A job that trains with two ranks on a and b, whose first generation has met.
struct Trains {
    script: Script,
    gang: Gang,
}

impl Trains {
    fn new(executors: &[&str], too_few: TooFew) -> Self {
        let mut script = Script::new(executors);
        let train = TrainId::generate();
        let gang = gang(train, Ranks::Exactly(2), too_few);
        script.submit("t", Some(train));
        assert_eq!(script.controller.admit_gang(&gang, None), Ok(()));
        script.controller.take_commands();
        let mut trains = Self { script, gang };
        assert_eq!(trains.offer(&[], true), ["bind t: a b"]);
        assert_eq!(trains.join("t", 0, "a"), Ok(1));
        assert_eq!(trains.join("t", 1, "b"), Ok(1));
        trains
    }

    /// Offers the barrier stage.
    fn offer(&mut self, running: &[&str], pending: bool) -> Vec<String> {
        let stage = barrier("t", &self.gang, running, pending);
        self.script.offer(&[stage])
    }

    fn join(&mut self, attempt: &str, task: usize, executor: &str) -> Result<u64, String> {
        let controller = &mut self.script.controller;
        let seat = controller.join(self.gang.train, (attempt, task), executor, "X".into());
        controller.take_commands();
        seat.unwrap().map(|generation| generation.number)
    }

    /// Loses executor b, which had a rank, and data if `data` is true.
    fn loses_b(&mut self, data: bool) -> Vec<String> {
        let effect = effect("t", "b", Some(self.gang.train), data);
        self.script.loses("b", vec![effect])
    }

    fn report(&mut self, number: u64, report: RankProgress) {
        let train = self.gang.train;
        self.script.on(Event::RankReported {
            train,
            generation: generation(number),
            report,
        });
    }

    /// Reports this many steps from a rank.
    fn steps(&mut self, number: u64, total: u64) {
        let steps = StepReport {
            total,
            ..StepReport::default()
        };
        self.report(number, RankProgress::Steps { rank: 0, steps });
    }

    fn run(&self) -> &training::Run {
        self.script.controller.run(self.gang.train).unwrap()
    }

    fn waits(&self) -> String {
        self.script.waits("t").unwrap_or_default()
    }
}

#[test]
fn ranks_of_a_gang_that_lost_one_meet_again_where_there_is_a_replacement() {
    let mut trains = Trains::new(&["a", "b", "c"], TooFew::Fail);
    assert!(trains.loses_b(false).is_empty(), "the attempt goes on");
    assert_eq!(
        trains.run().ended(&generation(1)).unwrap(),
        "rank 1 was lost with executor b"
    );
    assert!(trains.offer(&["a"], true).is_empty(), "a has not ended");
    let task = task("t", 0);
    let executor = "a".to_owned();
    trains.script.on(Event::TaskFailed { executor, task });
    assert_eq!(trains.offer(&[], true), ["bind t: a c"]);
    assert_eq!(trains.run().generation(), 2);
    assert_eq!(trains.run().ended(&generation(2)), None);
}

#[test]
fn ranks_begin_where_their_rows_are_prepared() {
    let mut script = Script::new(&["b", "c"]);
    let prepare = |script: &mut Script, job: &str, ranks: usize| {
        let gang = gang(TrainId::generate(), Ranks::Exactly(ranks), TooFew::Fail);
        script.submit(job, Some(gang.train));
        assert_eq!(script.controller.admit_gang(&gang, None), Ok(()));
        let prepared = script.controller.prepare(&gang, ([7; 32], 12), script.now);
        let (id, rows) = prepared.unwrap();
        script.controller.take_commands();
        let mut stage = barrier(job, &gang, &[], true);
        if let Work::Gang(stage) = &mut stage.work {
            stage.prepared = Some(id);
        }
        (gang.train, stage, rows)
    };
    let (train, stage, rows) = prepare(&mut script, "t", 2);
    assert_eq!(rows, None);
    assert_eq!(script.offer(&[stage]), ["bind t: b c"]);
    for shards in [0..6, 6..12] {
        script.on(Event::RankReported {
            train,
            generation: generation(1),
            report: RankProgress::Streamed {
                shards: shards.collect(),
                kept_bytes: Some(9),
            },
        });
    }
    for (executor, number) in [("b", 0), ("c", 1)] {
        script.on(Event::TaskSucceeded {
            executor: executor.into(),
            task: task("t", number),
        });
    }
    script.ended("t", AttemptEnd::Succeeded { rows: None });
    script.joins("a");
    let (_, _, rows) = prepare(&mut script, "u", 3);
    assert_eq!(rows, None, "for another number of ranks");
    let (_, stage, rows) = prepare(&mut script, "v", 2);
    assert_eq!(rows, Some(vec![0; 12]));
    assert_eq!(script.offer(&[stage]), ["bind v: b c"]);
    let (_, _, rows) = prepare(&mut script, "w", 2);
    assert_eq!(rows, None, "their executors have no free slot");
}

#[test]
fn a_rank_that_ends_without_a_reason_ends_its_generation() {
    let mut trains = Trains::new(&["a", "b"], TooFew::Fail);
    let ended = |executor: &str, number| Event::TaskFailed {
        executor: executor.to_owned(),
        task: task("t", number),
    };
    trains.script.on(ended("b", 1));
    assert!(trains.offer(&["a"], true).is_empty(), "a has not ended");
    assert_eq!(
        trains.run().ended(&generation(1)).unwrap(),
        "a rank's task has ended without a reason"
    );
    trains.script.on(ended("a", 0));
    assert_eq!(trains.offer(&[], true), ["bind t: a b"]);
    assert_eq!(trains.run().ended(&generation(2)), None);
}

/// The attempt has ended before the executor of its rank is lost, which has no effect on it then.
#[test]
fn survivors_go_on_alone_after_a_while_where_data_was_lost_before_a_rank() {
    let mut trains = Trains::new(&["a", "b"], TooFew::Fail);
    let lost = effect("t", "q", None, true).data.unwrap();
    let ended = trains.script.ended("t", AttemptEnd::Lost(lost));
    assert_eq!(ended, ["resubmit t", "offer"]);
    trains.script.resubmitted("t", "v");
    trains.script.task_ended("a", "t", 0);
    trains.script.loses("b", vec![]);
    let stage = barrier("v", &trains.gang, &[], true);
    assert!(trains.script.offer(std::slice::from_ref(&stage)).is_empty());
    assert_eq!(
        trains.run().ended(&generation(1)).unwrap(),
        "its job is run again"
    );
    assert_eq!(trains.script.after(31), ["offer"]);
    assert_eq!(trains.script.offer(&[stage]), ["bind v: a"]);
}

#[test]
fn ranks_meet_elsewhere_when_an_executor_drains() {
    let mut trains = Trains::new(&["a", "b", "c"], TooFew::Fail);
    for generation_number in 1..9 {
        // No generation has taken a step, which is no fault of theirs.
        let (leaves, comes) = match generation_number % 2 {
            1 => ("b", "c"),
            _ => ("c", "b"),
        };
        let drains = |knows| Event::ExecutorDrains {
            executor: leaves.into(),
            knows,
        };
        trains.script.on(drains(false));
        let number = generation_number;
        assert_eq!(
            trains.run().ended(&generation(number)),
            None,
            "nobody knows"
        );
        trains.script.on(drains(true));
        assert_eq!(
            trains.run().ended(&generation(generation_number)).unwrap(),
            format!("rank 1 leaves with executor {leaves}")
        );
        for executor in ["a", leaves] {
            trains.script.ended_rank(executor);
        }
        assert_eq!(trains.offer(&[], true), [format!("bind t: a {comes}")]);
        trains.script.loses(leaves, vec![]);
        let incarnation = match generation_number {
            1 | 2 => "p/1".to_owned(),
            later => format!("p{}/1", later - 2),
        };
        trains.script.on(Event::ExecutorDisconnected {
            executor: leaves.into(),
            incarnation,
        });
        // Another process, which does not drain.
        trains.script.incarnation = format!("p{generation_number}/1");
        trains.script.joins(leaves);
    }
    assert_eq!(trains.run().generation(), 9);
    assert!(trains.loses_b(false).is_empty());
}

#[test]
fn survivors_go_on_alone_after_a_while_where_nobody_comes() {
    let mut trains = Trains::new(&["a", "b"], TooFew::Fail);
    trains.loses_b(false);
    let (executor, task) = ("a".to_owned(), task("t", 0));
    trains.script.on(Event::TaskFailed { executor, task });
    assert!(trains.offer(&[], true).is_empty());
    let waits = trains.waits();
    assert!(
        waits.contains("after regroup_timeout, training continues with 1"),
        "{waits}"
    );
    // Time alone may end the wait.
    assert_eq!(trains.script.after(29), ["offer"]);
    assert!(trains.offer(&[], true).is_empty());
    assert_eq!(trains.script.after(1), ["offer"]);
    assert_eq!(trains.offer(&[], true), ["bind t: a"]);
}

#[test]
fn a_gang_whose_data_is_lost_too_is_run_again_in_its_place() {
    let mut trains = Trains::new(&["a", "b", "c"], TooFew::Fail);
    trains.steps(1, 7);
    assert_eq!(trains.loses_b(true), ["cancel t"]);
    let ended = trains.script.ended("t", AttemptEnd::Cancelled);
    assert_eq!(ended, ["resubmit t", "offer"]);
    // A later job is not ahead of it.
    trains.script.submit("u", None);
    trains.script.resubmitted("t", "v");
    trains.script.task_ended("a", "t", 0);
    let stages = [slices("u", 2), barrier("v", &trains.gang, &[], true)];
    let placed = trains.script.offer(&stages);
    assert_eq!(placed, ["bind v: a c"]);
    assert_eq!(trains.run().generation(), 2, "of the same run");
}

#[test]
fn an_executor_that_dies_while_a_gang_is_bound_ends_the_generation() {
    let mut script = Script::new(&["a", "b"]);
    let gang = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    script.submit("t", Some(gang.train));
    let offer = Offer {
        stages: vec![barrier("t", &gang, &[], true)],
        alive: None,
    };
    let commands = script.controller.place(offer, script.now);
    let binding = commands.iter().find(|command| text(command).is_some());
    let Some(Command::Bind(binding)) = binding else {
        panic!("it starts: {commands:?}")
    };
    // Executor b leaves between the decision and the tasks.
    let executor = "b".to_owned();
    script.on(Event::ExecutorLeaves { executor });
    script.bind(binding);
    let effects = vec![effect("t", "b", Some(gang.train), false)];
    script.on(Event::ExecutorLost {
        executor: "b".to_owned(),
        effects,
    });
    let run = script.controller.run(gang.train).unwrap();
    assert_eq!(
        run.ended(&generation(1)).unwrap(),
        "rank 1 was lost with executor b"
    );
    assert_eq!(
        script.controller.size(),
        (1, 1, 0),
        "a's task has not ended"
    );
}

#[test]
fn an_executor_that_dies_while_a_gang_waits_is_waited_for() {
    let mut script = Script::new(&["a", "b"]);
    script.submit("j", None);
    script.offer(&[slices("j", 1)]);
    let gang = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    script.submit("t", Some(gang.train));
    let stage = || barrier("t", &gang, &[], true);
    assert!(script.offer(&[stage()]).is_empty());
    assert!(script.loses("b", vec![]).is_empty());
    assert!(script.offer(&[stage()]).is_empty());
    assert_eq!(script.after(29), ["offer"]);
    script.on(Event::ClientAsked { job: "j".into() });
    assert!(script.offer(&[stage()]).is_empty(), "b may come back");
    script.after(1);
    assert_eq!(script.offer(&[stage()]), ["cancel t"]);
    script.ended("t", AttemptEnd::Cancelled);
    let error = script.error("t");
    assert!(error.contains("training needs 2 ranks"), "{error}");
}

#[test]
fn a_gang_whose_last_generation_ends_keeps_its_slots_from_a_later_one() {
    let mut trains = Trains::new(&["a", "b", "c"], TooFew::Fail);
    let later = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
    trains.script.submit("u", Some(later.train));
    trains.loses_b(false);
    trains.script.joins("d");
    // c and d are free, and t waits for the rank on a.
    let stages = [
        barrier("t", &trains.gang, &["a"], true),
        barrier("u", &later, &[], true),
    ];
    assert!(trains.script.offer(&stages).is_empty());
    let waits = trains.script.waits("u");
    assert_eq!(waits.as_deref(), Some("the training of job t is ahead"));
    // Another executor dies meanwhile, which has no rank and no data of either.
    assert!(trains.script.loses("d", vec![]).is_empty());
    let (executor, task) = ("a".to_owned(), task("t", 0));
    trains.script.on(Event::TaskFailed { executor, task });
    let stages = [
        barrier("t", &trains.gang, &[], true),
        barrier("u", &later, &[], true),
    ];
    assert_eq!(trains.script.offer(&stages), ["bind t: a c"]);
}

#[test]
fn late_words_of_a_dead_generation_change_nothing() {
    let mut trains = Trains::new(&["a", "b", "c"], TooFew::Fail);
    trains.steps(1, 5);
    trains.loses_b(false);
    let (executor, ended) = ("a".to_owned(), task("t", 0));
    trains.script.on(Event::TaskFailed {
        executor,
        task: ended,
    });
    trains.offer(&[], true);
    // The rank on b was frozen, and continues.
    trains.steps(1, 9);
    assert_eq!(trains.run().steps_done(), 5);
    let note = RunEvent::Note("late".into());
    trains.report(1, RankProgress::Event(note.clone()));
    let shown = trains.run().events_since(0).unwrap();
    assert!(!shown.events.contains(&note));
    assert!(
        trains
            .join("t", 1, "b")
            .unwrap_err()
            .contains("no such task")
    );
    let failure = |rank| Failure {
        rank,
        executor: "b".into(),
        error: "closed".into(),
    };
    let (train, now) = (trains.gang.train, trains.script.now);
    let controller = &mut trains.script.controller;
    controller.rank_failed(train, &generation(1), failure(1), false, now);
    let resolved = controller.resolve(train, &generation(1), &failure(1), now);
    assert_eq!(resolved, Some(Resolution::Regroup), "it ends its task");
    assert_eq!(trains.run().root(), None);
    assert_eq!(trains.run().ended(&generation(2)), None, "the next goes on");
    // Messages of an attempt that is over change nothing either.
    assert!(
        trains
            .join("s", 2, "a")
            .unwrap_err()
            .contains("attempt is over")
    );
    assert_eq!(trains.join("t", 2, "a"), Ok(2));
}

#[test]
fn a_gang_grows_once_it_has_taken_steps_for_a_while() {
    let mut script = Script::new(&["a", "b"]);
    let gang = gang(TrainId::generate(), Ranks::All, TooFew::Fail);
    script.submit("t", Some(gang.train));
    let mut trains = Trains { script, gang };
    assert_eq!(trains.offer(&[], true), ["bind t: a b"]);
    trains.script.joins("c");
    trains.steps(1, 1);
    assert!(trains.script.after(4).is_empty());
    assert_eq!(trains.script.after(1), ["offer"]);
    assert!(trains.offer(&["a", "b"], false).is_empty());
    assert_eq!(
        trains.run().ended(&generation(1)).unwrap(),
        "executor c joins"
    );
    let resolved = trains.run().resolution(&generation(1), 0);
    assert_eq!(resolved, Some(Resolution::Regroup));
}

#[test]
fn a_run_ends_with_its_job() {
    let mut trains = Trains::new(&["a", "b"], TooFew::Fail);
    trains.script.ended("t", AttemptEnd::Failed("no".into()));
    assert!(trains.run().is_over());
    assert_eq!(trains.script.controller.runs().over(), [trains.gang.train]);
    assert!(trains.script.after(60).is_empty(), "nobody is waited for");
}

#[test]
fn a_run_that_is_alive_is_not_resumed() {
    let mut trains = Trains::new(&["a", "b"], TooFew::Fail);
    let resumes = Gang {
        train: TrainId::generate(),
        resumes: true,
        ..trains.gang.clone()
    };
    let refused = trains.script.controller.admit_gang(&resumes, None);
    let (refused, alive) = (refused.unwrap_err(), trains.gang.train.to_string());
    for part in [alive.as_str(), "model m", "volley jobs cancel t"] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    let other = Gang {
        model: "n".parse().unwrap(),
        ..resumes.clone()
    };
    let controller = &mut trains.script.controller;
    assert_eq!(controller.admit_gang(&other, None), Ok(()));
    let itself = Gang {
        resumes: true,
        ..trains.gang.clone()
    };
    assert_eq!(
        controller.admit_gang(&itself, None),
        Ok(()),
        "it is run again"
    );
    controller.cancel("t", trains.script.now);
    assert_eq!(controller.admit_gang(&resumes, None), Ok(()));
    // A job may end while it is being planned.
    assert_eq!(controller.admit_gang(&trains.gang, None), Ok(()));
    assert!(trains.run().is_over());
}

#[test]
fn a_gang_that_can_never_run_is_refused_at_once() {
    let mut script = Script::new(&["a", "b"]);
    let many = gang(TrainId::generate(), Ranks::Exactly(3), TooFew::Fail);
    let refused = script.controller.admit_gang(&many, None).unwrap_err();
    assert!(refused.contains("needs 3 ranks"), "{refused}");
}

#[test]
fn executors_that_fall_silent_together_are_removed_at_once() {
    let mut script = Script::new(&["a", "b", "c"]);
    let timeout = EXECUTOR_TIMEOUT.as_secs();
    assert!(script.after(timeout - 1).is_empty());
    let executor = "b".to_owned();
    assert!(script.on(Event::ExecutorHeartbeat { executor }).is_empty());
    let reason = format!("no heartbeat for {EXECUTOR_TIMEOUT:?}");
    assert_eq!(
        script.after(1),
        [format!("remove a: {reason}"), format!("remove c: {reason}")]
    );
    assert!(script.after(1).is_empty(), "once");
    assert!(script.loses("a", vec![]).is_empty());
    assert_eq!(script.after(timeout - 2), [format!("remove b: {reason}")]);
}

#[test]
fn what_a_job_trains_that_has_not_said_so_ends_with_it() {
    for is_known in [true, false] {
        let mut script = Script::new(&["a", "b"]);
        let gang = gang(TrainId::generate(), Ranks::Exactly(2), TooFew::Fail);
        if is_known {
            script.submit("t", None);
        }
        assert_eq!(
            script.offer(&[barrier("t", &gang, &[], true)]),
            ["bind t: a b"]
        );
        let is_over =
            |script: &Script| script.controller.runs().get(&gang.train).unwrap().is_over();
        assert!(!is_over(&script));
        script.ended("t", AttemptEnd::Cancelled);
        assert!(is_over(&script), "known: {is_known}");
    }
}
