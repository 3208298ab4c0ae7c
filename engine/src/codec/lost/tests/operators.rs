//! Tests that all operators and their fields are known, and that the fields arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;

use super::super::verify::{unchecked, verify};
use super::scans;
use super::*;
use crate::PredictExec;
use volley_proto::ModelRef;
use volley_proto::store::PredictedColumns;

/// Fields of an operator, as it shows them.
struct Fields {
    name: &'static str,
    /// Fields that arrive unchanged.
    carried: &'static [&'static str],
    /// Fields that are created where the operator runs, or compared otherwise: inputs as operators, every option of
    /// scans.
    made: &'static [&'static str],
}

const FIELDS: &[Fields] = &[
    Fields {
        name: "AggregateExec",
        carried: &[
            "mode",
            "group_by",
            "aggr_expr",
            "filter_expr",
            "limit_options",
            "input_schema",
            "schema",
        ],
        made: &[
            "input",
            "metrics",
            "required_input_ordering",
            "input_order_mode",
            "cache",
            "dynamic_filter",
        ],
    },
    Fields {
        name: "BoundedWindowAggExec",
        carried: &[
            "window_expr",
            "schema",
            "input_order_mode",
            "ordered_partition_by_indices",
        ],
        // Without keys, `can_repartition` means nothing.
        made: &[
            "input",
            "metrics",
            "cache",
            "state_observer",
            "can_repartition",
        ],
    },
    Fields {
        name: "CoalescePartitionsExec",
        carried: &["fetch"],
        made: &["input", "metrics", "cache"],
    },
    Fields {
        name: "CrossJoinExec",
        carried: &["schema"],
        made: &["left", "right", "left_fut", "metrics", "cache"],
    },
    Fields {
        name: "DataSourceExec",
        carried: &[],
        made: &["data_source", "cache", "execution_state"],
    },
    Fields {
        name: "EmptyExec",
        carried: &["schema", "partitions"],
        made: &["cache"],
    },
    Fields {
        name: "FilterExec",
        carried: &[
            "predicate",
            "default_selectivity",
            "projection",
            "batch_size",
            "fetch",
        ],
        made: &["input", "metrics", "cache"],
    },
    Fields {
        name: "GlobalLimitExec",
        carried: &["skip", "fetch"],
        // No operator uses the ordering in a plan that is sent: requirements are enforced before.
        made: &["input", "metrics", "required_ordering", "cache"],
    },
    Fields {
        name: "LocalLimitExec",
        carried: &["fetch"],
        made: &["input", "metrics", "required_ordering", "cache"],
    },
    Fields {
        name: "HashJoinExec",
        carried: &[
            "on",
            "filter",
            "join_type",
            "join_schema",
            "mode",
            "projection",
            "column_indices",
            "null_equality",
        ],
        made: &[
            "left",
            "right",
            "left_fut",
            "random_state",
            "metrics",
            "cache",
        ],
    },
    Fields {
        name: "InterleaveExec",
        carried: &[],
        made: &["inputs", "metrics", "cache"],
    },
    Fields {
        name: "NestedLoopJoinExec",
        carried: &[
            "filter",
            "join_type",
            "join_schema",
            "column_indices",
            "projection",
        ],
        made: &[
            "left",
            "right",
            "build_side_data",
            "left_spill_data",
            "metrics",
            "cache",
        ],
    },
    Fields {
        name: "PlaceholderRowExec",
        carried: &["schema", "partitions"],
        made: &["cache"],
    },
    Fields {
        name: "ProjectionExec",
        carried: &["projector", "overrides_metadata"],
        made: &["input", "metrics", "cache"],
    },
    Fields {
        name: "RepartitionExec",
        carried: &["preserve_order"],
        made: &["input", "state", "metrics", "cache"],
    },
    Fields {
        name: "SortExec",
        carried: &["expr", "fetch", "preserve_partitioning"],
        made: &[
            "input",
            "metrics_set",
            "common_sort_prefix",
            "cache",
            "filter",
        ],
    },
    Fields {
        name: "SortMergeJoinExec",
        carried: &[
            "on",
            "filter",
            "join_type",
            "schema",
            "left_sort_exprs",
            "right_sort_exprs",
            "sort_options",
            "null_equality",
        ],
        made: &["left", "right", "metrics", "cache"],
    },
    Fields {
        name: "SortPreservingMergeExec",
        carried: &["expr", "fetch", "enable_round_robin_repartition"],
        made: &["input", "metrics", "cache"],
    },
    Fields {
        name: "UnionExec",
        carried: &[],
        made: &["inputs", "metrics", "cache"],
    },
    Fields {
        name: "UnnestExec",
        carried: &[
            "schema",
            "list_column_indices",
            "struct_column_indices",
            "options",
        ],
        made: &["input", "metrics", "cache"],
    },
    Fields {
        name: "WindowAggExec",
        carried: &["window_expr", "schema", "ordered_partition_by_indices"],
        made: &["input", "metrics", "cache", "can_repartition"],
    },
    Fields {
        name: "CooperativeExec",
        carried: &[],
        made: &["input", "properties"],
    },
];

/// Settings of a session.
type Settings = &'static [(&'static str, &'static str)];

const SORT_MERGE: Settings = &[("datafusion.optimizer.prefer_hash_join", "false")];
const PARTITIONED: Settings = &[
    (
        "datafusion.optimizer.hash_join_single_partition_threshold",
        "0",
    ),
    (
        "datafusion.optimizer.hash_join_single_partition_threshold_rows",
        "0",
    ),
];
const DYNAMIC_FILTERS: Settings = &[(
    "datafusion.optimizer.enable_dynamic_filter_pushdown",
    "false",
)];

/// Queries whose plans have the operators, each in every form that its options allow.
const QUERIES: &[(Settings, &[&str])] = &[
    (
        DYNAMIC_FILTERS,
        &[
            "SELECT k, s FROM t WHERE k > 1 AND v < 2 LIMIT 3 OFFSET 1",
            "SELECT k FROM t WHERE f > 1.5 LIMIT 2",
            "SELECT k, count(*), sum(v) FILTER (WHERE k > 2), count(DISTINCT s) FROM t GROUP BY k",
            "SELECT v, array_agg(k ORDER BY s DESC), first_value(s ORDER BY k), avg(f) FROM t GROUP BY v",
            "SELECT v, first_value(s) IGNORE NULLS, last_value(k ORDER BY s) FROM t GROUP BY v",
            "SELECT count(*), min(k), approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY f) FROM t",
            "SELECT v, s, count(*) FROM t GROUP BY GROUPING SETS ((v), (s), (v, s), ())",
            "SELECT v, s, grouping(v), count(*) FROM t GROUP BY ROLLUP (v, s)",
            "SELECT count(*), max(k) FILTER (WHERE v > 1) FROM t GROUP BY GROUPING SETS (())",
            "SELECT sum(v) FROM t GROUP BY GROUPING SETS ((), ())",
            "SELECT DISTINCT v FROM t LIMIT 2",
            "SELECT v, max(k) AS x FROM t GROUP BY v ORDER BY x DESC LIMIT 2",
            "SELECT k, s FROM t ORDER BY s DESC NULLS LAST, k ASC NULLS FIRST",
            "SELECT k, s FROM t ORDER BY s DESC LIMIT 5 OFFSET 2",
            "SELECT lag(v, 2, 0) OVER (PARTITION BY s ORDER BY k), lead(v) IGNORE NULLS OVER (ORDER BY k DESC) FROM t",
            "SELECT lag(v) OVER (ORDER BY k DESC), lag(v) OVER (ORDER BY k), ntile(3) OVER (ORDER BY k) FROM t",
            "SELECT sum(v) OVER (), count(DISTINCT v) OVER (PARTITION BY s) FROM t",
            "SELECT sum(v) OVER (ORDER BY k ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING), \
             avg(f) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW), \
             max(v) OVER (ORDER BY k GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM t",
            "SELECT nth_value(v, 2) IGNORE NULLS OVER (ORDER BY k), rank() OVER (PARTITION BY v ORDER BY s) FROM t",
            "SELECT row_number() OVER (ORDER BY k), cume_dist() OVER (ORDER BY v) FROM o",
            "SELECT unnest(l), k FROM t",
            "SELECT unnest(m) FROM t",
            "SELECT 1 AS x UNION ALL SELECT k FROM t",
            "SELECT k FROM t WHERE false",
            "SELECT 1",
            "SELECT k, count(*) FROM t GROUP BY k UNION ALL SELECT k, 1 FROM t GROUP BY k",
            "SELECT k FROM t UNION SELECT v FROM t",
            "SELECT a.k FROM t a, t b",
            "SELECT a.k, b.s FROM t a JOIN t b ON a.k < b.k AND a.s <> b.s",
            "SELECT a.k, b.s FROM t a LEFT JOIN t b ON a.k < b.k",
            "SELECT a.k, b.s FROM t a FULL JOIN t b ON a.k < b.k",
            "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM o WHERE o.k < t.k)",
            "SELECT k FROM t WHERE k NOT IN (SELECT v FROM o)",
            "SELECT k FROM t WHERE k IN (SELECT v FROM o) LIMIT 3",
            "SELECT k FROM t INTERSECT SELECT v FROM t",
            "SELECT k FROM t EXCEPT SELECT v FROM t",
            "SELECT a.k, b.s FROM t a JOIN t b ON a.k = b.k AND a.v < b.v",
            "SELECT k FROM t WHERE v = 1 OR EXISTS (SELECT 1 FROM o WHERE o.k = t.v)",
            "SELECT k, v FROM o ORDER BY k",
            "SELECT k, sum(v) FROM o GROUP BY k ORDER BY k",
        ],
    ),
    (
        PARTITIONED,
        &[
            "SELECT a.k, b.s FROM t a JOIN t b ON a.k = b.k",
            "SELECT a.k, b.s FROM t a LEFT JOIN t b ON a.k = b.k AND a.v < b.v",
            "SELECT a.k, b.s FROM t a RIGHT JOIN t b USING (k)",
            "SELECT a.k, b.s FROM t a FULL JOIN t b ON a.k IS NOT DISTINCT FROM b.k",
            "SELECT count(*) FROM t a JOIN t b ON a.k = b.k",
        ],
    ),
    (
        SORT_MERGE,
        &[
            "SELECT a.k, b.s FROM t a JOIN t b ON a.k = b.k",
            "SELECT a.k, b.s FROM t a LEFT JOIN t b ON a.k = b.k AND a.v < b.v",
            "SELECT a.k, b.s FROM t a FULL JOIN t b ON (a.k IS NOT DISTINCT FROM b.k) AND a.s = b.s",
            "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM o WHERE o.k = t.k)",
        ],
    ),
    (
        DYNAMIC_FILTERS,
        &[
            "SELECT k, v FROM t WHERE k > 3",
            "SELECT k, v FROM c WHERE k > 3",
            "SELECT s FROM c LIMIT 3",
            "SELECT k, v FROM n",
            "SELECT k, v FROM j WHERE k > 3",
            "SELECT k, v FROM a WHERE k > 3",
            "SELECT k, v FROM h WHERE v = 1",
            "SELECT v, k + 1 AS x FROM o",
            "SELECT count(*) FROM t",
            "SELECT m['m'] FROM t",
        ],
    ),
];

/// Operators in the plans above, by their messages.
const TRIED: &[&str] = &[
    "ParquetScan",
    "CsvScan",
    "JsonScan",
    "ArrowScan",
    "Empty",
    "Projection",
    "GlobalLimit",
    "LocalLimit",
    "Aggregate",
    "HashJoin",
    "Sort",
    "Filter",
    "Merge",
    "Repartition",
    "Window",
    "CrossJoin",
    "Union",
    "SortPreservingMerge",
    "NestedLoopJoin",
    "Interleave",
    "PlaceholderRow",
    "Unnest",
    "SortMergeJoin",
    "Extension",
];

/// Returns the name of an operator's message, if stages have such operators.
fn kind(message: &PhysicalPlanType) -> Option<&'static str> {
    use PhysicalPlanType as Kind;
    Some(match message {
        Kind::ParquetScan(_) => "ParquetScan",
        Kind::CsvScan(_) => "CsvScan",
        Kind::JsonScan(_) => "JsonScan",
        Kind::ArrowScan(_) => "ArrowScan",
        Kind::Empty(_) => "Empty",
        Kind::Projection(_) => "Projection",
        Kind::GlobalLimit(_) => "GlobalLimit",
        Kind::LocalLimit(_) => "LocalLimit",
        Kind::Aggregate(_) => "Aggregate",
        Kind::HashJoin(_) => "HashJoin",
        Kind::Sort(_) => "Sort",
        Kind::Filter(_) => "Filter",
        Kind::Merge(_) => "Merge",
        Kind::Repartition(_) => "Repartition",
        Kind::Window(_) => "Window",
        Kind::CrossJoin(_) => "CrossJoin",
        Kind::Union(_) => "Union",
        Kind::SortPreservingMerge(_) => "SortPreservingMerge",
        Kind::NestedLoopJoin(_) => "NestedLoopJoin",
        Kind::Interleave(_) => "Interleave",
        Kind::PlaceholderRow(_) => "PlaceholderRow",
        Kind::Unnest(_) => "Unnest",
        Kind::SortMergeJoin(_) => "SortMergeJoin",
        // Volley's own operators, and the wrapper of `Lost`.
        Kind::Extension(_) => "Extension",
        // It has no options; its files would be those of the ARROW test in `tests`, which SQL cannot write.
        Kind::AvroScan(_) => return None,
        // Written by `CommitExec`, whose tests check the options.
        Kind::JsonSink(_) | Kind::CsvSink(_) | Kind::ParquetSink(_) => return None,
        // Clients explain, and the scheduler analyzes over stages.
        Kind::Explain(_) | Kind::Analyze(_) => return None,
        // Inserted when a stage's operators are prepared to run.
        Kind::Cooperative(_) => return None,
        // Rows and series are sent as tables: see `tables`.
        Kind::MemoryScan(_) | Kind::GenerateSeries(_) => return None,
        // For unbounded streams, for user functions, for a rule that is not applied, or for the scheduler's own stages:
        // no query here creates these, and if one is created, it is compared like any operator.
        Kind::SymmetricHashJoin(_)
        | Kind::AsyncFunc(_)
        | Kind::Buffer(_)
        | Kind::CoalesceBatches(_) => return None,
        // Clients turn these into joins.
        Kind::ScalarSubquery(_) => return None,
    })
}

/// Returns the fields of a struct from its text on several lines.
fn fields(shown: &dyn Debug) -> BTreeMap<String, String> {
    let text = unchecked(&format!("{shown:#?}"));
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for line in text.lines().skip(1) {
        let field = line.strip_prefix("    ").and_then(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_name = name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
            is_name.then_some((name.to_owned(), value.to_owned()))
        });
        match (field, &last) {
            (Some((name, value)), _) => {
                fields.insert(name.clone(), value);
                last = Some(name);
            }
            (None, Some(last)) => {
                let value = fields.get_mut(last).unwrap();
                value.push('\n');
                value.push_str(line.trim());
            }
            (None, None) => {}
        }
    }
    fields
}

/// Adds the fields of an operator that do not arrive to `lost`.
fn compare(meant: &Arc<dyn ExecutionPlan>, found: &Arc<dyn ExecutionPlan>, lost: &mut Vec<String>) {
    assert_eq!(meant.name(), found.name());
    // One operator has two names.
    let name = meant.name().split('(').next().unwrap_or_default();
    let known = FIELDS.iter().find(|known| known.name == name);
    let Some(known) = known else {
        return lost.push(format!("{name} is not known to this test"));
    };
    let (before, after) = (fields(meant), fields(found));
    let of_it: BTreeSet<_> = before.keys().map(String::as_str).collect();
    let due: BTreeSet<_> = known.carried.iter().chain(known.made).copied().collect();
    if of_it != due {
        lost.push(format!("{name} has the fields {of_it:?}, not {due:?}"));
    }
    for field in known.carried {
        let shown = |fields: &BTreeMap<String, String>| {
            let shown = fields.get(*field).map_or("", String::as_str);
            // Omitted from functions: the columns at planning, of which they read those that exist now, and whether an
            // ordering spares them a sort.
            match *field {
                "window_expr" | "aggr_expr" => {
                    scans::without(shown, &["schema", "is_input_pre_ordered"])
                }
                _ => shown.to_owned(),
            }
        };
        let (before, after) = (shown(&before), shown(&after));
        if before != after {
            let differing = scans::differing(&before, &after);
            lost.push(format!("{name}: {field} {differing}"));
        }
    }
    let null_aware = |plan: &Arc<dyn ExecutionPlan>| {
        plan.downcast_ref::<HashJoinExec>()
            .map(|join| join.null_aware)
    };
    if (meant.fetch(), null_aware(meant)) != (found.fetch(), null_aware(found)) {
        lost.push(format!("{name}: another limit, or other rules for NULL"));
    }
    scans::compare(meant, found, lost);
    for (meant, found) in meant.children().into_iter().zip(found.children()) {
        compare(meant, found, lost);
    }
}

/// Adds the kinds of messages of a plan's operators to `found`.
fn kinds(plan: &Arc<dyn ExecutionPlan>, found: &mut BTreeSet<&'static str>) {
    let codec = VolleyPhysicalCodec::default();
    let message = Converter.execution_plan_to_proto(plan, &codec).unwrap();
    found.extend(message.physical_plan_type.as_ref().and_then(kind));
    if let Some(PhysicalPlanType::Extension(lost)) = &message.physical_plan_type {
        let inner = lost.inputs.iter();
        found.extend(inner.filter_map(|inner| kind(inner.physical_plan_type.as_ref()?)));
    }
    for input in plan.children() {
        kinds(input, found);
    }
}

/// Volley's own operators, whose inputs the engine encodes without asking.
#[tokio::test]
async fn what_is_below_an_operator_of_volley_s_arrives_as_it_was() {
    let (session, _dir) = session(&[]).await;
    for sql in [
        "SELECT k, v FROM c",
        "SELECT k, v FROM n",
        "SELECT lag(v) IGNORE NULLS OVER (ORDER BY k DESC) AS v FROM t",
        "SELECT k FROM t WHERE false",
    ] {
        let model = ModelRef {
            store: "file:///models/".parse().unwrap(),
            name: "m".parse().unwrap(),
            version: 1,
        };
        let mut below = plan(&session, sql).await;
        if let Some(projection) = below.downcast_ref::<ProjectionExec>() {
            below = Arc::clone(projection.input());
        }
        let columns = PredictedColumns {
            name: "p".to_owned(),
            further: vec!["q".to_owned()],
            class: None,
            has_quantiles: true,
            explained_by: Some(3),
        };
        let predict: Arc<dyn ExecutionPlan> =
            Arc::new(PredictExec::new(model, columns, Arc::clone(&below)));
        let (_, arrived) = sent(&predict, &session);
        let mut lost = vec![];
        compare(&below, arrived.children()[0], &mut lost);
        assert!(lost.is_empty(), "{sql}: {}", lost.join("\n"));
        verify(&predict, &arrived).unwrap();
    }
}

#[tokio::test]
async fn every_operator_arrives_as_it_was() {
    let (mut lost, mut found) = (vec![], BTreeSet::new());
    for (settings, queries) in QUERIES {
        let (session, _dir) = session(settings).await;
        for sql in *queries {
            let plan = plan(&session, sql).await;
            let (_, arrived) = sent(&plan, &session);
            let before = lost.len();
            if let Err(error) = verify(&plan, &arrived) {
                lost.push(error.to_string());
            }
            compare(&plan, &arrived, &mut lost);
            if lost.len() > before {
                lost.insert(before, format!("\n{sql}"));
            }
            kinds(&plan, &mut found);
        }
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
    assert_eq!(found, TRIED.iter().copied().collect());
}
