//! Scripts of placement: executors and demands in, decisions out.

mod gpus;
mod sharing;

use std::sync::Arc;

use volley_proto::settings::QUEUE_DEFAULT;
use volley_proto::spec::{Device, RankMemory};

use super::*;
use crate::control::devices::HeldGpus;
use crate::control::queues::{Queue, Queues, Usage};
use crate::control::quotas::HeldMemory;

/// Request for a GPU if the executor has a free one.
const ON_ANY: DeviceRequest = DeviceRequest {
    device: Device::Auto,
    shares: false,
};

/// Builds executors with this many free slots, each beside one that a task holds; `change` adapts them by number.
fn cluster_with(free: &[usize], change: impl Fn(usize, &mut Capacity)) -> Pool {
    let mut pool = Pool::default();
    for (number, free) in free.iter().enumerate() {
        let mut capacity = Capacity {
            slots: free + 1,
            held: 1,
            role: ExecutorRole::Any,
            slot_memory: 1 << 30,
            rank_memory: u64::MAX,
            device: Device::Auto,
            gpus: Arc::default(),
        };
        change(number, &mut capacity);
        pool.put(&format!("e{number}"), capacity);
    }
    pool
}

fn cluster(free: &[usize]) -> Pool {
    cluster_with(free, |_, _| {})
}

/// Builds a demand of user u in the queue `default`.
fn demand(job: &str, kind: Kind) -> Demand {
    Demand {
        job: job.into(),
        stage: 1,
        account: Account::new(QUEUE_DEFAULT, "u"),
        priority: 0,
        limits: None,
        promoted: false,
        runs: false,
        kind,
    }
}

fn gang_with(job: &str, request: RankRequest, running: usize, done: usize) -> Demand {
    let kind = Kind::Gang {
        request,
        shards: 10,
        memory: Box::default(),
        device: ON_ANY,
        running,
        done,
        preferred: vec![],
    };
    demand(job, kind)
}

/// Builds a request to begin; `patience_over` says whether too few executors have been waited for for long enough.
fn begin(ranks: Ranks, patience_over: bool) -> RankRequest {
    RankRequest::Begin {
        ranks,
        most: usize::MAX,
        patience_over,
        too_few: TooFew::Fail,
    }
}

fn gang(job: &str, ranks: Ranks) -> Demand {
    gang_with(job, begin(ranks, false), 0, 0)
}

/// Builds a gang that had 3 ranks, continues with 2 and takes up to 4.
fn regroup(patience_over: bool, too_few: TooFew) -> Demand {
    let request = RankRequest::Regroup {
        wanted: 3,
        least: 2,
        most: 4,
        patience_over,
        too_few,
    };
    gang_with("a", request, 0, 0)
}

fn slices(job: &str, pending: usize) -> Demand {
    let most = None;
    demand(job, Kind::Slices { pending, most })
}

/// Formats the decision's tasks as `executor:partitions`, or its reason.
fn script(decision: &Decision) -> String {
    let tasks = |tasks: &[Task]| {
        let text = |task: &Task| format!("{}:{}", task.executor, task.partitions);
        tasks.iter().map(text).collect::<Vec<_>>().join(" ")
    };
    match decision {
        Decision::Tasks(list) => format!("tasks {}", tasks(list)),
        Decision::Start(list) => format!("start {}", tasks(list)),
        Decision::Wait(reason) => format!("wait: {reason}"),
        Decision::Fail(reason) => format!("fail: {reason}"),
        Decision::Rerun(reason) => format!("rerun: {reason}"),
    }
}

/// Decides on executors, with the queue `default` alone and nothing running.
fn decide(mut executors: Pool, demands: &[Demand]) -> Vec<Decision> {
    let shares = Shares {
        queues: &Queues::default(),
        usage: &Usage::default(),
        memory: &HeldMemory::default(),
        gpus: &HeldGpus::default(),
    };
    place(&mut executors, demands, shares).decisions
}

fn run_in(executors: Pool, demands: &[Demand]) -> Vec<String> {
    decide(executors, demands).iter().map(script).collect()
}

fn run(free: &[usize], demands: &[Demand]) -> Vec<String> {
    run_in(cluster(free), demands)
}

#[test]
fn a_gang_starts_whole_one_rank_an_executor() {
    assert_eq!(
        run(&[1, 1], &[gang("a", Ranks::Exactly(2))]),
        ["start e0:5 e1:5"]
    );
    assert_eq!(
        run(&[4, 4, 1], &[gang("a", Ranks::Exactly(3))]),
        ["start e0:4 e1:3 e2:3"]
    );
    assert_eq!(
        run(&[1, 1, 1], &[gang("a", Ranks::All)]),
        ["start e0:4 e1:3 e2:3"]
    );
}

#[test]
fn a_gang_that_lacks_one_slot_takes_none() {
    assert_eq!(
        run(&[3, 0], &[gang("a", Ranks::Exactly(2))]),
        ["wait: needs a free slot on 2 executors at once: 1 of 2 have one"]
    );
}

#[test]
fn a_waiting_gang_keeps_slots_from_later_jobs_but_not_from_earlier_ones() {
    assert_eq!(
        run(&[1, 0], &[gang("a", Ranks::Exactly(2)), slices("b", 4)]),
        [
            "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
            "wait: slots are reserved for the training of job a"
        ]
    );
    assert_eq!(
        run(&[1, 0], &[slices("a", 4), gang("b", Ranks::Exactly(2))]),
        [
            "tasks e0:1",
            "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
        ]
    );
    assert_eq!(
        run(&[3, 0], &[gang("a", Ranks::Exactly(2)), slices("b", 4)])[1],
        "tasks e0:2"
    );
}

#[test]
fn a_second_gang_waits_for_the_first() {
    let demands = [gang("a", Ranks::Exactly(2)), gang("b", Ranks::Exactly(2))];
    assert_eq!(
        run(&[1, 1], &demands),
        [
            "start e0:5 e1:5",
            "wait: needs a free slot on 2 executors at once: 0 of 2 have one"
        ]
    );
    assert_eq!(
        run(&[1, 0], &demands)[1],
        "wait: the training of job a is ahead"
    );
    assert_eq!(
        run(&[2, 2], &demands),
        ["start e0:5 e1:5", "start e0:5 e1:5"]
    );
}

#[test]
fn lost_ranks_are_waited_for_and_then_done_without() {
    let wait = "wait: needs 3 executors with a free slot: 2 have one; after regroup_timeout, training continues with 2";
    assert_eq!(run(&[1, 1], &[regroup(false, TooFew::Fail)]), [wait]);
    assert_eq!(
        run(&[1, 1], &[regroup(true, TooFew::Fail)]),
        ["start e0:5 e1:5"]
    );
    assert_eq!(
        run(&[1; 5], &[regroup(false, TooFew::Fail)]),
        ["start e0:3 e1:3 e2:2 e3:2"]
    );
}

#[test]
fn too_few_executors_are_waited_for_or_end_the_job_as_asked() {
    assert!(run(&[1], &[regroup(true, TooFew::Fail)])[0].starts_with("fail: ranks were lost"));
    assert_eq!(
        run(&[1], &[regroup(true, TooFew::Wait)]),
        ["wait: needs 2 executors: 1 are registered"]
    );
    assert!(run(&[1, 0], &[regroup(true, TooFew::Fail)])[0].starts_with("wait: needs a free"));
}

#[test]
fn a_generation_ends_before_the_next_begins() {
    let begin = |patience_over| begin(Ranks::Exactly(2), patience_over);
    let ending = gang_with("a", begin(false), 1, 0);
    assert_eq!(
        run(&[1, 1], &[ending]),
        ["wait: 1 of the last generation's ranks have not ended"]
    );
    let half_done = gang_with("a", begin(false), 0, 1);
    assert!(run(&[1, 1], &[half_done])[0].starts_with("rerun: "));
    let short = gang_with("a", begin(true), 0, 0);
    assert!(run(&[1], &[short])[0].starts_with("fail: training needs 2 ranks"));
}

#[test]
fn roles_keep_ranks_and_queries_apart() {
    let roles = [ExecutorRole::Query, ExecutorRole::Train, ExecutorRole::Any];
    let executors = cluster_with(&[2, 2, 2], |number, executor| {
        executor.role = roles[number];
    });
    let demands = [slices("a", 6), gang("b", Ranks::All), slices("c", 6)];
    assert_eq!(
        run_in(executors, &demands),
        [
            "tasks e0:2 e2:2",
            "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
            "wait: slots are reserved for the training of job b"
        ]
    );
}

#[test]
fn a_gang_grows_by_an_executor_that_is_free() {
    let executors = cluster(&[0, 1, 1]);
    let grows = |ids: &[&str], most| {
        let on: Vec<_> = ids.iter().map(ToString::to_string).collect();
        let (held, ranks) = (HeldGpus::default(), (&Memory::default(), ON_ANY));
        grows_by(&executors, &held, &on, most, ranks)
    };
    assert_eq!(grows(&["e0", "e1"], 3), Some("e2"));
    assert_eq!(grows(&["e0", "e1"], 2), None);
    assert_eq!(grows(&["e1", "e2"], 3), None);
}

#[test]
fn a_gang_waits_for_executors_that_left() {
    assert_eq!(
        run(&[1], &[gang("a", Ranks::Exactly(2))]),
        ["wait: needs 2 executors: 1 are registered"]
    );
}

#[test]
fn admission_says_what_is_missing() {
    let never = |ranks, executors| {
        let executors = cluster(&vec![1; executors]);
        never_fits(ranks, &Memory::default(), &reach(&executors, ON_ANY))
    };
    assert_eq!(never(Ranks::Exactly(2), 2), None);
    assert!(
        never(Ranks::Exactly(4), 2)
            .unwrap()
            .contains("needs 4 ranks")
    );
    assert!(never(Ranks::All, 0).is_some());
}

const MIB: u64 = 1 << 20;

/// Returns the memory of a linear model of a number and a label: 16 bytes a row, and next to nothing besides.
fn of_rows(rows: u64) -> Memory {
    let of_rank = RankMemory::of_rows_only(16);
    let rows = Some(rows);
    Memory {
        of_rank: Some(of_rank),
        rows,
        largest_shard: 0,
    }
}

fn gang_of(job: &str, request: RankRequest, memory: Memory) -> Demand {
    let mut demand = gang_with(job, request, 0, 0);
    if let Kind::Gang { memory: of, .. } = &mut demand.kind {
        **of = memory;
    }
    demand
}

/// Builds executors with a free slot each that offer a rank this many MiB.
fn offering(offers: &[u64]) -> Pool {
    cluster_with(&vec![1; offers.len()], |number, executor| {
        executor.rank_memory = offers[number] * MIB;
    })
}

/// Decides on executors with a free slot each that offer a rank this many MiB.
fn run_on(offers: &[u64], demand: Demand) -> String {
    run_in(offering(offers), &[demand]).remove(0)
}

#[test]
fn a_gang_whose_ranks_take_more_memory_than_there_is_is_refused_with_numbers() {
    let begin = |ranks| begin(ranks, false);
    // The rows take 64 MiB.
    let memory = of_rows(4 * MIB);
    let exactly = |ranks| gang_of("a", begin(Ranks::Exactly(ranks)), memory);
    assert_eq!(run_on(&[32, 32], exactly(2)), "start e0:5 e1:5");
    let refused = run_on(&[32, 20], exactly(2));
    for part in [
        "fail: training does not fit into memory: each of 2 ranks takes 32.0 MiB with its share of 4194304 rows",
        "1 of 2 executors offer a rank that much, 32.0 MiB at most",
        "raise --rank-memory of volley-executor",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    let all = || gang_of("a", begin(Ranks::All), memory);
    assert_eq!(run_on(&[32, 20, 40], all()), "start e0:5 e2:5");
    assert!(run_on(&[20, 20, 20], all()).starts_with("fail: training does not fit"));
    let uneven = Memory {
        largest_shard: 3 * MIB,
        ..memory
    };
    let exactly = |ranks| gang_of("a", begin(Ranks::Exactly(ranks)), uneven);
    assert_eq!(run_on(&[48, 48], exactly(2)), "start e0:5 e1:5");
    let refused = run_on(&[47, 47], exactly(2));
    assert!(refused.contains("2 ranks takes 48.0 MiB"), "{refused}");
    let unknown = Memory {
        rows: None,
        ..memory
    };
    let never = |offers: &[u64]| {
        let executors = offering(offers);
        never_fits(Ranks::Exactly(2), &unknown, &reach(&executors, ON_ANY))
    };
    assert_eq!(never(&[0, 0]), None, "rows are not known at submission");
}

#[test]
fn survivors_do_not_take_more_rows_than_they_have_memory_for() {
    let lost = |too_few, rows| {
        let demand = regroup(true, too_few);
        let Kind::Gang { request, .. } = demand.kind else {
            unreachable!("it is a gang")
        };
        gang_of("a", request, of_rows(rows))
    };
    let fits = run_on(&[32, 32], lost(TooFew::Fail, 4 * MIB));
    assert_eq!(fits, "start e0:5 e1:5");
    let fails = run_on(&[32, 32], lost(TooFew::Fail, 5 * MIB));
    assert!(
        fails.starts_with("fail: ranks were lost, and others would have more rows each; training"),
        "{fails}"
    );
    assert_eq!(
        run_on(&[32, 32], lost(TooFew::Wait, 5 * MIB)),
        "wait: needs 2 executors that offer a rank 40.0 MiB (--rank-memory): 0 do"
    );
}

#[test]
fn a_gang_whose_last_generation_ends_keeps_its_place() {
    let ending = || gang_with("a", begin(Ranks::Exactly(2), false), 1, 0);
    let ends = "wait: 1 of the last generation's ranks have not ended";
    assert_eq!(
        run(
            &[1, 1],
            &[ending(), gang("b", Ranks::Exactly(2)), slices("c", 2)]
        ),
        [
            ends,
            "wait: the training of job a is ahead",
            "wait: slots are reserved for the training of job a"
        ]
    );
    assert_eq!(
        run(
            &[1, 0],
            &[gang("b", Ranks::Exactly(2)), ending(), slices("c", 2)]
        )[1],
        ends
    );
    assert_eq!(
        run(&[1, 1], &[gang("b", Ranks::Exactly(2)), ending()])[0],
        "start e0:5 e1:5",
        "what came before it is not held up"
    );
}

#[test]
fn slices_are_spread_evenly() {
    assert_eq!(run(&[4, 4], &[slices("a", 4)]), ["tasks e0:2 e1:2"]);
    assert_eq!(run(&[1, 1], &[slices("a", 5)]), ["tasks e0:1 e1:1"]);
    let wait = "wait: needs a free slot";
    assert_eq!(run(&[0, 0], &[slices("a", 5)]), [wait]);
}

#[test]
fn what_is_small_goes_to_an_executor_that_is_idle() {
    let executors = cluster_with(&[3, 1, 2], |number, executor| {
        if number == 1 {
            (executor.slots, executor.held) = (1, 0);
        }
    });
    let demands = [slices("a", 1), slices("b", 1), slices("c", 2)];
    let decisions = run_in(executors, &demands);
    assert_eq!(decisions, ["tasks e1:1", "tasks e0:1", "tasks e0:1 e2:1"]);
}

#[test]
fn a_collapsing_stage_runs_as_one_task() {
    let decisions = decide(cluster(&[1, 3]), &[demand("a", Kind::Whole)]);
    let task = Task {
        executor: "e1".into(),
        partitions: usize::MAX,
        slots: 1,
        gpu: None,
    };
    assert_eq!(decisions, [Decision::Tasks(vec![task])]);
}

#[test]
fn a_gang_that_may_wait_waits_for_executors_with_more_memory() {
    let request = |too_few| RankRequest::Begin {
        ranks: Ranks::Exactly(2),
        most: 2,
        patience_over: true,
        too_few,
    };
    // Each rank takes 32 MiB.
    let decision = |too_few| run_on(&[32, 20], gang_of("a", request(too_few), of_rows(4 * MIB)));
    assert_eq!(
        decision(TooFew::Wait),
        "wait: needs 2 executors that offer a rank 32.0 MiB (--rank-memory): 1 do"
    );
    assert!(decision(TooFew::Fail).starts_with("fail: training does not fit into memory"));
}

#[test]
fn all_is_no_more_than_max_ranks() {
    let request = |most| RankRequest::Begin {
        ranks: Ranks::All,
        most,
        patience_over: false,
        too_few: TooFew::Fail,
    };
    let first = |most| run(&[1; 4], &[gang_with("a", request(most), 0, 0)]).remove(0);
    assert_eq!(first(2), "start e0:5 e1:5");
    assert_eq!(first(usize::MAX), "start e0:3 e1:3 e2:2 e3:2");
}

#[test]
fn all_of_no_executors_is_waited_for_and_then_given_up() {
    let decision = |patience_over| {
        let all = gang_with("a", begin(Ranks::All, patience_over), 0, 0);
        run(&[], &[all]).remove(0)
    };
    assert_eq!(decision(false), "wait: needs 1 executors: 0 are registered");
    assert!(decision(true).starts_with("fail: training needs 1 ranks"));
}

#[test]
fn a_waiting_gang_keeps_no_slot_where_its_ranks_have_too_little_memory() {
    let executors = cluster_with(&[1, 1, 0], |number, executor| {
        executor.rank_memory = [32, 20, 32][number] * MIB;
    });
    // Each rank takes 32 MiB.
    let waits = gang_of("a", begin(Ranks::Exactly(2), false), of_rows(4 * MIB));
    assert_eq!(
        run_in(executors, &[waits, slices("b", 4)]),
        [
            "wait: needs a free slot on 2 executors at once: 1 of 3 have one",
            "tasks e1:1"
        ]
    );
}
