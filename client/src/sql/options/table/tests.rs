//! Tests of the values that each option takes and refuses.

use std::num::NonZeroUsize;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use volley_proto::spec::{
    Activation, AdamForm, ClassWeights, EmbeddingWidth, IfExists, LabelTransform, Layer,
    NumericEmbedding, NumericTransform, Output, Precision, Ranks, RateScaling, Start, Task, TooFew,
};
use volley_proto::{ModelRef, TrainId};

use super::super::{
    LossName, OptimizerName, OptimizerOptions, QuantileLevels, ScheduleName, SplitMethod, Target,
    WarmStart,
};
use super::*;

fn typed(sql: &str) -> OptionValue {
    use datafusion::sql::sqlparser::{dialect::GenericDialect, parser::Parser};
    let mut parser = Parser::new(&GenericDialect {}).try_with_sql(sql).unwrap();
    OptionValue::of(&parser.parse_expr().unwrap()).unwrap()
}

fn try_set(option: &str, value: &str) -> Result<TrainOptions> {
    let mut options = TrainOptions::default();
    options.set(option, &typed(value))?;
    Ok(options)
}

#[test]
fn every_option_takes_its_documented_default() {
    let y = Field::new("y", DataType::Float64, true);
    let input = Schema::new(vec![Field::new("x", DataType::Float64, true), y]);
    let target = Target {
        train_id: TrainId::generate(),
        model: "m".parse().unwrap(),
        if_exists: IfExists::Fail,
        store: "file:///tmp/models".parse().unwrap(),
        newest_version: None,
        start: Start::Fresh,
    };
    let spec = |options: TrainOptions| {
        let labels = vec!["y".to_owned()];
        TrainOptions { labels, ..options }.spec(target.clone(), &input, &input)
    };
    let default = spec(TrainOptions::default()).unwrap();
    for option in train_options() {
        if option.default.starts_with(['\'', '[']) && !option.default.contains(", ")
            || option.default.parse::<f64>().is_ok()
            || ["true", "false"].contains(&option.default)
        {
            let options = try_set(option.name, option.default).unwrap();
            // Some options belong to another loss or optimizer than the default.
            if let Ok(spec) = spec(options) {
                assert_eq!(spec, default, "{} = {}", option.name, option.default);
            }
        }
    }
}

/// Sets the options of an example, and returns their names.
fn set_example(example: &str, options: &mut TrainOptions) -> Vec<String> {
    use datafusion::sql::sqlparser::{ast::Expr, dialect::GenericDialect, parser::Parser};
    let parser = Parser::new(&GenericDialect {}).try_with_sql(example);
    let pairs = parser.unwrap().parse_comma_separated(Parser::parse_expr);
    let pairs = pairs.unwrap().into_iter();
    let pairs = pairs.map(|pair| match pair {
        Expr::BinaryOp { left, right, .. } => {
            let name = left.to_string();
            let value = OptionValue::of(&right).unwrap();
            options.set(&name, &value).unwrap();
            name
        }
        other => panic!("{example}: {other}"),
    });
    pairs.collect()
}

#[test]
fn examples_are_complete() {
    let column = |(name, kind): (&str, &DataType)| Field::new(name, kind.clone(), true);
    let (number, text, day) = (DataType::Float64, DataType::Utf8, DataType::Date32);
    let columns = [
        ("sales", &number),
        ("customers", &number),
        ("price", &number),
        ("store", &text),
        ("city", &text),
        ("day", &day),
    ];
    let input = Schema::new(columns.map(column).to_vec());
    let mut target = Target {
        train_id: TrainId::generate(),
        model: "m".parse().unwrap(),
        if_exists: IfExists::Fail,
        store: "file:///tmp/models".parse().unwrap(),
        newest_version: None,
        start: Start::Fresh,
    };
    for option in train_options() {
        let mut options = TrainOptions::default();
        let names = set_example(option.example, &mut options);
        assert!(names.iter().any(|name| name == option.name), "{option:?}");
        target.start = Start::Fresh;
        if options.warm_start.is_some() {
            // As the session finds them in the store.
            target.start = Start::Warm(ModelRef {
                store: target.store.clone(),
                name: target.model.clone(),
                version: 1,
            });
            options.network.ensemble_size.get_or_insert(1);
        }
        if options.labels.is_empty() {
            let label = match options.task {
                Task::Regression => "sales",
                Task::Classification => "city",
            };
            options.labels = vec![label.to_owned()];
        }
        let spec = options.spec(target.clone(), &input, &input);
        assert!(spec.is_ok(), "{}: {spec:?}", option.example);
    }
}

#[test]
fn documented_learning_rates_are_the_optimizers() {
    use OptimizerName::{Adagrad, Ftrl, Lbfgs, Sgd};
    for (name, optimizer) in OptimizerName::ALL {
        let settled = OptimizerOptions::default().settle(optimizer).unwrap();
        let due = match optimizer {
            Lbfgs => continue,
            Sgd | Adagrad | Ftrl => 0.01,
            _ => 0.004,
        };
        assert_eq!(settled.learn_rate, due, "{name}");
    }
    let learn_rate = train_options().find(|option| option.name == "learn_rate");
    let documented = "0.004; 0.01 with 'sgd', 'adagrad' and 'ftrl'";
    assert_eq!(learn_rate.unwrap().default, documented);
}

#[test]
fn sets_what_was_typed() {
    type Check = fn(&TrainOptions) -> bool;
    let cases: &[(&str, &str, Check)] = &[
        ("MODEL_TYPE", "'DNN_REGRESSOR'", |o| {
            *o == TrainOptions::default()
        }),
        ("input_label_cols", "['Sales']", |o| o.labels == ["Sales"]),
        ("input_label_cols", "['a', 'b']", |o| o.labels == ["a", "b"]),
        ("loss_weights", "[1, 0.5]", |o| o.loss_weights == [1.0, 0.5]),
        ("label_transform", "'ln'", |o| {
            o.label_transform == LabelTransform::Ln
        }),
        ("data_split_method", "'CUSTOM'", |o| {
            o.split_method == Some(SplitMethod::Custom)
        }),
        ("data_split_col", "'split'", |o| {
            o.split_column.as_deref() == Some("split")
        }),
        ("data_split_eval_fraction", "0.1", |o| {
            o.split_fraction == Some(0.1)
        }),
        ("categorical", "['a', 'b']", |o| {
            o.categorical.as_ref().unwrap().len() == 2
        }),
        ("continuous", "[]", |o| {
            o.continuous.as_ref().unwrap().is_empty()
        }),
        ("hidden_units", "[1000, 500]", |o| {
            o.network.hidden_units.as_deref() == Some(&[1000, 500])
        }),
        ("standardize_label", "false", |o| {
            o.standardize_label == Some(false)
        }),
        ("split_key", "['customer']", |o| o.split_key == ["customer"]),
        ("numeric_transform", "'none'", |o| {
            o.numeric_transform == NumericTransform::None
        }),
        ("numeric_transform", "'Quantile'", |o| {
            o.numeric_transform == NumericTransform::Quantile
        }),
        ("batch_norm", "false", |o| {
            o.network.batch_norm == Some(false)
        }),
        ("accumulate", "4", |o| o.accumulate == 4),
        ("wide", "true", |o| o.network.wide == Some(true)),
        ("factors", "4", |o| o.network.factors == Some(4)),
        ("ensemble_size", "3", |o| o.network.ensemble_size == Some(3)),
        ("activation_fn", "'GELU'", |o| {
            o.network.activation == Some(Activation::Gelu)
        }),
        ("embedding_dim", "'auto'", |o| {
            o.network.embedding_dim == Some(EmbeddingWidth::Auto)
        }),
        ("embedding_dim", "[['store', 50]]", |o| {
            let widths = vec![("store".to_owned(), 50)];
            o.network.embedding_dim == Some(EmbeddingWidth::Columns(widths))
        }),
        ("numeric_embedding", "'periodic'", |o| {
            o.network.numeric_embedding == Some(NumericEmbedding::Periodic)
        }),
        ("numeric_embedding", "'piecewise_linear'", |o| {
            o.network.numeric_embedding == Some(NumericEmbedding::PiecewiseLinear)
        }),
        (
            "network",
            "[dense(8), Relu, dropout(0.5), layer_norm, residual(dense(4), mish), \
             concat([cross(2), tanh], dense(3), []), custom('rbf', 16, -0.5), custom('Own')]",
            |o| {
                let dense = Layer::Dense;
                let custom = |name: &str, arguments: &[f64]| Layer::Custom {
                    name: name.to_owned(),
                    arguments: arguments.to_vec(),
                };
                let [relu, mish, tanh] =
                    [Activation::Relu, Activation::Mish, Activation::Tanh].map(Layer::Activation);
                o.network.layers
                    == Some(vec![
                        dense(8),
                        relu,
                        Layer::Dropout(0.5),
                        Layer::LayerNorm,
                        Layer::Residual(vec![dense(4), mish]),
                        Layer::Concat(vec![vec![Layer::Cross(2), tanh], vec![dense(3)], vec![]]),
                        custom("rbf", &[16.0, -0.5]),
                        custom("Own", &[]),
                    ])
            },
        ),
        ("l2_reg", "5e-5", |o| o.l2 == Some(5e-5)),
        ("activation_output", "'scaled_sigmoid'", |o| {
            o.network.output == Output::ScaledSigmoid
        }),
        ("loss", "'mae'", |o| o.loss.name == Some(LossName::Mae)),
        ("quantile", "0.9", |o| {
            o.loss.quantile == Some(QuantileLevels::One(0.9))
        }),
        ("quantile", "[0.05, 0.5, 0.95]", |o| {
            let shares = vec![0.05, 0.5, 0.95];
            o.loss.quantile == Some(QuantileLevels::Several(shares))
        }),
        ("class_weights", "[['yes', 2], [3, 0.5], [true, 1]]", |o| {
            let due = [("yes", 2.0), ("3", 0.5), ("true", 1.0)];
            let due = due.map(|(class, weight)| (class.to_owned(), weight));
            o.class_weights == ClassWeights::Given(due.to_vec())
        }),
        ("sample_weight_col", "'w'", |o| {
            o.sample_weight.as_deref() == Some("w")
        }),
        ("model_type", "'DNN_classifier'", |o| {
            o.task == Task::Classification && !o.linear
        }),
        ("model_type", "'logistic_reg'", |o| {
            o.task == Task::Classification && o.linear
        }),
        ("adam_form", "'torch'", |o| {
            o.optimizer.adam_form == Some(AdamForm::Torch)
        }),
        ("optimizer", "'SGD'", |o| {
            o.optimizer.name == Some(OptimizerName::Sgd)
        }),
        ("nesterov", "true", |o| o.optimizer.nesterov == Some(true)),
        ("learn_rate_schedule", "'cosine'", |o| {
            o.optimizer.schedule == Some(ScheduleName::Cosine)
        }),
        ("warmup_epochs", "0.5", |o| {
            o.optimizer.warmup_epochs == Some(0.5)
        }),
        ("min_frequency", "3", |o| {
            o.vocabulary.min_frequency == Some(3)
        }),
        ("max_vocabulary", "100", |o| {
            o.vocabulary.max_vocabulary == Some(100)
        }),
        ("hash_buckets", "64", |o| {
            o.vocabulary.hash_buckets == Some(64)
        }),
        ("learn_rate_scaling", "'sqrt'", |o| {
            o.optimizer.rate_scaling == RateScaling::Sqrt
        }),
        ("clip_norm", "1", |o| o.optimizer.clip_norm == Some(1.0)),
        ("ema_momentum", "0.9", |o| {
            o.optimizer.ema_momentum == Some(0.9)
        }),
        ("l1_reg", "1e-3", |o| o.l1 == 1e-3),
        ("early_stop", "false", |o| {
            o.early_stop.early_stop == Some(false)
        }),
        ("patience", "5", |o| o.early_stop.patience == Some(5)),
        ("refit", "true", |o| o.refit == Some(true)),
        ("ranks", "3", |o| o.ranks == Ranks::Exactly(3)),
        ("min_ranks", "2", |o| o.min_ranks == 2),
        ("max_ranks", "8", |o| o.max_ranks == Some(8)),
        ("loading_timeout", "'5min'", |o| {
            o.loading_timeout.as_secs() == 300
        }),
        ("regroup_timeout", "'5s'", |o| {
            o.regroup_timeout.as_secs() == 5
        }),
        ("on_too_few_ranks", "'WAIT'", |o| o.too_few == TooFew::Wait),
        ("checkpoint_every", "100", |o| {
            o.checkpoint_every == Some(100)
        }),
        ("trace", "true", |o| o.trace == Some(true)),
        ("resume", "true", |o| o.resume),
        ("warm_start", "true", |o| {
            o.warm_start == Some(WarmStart::SameModel)
        }),
        ("warm_start", "'m@2'", |o| {
            o.warm_start == Some("m@2".parse().unwrap())
        }),
        ("begin_early", "true", |o| o.begin_early),
        ("shards", "12", |o| o.shards == Some(12)),
        ("shard_by", "['Store']", |o| o.shard_by == ["Store"]),
        ("device", "'cuda:1'", |o| {
            o.device == volley_proto::spec::Device::Cuda(1)
        }),
        ("threads", "3", |o| o.threads == NonZeroUsize::new(3)),
        ("precision", "'BF16'", |o| {
            o.precision == Some(Precision::Bf16)
        }),
        ("device", "'wgpu:2'", |o| {
            o.device == volley_proto::spec::Device::Wgpu(2)
        }),
        ("device", "'cuda'", |o| {
            o.device == volley_proto::spec::Device::AnyCuda
        }),
        ("device_share", "true", |o| o.device_share),
        ("seed", "42", |o| o.seed == 42),
        ("rendezvous_timeout", "'2min'", |o| {
            o.rendezvous_timeout.as_secs() == 120
        }),
    ];
    for (option, value, check) in cases {
        let options = try_set(option, value).unwrap();
        assert!(check(&options), "{option} = {value}");
    }
}

#[test]
fn refuses_wrong_values_by_name() {
    for (option, value) in [
        ("model_type", "1"),
        ("input_label_cols", "'Sales'"),
        ("input_label_cols", "[]"),
        ("loss_weights", "1"),
        ("loss_weights", "[]"),
        ("label_transform", "'log'"),
        ("data_split_col", "['split']"),
        ("data_split_eval_fraction", "1"),
        ("categorical", "[1]"),
        ("hidden_units", "[1.5]"),
        ("hidden_units", "100"),
        ("embedding_dim", "'wide'"),
        ("embedding_dim", "[['store']]"),
        ("activation_fn", "'crelu'"),
        ("numeric_embedding", "'fourier'"),
        ("factors", "0"),
        ("ensemble_size", "0"),
        ("accumulate", "0"),
        ("network", "128"),
        ("network", "[128]"),
        ("network", "[dense]"),
        ("network", "[dense('wide')]"),
        ("network", "[relu()]"),
        ("network", "[layer_norm(1)]"),
        ("network", "[dens(8)]"),
        ("network", "[residual]"),
        ("network", "[concat([8])]"),
        ("network", "[rbf(16)]"),
        ("network", "[custom]"),
        ("network", "[custom(16)]"),
        ("network", "[custom('rbf', 'wide')]"),
        ("dropout", "'half'"),
        ("standardize_label", "'yes'"),
        ("numeric_transform", "'minmax'"),
        ("batch_norm", "1"),
        ("loss", "'mea'"),
        ("quantile", "'median'"),
        ("quantile", "[0.1, 'half']"),
        ("optimizer", "'adm'"),
        ("learn_rate", "true"),
        ("learn_rate_schedule", "'cos'"),
        ("early_stop", "'no'"),
        ("patience", "0"),
        ("nesterov", "1"),
        ("batch_size", "-1"),
        ("global_batch_size", "0"),
        ("epochs", "2.5"),
        ("keep", "'first'"),
        ("refit", "'auto'"),
        ("ranks", "0"),
        ("ranks", "'some'"),
        ("min_ranks", "0"),
        ("max_ranks", "'all'"),
        ("regroup_timeout", "30"),
        ("on_too_few_ranks", "'stop'"),
        ("checkpoint_every", "0"),
        ("resume", "'true'"),
        ("begin_early", "1"),
        ("warm_start", "1"),
        ("warm_start", "'a b'"),
        ("warm_start", "'m@0'"),
        ("shard_by", "'Store'"),
        ("device", "'gpu'"),
        ("threads", "0"),
        ("precision", "'fp8'"),
        ("precision", "16"),
        ("seed", "-1"),
        ("collective_timeout", "60"),
        ("collective_timeout", "'0s'"),
        ("loading_timeout", "'soon'"),
    ] {
        let error = try_set(option, value).unwrap_err();
        let Error::Proto(volley_proto::Error::Option {
            option: named,
            value: shown,
            expected,
        }) = error
        else {
            panic!("{option} = {value}: {error}");
        };
        assert_eq!((named.as_str(), shown.as_str()), (option, value));
        assert!(
            expected.starts_with("expected "),
            "{option} = {value}: {expected}"
        );
    }
}

#[test]
fn says_what_it_cannot_do() {
    for (option, value) in [
        ("model_type", "'boosted_tree_regressor'"),
        ("model_type", "'arima_plus'"),
        ("max_iterations", "10"),
        ("num_trials", "10"),
        ("N_Estimators", "500"),
        ("weight_col", "'w'"),
    ] {
        let error = try_set(option, value).unwrap_err();
        assert!(
            matches!(error, Error::NotSupported { .. }),
            "{option} = {value}: {error}"
        );
    }
}

#[test]
fn says_what_takes_the_place_of_other_systems_words() {
    for (option, value, due) in [
        ("model_type", "'LightGBM'", "there are no trees"),
        ("max_depth", "6", "there are no trees"),
        ("num_trials", "10", "\"Tune it\""),
        ("split_method", "'random'", "use data_split_method"),
        (
            "activation_fn",
            "'swish'",
            "'silu', which is the same function",
        ),
        ("input_label_cols", "[\"y\"]", "write ['y']"),
        ("continuous", "[a, 'b']", "write ['a']"),
        ("data_split_col", "\"day\"", "write 'day'"),
    ] {
        let error = try_set(option, value).unwrap_err().to_string();
        assert!(error.contains(due), "{option} = {value}: {error}");
    }
    let error = try_set("input_label_cols", "[1]").unwrap_err().to_string();
    assert!(error.ends_with("such as ['sales']"), "{error}");
    let elsewhere = super::ELSEWHERE_ALONE.iter();
    for name in elsewhere.flat_map(|(names, _)| names.split(' ')) {
        let mut options = train_options();
        assert!(
            options.all(|option| option.name != name),
            "{name} is an option"
        );
    }
}

#[test]
fn suggests_the_nearest_option() {
    let error = try_set("learning_rate", "1").unwrap_err();
    let Error::UnknownOption { option, hint } = error else {
        panic!("{error}")
    };
    assert_eq!(
        (option.as_str(), hint.as_str()),
        (
            "learning_rate",
            "; did you mean learn_rate, learn_rate_scaling or learn_rate_schedule?"
        )
    );
    for (typed, due) in [("label", "input_label_cols"), ("LR", "learn_rate")] {
        let error = try_set(typed, "1").unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean {due}?")), "{error}");
    }
    for (_, own) in super::ELSEWHERE {
        assert!(train_options().any(|known| known.name == *own), "{own}");
    }
    let error = try_set("zzz", "1").unwrap_err();
    assert!(matches!(error, Error::UnknownOption { hint, .. } if hint.is_empty()));
}
