//! Options of the ranks and devices that training runs on, and of its start.

use std::num::NonZeroUsize;

use volley_proto::spec::{Precision, Ranks, TooFew};

use super::super::{OptionValue, WarmStart};
use super::TrainOption;
use super::set::{boolean, choose, columns, duration, expected, set, whole};

pub(super) const RUNNING: &[TrainOption] = &[
    TrainOption {
        name: "ranks",
        values: "whole number, 'all'",
        default: "'all'",
        about: "Number of executors that train: exactly this many, or all that are present when training starts.",
        example: "ranks = 4",
        set: |to, value| match (value.text(), value.number()) {
            (Some(all), _) if all.eq_ignore_ascii_case("all") => set(&mut to.ranks, Ranks::All),
            (_, Some(ranks)) if ranks > 0 => set(&mut to.ranks, Ranks::Exactly(ranks)),
            _ => Err(expected("a whole number from 1, or 'all'")),
        },
    },
    TrainOption {
        name: "min_ranks",
        values: "whole number",
        default: "1",
        about: "Minimum number of ranks with which training continues when executors are lost.",
        example: "ranks = 4, min_ranks = 2",
        set: |to, value| set(&mut to.min_ranks, whole(value)?),
    },
    TrainOption {
        name: "max_ranks",
        values: "whole number",
        default: "ranks, or no limit with 'all'",
        about: "Maximum number of ranks with which training begins, and to which it grows when executors join.",
        example: "max_ranks = 8",
        set: |to, value| set(&mut to.max_ranks, Some(whole(value)?)),
    },
    TrainOption {
        name: "regroup_timeout",
        values: "'duration'",
        default: "'30s'",
        about: "Maximum time to wait for a replacement for a lost rank before training continues with fewer \
            ranks.",
        example: "regroup_timeout = '2min'",
        set: |to, value| set(&mut to.regroup_timeout, duration(value)?),
    },
    TrainOption {
        name: "on_too_few_ranks",
        values: "'wait', 'fail'",
        default: "'fail'",
        about: "Action when fewer than min_ranks are left: wait until enough executors have joined, or fail once \
            regroup_timeout has passed.",
        example: "ranks = 4, min_ranks = 2, on_too_few_ranks = 'wait'",
        set: |to, value| {
            let choices = [("wait", TooFew::Wait), ("fail", TooFew::Fail)];
            set(&mut to.too_few, choose(value, &choices)?)
        },
    },
    TrainOption {
        name: "checkpoint_every",
        values: "whole number",
        default: "(none)",
        about: "Steps between checkpoints, in addition to the checkpoint after every epoch.",
        example: "checkpoint_every = 500",
        set: |to, value| match value.number() {
            Some(steps) if steps > 0 => set(&mut to.checkpoint_every, Some(steps)),
            _ => Err(expected("a whole number of steps, from 1")),
        },
    },
    TrainOption {
        name: "trace",
        values: "true, false",
        default: "`volley.trace`",
        about: "Records what each rank does and when, in `trace.json` beside the model, for ui.perfetto.dev.",
        example: "trace = true",
        set: |to, value| set(&mut to.trace, Some(boolean(value)?)),
    },
    TrainOption {
        name: "resume",
        values: "true, false",
        default: "false",
        about: "Continues from the newest checkpoint that an unfinished run of the same model left.",
        example: "resume = true",
        set: |to, value| set(&mut to.resume, boolean(value)?),
    },
    TrainOption {
        name: "warm_start",
        values: "true, false, 'model', 'model@version'",
        default: "false",
        about: "Model whose weights training starts from; true means the newest version of the model itself. The \
            network's shape must be the same.",
        example: "warm_start = 'sales@3'",
        set: |to, value| match value {
            OptionValue::Bool(false) => set(&mut to.warm_start, None),
            OptionValue::Bool(true) => set(&mut to.warm_start, Some(WarmStart::SameModel)),
            _ => match value.text().map(str::parse) {
                Some(Ok(model)) => set(&mut to.warm_start, Some(model)),
                _ => Err(expected("true, false, 'model' or 'model@version'")),
            },
        },
    },
    TrainOption {
        name: "begin_early",
        values: "true, false",
        default: "false",
        about: "Begins the first epoch as rows arrive, with the values, classes and scaling of warm_start's model: new \
            values of a categorical column train the embedding of unknown ones.",
        example: "warm_start = true, begin_early = true",
        set: |to, value| set(&mut to.begin_early, boolean(value)?),
    },
    TrainOption {
        name: "shards",
        values: "whole number",
        default: "60, or more for a multiple of the ranks; the checkpoint's when training resumes",
        about: "Number of virtual shards into which rows are hashed. They are dealt to the ranks so that each has \
            about the same number of rows.",
        example: "shards = 240",
        set: |to, value| set(&mut to.shards, Some(whole(value)?)),
    },
    TrainOption {
        name: "shard_by",
        values: "['column', …]",
        default: "all columns",
        about: "Columns whose hash determines a row's shard. They are not features unless named as such.",
        example: "shard_by = ['store', 'day']",
        set: |to, value| set(&mut to.shard_by, columns(value)?),
    },
    TrainOption {
        name: "device",
        values: "'auto', 'cpu', 'cuda', 'cuda:N', 'wgpu', 'wgpu:N'",
        default: "'auto'",
        about: "Device on which ranks compute: 'cuda' is one of the executor's GPUs that no other rank has, \
            'cuda:N' \
            the one with that ordinal, and 'auto' a GPU if one is free, otherwise the CPU. 'wgpu' and 'wgpu:N' \
            are GPUs of any vendor, in executors built for them. Networks of few and narrow layers are faster \
            with 'cpu'.",
        example: "device = 'cpu'",
        set: |to, value| match value.text().map(|text| text.to_lowercase().parse()) {
            Some(Ok(device)) => set(&mut to.device, device),
            _ => Err(expected(
                "'auto', 'cpu', 'cuda', 'cuda:N', 'wgpu' or 'wgpu:N'",
            )),
        },
    },
    TrainOption {
        name: "device_share",
        values: "true, false",
        default: "false",
        about: "Lets ranks share GPUs with each other, and with the ranks of other trainings that share them.",
        example: "device = 'cuda', device_share = true",
        set: |to, value| set(&mut to.device_share, boolean(value)?),
    },
    TrainOption {
        name: "precision",
        values: "'f32', 'tf32', 'bf16'",
        default: "'tf32' on an NVIDIA GPU, 'f32' on the CPU and with wgpu",
        about: "Precision of the factors in matrix products. Weights, sums and the optimizer are always f32. A \
            device computes in this precision or a finer one: wgpu always in f32. On a CPU, 'bf16' is faster if the \
            processor has AVX512-BF16, and slower than 'f32' if not; 'tf32' is always slower.",
        example: "device = 'cuda', precision = 'bf16'",
        set: |to, value| set(&mut to.precision, Some(choose(value, &Precision::ALL)?)),
    },
    TrainOption {
        name: "threads",
        values: "whole number",
        default: "as many as the executor has slots",
        about: "Maximum number of threads that a rank computes with on the CPU, out of its executor's slots. \
            What is \
            trained on the CPU does not depend on it.",
        example: "threads = 2",
        set: |to, value| set(&mut to.threads, NonZeroUsize::new(whole(value)?)),
    },
    TrainOption {
        name: "seed",
        values: "whole number",
        default: "0",
        about: "Seed of the random split, the folds, the initial weights, the row order and the dropout masks. To \
            compare seeds on the same held-out rows, use a custom split.",
        example: "seed = 42",
        set: |to, value| match value.number() {
            Some(seed) => set(&mut to.seed, seed),
            None => Err(expected("a whole number from 0")),
        },
    },
    TrainOption {
        name: "rendezvous_timeout",
        values: "'duration'",
        default: "'60s'",
        about: "Maximum time that ranks wait for each other to arrive.",
        example: "rendezvous_timeout = '5min'",
        set: |to, value| set(&mut to.rendezvous_timeout, duration(value)?),
    },
    TrainOption {
        name: "collective_timeout",
        values: "'duration'",
        default: "'60s'",
        about: "Maximum time that one collective operation waits for a peer.",
        example: "collective_timeout = '2min'",
        set: |to, value| set(&mut to.collective_timeout, duration(value)?),
    },
    TrainOption {
        name: "loading_timeout",
        values: "'duration'",
        default: "'1h'",
        about: "Maximum time that a rank that has streamed its shards waits for peers that are still streaming \
            theirs.",
        example: "loading_timeout = '4h'",
        set: |to, value| set(&mut to.loading_timeout, duration(value)?),
    },
];
