//! Validation of a spec: its numbers, and its columns against the input's schema.
//!
//! An error names the option or the column, the typed value and the accepted ones.

use arrow::datatypes::{DataType, Field, Schema};

use super::optimizer::{Bounds, check_numbers};
use super::{
    BatchSize, Device, Elastic, EmbeddingWidth, FeatureKind, Keep, Layer, Linear, Output, Ranks,
    RateScaling, Rule, Split, Start, TrainSpec,
};
use crate::{Error, Result, did_you_mean, nearest};

impl TrainSpec {
    /// Checks the spec's numbers and its columns against the input's schema.
    /// # Errors
    /// Names the option or column, the typed value and the accepted ones.
    pub fn check(&self, input: &Schema) -> Result<()> {
        self.check_numbers()?;
        if self.features.is_empty() {
            return Err(Error::option(
                "features",
                "none",
                "a model needs at least one feature column",
            ));
        }
        for (index, feature) in self.features.iter().enumerate() {
            if self.features[..index]
                .iter()
                .any(|other| other.column == feature.column)
            {
                return Err(Error::option(
                    "features",
                    &feature.column,
                    "the column is named twice",
                ));
            }
            if self.label.is(&feature.column) {
                return Err(Error::option(
                    "features",
                    &feature.column,
                    "the label cannot be a feature",
                ));
            }
            feature.kind.check(&feature.column, input)?;
        }
        self.label.check(self.task, input)?;
        if let Split::Column(column) = &self.split {
            let is_ordered = named_field(input, column, "data_split_col")
                .is_ok_and(|field| is_ordered(value_type(field.data_type())));
            let expected = match is_ordered {
                true => {
                    "text or a boolean, or data_split_method = 'seq' to evaluate the last rows in its order"
                }
                false => "text or a boolean",
            };
            check_column(column, "data_split_col", input, expected, |t| {
                is_text(t) || *t == DataType::Boolean
            })?;
        }
        if let Split::Sequential { column, .. } = &self.split {
            check_column(
                column,
                "data_split_col",
                input,
                "a number, a date or a time",
                is_ordered,
            )?;
        }
        if let Some(column) = &self.sample_weight {
            let expected = "a number";
            check_column(
                column,
                "sample_weight_col",
                input,
                expected,
                DataType::is_numeric,
            )?;
        }
        // A warm start keeps the widths of its model.
        let is_warm = matches!(self.start, Start::Warm(_));
        if let (EmbeddingWidth::Columns(widths), false) = (&self.network.embedding_dim, is_warm) {
            for (column, _) in widths {
                self.check_embedded(column)?;
            }
        }
        for column in &self.shard_by {
            check_column(column, "shard_by", input, "any type", |_| true)?;
        }
        Ok(())
    }

    /// Checks that a column has an embedding.
    fn check_embedded(&self, column: &str) -> Result<()> {
        let features = self.features.iter();
        let embedded = features.filter(|feature| feature.kind == FeatureKind::Categorical);
        let embedded: Vec<_> = embedded.map(|feature| feature.column.as_str()).collect();
        if embedded.contains(&column) {
            return Ok(());
        }
        let hint = did_you_mean(column, embedded.iter().copied());
        let expected = format!("expected categorical features{hint}");
        Err(Error::option("embedding_dim", column, expected))
    }

    /// Checks the columns that only the query for the rows reads; ranks do not get them.
    ///
    /// # Errors
    /// Names the missing column.
    pub fn check_split_key(&self, rows: &Schema) -> Result<()> {
        for column in &self.split_key {
            check_column(column, "split_key", rows, "any type", |_| true)?;
        }
        Ok(())
    }

    fn check_elastic(&self) -> Result<()> {
        let Elastic {
            min_ranks,
            max_ranks,
            ..
        } = self.elastic;
        let refuse = |name, value: usize, expected: &str| {
            Err(Error::option(name, value.to_string(), expected))
        };
        match (self.ranks, min_ranks, max_ranks) {
            (_, 0, _) => refuse("min_ranks", 0, "expected at least 1"),
            (Ranks::Exactly(ranks), min, _) if min > ranks => refuse(
                "min_ranks",
                min,
                &format!("expected at most ranks ({ranks})"),
            ),
            (Ranks::Exactly(ranks), _, Some(max)) if max < ranks => refuse(
                "max_ranks",
                max,
                &format!("expected at least ranks ({ranks})"),
            ),
            (_, min, Some(max)) if max < min => refuse(
                "max_ranks",
                max,
                &format!("expected at least min_ranks ({min})"),
            ),
            (_, min, max) if min.max(max.unwrap_or(0)) > self.shards => {
                let name = if min > self.shards {
                    "min_ranks"
                } else {
                    "max_ranks"
                };
                let expected = self.more_than_shards();
                refuse(name, min.max(max.unwrap_or(0)), &expected)
            }
            _ if self.checkpoint_every == Some(0) => {
                refuse("checkpoint_every", 0, "expected at least 1 step")
            }
            _ => Ok(()),
        }
    }

    /// Returns what is wrong with more ranks than shards.
    fn more_than_shards(&self) -> String {
        let advice = match self.start {
            Start::Resume => "a run that resumes has its checkpoint's shards, so use no more ranks",
            Start::Fresh | Start::Warm(_) => "raise shards",
        };
        format!("more ranks than shards ({}): {advice}", self.shards)
    }

    /// Checks that L-BFGS has a convex loss that is differentiable everywhere, of all rows at once.
    fn check_lbfgs(&self) -> Result<()> {
        if !matches!(self.optimizer.rule, Rule::Lbfgs { .. }) {
            return Ok(());
        }
        let convex =
            self.network.linear == Linear::Alone && self.network.output == Output::Identity;
        let refused = [
            (
                convex,
                "expected with model_type = 'linear_reg' or 'logistic_reg', and activation_output = 'identity'",
            ),
            (
                self.loss.is_smooth(),
                "expected with a loss other than 'mae', 'quantile' and 'focal'; 'adamw' takes these",
            ),
            (self.l1 == 0.0, "expected without l1_reg; 'ftrl' takes it"),
            (
                self.optimizer.clip_norm.is_none() && self.optimizer.clip_value.is_none(),
                "expected without clip_norm and clip_value: it needs the gradient unclipped",
            ),
            (
                self.batch_size.is_none(),
                "expected without global_batch_size and batch_size: a step takes all rows",
            ),
        ];
        if self.keep == Keep::Best {
            let expected =
                "expected 'last' with optimizer = 'lbfgs': its last epoch is the solution";
            return Err(Error::option("keep", "'best'", expected));
        }
        match refused.into_iter().find(|(fits, _)| !fits) {
            Some((_, expected)) => Err(Error::option("optimizer", "'lbfgs'", expected)),
            None => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<()> {
        let positive = [
            self.batch_size
                .map_or(("global_batch_size", 1), BatchSize::option),
            ("accumulate", self.accumulate),
            ("epochs", self.epochs.unwrap_or(1)),
            ("shards", self.shards),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::option(*name, "0", "expected at least 1"));
        }
        self.network.check()?;
        let customs = Layer::customs(&self.network.layers);
        let by_wgpu = matches!(self.device, Device::AnyWgpu | Device::Wgpu(_));
        if let (true, Some(layer)) = (by_wgpu, customs.first()) {
            let expected = format!(
                "expected 'cpu', 'cuda' or 'auto': not supported: {layer} and other custom layers beside a GPU by wgpu"
            );
            let device = format!("'{}'", self.device);
            return Err(Error::option("device", device, expected));
        }
        let reserves = matches!(
            self.device,
            Device::Auto | Device::AnyCuda | Device::Cuda(_)
        );
        if self.device_share && !reserves {
            let expected = format!(
                "expected false where device = '{}': only an NVIDIA GPU is reserved for one rank",
                self.device
            );
            return Err(Error::option("device_share", "true", expected));
        }
        match self.ranks {
            Ranks::Exactly(0) => {
                return Err(Error::option("ranks", "0", "expected at least 1, or 'all'"));
            }
            Ranks::Exactly(ranks) if ranks > self.shards => {
                let expected = self.more_than_shards();
                return Err(Error::option("ranks", ranks.to_string(), expected));
            }
            _ => {}
        }
        self.check_elastic()?;
        self.optimizer.check()?;
        self.loss.check()?;
        self.vocabulary.check()?;
        self.check_lbfgs()?;
        self.check_refit()?;
        self.check_begin_early()?;
        let of_rank = matches!(self.batch_size, Some(BatchSize::OfRank(_)));
        if self.optimizer.schedule.scaling != RateScaling::None && !of_rank {
            let value = match self.optimizer.schedule.scaling {
                RateScaling::Sqrt => "'sqrt'",
                _ => "'linear'",
            };
            return Err(Error::option(
                "learn_rate_scaling",
                value,
                "expected only with batch_size: with a global batch size, the number of ranks does not affect \
                 training",
            ));
        }
        if let Some(early_stop) = &self.early_stop {
            early_stop.check()?;
        }
        check_numbers(&[
            ("l1_reg", self.l1, Bounds::NotNegative),
            ("l2_reg", self.l2.unwrap_or(0.0), Bounds::NotNegative),
        ])?;
        match &self.split {
            Split::Random(fraction)
            | Split::CrossValidation(fraction)
            | Split::Sequential {
                share: fraction, ..
            } if !(*fraction > 0.0 && *fraction < 1.0) => Err(Error::option(
                "data_split_eval_fraction",
                fraction.to_string(),
                "expected a share between 0 and 1",
            )),
            _ => Ok(()),
        }
    }
}

impl FeatureKind {
    /// Checks that the input has the column, with a type that this kind can encode.
    ///
    /// # Errors
    /// Names the column, and the nearest name if it is missing.
    pub fn check(self, column: &str, input: &Schema) -> Result<()> {
        match self {
            Self::Categorical => check_column(
                column,
                "categorical",
                input,
                "a whole number, text, a boolean or a date",
                is_category,
            ),
            Self::Continuous => check_column(
                column,
                "continuous",
                input,
                "a number, a boolean, a date or a time",
                |t| is_ordered(t) || *t == DataType::Boolean,
            ),
        }
    }
}

/// Returns the type of a column's values, also if it is dictionary-encoded.
pub(crate) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    }
}

/// Checks whether values of a type are ordered as numbers are.
pub fn is_ordered(data_type: &DataType) -> bool {
    data_type.is_numeric()
        || matches!(
            data_type,
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
        )
}

/// Checks whether a type's values can be categories.
pub(super) fn is_category(t: &DataType) -> bool {
    t.is_integer() || is_text(t) || matches!(t, DataType::Boolean | DataType::Date32)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// Returns the field of a column that has this role.
///
/// # Errors
/// Names the column if the input lacks it.
pub fn named_field<'a>(input: &'a Schema, column: &str, role: &'static str) -> Result<&'a Field> {
    input.field_with_name(column).map_err(|_| {
        let names = input.fields().iter().map(|field| field.name().as_str());
        Error::UnknownColumn {
            column: column.to_owned(),
            role,
            hint: did_you_mean(column, names),
        }
    })
}

/// Number of missing columns that an error names.
const NAMED: usize = 20;

/// Checks that an input has all columns, if it lacks more than one; a single one is for [`named_field`] to name.
///
/// # Errors
/// Names the columns that are missing, each with a similar one that the input has.
pub fn check_columns<'a>(
    columns: impl Iterator<Item = &'a str>,
    input: &Schema,
    role: &'static str,
    need: &'static str,
) -> Result<()> {
    let missing: Vec<_> = columns
        .filter(|column| input.field_with_name(column).is_err())
        .collect();
    if missing.len() < 2 {
        return Ok(());
    }
    let names = || input.fields().iter().map(|field| field.name().as_str());
    let named = missing
        .iter()
        .take(NAMED)
        .map(|column| match nearest(column, names()).first() {
            Some(similar) => format!("{column:?} (it has {similar:?})"),
            None => format!("{column:?}"),
        });
    let mut columns = named.collect::<Vec<_>>().join(", ");
    if missing.len() > NAMED {
        columns += &format!(" and {} more", missing.len() - NAMED);
    }
    Err(Error::MissingColumns {
        input: role,
        count: missing.len(),
        need,
        columns,
    })
}

pub(super) fn check_column(
    column: &str,
    role: &'static str,
    input: &Schema,
    expected: &str,
    suits: impl Fn(&DataType) -> bool,
) -> Result<()> {
    let field = named_field(input, column, role)?;
    if suits(value_type(field.data_type())) {
        Ok(())
    } else {
        Err(Error::ColumnType {
            column: column.into(),
            role,
            actual: field.data_type().to_string(),
            expected: expected.into(),
        })
    }
}
