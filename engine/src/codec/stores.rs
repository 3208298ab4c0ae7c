//! The stores that a plan reads and writes.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use url::Url;

use crate::codec::tables::Files;
use crate::object_stores::{Declared, Stores};
use crate::write::{CommitExec, WriteExec, folder_of_sink};

/// Returns the options that the names in a task's plan stand for.
pub(crate) fn declared(plan: &Arc<dyn ExecutionPlan>, stores: &Stores) -> Result<Vec<Declared>> {
    let mut urls: Vec<Url> = Vec::new();
    plan.apply(|node| {
        if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
            if let Some(scan) = scan.data_source().downcast_ref::<FileScanConfig>() {
                let root: &Url = scan.object_store_url.as_ref();
                urls.push(root.clone());
            }
        } else if let Some(writer) = node.downcast_ref::<DataSinkExec>() {
            let folder = folder_of_sink(writer.sink());
            urls.extend(folder.map(|folder| folder.get_url().clone()));
        } else if let Some(write) = node.downcast_ref::<WriteExec>() {
            urls.push(write.target().folder().get_url().clone());
        } else if let Some(commit) = node.downcast_ref::<CommitExec>() {
            urls.push(commit.target().folder().get_url().clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(stores.declared(&urls))
}

/// Returns the options that the names in a query stand for, to be sent with it to the scheduler.
///
/// # Errors
/// Passes on errors of visiting the plan.
pub fn declared_stores(plan: &LogicalPlan, stores: &Stores) -> Result<Vec<Declared>> {
    let mut urls: Vec<Url> = Vec::new();
    plan.apply_with_subqueries(|node| {
        let table = match node {
            LogicalPlan::TableScan(scan) => &scan.source,
            LogicalPlan::Dml(change) => &change.target,
            LogicalPlan::Copy(copy) => {
                urls.extend(Url::parse(&copy.output_url).ok());
                return Ok(TreeNodeRecursion::Continue);
            }
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        let Ok(provider) = source_as_provider(table) else {
            return Ok(TreeNodeRecursion::Continue);
        };
        let listing = match provider.downcast_ref::<Files>() {
            Some(files) => Some(files.listing()),
            None => provider.downcast_ref::<ListingTable>(),
        };
        let places = listing.map(ListingTable::table_paths);
        let places = places.into_iter().flatten().map(ListingTableUrl::get_url);
        urls.extend(places.cloned());
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(stores.declared(&urls))
}
