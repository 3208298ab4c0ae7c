//! Comparison of the options of file scans, which show little of themselves.

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileScanConfig, FileSource, JsonSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;

use super::super::verify::unchecked;
use super::*;

/// Adds the options of a scan that do not arrive to `lost`, if the operator is one.
pub(super) fn compare(
    meant: &Arc<dyn ExecutionPlan>,
    found: &Arc<dyn ExecutionPlan>,
    lost: &mut Vec<String>,
) {
    let (Some(meant), Some(found)) = (config(meant), config(found)) else {
        return;
    };
    for ((name, before), (_, after)) in options(meant).into_iter().zip(options(found)) {
        let after = unchecked(&after);
        if before != after {
            lost.push(format!("scan: {name} {}", differing(&before, &after)));
        }
    }
}

/// Returns the first lines that differ in two texts.
pub(super) fn differing(before: &str, after: &str) -> String {
    let same = before
        .lines()
        .zip(after.lines())
        .take_while(|(one, other)| one == other);
    let same = same.count();
    let lines = |text: &str| {
        let lines: Vec<_> = text.lines().skip(same.saturating_sub(3)).take(8).collect();
        lines.join("\n")
    };
    format!("was\n{}\nand is\n{}", lines(before), lines(after))
}

fn config(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    let exec = plan.downcast_ref::<DataSourceExec>()?;
    exec.data_source().downcast_ref()
}

/// Returns every option of a scan. With a new option in the engine, this does not compile.
fn options(scan: &FileScanConfig) -> Vec<(&'static str, String)> {
    let FileScanConfig {
        object_store_url,
        file_groups,
        constraints,
        limit,
        preserve_order,
        output_ordering,
        file_compression_type,
        file_source,
        // Set from the session where it runs.
        batch_size: _,
        // Only user tables have one, and these are not sent.
        expr_adapter_factory,
        output_partitioning,
        ..
    } = scan;
    assert!(expr_adapter_factory.is_none());
    let files = file_groups.iter().flat_map(FileGroup::iter).map(file);
    vec![
        ("store", object_store_url.to_string()),
        ("files", files.collect::<Vec<_>>().join("\n")),
        ("constraints", format!("{constraints:?}")),
        ("limit", format!("{limit:?}")),
        ("preserve_order", preserve_order.to_string()),
        ("output_ordering", format!("{output_ordering:?}")),
        ("compression", format!("{file_compression_type:?}")),
        ("partitioning", format!("{output_partitioning:?}")),
        ("statistics", format!("{:?}", scan.statistics())),
        ("format", source(file_source.as_ref())),
        ("schema", format!("{:?}", file_source.table_schema())),
        ("projection", format!("{:?}", file_source.projection())),
        ("filter", format!("{:?}", file_source.filter())),
    ]
}

/// Returns everything that is read of a file.
fn file(file: &PartitionedFile) -> String {
    let PartitionedFile {
        object_meta,
        partition_values,
        range,
        statistics,
        // Used by planners only: the properties derived from it arrive.
        ordering: _,
        extensions,
        metadata_size_hint,
        // Key of cached statistics.
        table_reference: _,
        arrow_schema,
    } = file;
    // Nothing uses the version that a store reports of a file.
    let (place, size) = (&object_meta.location, object_meta.size);
    format!(
        "{place} {size} {:?}\n{partition_values:?}\n{range:?}\n{statistics:#?}\n{extensions:?}\n\
         {metadata_size_hint:?}\n{arrow_schema:?}",
        object_meta.last_modified
    )
}

/// Returns the options of a format, as far as it shows them, without those that reading ignores.
fn source(source: &dyn FileSource) -> String {
    if let Some(csv) = source.downcast_ref::<CsvSource>() {
        // The scan has the compression, the types are known already, and a missing `truncated_rows` means false.
        let unread = [
            "metrics",
            "batch_size",
            "compression",
            "null_regex",
            "truncated_rows",
        ];
        let shown = without(&format!("{csv:#?}"), &unread);
        format!("{shown}\n{}", csv.truncate_rows())
    } else if let Some(parquet) = source.downcast_ref::<ParquetSource>() {
        // The order in which row groups are read affects only speed: rows are sorted above.
        let order = [
            "metrics",
            "batch_size",
            "reverse_row_groups",
            "sort_order_for_reorder",
        ];
        without(&format!("{parquet:#?}"), &order)
    } else {
        assert!(source.is::<JsonSource>() || source.file_type() == "arrow");
        source.file_type().to_owned()
    }
}

/// Returns the text of a struct without some fields, at any depth.
pub(super) fn without(text: &str, fields: &[&str]) -> String {
    let mut kept = vec![];
    let mut depth = 0;
    for line in text.lines() {
        let opened = line.matches(['{', '(', '[']).count();
        let closed = line.matches(['}', ')', ']']).count();
        let name = line.trim().split(": ").next().unwrap_or_default();
        if depth > 0 || fields.contains(&name) {
            depth += opened;
            depth -= closed.min(depth);
        } else {
            kept.push(line);
        }
    }
    kept.join("\n")
}
