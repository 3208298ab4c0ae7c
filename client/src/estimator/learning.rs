//! Options of the loss, the optimizer and the length of training.

use volley_proto::spec::{EarlyStop, Keep, Loss, Optimizer};

use super::Estimator;

impl Estimator {
    /// Sets the loss, which training minimizes. Default: [`Loss::Mse`], or [`Loss::LogLoss`] for a classification.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.options.loss = loss.into();
        self
    }

    /// Sets the L1 penalty on the hidden layers' kernels and on a linear part's weights, ≥ 0: adds `penalty · Σ |w|` to
    /// the loss. Default: 0.
    pub fn l1_reg(mut self, penalty: f64) -> Self {
        self.options.l1 = penalty;
        self
    }

    /// Sets the L2 penalty on the hidden layers' kernels and on a linear part's weights, ≥ 0: adds `penalty · Σ w²` to
    /// the loss. Default: 0, or `1 / (2 · training rows)` for a linear classification, scikit-learn's `C = 1`.
    pub fn l2_reg(mut self, penalty: f64) -> Self {
        self.options.l2 = Some(penalty);
        self
    }

    /// Sets the optimizer, with its hyperparameters and the schedule of its learning rate.
    ///
    /// Default: AdamW with weight decay 0.01, a schedule of one cycle and averaged weights; L-BFGS or FTRL for linear
    /// models that they solve.
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.options.optimizer = optimizer.into();
        self
    }

    /// Sets the learning rate before its schedule, > 0. Default: 0.004, or 0.01 with SGD, Adagrad and FTRL.
    pub fn learn_rate(mut self, rate: f64) -> Self {
        self.options.optimizer.learn_rate = Some(rate);
        self
    }

    /// Sets the global batch size: rows of all ranks in a step, from 1. What is learnt does not depend on the number of
    /// ranks. Not together with `batch_size`.
    ///
    /// Default: a 32nd of the training rows, rounded up to a power of two, from 32 to 256.
    pub fn global_batch_size(mut self, rows: usize) -> Self {
        self.options.global_batch_size = Some(rows);
        self
    }

    /// Sets the batch size of one rank, in rows, from 1, instead of the global batch size, which is then this times the
    /// ranks that training begins with. Default: none.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.options.batch_size = Some(rows);
        self
    }

    /// Sets gradient accumulation: backward passes of a step, from 1; more take less memory. Default: 1.
    pub fn accumulate(mut self, passes: usize) -> Self {
        self.options.accumulate = passes;
        self
    }

    /// Sets the maximum number of passes over the training rows, from 1. Default: as many as make 4,000 steps, from 20
    /// to 400; 1,000 with L-BFGS.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.options.epochs = Some(epochs);
        self
    }

    /// Sets early stopping: training ends once the evaluation loss (the training loss where nothing is evaluated) no
    /// longer falls. Default: `None`, which is off.
    ///
    /// Patience is in epochs, from 1; the least relative progress is 0 ≤ share < 1.
    pub fn early_stop(mut self, early_stop: Option<EarlyStop>) -> Self {
        self.options.early_stop = early_stop.into();
        self
    }

    /// Sets the epoch whose weights are published. Default: [`Keep::Best`], with the least evaluation loss;
    /// [`Keep::Last`] with L-BFGS.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.options.keep = Some(keep);
        self
    }

    /// Sets whether the network is trained anew on all rows afterwards, evaluation rows included, for as many epochs as
    /// were kept. Default: true for up to 50,000 rows that are split at random without a warm start.
    pub fn refit(mut self, refit: bool) -> Self {
        self.options.refit = Some(refit);
        self
    }

    /// Sets the seed of initial weights, row order and dropout masks. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }
}
