//! Rows for training: the query's rows, with the columns that a `TRANSFORM` computes from them.
//!
//! A `TRANSFORM` is fitted to the rows that will be trained on, by queries that run before training. The same column or
//! hash as in training selects these rows from the query's rows, whatever is computed from them.

use arrow::datatypes::DataType;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::functions::expr_fn::abs;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{Expr as SqlExpr, ExprWithAlias};
use volley_engine::split_draw;
use volley_proto::spec::{Split, Start, TrainSpec, Transform, split};

use super::Session;
use super::temporary_view::TemporaryView;
use super::train::{hash_of, plan_of};
use crate::sql::{
    Clause, Columns, Target, TrainOptions, check_unambiguous, cut_query, expressions, only,
};
use crate::{Error, Result};

/// Rows of a training.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Plan of the query's rows.
    pub(crate) plan: LogicalPlan,
    pub(crate) transform: Option<Given>,
}

/// `TRANSFORM` over rows.
#[derive(Debug)]
pub(crate) struct Given {
    columns: Columns,
    /// All of its columns; with placeholder values until they are fitted.
    settled: Transform,
}

impl Rows {
    /// Combines a plan's rows with a `TRANSFORM`, if there is one.
    ///
    /// # Errors
    /// Names the expression that cannot be computed, and the reason.
    pub(crate) fn of(
        plan: LogicalPlan,
        clause: Option<&Clause>,
        state: &SessionState,
    ) -> Result<Self> {
        let Some(clause) = clause else {
            let transform = None;
            return Ok(Self { plan, transform });
        };
        let schema = plan.schema().as_arrow();
        check_unambiguous(schema)?;
        let normalizes = state.config_options().sql_parser.enable_ident_normalization;
        let data_type = |expr: SqlExpr| {
            let typed = expr.to_string();
            let expr = planned(expr, &typed, plan.schema(), state)?;
            Ok(expr.get_type(plan.schema())?)
        };
        let names = IdentNormalizer::new(normalizes);
        let columns = clause.columns(schema, &names, &data_type)?;
        let settled = columns.settle(&columns.neutral(), schema)?;
        let transform = Some(Given { columns, settled });
        Ok(Self { plan, transform })
    }

    /// Returns the computed columns, as expressions over the rows' own columns.
    pub(super) fn computed(&self, state: &SessionState) -> Result<Vec<(String, Expr)>> {
        let Some(given) = &self.transform else {
            return Ok(Vec::new());
        };
        let schema = self.plan.schema();
        let each = given.settled.columns.iter().map(|column| {
            let wanted = |name: &str| name == column.column;
            let expr = expressions(&given.settled, schema.as_arrow(), wanted)?;
            let (name, expr) = expr.into_iter().next().ok_or_else(|| {
                DataFusionError::Internal("a column has an expression".to_owned())
            })?;
            Ok((name, planned(expr, &column.typed, schema, state)?))
        });
        each.collect()
    }

    /// Returns the part of the `TRANSFORM` that a model keeps: features, and the label and weight if they are computed.
    pub(super) fn kept(&self, spec: &TrainSpec) -> Result<Option<Transform>> {
        let Some(given) = &self.transform else {
            return Ok(None);
        };
        let is_kept = |name: &str| {
            spec.label.is(name)
                || spec.sample_weight.as_deref() == Some(name)
                || spec.features.iter().any(|of| of.column == name)
        };
        only(&given.settled, is_kept).map(Some)
    }

    /// Checks whether a column is computed by functions that are fitted to training rows.
    fn is_fitted(&self, column: &str) -> bool {
        let mut given = self.transform.iter();
        given.any(|given| given.columns.depends_on_rows(column))
    }

    /// Returns the functions that are fitted to training rows, as typed.
    pub(super) fn fitted(&self) -> Vec<&str> {
        let given = self.transform.iter();
        given.flat_map(|given| given.columns.fitted()).collect()
    }
}

/// Plans an expression over rows; refuses one that does not depend on a single row alone.
fn planned(expr: SqlExpr, typed: &str, rows: &DFSchema, state: &SessionState) -> Result<Expr> {
    let refuse = |reason: &str| Error::Transform {
        expression: typed.to_owned(),
        reason: reason.to_owned(),
    };
    let expr = ExprWithAlias { expr, alias: None };
    let expr = state
        .create_logical_expr_from_sql_expr(expr, rows)
        .map_err(|error| refuse(&Error::from(error).to_string()))?;
    let has = |is: fn(&Expr) -> bool| {
        use datafusion::common::tree_node::TreeNode;
        expr.exists(|expr| Ok(is(expr)))
    };
    if has(|expr| matches!(expr, Expr::AggregateFunction(_)))? {
        let reason = "an aggregate needs many rows: compute it in the query, or use a function that is \
            fitted, such as \
                      ML.STANDARD_SCALER(x) OVER ()";
        return Err(refuse(reason));
    }
    if has(|expr| matches!(expr, Expr::WindowFunction(_) | Expr::Unnest(_)))? {
        return Err(refuse("it depends on other rows: compute it in the query"));
    }
    if expr.is_volatile() {
        let reason = "its value changes with every call, so predictions would not match training";
        return Err(refuse(reason));
    }
    // Checks that functions accept their arguments.
    expr.get_type(rows)
        .map_err(|error| refuse(&Error::from(error).to_string()))?;
    Ok(expr)
}

impl Session {
    /// Fits a `TRANSFORM` to the rows that will be trained on.
    ///
    /// A run that resumes from a checkpoint takes the values that were fitted for it.
    ///
    /// # Errors
    /// Names the function that cannot be fitted, or the reason why its query failed.
    pub(super) async fn fit(
        &self,
        rows: &mut Rows,
        options: &TrainOptions,
        target: &Target,
    ) -> Result<()> {
        let state = self.context().state();
        // All errors in columns and options are reported before anything runs.
        let (_, spec) = plan_of(rows, options.clone(), target.clone(), &state)?;
        let Some(given) = &rows.transform else {
            return Ok(());
        };
        if !given.columns.is_fitted() {
            return Ok(());
        }
        if target.start == Start::Resume
            && let Some(settled) = self.fitted_before(given, &spec).await?
        {
            if let Some(given) = &mut rows.transform {
                given.settled = settled;
            }
            return Ok(());
        }
        let job = format!("CREATE MODEL {}: fits its TRANSFORM", target.model);
        let trained = self.training_rows(rows, &spec, &job).await?;
        let view = TemporaryView::of(self, trained)?;
        let mut found = Vec::new();
        for query in given.columns.queries(&view.name) {
            let answer = view.ask(&query.text, &job).await?;
            found.extend(query.read(&answer)?);
        }
        let numbers = given.columns.numbers(found)?;
        let settled = given
            .columns
            .settle(&numbers, rows.plan.schema().as_arrow())?;
        if let Some(given) = &mut rows.transform {
            given.settled = settled;
        }
        Ok(())
    }

    /// Returns the values fitted by the run that this one resumes, if it fitted the same columns.
    async fn fitted_before(&self, given: &Given, spec: &TrainSpec) -> Result<Option<Transform>> {
        let found = self.store().newest_checkpoint(&spec.model, None).await?;
        let before = found.checkpoint.and_then(|(info, _)| info.kept.transform);
        let Some(before) = before else {
            return Ok(None);
        };
        let mut settled = given.settled.clone();
        for column in &mut settled.columns {
            let fitted = before
                .columns
                .iter()
                .find(|fitted| fitted.column == column.column && fitted.typed == column.typed);
            match fitted {
                Some(fitted) => column.sql.clone_from(&fitted.sql),
                None if given.columns.depends_on_rows(&column.column) => return Ok(None),
                None => {}
            }
        }
        Ok(Some(settled))
    }

    /// Returns the query's rows that will be trained on.
    async fn training_rows(&self, rows: &Rows, spec: &TrainSpec, job: &str) -> Result<LogicalPlan> {
        let plan = self.weighing_rows(rows, spec)?;
        let is_trained = match &spec.split {
            Split::None => return Ok(plan),
            Split::Random(share) | Split::CrossValidation(share) => {
                let drawn = split_draw(hash_of(&plan, &spec.split_key), spec.seed);
                drawn.gt_eq(lit(*share))
            }
            Split::Column(column) => {
                let column = self.split_column(rows, column)?;
                match column.get_type(plan.schema())? {
                    DataType::Boolean => column.is_false(),
                    _ => column.eq(lit(split::TRAIN)),
                }
            }
            Split::Sequential { column, share } => {
                let column = self.split_column(rows, column)?;
                let values = LogicalPlanBuilder::from(plan.clone())
                    .project([column.clone().alias("v")])?
                    .build()?;
                let view = TemporaryView::of(self, values)?;
                let cut = view.ask(&cut_query(*share, &view.name), job).await?;
                let cut = cut.iter().find(|batch| batch.num_rows() > 0);
                let cut = cut.map(|batch| ScalarValue::try_from_array(batch.column(0), 0));
                match cut.transpose()? {
                    Some(cut) if !cut.is_null() => column.lt_eq(lit(cut)),
                    // Too many values are NULL for a cut before them.
                    _ => return Ok(plan),
                }
            }
        };
        Ok(LogicalPlanBuilder::from(plan).filter(is_trained)?.build()?)
    }

    /// Removes the rows of weight 0, which training leaves out. A weight that is fitted to all rows is not known yet,
    /// and removes none.
    fn weighing_rows(&self, rows: &Rows, spec: &TrainSpec) -> Result<LogicalPlan> {
        let plan = rows.plan.clone();
        let known = spec.sample_weight.as_ref();
        let Some(column) = known.filter(|column| !rows.is_fitted(column)) else {
            return Ok(plan);
        };
        let weight = self.column(rows, column)?;
        let weight = weight.cast_to(&DataType::Float64, plan.schema())?;
        // Covers both zeros.
        let weighing = LogicalPlanBuilder::from(plan).filter(abs(weight).not_eq(lit(0.0)))?;
        Ok(weighing.build()?)
    }

    /// Returns the column that splits the rows, as an expression over the query's columns.
    fn split_column(&self, rows: &Rows, name: &str) -> Result<Expr> {
        if rows.is_fitted(name) {
            return Err(Error::Transform {
                expression: name.to_owned(),
                reason: "it splits the rows (data_split_col), and cannot be fitted to those that are trained on"
                    .to_owned(),
            });
        }
        self.column(rows, name)
    }

    /// Returns a column that is computed from the rows, or their own.
    fn column(&self, rows: &Rows, name: &str) -> Result<Expr> {
        let computed = rows.computed(&self.context().state())?;
        match computed.into_iter().find(|(column, _)| column == name) {
            Some((_, expr)) => Ok(expr),
            None => own_column(&rows.plan, name),
        }
    }
}

/// Returns one of the rows' own columns.
pub(super) fn own_column(plan: &LogicalPlan, name: &str) -> Result<Expr> {
    let (qualifier, field) = plan.schema().qualified_field_with_unqualified_name(name)?;
    Ok(Expr::Column(Column::from((qualifier, field))))
}

#[cfg(test)]
mod tests {
    use volley_engine::optimized;
    use volley_proto::TrainId;
    use volley_proto::spec::Computed;
    use volley_proto::store::{KeptOptions, Position, Writer};

    use super::*;
    use crate::sql::Kind;
    use crate::testing::{on_a_deep_stack, session};

    async fn create(session: &Session, sql: &str) -> Result<(Target, Rows, TrainOptions)> {
        let Kind::CreateModel(create) = session.parse(sql)?.remove(0).kind else {
            panic!("{sql}")
        };
        session.target(*create).await
    }

    const SCALED: &str = "CREATE MODEL m TRANSFORM (ML.STANDARD_SCALER(\"Distance\") OVER () AS d, \"Store\") \
                          OPTIONS (input_label_cols = ['Sales'], resume = true) AS SELECT * FROM sales";

    #[test]
    fn trains_on_what_is_computed_and_splits_by_what_the_query_gives() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let (target, rows, options) = create(&session, SCALED).await.unwrap();
            let state = session.context().state();
            let (plan, spec) = plan_of(&rows, options, target, &state).unwrap();
            let plan = optimized(&plan, &state).unwrap();
            let shown = plan.display_indent().to_string();
            for part in [
                "AS d",
                "Utf8(\"Promo\"), sales.Promo",
                "Utf8(\"Distance\"), sales.Distance",
            ] {
                assert!(shown.contains(part), "{part}: {shown}");
            }
            let features: Vec<_> = spec.features.iter().map(|of| of.column.as_str()).collect();
            assert_eq!(features, ["d", "Store"]);
            let kept = spec.transform.as_ref().unwrap();
            assert_eq!(kept.columns.len(), 2, "the label is the query's");
            assert_eq!(kept.inputs.len(), 2);
        });
    }

    #[test]
    fn a_resumed_run_takes_what_was_fitted_for_it() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let fitted = |typed: &str| Transform {
                inputs: vec![],
                columns: vec![Computed {
                    column: "d".to_owned(),
                    typed: typed.to_owned(),
                    sql: "(CAST(\"Distance\" AS DOUBLE) - 42.0)".to_owned(),
                }],
            };
            let save = async |typed: &str| {
                let (model, state) = ("m".parse().unwrap(), b"state".to_vec().into());
                let (run, transform) = (TrainId::generate(), fitted(typed));
                let generation = 1;
                let saved = session.store().save_checkpoint(
                    &model,
                    Writer { run, generation },
                    Position::START,
                    KeptOptions {
                        transform: Some(transform),
                        shards: None,
                    },
                    state,
                );
                saved.await.unwrap();
            };
            save("ML.STANDARD_SCALER(\"Distance\") OVER ()").await;
            let (target, mut rows, options) = create(&session, SCALED).await.unwrap();
            // There is no cluster to fit anything.
            session.fit(&mut rows, &options, &target).await.unwrap();
            let settled = &rows.transform.as_ref().unwrap().settled;
            assert!(settled.columns[0].sql.contains("42.0"), "{settled:?}");
            save("ML.MAX_ABS_SCALER(\"Distance\") OVER ()").await;
            assert!(session.fit(&mut rows, &options, &target).await.is_err());
        });
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_runs() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let error = async |transform: &str, options: &str| {
                let sql = format!(
                    "CREATE MODEL m TRANSFORM ({transform}) OPTIONS (input_label_cols = ['Sales']{options}) \
                     AS SELECT * FROM sales"
                );
                let (target, mut rows, options) = match create(&session, &sql).await {
                    Ok(created) => created,
                    Err(error) => return error.to_string(),
                };
                let fitted = session.fit(&mut rows, &options, &target).await;
                fitted.unwrap_err().to_string()
            };
            let scaled = "ML.STANDARD_SCALER(\"Distance\") OVER () AS d";
            for (transform, options, said) in [
                ("sum(\"Store\") AS s", "", "an aggregate needs many rows"),
                ("random() AS r", "", "changes with every call"),
                ("ln(\"Promo\") AS l", "", "TRANSFORM: ln(\"Promo\")"),
                ("nonsense(\"Store\") AS l", "", "nonsense"),
                (
                    scaled,
                    ", continuous = ['Store']",
                    "TRANSFORM (…) leaves it out",
                ),
                (scaled, ", continuous = ['dd']", "did you mean \"d\"?"),
                (
                    "ML.STANDARD_SCALER(\"Distance\") OVER () AS d, \"Store\"",
                    ", data_split_method = 'seq', data_split_col = 'd'",
                    "it splits the rows",
                ),
            ] {
                let error = error(transform, options).await;
                assert!(error.contains(said), "{transform}: {error}");
            }
        });
    }
}
