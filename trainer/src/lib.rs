//! trainer.
