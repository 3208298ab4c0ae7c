//! Warm start: a model's weights as the initial weights of another training.
//!
//! Embeddings follow their values to their codes in the new vocabularies; everything else is copied unchanged. A training
//! that begins before its rows have arrived inherits the vocabularies and the scaling too.

use volley_proto::spec::{Feature, FeatureKind, NumericTransform, TrainSpec};

use super::Model;
use super::predict::Encoder;
use crate::encode::{Class, Scaling, Vocabulary};
use crate::network::{Architecture, Normalization, Parameter, Table};
use crate::{Error, Result};

/// Network that starts with a model's weights.
#[derive(Debug)]
pub(crate) struct Successor<'a> {
    pub(crate) spec: &'a TrainSpec,
    /// Vocabularies of the categorical features.
    pub(crate) vocabularies: &'a [Vocabulary],
    pub(crate) architecture: &'a Architecture,
}

/// Terms of a model that a training takes if it does not wait for all rows to fit its own.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Vocabularies of the categorical features.
    pub(crate) vocabularies: Vec<Vocabulary>,
    /// Classes of a classification label.
    pub(crate) classes: Option<Vocabulary>,
    pub(crate) scaling: Scaling,
}

impl Model {
    /// Returns what a training with this spec inherits. Its columns have these classes, of the categorical features and of
    /// a label that is a class.
    ///
    /// # Errors
    /// Names what differs.
    pub(crate) fn inherited(
        &self,
        spec: &TrainSpec,
        features: &[Class],
        label: Option<Class>,
    ) -> Result<Inherited> {
        let refuse = |difference: String| Err(Error::WarmFeatures { difference });
        self.check_roles(spec)?;
        self.check_classes(&spec.features, features.iter().copied())?;
        let classes = self.manifest.classes.as_ref().map(Vocabulary::of_classes);
        let then = classes.as_ref().map(Vocabulary::class);
        if then != label {
            let say = |class: Option<Class>| class.map_or("numbers".into(), |of| of.to_string());
            let (then, now) = (say(then), say(label));
            return refuse(format!("its label holds {then}, this one's {now}"));
        }
        let vocabularies: Vec<Vocabulary> = self.vocabularies().cloned().collect();
        let now = spec.vocabulary.buckets();
        let mut then = vocabularies.iter().map(Vocabulary::buckets);
        if let Some(then) = then.find(|then| *then != now) {
            let say = |of: Option<usize>| of.map_or("not set".into(), |of| of.to_string());
            let (then, now) = (say(then), say(now));
            return refuse(format!("its hash_buckets is {then}, this one's {now}"));
        }
        match [&self.manifest.spec, spec].map(|spec| spec.network.is_piecewise()) {
            [true, false] => {
                return refuse("only its numbers have piecewise linear embeddings".to_owned());
            }
            [false, true] => {
                return refuse(
                    "only this one's numbers have piecewise linear embeddings".to_owned(),
                );
            }
            _ => {}
        }
        Ok(Inherited {
            vocabularies,
            classes,
            scaling: self.scaling().clone(),
        })
    }

    /// Returns the successor's weights and running statistics: this model's, with the `fresh` embeddings of values that
    /// it does not know.
    ///
    /// # Errors
    /// Names the feature that differs, or the parameter that has another shape.
    pub(crate) fn start(
        &self,
        successor: &Successor<'_>,
        fresh: Vec<Vec<f32>>,
    ) -> Result<(Vec<Vec<f32>>, Normalization)> {
        let Successor {
            spec, vocabularies, ..
        } = *successor;
        self.check_roles(spec)?;
        self.check_classes(&spec.features, vocabularies.iter().map(Vocabulary::class))?;
        self.check_shapes(successor.architecture)?;
        let mut values = self.values.clone();
        let mut fresh = fresh;
        for Table { at, widths } in successor.architecture.tables() {
            let mut table = std::mem::take(&mut fresh[*at]);
            self.copy_rows(successor, widths, &values[*at], &mut table);
            values[*at] = table;
        }
        Ok((values, self.running.clone()))
    }

    /// Returns the vocabularies of the categorical features, in their order.
    fn vocabularies(&self) -> impl Iterator<Item = &Vocabulary> {
        self.features.iter().filter_map(|encoder| match encoder {
            Encoder::Continuous => None,
            Encoder::Categorical { vocabulary, .. } => Some(vocabulary),
        })
    }

    /// Checks the columns' roles.
    fn check_roles(&self, successor: &TrainSpec) -> Result<()> {
        let refuse = |difference| Err(Error::WarmFeatures { difference });
        let specs = [&self.manifest.spec, successor];
        // Outputs are identified by position, and each has a scale.
        let [then, now] = specs.map(|spec| match (spec.label.several(), spec.loss.shares()) {
            ([], None) => None,
            ([], Some(shares)) => Some(format!("quantiles {shares:?}")),
            (labels, _) => Some(format!("labels {labels:?}")),
        });
        if then != now {
            let [then, now] = [then, now].map(|of| of.unwrap_or_else(|| "one label".to_owned()));
            return refuse(format!("it predicts {then}, this one {now}"));
        }
        let [then, now] = specs.map(|spec| &spec.features);
        for at in 0..then.len().max(now.len()) {
            let say = |feature: &Feature| {
                let kind = match feature.kind {
                    FeatureKind::Categorical => "categorical",
                    FeatureKind::Continuous => "continuous",
                };
                format!("{:?}, {kind}", feature.column)
            };
            let (then, now) = (then.get(at), now.get(at));
            if then != now {
                let say = |feature: Option<&Feature>| feature.map_or("none".into(), say);
                let (at, then, now) = (at + 1, say(then), say(now));
                return refuse(format!("its feature {at} is {then}, this one's is {now}"));
            }
        }
        // Numbers must be scaled as the model's: ranks are not standard deviations.
        let [before, after] = specs.map(|spec| spec.numeric_transform);
        let [ranked, ranks] = [before, after].map(|of| of == NumericTransform::Quantile);
        if ranked != ranks && now.iter().any(|f| f.kind == FeatureKind::Continuous) {
            let difference = format!("its numeric_transform is '{before}', this one's '{after}'");
            return refuse(difference);
        }
        Ok(())
    }

    /// Checks the classes of the categorical features.
    fn check_classes(&self, features: &[Feature], now: impl Iterator<Item = Class>) -> Result<()> {
        let columns = features.iter();
        let columns = columns.filter(|f| f.kind == FeatureKind::Categorical);
        let classes = self.vocabularies().map(Vocabulary::class).zip(now);
        for (Feature { column, .. }, (then, now)) in columns.zip(classes) {
            if then != now {
                let difference = format!("its column {column:?} holds {then}, this one's {now}");
                return Err(Error::WarmFeatures { difference });
            }
        }
        Ok(())
    }

    /// Checks that all shapes are equal, except for the number of embeddings.
    fn check_shapes(&self, successor: &Architecture) -> Result<()> {
        let shape = |all: &[Parameter], name: &str| {
            let found = all.iter().find(|parameter| parameter.name == name);
            found.map(|parameter| parameter.shape.clone())
        };
        let (before, now) = (&self.architecture, successor.parameters());
        let mut then = before.parameters().to_vec();
        for (then_table, table) in before.tables().iter().zip(successor.tables()) {
            let widths = |table: &Table| -> Vec<usize> {
                table.widths.iter().map(|(_, width)| *width).collect()
            };
            if widths(then_table) == widths(table) {
                then[then_table.at].shape.clone_from(&now[table.at].shape);
            }
        }
        let differs = then
            .iter()
            .chain(now)
            .find(|p| shape(&then, &p.name) != shape(now, &p.name));
        let Some(Parameter { name, .. }) = differs else {
            return Ok(());
        };
        let show =
            |all: &[Parameter]| shape(all, name).map_or("absent".into(), |s| format!("{s:?}"));
        Err(Error::WarmShape {
            parameter: name.clone(),
            then: show(before.parameters()),
            now: show(now),
        })
    }

    /// Copies the embeddings of values that both know; `widths` holds each feature's codes and the width of its rows.
    fn copy_rows(
        &self,
        successor: &Successor<'_>,
        widths: &[(usize, usize)],
        from: &[f32],
        to: &mut [f32],
    ) {
        let (mut from, mut to) = (from, to);
        let vocabularies = self.vocabularies().zip(successor.vocabularies);
        for ((then, now), (_, dim)) in vocabularies.zip(widths) {
            let dim = *dim;
            let (theirs, from_rest) = from.split_at(then.codes() * dim);
            let (mine, to_rest) = to.split_at_mut(now.codes() * dim);
            for (embedding, code) in mine.chunks_exact_mut(dim).zip(now.codes_in(then)) {
                if let Some(code) = code {
                    let at = code as usize * dim;
                    embedding.copy_from_slice(&theirs[at..at + dim]);
                }
            }
            (from, to) = (from_rest, to_rest);
        }
    }
}
