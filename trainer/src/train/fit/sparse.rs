//! Sparse gradients: only those rows of tables that the global batch picks.
//!
//! All ranks pick the same rows, because they exchange the codes of their batches first. So a gradient has
//! the same length on all ranks, and is summed like any other. Ranks decide whether it pays from what they
//! have agreed on before, and from whether all of them can pick rows. The network decides how rows that are
//! not picked change.

use volley_proto::spec::TrainSpec;

use super::{Fit, TAIL};
use crate::collective::Communicator;
use crate::network::{Architecture, Compute, Parameter, is_linear};
use crate::train::agree::gather;
use crate::train::batch::Batch;
use crate::train::pace;
use crate::{Error, Result};

/// Minimum ratio of all table numbers to those that a step may pick: updating a number of a picked row takes at most
/// as long as updating this many of a whole table.
const TIMES: usize = 4;

/// Minimum numbers in tables: updating fewer takes less time than exchanging codes.
const NUMBERS: usize = if cfg!(test) { 40 } else { 1 << 17 };

/// Agrees with all ranks on sparse gradients; `picks` is true if this rank can compute them.
pub(in crate::train) fn agree(
    spec: &TrainSpec,
    architecture: &Architecture,
    (rows, global_batch): (u64, u64),
    picks: bool,
    communicator: &mut Communicator,
) -> Result<bool> {
    let penalties = [spec.l1, pace::l2(spec, rows)];
    let is_linear = architecture.tables().iter().all(|table| {
        let penalized = architecture.parameters()[table.at].penalized;
        is_linear(&spec.optimizer, penalized && penalties != [0.0; 2])
    });
    let [all, picked] = numbers(architecture, global_batch);
    if !is_linear || all < NUMBERS || all < TIMES * picked {
        return Ok(false);
    }
    let all = gather(&picks, "device", communicator)?;
    Ok(!all.contains(&false))
}

/// Returns the numbers in all rows of tables, and the most that a step of `global_batch` rows picks.
fn numbers(architecture: &Architecture, global_batch: u64) -> [usize; 2] {
    let rows = usize::try_from(global_batch).unwrap_or(usize::MAX);
    let tables = architecture.tables().iter();
    let features = tables.flat_map(|table| &table.widths);
    features.fold([0; 2], |[all, picked], (codes, width)| {
        [all + codes * width, picked + codes.min(&rows) * width]
    })
}

/// Returns the maximum length of a gradient's all-reduce, for steps of `global_batch` rows.
pub(in crate::train) fn gradient_len(
    architecture: &Architecture,
    sparse: bool,
    global_batch: u64,
) -> usize {
    let parameters = architecture.parameters().iter().map(Parameter::len);
    let [all, picked] = numbers(architecture, global_batch);
    parameters.sum::<usize>() - if sparse { all - picked } else { 0 } + TAIL
}

impl<C: Compute> Fit<'_, C> {
    /// Agrees with the other ranks on the rows that the step picks; this rank contributes its batch's codes.
    pub(super) fn pick(&mut self, batch: &Batch, communicator: &mut Communicator) -> Result<()> {
        let Some(network) = self.network.sparse().filter(|_| self.tools.sparse) else {
            return Ok(());
        };
        let codes = match communicator.world_size() {
            1 => vec![batch.codes.clone()],
            _ => communicator
                .all_gather(bytemuck::cast_slice(&batch.codes))?
                .into_iter()
                .enumerate()
                .map(|(rank, bytes)| decode(rank, &bytes, self.architecture))
                .collect::<Result<_>>()?,
        };
        self.len = self.optimizer.pick(&codes, network);
        Ok(())
    }

    /// Brings all weights and the optimizer's state up to date.
    pub(super) fn catch_up(&mut self) {
        if let Some(network) = self.network.sparse().filter(|_| self.tools.sparse) {
            self.optimizer.catch_up(network);
        }
    }
}

/// Decodes and checks the codes that a rank sent.
fn decode(rank: usize, bytes: &[u8], architecture: &Architecture) -> Result<Vec<u32>> {
    let (words, left) = bytes.as_chunks::<4>();
    let codes: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let mut first = 0;
    let table = architecture.tables().first();
    let features = table.into_iter().flat_map(|table| &table.widths);
    let features = features.map(|(codes, _)| {
        first += codes;
        first - codes..first
    });
    let features: Vec<_> = features.collect();
    let is_whole = left.is_empty() && codes.len().is_multiple_of(features.len());
    let mut all = codes.iter().zip(features.iter().cycle());
    match is_whole && all.all(|(code, feature)| feature.contains(&(*code as usize))) {
        true => Ok(codes),
        false => Err(Error::PeerMessage {
            rank,
            what: "codes of a batch",
            source: "a code is not of its feature".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use volley_proto::spec::{Linear, Rule};

    use super::*;
    use crate::collective::Options;
    use crate::network::Sizes;
    use crate::testing;

    fn network(spec: &TrainSpec, codes: &[usize]) -> Architecture {
        let sizes = Sizes {
            codes: codes.to_vec(),
            continuous: 2,
            bins: vec![vec![]; 2],
            outputs: 1,
            rows: 0,
        };
        Architecture::new(spec, &sizes, 1.0, &testing::custom_layers()).unwrap()
    }

    #[test]
    fn large_tables_are_picked_from_where_the_optimizer_allows_it() {
        let mut spec = testing::spec();
        spec.network.linear = Linear::None;
        let sparse = |spec: &TrainSpec, global_batch, picks| {
            let of = network(spec, &[200, 5, 85]);
            let cancel = CancellationToken::new();
            let mut alone = Communicator::in_process(1, &Options::default(), &cancel).unwrap();
            let sparse = agree(spec, &of, (1000, global_batch), picks, &mut alone[0]).unwrap();
            let parameters = of.parameters().iter();
            let lens = parameters.map(|parameter| match parameter.name.as_str() {
                "embedding" if sparse => 4 * (2 * global_batch as usize + 5),
                _ => parameter.len(),
            });
            let due = lens.sum::<usize>() + TAIL;
            assert_eq!(gradient_len(&of, sparse, global_batch), due);
            sparse
        };
        assert!(sparse(&spec, 10, true));
        assert!(sparse(&spec, 33, true));
        assert!(!sparse(&spec, 34, true));
        assert!(!sparse(&spec, 10, false));
        spec.optimizer.rule = Rule::Lbfgs { memory: 3 };
        assert!(!sparse(&spec, 10, true));
    }

    #[test]
    fn codes_of_peers_are_checked() {
        let of = network(&testing::spec(), &[200, 5, 90]);
        let read = |codes: &[u32]| decode(1, bytemuck::cast_slice(codes), &of);
        let sound = [199, 200, 205, 0, 204, 294];
        assert_eq!(read(&sound).unwrap(), sound);
        assert!(read(&[]).unwrap().is_empty());
        for wrong in [
            &[200, 200, 205][..],
            &[0, 205, 205],
            &[0, 200, 295],
            &[0, 200],
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.to_string().contains("codes of a batch"), "{error}");
        }
        assert!(decode(1, &[0; 13], &of).is_err());
    }
}
