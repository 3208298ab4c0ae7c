//! Tests of layers as text and in specs, and of refused networks.

use super::*;

fn network(layers: Vec<Layer>) -> Network {
    Network {
        embedding_dim: EmbeddingWidth::Auto,
        batch_norm: true,
        numeric_embedding: NumericEmbedding::Periodic,
        layers,
        output: Output::Identity,
        linear: Linear::Beside,
        factors: 3,
        ensemble_size: EnsembleSize::Auto,
    }
}

fn every_layer() -> Vec<Layer> {
    let activations = Activation::ALL.map(|(_, activation)| Layer::Activation(activation));
    let mut layers = activations.to_vec();
    layers.extend([
        Layer::Dense(8),
        Layer::Dropout(0.25),
        Layer::LayerNorm,
        Layer::Residual(vec![Layer::Dense(4), Layer::Activation(Activation::Mish)]),
        Layer::Cross(2),
        Layer::Concat(vec![vec![Layer::Dense(2)], vec![]]),
    ]);
    layers
}

fn custom(name: &str, arguments: &[f64]) -> Layer {
    Layer::Custom {
        name: name.to_owned(),
        arguments: arguments.to_vec(),
    }
}

#[test]
fn what_is_stored_comes_back() {
    for width in [
        EmbeddingWidth::Same(7),
        EmbeddingWidth::Auto,
        EmbeddingWidth::Columns(vec![("a".to_owned(), 3)]),
    ] {
        let mut layers = every_layer();
        layers.push(custom("rbf", &[2.0, -0.5]));
        let network = Network {
            embedding_dim: width,
            ..network(layers)
        };
        let stored = serde_json::to_string(&network).unwrap();
        assert_eq!(serde_json::from_str::<Network>(&stored).unwrap(), network);
    }
    let layers = serde_json::to_string(&every_layer()[9..13]).unwrap();
    assert_eq!(
        layers,
        r#"["sigmoid",{"dense":8},{"dropout":0.25},"layer_norm"]"#
    );
}

#[test]
fn layers_say_what_they_are_as_they_are_typed() {
    let layers = layers_text(&every_layer()[10..]);
    let due = "[dense(8), dropout(0.25), layer_norm, residual(dense(4), mish), cross(2), concat([dense(2)], [])]";
    assert_eq!(layers, due);
    let layers = [custom("rbf", &[16.0, -0.5, 1e-7]), custom("a_1", &[])];
    let due = "[custom('rbf', 16, -0.5, 0.0000001), custom('a_1')]";
    assert_eq!(layers_text(&layers), due);
}

#[test]
fn sizes_with_a_custom_layer_are_not_known() {
    let one = custom("rbf", &[16.0]);
    let within = [
        Layer::Residual(vec![one.clone()]),
        Layer::Concat(vec![vec![Layer::Dense(2)], vec![one.clone()]]),
        one.clone(),
    ];
    for layer in &within {
        let layers = [Layer::Dense(3), layer.clone(), Layer::Dense(4)];
        assert_eq!(Layer::size(&layers, 5), None);
        assert_eq!(Layer::activations(&layers, 5), None);
    }
    assert_eq!(Layer::customs(&within), [&one, &one, &one]);
    assert!(Layer::customs(&every_layer()).is_empty());
}

#[test]
fn sizes_are_those_of_their_kernels() {
    let (parameters, width) = Layer::size(&every_layer(), 5).unwrap();
    let residual = 9 * 4 + 8 * 4;
    let cross = 2 * 5 * 4;
    assert_eq!(
        (parameters, width),
        (6 * 8 + 16 + residual + cross + 5 * 2, 2 + 4)
    );
    let shares = [0.0, 0.5];
    let stack = Layer::stack(&[3, 2], Activation::Relu, &shares);
    assert_eq!(Layer::size(&stack, 4), Some((5 * 3 + 4 * 2, 2)));
    assert_eq!(Layer::activations(&stack, 4), Some(3 * 2 + 2 * 3));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refused = |layer: Layer, named: &str| {
        let error = network(vec![layer]).check().unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    };
    refused(Layer::Dense(0), "dense(0)");
    refused(Layer::Residual(vec![Layer::Cross(0)]), "cross(0)");
    refused(Layer::Residual(vec![]), "residual()");
    refused(Layer::Dropout(1.0), "dropout");
    for name in ["", "1a", "a.b", "it's", &"a".repeat(65)] {
        refused(custom(name, &[]), "a layer's name");
    }
    let infinite = Layer::Residual(vec![custom("rbf", &[f64::INFINITY])]);
    refused(infinite, "custom('rbf', inf)");
    let mut deep = Layer::Dense(1);
    for _ in 0..MOST_LEVELS {
        deep = Layer::Residual(vec![deep]);
    }
    refused(deep, "within each other");
    refused(
        Layer::Concat(vec![vec![Layer::Dense(1); 300]]),
        "301 layers",
    );
    network(every_layer()).check().unwrap();
    let mut piecewise = network(every_layer());
    piecewise.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    let error = piecewise.check().unwrap_err().to_string();
    assert!(error.contains("batch_norm"), "{error}");
    piecewise.batch_norm = false;
    piecewise.check().unwrap();
}
