//! Scripts of GPUs: assigned, reported, waited for and given back, whatever happens.

use super::*;

/// Builds a script with executors a and b of one host, both of which see its two GPUs, and c of another host with one.
fn script() -> Script {
    let mut script = Script::new(&[]);
    script.joins_with("a", Device::Auto, ("h", &[0, 1]));
    script.joins_with("b", Device::Auto, ("h", &[0, 1]));
    script.joins_with("c", Device::Auto, ("i", &[2]));
    script
}

fn on_gpus(ranks: usize) -> Gang {
    Gang {
        device: DeviceRequest {
            device: Device::AnyCuda,
            shares: false,
        },
        ..gang(TrainId::generate(), Ranks::Exactly(ranks), TooFew::Fail)
    }
}

impl Script {
    /// Submits a job that trains, and offers its barrier stage.
    fn trains(&mut self, job: &str, gang: &Gang) -> Vec<String> {
        self.submit(job, Some(gang.train));
        self.offer(&[barrier(job, gang, &[], true)])
    }

    /// Returns the number of the GPU that each rank is told once all have joined.
    fn told(&mut self, gang: &Gang, attempt: &str, ranks: &[&str]) -> Vec<Option<String>> {
        for (task, executor) in ranks.iter().enumerate() {
            let seat = (attempt, task);
            let joined = self.controller.join(gang.train, seat, executor, "X".into());
            assert!(joined.unwrap().is_ok());
        }
        self.controller.take_commands();
        let run = self.controller.run(gang.train).unwrap();
        let gpu = |task| run.membership(task).unwrap().gpu;
        let last = |gpu: GpuId| gpu.to_string().split_off("GPU-".len() + 34);
        (0..ranks.len()).map(|task| gpu(task).map(last)).collect()
    }

    /// Returns the GPUs of an executor, as in its row.
    fn gpus(&self, executor: &str) -> (u64, Vec<String>) {
        let rows = self.controller.executor_rows(None);
        let row = rows.into_iter().find(|row| row.executor_id == executor);
        let row = row.unwrap();
        (row.free_gpus, row.gpus)
    }

    fn free_gpus(&self) -> Vec<u64> {
        let rows = self.controller.executor_rows(None);
        rows.into_iter().map(|row| row.free_gpus).collect()
    }
}

#[test]
fn each_rank_is_told_of_a_gpu_of_its_own() {
    let mut script = script();
    let gang = on_gpus(3);
    assert_eq!(script.trains("t", &gang), ["bind t: a b c"]);
    let told = script.told(&gang, "t", &["a", "b", "c"]);
    let told: Vec<_> = told.iter().flatten().collect();
    assert_eq!(told, ["00", "01", "02"]);
    let on_cpu = Gang {
        device: DeviceRequest {
            device: Device::Cpu,
            shares: false,
        },
        ..on_gpus(1)
    };
    script.joins("d");
    assert_eq!(script.trains("u", &on_cpu), ["bind u: d"]);
    assert_eq!(script.told(&on_cpu, "u", &["d"]), [None]);
}

#[test]
fn the_table_of_executors_says_who_holds_which_gpu() {
    let mut script = script();
    let gang = on_gpus(1);
    script.trains("t", &gang);
    let (free, gpus) = script.gpus("b");
    assert_eq!(free, 1);
    assert_eq!(
        gpus,
        [
            format!(
                "NVIDIA H100, 80.0 GiB, compute capability 9.0, GPU-00000000-0000-0000-0000-000000000000: held by \
                 training m ({})",
                gang.train
            ),
            "NVIDIA H100, 80.0 GiB, compute capability 9.0, GPU-01010101-0101-0101-0101-010101010101: free".to_owned()
        ],
        "a rank on another executor of its host holds it"
    );
    script.ended("t", AttemptEnd::Cancelled);
    let (free, gpus) = script.gpus("a");
    assert_eq!(free, 1, "its rank still computes");
    assert!(
        gpus[0].contains("training m (over, but still computing)"),
        "{gpus:?}"
    );
    // Others see that it is held, and not by whose training.
    let rows = script.controller.executor_rows(Some("somebody else"));
    let others = rows[0].gpus[0].as_str();
    assert!(
        others.ends_with("held by a training of another user (over, but still computing)"),
        "{others}"
    );
    script.task_ended("a", "t", 0);
    assert_eq!(script.free_gpus(), [2, 2, 1]);
}

#[test]
fn a_gang_waits_for_gpus_and_says_who_holds_them() {
    let mut script = script();
    script.joins_with("d", Device::Auto, ("i", &[2]));
    let first = on_gpus(2);
    assert_eq!(script.trains("t", &first), ["bind t: a b"]);
    let second = on_gpus(2);
    assert_eq!(
        script.controller.admit_gang(&second, None),
        Ok(()),
        "it can run later"
    );
    script.controller.take_commands();
    assert!(script.trains("u", &second).is_empty());
    assert_eq!(
        script.waits("u").as_deref(),
        Some(
            "needs a free slot on 2 executors at once: 1 of 3 have one; training m holds 2 of 4 slots"
        )
    );
    script.ended("t", AttemptEnd::Cancelled);
    script.task_ended("b", "t", 1);
    script.joins_with("e", Device::Auto, ("h", &[0]));
    script.loses("b", vec![]);
    script.loses("c", vec![]);
    // The rank on a holds the first GPU of h, the only one that e sees.
    let stage = || barrier("u", &second, &[], true);
    assert!(script.offer(&[stage()]).is_empty());
    assert_eq!(
        script.waits("u").as_deref(),
        Some(
            "needs a free GPU on 2 executors at once: 1 of 3 have one; training m (over, but still computing) holds 1 of \
             3 GPUs"
        )
    );
    assert_eq!(script.task_ended("a", "t", 0), ["offer"]);
    assert_eq!(script.offer(&[stage()]), ["bind u: a d"]);
}

#[test]
fn a_gang_that_wants_more_gpus_than_the_cluster_has_is_refused_at_once() {
    let mut script = script();
    let refused = script.controller.admit_gang(&on_gpus(4), None).unwrap_err();
    assert!(
        refused.contains("needs 4 GPUs") && refused.contains("has 3 on 3 executors"),
        "{refused}"
    );
    let shared = Gang {
        device: DeviceRequest {
            device: Device::Cuda(0),
            shares: true,
        },
        ..on_gpus(3)
    };
    assert_eq!(script.controller.admit_gang(&shared, None), Ok(()));
    let alone = Gang {
        device: DeviceRequest {
            device: Device::Cuda(0),
            shares: false,
        },
        ..on_gpus(3)
    };
    let refused = script.controller.admit_gang(&alone, None).unwrap_err();
    assert!(refused.contains("has 2 on 3 executors"), "{refused}");
}

#[test]
fn nothing_leaks_however_often_gpus_are_dealt_and_however_ranks_end() {
    let mut script = script();
    let mut numbers = HashMap::<&str, u64>::new();
    for round in 0..300_u32 {
        let gang = on_gpus(3);
        let job = format!("{round:04}");
        assert_eq!(script.trains(&job, &gang), [format!("bind {job}: a b c")]);
        assert_eq!(script.free_gpus(), [0, 0, 0]);
        let on = ["a", "b", "c"];
        let tasks = on.into_iter().zip(0..);
        let ways = [
            "succeeds",
            "fails",
            "is cancelled",
            "meets again",
            "loses b",
            "b starts over",
        ];
        let way = ways[round as usize % ways.len()];
        *numbers.entry(way).or_default() += 1;
        match way {
            "succeeds" => {
                for (executor, number) in tasks {
                    let (executor, task) = (executor.to_owned(), task(&job, number));
                    script.on(Event::TaskSucceeded { executor, task });
                }
                script.ended(&job, AttemptEnd::Succeeded { rows: None });
            }
            "fails" => {
                for (executor, number) in tasks {
                    let (executor, task) = (executor.to_owned(), task(&job, number));
                    script.on(Event::TaskFailed { executor, task });
                }
                script.ended(&job, AttemptEnd::Failed("no".into()));
            }
            "meets again" => {
                script.loses("b", vec![effect(&job, "b", Some(gang.train), false)]);
                assert_eq!(script.free_gpus(), [1, 0], "b's is free");
                for (executor, number) in [("a", 0), ("c", 2)] {
                    let (executor, task) = (executor.to_owned(), task(&job, number));
                    script.on(Event::TaskFailed { executor, task });
                }
                let stage = || barrier(&job, &gang, &[], true);
                assert!(script.offer(&[stage()]).is_empty(), "b may come back");
                script.joins_with("b", Device::Auto, ("h", &[0, 1]));
                assert_eq!(script.offer(&[stage()]), [format!("bind {job}: a b c")]);
                assert_eq!(script.free_gpus(), [0, 0, 0]);
                for (executor, number) in tasks {
                    let (executor, task) = (executor.to_owned(), task(&job, number + 3));
                    script.on(Event::TaskSucceeded { executor, task });
                }
                script.ended(&job, AttemptEnd::Succeeded { rows: None });
            }
            "is cancelled" => {
                script.ended(&job, AttemptEnd::Cancelled);
                for (executor, number) in tasks {
                    let (executor_, task) = (executor.to_owned(), task(&job, number));
                    // This does not free the GPU: the task's computation may go on.
                    script.on(Event::TaskFailed {
                        executor: executor_,
                        task,
                    });
                    script.task_ended(executor, &job, number);
                    // A repeated report changes nothing.
                    script.task_ended(executor, &job, number);
                }
            }
            _ => {
                script.loses("b", vec![effect(&job, "b", Some(gang.train), true)]);
                script.ended(&job, AttemptEnd::Cancelled);
                if way == "b starts over" {
                    // A late report of the incarnation before.
                    script.task_ended("b", &job, 1);
                }
                script.joins_with("b", Device::Auto, ("h", &[0, 1]));
                script.task_ended("a", &job, 0);
                script.task_ended("c", &job, 2);
                script.controller.cancel(&job, script.now);
                script.controller.take_commands();
            }
        }
        assert_eq!(script.free_gpus(), [2, 2, 1], "round {round}: {way}");
        assert!(
            script.controller.slots.gpus().is_empty(),
            "round {round}: {way}"
        );
    }
    assert_eq!(numbers.into_values().collect::<Vec<_>>(), [50; 6]);
}
