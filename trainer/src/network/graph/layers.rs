//! Graph nodes of a network's layers.
//!
//! The inputs of the layers, the linear part and the interactions are not here.

use volley_proto::spec::{Activation, Layer};

use super::{Dropout, Graph, Operation, Value};
use crate::Result;
use crate::network::architecture::{Initializer, glorot};
use crate::network::custom::CustomLayers;

impl Graph {
    pub(super) fn dense(
        &mut self,
        name: &str,
        from: Value,
        units: usize,
        bias: bool,
        penalized: bool,
    ) -> Value {
        let width = self.widths[from];
        let dense = Operation::Dense {
            bias,
            relu: false,
            dropout: None,
        };
        let to = self.node(dense, vec![from], units);
        let initializer = glorot(width, units);
        self.parameter(
            format!("{name}.kernel"),
            &[width, units],
            initializer,
            penalized,
        );
        if bias {
            self.parameter(
                format!("{name}.bias"),
                &[units],
                Initializer::Constant(0.0),
                false,
            );
        }
        to
    }

    /// Adds layers one after the other and returns the last value. Layers of a kind are numbered below `path`.
    pub(super) fn layers(
        &mut self,
        layers: &[Layer],
        path: &str,
        from: Value,
        customs: &CustomLayers,
    ) -> Result<Value> {
        let mut counts = [0; 6];
        let mut next = |kind: usize, name: &str| {
            counts[kind] += 1;
            format!("{path}{name}.{}", counts[kind] - 1)
        };
        let mut value = from;
        for layer in layers {
            let width = self.widths[value];
            value = match layer {
                Layer::Dense(units) => self.dense(&next(0, "dense"), value, *units, true, true),
                Layer::Activation(Activation::Relu) if self.fuses(value, from, true) => value,
                Layer::Activation(activation) => {
                    self.node(Operation::Activation(*activation), vec![value], width)
                }
                Layer::Dropout(share) => {
                    let place = self.dropouts.len();
                    self.dropouts.push(Dropout {
                        share: *share,
                        width,
                    });
                    match self.fuses(value, from, false) {
                        true => value,
                        false => self.node(Operation::Dropout(place), vec![value], width),
                    }
                }
                Layer::LayerNorm => {
                    let name = next(1, "norm");
                    let to = self.node(Operation::LayerNorm, vec![value], width);
                    let one = Initializer::Constant(1.0);
                    self.parameter(format!("{name}.gamma"), &[width], one, false);
                    let zero = Initializer::Constant(0.0);
                    self.parameter(format!("{name}.beta"), &[width], zero, false);
                    to
                }
                Layer::Residual(inner) => {
                    let name = next(2, "residual");
                    let made = self.layers(inner, &format!("{name}."), value, customs)?;
                    let to = self.widths[made];
                    let passed = match to == width {
                        true => value,
                        false => self.dense(&name, value, to, false, true),
                    };
                    self.node(Operation::Add, vec![passed, made], to)
                }
                Layer::Cross(layers) => {
                    let (name, first) = (next(3, "cross"), value);
                    (0..*layers).fold(value, |value, at| {
                        let name = format!("{name}.{at}");
                        let dense = self.dense(&name, value, width, true, true);
                        let product = self.node(Operation::Multiply, vec![first, dense], width);
                        self.node(Operation::Add, vec![value, product], width)
                    })
                }
                Layer::Concat(branches) => {
                    let name = next(4, "concat");
                    let branches = branches.iter().enumerate();
                    let made: Result<Vec<Value>> = branches
                        .map(|(at, inner)| {
                            self.layers(inner, &format!("{name}.{at}."), value, customs)
                        })
                        .collect();
                    let made = made?;
                    let width = made.iter().map(|value| self.widths[*value]).sum();
                    self.node(Operation::Concat, made, width)
                }
                Layer::Custom { name, .. } => {
                    let path = format!("{}.{name}", next(5, "custom"));
                    let (custom, to, parameters) = customs.operation(layer, width)?;
                    let to = self.node(Operation::Custom(custom), vec![value], to);
                    for own in parameters {
                        let name = format!("{path}.{}", own.name);
                        self.parameter(name, &own.shape, own.initializer, own.penalized);
                    }
                    to
                }
            };
        }
        Ok(value)
    }

    /// Fuses ReLU, or the dropout that was added last, into the dense layer that computes `value`, and returns whether
    /// it could. `entered` is never fused, since it has other readers.
    fn fuses(&mut self, value: Value, entered: Value, activates: bool) -> bool {
        let last = self
            .nodes
            .last_mut()
            .filter(|node| node.to == value && value != entered);
        match last.map(|node| &mut node.operation) {
            Some(Operation::Dense {
                bias: true,
                relu,
                dropout: None,
            }) if activates && !*relu => {
                *relu = true;
                true
            }
            Some(Operation::Dense {
                relu: true,
                dropout: dropout @ None,
                ..
            }) if !activates => {
                *dropout = Some(self.dropouts.len() - 1);
                true
            }
            _ => false,
        }
    }
}
