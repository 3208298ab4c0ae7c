//! Options of the ranks and devices that training runs on, and of its start.

use std::num::NonZeroUsize;
use std::time::Duration;

use volley_proto::spec::{Device, Precision, Ranks, TooFew};

use super::Estimator;
use crate::WarmStart;

impl Estimator {
    /// Sets the number of ranks, one an executor. Default: [`Ranks::All`], every executor there is when training
    /// starts.
    pub fn ranks(mut self, ranks: Ranks) -> Self {
        self.options.ranks = ranks;
        self
    }

    /// Sets the minimum number of ranks when executors are lost, from 1 to the number of ranks. Default: 1.
    pub fn min_ranks(mut self, ranks: usize) -> Self {
        self.options.min_ranks = ranks;
        self
    }

    /// Sets the maximum number of ranks, at the start and when executors join; at least `min_ranks` and an exact number
    /// of ranks. Default: that exact number, or no limit.
    pub fn max_ranks(mut self, ranks: usize) -> Self {
        self.options.max_ranks = Some(ranks);
        self
    }

    /// Sets the timeout of the wait for a replacement of a lost rank; after it, training goes on with fewer ranks.
    /// Default: 30 s.
    pub fn regroup_timeout(mut self, timeout: Duration) -> Self {
        self.options.regroup_timeout = timeout;
        self
    }

    /// Sets the policy when fewer executors are left than `min_ranks`. Default: [`TooFew::Fail`], once the regroup
    /// timeout has passed.
    pub fn on_too_few_ranks(mut self, then: TooFew) -> Self {
        self.options.too_few = then;
        self
    }

    /// Sets the steps between checkpoints, from 1, besides the checkpoint after every epoch. Default: none.
    pub fn checkpoint_every(mut self, steps: u64) -> Self {
        self.options.checkpoint_every = Some(steps);
        self
    }

    /// Records each rank's timeline in a file beside the model, for <https://ui.perfetto.dev>. Default: the setting
    /// `volley.trace`.
    pub fn trace(mut self) -> Self {
        self.options.trace = Some(true);
        self
    }

    /// Resumes from the newest checkpoint of an unfinished run of the same model. Default: starts anew. Not together
    /// with `warm_start`.
    pub fn resume(mut self) -> Self {
        self.options.resume = true;
        self
    }

    /// Starts from the weights of a published version, whose network must have the same shape. Default: fresh weights.
    pub fn warm_start(mut self, from: WarmStart) -> Self {
        self.options.warm_start = Some(from);
        self
    }

    /// Begins the first epoch as rows arrive, with the values, classes and scaling of the model of `warm_start`. Default:
    /// once all rows are there.
    pub fn begin_early(mut self) -> Self {
        self.options.begin_early = true;
        self
    }

    /// Sets the number of virtual shards that rows are hashed into, at least the number of ranks. Default: 60, or more
    /// for a multiple of the ranks; a checkpoint's when training resumes.
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = Some(shards);
        self
    }

    /// Sets the columns whose hash assigns rows to shards. They are no features unless named. Default: all columns.
    pub fn shard_by<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.shard_by = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the device of the ranks. Default: [`Device::Auto`], a GPU where one is free, else the CPU.
    pub fn device(mut self, device: Device) -> Self {
        self.options.device = device;
        self
    }

    /// Lets ranks share GPUs with each other, and with ranks of other training runs that share them. Default: a GPU has
    /// one rank.
    pub fn device_share(mut self) -> Self {
        self.options.device_share = true;
        self
    }

    /// Sets the least precision of the factors of matrix products; weights and sums are always `f32`. Default: TF32 on
    /// a GPU that has it, else `f32`, which a CPU always computes in.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.precision = Some(precision);
        self
    }

    /// Sets the maximum number of CPU threads of a rank. Default: the number of its executor's slots. The result does
    /// not depend on it.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Sets the timeout of the rendezvous of all ranks. Default: 60 s.
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.options.rendezvous_timeout = timeout;
        self
    }

    /// Sets the timeout of one collective operation. Default: 60 s.
    pub fn collective_timeout(mut self, timeout: Duration) -> Self {
        self.options.collective_timeout = timeout;
        self
    }

    /// Sets the timeout of the wait of a rank that has loaded its shards for peers that still load. Default: 1 h.
    pub fn loading_timeout(mut self, timeout: Duration) -> Self {
        self.options.loading_timeout = timeout;
        self
    }
}
