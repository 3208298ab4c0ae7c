//! Descriptions of stages for people: the tables whose rows a stage has, and what it does with them.
//!
//! ```text
//!   stage 1   read stores              tables: stores
//!   stage 2   read sales               tables: sales
//!   stage 3   join sales with stores on store, partly group by kind
//! ```
//!
//! A physical plan has no names of tables, so a table is named by its file or folder. Not here: the operators of a stage
//! with their metrics, which its plan shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use ballista_core::execution_plans::{ShuffleReaderExec, UnresolvedShuffleExec};
use datafusion::common::JoinType;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use super::stage::{StageExec, StageInput};
use crate::nodes::predict::PredictExec;
use crate::nodes::prepared::PreparedExec;
use crate::nodes::train::TrainExec;
use crate::write::{CommitExec, WriteExec};

/// Most names in a list; more are counted.
const NAMES: usize = 3;
/// Length above which a file's name is taken for a generated one, and its folder names the table.
const GENERATED: usize = 20;

/// Description of a stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    steps: Vec<String>,
    tables: Vec<String>,
}

impl Description {
    /// Describes a stage of a job, given the descriptions of the stages that it reads, by their numbers.
    pub fn of(stage: &dyn ExecutionPlan, others: &BTreeMap<usize, Self>) -> Self {
        let mut walk = Walk {
            others,
            stage: None,
            steps: Vec::new(),
            reads: Vec::new(),
        };
        let tables = walk.tables(stage);
        let Walk { steps, reads, .. } = walk;
        // Joins name their tables.
        let names_tables = steps.iter().any(|step| step.contains("join"));
        let first = match (reads.is_empty(), steps.is_empty()) {
            (false, _) if !names_tables => Some(format!("read {}", listed(&reads, " and "))),
            (true, true) if !tables.is_empty() => Some(format!("gather {}", named(&tables))),
            _ => None,
        };
        Self {
            steps: first.into_iter().chain(steps).collect(),
            tables,
        }
    }

    /// Returns what the stage does, in a line.
    pub fn text(&self) -> String {
        self.steps.join(", ")
    }
}

/// Walk over a stage's plan, inputs first.
struct Walk<'a> {
    others: &'a BTreeMap<usize, Description>,
    /// The stage around the operator.
    stage: Option<&'a StageExec>,
    steps: Vec<String>,
    /// Tables that the stage scans itself.
    reads: Vec<String>,
}

impl<'a> Walk<'a> {
    /// Notes what a plan does, and returns the tables whose rows it has.
    fn tables(&mut self, plan: &'a dyn ExecutionPlan) -> Vec<String> {
        if let Some(stage) = plan.downcast_ref::<StageExec>() {
            self.stage = Some(stage);
            return self.tables(stage.plan().as_ref());
        }
        if let Some(input) = plan.downcast_ref::<StageInput>() {
            let exchange = self
                .stage
                .and_then(|stage| stage.inputs().get(input.index()));
            return exchange.map_or_else(Vec::new, |exchange| self.exchanged(exchange.as_ref()));
        }
        if plan.is::<ShuffleReaderExec>() || plan.is::<UnresolvedShuffleExec>() {
            return self.exchanged(plan);
        }
        if plan.is::<PreparedExec>() {
            return self.scanned("prepared rows".to_owned());
        }
        if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
            let files = scan.data_source().downcast_ref::<FileScanConfig>();
            return match files.and_then(table) {
                Some(table) => self.scanned(table),
                None => Vec::new(),
            };
        }
        let inputs: Vec<_> = plan.children().into_iter().map(Arc::as_ref).collect();
        let mut tables: Vec<Vec<String>> = Vec::new();
        for input in inputs {
            let of_input = self.tables(input);
            tables.push(of_input);
        }
        // A limit is in several operators.
        let step = step(plan, &tables);
        self.steps
            .extend(step.filter(|step| self.steps.last() != Some(step)));
        let mut all = Vec::new();
        for table in tables.into_iter().flatten() {
            if !all.contains(&table) {
                all.push(table);
            }
        }
        all
    }

    fn scanned(&mut self, table: String) -> Vec<String> {
        if !self.reads.contains(&table) {
            self.reads.push(table.clone());
        }
        vec![table]
    }

    /// Returns the tables whose rows come through an exchange.
    fn exchanged(&self, plan: &dyn ExecutionPlan) -> Vec<String> {
        let of_stage = |stage: usize| match self.others.get(&stage) {
            Some(other) if !other.tables.is_empty() => other.tables.clone(),
            _ => vec![format!("stage {stage}")],
        };
        if let Some(gathered) = plan.downcast_ref::<CoalescePartitionsExec>() {
            self.exchanged(gathered.input().as_ref())
        } else if let Some(reader) = plan.downcast_ref::<ShuffleReaderExec>() {
            of_stage(reader.stage_id)
        } else if let Some(reader) = plan.downcast_ref::<UnresolvedShuffleExec>() {
            of_stage(reader.stage_id)
        } else {
            Vec::new()
        }
    }
}

/// Describes what an operator does with rows of these tables, by input; `None` for operators that people need not know.
fn step(plan: &dyn ExecutionPlan, tables: &[Vec<String>]) -> Option<String> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return Some(joined(join.join_type(), tables, join.on()));
    }
    if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        return Some(joined(&join.join_type(), tables, join.on()));
    }
    if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        return Some(joined(join.join_type(), tables, &[]));
    }
    if plan.is::<CrossJoinExec>() {
        return Some(format!("cross {}", joined(&JoinType::Inner, tables, &[])));
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return Some(filtered(filter.predicate()));
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return Some(aggregated(aggregate));
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        let keys = sort.expr().iter().map(|key| name(&key.expr));
        let keys = listed(&keys.collect::<Vec<_>>(), ", ");
        return Some(match sort.fetch() {
            Some(rows) => format!("first {rows} by {keys}"),
            None => format!("sort by {keys}"),
        });
    }
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        return merge.fetch().map(|rows| format!("first {rows}"));
    }
    if let Some(limit) = plan.downcast_ref::<GlobalLimitExec>() {
        return limit.fetch().map(|rows| format!("first {rows}"));
    }
    if let Some(limit) = plan.downcast_ref::<LocalLimitExec>() {
        return Some(format!("first {}", limit.fetch()));
    }
    let windows = if let Some(window) = plan.downcast_ref::<WindowAggExec>() {
        Some(window.window_expr())
    } else {
        let window = plan.downcast_ref::<BoundedWindowAggExec>();
        window.map(BoundedWindowAggExec::window_expr)
    };
    if let Some(windows) = windows {
        let keys = windows
            .first()
            .map_or(&[][..], |first| first.partition_by());
        return Some(match names(keys) {
            keys if keys.is_empty() => "window over all rows".to_owned(),
            keys => format!("window over {keys}"),
        });
    }
    if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
        return Some("union".to_owned());
    }
    if plan.is::<UnnestExec>() {
        return Some("unnest".to_owned());
    }
    if let Some(train) = plan.downcast_ref::<TrainExec>() {
        return Some(format!("train {}", train.spec().model));
    }
    if let Some(predict) = plan.downcast_ref::<PredictExec>() {
        return Some(format!("predict with {}", predict.model()));
    }
    if plan.is::<CommitExec>() {
        return Some("commit the files".to_owned());
    }
    is_writer(plan).then(|| "write files".to_owned())
}

/// Checks whether an operator writes the rows of its input to files.
pub fn is_writer(operator: &dyn ExecutionPlan) -> bool {
    operator.is::<WriteExec>() || operator.is::<DataSinkExec>()
}

fn joined(
    kind: &JoinType,
    tables: &[Vec<String>],
    on: &[(PhysicalExprRef, PhysicalExprRef)],
) -> String {
    let kind = match kind {
        JoinType::Inner => "join",
        JoinType::Left => "left join",
        JoinType::Right => "right join",
        JoinType::Full => "full join",
        JoinType::LeftSemi | JoinType::RightSemi => "semi join",
        JoinType::LeftAnti | JoinType::RightAnti => "anti join",
        JoinType::LeftMark | JoinType::RightMark => "mark join",
    };
    let side = |side: usize| {
        tables
            .get(side)
            .map_or_else(String::new, |side| named(side))
    };
    let keys: Vec<_> = on
        .iter()
        .map(|(left, right)| match (name(left), name(right)) {
            (left, right) if left == right => left,
            (left, right) => format!("{left} = {right}"),
        })
        .collect();
    let on = match keys.is_empty() {
        true => String::new(),
        false => format!(" on {}", listed(&keys, ", ")),
    };
    format!("{kind} {} with {}{on}", side(0), side(1))
}

fn filtered(predicate: &PhysicalExprRef) -> String {
    let mut columns: Vec<_> = collect_columns(predicate).into_iter().collect();
    columns.sort_by_key(Column::index);
    let columns: Vec<_> = columns
        .iter()
        .map(|column| column.name().to_owned())
        .collect();
    match columns.is_empty() {
        true => "filter".to_owned(),
        false => format!("filter by {}", listed(&columns, ", ")),
    }
}

fn aggregated(aggregate: &AggregateExec) -> String {
    let keys = aggregate.group_expr().expr().iter();
    let keys: Vec<_> = keys.map(|(_, name)| name.clone()).collect();
    let is_part = matches!(
        aggregate.mode(),
        AggregateMode::Partial | AggregateMode::PartialReduce
    );
    let part = if is_part { "partly " } else { "" };
    match keys.is_empty() {
        true => format!("{part}aggregate"),
        false => format!("{part}group by {}", listed(&keys, ", ")),
    }
}

/// Returns the name of an expression: a column's own, or its text.
fn name(expression: &PhysicalExprRef) -> String {
    match expression.downcast_ref::<Column>() {
        Some(column) => column.name().to_owned(),
        None => expression.to_string(),
    }
}

fn names(expressions: &[Arc<dyn PhysicalExpr>]) -> String {
    let names: Vec<_> = expressions.iter().map(name).collect();
    listed(&names, ", ")
}

/// Names the rows of tables: "sales", "sales and stores", or "sales and 3 more".
fn named(tables: &[String]) -> String {
    match tables {
        [] => "rows".to_owned(),
        [one] => one.clone(),
        [one, other] => format!("{one} and {other}"),
        [one, others @ ..] => format!("{one} and {} more", others.len()),
    }
}

fn listed(names: &[String], separator: &str) -> String {
    match names.len().checked_sub(NAMES) {
        None | Some(0) => names.join(separator),
        Some(more) => format!("{} and {more} more", names[..NAMES].join(", ")),
    }
}

/// Names the table of a scan by its file, or by the folder of its files.
fn table(files: &FileScanConfig) -> Option<String> {
    let all = files.file_groups.iter().flat_map(|group| group.files());
    let mut paths = all.map(|file| &file.object_meta.location);
    let first = paths.next()?;
    let file = first.filename()?;
    let stem = file.split('.').next().unwrap_or(file);
    let is_generated = stem.starts_with("part-")
        || stem.len() > GENERATED
        || stem.bytes().all(|byte| byte.is_ascii_digit());
    // A large file is read in parts.
    if !is_generated && paths.all(|path| path == first) {
        return Some(stem.to_owned());
    }
    let folders: Vec<_> = first.parts().collect();
    let mut folders = folders.iter().rev().skip(1);
    // Folders of a partitioned table are named by their values.
    let folder = folders.find(|folder| !folder.as_ref().contains('='));
    Some(folder.map_or(stem, |folder| folder.as_ref()).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::stages::tests::{plan, session};

    async fn described(sql: &str) -> String {
        let (session, _dir) = session(&[]).await;
        let plan = plan(&session, sql).await;
        Description::of(plan.as_ref(), &BTreeMap::new()).text()
    }

    #[tokio::test]
    async fn a_plan_is_told_by_its_tables_and_keys() {
        // Which side of a join is first depends on statistics.
        for (sql, parts) in [
            ("SELECT k FROM a", &["read a"][..]),
            (
                "SELECT * FROM a JOIN b USING (k)",
                &["join ", " with ", " on k"][..],
            ),
            (
                "SELECT a.k FROM a JOIN b ON a.k = b.v ORDER BY a.k LIMIT 5",
                &["join ", " = ", "first 5 by k"][..],
            ),
            (
                "SELECT v, count(*) FROM b WHERE w > 3 GROUP BY v",
                &["read b, filter by w", "group by v"][..],
            ),
            (
                "SELECT k, row_number() OVER (PARTITION BY v ORDER BY k) FROM b",
                &["read b", "sort by v, k", "window over v"][..],
            ),
            (
                "SELECT k FROM a UNION ALL SELECT v FROM b",
                &["read a and b", "union"][..],
            ),
        ] {
            let told = described(sql).await;
            for part in parts {
                assert!(told.contains(part), "{part:?} in {told:?} of {sql}");
            }
        }
    }

    #[test]
    fn lists_are_short() {
        let of = |names: &[&str]| -> Vec<_> { names.iter().map(ToString::to_string).collect() };
        assert_eq!(listed(&of(&["a", "b", "c"]), ", "), "a, b, c");
        assert_eq!(
            listed(&of(&["a", "b", "c", "d"]), ", "),
            "a, b, c and 1 more"
        );
        assert_eq!(named(&of(&["a", "b"])), "a and b");
        assert_eq!(named(&of(&["a", "b", "c"])), "a and 2 more");
    }
}
