//! Sanity checks of a manifest before anything is computed or reserved from its numbers: read from a file, it may
//! contain anything.

use volley_proto::spec::{EmbeddingWidth, Layer, PIECEWISE_WIDTH};
use volley_proto::store::{Classes, Manifest};

use super::WEIGHTS;
use crate::encode::Vocabulary;
use crate::{Error, Result};

/// Checks that a manifest is consistent, and asks for no more numbers than its weights file has.
///
/// # Errors
/// [`Error::ModelFile`] that names the inconsistency.
pub(super) fn check(
    manifest: &Manifest,
    weights: &[u8],
    vocabularies: &[Vocabulary],
) -> Result<()> {
    let wrong = |problem: String| Error::model_file("manifest.json", problem);
    let spec = &manifest.spec;
    let features = spec.features.iter().zip(&manifest.features);
    let mut same = features
        .map(|(feature, summary)| feature.column == summary.column && feature.kind == summary.kind);
    if spec.features.len() != manifest.features.len() || !same.all(|same| same) {
        return Err(wrong("its features are not those of its spec".into()));
    }
    if manifest
        .classes
        .as_ref()
        .is_some_and(|c| Classes::len(c) < 2)
    {
        return Err(wrong("it tells fewer than two classes apart".into()));
    }
    spec.network
        .check()
        .map_err(|error| wrong(format!("its network is invalid: {error}")))?;
    let there_are = weights.len() / size_of::<f32>();
    let asked = numbers(manifest, vocabularies);
    match asked <= there_are {
        true => Ok(()),
        false => {
            let there_are = format!("it has {there_are} numbers");
            let problem = format!("{there_are}, the manifest asks for {asked} at least");
            Err(Error::model_file(WEIGHTS, problem))
        }
    }
}

/// Returns a lower bound on the numbers of the network, saturating.
fn numbers(manifest: &Manifest, vocabularies: &[Vocabulary]) -> usize {
    let network = &manifest.spec.network;
    let given = match &network.embedding_dim {
        EmbeddingWidth::Same(width) => *width,
        EmbeddingWidth::Columns(widths) => {
            widths.iter().map(|(_, width)| *width).max().unwrap_or(0)
        }
        EmbeddingWidth::Auto => 0,
    };
    // Without vocabularies, the embedding width says nothing about the file.
    let embedded = match vocabularies.is_empty() || !network.is_deep() {
        true => 0,
        false => given,
    };
    let codes = vocabularies
        .iter()
        .fold(0_usize, |sum, of| sum.saturating_add(of.codes()));
    let members = network.members(manifest.rows());
    let numbers = manifest.features.len() - vocabularies.len();
    let entering = embedded.saturating_add(numbers.saturating_mul(2 * PIECEWISE_WIDTH));
    let layers = match network.is_deep() {
        true => {
            // A custom layer declares its parameters later; the layers around it count by themselves.
            let layers = Layer::size(&network.layers, 1);
            let layers = layers.map_or_else(|| widest(&network.layers), |(all, _)| all);
            // Each member has an output too.
            layers.saturating_add(1).saturating_mul(members)
        }
        false => 0,
    };
    let factors = match codes + numbers {
        0 => 0,
        _ => network.factors,
    };
    let embeddings = embedded.saturating_mul(members);
    let widest = [embeddings, codes, layers, factors].into_iter().max();
    // A product that overflows is more than any file has.
    let product = Layer::size(&network.layers, entering).map_or(0, |(all, _)| all);
    match network.is_deep() && product == usize::MAX {
        true => usize::MAX,
        false => widest.unwrap_or(0),
    }
}

/// Returns the width of the widest layer, nested ones included.
fn widest(layers: &[Layer]) -> usize {
    let widths = layers.iter().map(|layer| match layer {
        Layer::Dense(width) | Layer::Cross(width) => *width,
        Layer::Residual(inner) => widest(inner),
        Layer::Concat(branches) => branches
            .iter()
            .map(|inner| widest(inner))
            .max()
            .unwrap_or(0),
        _ => 0,
    });
    widths.max().unwrap_or(0)
}
