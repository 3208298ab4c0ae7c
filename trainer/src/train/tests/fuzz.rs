//! Fuzz targets: states of unfinished runs, read from a store or sent by a peer.

use volley_proto::damage::damaged;

use super::runs::{Run, small};
use crate::TrainingState;
use crate::allocations::bounded;

fn state(bytes: &[u8]) {
    if let Ok(state) = TrainingState::decode(bytes) {
        let _ = (state.position(), state.encode());
        let quantiles = state.scaling.features.iter();
        for of in quantiles.filter_map(|feature| feature.quantiles.as_ref()) {
            let _ = (of.score(0.5), of.moments());
        }
    }
}

#[test]
fn states() {
    let whole = Run::until(&small(1), 1, 3).states().remove(0).encode();
    bounded(&whole, state);
    // Most of the file is numbers; its head is what can be malformed.
    let head = whole.len().min(8_000);
    for seed in 0..3_000 {
        let mut bytes = damaged(&whole[..head], seed);
        bytes.extend_from_slice(&whole[head..]);
        bounded(&bytes, state);
    }
    bolero::check!(name = "state")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, state));
}
