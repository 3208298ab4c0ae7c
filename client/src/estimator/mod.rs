//! Typed builder of a training run: `CREATE MODEL` in Rust.
//!
//! The options are grouped as in SQL's table of options: `data`, `network`, `learning` and `running`.

mod data;
mod epochs;
mod learning;
mod network;
mod running;

use std::ops::ControlFlow;

use datafusion::dataframe::DataFrame;
use volley_proto::spec::IfExists;
use volley_proto::stack::deeply;
use volley_proto::store::EpochRecord;
use volley_proto::{ModelName, TrainId};

use self::epochs::Epochs;
use crate::session::TrainingRows;
use crate::sql::Target;
use crate::{Model, Result, Session, TrainOptions, TrainingEvents};

/// Builder of a training run: the model's name, its columns, and hyperparameters.
///
/// Only [`label`](Self::label) is needed. Methods check nothing; [`fit`](Self::fit) reports invalid options.
///
/// A clone is a training of its own.
///
/// ```no_run
/// use volley::spec::{Loss, Ranks};
/// # use volley::{Error, Estimator, Session};
/// # async fn learn(session: &Session) -> Result<(), Error> {
/// let rows = session.sql("SELECT store, day, promo, sales FROM 'sales.parquet'").await?;
/// let model = Estimator::new("sales")
///     .replace()
///     .label("sales")
///     .categorical(["store", "promo"])
///     .continuous(["day"])
///     .hidden_units([128, 64])
///     .loss(Loss::Mae)
///     .split_last("day", 0.2)
///     .ranks(Ranks::Exactly(4))
///     .fit(session, rows)
///     .await?;
/// println!("version {}", model.manifest().version);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, PartialEq)]
pub struct Estimator {
    name: String,
    train_id: TrainId,
    if_exists: IfExists,
    options: TrainOptions,
    transform: Option<String>,
}

impl Clone for Estimator {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            train_id: TrainId::generate(),
            if_exists: self.if_exists,
            options: self.options.clone(),
            transform: self.transform.clone(),
        }
    }
}

impl Estimator {
    /// Starts a model of this name, with every option at its default.
    ///
    /// A name has letters, digits, `_` and `-`, begins with a letter or `_`, and takes at most 128 bytes.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            train_id: TrainId::generate(),
            if_exists: IfExists::Fail,
            options: TrainOptions::default(),
            transform: None,
        }
    }

    /// Publishes a new version if the model exists. Default: an existing model is an error.
    pub fn replace(mut self) -> Self {
        self.if_exists = IfExists::Replace;
        self
    }

    /// Returns the id of the training run, which [`TrainingEvents`] and the system tables know it by.
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

    /// Trains like [`fit`](Self::fit), and calls `on_epoch` with each epoch's record: once, and in general within a second
    /// of the epoch's end. Records that did not arrive are passed on before this returns.
    ///
    /// [`ControlFlow::Break`] ends training after the epoch that is under way by then, as [`early_stop`](Self::early_stop)
    /// does: the model is published, after a refit if one is due, and the callback is not called again. In a refit, it has
    /// no effect. Dropping the future cancels training, and publishes nothing.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// # use volley::{Error, Estimator, Session, datafusion::prelude::DataFrame};
    /// # async fn learn(session: &Session, rows: DataFrame) -> Result<(), Error> {
    /// let model = Estimator::new("sales")
    ///     .label("sales")
    ///     .epochs(1000)
    ///     .fit_with(session, rows, |epoch| match epoch.eval_mae {
    ///         Some(error) if error < 5.0 => ControlFlow::Break(()),
    ///         _ => ControlFlow::Continue(()),
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`fit`](Self::fit). A scheduler that does not report progress is not an error.
    pub async fn fit_with(
        self,
        session: &Session,
        rows: DataFrame,
        on_epoch: impl FnMut(&EpochRecord) -> ControlFlow<()> + Send,
    ) -> Result<Model> {
        let mut events = TrainingEvents::of(session.scheduler(), self.train_id);
        let mut epochs = Epochs::new(on_epoch);
        let model = tokio::select! {
            biased;
            model = self.fit(session, rows) => model?,
            never = epochs.follow(&mut events) => match never {},
        };
        model
            .history()
            .iter()
            .for_each(|epoch| epochs.report(epoch));
        Ok(model)
    }

    async fn train(mut self, session: &Session, rows: DataFrame) -> Result<Model> {
        let model: ModelName = self.name.parse()?;
        let target = Target {
            train_id: self.train_id,
            model: model.clone(),
            if_exists: self.if_exists,
            store: session.store().url().clone(),
            newest_version: None,
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
