//! Reaching the scheduler, and making DataFusion's context for it.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use ballista_core::serde::protobuf::GetJobStatusParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::create_grpc_client_endpoint;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig as DfConfig, SessionContext};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Code;
use volley_proto::plan::{VolleyLogicalCodec, VolleyPhysicalCodec};

use super::planner::ClusterPlanner;
use crate::{Error, Result};

/// How long to wait between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// The URL of a scheduler's address.
pub(super) fn scheduler_url(address: &str) -> String {
    format!("http://{address}")
}

/// Waits for a scheduler to answer.
pub(super) async fn await_scheduler(address: &str, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let mut source = None;
    loop {
        match timeout_at(deadline, ask(scheduler_url(address))).await {
            Ok(Ok(())) => return Ok(()),
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

/// Asks for a job that does not exist: any answer but "unknown method" is a scheduler's.
async fn ask(url: String) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let channel = create_grpc_client_endpoint(url, None)?.connect().await?;
    let nobody = GetJobStatusParams {
        job_id: "none".to_owned(),
    };
    match SchedulerGrpcClient::new(channel)
        .get_job_status(nobody)
        .await
    {
        Err(status) if matches!(status.code(), Code::Unimplemented | Code::Unavailable) => {
            Err(status.into())
        }
        _ => Ok(()),
    }
}

/// DataFusion's context, with its plans sent to the cluster and the settings applied.
pub(super) fn context(
    settings: &[(String, String)],
    planner: ClusterPlanner,
) -> Result<SessionContext> {
    let url = planner.scheduler_url.clone();
    let mut config = DfConfig::new_with_ballista()
        .with_information_schema(true)
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
