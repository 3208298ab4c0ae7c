//! Options of the task, the labels and features, and the rows.

use volley_proto::spec::{ClassWeights, LabelTransform, NumericTransform, Task};

use super::Estimator;
use crate::sql::SplitMethod;

impl Estimator {
    /// Sets the column to predict. Needed.
    ///
    /// A number for [`Task::Regression`]; text, whole numbers, booleans or dates for [`Task::Classification`].
    pub fn label(self, column: impl Into<String>) -> Self {
        self.labels([column])
    }

    /// Sets the columns to predict with one network, each with its own output. Several only for [`Task::Regression`].
    pub fn labels<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.labels = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the factors of several labels' losses in their sum, in the labels' order. Default: 1 each.
    pub fn loss_weights(mut self, weights: impl Into<Vec<f64>>) -> Self {
        self.options.loss_weights = weights.into();
        self
    }

    /// Sets the transform of the label, whose result the network predicts. Default: identity.
    ///
    /// With [`LabelTransform::Ln`], which needs labels above 0, the loss is in the logarithm's scale; predictions are
    /// exponentiated.
    pub fn label_transform(mut self, transform: LabelTransform) -> Self {
        self.options.label_transform = transform;
        self
    }

    /// Sets whether the network learns the (transformed) label less its mean, in standard deviations of the training
    /// rows. Default: true for a regression with an unbounded output, and false for all others, which refuse true.
    ///
    /// Losses, metrics and predictions are in the label's own scale all the same.
    pub fn standardize_label(mut self, on: bool) -> Self {
        self.options.standardize_label = Some(on);
        self
    }

    /// Sets the task. Default: [`Task::Regression`], which predicts a number.
    ///
    /// [`Task::Classification`] predicts which of 2 to 10,000 values the label has.
    pub fn task(mut self, task: Task) -> Self {
        self.options.task = task;
        self
    }

    /// Sets the features that pass through an embedding: text, whole numbers, booleans or dates; NULL is a value of its
    /// own.
    ///
    /// Default: all columns of text, booleans and dates, if `continuous` is not set either; else none.
    pub fn categorical<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.categorical = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the features that enter as numbers; dates and times are days since 1970-01-01, and NULL is the mean, which
    /// an extra input marks.
    ///
    /// Default: all columns of numbers and timestamps, if `categorical` is not set either; else none.
    pub fn continuous<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.continuous = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the scaling of continuous features. Default: [`NumericTransform::Standardize`], less the mean of the
    /// training rows, in their standard deviations.
    pub fn numeric_transform(mut self, transform: NumericTransform) -> Self {
        self.options.numeric_transform = transform;
        self
    }

    /// Sets the minimum number of rows with a categorical value for an embedding of its own, from 1. Default: 1.
    ///
    /// Rarer values share one embedding.
    pub fn min_frequency(mut self, rows: usize) -> Self {
        self.options.vocabulary.min_frequency = Some(rows);
        self
    }

    /// Sets the maximum number of values of a categorical feature with an embedding of their own, from 1: the most
    /// frequent ones. Default: no limit. The other values share one embedding.
    pub fn max_vocabulary(mut self, values: usize) -> Self {
        self.options.vocabulary.max_vocabulary = Some(values);
        self
    }

    /// Hashes the values of each categorical feature into this many buckets, from 1, which have an embedding each.
    /// Default: off. For more values than memory has room for.
    pub fn hash_buckets(mut self, buckets: usize) -> Self {
        self.options.vocabulary.hash_buckets = Some(buckets);
        self
    }

    /// Sets the expressions of `TRANSFORM (…)`, which the model computes from the rows' columns in training and in
    /// prediction, such as `ML.STANDARD_SCALER(x) OVER () AS x`, `ln(y + 1) AS y` and `* EXCEPT (x, y)`.
    ///
    /// Functions `OVER ()` are fitted to the training rows. Default: the rows' own columns.
    pub fn preprocess<E: AsRef<str>>(mut self, expressions: impl IntoIterator<Item = E>) -> Self {
        let expressions = expressions.into_iter();
        let expressions: Vec<_> = expressions.map(|expr| expr.as_ref().to_owned()).collect();
        self.transform = Some(expressions.join(", "));
        self
    }

    /// Sets the column of the train/evaluation split: text as in [`split`](volley_proto::spec::split), or a boolean
    /// that is true for evaluation.
    ///
    /// Default of the split: cross-validation where an ensemble is trained, else a random fifth of the rows is
    /// evaluated.
    pub fn split_by(mut self, column: impl Into<String>) -> Self {
        self.options.split_method = Some(SplitMethod::Custom);
        self.options.split_column = Some(column.into());
        self.options.split_fraction = None;
        self
    }

    /// Sets the share of rows to evaluate, 0 < share < 1, drawn by a hash of each row's values and the seed.
    pub fn split_randomly(mut self, evaluated: f64) -> Self {
        self.options.split_method = Some(SplitMethod::Random);
        self.options.split_fraction = Some(evaluated);
        self.options.split_column = None;
        self
    }

    /// Evaluates the last rows by a column of numbers, dates or times: this share of them, 0 < share < 1. Rows where
    /// the column is NULL are evaluated.
    pub fn split_last(mut self, column: impl Into<String>, evaluated: f64) -> Self {
        self.options.split_method = Some(SplitMethod::Sequential);
        self.options.split_column = Some(column.into());
        self.options.split_fraction = Some(evaluated);
        self
    }

    /// Trains on all rows and evaluates none.
    pub fn split_none(mut self) -> Self {
        self.options.split_method = Some(SplitMethod::NoSplit);
        self.options.split_column = None;
        self.options.split_fraction = None;
        self
    }

    /// Sets the columns whose values decide where a random split puts a row: rows with equal values stay together, such
    /// as those of one customer. They are no features unless named. Default: all columns.
    pub fn split_key<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.split_key = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the column of the rows' weights, numbers ≥ 0, in the loss, metrics, means and deviations. A row of weight 0
    /// is left out. It is no feature unless named. Default: 1 each.
    pub fn sample_weight(mut self, column: impl Into<String>) -> Self {
        self.options.sample_weight = Some(column.into());
        self
    }

    /// Sets the weights of a classifier's classes in training, each ≥ 0. Default: [`ClassWeights::Equal`].
    pub fn class_weights(mut self, weights: ClassWeights) -> Self {
        self.options.class_weights = weights;
        self
    }
}
