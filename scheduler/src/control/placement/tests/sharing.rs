//! Scripts of slots that queues, users and gangs want at once.

use volley_proto::access::Role;

use super::*;
use crate::control::aging::Starved;
use crate::control::jobs::JobLimits;
use crate::control::quotas::MemoryQuota;

fn queues(texts: &[&str]) -> Queues {
    let queues: Vec<Queue> = texts.iter().map(|text| text.parse().unwrap()).collect();
    Queues::new(&queues).unwrap()
}

/// Builds slices of a user in a queue.
fn of(account: (&str, &str), job: &str, pending: usize) -> Demand {
    Demand {
        account: Account::new(account.0, account.1),
        ..slices(job, pending)
    }
}

fn scripts(placed: &Placed) -> Vec<String> {
    placed.decisions.iter().map(script).collect()
}

/// Decides with nothing running.
fn share(queues: &Queues, free: &[usize], demands: &[Demand]) -> Vec<String> {
    let usage = &Usage::default();
    scripts(&place(
        &mut cluster(free),
        demands,
        Shares {
            queues,
            usage,
            memory: &HeldMemory::default(),
            gpus: &HeldGpus::default(),
        },
    ))
}

#[test]
fn a_large_job_does_not_keep_another_queue_waiting() {
    let queues = queues(&["etl=1", "adhoc=3"]);
    let large = of(("etl", "a"), "a", 100);
    let small = of(("adhoc", "b"), "b", 100);
    assert_eq!(
        share(&queues, &[4, 4], &[large, small]),
        ["tasks e0:2", "tasks e1:4 e0:2"]
    );
}

#[test]
fn a_user_waits_at_the_cap_and_is_told_so() {
    let queues = queues(&["etl=1,user_slots=2"]);
    let demands = [
        of(("etl", "bob"), "a", 2),
        of(("etl", "bob"), "b", 1),
        of(("etl", "alice"), "c", 1),
    ];
    assert_eq!(
        share(&queues, &[4], &demands),
        [
            "tasks e0:2",
            "wait: user bob holds 2 slots, and the cap of queue etl is 2",
            "tasks e0:1"
        ]
    );
}

/// Builds slices of a user whose queries may hold this much memory, in GiB; each slot of the cluster has one.
fn of_quota(user: &str, job: &str, pending: usize, gib: u64) -> Demand {
    let memory = MemoryQuota {
        limit: Some(gib << 30),
        slot: None,
    };
    Demand {
        limits: Some(JobLimits {
            memory,
            ..JobLimits::none(Role::Run)
        }),
        ..of((QUEUE_DEFAULT, user), job, pending)
    }
}

#[test]
fn a_user_waits_at_the_quota_of_memory_and_others_do_not() {
    let demands = [
        of_quota("bob", "a", 9, 3),
        of_quota("bob", "b", 1, 3),
        of((QUEUE_DEFAULT, "alice"), "c", 9),
    ];
    assert_eq!(
        share(&Queues::default(), &[8], &demands),
        [
            "tasks e0:3",
            "wait: running tasks of user bob may hold 3.0 GiB of memory, and the limit memory of the role run is 3.0 GiB: \
             there is no slot's share left",
            "tasks e0:5"
        ]
    );
}

#[test]
fn memory_that_is_held_and_a_slots_share_count_for_the_quota() {
    let decide = |demand: Demand, held: u64| {
        let mut memory = HeldMemory::default();
        memory.add(&"bob".into(), held << 30);
        let shares = Shares {
            queues: &Queues::default(),
            usage: &Usage::default(),
            memory: &memory,
            gpus: &HeldGpus::default(),
        };
        // A slot of the first executor has 4 GiB, one of the second 1 GiB.
        let mut executors = cluster_with(&[4, 2], |number, executor| {
            executor.slot_memory = if number == 0 { 4 << 30 } else { 1 << 30 };
        });
        scripts(&place(&mut executors, &[demand], shares)).remove(0)
    };
    let waits = |decision: String| decision.starts_with("wait: running tasks of user bob");
    assert_eq!(decide(of_quota("bob", "a", 9, 9), 0), "tasks e0:2");
    assert!(waits(decide(of_quota("bob", "a", 9, 9), 6)));
    let small = |gib| {
        let mut demand = of_quota("bob", "a", 9, gib);
        if let Some(limits) = &mut demand.limits {
            limits.memory.slot = Some(2 << 30);
        }
        demand
    };
    // The job's own limit makes its slots smaller.
    assert_eq!(decide(small(9), 5), "tasks e0:2");
    assert!(waits(decide(small(9), 8)));
    // A job without a quota takes what is free.
    assert_eq!(
        decide(of((QUEUE_DEFAULT, "bob"), "a", 9), 99),
        "tasks e0:4 e1:2"
    );
}

#[test]
fn a_gang_counts_for_no_quota_and_queries_ahead_of_it_do() {
    let demands = [
        of_quota("bob", "a", 9, 1),
        gang("t", Ranks::Exactly(2)),
        of_quota("bob", "b", 1, 1),
    ];
    assert_eq!(
        share(&Queues::default(), &[2, 1], &demands)[..2],
        ["tasks e0:1", "start e0:5 e1:5"]
    );
}

#[test]
fn who_waits_for_a_queues_turn_is_told_its_share() {
    let queues = queues(&["etl=1"]);
    let mut usage = Usage::default();
    usage.add(&Account::new("etl", "a"), 4);
    usage.add(&Account::new(QUEUE_DEFAULT, "b"), 3);
    let demands = [of(("etl", "a"), "a", 1), of((QUEUE_DEFAULT, "b"), "b", 1)];
    // Other tasks hold seven of the cluster's eight slots; one is free.
    let mut executors = cluster_with(&[1], |_, executor| {
        (executor.slots, executor.held) = (8, 7);
    });
    let shares = Shares {
        queues: &queues,
        usage: &usage,
        memory: &HeldMemory::default(),
        gpus: &HeldGpus::default(),
    };
    let placed = place(&mut executors, &demands, shares);
    assert_eq!(
        scripts(&placed),
        [
            "wait: needs a free slot: queue etl has 4 of 8 slots, and its share is 4",
            "tasks e0:1"
        ]
    );
}

#[test]
fn of_one_user_the_job_of_the_highest_priority_goes_first() {
    let urgent = Demand {
        priority: 1,
        ..slices("b", 1)
    };
    let demands = [slices("a", 1), urgent, slices("c", 1)];
    assert_eq!(
        share(&Queues::default(), &[1], &demands),
        [
            "wait: needs a free slot",
            "tasks e0:1",
            "wait: needs a free slot"
        ]
    );
}

#[test]
fn a_gang_counts_in_no_share_and_no_cap() {
    let queues = queues(&["etl=1,user_slots=1"]);
    let trains = Demand {
        account: Account::new("etl", "bob"),
        ..gang("t", Ranks::Exactly(2))
    };
    let demands = [trains, of(("etl", "bob"), "a", 2), slices("b", 1)];
    assert_eq!(
        share(&queues, &[3, 2], &demands),
        ["start e0:5 e1:5", "tasks e0:1", "tasks e0:1"]
    );
}

#[test]
fn queues_share_also_while_a_gang_between_their_jobs_waits() {
    let queues = queues(&["etl=1"]);
    let demands = [
        of(("etl", "a"), "a", 100),
        gang("t", Ranks::Exactly(2)),
        slices("b", 100),
    ];
    // A slot of e0 is reserved, and only queries that were ahead take it.
    assert_eq!(
        share(&queues, &[5, 0], &demands),
        [
            "tasks e0:4",
            "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
            "tasks e0:1"
        ]
    );
}

#[test]
fn a_gang_starts_on_what_those_ahead_leave() {
    let demands = [
        slices("a", 1),
        gang("t", Ranks::Exactly(2)),
        slices("b", 100),
    ];
    assert_eq!(
        run(&[2, 2], &demands),
        ["tasks e0:1", "start e1:5 e0:5", "tasks e1:1"]
    );
}

/// Returns the starved jobs on executors with this many free slots, and the decisions.
fn starved(free: &[usize], demands: &[Demand]) -> (Option<Starved>, Vec<String>) {
    let shares = Shares {
        queues: &Queues::default(),
        usage: &Usage::default(),
        memory: &HeldMemory::default(),
        gpus: &HeldGpus::default(),
    };
    let placed = place(&mut cluster(free), demands, shares);
    let scripts = scripts(&placed);
    (placed.starved, scripts)
}

#[test]
fn queries_behind_a_reservation_are_told_of() {
    let runs = Demand {
        runs: true,
        ..slices("c", 2)
    };
    let trains = || gang("t", Ranks::Exactly(2));
    let demands = [slices("a", 1), trains(), slices("b", 2), runs];
    let b = || vec!["b".to_owned()];
    let (kept, _) = starved(&[2, 0], &demands);
    let (slot, jobs) = (true, b());
    assert_eq!(kept, Some(Starved { slot, jobs }), "c runs");
    let (busy, _) = starved(&[1, 0], &demands);
    let (slot, jobs) = (false, b());
    assert_eq!(busy, Some(Starved { slot, jobs }), "a has the free one");
    // A gang that can start does, whatever has waited; then nothing is reserved.
    let (kept, decisions) = starved(&[2, 2], &[trains(), slices("b", 2)]);
    assert_eq!((kept, &*decisions[0]), (None, "start e0:5 e1:5"));
}

#[test]
fn a_promoted_query_is_ahead_of_the_gang() {
    let ahead = Demand {
        promoted: true,
        ..slices("b", 2)
    };
    let demands = [gang("t", Ranks::Exactly(2)), ahead, slices("c", 1)];
    let (_, decisions) = starved(&[2, 0], &demands);
    assert_eq!(
        decisions,
        [
            "wait: needs a free slot on 2 executors at once: 0 of 2 have one",
            "tasks e0:2",
            "wait: slots are reserved for the training of job t"
        ]
    );
}

#[test]
fn a_gang_that_lacks_executors_reserves_nothing() {
    let request = RankRequest::Begin {
        ranks: Ranks::Exactly(3),
        most: usize::MAX,
        patience_over: false,
        too_few: TooFew::Wait,
    };
    let (kept, decisions) = starved(&[1, 1], &[gang_with("t", request, 0, 0), slices("b", 2)]);
    assert_eq!(
        decisions,
        [
            "wait: needs 3 executors: 2 are registered",
            "tasks e0:1 e1:1"
        ]
    );
    assert_eq!(kept, None);
}
