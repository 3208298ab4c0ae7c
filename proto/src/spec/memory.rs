//! A rank's greatest memory, from what is known before rows are read. It is computed, not measured.
//!
//! ```text
//!  load      shards that stream at once, until they are in their files
//!  settle    the rank's rows, with 64-bit numbers, and the shards that its threads settle
//!  train     the rank's rows ─ weights, gradient, optimizer, best weights ─ a step ─ a checkpoint's copy
//! ```
//!
//! It is the greatest of the three. On a GPU's host, buffers of rows come on top. Rows that do not fit are in files: then a
//! rank needs memory for some shards at a time, and none for rows as such. Ranks and their executors are placed by it, so
//! it leaves out what is unknown: embeddings of values that have not been counted yet, dictionaries, and checkpoints that
//! wait for a slow store. The executor's own memory comes on top. Only executors know the size of [custom](Layer::Custom)
//! layers.

use super::{
    BatchSize, DeviceKind, EnsembleSize, FREQUENCIES, Feature, FeatureKind, Keep, Layer, Linear,
    NumericEmbedding, PERIODIC_WIDTH, PIECEWISE_BINS, PIECEWISE_WIDTH, Rule, TrainSpec,
    VocabularyRule,
};

/// Bytes of a weight, a gradient, a code or a scaled number.
const NUMBER: u64 = 4;
/// Bytes of the hash of a row's content.
const KEY: u64 = 8;
/// Bytes of a row's place in the order of an epoch.
const PLACE: u64 = 4;
/// Most rows that a step may have where the number of rows will decide.
const STEP_ROWS: u64 = 256;
/// Peak memory of settling a shard, in multiples of its encoded size: its columns, the order of its rows, and the
/// sorted columns.
pub const SETTLING: u64 = 3;
/// The same of a shard whose rows are to stay in memory: its sorted columns, the order of its rows, and codes.
const SETTLING_IN_MEMORY: u64 = 2;
/// Maximum number of shards that stream at once; each is one connection to the executor that holds its rows.
pub const STREAMS: usize = 16;
/// Shards that stream before the size of one is known.
pub const FIRST_STREAMS: usize = 4;
/// Memory of a shard that streams, in halves of its encoded size: its columns grow.
const STREAMING_HALVES: u64 = 3;
/// Maximum number of rows whose gradient is computed at once.
pub const PIECE: usize = 1 << 16;
/// Maximum bytes of each of two buffers through which rows are copied to a GPU that does not hold them; a larger step's
/// rows take more.
pub const WINDOW: usize = 32 << 20;

/// A rank's greatest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankMemory {
    /// Bytes for all trainable parameters that members share.
    shared: u64,
    /// Memory of each member of an ensemble.
    member: Footprint,
    members: EnsembleSize,
    /// Numbers for each parameter while it trains, which `shared` and `member` count.
    kept: u64,
    /// Numbers for each parameter that a checkpoint copies.
    copied: u64,
    /// Bytes of a row of its shards.
    row: u64,
    /// Additional bytes of a row until its numbers are scaled.
    unscaled: u64,
    /// Additional bytes of a row while it is trained on.
    place: u64,
    /// Number of threads that settle shards.
    threads: u64,
    /// Number of shards of all rows.
    shards: u64,
    step: StepRows,
    /// Number of parts that a step's rows are computed in.
    parts: u64,
    /// A GPU computes.
    on_gpu: bool,
}

/// Memory of a network, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Footprint {
    /// Bytes for all trainable parameters.
    parameters: u64,
    /// Bytes for a row of a step: each layer's output and its gradient.
    activations: u64,
}

/// Rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepRows {
    OfAll(u64),
    OfRank(u64),
    /// All rows of the rank.
    Whole,
}

impl RankMemory {
    /// Returns the memory of rows of `row` bytes each, without a network; they are never in files.
    pub fn of_rows_only(row: u64) -> Self {
        Self {
            shared: 0,
            member: Footprint::default(),
            members: EnsembleSize::ONE,
            kept: 1,
            copied: 0,
            row,
            unscaled: 0,
            place: 0,
            threads: 1,
            shards: 0,
            step: StepRows::Whole,
            parts: 1,
            on_gpu: false,
        }
    }

    /// Returns the memory of a rank with so many threads.
    pub fn with_threads(self, threads: usize) -> Self {
        Self {
            threads: threads.max(1) as u64,
            ..self
        }
    }

    /// Returns the least bytes of one of `ranks` ranks with its share of `rows` rows, in memory or in files, whichever
    /// takes less; if their number is unknown, without the memory that depends on rows.
    pub fn of_rank(&self, rows: Option<u64>, ranks: u64) -> u64 {
        let Some(rows) = rows else {
            return self.with_checkpoint(self.network(None).parameters);
        };
        let in_memory = self.in_memory(rows, ranks);
        let in_files = self.in_files(rows, ranks);
        in_files.map_or(in_memory, |in_files| in_files.min(in_memory))
    }

    /// Returns the bytes of one of `ranks` ranks, with its share of `rows` rows in memory.
    pub fn in_memory(&self, rows: u64, ranks: u64) -> u64 {
        let own = rows.div_ceil(ranks.max(1));
        let unscaled = own.saturating_mul(self.row.saturating_add(self.unscaled));
        let at_once = self.threads.min(self.shards_of(ranks));
        let settling = self.shard(rows).saturating_mul(SETTLING_IN_MEMORY);
        let settling = unscaled.saturating_add(settling.saturating_mul(at_once));
        let scaled = own.saturating_mul(self.row.saturating_add(self.place));
        let training = self.without_rows(Some(own), ranks).saturating_add(scaled);
        let loading = self.loading(rows, ranks, STREAMS);
        loading.max(settling).max(training)
    }

    /// Returns the least bytes of one of `ranks` ranks, with its share of `rows` rows in files; `None` if steps take all
    /// rows. Rows in memory take what is offered beyond it.
    pub fn in_files(&self, rows: u64, ranks: u64) -> Option<u64> {
        if self.step == StepRows::Whole {
            return None;
        }
        let network = self.without_rows(Some(rows.div_ceil(ranks.max(1))), ranks);
        let settling = self.shard(rows).saturating_mul(SETTLING);
        let loading = self.loading(rows, ranks, FIRST_STREAMS);
        Some(network.max(settling).max(loading))
    }

    /// Returns the bytes of an encoded shard of all `rows` rows.
    fn shard(&self, rows: u64) -> u64 {
        let shard = rows.checked_div(self.shards).unwrap_or(0);
        shard.saturating_mul(self.row.saturating_add(self.unscaled))
    }

    /// Returns the number of shards of one of `ranks` ranks.
    fn shards_of(&self, ranks: u64) -> u64 {
        self.shards.div_ceil(ranks.max(1))
    }

    /// Returns the bytes of shards that stream, `streams` of them at most.
    fn loading(&self, rows: u64, ranks: u64, streams: usize) -> u64 {
        let streams = (streams as u64).min(self.shards_of(ranks));
        self.shard(rows).saturating_mul(streams * STREAMING_HALVES) / 2
    }

    /// Adds a checkpoint's copies to the bytes of all parameters' numbers.
    fn with_checkpoint(&self, parameters: u64) -> u64 {
        let copied = (parameters / self.kept.max(1)).saturating_mul(self.copied);
        parameters.saturating_add(copied)
    }

    /// Returns the bytes of one of `ranks` ranks that has `own` rows, without these rows.
    pub fn without_rows(&self, own: Option<u64>, ranks: u64) -> u64 {
        let step = match self.step {
            StepRows::OfAll(rows) => rows.div_ceil(ranks.max(1)),
            StepRows::OfRank(rows) => rows,
            StepRows::Whole => own.unwrap_or(0),
        };
        let step = own.map_or(step, |own| step.min(own));
        let buffers = self.buffers(step, own);
        let step = step.div_ceil(self.parts).min(PIECE as u64);
        let all = own.map(|own| own.saturating_mul(ranks.max(1)));
        let network = self.network(all);
        let step = step.saturating_mul(network.activations);
        let computed = self.with_checkpoint(network.parameters);
        let computed = computed.saturating_add(step);
        computed.saturating_add(buffers)
    }

    /// Returns the bytes of the buffers through which rows are copied to a GPU, with `step` rows of a step.
    fn buffers(&self, step: u64, own: Option<u64>) -> u64 {
        if !self.on_gpu || self.step == StepRows::Whole {
            return 0;
        }
        let each = step.saturating_mul(self.row).max(WINDOW as u64);
        let both = each.saturating_mul(2);
        own.map_or(both, |own| both.min(own.saturating_mul(self.row)))
    }

    /// Returns the memory of the whole network for `rows` rows; an unknown number counts as many.
    fn network(&self, rows: Option<u64>) -> Footprint {
        let members = self.members.of(rows.unwrap_or(u64::MAX)) as u64;
        let parameters = self.member.parameters.saturating_mul(members);
        Footprint {
            parameters: self.shared.saturating_add(parameters),
            activations: self.member.activations.saturating_mul(members),
        }
    }

    /// Returns the bytes of a trainable parameter, a checkpoint's copy included.
    pub fn of_parameter(&self) -> u64 {
        NUMBER * (self.kept + self.copied)
    }

    /// Returns the bytes of an encoded row.
    pub fn of_row(&self) -> u64 {
        self.row
    }
}

impl TrainSpec {
    /// Returns a rank's memory; `None` with a custom layer.
    pub fn rank_memory(&self) -> Option<RankMemory> {
        let best = u64::from(self.keep == Keep::Best);
        // Weights and their gradient.
        let kept = 2 + best + self.optimizer.kept_numbers() as u64;
        let entered = self.entered();
        let widths = Layer::activations(&self.network.layers, to_usize(entered))? as u64;
        let solved = matches!(self.optimizer.rule, Rule::Lbfgs { .. });
        let step = match self.batch_size {
            _ if solved => StepRows::Whole,
            None => StepRows::OfAll(STEP_ROWS),
            Some(BatchSize::Global { global }) => StepRows::OfAll(global as u64),
            Some(BatchSize::OfRank(rows)) => {
                StepRows::OfRank((rows as u64).saturating_mul(self.accumulate as u64))
            }
        };
        let numbers = self.count(FeatureKind::Continuous) + self.label.columns.len() as u64;
        let columns = self.features.len() + self.label.columns.len();
        let columns = columns + usize::from(self.sample_weight.is_some());
        let [shared, member] = self.hashed_parameters();
        let shared = self.shared_parameters().saturating_add(shared);
        let member = self.member_parameters()?.saturating_add(member);
        Some(RankMemory {
            shared: shared.saturating_mul(kept * NUMBER),
            member: Footprint {
                parameters: member.saturating_mul(kept * NUMBER),
                activations: (2 * NUMBER).saturating_mul(widths.saturating_add(entered)),
            },
            members: self.network.ensemble_size,
            kept,
            // All but the gradient.
            copied: kept - 1,
            row: NUMBER * columns as u64 + KEY,
            unscaled: NUMBER * numbers,
            place: PLACE,
            threads: self.threads.map_or(1, |threads| threads.get() as u64),
            shards: self.shards as u64,
            step,
            parts: (self.accumulate as u64).max(1),
            on_gpu: self.device.kind() == Some(DeviceKind::Cuda),
        })
    }

    /// Returns the numbers that a row takes in a step, of all members' layers and of what enters them; `None` with a
    /// custom layer.
    pub(super) fn row_outputs(&self, rows: u64) -> Option<u64> {
        let entered = self.entered();
        let widths = Layer::activations(&self.network.layers, to_usize(entered))? as u64;
        let members = self.network.members(rows) as u64;
        Some(widths.saturating_add(entered).saturating_mul(members))
    }

    /// Returns the number of trainable parameters for `rows` rows, without those of categorical features' values; an
    /// unknown number counts as many. `None` with a custom layer.
    pub fn parameters(&self, rows: Option<u64>) -> Option<u64> {
        let members = self.network.members(rows.unwrap_or(u64::MAX)) as u64;
        let of_members = self.member_parameters()?.saturating_mul(members);
        Some(self.shared_parameters().saturating_add(of_members))
    }

    /// Returns a member's trainable parameters, without those of categorical features' values; `None` with a custom
    /// layer.
    fn member_parameters(&self) -> Option<u64> {
        let network = &self.network;
        if !network.is_deep() {
            return Some(0);
        }
        let continuous = self.count(FeatureKind::Continuous);
        let norm = if network.batch_norm {
            2 * continuous
        } else {
            0
        };
        let embeddings = match network.numeric_embedding {
            NumericEmbedding::None => 0,
            NumericEmbedding::Periodic => {
                let (waves, width) = (FREQUENCIES as u64, PERIODIC_WIDTH as u64 - 1);
                continuous * (2 * waves + waves * width + width)
            }
            // With the maximum number of bins.
            NumericEmbedding::PiecewiseLinear => {
                continuous * (2 + PIECEWISE_BINS as u64) * PIECEWISE_WIDTH as u64
            }
        };
        let (dense, last) = Layer::size(&network.layers, to_usize(self.entered()))?;
        let last = (self.outputs() as u64).saturating_mul((last as u64).saturating_add(1));
        let parts = [norm, embeddings, dense as u64, last];
        Some(parts.into_iter().fold(0, u64::saturating_add))
    }

    /// Returns the trainable parameters beside the layers, without those of categorical features' values.
    fn shared_parameters(&self) -> u64 {
        let (continuous, outputs) = (self.count(FeatureKind::Continuous), self.outputs() as u64);
        let linear = match self.network.linear {
            Linear::Alone => continuous + 1,
            Linear::Beside => continuous,
            Linear::None => 0,
        };
        let factors = continuous.saturating_mul(self.network.factors as u64);
        outputs.saturating_mul(linear.saturating_add(factors))
    }

    /// Returns the trainable parameters of hash buckets, those beside the layers and those of a member; 0 for values
    /// that are not hashed, as they have not been counted.
    fn hashed_parameters(&self) -> [u64; 2] {
        let VocabularyRule::Buckets(buckets) = self.vocabulary else {
            return [0; 2];
        };
        let network = &self.network;
        let beside = u64::from(network.linear != Linear::None) + network.factors as u64;
        let beside = beside.saturating_mul(self.outputs() as u64);
        let features = self.features.iter();
        let hashed = features.filter(|feature| feature.kind == FeatureKind::Categorical);
        let of_bucket = hashed.fold([0_u64; 2], |[shared, member], feature| {
            let width = match network.is_deep() {
                true => network.embedding_dim.of(&feature.column, buckets) as u64,
                false => 0,
            };
            [shared.saturating_add(beside), member.saturating_add(width)]
        });
        // One more code is for unseen values.
        of_bucket.map(|of| of.saturating_mul((buckets as u64).saturating_add(1)))
    }

    /// Returns the numbers of a row that enter the layers; an embedding whose width follows from its values counts 1.
    fn entered(&self) -> u64 {
        let continuous = self.count(FeatureKind::Continuous);
        let width = match self.network.numeric_embedding {
            NumericEmbedding::None => 1,
            NumericEmbedding::Periodic => PERIODIC_WIDTH,
            NumericEmbedding::PiecewiseLinear => PIECEWISE_WIDTH,
        };
        let numbers = continuous.saturating_mul(width as u64);
        let embedded = self.embedded_widths().into_iter();
        embedded.fold(numbers, u64::saturating_add)
    }

    /// Returns the width of each categorical feature's embedding, or its lower bound if that is unknown; none without
    /// layers.
    pub fn embedded_widths(&self) -> Vec<u64> {
        let features = self.features.iter();
        let embedded = features.filter(|feature| feature.kind == FeatureKind::Categorical);
        let width = |feature: &Feature| self.network.embedding_dim.of(&feature.column, 1) as u64;
        match self.network.is_deep() {
            true => embedded.map(width).collect(),
            false => vec![],
        }
    }

    /// Counts the features of a kind.
    pub fn count(&self, kind: FeatureKind) -> u64 {
        let features = self.features.iter();
        features.filter(|feature| feature.kind == kind).count() as u64
    }
}

fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adam(parameters: u64) -> RankMemory {
        RankMemory {
            shared: 0,
            member: Footprint {
                parameters: parameters * 5 * NUMBER,
                activations: 100,
            },
            members: EnsembleSize::ONE,
            kept: 5,
            copied: 0,
            row: 20,
            unscaled: 0,
            place: 0,
            threads: 1,
            shards: 0,
            step: StepRows::OfAll(60),
            parts: 1,
            on_gpu: false,
        }
    }

    #[test]
    fn fewer_ranks_have_more_rows_each() {
        let memory = adam(1000);
        assert_eq!(memory.of_rank(None, 2), 20_000);
        assert_eq!(memory.without_rows(None, 2), 20_000 + 30 * 100);
        assert_eq!(memory.in_memory(20, 2), 20_000 + 10 * 120, "a small step");
        assert_eq!(memory.in_memory(1000, 2), 20_000 + 30 * 100 + 500 * 20);
        assert_eq!(memory.in_memory(1000, 1), 20_000 + 60 * 100 + 1000 * 20);
        let parts = RankMemory { parts: 3, ..memory };
        assert_eq!(parts.without_rows(None, 2), 20_000 + 10 * 100);
    }

    #[test]
    fn numbers_take_twice_as_much_before_they_are_scaled() {
        let memory = RankMemory {
            unscaled: 12,
            ..adam(1000)
        };
        let training = |rows: u64| 20_000 + 60 * 100 + rows * 20;
        assert_eq!(memory.in_memory(1000, 1), training(1000));
        // There is no network yet.
        assert_eq!(memory.in_memory(10_000, 1), 10_000 * 32);
        assert_eq!(memory.of_row(), 20);
    }

    #[test]
    fn rows_that_do_not_fit_are_in_files() {
        let memory = RankMemory {
            shards: 100,
            unscaled: 10,
            ..adam(1000)
        };
        let network = 20_000 + 60 * 100;
        assert_eq!(memory.in_memory(100, 1), network + 100 * 20);
        let shard = 10_000 * 30;
        assert_eq!(memory.in_memory(1_000_000, 1), 102 * shard);
        assert_eq!(memory.of_rank(Some(100), 1), network);
        // One shard after the other, once four have streamed.
        assert_eq!(memory.of_rank(Some(1_000_000), 1), 6 * shard);
        assert_eq!(memory.of_rank(Some(1_000_000), 100), 3 * shard);
        let solved = RankMemory {
            step: StepRows::Whole,
            ..memory
        };
        assert!(solved.of_rank(Some(1_000_000), 1) > 1_000_000 * 30);
    }

    #[test]
    fn shards_are_loaded_and_settled_several_at_a_time() {
        let memory = RankMemory {
            shards: 16,
            unscaled: 10,
            place: 4,
            ..adam(1000)
        };
        let (rows, shard) = (16_000_000, 30_000_000);
        // All stream at once, and columns that grow take half as much again.
        assert_eq!(memory.in_memory(rows, 1), 24 * shard);
        let many = RankMemory {
            shards: 64,
            ..memory
        };
        let of_threads = |threads| many.with_threads(threads).in_memory(4 * rows, 1);
        assert_eq!(of_threads(1), 66 * shard);
        assert_eq!(of_threads(4), 72 * shard);
        assert_eq!(of_threads(1000), 3 * 64 * shard, "a thread for each shard");
        let without_numbers = RankMemory {
            unscaled: 0,
            ..many
        };
        let training = 20_000 + 60 * 100 + 64_000_000 * 24;
        assert_eq!(without_numbers.in_memory(4 * rows, 1), training);
    }

    #[test]
    fn a_checkpoint_is_a_copy() {
        let memory = RankMemory {
            copied: 4,
            ..adam(1000)
        };
        assert_eq!(memory.of_rank(None, 2), 20_000 + 16_000);
        let step = 60 * 100;
        assert_eq!(memory.without_rows(None, 1), 20_000 + 16_000 + step);
        assert_eq!(memory.of_parameter(), 9 * NUMBER);
    }

    #[test]
    fn each_member_is_a_network_of_its_own() {
        let memory = RankMemory {
            shared: 500,
            members: EnsembleSize::Of(3),
            ..adam(1000)
        };
        assert_eq!(memory.of_rank(None, 2), 500 + 60_000);
        assert_eq!(memory.without_rows(None, 1), 500 + 60_000 + 60 * 300);
        let small = RankMemory {
            members: EnsembleSize::Auto,
            ..memory
        };
        let rows = EnsembleSize::SMALL / 2;
        assert_eq!(small.of_rank(None, 2), 500 + 20_000, "of unknown size");
        assert_eq!(
            small.without_rows(Some(rows), 2),
            500 + 8 * 20_000 + 30 * 800
        );
        assert_eq!(
            small.without_rows(Some(rows + 1), 2),
            500 + 20_000 + 30 * 100
        );
    }

    #[test]
    fn what_is_solved_computes_its_rows_piece_by_piece() {
        let solved = RankMemory {
            step: StepRows::Whole,
            ..adam(1000)
        };
        assert_eq!(solved.of_rank(Some(100), 2), 20_000 + 50 * 120);
        let many = solved.of_rank(Some(1 << 20), 1);
        assert_eq!(many, 20_000 + PIECE as u64 * 100 + (20 << 20));
    }

    #[test]
    fn rows_on_their_way_to_a_gpu_are_in_two_buffers() {
        let memory = RankMemory {
            on_gpu: true,
            ..adam(1000)
        };
        let network = 20_000 + 60 * 100;
        let both = 2 * WINDOW as u64;
        assert_eq!(memory.without_rows(None, 1), network + both);
        assert_eq!(memory.in_files(100, 1), Some(network + 100 * 20));
        assert_eq!(memory.in_files(1 << 30, 1), Some(network + both));
        let large = RankMemory {
            step: StepRows::OfRank(WINDOW as u64),
            ..memory
        };
        let piece = 20_000 + PIECE as u64 * 100;
        assert_eq!(large.without_rows(None, 1), piece + 20 * both);
        let solved = RankMemory {
            step: StepRows::Whole,
            ..memory
        };
        assert_eq!(solved.without_rows(Some(60), 1), network);
    }

    #[test]
    fn what_is_beyond_all_numbers_is_a_large_one() {
        let layers = Layer::stack(
            &[usize::MAX, usize::MAX],
            super::super::Activation::Relu,
            &[],
        );
        assert_eq!(Layer::size(&layers, 10), Some((usize::MAX, usize::MAX)));
        assert_eq!(Layer::activations(&layers, 10), Some(usize::MAX));
        let huge = RankMemory {
            shared: u64::MAX,
            ..adam(1)
        };
        assert_eq!(huge.of_rank(Some(u64::MAX), 1), u64::MAX);
    }
}
