//! Calls of `ML` functions in FROM, read from the syntax tree.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectNamePart, Query, TableAlias, TableFactor,
    Value, Visitor,
};
use volley_proto::{ModelName, nearest};

use super::parse::ident_name;
use super::statement::visit;
use crate::{Error, Result};

/// Place of a model's weights, for functions and statements that would return them.
pub(super) const FILES: &str = "a model's files in the store have its weights as safetensors: see \"Files of a model\" in docs/sql.md";

/// An `ML` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Predict,
    ExplainPredict,
    Evaluate,
    ConfusionMatrix,
    RocCurve,
    Calibration,
    GlobalExplain,
    FeatureInfo,
    TrainingInfo,
    Transform,
}

impl Function {
    const ALL: [Self; 10] = [
        Self::Predict,
        Self::ExplainPredict,
        Self::Evaluate,
        Self::ConfusionMatrix,
        Self::RocCurve,
        Self::Calibration,
        Self::GlobalExplain,
        Self::FeatureInfo,
        Self::TrainingInfo,
        Self::Transform,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Predict => "PREDICT",
            Self::ExplainPredict => "EXPLAIN_PREDICT",
            Self::Evaluate => "EVALUATE",
            Self::ConfusionMatrix => "CONFUSION_MATRIX",
            Self::RocCurve => "ROC_CURVE",
            Self::Calibration => "CALIBRATION",
            Self::GlobalExplain => "GLOBAL_EXPLAIN",
            Self::FeatureInfo => "FEATURE_INFO",
            Self::TrainingInfo => "TRAINING_INFO",
            Self::Transform => "TRANSFORM",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Predict => "expected ML.PREDICT(MODEL name, TABLE t | (SELECT …))",
            Self::ExplainPredict => {
                "expected ML.EXPLAIN_PREDICT(MODEL name, TABLE t | (SELECT …) [, top_k_features => number])"
            }
            Self::Evaluate => {
                "expected ML.EVALUATE(MODEL name, TABLE t | (SELECT …) [, BY column])"
            }
            Self::ConfusionMatrix => {
                "expected ML.CONFUSION_MATRIX(MODEL name, TABLE t | (SELECT …))"
            }
            Self::RocCurve => "expected ML.ROC_CURVE(MODEL name, TABLE t | (SELECT …))",
            Self::Calibration => "expected ML.CALIBRATION(MODEL name, TABLE t | (SELECT …))",
            Self::GlobalExplain => "expected ML.GLOBAL_EXPLAIN(MODEL name, TABLE t | (SELECT …))",
            Self::FeatureInfo => "expected ML.FEATURE_INFO(MODEL name [, TABLE t | (SELECT …)])",
            Self::TrainingInfo => "expected ML.TRAINING_INFO(MODEL name)",
            Self::Transform => "expected ML.TRANSFORM(MODEL name, TABLE t | (SELECT …))",
        }
    }
}

/// `ML.function(MODEL model [, version | version => N] [, (query)] [, BY column [, column]…]… [, top_k_features => N]) [AS alias]`.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) function: Function,
    pub(super) model: Ident,
    pub(super) version: Option<u32>,
    pub(super) input: Option<Box<Query>>,
    /// Columns that rows are grouped by.
    pub(super) by: Vec<Ident>,
    /// Number of features that explain a prediction.
    pub(super) top_features: Option<usize>,
    pub(super) alias: Option<TableAlias>,
}

impl Call {
    /// Reads the call from a table factor; `None` if the factor is something else.
    pub(super) fn of(factor: &TableFactor) -> Result<Option<Self>> {
        let TableFactor::Table {
            name,
            alias,
            args: Some(args),
            ..
        } = factor
        else {
            return Ok(None);
        };
        let [
            ObjectNamePart::Identifier(schema),
            ObjectNamePart::Identifier(name),
        ] = name.0.as_slice()
        else {
            return Ok(None);
        };
        if !schema.value.eq_ignore_ascii_case("ml") {
            return Ok(None);
        }
        if name.value.eq_ignore_ascii_case("weights") {
            return Err(Error::not_supported(format!("ML.WEIGHTS: {FILES}")));
        }
        let named = |function: &Function| name.value.eq_ignore_ascii_case(function.name());
        let Some(function) = Function::ALL.into_iter().find(named) else {
            let names = Function::ALL.map(Function::name);
            let hint = match nearest(&name.value, names).first() {
                Some(near) => format!("did you mean ML.{near}?"),
                None => format!("there are ML.{}", names.join(", ML.")),
            };
            let reason = format!("no such function; {hint}");
            return Err(Error::MlFunction {
                function: name.value.clone(),
                reason,
            });
        };
        let wrong = |detail: &str| {
            let reason = format!("{}{detail}", function.usage());
            Error::MlFunction {
                function: function.name().to_owned(),
                reason,
            }
        };
        let (mut model, mut version, mut input) = (None, None, None);
        let (mut by, mut top_features) = (vec![], None);
        let mut after_by = false;
        for argument in &args.args {
            let listed = std::mem::take(&mut after_by);
            match Argument::of(argument) {
                Some(Argument::Model(ident)) if model.is_none() => model = Some(ident),
                Some(Argument::Version(number)) if version.is_none() => version = Some(number),
                Some(Argument::Input(query)) if input.is_none() => input = Some(query),
                Some(Argument::By(column)) if function == Function::Evaluate => {
                    by.push(column);
                    after_by = true;
                }
                // `BY city, plan` is `BY city, BY plan`.
                Some(Argument::Column(column)) if listed => {
                    by.push(column);
                    after_by = true;
                }
                Some(Argument::TopFeatures(number))
                    if function == Function::ExplainPredict && top_features.is_none() =>
                {
                    top_features = Some(number);
                }
                _ => {
                    return Err(wrong(&match bare_name(argument) {
                        Some(name) if model.is_none() => format!("; write MODEL {name}"),
                        Some(name) if input.is_none() && function != Function::TrainingInfo => {
                            format!("; write TABLE {name}")
                        }
                        _ => format!("; {argument} does not fit"),
                    }));
                }
            }
        }
        let model = model.ok_or_else(|| wrong("; MODEL name is missing"))?;
        match (function, &input) {
            (Function::TrainingInfo, Some(_)) => return Err(wrong("; it takes no query")),
            (Function::TrainingInfo | Function::FeatureInfo, None) => {}
            (Function::Evaluate, None) => {
                return Err(wrong(&format!(
                    ": it needs rows. The metrics of the rows held out in training: SELECT * FROM \
                     ML.TRAINING_INFO(MODEL {model}) WHERE published, or DESCRIBE MODEL {model}"
                )));
            }
            (_, None) => return Err(wrong(": it needs rows")),
            _ => {}
        }
        Ok(Some(Self {
            function,
            model,
            version,
            input,
            by,
            top_features,
            alias: alias.clone(),
        }))
    }
}

/// Returns the name that an argument is, without the word before it that tells what it names.
fn bare_name(argument: &FunctionArg) -> Option<String> {
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(
            name @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_)),
        )) => Some(name.to_string()),
        _ => None,
    }
}

enum Argument {
    Model(Ident),
    Version(u32),
    Input(Box<Query>),
    By(Ident),
    /// Name without a word before it.
    Column(Ident),
    TopFeatures(usize),
}

impl Argument {
    fn of(argument: &FunctionArg) -> Option<Self> {
        let (name, value) = match argument {
            FunctionArg::Named { name, arg, .. } => (Some(name), arg),
            FunctionArg::ExprNamed {
                name: Expr::Identifier(name),
                arg,
                ..
            } => (Some(name), arg),
            FunctionArg::ExprNamed { .. } => return None,
            FunctionArg::Unnamed(arg) => (None, arg),
        };
        let FunctionArgExpr::Expr(value) = value else {
            return None;
        };
        let is = |wanted: &str| name.is_some_and(|name| name.value.eq_ignore_ascii_case(wanted));
        match value {
            Expr::Identifier(model) if is("model") => Some(Self::Model(model.clone())),
            Expr::Identifier(column) if is("by") => Some(Self::By(column.clone())),
            Expr::Identifier(column) if name.is_none() => Some(Self::Column(column.clone())),
            Expr::Value(literal) if is("top_k_features") => match &literal.value {
                Value::Number(number, _) => {
                    let number = number.to_string().parse().ok();
                    number.filter(|number| *number > 0).map(Self::TopFeatures)
                }
                _ => None,
            },
            Expr::Value(literal) if name.is_none() || is("version") => match &literal.value {
                Value::Number(number, _) => number.to_string().parse().ok().map(Self::Version),
                _ => None,
            },
            Expr::Subquery(query) if name.is_none() => Some(Self::Input(query.clone())),
            _ => None,
        }
    }
}

/// Model, with its version if one is given.
pub(crate) type Named = (ModelName, Option<u32>);

/// Model that a statement names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) model: Named,
    /// True if the statement asks for the training history, which exists even while the model is trained.
    pub(crate) history: bool,
}

/// Returns the models named in a statement's `ML` calls.
pub(crate) fn named_models(statement: &DfStatement, normalize: bool) -> Result<Vec<Reference>> {
    let mut models = NamedModels {
        names: IdentNormalizer::new(normalize),
        found: Vec::new(),
    };
    match visit(statement, &mut models) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(models.found),
    }
}

struct NamedModels {
    names: IdentNormalizer,
    found: Vec<Reference>,
}

impl Visitor for NamedModels {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        let found = Call::of(factor).and_then(|call| {
            let model = |call: Call| {
                Ok(Reference {
                    model: (ident_name(call.model, &self.names)?, call.version),
                    history: call.function == Function::TrainingInfo,
                })
            };
            call.map(model).transpose()
        });
        match found {
            Err(error) => return ControlFlow::Break(error),
            Ok(Some(model)) if !self.found.contains(&model) => self.found.push(model),
            Ok(_) => {}
        }
        ControlFlow::Continue(())
    }
}
