//! The registry of a binary's custom layers, by name, and the operations that they build.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use volley_proto::did_you_mean;
use volley_proto::spec::{Layer, Network};

use super::{CustomLayer, CustomOperation};
use crate::device::ResolvedDevice;
use crate::network::{Initializer, Parameter};
use crate::{Error, Result};

/// Custom layers of a binary, by name: none unless it registers some.
#[derive(Clone, Default)]
pub struct CustomLayers {
    layers: BTreeMap<String, Arc<dyn CustomLayer>>,
}

/// Lists the names.
impl fmt::Debug for CustomLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.layers.keys()).finish()
    }
}

/// Operation of a custom layer, as stored in a graph's node.
#[derive(Debug, Clone)]
pub(crate) struct Custom {
    /// Layer as typed.
    layer: String,
    pub(crate) operation: Arc<dyn CustomOperation>,
    /// Number of its parameters.
    pub(crate) parameters: usize,
}

/// Compares layers as typed: operations depend on arguments and widths alone, and a graph compares widths.
impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.layer == other.layer
    }
}

impl CustomLayers {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer, which networks use as `custom('name', …)`.
    ///
    /// # Panics
    /// When the name does not consist of letters, digits and `_`, or is already registered.
    #[must_use]
    pub fn with(mut self, name: &str, layer: impl CustomLayer + 'static) -> Self {
        assert!(
            Layer::is_custom_name(name),
            "{name:?} is not a layer's name: expected letters, digits and _, at most 64, not starting with a digit"
        );
        let earlier = self.layers.insert(name.to_owned(), Arc::new(layer));
        assert!(earlier.is_none(), "layer {name:?} is registered twice");
        self
    }

    /// Iterates over the names, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers.keys().map(String::as_str)
    }

    /// Checks that the custom layers of a network are registered, and that the device can compute them.
    ///
    /// # Errors
    /// Names the layer, with the registered ones or the device.
    pub fn check(&self, network: &Network, device: ResolvedDevice) -> Result<()> {
        for layer in Layer::customs(&network.layers) {
            if let Layer::Custom { name, .. } = layer {
                self.find(name, layer)?;
            }
            if device.is_burn_alone() {
                return Err(Error::LayerDevice {
                    layer: layer.to_string(),
                    device: device.to_string(),
                });
            }
        }
        Ok(())
    }

    fn find(&self, name: &str, layer: &Layer) -> Result<&Arc<dyn CustomLayer>> {
        self.layers.get(name).ok_or_else(|| {
            let known: Vec<_> = self.names().collect();
            Error::UnknownLayer {
                layer: layer.to_string(),
                known: match known[..] {
                    [] => "none".to_owned(),
                    _ => known.join(", "),
                },
                hint: did_you_mean(name, self.names()),
            }
        })
    }

    /// Builds a custom layer's operation for rows of a width. Returns it with its output width and its parameters,
    /// under their own names.
    ///
    /// # Errors
    /// When the layer is not registered, rejects the width or its arguments, or builds an invalid operation.
    ///
    /// # Panics
    /// When the layer is not a custom one.
    pub(in crate::network) fn operation(
        &self,
        layer: &Layer,
        width: usize,
    ) -> Result<(Custom, usize, Vec<Parameter>)> {
        let Layer::Custom { name, arguments } = layer else {
            panic!("{layer} is not a custom layer");
        };
        let made = self.find(name, layer)?.build(width, arguments);
        let operation = made.map_err(|source| Error::BuildLayer {
            layer: layer.to_string(),
            width,
            source,
        })?;
        let (to, parameters) = (operation.width(), operation.parameters());
        check(to, &parameters).map_err(|problem| Error::Layer {
            layer: layer.to_string(),
            problem,
        })?;
        let custom = Custom {
            layer: layer.to_string(),
            operation: Arc::from(operation),
            parameters: parameters.len(),
        };
        Ok((custom, to, parameters))
    }
}

/// Checks the width and parameters that an operation declares; the error says what is wrong.
fn check(width: usize, parameters: &[Parameter]) -> Result<(), String> {
    if width == 0 {
        return Err("its output has width 0".to_owned());
    }
    let mut names = HashSet::new();
    for Parameter {
        name,
        shape,
        initializer,
        ..
    } in parameters
    {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_word) {
            return Err(format!(
                "{name:?} is not a parameter's name: expected letters, digits and _"
            ));
        }
        if !names.insert(name) {
            return Err(format!("two parameters are named {name:?}"));
        }
        if shape.contains(&0) {
            return Err(format!("parameter {name:?} of shape {shape:?} is empty"));
        }
        let can_be = match initializer {
            Initializer::Constant(value) => value.is_finite(),
            Initializer::Uniform(range) => range.is_finite() && *range > 0.0,
            Initializer::Normal(deviation) => deviation.is_finite() && *deviation >= 0.0,
        };
        if !can_be {
            return Err(format!(
                "parameter {name:?} cannot start as {initializer:?}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{custom_layers, squash};

    fn parameter(name: &str, shape: &[usize], initializer: Initializer) -> Parameter {
        Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            initializer,
            penalized: false,
        }
    }

    #[test]
    fn a_layer_is_made_by_its_name_and_arguments() {
        let layers = custom_layers();
        assert_eq!(format!("{layers:?}"), r#"["squash"]"#);
        let (custom, width, parameters) = layers.operation(&squash(3, 2.0), 5).unwrap();
        assert_eq!((width, custom.parameters), (3, 2));
        assert_eq!(parameters[0].shape, [5, 3]);
        let of = |layer: &Layer| layers.operation(layer, 5).unwrap().0;
        assert_eq!(custom, of(&squash(3, 2.0)));
        assert_ne!(custom, of(&squash(3, 2.5)));
    }

    #[test]
    fn a_layer_that_cannot_be_made_is_named() {
        let layers = custom_layers();
        let misspelt = Layer::Custom {
            name: "squahs".to_owned(),
            arguments: vec![3.0],
        };
        match layers.operation(&misspelt, 5).unwrap_err() {
            Error::UnknownLayer { layer, known, hint } => {
                assert_eq!((&*layer, &*known), ("custom('squahs', 3)", "squash"));
                assert!(hint.contains("did you mean \"squash\""), "{hint}");
            }
            other => panic!("{other}"),
        }
        let none = CustomLayers::new().operation(&misspelt, 5).unwrap_err();
        assert!(matches!(none, Error::UnknownLayer { known, .. } if known == "none"));
        let refused = layers.operation(&squash(0, 2.0), 5).unwrap_err();
        let Error::BuildLayer { layer, width, .. } = refused else {
            panic!("{refused}")
        };
        assert_eq!((&*layer, width), ("custom('squash', 0, 2)", 5));
    }

    #[test]
    fn an_operation_that_cannot_be_is_refused() {
        let initializer = Initializer::Constant(0.0);
        let good = [
            parameter("a", &[2, 3], initializer),
            parameter("b", &[], Initializer::Normal(0.0)),
        ];
        assert_eq!(check(1, &good), Ok(()));
        check(0, &good).unwrap_err();
        for bad in [
            parameter("a.b", &[2], initializer),
            parameter("", &[2], initializer),
            parameter("c", &[2, 0], initializer),
            parameter("c", &[2], Initializer::Uniform(0.0)),
            parameter("c", &[2], Initializer::Constant(f32::NAN)),
            parameter("a", &[2], initializer),
        ] {
            let parameters = [good[0].clone(), bad];
            check(1, &parameters).unwrap_err();
        }
    }

    #[test]
    #[should_panic(expected = "registered twice")]
    fn a_name_is_registered_once() {
        let layers = custom_layers();
        let _ = layers.with("squash", crate::testing::Squash);
    }
}
