//! Reaching the scheduler, and making DataFusion's context for it.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::config::BALLISTA_ADAPTIVE_PLANNER_ENABLED;
use ballista_core::config::BALLISTA_CLIENT_PULL;
use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use ballista_core::utils::create_grpc_client_endpoint;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig as DfConfig, SessionContext};
use tokio::time::{Instant, sleep, timeout_at};
use volley_proto::plan::{VolleyLogicalCodec, VolleyPhysicalCodec};
use volley_proto::wire::DescribeRequest;
use volley_proto::wire::cluster_client::ClusterClient;

use super::planner::ClusterPlanner;
use crate::{Error, Result};

/// How long to wait between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// The URL of a scheduler's address.
pub(super) fn scheduler_url(address: &str) -> String {
    format!("http://{address}")
}

/// Waits for a scheduler to answer, and asks it how many slots its cluster has.
pub(super) async fn await_scheduler(address: &str, patience: Duration) -> Result<usize> {
    let deadline = Instant::now() + patience;
    let mut source = None;
    loop {
        match timeout_at(deadline, ask(scheduler_url(address))).await {
            Ok(Ok(slots)) => return Ok(slots),
            Ok(Err(error)) => source = Some(error),
            Err(_) => {}
        }
        if Instant::now() + RETRY >= deadline {
            return Err(Error::Connect {
                address: address.to_owned(),
                waited: patience,
                source,
            });
        }
        sleep(RETRY).await;
    }
}

async fn ask(url: String) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    let channel = create_grpc_client_endpoint(url, None)?.connect().await?;
    let mut cluster = ClusterClient::new(channel);
    let described = cluster.describe(DescribeRequest {}).await?.into_inner();
    Ok(usize::try_from(described.slots)?)
}

/// DataFusion's context, with its plans sent to the cluster and the settings applied.
pub(super) fn context(
    settings: &[(String, String)],
    slots: usize,
    planner: ClusterPlanner,
) -> Result<SessionContext> {
    let url = planner.scheduler_url.clone();
    let mut config = DfConfig::new_with_ballista()
        .with_information_schema(true)
        // A partition for each slot, unless the settings say otherwise.
        .with_target_partitions(slots.max(1))
        // Ballista 55's adaptive planner repeats branches of a union, and hangs where a plan it
        // changed fails a check: wrong rows and no end are worse than a plan less clever.
        .set_bool(BALLISTA_ADAPTIVE_PLANNER_ENABLED, false)
        // Pushed, a job's name arrives with the first change of its state, which may be its end:
        // what has no name cannot be cancelled.
        .set_bool(BALLISTA_CLIENT_PULL, true)
        .with_ballista_logical_extension_codec(Arc::new(VolleyLogicalCodec::default()))
        .with_ballista_physical_extension_codec(Arc::new(VolleyPhysicalCodec::default()))
        .with_ballista_query_planner(Arc::new(planner));
    for (key, value) in settings {
        config.options_mut().set(key, value).map_err(|error| {
            let reason = match Error::from(error) {
                Error::Engine { cause, .. } => cause,
                other => other.to_string(),
            };
            Error::Setting {
                key: key.clone(),
                value: value.clone(),
                reason,
            }
        })?;
    }
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .build();
    Ok(SessionContext::new_with_state(
        state.upgrade_for_ballista(url)?,
    ))
}
