//! Authorization of submissions by the decoded plan, independent of what the client says about it.

use std::sync::Arc;

use ballista_core::serde::protobuf::ExecuteQueryParams;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_scheduler::scheduler_server::SessionBuilder;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion_proto::logical_plan::AsLogicalPlan;
use datafusion_proto::protobuf::LogicalPlanNode;
use tonic::Status;
use url::Url;
use volley_engine::settings::{JobSettings, SHUFFLE_STORE, session_config};
use volley_engine::{Effects, TrainNode, VolleyLogicalCodec};
use volley_proto::access::{AllowedPaths, Principal, Role};
use volley_proto::nesting;

use super::demands::gang;
use super::gateway::settings_of;
use super::nesting::is_deeper;
use crate::access::Caller;
use crate::control::DeviceRequest;

/// Checks of plans before they are accepted.
pub(super) struct Permissions {
    /// Context that plans are decoded in.
    context: Arc<TaskContext>,
    codec: VolleyLogicalCodec,
    paths: AllowedPaths,
}

impl Permissions {
    /// # Errors
    /// When a session cannot be made.
    pub(super) fn new(sessions: &SessionBuilder, paths: AllowedPaths) -> Result<Self> {
        let session = SessionContext::new_with_state(sessions(session_config())?);
        Ok(Self {
            context: session.task_ctx(),
            codec: VolleyLogicalCodec::default(),
            paths,
        })
    }

    /// # Errors
    /// When the plan is not accepted, or not from this caller; says what would be needed.
    pub(super) fn check(&self, caller: &Caller, query: &ExecuteQueryParams) -> Result<(), Status> {
        let plan = match &query.query {
            Some(Query::LogicalPlan(plan)) => plan,
            // A physical plan would run unchanged, past everything that makes plans correct here.
            Some(Query::PhysicalPlan(_)) => {
                return Err(Status::invalid_argument(
                    "physical plans are not accepted: send the logical plan",
                ));
            }
            // Ballista itself refuses a missing or unsupported query.
            Some(Query::SubstraitPlan(_)) | None => return Ok(()),
        };
        // A caller that may do everything everywhere need not wait for the plan to be decoded.
        let most = caller.limits.plan_depth;
        if caller.principal.role.may(Role::Run) && !self.paths.is_restricted() && most.is_none() {
            return Ok(());
        }
        let plan = self.decode(plan).map_err(unreadable)?;
        within_depth(&caller.principal, most, &plan)
            .map_err(|reason| caller.refused("submit", "query", &reason))?;
        let effects = Effects::of_query(&plan).map_err(unreadable)?;
        allowed(&caller.principal, &self.paths, &effects)
            .map_err(|reason| caller.refused("submit", &summary(&effects), &reason))
    }

    /// # Errors
    /// When a job is to put copies of its rows where this caller may not write.
    pub(super) fn check_shuffle_store(
        &self,
        caller: &Caller,
        job: &JobSettings,
    ) -> Result<(), Status> {
        let Some(store) = &job.shuffle_store else {
            return Ok(());
        };
        let effects = shuffle_store_effects(store);
        allowed(&caller.principal, &self.paths, &effects)
            .map_err(|reason| caller.refused("submit", &summary(&effects), &reason))
    }

    /// Returns the devices that the trainings of a query request; none where it is only explained.
    ///
    /// # Errors
    /// When the plan cannot be read.
    pub(super) fn devices(&self, query: &ExecuteQueryParams) -> Result<Vec<DeviceRequest>, Status> {
        let Some(Query::LogicalPlan(plan)) = &query.query else {
            return Ok(Vec::new());
        };
        let plan = self.decode(plan).map_err(unreadable)?;
        let mut devices = Vec::new();
        let looked = plan.apply(|node| {
            let node = match node {
                LogicalPlan::Explain(_) => return Ok(TreeNodeRecursion::Stop),
                LogicalPlan::Extension(extension) => extension.node.as_any(),
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            if let Some(train) = node.downcast_ref::<TrainNode>() {
                devices.push(gang(train.spec()).device);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        looked.map_err(unreadable)?;
        Ok(devices)
    }

    /// # Errors
    /// When a job of an earlier scheduler reads or writes where plans may not any more.
    pub(super) fn check_restored(&self, query: &ExecuteQueryParams) -> Result<(), String> {
        let Some(Query::LogicalPlan(plan)) = &query.query else {
            return Err("it has no logical plan".to_owned());
        };
        if !self.paths.is_restricted() {
            return Ok(());
        }
        let effects = self.decode(plan).and_then(|plan| Effects::of_query(&plan));
        let mut effects = effects.map_err(|error| error.strip_backtrace())?;
        let settings = settings_of(query).map_err(|status| status.message().to_owned())?;
        effects.places.extend(settings.shuffle_store);
        // Its owner's role was checked when it was submitted.
        allowed(&Principal::anybody(), &self.paths, &effects)
    }

    fn decode(&self, plan: &[u8]) -> Result<LogicalPlan> {
        let plan: LogicalPlanNode = nesting::decode(plan).map_err(DataFusionError::External)?;
        plan.try_into_logical_plan(&self.context, &self.codec)
    }
}

/// Returns the error about a plan that cannot be decoded.
fn unreadable(error: DataFusionError) -> Status {
    Status::invalid_argument(format!(
        "the plan cannot be read: {}",
        error.strip_backtrace()
    ))
}

/// # Errors
/// When a plan is deeper than its principal's role may submit.
fn within_depth(who: &Principal, most: Option<usize>, plan: &LogicalPlan) -> Result<(), String> {
    match most {
        Some(most) if is_deeper(plan, most) => Err(format!(
            "the query has more than {most} operators in each other, the limit plan_depth of the role {}",
            who.role
        )),
        _ => Ok(()),
    }
}

/// # Errors
/// When a submission is refused, with the reason.
fn allowed(who: &Principal, paths: &AllowedPaths, effects: &Effects) -> Result<(), String> {
    if let Some(statement) = &effects.writes {
        let needed = who.needs(Role::Run);
        needed.map_err(|reason| format!("{statement} is not run: {reason}"))?;
    }
    if !paths.is_restricted() {
        return Ok(());
    }
    if let Some(unknown) = &effects.unknown {
        return Err(format!(
            "{unknown} is refused under --allow-path: its files are unknown"
        ));
    }
    let mut places = effects.places.iter();
    places.try_for_each(|place| paths.check(place).map_err(|denied| denied.to_string()))
}

/// Returns the effects of copies of a job's rows.
fn shuffle_store_effects(store: &Url) -> Effects {
    Effects {
        writes: Some(format!("SET {SHUFFLE_STORE}")),
        places: vec![store.clone()],
        unknown: None,
    }
}

/// Names the submission in a word or two.
fn summary(effects: &Effects) -> String {
    effects.writes.clone().unwrap_or_else(|| "query".to_owned())
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    use super::*;

    fn who(role: Role) -> Principal {
        Principal {
            name: "alice".to_owned(),
            role,
        }
    }

    #[test]
    fn a_role_s_plans_are_no_deeper_than_its_limit() {
        let plan = |operators: usize| {
            let mut plan = LogicalPlanBuilder::empty(true);
            for _ in 1..operators {
                plan = plan.project([lit(1).alias("a")]).unwrap();
            }
            plan.build().unwrap()
        };
        let within = |most, operators| within_depth(&who(Role::Read), most, &plan(operators));
        assert_eq!(within(Some(5), 5), Ok(()));
        assert_eq!(within(None, 50), Ok(()));
        let said = within(Some(5), 6).unwrap_err();
        assert!(said.contains("limit plan_depth of the role read"), "{said}");
    }

    #[test]
    fn only_who_may_run_writes() {
        let writes = Effects {
            writes: Some("COPY".to_owned()),
            ..Effects::default()
        };
        let anywhere = AllowedPaths::default();
        let said = allowed(&who(Role::Read), &anywhere, &writes).unwrap_err();
        assert!(
            said.contains("COPY") && said.contains("role run") && said.contains("role read"),
            "{said}"
        );
        assert_eq!(allowed(&who(Role::Run), &anywhere, &writes), Ok(()));
        assert_eq!(
            allowed(&who(Role::Read), &anywhere, &Effects::default()),
            Ok(())
        );
    }

    #[test]
    fn copies_of_rows_are_writes() {
        let prefix = "s3://bucket/copies".to_owned();
        let paths = AllowedPaths::new(&[prefix]).unwrap();
        let to = |place: &str| shuffle_store_effects(&Url::parse(place).unwrap());
        let within = to("s3://bucket/copies/of-rows");
        assert_eq!(allowed(&who(Role::Run), &paths, &within), Ok(()));
        let said = allowed(&who(Role::Read), &paths, &within).unwrap_err();
        assert!(said.contains("volley.shuffle_store"), "{said}");
        let said = allowed(&who(Role::Run), &paths, &to("s3://bucket/other")).unwrap_err();
        assert!(said.contains("--allow-path"), "{said}");
    }

    #[test]
    fn places_are_checked_for_everybody() {
        let paths = AllowedPaths::new(&["s3://bucket/in".to_owned()]).unwrap();
        let reads = |place: &str| Effects {
            places: vec![Url::parse(place).unwrap()],
            ..Effects::default()
        };
        for role in [Role::Read, Role::Administer] {
            assert_eq!(
                allowed(&who(role), &paths, &reads("s3://bucket/in/x")),
                Ok(())
            );
            let said = allowed(&who(role), &paths, &reads("s3://bucket/out/x")).unwrap_err();
            assert!(
                said.contains("s3://bucket/out/x") && said.contains("--allow-path"),
                "{said}"
            );
        }
        let unknown = Effects {
            unknown: Some("a table of another kind".to_owned()),
            ..Effects::default()
        };
        assert!(allowed(&who(Role::Administer), &paths, &unknown).is_err());
        assert_eq!(
            allowed(&who(Role::Administer), &AllowedPaths::default(), &unknown),
            Ok(())
        );
    }
}
