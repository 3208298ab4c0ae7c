//! Random settings that change a query's execution but not its meaning.

use crate::dice::Dice;

/// Setting, as in `SET key = value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

/// Key for the number of partitions.
pub(crate) const PARTITIONS: &str = "datafusion.execution.target_partitions";
/// Key for the number of rows in a batch.
pub(crate) const BATCH: &str = "datafusion.execution.batch_size";

/// Switches that are on by default.
const ON: &[&str] = &[
    "datafusion.optimizer.prefer_hash_join",
    "datafusion.optimizer.repartition_joins",
    "datafusion.optimizer.repartition_aggregations",
    "datafusion.optimizer.repartition_windows",
    "datafusion.optimizer.repartition_sorts",
    "datafusion.optimizer.repartition_file_scans",
    "datafusion.optimizer.enable_round_robin_repartition",
    "datafusion.optimizer.enable_topk_aggregation",
    "datafusion.optimizer.enable_window_limits",
    "datafusion.optimizer.enable_distinct_aggregation_soft_limit",
    "datafusion.optimizer.enable_dynamic_filter_pushdown",
    "datafusion.optimizer.top_down_join_key_reordering",
    "datafusion.optimizer.join_reordering",
    "datafusion.optimizer.enable_sort_pushdown",
    "datafusion.execution.collect_statistics",
    "datafusion.execution.parquet.pruning",
    "datafusion.execution.parquet.schema_force_view_types",
    "datafusion.execution.coalesce_batches",
];

/// Switches that are off by default.
const OFF: &[&str] = &[
    "datafusion.optimizer.prefer_existing_sort",
    "datafusion.optimizer.prefer_existing_union",
    "datafusion.optimizer.filter_null_join_keys",
    "datafusion.execution.parquet.pushdown_filters",
    "datafusion.execution.parquet.reorder_filters",
    "datafusion.execution.split_file_groups_by_statistics",
    "datafusion.execution.keep_partition_by_columns",
    "datafusion.execution.enforce_batch_size_in_joins",
];

/// Thresholds, with values that small tables can reach.
const THRESHOLDS: &[(&str, &[&str])] = &[
    (
        "ballista.optimizer.broadcast_join_threshold_bytes",
        &["0", "0", "200", "2000"],
    ),
    ("volley.stage_bytes", &["1000"]),
    (
        "ballista.optimizer.broadcast_join_threshold_rows",
        &["0", "10"],
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        &["0", "500"],
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        &["0", "10"],
    ),
    (
        "datafusion.optimizer.repartition_file_min_size",
        &["1", "100"],
    ),
    (
        "datafusion.optimizer.default_filter_selectivity",
        &["1", "100"],
    ),
    (
        "datafusion.optimizer.subset_repartition_threshold",
        &["1", "2"],
    ),
    (
        "datafusion.optimizer.hash_join_inlist_pushdown_max_size",
        &["0"],
    ),
    (
        "datafusion.execution.skip_partial_aggregation_probe_rows_threshold",
        &["1", "20"],
    ),
    (
        "datafusion.execution.skip_partial_aggregation_probe_ratio_threshold",
        &["0.0", "0.1"],
    ),
    (
        "datafusion.execution.perfect_hash_join_small_build_threshold",
        &["0", "100000"],
    ),
    ("datafusion.execution.parquet.max_row_group_size", &["10"]),
    (
        "datafusion.execution.minimum_parallel_output_files",
        &["1", "2"],
    ),
];

impl Setting {
    pub(crate) fn of(key: &str, value: impl ToString) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_string(),
        }
    }

    /// Returns the statement that sets it.
    pub(crate) fn statement(&self) -> String {
        format!("SET {} = '{}'", self.key, self.value)
    }

    /// Returns whether DataFusion alone knows it.
    pub(crate) fn is_of_datafusion(&self) -> bool {
        self.key.starts_with("datafusion.")
    }
}

/// Draws some settings; most often at most the number of partitions.
pub(crate) fn draw(dice: &mut Dice) -> Vec<Setting> {
    let mut settings = Vec::new();
    if dice.chance(60) {
        settings.push(Setting::of(PARTITIONS, dice.pick(&[1, 2, 2, 3, 4, 6, 24])));
    }
    if dice.chance(25) {
        settings.push(Setting::of(BATCH, dice.pick(&[1, 2, 7, 64])));
    }
    if dice.chance(20) {
        settings.push(Setting::of(ON[0], false));
    }
    // By default, each task reads the sides of joins that are small tables.
    if dice.chance(50) {
        let (key, values) = THRESHOLDS[0];
        settings.push(Setting::of(key, dice.pick(values)));
    }
    if dice.chance(30) {
        settings.push(Setting::of("volley.stage_bytes", 0));
    }
    // By default, small tables are processed by one task. With few bytes, small partitions share tasks.
    if dice.chance(80) {
        let bytes = dice.pick(&[0, 0, 0, 3000]);
        settings.push(Setting::of("volley.single_task_bytes", bytes));
    }
    while dice.chance(30) {
        let setting = match dice.below(3) {
            0 => Setting::of(dice.pick(ON), false),
            1 => Setting::of(dice.pick(OFF), true),
            _ => {
                let (key, values) = dice.pick(THRESHOLDS);
                Setting::of(key, dice.pick(values))
            }
        };
        if settings.iter().all(|set: &Setting| set.key != setting.key) {
            settings.push(setting);
        }
    }
    settings
}

/// Returns settings under which DataFusion alone reads structs as a whole, and ignores statistics.
pub(crate) fn without_statistics() -> impl Iterator<Item = Setting> {
    let keys = [
        "datafusion.optimizer.enable_dynamic_filter_pushdown",
        "datafusion.optimizer.enable_leaf_expression_pushdown",
        "datafusion.execution.collect_statistics",
        "datafusion.execution.parquet.pruning",
        "datafusion.execution.parquet.enable_page_index",
    ];
    keys.into_iter().map(|key| Setting::of(key, false))
}

/// Returns settings under which sorts spill early.
pub(crate) fn of_little_memory() -> Vec<Setting> {
    vec![
        Setting::of(
            "datafusion.execution.sort_spill_reservation_bytes",
            16 << 10,
        ),
        Setting::of(
            "datafusion.execution.sort_in_place_threshold_bytes",
            1 << 10,
        ),
    ]
}
