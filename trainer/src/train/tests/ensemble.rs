//! Ensembles of small tables.

use volley_proto::spec::{EnsembleSize, TrainSpec};

use super::worlds::weights;
use crate::testing::{dense, rows, spec, train_split};

#[test]
fn a_small_table_has_an_ensemble_whose_members_are_networks_of_their_own() {
    let small = EnsembleSize::SMALL;
    // One of ten rows is of neither part.
    for (data, rows, due) in [
        (rows(0..5555), small, EnsembleSize::MEMBERS),
        (rows(0..5557), small + 1, 1),
    ] {
        let mut spec = TrainSpec {
            epochs: Some(1),
            ..spec()
        };
        spec.network.ensemble_size = EnsembleSize::Auto;
        spec.network.layers = dense(&[3], &[]);
        let outcomes = train_split(&spec, &data, 2);
        // What it has is said, whatever number of rows will mean later.
        let manifest = &outcomes[0].artifacts.as_ref().unwrap().manifest;
        assert_eq!(manifest.rows(), rows);
        let members = manifest.spec.network.ensemble_size;
        assert_eq!(members, EnsembleSize::Of(due));
        let mut kernels: Vec<_> = weights(&outcomes[0])
            .into_iter()
            .filter(|(name, _)| name.ends_with("output.kernel"))
            .map(|(_, kernel)| format!("{kernel:?}"))
            .collect();
        kernels.sort();
        kernels.dedup();
        assert_eq!(kernels.len(), due, "{kernels:?}");
    }
}
