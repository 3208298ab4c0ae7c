//! Typed builder of a training run: `CREATE MODEL` in Rust.

use std::num::NonZeroUsize;
use std::time::Duration;

use datafusion::dataframe::DataFrame;
use volley_proto::spec::{
    Activation, Device, EarlyStop, EmbeddingWidth, IfExists, Keep, LabelTransform, Layer, Loss,
    NumericEmbedding, NumericTransform, Optimizer, Output, Precision, Ranks, Task, TooFew,
};
use volley_proto::stack::deeply;
use volley_proto::{ModelName, TrainId};

use crate::session::TrainingRows;
use crate::sql::{SplitMethod, Target};
use crate::{Dropout, Model, Result, Session, TrainOptions, WarmStart};

/// Builder of a training run: the model's name, its columns, and hyperparameters.
///
/// Methods check nothing; [`fit`](Self::fit) reports invalid options.
///
/// Every option has the meaning of the SQL option of the same name; see [`train_options`](crate::train_options).
#[derive(Debug, Clone, PartialEq)]
pub struct Estimator {
    name: String,
    train_id: TrainId,
    if_exists: IfExists,
    options: TrainOptions,
    transform: Option<String>,
}

impl Estimator {
    /// Starts a model of this name, with every option at its default.
    pub fn new(name: impl Into<String>) -> Self {
        let options = TrainOptions::default();
        Self {
            name: name.into(),
            train_id: TrainId::generate(),
            if_exists: IfExists::Fail,
            options,
            transform: None,
        }
    }

    /// Sets the column to predict.
    pub fn label(self, column: impl Into<String>) -> Self {
        self.labels([column])
    }

    /// Sets the columns to predict with one network, each with its own output.
    pub fn labels<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.labels = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the weights of the labels' losses in their sum.
    pub fn loss_weights(mut self, weights: impl Into<Vec<f64>>) -> Self {
        self.options.loss_weights = weights.into();
        self
    }

    /// Sets the transform of the label; the network is trained on its result.
    pub fn label_transform(mut self, transform: LabelTransform) -> Self {
        self.options.label_transform = transform;
        self
    }

    /// Sets the features that pass through an embedding.
    pub fn categorical<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.categorical = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the features that enter as numbers.
    pub fn continuous<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.continuous = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the scaling of continuous features.
    pub fn numeric_transform(mut self, transform: NumericTransform) -> Self {
        self.options.numeric_transform = transform;
        self
    }

    /// Sets the expressions of `TRANSFORM (…)`, which the model computes from the rows' columns in training and in
    /// prediction, such as `ML.STANDARD_SCALER(x) OVER () AS x`, `ln(y + 1) AS y` and `* EXCEPT (x, y)`.
    ///
    /// Expressions that are fitted are fitted to the training rows.
    pub fn preprocess<E: AsRef<str>>(mut self, expressions: impl IntoIterator<Item = E>) -> Self {
        let expressions = expressions.into_iter();
        let expressions: Vec<_> = expressions.map(|expr| expr.as_ref().to_owned()).collect();
        self.transform = Some(expressions.join(", "));
        self
    }

    /// Sets the column of the train/evaluation split: text as in [`split`](volley_proto::spec::split), or a boolean.
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

    /// Sets the widths of the dense layers.
    pub fn hidden_units(mut self, widths: impl Into<Vec<usize>>) -> Self {
        self.options.network.hidden_units = Some(widths.into());
        self
    }

    /// Sets the activation function of the dense layers.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.options.network.activation = Some(activation);
        self
    }

    /// Sets all hidden layers, instead of `hidden_units`, `activation` and `dropout`.
    pub fn layers(mut self, layers: impl Into<Vec<Layer>>) -> Self {
        self.options.network.layers = Some(layers.into());
        self
    }

    /// Sets the widths of the categorical features' embeddings.
    pub fn embedding_dim(mut self, width: impl Into<EmbeddingWidth>) -> Self {
        self.options.network.embedding_dim = Some(width.into());
        self
    }

    /// Sets the embedding of continuous features.
    pub fn numeric_embedding(mut self, embedding: NumericEmbedding) -> Self {
        self.options.network.numeric_embedding = Some(embedding);
        self
    }

    /// Sets the number of networks trained side by side; the prediction is their mean.
    pub fn ensemble_size(mut self, members: usize) -> Self {
        self.options.network.ensemble_size = Some(members);
        self
    }

    /// Sets the width of the factors of a factorization machine beside the layers.
    pub fn factors(mut self, width: usize) -> Self {
        self.options.network.factors = Some(width);
        self
    }

    /// Sets the share of the hidden layers' units zeroed in training.
    pub fn dropout(mut self, dropout: Dropout) -> Self {
        self.options.network.dropout = Some(dropout);
        self
    }

    /// Sets whether continuous features pass through batch norm.
    pub fn batch_norm(mut self, on: bool) -> Self {
        self.options.network.batch_norm = Some(on);
        self
    }

    /// Sets the task, such as regression or classification.
    pub fn task(mut self, task: Task) -> Self {
        self.options.task = task;
        self
    }

    /// Sets whether the model is linear: a weight for each number and for each value of a categorical feature, and no
    /// layers.
    pub fn linear(mut self, linear: bool) -> Self {
        self.options.linear = linear;
        self
    }

    /// Sets whether the network has a linear part beside the layers.
    pub fn wide(mut self, wide: bool) -> Self {
        self.options.network.wide = Some(wide);
        self
    }

    /// Sets the activation function of the output.
    pub fn activation_output(mut self, output: Output) -> Self {
        self.options.network.output = output;
        self
    }

    /// Sets the L2 penalty on the hidden layers' kernels and on a linear part's weights.
    pub fn l2_reg(mut self, penalty: f64) -> Self {
        self.options.l2 = Some(penalty);
        self
    }

    /// Sets the loss.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.options.loss = loss.into();
        self
    }

    /// Sets the optimizer, with its hyperparameters and the schedule of its learning rate.
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.options.optimizer = optimizer.into();
        self
    }

    /// Sets the learning rate before its schedule, > 0.
    pub fn learn_rate(mut self, rate: f64) -> Self {
        self.options.optimizer.learn_rate = Some(rate);
        self
    }

    /// Sets early stopping; `None` turns it off.
    pub fn early_stop(mut self, early_stop: Option<EarlyStop>) -> Self {
        self.options.early_stop = early_stop.into();
        self
    }

    /// Sets the batch size of one rank, in rows.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.options.batch_size = Some(rows);
        self
    }

    /// Sets the global batch size: rows of all ranks in a step.
    pub fn global_batch_size(mut self, rows: usize) -> Self {
        self.options.global_batch_size = Some(rows);
        self
    }

    /// Sets gradient accumulation: backward passes of a step.
    pub fn accumulate(mut self, passes: usize) -> Self {
        self.options.accumulate = passes;
        self
    }

    /// Sets the maximum number of epochs.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.options.epochs = Some(epochs);
        self
    }

    /// Sets the epoch whose weights are published.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.options.keep = Some(keep);
        self
    }

    /// Sets whether the network is trained anew on all rows afterwards, evaluation rows included.
    pub fn refit(mut self, refit: bool) -> Self {
        self.options.refit = Some(refit);
        self
    }

    /// Sets the number of ranks.
    pub fn ranks(mut self, ranks: Ranks) -> Self {
        self.options.ranks = ranks;
        self
    }

    /// Sets the minimum number of ranks when executors are lost.
    pub fn min_ranks(mut self, ranks: usize) -> Self {
        self.options.min_ranks = ranks;
        self
    }

    /// Sets the maximum number of ranks when executors join.
    pub fn max_ranks(mut self, ranks: usize) -> Self {
        self.options.max_ranks = Some(ranks);
        self
    }

    /// Sets the timeout of the wait for a replacement of a lost rank; after it, training goes on with fewer ranks.
    pub fn regroup_timeout(mut self, timeout: Duration) -> Self {
        self.options.regroup_timeout = timeout;
        self
    }

    /// Sets the policy when fewer executors are left than `min_ranks`.
    pub fn on_too_few_ranks(mut self, then: TooFew) -> Self {
        self.options.too_few = then;
        self
    }

    /// Sets the steps between checkpoints, besides the one after every epoch.
    pub fn checkpoint_every(mut self, steps: u64) -> Self {
        self.options.checkpoint_every = Some(steps);
        self
    }

    /// Traces the ranks; the trace is a file beside the model.
    pub fn trace(mut self) -> Self {
        self.options.trace = Some(true);
        self
    }

    /// Resumes from the newest checkpoint of an unfinished run of the same model.
    pub fn resume(mut self) -> Self {
        self.options.resume = true;
        self
    }

    /// Starts from the weights of a published version.
    pub fn warm_start(mut self, from: WarmStart) -> Self {
        self.options.warm_start = Some(from);
        self
    }

    /// Sets the number of virtual shards that rows are hashed into.
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = Some(shards);
        self
    }

    /// Sets the columns whose hash assigns rows to shards.
    pub fn shard_by<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.options.shard_by = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the device of the ranks.
    pub fn device(mut self, device: Device) -> Self {
        self.options.device = device;
        self
    }

    /// Sets the precision of matrix products.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.precision = Some(precision);
        self
    }

    /// Sets the maximum number of threads that a rank computes with on the CPU.
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Lets ranks share GPUs with each other, and with ranks of other training runs that share them.
    pub fn device_share(mut self) -> Self {
        self.options.device_share = true;
        self
    }

    /// Sets the seed of initial weights, row order and dropout masks.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// Sets the timeout of the rendezvous of all ranks.
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.options.rendezvous_timeout = timeout;
        self
    }

    /// Sets the timeout of one collective operation.
    pub fn collective_timeout(mut self, timeout: Duration) -> Self {
        self.options.collective_timeout = timeout;
        self
    }

    /// Sets how long a rank that has loaded its shards waits for peers that still load.
    pub fn loading_timeout(mut self, timeout: Duration) -> Self {
        self.options.loading_timeout = timeout;
        self
    }

    /// Publishes a new version if the model exists, instead of failing.
    pub fn replace(mut self) -> Self {
        self.if_exists = IfExists::Replace;
        self
    }

    /// Returns the id of the training run, by which its progress can be followed.
    pub fn train_id(&self) -> TrainId {
        self.train_id
    }

    /// Trains on the cluster and publishes the model. Dropping the future cancels the training.
    ///
    /// # Errors
    /// When an option or a column cannot be used, the model exists, or training fails.
    pub async fn fit(self, session: &Session, rows: DataFrame) -> Result<Model> {
        deeply(self.train(session, rows)).await
    }

    async fn train(mut self, session: &Session, rows: DataFrame) -> Result<Model> {
        let model: ModelName = self.name.parse()?;
        let target = Target {
            train_id: self.train_id,
            model: model.clone(),
            if_exists: self.if_exists,
            store: session.store().url().clone(),
            start: session.start(&mut self.options, &model).await?,
        };
        let clause = self.transform.as_deref();
        let clause = clause
            .map(|list| session.parse_transform(list))
            .transpose()?;
        let (state, plan) = rows.into_parts();
        let rows = TrainingRows::of(plan, clause.as_ref(), &state)?;
        let name = format!("CREATE MODEL {model}");
        let trained = session.train(rows, self.options, target, &name).await?;
        Model::load_version(session, &model, trained.version).await
    }
}
