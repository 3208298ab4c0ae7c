//! Early beginning: the first epoch takes steps on the shards that a rank has while it encodes the next ones.
//!
//! Everything that steps depend on besides the rows must be known before the rows: from a model, or from options. This
//! module checks that it is. It does not train.

use super::{ClassWeights, EnsembleSize, Output, Rule, Split, Start, TrainSpec};
use crate::{Error, Result};

impl TrainSpec {
    /// Checks that a training that begins early needs no pass over all rows before its first step.
    pub(super) fn check_begin_early(&self) -> Result<()> {
        if !self.begin_early {
            return Ok(());
        }
        let counts_rows =
            self.network.is_deep() && self.network.ensemble_size == EnsembleSize::Auto;
        let refused = [
            (
                self.start == Start::Fresh,
                "expected with warm_start: values, classes and the scaling of numbers are those of its model",
            ),
            (
                matches!(self.split, Split::Sequential { .. }),
                "expected with another data_split_method than 'seq': which rows are the last is known once all have \
                 arrived",
            ),
            (
                matches!(self.split, Split::CrossValidation(_)),
                "expected with another data_split_method than 'auto_split', such as 'random': its folds depend on the \
                 number of rows",
            ),
            (
                matches!(self.optimizer.rule, Rule::Lbfgs { .. }),
                "expected with another optimizer than 'lbfgs', such as 'adamw': a step of it takes all rows",
            ),
            (
                self.network.output == Output::ScaledSigmoid,
                "expected with another activation_output than 'scaled_sigmoid': its scale is that of the largest label",
            ),
            (
                self.class_weights == ClassWeights::Balanced,
                "expected without auto_class_weights: they depend on the rows of each class",
            ),
            (
                self.l2.is_none(),
                "expected with l2_reg: its default depends on the number of rows",
            ),
            (
                counts_rows,
                "expected with a number as ensemble_size: 'auto' depends on the number of rows",
            ),
        ];
        match refused.into_iter().find(|(is_refused, _)| *is_refused) {
            Some((_, expected)) => Err(Error::option("begin_early", "true", expected)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelRef;
    use crate::store::Manifest;

    #[test]
    fn what_needs_all_rows_first_is_refused_by_name() {
        let old = include_str!("../__fuzz__/manifest/corpus/whole.json");
        let mut fit = serde_json::from_str::<Manifest>(old).unwrap().spec;
        fit.begin_early = true;
        fit.start = Start::Warm(ModelRef {
            store: fit.store.clone(),
            name: fit.model.clone(),
            version: 1,
        });
        fit.split = Split::Column("split".into());
        fit.optimizer.rule = Rule::default();
        fit.network.output = Output::Identity;
        fit.network.ensemble_size = EnsembleSize::ONE;
        fit.class_weights = ClassWeights::Equal;
        fit.l2 = Some(0.0);
        fit.check_begin_early().unwrap();
        type Change = fn(&mut TrainSpec);
        let script: [(Change, &str); 8] = [
            (|s| s.start = Start::Fresh, "warm_start"),
            (
                |s| {
                    s.split = Split::Sequential {
                        column: "day".into(),
                        share: 0.2,
                    };
                },
                "'seq'",
            ),
            (|s| s.split = Split::CrossValidation(0.2), "'random'"),
            (|s| s.optimizer.rule = Rule::Lbfgs { memory: 3 }, "'lbfgs'"),
            (
                |s| s.network.output = Output::ScaledSigmoid,
                "'scaled_sigmoid'",
            ),
            (
                |s| s.class_weights = ClassWeights::Balanced,
                "auto_class_weights",
            ),
            (|s| s.l2 = None, "l2_reg"),
            (
                |s| s.network.ensemble_size = EnsembleSize::Auto,
                "ensemble_size",
            ),
        ];
        for (change, named) in script {
            let mut other = fit.clone();
            change(&mut other);
            let error = other.check_begin_early().unwrap_err().to_string();
            assert!(error.contains("begin_early"), "{error}");
            assert!(error.contains(named), "{error}");
            other.begin_early = false;
            other.check_begin_early().unwrap();
        }
        // A run that began early is resumed with the same options.
        fit.start = Start::Resume;
        fit.check_begin_early().unwrap();
    }
}
