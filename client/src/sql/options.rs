//! The options of `CREATE MODEL`: one table that parses and documents them.

/// A value in `OPTIONS (…)`.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// `'text'`
    Text(String),
    /// `1`, `1e-4`, as written.
    Number(String),
    /// `true`, `false`
    Bool(bool),
    /// `[…]`
    List(Vec<OptionValue>),
}

/// One option, for documentation.
#[derive(Debug)]
pub struct TrainOption {
    /// The option's name.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// The value where it is not given.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

/// All options, in the order of the documentation.
pub fn train_options() -> &'static [TrainOption] {
    &[]
}

/// Options as given so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainOptions {}
