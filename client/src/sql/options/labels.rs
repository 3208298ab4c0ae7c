//! Several labels of one model: the options that exclude them.

use volley_proto::spec::{Loss, Output, Task};

use super::TrainOptions;
use crate::{Error, Result};

impl TrainOptions {
    /// Refuses several labels together with options that support only one.
    pub(super) fn check_labels(&self, loss: &Loss) -> Result<()> {
        if self.labels.len() == 1 {
            return Ok(());
        }
        let reason = if self.task == Task::Classification {
            "of a classifier: train a model for each"
        } else if loss.shares().is_some() {
            "with several quantiles: train a model for each label, or for one quantile"
        } else if self.network.output == Output::ScaledSigmoid {
            "with activation_output = 'scaled_sigmoid', whose scale is that of one label"
        } else {
            return Ok(());
        };
        let labels = self.labels.join("', '");
        Err(Error::not_supported(format!(
            "input_label_cols = ['{labels}'] {reason}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use volley_proto::TrainId;
    use volley_proto::spec::{IfExists, Start, TrainSpec};

    use super::super::{Target, needed_columns};
    use super::*;

    fn spec(options: TrainOptions) -> Result<TrainSpec> {
        let number = |name: &str| Field::new(name, DataType::Int64, true);
        let input = Schema::new(["a", "b", "x"].map(number).to_vec());
        let target = Target {
            train_id: TrainId::generate(),
            model: "m".parse().unwrap(),
            if_exists: IfExists::Fail,
            store: "file:///tmp/models".parse().unwrap(),
            newest_version: None,
            start: Start::Fresh,
        };
        options.spec(target, &input, &input)
    }

    fn several() -> TrainOptions {
        TrainOptions {
            labels: vec!["a".into(), "b".into()],
            ..TrainOptions::default()
        }
    }

    #[test]
    fn labels_are_no_features_and_have_an_output_each() {
        let spec = spec(several()).unwrap();
        assert_eq!(needed_columns(&spec), ["x", "a", "b"]);
        assert_eq!((spec.features.len(), spec.outputs()), (1, 2));
    }

    #[test]
    fn what_is_of_one_label_is_refused_by_name() {
        let mut classifier = several();
        classifier.task = Task::Classification;
        let mut quantiles = several();
        let shares = vec![0.1, 0.9];
        quantiles.loss = Loss::Quantiles { shares }.into();
        let mut scaled = several();
        scaled.network.output = Output::ScaledSigmoid;
        for (options, named) in [
            (classifier, "classifier"),
            (quantiles, "quantiles"),
            (scaled, "scaled_sigmoid"),
        ] {
            let error = spec(options).unwrap_err();
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
            let error = error.to_string();
            assert!(
                error.contains("['a', 'b']") && error.contains(named),
                "{error}"
            );
        }
    }
}
