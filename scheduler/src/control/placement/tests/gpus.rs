//! Scripts of GPUs: their assignment to executors, and reasons to wait.

use std::collections::BTreeSet;

use volley_proto::GpuId;

use super::*;
use crate::control::devices::HostGpu;

const CUDA: DeviceRequest = DeviceRequest {
    device: Device::AnyCuda,
    shares: false,
};
const SHARED: DeviceRequest = DeviceRequest {
    shares: true,
    ..CUDA
};

fn on(device: Device) -> DeviceRequest {
    DeviceRequest {
        device,
        shares: false,
    }
}

fn gpu(host: &str, number: u8) -> HostGpu {
    HostGpu {
        host: host.into(),
        uuid: GpuId::from_bytes([number; 16]),
    }
}

/// Builds executors e0, e1, … with a free slot each, on hosts whose GPUs with these numbers they see.
fn seeing(executors: &[(&str, &[u8])]) -> Pool {
    cluster_with(&vec![1; executors.len()], |number, executor| {
        let (host, gpus) = executors[number];
        executor.gpus = gpus.iter().map(|number| gpu(host, *number)).collect();
    })
}

fn held(gpus: &[HostGpu]) -> HeldGpus {
    let mut held = HeldGpus::default();
    gpus.iter().for_each(|gpu| held.take(gpu, false));
    held
}

fn asking(job: &str, ranks: Ranks, device: DeviceRequest) -> Demand {
    let mut demand = gang(job, ranks);
    if let Kind::Gang { device: of, .. } = &mut demand.kind {
        *of = device;
    }
    demand
}

fn two(job: &str, device: DeviceRequest) -> Demand {
    asking(job, Ranks::Exactly(2), device)
}

/// Returns `executor:GPU` for the ranks that start, or the reason.
fn dealt(mut executors: Pool, held: &HeldGpus, demands: &[Demand]) -> Vec<String> {
    let shares = Shares {
        queues: &Queues::default(),
        usage: &Usage::default(),
        memory: &HeldMemory::default(),
        gpus: held,
    };
    let decisions = place(&mut executors, demands, shares).decisions;
    let text = |decision: &Decision| {
        let Decision::Start(tasks) = decision else {
            return script(decision);
        };
        let task = |task: &Task| match &task.gpu {
            Some(HostGpu { host, uuid }) => {
                let number = uuid.to_string().pop().unwrap_or_default();
                format!("{}:{host}{number}", task.executor)
            }
            None => format!("{}:cpu", task.executor),
        };
        tasks.iter().map(task).collect::<Vec<_>>().join(" ")
    };
    decisions.iter().map(text).collect()
}

fn idle(executors: Pool, demand: Demand) -> String {
    dealt(executors, &HeldGpus::default(), &[demand]).remove(0)
}

#[test]
fn executors_of_one_host_get_different_gpus() {
    let host = || seeing(&[("h", &[0, 1]), ("h", &[0, 1])]);
    assert_eq!(idle(host(), two("a", CUDA)), "e0:h0 e1:h1");
    assert_eq!(
        idle(host(), two("a", on(Device::Auto))),
        "e0:h0 e1:h1",
        "it prefers them"
    );
    let hosts = seeing(&[("h", &[0]), ("i", &[0])]);
    assert_eq!(idle(hosts, two("a", CUDA)), "e0:h0 e1:i0");
}

#[test]
fn an_executor_makes_room_for_one_that_sees_fewer_gpus() {
    let sees_fewer = seeing(&[("h", &[0, 1]), ("h", &[0])]);
    assert_eq!(idle(sees_fewer, two("a", CUDA)), "e0:h1 e1:h0");
    let chain = seeing(&[("h", &[0, 1]), ("h", &[1, 2]), ("h", &[0])]);
    let three = asking("a", Ranks::Exactly(3), CUDA);
    assert_eq!(idle(chain, three), "e0:h1 e1:h2 e2:h0");
}

#[test]
fn as_many_executors_get_a_gpu_as_can() {
    // Covers every way in which three executors may see three GPUs.
    for seen in 0..1_u32 << 9 {
        let sees = |executor: u32| -> Vec<u8> {
            let bits = seen >> (3 * executor);
            (0..3).filter(|gpu| bits >> gpu & 1 == 1).collect()
        };
        let sees: Vec<_> = (0..3).map(sees).collect();
        let pool = || seeing(&[("h", &sees[0]), ("h", &sees[1]), ("h", &sees[2])]);
        // Hall's condition: any set of executors sees at least as many GPUs together.
        let is_possible = (1..8_u32).all(|some| {
            let some: Vec<_> = (0..3).filter(|at| some >> at & 1 == 1).collect();
            let together: BTreeSet<u8> = some.iter().flat_map(|at| sees[*at].clone()).collect();
            together.len() >= some.len()
        });
        let all = idle(pool(), asking("a", Ranks::Exactly(3), CUDA));
        assert_eq!(!all.starts_with("wait"), is_possible, "{sees:?}: {all}");
        if is_possible {
            let gpus: BTreeSet<_> = all
                .split(' ')
                .filter_map(|rank| rank.split(':').nth(1))
                .collect();
            assert_eq!(gpus.len(), 3, "{sees:?}: {all}");
        }
    }
}

#[test]
fn an_ordinal_is_the_executor_s_own() {
    // The second process sees the GPUs in another order.
    let order = || seeing(&[("h", &[0, 1]), ("h", &[1, 0])]);
    let second = on(Device::Cuda(1));
    assert_eq!(idle(order(), two("a", second)), "e0:h1 e1:h0");
    let refused = never(&seeing(&[("h", &[0]), ("h", &[0])]), 2, on(Device::Cuda(0)));
    assert!(refused.contains("needs 2 GPUs"), "{refused}");
    let refused = never(&order(), 1, on(Device::Cuda(2)));
    assert!(
        refused.contains("needs 1 GPU, and the cluster has none"),
        "{refused}"
    );
}

/// Returns why so many ranks are refused.
fn never(executors: &Pool, ranks: usize, device: DeviceRequest) -> String {
    let reach = reach(executors, device);
    never_fits(Ranks::Exactly(ranks), &Memory::default(), &reach).unwrap()
}

#[test]
fn a_gang_that_wants_more_gpus_than_there_are_is_refused_with_numbers() {
    let two = seeing(&[("h", &[0]), ("i", &[0])]);
    assert_eq!(
        never(&two, 4, CUDA),
        "training needs 4 GPUs, one per rank and one rank per executor, and the cluster has 2 on 2 executors: start \
         more executors on hosts with GPUs, lower ranks, or let ranks share GPUs with device_share = true"
    );
    let one = seeing(&[("h", &[0]), ("h", &[0]), ("h", &[])]);
    let refused = never(&one, 2, CUDA);
    assert!(
        refused.contains("the cluster has 1 on 2 executors"),
        "{refused}"
    );
    let refused = never(&one, 3, SHARED);
    assert!(
        refused.contains("the cluster has 1 on 2 executors: start more"),
        "{refused}"
    );
    let none = seeing(&[("h", &[]), ("i", &[])]);
    let refused = never(&none, 2, CUDA);
    assert!(
        refused.contains("has none: executors find GPUs where the NVIDIA driver"),
        "{refused}"
    );
    assert_eq!(
        never_fits(Ranks::Exactly(2), &Memory::default(), &reach(&none, ON_ANY)),
        None
    );
    assert_eq!(
        never_fits(Ranks::Exactly(2), &Memory::default(), &reach(&one, SHARED)),
        None
    );
}

#[test]
fn a_gang_waits_for_gpus_that_others_hold() {
    let executors = || seeing(&[("h", &[0]), ("i", &[0])]);
    let busy = held(&[gpu("i", 0)]);
    let demands = [
        two("a", CUDA),
        two("b", CUDA),
        two("c", on(Device::Cpu)),
        slices("d", 1),
    ];
    assert_eq!(
        dealt(executors(), &busy, &demands),
        [
            "wait: needs a free GPU on 2 executors at once: 1 of 2 have one",
            "wait: the training of job a is ahead",
            "e0:cpu e1:cpu",
            "wait: needs a free slot"
        ],
        "whom no GPU helps goes ahead"
    );
    // The gang waits for GPUs and reserves no slot, so queries take the free ones.
    let waits = [two("a", CUDA), slices("d", 2)];
    assert_eq!(dealt(executors(), &busy, &waits)[1], "tasks e0:1 e1:1");
}

#[test]
fn gangs_that_start_together_get_different_gpus() {
    let executors = cluster_with(&[2, 2], |_, executor| {
        executor.gpus = (0..3).map(|number| gpu("h", number)).collect();
    });
    let demands = [two("a", CUDA), two("b", CUDA)];
    assert_eq!(
        dealt(executors, &HeldGpus::default(), &demands),
        [
            "e0:h0 e1:h1",
            "wait: needs a free GPU on 2 executors at once: 1 of 2 have one"
        ]
    );
}

#[test]
fn whoever_waits_for_slots_keeps_them_where_there_are_gpus() {
    let executors = cluster_with(&[1, 0, 1], |number, executor| {
        executor.gpus = match number {
            2 => Arc::default(),
            _ => [gpu("h", number as u8)].into(),
        };
    });
    let demands = [two("a", CUDA), slices("b", 2)];
    assert_eq!(
        dealt(executors, &HeldGpus::default(), &demands),
        [
            "wait: needs a free slot on 2 executors at once: 1 of 2 have one",
            "tasks e2:1"
        ]
    );
}

#[test]
fn ranks_share_a_gpu_where_their_trainings_ask_for_it() {
    let executors = || seeing(&[("h", &[0, 1]), ("h", &[0, 1]), ("h", &[0, 1])]);
    let three = |device| asking("a", Ranks::Exactly(3), device);
    assert_eq!(idle(executors(), three(SHARED)), "e0:h0 e1:h1 e2:h0");
    let mut others = held(&[gpu("h", 0)]);
    assert_eq!(
        dealt(executors(), &others, &[three(SHARED)]),
        ["e0:h1 e1:h1 e2:h1"],
        "whoever holds the first does not share it"
    );
    others = HeldGpus::default();
    others.take(&gpu("h", 0), true);
    others.take(&gpu("h", 1), true);
    others.take(&gpu("h", 1), true);
    assert_eq!(
        dealt(
            executors(),
            &others,
            &[asking("a", Ranks::Exactly(1), SHARED)]
        ),
        ["e0:h0"],
        "the one that fewer hold"
    );
    let alone = asking("a", Ranks::Exactly(1), CUDA);
    assert!(dealt(executors(), &others, &[alone])[0].starts_with("wait: needs a free GPU"));
}

#[test]
fn what_may_be_a_gpu_is_the_cpu_where_none_is_free() {
    let executors = || seeing(&[("h", &[]), ("i", &[0]), ("i", &[0])]);
    let all = asking("a", Ranks::All, ON_ANY);
    assert_eq!(idle(executors(), all), "e1:i0 e0:cpu e2:cpu");
    let one = || asking("a", Ranks::Exactly(1), ON_ANY);
    assert_eq!(idle(executors(), one()), "e1:i0", "where there is one");
    let busy = held(&[gpu("i", 0)]);
    assert_eq!(dealt(executors(), &busy, &[one()]), ["e0:cpu"]);
    // An operator may require that ranks on an executor compute on GPUs.
    let strict = cluster_with(&[1, 1], |_, executor| {
        executor.gpus = [gpu("i", 0)].into();
        executor.device = Device::AnyCuda;
    });
    let refused = never(&strict, 2, ON_ANY);
    assert!(refused.contains("needs 2 GPUs"), "{refused}");
}

#[test]
fn all_ranks_are_as_many_as_can_have_a_gpu() {
    let executors = || seeing(&[("h", &[0, 1]), ("h", &[0, 1]), ("h", &[0, 1]), ("i", &[])]);
    let all = |device| asking("a", Ranks::All, device);
    assert_eq!(idle(executors(), all(CUDA)), "e0:h0 e1:h1");
    assert_eq!(idle(executors(), all(SHARED)), "e0:h0 e1:h1 e2:h0");
}

#[test]
fn gpus_go_to_executors_whose_ranks_have_the_memory() {
    let executors = cluster_with(&[1, 1, 1], |number, executor| {
        executor.rank_memory = [20, 32, 32][number] * MIB;
        let gpus: &[u8] = [&[0, 1][..], &[0], &[1]][number];
        executor.gpus = gpus.iter().map(|number| gpu("h", *number)).collect();
    });
    let mut demand = two("a", CUDA);
    if let Kind::Gang { memory, .. } = &mut demand.kind {
        // Each rank takes 32 MiB.
        **memory = of_rows(4 * MIB);
    }
    assert_eq!(idle(executors, demand), "e1:h0 e2:h1");
}

#[test]
fn a_gang_grows_by_an_executor_with_a_free_gpu() {
    let executors = seeing(&[("h", &[0, 1]), ("h", &[0, 1]), ("h", &[])]);
    let ranks_on = ["e0".to_owned()];
    let grows = |gpus: &[HostGpu], device| {
        let ranks = (&Memory::default(), device);
        grows_by(&executors, &held(gpus), &ranks_on, 3, ranks)
    };
    let own = gpu("h", 0);
    assert_eq!(grows(std::slice::from_ref(&own), CUDA), Some("e1"));
    assert_eq!(grows(&[own.clone(), gpu("h", 1)], CUDA), None);
    let both = [own, gpu("h", 1)];
    assert_eq!(grows(&both, on(Device::Cpu)), Some("e1"));
}

#[test]
fn a_rank_on_a_lost_gpu_is_replaced_by_one_with_a_gpu() {
    let executors = seeing(&[("h", &[0]), ("i", &[]), ("j", &[0])]);
    let mut demand = regroup(true, TooFew::Fail);
    if let Kind::Gang { device, .. } = &mut demand.kind {
        *device = CUDA;
    }
    assert_eq!(idle(executors, demand.clone()), "e0:h0 e2:j0");
    let left = seeing(&[("h", &[0]), ("i", &[])]);
    let fails = idle(left, demand);
    assert!(fails.contains("1 executors with a GPU are left"), "{fails}");
}
