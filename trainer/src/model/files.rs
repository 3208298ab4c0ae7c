//! Files of a model: their contents, encoding, and checks against the manifest.
//!
//! | File | Holds |
//! |---|---|
//! | `weights.safetensors` | `embedding`, `bn.gamma`, `bn.beta`, `periodic.…`, `piecewise.…`, `dense.<i>.kernel`, `dense.<i>.bias` and those of other layers, `output.kernel`, `output.bias`, `linear.…`, `factors.…` as `f32`; `bn.mean`, `bn.variance` as `f64` |
//! | `vocabularies.json` | per categorical feature: column, class of values, whether null occurs, values ascending |
//!
//! Kernels are `[inputs, outputs]`, as in Keras. The embedding table holds the features one after the other, each with
//! the code for unseen values first; where their widths differ it has one dimension. Layers of a kind are numbered by
//! position: `residual.0.dense.1.kernel` belongs to the second dense layer in the first residual one.
//! `custom.0.rbf.centers` is the parameter `centers` of the first custom layer, which is `rbf`. In an ensemble, a
//! code's embeddings of all members are side by side, and each member's other parameters are named `member.<i>.…`.

use bytes::Bytes;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use volley_proto::spec::FeatureKind;
use volley_proto::store::FeatureSummary;

use crate::encode::Vocabulary;
use crate::network::{Normalization, Parameter};
use crate::{Error, Result};

/// Name of the file that holds the weights.
pub const WEIGHTS: &str = "weights.safetensors";
/// Name of the file that holds the vocabularies.
pub const VOCABULARIES: &str = "vocabularies.json";

const RUNNING_MEAN: &str = "bn.mean";
const RUNNING_VARIANCE: &str = "bn.variance";

// Numbers are written in their in-memory representation.
const _: () = assert!(cfg!(target_endian = "little"));

/// Encodes the weights file of these parameters; without running statistics if there are none.
pub(crate) fn encode_weights(
    parameters: &[Parameter],
    values: &[Vec<f32>],
    running: &Normalization,
) -> Bytes {
    let view = |name, dtype, shape, bytes| {
        let view = TensorView::new(dtype, shape, bytes);
        let view = view.expect("a parameter has as many numbers as its shape says");
        (name, view)
    };
    let mut tensors: Vec<(&str, TensorView<'_>)> = Vec::new();
    for (parameter, values) in parameters.iter().zip(values) {
        let (shape, bytes) = (parameter.shape.clone(), bytemuck::cast_slice(values));
        tensors.push(view(parameter.name.as_str(), Dtype::F32, shape, bytes));
    }
    if !running.mean.is_empty() {
        for (name, values) in [
            (RUNNING_MEAN, &running.mean),
            (RUNNING_VARIANCE, &running.variance),
        ] {
            let (shape, bytes) = (vec![values.len()], bytemuck::cast_slice(values));
            tensors.push(view(name, Dtype::F64, shape, bytes));
        }
    }
    let file = safetensors::serialize(tensors, None);
    Bytes::from(file.expect("names and shapes are what the format can say"))
}

/// Decodes the parameters' values, and the running statistics of `normalized` features.
pub(super) fn decode_weights(
    bytes: &[u8],
    parameters: &[Parameter],
    normalized: usize,
) -> Result<(Vec<Vec<f32>>, Normalization)> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|source| damaged(WEIGHTS, "it is not in the safetensors format", source))?;
    let tensor = |name: &str, dtype: Dtype, shape: &[usize]| {
        let tensor = file
            .tensor(name)
            .map_err(|source| damaged(WEIGHTS, format!("tensor {name} is missing"), source))?;
        if tensor.dtype() == dtype && tensor.shape() == shape {
            Ok(tensor)
        } else {
            let (actual, actual_shape) = (tensor.dtype(), tensor.shape());
            let asked = format!("the manifest asks for {dtype:?} {shape:?}");
            let problem = format!("tensor {name} is {actual:?} {actual_shape:?}, {asked}");
            Err(Error::model_file(WEIGHTS, problem))
        }
    };
    let mut values = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let tensor = tensor(&parameter.name, Dtype::F32, &parameter.shape)?;
        values.push(bytemuck::pod_collect_to_vec(tensor.data()));
    }
    let mut running = Normalization::unit(normalized);
    if normalized > 0 {
        let statistics = [
            (RUNNING_MEAN, &mut running.mean),
            (RUNNING_VARIANCE, &mut running.variance),
        ];
        for (name, values) in statistics {
            let tensor = tensor(name, Dtype::F64, &[normalized])?;
            *values = bytemuck::pod_collect_to_vec(tensor.data());
        }
    }
    Ok((values, running))
}

/// Entry of one feature in the vocabularies file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    column: String,
    vocabulary: Vocabulary,
}

/// Encodes the vocabularies file of these features.
pub(crate) fn encode_vocabularies(
    features: &[FeatureSummary],
    vocabularies: &[Vocabulary],
) -> Bytes {
    let entry = |(feature, vocabulary): (&FeatureSummary, &Vocabulary)| Entry {
        column: feature.column.clone(),
        vocabulary: vocabulary.clone(),
    };
    let entries: Vec<_> = categorical(features).zip(vocabularies).map(entry).collect();
    Bytes::from(serde_json::to_vec(&entries).expect("vocabularies are what JSON can say"))
}

/// Decodes the vocabularies of the categorical features, in their order.
pub(super) fn decode_vocabularies(
    bytes: &[u8],
    features: &[FeatureSummary],
) -> Result<Vec<Vocabulary>> {
    let entries: Vec<Entry> = serde_json::from_slice(bytes)
        .map_err(|source| damaged(VOCABULARIES, "it is not a list of vocabularies", source))?;
    let expected: Vec<&FeatureSummary> = categorical(features).collect();
    if entries.len() != expected.len() {
        let problem = format!(
            "it holds {} vocabularies, the manifest names {} categorical features",
            entries.len(),
            expected.len()
        );
        return Err(Error::model_file(VOCABULARIES, problem));
    }
    for (entry, feature) in entries.iter().zip(expected) {
        let Entry { column, vocabulary } = entry;
        let fits = *column == feature.column
            && vocabulary.is_sound()
            && Some(vocabulary.distinct()) == feature.vocabulary;
        if !fits {
            let problem = format!("the vocabulary of {column:?} differs from the manifest");
            return Err(Error::model_file(VOCABULARIES, problem));
        }
    }
    Ok(entries.into_iter().map(|entry| entry.vocabulary).collect())
}

fn categorical(features: &[FeatureSummary]) -> impl Iterator<Item = &FeatureSummary> {
    features
        .iter()
        .filter(|feature| feature.kind == FeatureKind::Categorical)
}

fn damaged(
    file: &'static str,
    problem: impl Into<String>,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::ModelFile {
        file,
        problem: problem.into(),
        source: Some(Box::new(source)),
    }
}
