//! Options of the ranks and devices that training runs on, and of its start.

use std::num::NonZeroUsize;

use volley_proto::spec::{Precision, Ranks, TooFew};

use super::super::{OptionValue, WarmStart};
use super::set::{boolean, choose, columns, duration, expected, set, whole};
use super::{TrainOption, option};

pub(super) const RUNNING: &[TrainOption] = &[
    option(
        "ranks",
        "whole number, 'all'",
        "'all'",
        "How many executors train: exactly so many, or every one there is when training starts.",
        |to, value| match (value.text(), value.number()) {
            (Some(all), _) if all.eq_ignore_ascii_case("all") => set(&mut to.ranks, Ranks::All),
            (_, Some(ranks)) if ranks > 0 => set(&mut to.ranks, Ranks::Exactly(ranks)),
            _ => Err(expected("a whole number from 1, or 'all'")),
        },
    ),
    option(
        "min_ranks",
        "whole number",
        "1",
        "When executors are lost, training goes on with no fewer ranks than this.",
        |to, value| set(&mut to.min_ranks, whole(value)?),
    ),
    option(
        "max_ranks",
        "whole number",
        "ranks, or no limit with 'all'",
        "Training begins with no more ranks than this, and grows to no more when executors join.",
        |to, value| set(&mut to.max_ranks, Some(whole(value)?)),
    ),
    option(
        "regroup_timeout",
        "'duration'",
        "'30s'",
        "How long a replacement for a lost rank is waited for before fewer ranks go on.",
        |to, value| set(&mut to.regroup_timeout, duration(value)?),
    ),
    option(
        "on_too_few_ranks",
        "'wait', 'fail'",
        "'fail'",
        "When fewer than min_ranks are left: wait until enough executors have joined, or fail \
         once regroup_timeout has passed.",
        |to, value| {
            let choices = [("wait", TooFew::Wait), ("fail", TooFew::Fail)];
            set(&mut to.too_few, choose(value, &choices)?)
        },
    ),
    option(
        "checkpoint_every",
        "whole number",
        "(none)",
        "Steps between checkpoints, besides the one after every epoch.",
        |to, value| match value.number() {
            Some(steps) if steps > 0 => set(&mut to.checkpoint_every, Some(steps)),
            _ => Err(expected("a whole number of steps, from 1")),
        },
    ),
    option(
        "trace",
        "true, false",
        "`volley.trace`",
        "Whether ranks note what they do when: `trace.json` beside the model, for ui.perfetto.dev.",
        |to, value| set(&mut to.trace, Some(boolean(value)?)),
    ),
    option(
        "resume",
        "true, false",
        "false",
        "Whether training goes on from the newest checkpoint that an unfinished run of the same \
         model left.",
        |to, value| set(&mut to.resume, boolean(value)?),
    ),
    option(
        "warm_start",
        "true, false, 'model', 'model@version'",
        "false",
        "Whose weights training starts from: with true, those of the model's own newest version. \
         The network's shape must be the same.",
        |to, value| match value {
            OptionValue::Bool(false) => set(&mut to.warm_start, None),
            OptionValue::Bool(true) => set(&mut to.warm_start, Some(WarmStart::SameModel)),
            _ => match value.text().map(str::parse) {
                Some(Ok(model)) => set(&mut to.warm_start, Some(model)),
                _ => Err(expected("true, false, 'model' or 'model@version'")),
            },
        },
    ),
    option(
        "shards",
        "whole number",
        "60, or more for a multiple of the ranks; where training resumes, its checkpoint's",
        "Virtual shards that rows are hashed into. They are dealt to the ranks so that each has about as many rows.",
        |to, value| set(&mut to.shards, Some(whole(value)?)),
    ),
    option(
        "shard_by",
        "['column', …]",
        "all columns",
        "Columns whose hash picks a row's shard. They are not features unless named so.",
        |to, value| set(&mut to.shard_by, columns(value)?),
    ),
    option(
        "device",
        "'auto', 'cpu', 'cuda', 'cuda:N'",
        "'auto'",
        "Where ranks compute: 'cuda' is one of the executor's GPUs that no other rank has, 'cuda:N' the one with that \
         ordinal, and 'auto' a GPU where one is free, else the CPU. Networks of few and narrow layers are faster with \
         'cpu'.",
        |to, value| match value.text().map(|text| text.to_lowercase().parse()) {
            Some(Ok(device)) => set(&mut to.device, device),
            _ => Err(expected("'auto', 'cpu', 'cuda' or 'cuda:N'")),
        },
    ),
    option(
        "device_share",
        "true, false",
        "false",
        "Whether ranks share GPUs with each other, and with the ranks of other trainings that share them.",
        |to, value| set(&mut to.device_share, boolean(value)?),
    ),
    option(
        "precision",
        "'f32', 'tf32', 'bf16'",
        "'tf32' on a GPU that has it, 'f32' on the CPU",
        "Precision of the factors in products of matrices. Weights, sums and the optimizer are always f32. A device computes \
         in this precision or in a finer one: the CPU always in f32.",
        |to, value| set(&mut to.precision, Some(choose(value, &Precision::ALL)?)),
    ),
    option(
        "threads",
        "whole number",
        "as many as the executor has slots",
        "The most threads that a rank computes with on the CPU, of those that its executor's slots are. What is trained \
         on the CPU does not depend on how many there are.",
        |to, value| set(&mut to.threads, NonZeroUsize::new(whole(value)?)),
    ),
    option(
        "seed",
        "whole number",
        "0",
        "Seeds initial weights, row order and dropout masks.",
        |to, value| match value.number() {
            Some(seed) => set(&mut to.seed, seed),
            None => Err(expected("a whole number from 0")),
        },
    ),
    option(
        "rendezvous_timeout",
        "'duration'",
        "'60s'",
        "How long ranks wait for each other to arrive.",
        |to, value| set(&mut to.rendezvous_timeout, duration(value)?),
    ),
    option(
        "collective_timeout",
        "'duration'",
        "'60s'",
        "How long one collective operation may wait for a peer.",
        |to, value| set(&mut to.collective_timeout, duration(value)?),
    ),
    option(
        "loading_timeout",
        "'duration'",
        "'1h'",
        "How long a rank that has streamed its shards waits for peers that still do.",
        |to, value| set(&mut to.loading_timeout, duration(value)?),
    ),
];
