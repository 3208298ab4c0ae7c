//! trainer.

pub mod collective;
