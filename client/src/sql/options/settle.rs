//! Conversion of options and the input's columns into a complete training spec.

use datafusion::arrow::datatypes::{DataType, Schema};
use url::Url;
use volley_proto::spec::{
    BatchSize, ClassWeights, Elastic, Feature, FeatureKind, IfExists, Keep, Label, LabelTransform,
    Loss, Output, Ranks, Refit, Rule, Split, Start, Task, TrainSpec,
};
use volley_proto::{ModelName, TrainId};

use super::{
    DEFAULT_SHARDS, MANY_SHARDS, OptimizerName, SHARDS_A_RANK, TrainOptions, refused, unread,
};
use crate::{Error, Result};

/// Model to publish, and the store to publish it in.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) train_id: TrainId,
    pub(crate) model: ModelName,
    pub(crate) if_exists: IfExists,
    pub(crate) store: Url,
    /// Newest version there, 0 if there is none; `None` until the store is asked.
    pub(crate) newest_version: Option<u32>,
    /// Start of training that the options ask for, as found in the store.
    pub(crate) start: Start,
}

impl TrainOptions {
    /// Builds the complete spec. Checks it against the input's columns and the query's rows; these differ if a
    /// TRANSFORM computes columns.
    ///
    /// # Errors
    /// Names the option or column, the typed value and the right one.
    pub(crate) fn spec(self, target: Target, input: &Schema, rows: &Schema) -> Result<TrainSpec> {
        check_unambiguous(input)?;
        if self.labels.is_empty() {
            return Err(Error::MissingOption {
                option: "input_label_cols",
                expected: "it names the column to predict, such as ['sales']",
            });
        }
        let split = self.split(&target.start)?;
        let refit = self.refit(&split, &target.start);
        let standardize = self.standardize_label()?;
        let loss = self.loss()?;
        let batch_size = self.rows_of_a_step()?;
        let optimizer = self.optimizer.clone().settle(self.rule(&loss))?;
        let keep = self.keep.unwrap_or(match optimizer.rule {
            // The last epoch of L-BFGS is its solution; the best of some epochs is not.
            Rule::Lbfgs { .. } => Keep::Last,
            _ => Keep::Best,
        });
        // Without a penalty, a logistic regression on linearly separable classes has no solution.
        let is_logistic = self.linear && self.task == Task::Classification;
        let l2 = self.l2.or((!is_logistic).then_some(0.0));
        self.check_labels(&loss)?;
        let features = self.features(&split, input)?;
        let ranks = match self.ranks {
            Ranks::Exactly(ranks) => Some(ranks),
            Ranks::All => None,
        };
        let elastic = Elastic {
            min_ranks: self.min_ranks,
            max_ranks: self.max_ranks.or(ranks),
            regroup_timeout: self.regroup_timeout,
            too_few: self.too_few,
        };
        let shards = self.shards.unwrap_or_else(|| self.default_shards(0));
        let spec = TrainSpec {
            train_id: target.train_id,
            model: target.model,
            if_exists: target.if_exists,
            store: target.store,
            newest_version: target.newest_version,
            transform: None,
            features,
            vocabulary: self.vocabulary.settle()?,
            task: self.task,
            label: Label {
                columns: self.labels,
                loss_weights: self.loss_weights,
                transform: self.label_transform,
                standardize,
            },
            numeric_transform: self.numeric_transform,
            split,
            split_key: self.split_key,
            network: self.network.settle(self.linear)?,
            loss,
            sample_weight: self.sample_weight,
            class_weights: self.class_weights,
            optimizer,
            l1: self.l1,
            l2,
            batch_size,
            accumulate: self.accumulate,
            epochs: self.epochs,
            early_stop: self.early_stop.settle()?,
            keep,
            refit,
            seed: self.seed,
            ranks: self.ranks,
            elastic,
            start: target.start,
            begin_early: self.begin_early,
            checkpoint_every: self.checkpoint_every,
            trace: self.trace.unwrap_or(false),
            shards,
            shard_by: self.shard_by,
            device: self.device,
            precision: self.precision,
            threads: self.threads,
            device_share: self.device_share,
            rendezvous_timeout: self.rendezvous_timeout,
            collective_timeout: self.collective_timeout,
            loading_timeout: self.loading_timeout,
        };
        spec.check(input)?;
        spec.check_split_key(rows)?;
        Ok(spec)
    }

    /// Returns the default number of shards, where `executors` executors can run a rank: a multiple of the number of
    /// ranks, so that all have as many.
    pub(crate) fn default_shards(&self, executors: usize) -> usize {
        let (ranks, most) = match self.ranks {
            Ranks::Exactly(ranks) => (ranks, self.max_ranks.unwrap_or(ranks)),
            Ranks::All => {
                let most = self.max_ranks.unwrap_or(usize::MAX);
                (executors.min(most), self.max_ranks.unwrap_or(0))
            }
        };
        let ranks = ranks.max(self.min_ranks).max(1);
        let each = DEFAULT_SHARDS.max(most).div_ceil(ranks);
        ranks * each.max(SHARDS_A_RANK.min(MANY_SHARDS / ranks))
    }

    /// Returns the given columns that have a role other than feature.
    pub(crate) fn roles(&self) -> impl Iterator<Item = &str> {
        let given = [&self.split_column, &self.sample_weight];
        let given = given.into_iter().flatten().chain(&self.shard_by);
        self.labels.iter().chain(given).map(String::as_str)
    }

    /// Decides on a refit. By default, rows that a user holds out are not trained on: they are for the user's
    /// evaluation.
    fn refit(&self, split: &Split, start: &Start) -> Refit {
        let is_drawn = matches!(split, Split::Random(_) | Split::CrossValidation(_));
        match self.refit {
            Some(true) => Refit::Always,
            None if is_drawn && !matches!(start, Start::Warm(_)) => Refit::Small,
            Some(false) | None => Refit::Never,
        }
    }

    /// Returns the default optimizer: a linear model is solved if it can be.
    fn rule(&self, loss: &Loss) -> OptimizerName {
        let whole = self.batch_size.is_none() && self.global_batch_size.is_none();
        match self.linear {
            true if self.l1 > 0.0 => OptimizerName::Ftrl,
            true if loss.is_smooth() && whole && self.network.output == Output::Identity => {
                OptimizerName::Lbfgs
            }
            _ => OptimizerName::AdamW,
        }
    }

    fn rows_of_a_step(&self) -> Result<Option<BatchSize>> {
        match (self.global_batch_size, self.batch_size) {
            (Some(global), Some(_)) => Err(refused(
                "global_batch_size",
                global.to_string(),
                "not with batch_size, which is per rank",
            )),
            (None, Some(rows)) => Ok(Some(BatchSize::OfRank(rows))),
            (global, None) => Ok(global.map(|global| BatchSize::Global { global })),
        }
    }

    /// Returns the task's loss; refuses options that do not fit it.
    fn loss(&self) -> Result<Loss> {
        let loss = self.loss.settle(self.task)?;
        let word = |value: serde_json::Result<serde_json::Value>| match value {
            Ok(serde_json::Value::String(word)) => format!("'{word}'"),
            _ => String::new(),
        };
        let transform = self.label_transform != LabelTransform::Identity;
        let output = self.network.output != Output::Identity;
        let transform = transform.then(|| {
            (
                "label_transform",
                word(serde_json::to_value(self.label_transform)),
            )
        });
        let output = output.then(|| {
            (
                "activation_output",
                word(serde_json::to_value(self.network.output)),
            )
        });
        if let Some((option, value)) = transform.or(output) {
            if self.task == Task::Classification {
                let with = "model_type = 'dnn_regressor' or 'linear_reg'".to_owned();
                return Err(unread(option, value, with));
            }
            if loss.has_log_link() {
                let with = "a loss that is not 'poisson', 'gamma' or 'tweedie', of which the network predicts the \
                            logarithm";
                return Err(unread(option, value, with.to_owned()));
            }
        }
        if self.class_weights != ClassWeights::Equal && self.task == Task::Regression {
            let value = self.class_weights.to_string();
            let with = "model_type = 'dnn_classifier' or 'logistic_reg'".to_owned();
            return Err(unread("class_weights", value, with));
        }
        if let ClassWeights::Given(weights) = &self.class_weights
            && let Some((class, weight)) =
                weights.iter().find(|(_, w)| !(*w >= 0.0 && w.is_finite()))
        {
            let value = format!("{class}: {weight}");
            return Err(refused("class_weights", value, "weights ≥ 0"));
        }
        Ok(loss)
    }

    fn standardize_label(&self) -> Result<bool> {
        let is_unbounded = self.network.output == Output::Identity && self.task == Task::Regression;
        match self.standardize_label {
            Some(true) if !is_unbounded => {
                let expected = "only for a regressor with activation_output = 'identity': other outputs are bounded";
                Err(refused("standardize_label", "true", expected))
            }
            given => Ok(given.unwrap_or(is_unbounded)),
        }
    }

    /// Returns the named features, categorical ones first; by default, every column without another role.
    fn features(&self, split: &Split, input: &Schema) -> Result<Vec<Feature>> {
        if self.categorical.is_some() || self.continuous.is_some() {
            let kinds = [
                (&self.categorical, FeatureKind::Categorical),
                (&self.continuous, FeatureKind::Continuous),
            ];
            let features = kinds.into_iter().flat_map(|(columns, kind)| {
                let feature = move |column: &String| Feature {
                    column: column.clone(),
                    kind,
                };
                columns.iter().flatten().map(feature)
            });
            return Ok(features.collect());
        }
        let taken = |column: &str| {
            self.labels.iter().any(|label| label == column)
                || self.split_key.iter().any(|key| key == column)
                || self.sample_weight.as_deref() == Some(column)
                || matches!(split, Split::Column(split) | Split::Sequential { column: split, .. } if split == column)
                || self.shard_by.iter().any(|key| key == column)
        };
        input
            .fields()
            .iter()
            .filter(|field| !taken(field.name()))
            .map(|field| {
                let column = field.name().clone();
                match kind_of(field.data_type()) {
                    Some(kind) => Ok(Feature { column, kind }),
                    None => Err(Error::Proto(volley_proto::Error::ColumnType {
                        column,
                        role: "a feature",
                        actual: field.data_type().to_string(),
                        expected:
                            "text, a boolean, a date, a time or a number; leave it out of the \
                                   SELECT, or name the features in categorical and continuous"
                                .into(),
                    })),
                }
            })
            .collect()
    }
}

/// Returns the columns that a spec reads, each once.
pub(crate) fn needed_columns(spec: &TrainSpec) -> Vec<&str> {
    let split = match &spec.split {
        Split::Column(column) | Split::Sequential { column, .. } => Some(column),
        Split::None | Split::Random(_) | Split::CrossValidation(_) => None,
    };
    let mut columns: Vec<&str> = Vec::new();
    for column in spec
        .features
        .iter()
        .map(|feature| &feature.column)
        .chain(&spec.label.columns)
        .chain(split)
        .chain(&spec.sample_weight)
        .chain(&spec.shard_by)
    {
        if !columns.contains(&column.as_str()) {
            columns.push(column);
        }
    }
    columns
}

/// Checks that column names are unique: later code tells columns apart by name alone.
pub(crate) fn check_unambiguous(input: &Schema) -> Result<()> {
    let fields = input.fields();
    let twice = fields.iter().enumerate().find(|(index, field)| {
        fields[..*index]
            .iter()
            .any(|earlier| earlier.name() == field.name())
    });
    match twice {
        None => Ok(()),
        Some((_, field)) => Err(Error::RepeatedColumn {
            column: field.name().clone(),
        }),
    }
}

fn kind_of(data_type: &DataType) -> Option<FeatureKind> {
    match data_type {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Boolean
        | DataType::Date32 => Some(FeatureKind::Categorical),
        DataType::Timestamp(..) | DataType::Date64 => Some(FeatureKind::Continuous),
        number if number.is_numeric() => Some(FeatureKind::Continuous),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::Field;

    fn input() -> Schema {
        Schema::new(vec![
            Field::new("Store", DataType::Int64, false),
            Field::new("Date", DataType::Date32, false),
            Field::new("Kind", DataType::Utf8, true),
            Field::new("Open", DataType::Boolean, true),
            Field::new("split", DataType::Utf8, false),
            Field::new("Sales", DataType::Float64, false),
        ])
    }

    fn target() -> Target {
        Target {
            train_id: TrainId::generate(),
            model: "m".parse().unwrap(),
            if_exists: IfExists::Fail,
            store: Url::parse("file:///tmp/models").unwrap(),
            newest_version: None,
            start: Start::Fresh,
        }
    }

    fn options() -> TrainOptions {
        TrainOptions {
            labels: vec!["Sales".into()],
            ..Default::default()
        }
    }

    fn names(spec: &TrainSpec, kind: FeatureKind) -> Vec<&str> {
        let of_kind = |feature: &&Feature| feature.kind == kind;
        spec.features
            .iter()
            .filter(of_kind)
            .map(|feature| feature.column.as_str())
            .collect()
    }

    #[test]
    fn infers_features_by_type() {
        let options = TrainOptions {
            split_column: Some("split".into()),
            ..options()
        };
        let spec = options.spec(target(), &input(), &input()).unwrap();
        assert_eq!(
            names(&spec, FeatureKind::Categorical),
            ["Date", "Kind", "Open"]
        );
        assert_eq!(names(&spec, FeatureKind::Continuous), ["Store"]);
        assert_eq!(spec.split, Split::Column("split".into()));
        assert_eq!(
            needed_columns(&spec),
            ["Store", "Date", "Kind", "Open", "Sales", "split"]
        );
    }

    #[test]
    fn takes_features_as_named() {
        let named = TrainOptions {
            categorical: Some(vec!["Store".into()]),
            shard_by: vec!["Store".into(), "Date".into()],
            ..options()
        };
        let spec = named.spec(target(), &input(), &input()).unwrap();
        assert_eq!(names(&spec, FeatureKind::Categorical), ["Store"]);
        assert!(names(&spec, FeatureKind::Continuous).is_empty());
        assert_eq!(needed_columns(&spec), ["Store", "Sales", "Date"]);
    }

    #[test]
    fn raises_shards_to_ranks_unless_given() {
        let shards = |ranks, shards| {
            TrainOptions {
                ranks,
                shards,
                ..options()
            }
            .spec(target(), &input(), &input())
            .map(|s| s.shards)
        };
        assert_eq!(shards(Ranks::All, None).unwrap(), 60);
        for (ranks, due) in [
            (1, 60),
            (2, 60),
            (7, 63),
            (40, 160),
            (100, 400),
            (300, 900),
            (512, 1024),
            (1000, 1000),
            (3000, 3000),
        ] {
            assert_eq!(shards(Ranks::Exactly(ranks), None).unwrap(), due);
            let all = TrainOptions {
                ranks: Ranks::All,
                ..options()
            };
            assert_eq!(all.default_shards(ranks), due);
        }
        assert_eq!(shards(Ranks::Exactly(4), Some(4)).unwrap(), 4);
        assert!(shards(Ranks::Exactly(5), Some(4)).is_err());
    }

    #[test]
    fn ranks_bound_how_training_shrinks_and_grows() {
        let settle = |ranks, min_ranks, max_ranks| {
            let options = TrainOptions {
                ranks,
                min_ranks,
                max_ranks,
                ..options()
            };
            let spec = options.spec(target(), &input(), &input())?;
            Ok::<_, Error>((spec.elastic.max_ranks, spec.shards))
        };
        use Ranks::{All, Exactly};
        assert_eq!(settle(All, 1, None).unwrap(), (None, 60));
        assert_eq!(settle(All, 70, None).unwrap(), (None, 280));
        assert_eq!(settle(Exactly(4), 2, None).unwrap(), (Some(4), 60));
        assert_eq!(settle(Exactly(4), 4, Some(80)).unwrap(), (Some(80), 80));
        for (ranks, min, max, option) in [
            (Exactly(4), 5, None, "min_ranks"),
            (Exactly(4), 1, Some(3), "max_ranks"),
            (All, 5, Some(4), "max_ranks"),
        ] {
            let error = settle(ranks, min, max).unwrap_err();
            assert!(
                matches!(&error, Error::Proto(volley_proto::Error::Option { option: named, .. })
                    if named == option),
                "{error}"
            );
        }
    }

    #[test]
    fn custom_layers_are_refused_beside_a_gpu_by_wgpu() {
        use volley_proto::spec::{Device, Layer};
        let on = |device| {
            let mut options = TrainOptions {
                device,
                ..options()
            };
            let custom = Layer::Custom {
                name: "rbf".into(),
                arguments: vec![16.0],
            };
            options.network.layers = Some(vec![Layer::Residual(vec![custom])]);
            options.spec(target(), &input(), &input())
        };
        on(Device::Cpu).unwrap();
        on(Device::Auto).unwrap();
        on(Device::AnyCuda).unwrap();
        on(Device::Cuda(0)).unwrap();
        assert!(on(Device::AnyWgpu).is_err());
        let error = on(Device::Wgpu(0)).unwrap_err().to_string();
        for part in ["device = 'wgpu:0'", "custom('rbf', 16)", "not supported"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn only_gpus_are_shared() {
        use volley_proto::spec::Device;
        let share = |device| {
            let options = TrainOptions {
                device,
                device_share: true,
                ..options()
            };
            options.spec(target(), &input(), &input())
        };
        assert!(share(Device::AnyCuda).unwrap().device_share);
        assert!(share(Device::Auto).unwrap().device_share);
        for device in [Device::Cpu, Device::AnyWgpu, Device::Wgpu(1)] {
            let error = share(device).unwrap_err().to_string();
            let named = format!("device = '{device}'");
            assert!(error.contains("option device_share = true"), "{error}");
            assert!(error.contains(&named), "{error}");
        }
    }

    #[test]
    fn names_what_is_wrong_with_columns() {
        let check = |options: TrainOptions, fields: &[Field]| {
            let columns = input()
                .fields()
                .iter()
                .map(|f| f.as_ref().clone())
                .collect::<Vec<_>>();
            options
                .spec(
                    target(),
                    &Schema::new([&columns, fields].concat()),
                    &input(),
                )
                .unwrap_err()
        };
        let label = TrainOptions {
            labels: vec!["Slaes".into()],
            ..Default::default()
        };
        assert_eq!(
            check(label, &[]).to_string(),
            "unknown column \"Slaes\" in the label; did you mean \"Sales\"?"
        );
        assert!(matches!(
            check(TrainOptions::default(), &[]),
            Error::MissingOption { .. }
        ));
        let list = Field::new_list("tags", Field::new_list_field(DataType::Utf8, true), true);
        assert!(matches!(
            check(options(), &[list]),
            Error::Proto(volley_proto::Error::ColumnType { column, .. }) if column == "tags"
        ));
        let again = Field::new("Store", DataType::Int64, true);
        assert!(matches!(
            check(options(), &[again]),
            Error::RepeatedColumn { column } if column == "Store"
        ));
    }
}
