//! Planner of `ML` calls: DataFusion offers it every relation in FROM, and it plans the calls.
//!
//! Planning is synchronous, so the manifests of the models that a statement names are read first, and each statement
//! gets a planner with its manifests. A view keeps the versions that were current when it was created.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{Expr as SqlExpr, Query, TableFactor};
use url::Url;
use volley_engine::PredictNode;
use volley_engine::error::External;
use volley_proto::spec::Transform;
use volley_proto::store::{Manifest, PredictedColumns};
use volley_proto::tables::Epoch;
use volley_proto::{ModelName, ModelRef};

use super::call::{Call, Function, Named};
use super::derived::Judged;
use super::parse::ident_name;
use super::{
    check_unambiguous, class_queries, evaluate, feature_info, global_explain, training_info,
    transform,
};
use crate::{Error, Result};

/// Default number of features that explain a prediction, as in BigQuery ML.
const TOP_FEATURES: usize = 5;

/// Models that a statement names, in their state when it is planned.
#[derive(Debug, Default)]
pub(crate) struct NamedModels {
    published: HashMap<Named, Manifest>,
    /// Epochs so far of models in training, if a statement asks for them.
    under_way: HashMap<ModelName, Vec<Epoch>>,
}

impl NamedModels {
    pub(crate) fn published(&mut self, model: Named, manifest: Manifest) {
        self.published.insert(model, manifest);
    }

    pub(crate) fn under_way(&mut self, model: ModelName, epochs: Vec<Epoch>) {
        self.under_way.insert(model, epochs);
    }

    /// Returns the epochs of the training that a call asks about, if it is running.
    fn epochs_of(&self, function: Function, (name, version): &Named) -> Option<&[Epoch]> {
        let asks = function == Function::TrainingInfo && version.is_none();
        asks.then(|| self.under_way.get(name).map(Vec::as_slice))?
    }
}

/// Planner of the `ML` calls of one statement.
#[derive(Debug)]
pub(crate) struct MlPlanner {
    pub(crate) store: Url,
    pub(crate) models: NamedModels,
}

impl RelationPlanner for MlPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> datafusion::error::Result<RelationPlanning> {
        let Some(call) = Call::of(&relation)? else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let normalize = context
            .context_provider()
            .options()
            .sql_parser
            .enable_ident_normalization;
        let name = ident_name(call.model.clone(), &IdentNormalizer::new(normalize))?;
        let model = (name, call.version);
        if let Some(epochs) = self.models.epochs_of(call.function, &model) {
            let plan = training_info::under_way(epochs)?;
            return Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(
                plan, call.alias,
            ))));
        }
        let refuse = |reason: String| Error::MlFunction {
            function: call.function.name().to_owned(),
            reason,
        };
        let manifest = self.models.published.get(&model).ok_or_else(|| {
            let (name, _) = &model;
            refuse(format!(
                "model {name} was not read before planning: use Session::sql"
            ))
        })?;
        let given = || {
            call.input.clone().ok_or_else(|| {
                datafusion::error::DataFusionError::Internal("a checked call has its query".into())
            })
        };
        let explains = [Function::ExplainPredict, Function::GlobalExplain];
        if explains.contains(&call.function) && !manifest.spec.label.several().is_empty() {
            let what = format!("ML.{} of a model with several labels", call.function.name());
            return Err(Error::NotSupported { what }.into());
        }
        let plan = match call.function {
            Function::Predict => {
                let rows = planned(context, given()?)?;
                let mut expression = |expr, schema: &DFSchema| context.sql_to_expr(expr, schema);
                predict(manifest, &self.store, rows, &mut expression)?
            }
            Function::ExplainPredict => {
                let columns = PredictedColumns {
                    explained_by: Some(call.top_features.unwrap_or(TOP_FEATURES)),
                    ..manifest.predicted()
                };
                let rows = planned(context, given()?)?;
                let mut expression = |expr, schema: &DFSchema| context.sql_to_expr(expr, schema);
                let explained = predict_as(manifest, columns, &self.store, rows, &mut expression)?;
                attributions_last(explained)?
            }
            Function::Evaluate
            | Function::ConfusionMatrix
            | Function::RocCurve
            | Function::Calibration
            | Function::GlobalExplain => {
                let schema = planned(context, given()?)?;
                let schema = schema.schema().as_arrow();
                let transform::Labelled {
                    rows: query,
                    labels,
                    weight,
                } = transform::labelled(manifest, given()?, schema)?;
                let rows = planned(context, query.clone())?;
                evaluate::check_labels(manifest, &labels, &rows)?;
                let weight = evaluate::weight(manifest, weight, &rows)?;
                let names = IdentNormalizer::new(normalize);
                let by = evaluate::groups(manifest, &call.by, &names, &rows)?;
                let judged = Judged {
                    rows: query,
                    label: labels.first().map_or("", String::as_str),
                    weight,
                    by: &by,
                };
                match (call.function, &manifest.classes) {
                    (Function::GlobalExplain, _) => {
                        planned(context, global_explain::query(manifest, &call, judged)?)?
                    }
                    (_, Some(classes)) => {
                        let query = class_queries::query(manifest, classes, &call, judged)?;
                        planned(context, query)?
                    }
                    (Function::Evaluate, None) => {
                        let mut expression =
                            |expr, schema: &DFSchema| context.sql_to_expr(expr, schema);
                        let predicted = predict(manifest, &self.store, rows, &mut expression)?;
                        evaluate::metrics(manifest, &labels, weight, predicted, &by)?
                    }
                    (_, None) => {
                        let reason = "expected a classifier, and this model predicts numbers";
                        return Err(refuse(reason.to_owned()).into());
                    }
                }
            }
            Function::FeatureInfo => match &call.input {
                None => feature_info::published(manifest)?,
                Some(rows) => {
                    let mut rows = rows.clone();
                    if let Some(of_rows) = &manifest.spec.transform {
                        let schema = planned(context, rows.clone())?;
                        let schema = schema.schema().as_arrow();
                        rows = transform::prepared(manifest, of_rows, rows, schema)?;
                    }
                    let schema = planned(context, rows.clone())?;
                    manifest
                        .check_input(schema.schema().as_arrow())
                        .external()?;
                    planned(context, feature_info::query(manifest, rows)?)?
                }
            },
            Function::TrainingInfo => training_info::published(manifest)?,
            Function::Transform => {
                let Some(of_rows) = &manifest.spec.transform else {
                    let reason =
                        "expected a model created with TRANSFORM (…), and this one was not";
                    return Err(refuse(reason.to_owned()).into());
                };
                let schema = planned(context, given()?)?;
                let schema = schema.schema().as_arrow();
                let query = transform::prepared(manifest, of_rows, given()?, schema)?;
                planned(context, query)?
            }
        };
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(
            plan, call.alias,
        ))))
    }
}

/// Plans a call's query.
fn planned(
    context: &mut dyn RelationPlannerContext,
    subquery: Box<Query>,
) -> datafusion::error::Result<LogicalPlan> {
    context.plan(TableFactor::Derived {
        lateral: false,
        subquery,
        alias: None,
        sample: None,
    })
}

/// Planner of an expression over rows.
type Expression<'a> = dyn FnMut(SqlExpr, &DFSchema) -> datafusion::error::Result<Expr> + 'a;

/// Plans the input's columns with the model's prediction.
pub(crate) fn predict(
    manifest: &Manifest,
    store: &Url,
    input: LogicalPlan,
    expression: &mut Expression<'_>,
) -> Result<LogicalPlan> {
    predict_as(manifest, manifest.predicted(), store, input, expression)
}

/// Moves the attributions to the end, since a terminal leaves out columns in the middle.
fn attributions_last(explained: LogicalPlan) -> Result<LogicalPlan> {
    let columns = explained.schema().columns().into_iter();
    let (attributions, others): (Vec<_>, Vec<_>) =
        columns.partition(|column| column.name == PredictedColumns::ATTRIBUTIONS);
    let columns = others.into_iter().chain(attributions).map(Expr::Column);
    let ordered = LogicalPlanBuilder::from(explained).project(columns)?;
    Ok(ordered.build()?)
}

/// Plans a prediction with these output columns.
///
/// ```text
/// Projection: the input's columns and the prediction        (with a TRANSFORM)
///   Predict
///     Projection: the input's columns and the features      (with a TRANSFORM)
///       input
/// ```
fn predict_as(
    manifest: &Manifest,
    columns: PredictedColumns,
    store: &Url,
    input: LogicalPlan,
    expression: &mut Expression<'_>,
) -> Result<LogicalPlan> {
    let schema = input.schema().as_arrow();
    check_unambiguous(schema)?;
    for field in columns.fields() {
        if schema.field_with_name(field.name()).is_ok() {
            let column = field.name().clone();
            return Err(Error::RepeatedColumn { column });
        }
    }
    let model = ModelRef {
        store: store.clone(),
        name: manifest.spec.model.clone(),
        version: manifest.version,
    };
    let predicted = |columns, input| -> Result<LogicalPlan> {
        let features = manifest.spec.features.iter();
        let features = features.map(|feature| manifest.feature_column(feature));
        let node = PredictNode::try_new(model, columns, input)?.with_features(features.collect());
        let node = Arc::new(node);
        Ok(LogicalPlan::Extension(Extension { node }))
    };
    let Some(transform) = &manifest.spec.transform else {
        manifest.check_input(schema)?;
        return predicted(columns, input);
    };
    let own: Vec<_> = input.schema().columns();
    let own = || own.iter().cloned().map(Expr::Column);
    let features = &manifest.spec.features;
    let is_feature = |column: &str| features.iter().any(|feature| feature.column == column);
    let computed = transform::expressions(transform, schema, is_feature)?;
    let computed = computed
        .into_iter()
        .map(|(name, expr)| Ok((name, expression(expr, input.schema())?)));
    let computed = computed.collect::<Result<Vec<_>>>()?;
    let named = computed.iter().map(|(name, expr)| {
        let name = Transform::feature_column(name);
        expr.clone().alias(name)
    });
    let features = computed
        .iter()
        .map(|(name, expr)| expr.clone().alias(name.clone()));
    let features = LogicalPlanBuilder::from(input.clone()).project(features)?;
    manifest.check_input(features.build()?.schema().as_arrow())?;
    let prediction = columns.fields();
    let prediction = prediction
        .iter()
        .map(|field| Expr::Column(Column::new_unqualified(field.name())));
    let rows = LogicalPlanBuilder::from(input.clone()).project(own().chain(named))?;
    let predicted = predicted(columns, rows.build()?)?;
    let rows = LogicalPlanBuilder::from(predicted).project(own().chain(prediction))?;
    Ok(rows.build()?)
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::LogicalPlan;
    use volley_proto::store::Scale;

    use crate::testing::{on_a_deep_stack, session};
    use crate::{Error, Result, Session};

    async fn optimized(session: &Session, sql: &str) -> Result<LogicalPlan> {
        let (state, plan) = session.sql(sql).await?.into_parts();
        Ok(volley_engine::optimized(&plan, &state)?)
    }

    #[test]
    fn filters_reach_the_scan_below_a_prediction() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            for sql in [
                "SELECT \"Id\", \"predicted_Sales\" FROM ML.PREDICT(MODEL known, TABLE sales) p \
                 WHERE \"Promo\" = 'x' AND p.\"predicted_Sales\" > 10",
                "WITH s AS (SELECT * FROM sales) SELECT p.\"predicted_Sales\" \
                 FROM ml.predict(MODEL Known, (SELECT * FROM s WHERE \"Promo\" = 'x'), version => 1) AS p \
                 JOIN sales ON sales.\"Id\" = p.\"Id\" WHERE p.\"predicted_Sales\" > 10",
                "SELECT * FROM (SELECT * FROM ML.PREDICT(MODEL \"known\", 1, (SELECT * FROM sales))) t \
                 WHERE \"Promo\" = 'x' AND \"predicted_Sales\" > 10",
            ] {
                let plan = optimized(&session, sql)
                    .await
                    .unwrap()
                    .display_indent()
                    .to_string();
                let at = |what: &str| {
                    plan.find(what)
                        .unwrap_or_else(|| panic!("{what} in {plan}"))
                };
                let predict = at("Predict: known version 1 AS predicted_Sales");
                assert!(at("predicted_Sales > Float64(10)") < predict, "{plan}");
                assert!(at("Promo = Utf8(\"x\")") > predict, "{plan}");
            }
        });
    }

    #[test]
    fn a_prediction_reads_its_features_and_what_is_selected() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            for (sql, read) in [
                (
                    "SELECT \"predicted_Sales\" FROM ML.PREDICT(MODEL known, (SELECT * FROM sales))",
                    "Projection: sales.Store, sales.Distance\n",
                ),
                (
                    "SELECT p.\"Id\", p.\"predicted_Sales\" FROM ML.PREDICT(MODEL known, TABLE sales) p \
                     WHERE p.\"predicted_Sales\" > 10",
                    "Projection: sales.Id, sales.Store, sales.Distance\n",
                ),
            ] {
                let (state, plan) = session.sql(sql).await.unwrap().into_parts();
                // As it is sent, where the features are known.
                let sent = state.optimize(&plan).unwrap().display_indent().to_string();
                let (_, below) = sent.split_once("Predict: known").unwrap();
                assert!(below.contains(read), "{sent}");
            }
        });
    }

    #[test]
    fn models_may_stand_in_views_and_copies() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let view = "CREATE VIEW v AS SELECT \"Id\", \"predicted_Sales\" AS y \
                        FROM ML.PREDICT(MODEL known, TABLE sales)";
            session.sql(view).await.unwrap();
            let plan = optimized(&session, "SELECT y FROM v").await.unwrap();
            assert!(plan.display_indent().to_string().contains("Predict: known"));
            let copy =
                "COPY (SELECT * FROM ML.PREDICT(MODEL known, TABLE v2)) TO 'x.csv' STORED AS CSV";
            session
                .sql("CREATE VIEW v2 AS SELECT * FROM sales")
                .await
                .unwrap();
            let plan = session.sql(copy).await;
            // Writing CSV needs a feature of the engine; the test is only about naming the model.
            if let Err(error) = plan {
                assert!(!matches!(error, Error::MlFunction { .. }), "{error}");
            }
        });
    }

    #[test]
    fn evaluates_by_an_aggregate() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let frame = session
                .sql("SELECT * FROM ML.EVALUATE(MODEL known, TABLE sales)")
                .await
                .unwrap();
            let names: Vec<_> = frame
                .schema()
                .fields()
                .iter()
                .map(|field| field.name().clone())
                .collect();
            assert_eq!(
                names,
                [
                    "rows",
                    "mean_absolute_error",
                    "mean_squared_error",
                    "r2_score",
                    "rmspe",
                    "transformed_mae"
                ]
            );
            let (state, plan) = frame.into_parts();
            let plan = volley_engine::optimized(&plan, &state).unwrap();
            let plan = plan.display_indent().to_string();
            assert!(
                plan.find("Aggregate").unwrap() < plan.find("Predict").unwrap(),
                "{plan}"
            );
            assert!(plan.contains("Sales IS NOT NULL"), "{plan}");
        });
    }

    #[test]
    fn evaluates_quantiles_and_the_interval_between_the_outermost() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let mut manifest = crate::testing::manifest("spread");
            manifest.spec.loss = volley_proto::spec::Loss::Quantiles {
                shares: vec![0.05, 0.5, 0.95],
            };
            session
                .store()
                .publish(1, manifest, Vec::new())
                .await
                .unwrap();
            let names = async |sql: &str| -> Vec<String> {
                let frame = session.sql(sql).await.unwrap();
                let fields = frame.schema().fields().iter();
                fields.map(|field| field.name().clone()).collect()
            };
            let evaluated = names("SELECT * FROM ML.EVALUATE(MODEL spread, TABLE sales)").await;
            assert_eq!(
                evaluated[5..],
                [
                    "transformed_mae",
                    "mean_pinball_loss",
                    "interval_coverage",
                    "mean_interval_width"
                ]
            );
            let bounds = "SELECT \"predicted_Sales\", \"predicted_Sales_quantiles\"[1]['value'] AS low \
                          FROM ML.PREDICT(MODEL spread, TABLE sales)";
            assert_eq!(names(bounds).await, ["predicted_Sales", "low"]);
        });
    }

    #[test]
    fn evaluates_each_of_several_labels() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let mut manifest = crate::testing::manifest("both");
            manifest.spec.label.columns.push("Id".to_owned());
            manifest.label_scales.push(Scale::IDENTITY);
            session
                .store()
                .publish(1, manifest, Vec::new())
                .await
                .unwrap();
            let names = async |sql: &str| -> Vec<String> {
                let frame = session.sql(sql).await.unwrap();
                let fields = frame.schema().fields().iter();
                fields.map(|field| field.name().clone()).collect()
            };
            let predicted = names("SELECT * FROM ML.PREDICT(MODEL both, TABLE sales)").await;
            assert_eq!(predicted[5..], ["predicted_Sales", "predicted_Id"]);
            let evaluated = "SELECT * FROM ML.EVALUATE(MODEL both, TABLE sales, BY \"Promo\")";
            assert_eq!(names(evaluated).await[..3], ["label", "Promo", "rows"]);
            for by in ["BY \"Promo\", \"Store\"", "BY \"Promo\", BY \"Store\""] {
                let evaluated = format!("SELECT * FROM ML.EVALUATE(MODEL both, {by}, TABLE sales)");
                let due = ["label", "Promo", "Store", "rows"];
                assert_eq!(names(&evaluated).await[..4], due, "{by}");
            }
            for (sql, message) in [
                (
                    "ML.EXPLAIN_PREDICT(MODEL both, TABLE sales)",
                    "several labels",
                ),
                (
                    "ML.GLOBAL_EXPLAIN(MODEL both, TABLE sales)",
                    "several labels",
                ),
                (
                    "ML.EVALUATE(MODEL both, (SELECT \"Store\", \"Distance\", \"Sales\" FROM sales))",
                    "\"Id\"",
                ),
            ] {
                let error = session.sql(&format!("SELECT * FROM {sql}")).await;
                let error = error.unwrap_err().to_string();
                assert!(error.contains(message), "{sql}: {error}");
            }
        });
    }

    #[test]
    fn says_what_is_wrong_with_a_call() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let error = async |from: &str| {
                session
                    .sql(&format!("SELECT * FROM {from}"))
                    .await
                    .unwrap_err()
            };
            for from in [
                "ML.PREDCT(MODEL known, TABLE sales)",
                "ML.PREDICT(MODEL known)",
                "ML.PREDICT(TABLE sales)",
                "ML.PREDICT(MODEL known, TABLE sales, TABLE sales)",
                "ML.PREDICT(MODEL known, 'x', TABLE sales)",
                "ML.TRAINING_INFO(MODEL known, TABLE sales)",
            ] {
                let error = error(from).await;
                assert!(matches!(error, Error::MlFunction { .. }), "{from}: {error}");
            }
            let unknown = error("ML.PREDICT(MODEL knwon, TABLE sales)").await;
            assert!(
                unknown.to_string().ends_with("did you mean \"known\"?"),
                "{unknown}"
            );
            for (from, message) in [
                ("ML.WEIGHTS(MODEL known)", "\"Files of a model\""),
                (
                    "ML.PREDICT(MODEL known, TABLE sales, version => 7)",
                    "has no version 7",
                ),
                (
                    "ML.PREDICT(MODEL known, (SELECT \"Store\" FROM sales))",
                    "\"Distance\"",
                ),
                (
                    "ML.PREDICT(MODEL known, (SELECT \"Promo\" AS \"Store\", \"Distance\" FROM sales))",
                    "as in training",
                ),
                (
                    "ML.EVALUATE(MODEL known, (SELECT \"Store\", \"Distance\" FROM sales))",
                    "\"Sales\"",
                ),
                (
                    "ML.PREDICT(MODEL known, (SELECT *, 1.0 AS \"predicted_Sales\" FROM sales))",
                    "predicted_Sales",
                ),
                (
                    "ML.PREDICT(MODEL known, (SELECT * FROM sales a JOIN sales b ON a.\"Id\" = b.\"Id\"))",
                    "two columns",
                ),
                ("ML.PREDICT(MODEL known, TABLE nowhere)", "nowhere"),
            ] {
                let error = error(from).await.to_string();
                assert!(error.contains(message), "{from}: {error}");
            }
        });
    }

    #[test]
    fn a_new_version_is_seen_by_the_next_statement() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let sql = "SELECT * FROM ML.PREDICT(MODEL known, TABLE sales)";
            assert!(
                optimized(&session, sql)
                    .await
                    .unwrap()
                    .to_string()
                    .contains("version 1")
            );
            session
                .store()
                .publish(1, crate::testing::manifest("known"), Vec::new())
                .await
                .unwrap();
            assert!(
                optimized(&session, sql)
                    .await
                    .unwrap()
                    .to_string()
                    .contains("version 2")
            );
        });
    }
}
