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
        "Number of executors that train: exactly this many, or all that are present when training starts.",
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
        "Minimum number of ranks with which training continues when executors are lost.",
        |to, value| set(&mut to.min_ranks, whole(value)?),
    ),
    option(
        "max_ranks",
        "whole number",
        "ranks, or no limit with 'all'",
        "Maximum number of ranks with which training begins, and to which it grows when executors join.",
        |to, value| set(&mut to.max_ranks, Some(whole(value)?)),
    ),
    option(
        "regroup_timeout",
        "'duration'",
        "'30s'",
        "Maximum time to wait for a replacement for a lost rank before training continues with fewer ranks.",
        |to, value| set(&mut to.regroup_timeout, duration(value)?),
    ),
    option(
        "on_too_few_ranks",
        "'wait', 'fail'",
        "'fail'",
        "Action when fewer than min_ranks are left: wait until enough executors have joined, or fail once \
         regroup_timeout has passed.",
        |to, value| {
            let choices = [("wait", TooFew::Wait), ("fail", TooFew::Fail)];
            set(&mut to.too_few, choose(value, &choices)?)
        },
    ),
    option(
        "checkpoint_every",
        "whole number",
        "(none)",
        "Steps between checkpoints, in addition to the checkpoint after every epoch.",
        |to, value| match value.number() {
            Some(steps) if steps > 0 => set(&mut to.checkpoint_every, Some(steps)),
            _ => Err(expected("a whole number of steps, from 1")),
        },
    ),
    option(
        "trace",
        "true, false",
        "`volley.trace`",
        "Records what each rank does and when, in `trace.json` beside the model, for ui.perfetto.dev.",
        |to, value| set(&mut to.trace, Some(boolean(value)?)),
    ),
    option(
        "resume",
        "true, false",
        "false",
        "Continues from the newest checkpoint that an unfinished run of the same model left.",
        |to, value| set(&mut to.resume, boolean(value)?),
    ),
    option(
        "warm_start",
        "true, false, 'model', 'model@version'",
        "false",
        "Model whose weights training starts from; true means the newest version of the model itself. The network's \
         shape must be the same.",
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
        "60, or more for a multiple of the ranks; the checkpoint's when training resumes",
        "Number of virtual shards into which rows are hashed. They are dealt to the ranks so that each has about the \
         same number of rows.",
        |to, value| set(&mut to.shards, Some(whole(value)?)),
    ),
    option(
        "shard_by",
        "['column', …]",
        "all columns",
        "Columns whose hash determines a row's shard. They are not features unless named as such.",
        |to, value| set(&mut to.shard_by, columns(value)?),
    ),
    option(
        "device",
        "'auto', 'cpu', 'cuda', 'cuda:N'",
        "'auto'",
        "Device on which ranks compute: 'cuda' is one of the executor's GPUs that no other rank has, 'cuda:N' the one \
         with that ordinal, and 'auto' a GPU if one is free, otherwise the CPU. Networks of few and narrow layers are \
         faster with 'cpu'.",
        |to, value| match value.text().map(|text| text.to_lowercase().parse()) {
            Some(Ok(device)) => set(&mut to.device, device),
            _ => Err(expected("'auto', 'cpu', 'cuda' or 'cuda:N'")),
        },
    ),
    option(
        "device_share",
        "true, false",
        "false",
        "Lets ranks share GPUs with each other, and with the ranks of other trainings that share them.",
        |to, value| set(&mut to.device_share, boolean(value)?),
    ),
    option(
        "precision",
        "'f32', 'tf32', 'bf16'",
        "'tf32' on a GPU that has it, 'f32' on the CPU",
        "Precision of the factors in matrix products. Weights, sums and the optimizer are always f32. A device \
         computes in this precision or a finer one: the CPU always in f32.",
        |to, value| set(&mut to.precision, Some(choose(value, &Precision::ALL)?)),
    ),
    option(
        "threads",
        "whole number",
        "as many as the executor has slots",
        "Maximum number of threads that a rank computes with on the CPU, out of its executor's slots. What is trained \
         on the CPU does not depend on it.",
        |to, value| set(&mut to.threads, NonZeroUsize::new(whole(value)?)),
    ),
    option(
        "seed",
        "whole number",
        "0",
        "Seed of the initial weights, the row order and the dropout masks.",
        |to, value| match value.number() {
            Some(seed) => set(&mut to.seed, seed),
            None => Err(expected("a whole number from 0")),
        },
    ),
    option(
        "rendezvous_timeout",
        "'duration'",
        "'60s'",
        "Maximum time that ranks wait for each other to arrive.",
        |to, value| set(&mut to.rendezvous_timeout, duration(value)?),
    ),
    option(
        "collective_timeout",
        "'duration'",
        "'60s'",
        "Maximum time that one collective operation waits for a peer.",
        |to, value| set(&mut to.collective_timeout, duration(value)?),
    ),
    option(
        "loading_timeout",
        "'duration'",
        "'1h'",
        "Maximum time that a rank that has streamed its shards waits for peers that are still streaming theirs.",
        |to, value| set(&mut to.loading_timeout, duration(value)?),
    ),
];
