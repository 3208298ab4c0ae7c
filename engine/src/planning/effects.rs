//! The effects of a plan: whether it writes, and which locations it reads and writes.
//!
//! The code that will run a decoded plan checks it here. Unknown operators and tables are named, so that they can be
//! refused where that matters.

use std::sync::Arc;

use ballista_core::execution_plans::{
    RangeShuffleReaderExec, ShuffleReaderExec, UnresolvedShuffleExec,
};
use datafusion::catalog::TableProvider;
use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, plan_err};
use datafusion::datasource::empty::EmptyTable;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, TableSource};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::memory::LazyMemoryExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use url::Url;

use crate::codec::repeated::RepeatedNames;
use crate::codec::tables::{self, Files, file_name};
use crate::codec::task::PrunedExec;
use crate::write::{CommitExec, WriteExec, sink_places};
use crate::{PredictExec, PredictNode, PreparedExec, TrainExec, TrainNode};
use volley_proto::spec::{Start, TrainSpec};

/// Effects of a query besides computing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// The statement that writes or trains: `COPY`, `INSERT`, `CREATE MODEL`, or an unknown one.
    pub writes: Option<String>,
    /// Files, folders and stores that are read or written.
    pub places: Vec<Url>,
    /// Name of an operator or table whose reads are unknown.
    pub unknown: Option<String>,
}

impl Effects {
    /// Returns the effects of a query.
    ///
    /// # Errors
    /// When a location is not a URL.
    pub fn of_query(plan: &LogicalPlan) -> Result<Self> {
        let mut effects = Self::default();
        plan.apply_with_subqueries(|node| {
            effects.add(node)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(effects)
    }

    fn add(&mut self, node: &LogicalPlan) -> Result<()> {
        match node {
            LogicalPlan::TableScan(scan) => self.reads(&scan.source)?,
            LogicalPlan::Dml(dml) => {
                self.writes(dml.op.name());
                self.reads(&dml.target)?;
            }
            LogicalPlan::Copy(copy) => {
                self.writes("COPY");
                let target = ListingTableUrl::parse(&copy.output_url)?;
                self.places.push(target.get_url().clone());
            }
            LogicalPlan::Ddl(statement) => self.writes(statement.name()),
            LogicalPlan::Statement(statement) => self.writes(statement.name()),
            LogicalPlan::Extension(extension) => {
                let node = extension.node.as_any();
                if let Some(train) = node.downcast_ref::<TrainNode>() {
                    self.writes("CREATE MODEL");
                    self.places.extend(stores(train.spec()));
                } else if let Some(predict) = node.downcast_ref::<PredictNode>() {
                    self.places.push(predict.model().store.clone());
                } else if !node.is::<RepeatedNames>() {
                    self.writes(extension.node.name());
                    self.unknown = Some(extension.node.name().to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn writes(&mut self, statement: &str) {
        self.writes = Some(statement.to_uppercase());
    }

    fn reads(&mut self, source: &Arc<dyn TableSource>) -> Result<()> {
        let provider = source_as_provider(source)?;
        let provider: &dyn TableProvider = provider.as_ref();
        let listing = match provider.downcast_ref::<Files>() {
            Some(files) => Some(files.listing()),
            None => provider.downcast_ref::<ListingTable>(),
        };
        if let Some(listing) = listing {
            let places = listing.table_paths().iter();
            self.places
                .extend(places.map(|place| place.get_url().clone()));
        } else if let Some(view) = provider.get_logical_plan() {
            let Self {
                writes,
                places,
                unknown,
            } = Self::of_query(&view)?;
            self.writes = self.writes.take().or(writes);
            self.unknown = self.unknown.take().or(unknown);
            self.places.extend(places);
        } else if !(tables::is_without_files(provider)
            || provider.is::<MemTable>()
            || provider.is::<EmptyTable>()
            || provider.is::<CteWorkTable>())
        {
            self.unknown = Some("a table of another kind".to_owned());
        }
        Ok(())
    }
}

/// Returns the stores of a training run.
fn stores(spec: &TrainSpec) -> Vec<Url> {
    let mut stores = vec![spec.store.clone()];
    if let Start::Warm(model) = &spec.start {
        stores.push(model.store.clone());
    }
    stores
}

/// Returns the locations that a task reads and writes.
///
/// # Errors
/// Names an operator whose reads or writes are unknown.
pub fn places_of_task(plan: &dyn ExecutionPlan) -> Result<Vec<Url>> {
    let mut places = Vec::new();
    add_places(plan, &mut places)?;
    Ok(places)
}

fn add_places(plan: &dyn ExecutionPlan, places: &mut Vec<Url>) -> Result<()> {
    if let Some(query) = plan.downcast_ref::<RecursiveQueryExec>() {
        add_places(query.static_term().as_ref(), places)?;
        return add_places(query.recursive_term().as_ref(), places);
    }
    for input in plan.children() {
        add_places(input.as_ref(), places)?;
    }
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let source = scan.data_source();
        if let Some(files) = source.downcast_ref::<FileScanConfig>() {
            let root = files.object_store_url.as_str();
            for file in files.file_groups.iter().flat_map(|group| group.iter()) {
                places.push(place_of_file(root, file.object_meta.location.as_ref())?);
            }
        } else if !source.is::<MemorySourceConfig>() {
            return unknown(plan);
        }
    } else if let Some(writer) = plan.downcast_ref::<DataSinkExec>() {
        match sink_places(writer) {
            Some(targets) => places.extend(targets),
            None => return unknown(plan),
        }
    } else if let Some(writer) = plan.downcast_ref::<WriteExec>() {
        places.push(writer.target().place());
    } else if let Some(commit) = plan.downcast_ref::<CommitExec>() {
        places.push(commit.target().place());
    } else if let Some(train) = plan.downcast_ref::<TrainExec>() {
        places.extend(stores(train.spec()));
    } else if let Some(predict) = plan.downcast_ref::<PredictExec>() {
        places.push(predict.model().store.clone());
    } else if plan.children().is_empty() && !is_without_files(plan) {
        return unknown(plan);
    }
    Ok(())
}

/// Checks whether an operator without inputs reads only the query's own rows.
fn is_without_files(leaf: &dyn ExecutionPlan) -> bool {
    leaf.is::<EmptyExec>()
        || leaf.is::<PlaceholderRowExec>()
        || leaf.is::<WorkTableExec>()
        || leaf.is::<LazyMemoryExec>()
        || leaf.is::<PrunedExec>()
        || leaf.is::<PreparedExec>()
        || leaf.is::<ShuffleReaderExec>()
        || leaf.is::<RangeShuffleReaderExec>()
        || leaf.is::<UnresolvedShuffleExec>()
}

fn place_of_file(root: &str, location: &str) -> Result<Url> {
    let name = file_name(root, location);
    let place = match root {
        "file:///" => Url::from_file_path(&name).ok(),
        _ => Url::parse(&name).ok(),
    };
    place.ok_or_else(|| DataFusionError::Plan(format!("{name} is not the place of a file")))
}

fn unknown<T>(plan: &dyn ExecutionPlan) -> Result<T> {
    plan_err!(
        "{} is refused under --allow-path: the files that it reads or writes are unknown",
        plan.name()
    )
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn effects(sql: &str) -> Effects {
        let context = SessionContext::new().enable_url_table();
        let plan = context.state().create_logical_plan(sql).await.unwrap();
        Effects::of_query(&plan).unwrap()
    }

    fn names(effects: &Effects) -> Vec<String> {
        let name = |url: &Url| url.path().rsplit('/').next().unwrap_or_default().to_owned();
        effects.places.iter().map(name).collect()
    }

    #[tokio::test]
    async fn statements_that_write_are_told_from_queries() {
        for (sql, writes) in [
            ("SELECT 1", None),
            ("SELECT * FROM range(3) WHERE value IN (SELECT 1)", None),
            ("EXPLAIN SELECT 1", None),
            ("COPY (SELECT 1 AS a) TO '/none/x.csv'", Some("COPY")),
            (
                "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '/none/x.csv'",
                Some("COPY"),
            ),
            ("CREATE TABLE t AS SELECT 1 AS a", Some("CREATEMEMORYTABLE")),
        ] {
            assert_eq!(effects(sql).await.writes.as_deref(), writes, "{sql}");
        }
    }

    #[tokio::test]
    async fn places_are_found_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.csv", "b.csv", "c.csv"] {
            std::fs::write(dir.path().join(name), "x\n1\n").unwrap();
        }
        let at = |name: &str| dir.path().join(name).display().to_string();
        let sql = format!(
            "COPY (SELECT x FROM '{}' WHERE x IN (SELECT x FROM '{}') AND EXISTS (SELECT 1 FROM '{}')) TO '{}'",
            at("a.csv"),
            at("b.csv"),
            at("c.csv"),
            at("out.csv"),
        );
        let mut found = names(&effects(&sql).await);
        found.sort();
        assert_eq!(found, ["a.csv", "b.csv", "c.csv", "out.csv"]);
    }

    #[tokio::test]
    async fn a_task_s_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.csv"), "x\n1\n").unwrap();
        let context = SessionContext::new().enable_url_table();
        let sql = format!(
            "SELECT x FROM '{}/a.csv' UNION ALL SELECT 2",
            dir.path().display()
        );
        let plan = context.sql(&sql).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let places = places_of_task(plan.as_ref()).unwrap();
        let expected = Url::from_file_path(dir.path().join("a.csv")).unwrap();
        assert_eq!(places, [expected]);
    }
}
