//! Connection to the scheduler, and setup of DataFusion's context for it.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use datafusion::catalog::DynamicFileCatalog;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::prelude::{SessionConfig as DfConfig, SessionContext};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use volley_engine::object_stores::Stores;
use volley_engine::{
    VolleyLogicalCodec, VolleyPhysicalCodec, sent_rules, table_functions, with_mended_analysis,
};
use volley_proto::schedulers::standing_by;
use volley_proto::tls::disagreement;
use volley_proto::version::Version;
use volley_proto::wire::cluster_client::ClusterClient;
use volley_proto::wire::{DescribeRequest, DescribeResponse};

use super::files::{FileTables, FilesFactory};
use super::planner::ClusterPlanner;
use super::settings;
use crate::{Error, Result, SchedulerAddress};

/// Delay between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// Waits for a scheduler to answer, and asks it for the number of slots of its cluster.
pub(crate) async fn await_scheduler(
    scheduler: &SchedulerAddress,
    patience: Duration,
) -> Result<usize> {
    let address = scheduler.as_str();
    let deadline = Instant::now() + patience;
    let mut source = None;
    loop {
        let schedulers = scheduler.schedulers();
        let tried = schedulers.current().to_owned();
        let left = deadline.saturating_duration_since(Instant::now());
        match timeout(schedulers.share_of(left), ask(scheduler)).await {
            Ok(Ok(described)) => {
                let theirs = Version {
                    build: described.version,
                    wire: described.wire,
                };
                let own = Version::own();
                let this = ("this volley", Some(&own));
                if let Some(reason) = Version::disagreement(this, ("the scheduler", &theirs)) {
                    return Err(Error::Version {
                        address: address.to_owned(),
                        reason,
                    });
                }
                return Ok(usize::try_from(described.slots).unwrap_or(usize::MAX));
            }
            Ok(Err(Unanswered::Never(error))) => return Err(error),
            Ok(Err(Unanswered::Yet(error))) => source = Some(error),
            Err(_) => {}
        }
        schedulers.distrust(&tried);
        if Instant::now() + RETRY >= deadline {
            // A standby answers nothing but HTTP/1 without TLS.
            let stands_by = match scheduler.tls() {
                None => standing_by(&tried).await,
                Some(_) => None,
            };
            if let Some(reason) = stands_by {
                return Err(Error::Disagreement {
                    address: address.to_owned(),
                    reason,
                });
            }
            return Err(Error::Connect {
                address: address.to_owned(),
                waited: patience,
                source,
            });
        }
        sleep(RETRY).await;
    }
}

/// Reason why a scheduler has not answered.
enum Unanswered {
    /// A later attempt may succeed.
    Yet(Box<dyn std::error::Error + Send + Sync>),
    /// The scheduler refuses this client: another attempt does not help.
    Never(Error),
}

impl Unanswered {
    fn of(address: &str, error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        if let Some(reason) = disagreement(&*error) {
            return Self::Never(Error::Disagreement {
                address: address.to_owned(),
                reason,
            });
        }
        match error.downcast::<Error>() {
            Ok(error) => Self::Never(*error),
            Err(error) => Self::Yet(error),
        }
    }
}

async fn ask(scheduler: &SchedulerAddress) -> Result<DescribeResponse, Unanswered> {
    let address = scheduler.as_str();
    let channel = scheduler.connect().await;
    let channel = channel.map_err(|error| Unanswered::of(address, error))?;
    let cluster = ClusterClient::new(channel);
    let described = scheduler.authenticated(|| {
        let mut cluster = cluster.clone();
        async move { cluster.describe(DescribeRequest {}).await }
    });
    match described.await {
        Ok(described) => Ok(described.into_inner()),
        // If one side does not use TLS, gRPC reports the end of the connection as a refusal.
        // The scheduler refuses builds with another wire number.
        Err(status) if status.code() == Code::FailedPrecondition => {
            Err(Unanswered::Never(Error::Version {
                address: address.to_owned(),
                reason: status.message().to_owned(),
            }))
        }
        Err(status) => Err(match Error::denied(address, &status) {
            Some(denied) if disagreement(&status).is_none() => Unanswered::Never(denied),
            _ => Unanswered::of(address, status.into()),
        }),
    }
}

/// Builds DataFusion's context, which sends its plans to the cluster, with the settings applied.
pub(super) fn context(
    given: &[(String, String)],
    slots: usize,
    planner: ClusterPlanner,
) -> Result<SessionContext> {
    let scheduler = planner.cluster.scheduler_address();
    let (url, tls) = (scheduler.url(), scheduler.tls().cloned());
    let headers = scheduler.headers()?;
    let stores = Stores::default();
    let mut config = settings::with_defaults(DfConfig::new_with_ballista())
        .with_extension(Arc::new(stores.clone()))
        .with_information_schema(true)
        // One partition per slot, unless the settings say otherwise.
        .with_target_partitions(slots.max(1))
        .with_ballista_logical_extension_codec(Arc::new(VolleyLogicalCodec::default()))
        .with_ballista_physical_extension_codec(Arc::new(VolleyPhysicalCodec::default()))
        .with_ballista_query_planner(Arc::new(planner));
    for (key, value) in given {
        settings::set(&mut config, key, value)?;
    }
    // For Ballista's own clients, which analyze plans of data frames.
    config = config.with_ballista_grpc_metadata(headers);
    if let Some(tls) = tls {
        config = config
            .with_ballista_use_tls(true)
            .with_ballista_override_create_grpc_client_endpoint(Arc::new(move |endpoint| {
                Ok(tls.endpoint(endpoint)?)
            }));
    }
    // A cached list of a folder's files would never be invalidated.
    let caches = CacheManagerConfig::default().with_list_files_cache_limit(0);
    let runtime = RuntimeEnvBuilder::new()
        .with_cache_manager(caches)
        .with_object_store_registry(Arc::new(stores));
    let mut state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(runtime.build_arc()?)
        .build();
    for format in FilesFactory::FORMATS {
        let factory = Arc::new(FilesFactory::default());
        state
            .table_factories_mut()
            .insert(format.to_owned(), factory);
    }
    let state = state.upgrade_for_ballista(url)?;
    let files = Arc::new(FileTables::default());
    let catalogs =
        DynamicFileCatalog::new(Arc::clone(state.catalog_list()), Arc::clone(&files) as _);
    let state = SessionStateBuilder::new_from_existing(state)
        .with_catalog_list(Arc::new(catalogs))
        .with_optimizer_rules(sent_rules());
    let mut state = with_mended_analysis(state).build();
    // A scan's plan loses this function on the way to an executor.
    state.deregister_udf("file_row_index")?;
    let context = SessionContext::new_with_state(state);
    files.belong_to(&context);
    for function in table_functions() {
        context.register_udtf(function.name(), Arc::clone(function.function()));
    }
    Ok(context)
}
