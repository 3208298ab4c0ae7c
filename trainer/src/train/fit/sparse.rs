//! Gradients of features with many codes: of the rows that the global batch picks, instead of all.
//!
//! All ranks pick the same rows: each tells the codes of its own batch first. So a gradient is as long on all of them, and is
//! summed up as any other. Which features have many codes follows from what ranks have agreed on before, and from whether
//! all of them compute where rows can be picked. What becomes of rows that are not picked is the network's to know.

use volley_proto::spec::TrainSpec;

use super::{Fit, TAIL};
use crate::collective::Communicator;
use crate::network::{Architecture, Compute, Parameter, is_linear};
use crate::train::agree::gather;
use crate::train::batch::Batch;
use crate::train::pace;
use crate::{Error, Result};

/// Codes for each row of a step from which on a feature has many: looking a row up takes longer than passing over it.
const TIMES: u64 = 8;

/// Numbers in the rows of a feature's codes from which on it has many: a pass over fewer is not worth the exchange of codes.
const NUMBERS: usize = if cfg!(test) { 40 } else { 1 << 17 };

/// Of each categorical feature, whether its gradient is of picked rows; none where that is no feature's. `picks` says
/// whether this rank can.
pub(in crate::train) fn agree(
    spec: &TrainSpec,
    architecture: &Architecture,
    (rows, global_batch): (u64, u64),
    picks: bool,
    communicator: &mut Communicator,
) -> Result<Vec<bool>> {
    let penalties = [spec.l1, pace::l2(spec, rows)];
    let is_linear = architecture.tables().iter().all(|table| {
        let penalized = architecture.parameters()[table.at].penalized;
        is_linear(&spec.optimizer, penalized && penalties != [0.0; 2])
    });
    let mut numbers = vec![(0, 0); architecture.categorical];
    for table in architecture.tables() {
        for ((codes, sum), (of_table, width)) in numbers.iter_mut().zip(&table.widths) {
            *codes = *of_table;
            *sum += of_table * width;
        }
    }
    let many = numbers.iter().map(|(codes, numbers)| {
        is_linear && *codes as u64 >= TIMES * global_batch && *numbers >= NUMBERS
    });
    let many: Vec<bool> = many.collect();
    if !many.contains(&true) {
        return Ok(vec![]);
    }
    let all = gather(&picks, "device", communicator)?;
    Ok(if all.contains(&false) { vec![] } else { many })
}

/// The most numbers in a gradient's all-reduce, where steps have so many rows.
pub(in crate::train) fn gradient_len(
    architecture: &Architecture,
    sparse: &[bool],
    global_batch: u64,
) -> usize {
    let all = architecture.parameters().iter().map(Parameter::len);
    let left_out = architecture.tables().iter().flat_map(|table| {
        table.widths.iter().zip(sparse).map(|((codes, width), sparse)| {
            let most = usize::try_from(global_batch).unwrap_or(usize::MAX);
            if *sparse { codes.saturating_sub(most) * width } else { 0 }
        })
    });
    all.sum::<usize>() - left_out.sum::<usize>() + TAIL
}

impl<C: Compute> Fit<'_, C> {
    /// Agrees with the other ranks on the rows of the step, of which this rank has a batch.
    pub(super) fn pick(&mut self, batch: &Batch, communicator: &mut Communicator) -> Result<()> {
        let Some(network) = self.network.sparse().filter(|_| !self.sparse.is_empty()) else {
            return Ok(());
        };
        let of_row = |codes: &[u32]| {
            let picked = codes.iter().zip(&self.sparse);
            let picked = picked.filter_map(|(code, sparse)| sparse.then_some(*code));
            picked.collect::<Vec<_>>()
        };
        let rows = batch.codes.chunks_exact(self.sparse.len());
        let own: Vec<u32> = rows.flat_map(of_row).collect();
        let picks = match communicator.world_size() {
            1 => vec![own],
            _ => communicator
                .all_gather(bytemuck::cast_slice(&own))?
                .into_iter()
                .enumerate()
                .map(|(rank, bytes)| decode(rank, &bytes, self.architecture, &self.sparse))
                .collect::<Result<_>>()?,
        };
        self.len = self.optimizer.pick(&picks, network);
        Ok(())
    }

    /// Brings all weights up to date, and what the optimizer keeps.
    pub(super) fn catch_up(&mut self) {
        if let Some(network) = self.network.sparse().filter(|_| !self.sparse.is_empty()) {
            self.optimizer.catch_up(network);
        }
    }
}

/// The codes that a rank has sent.
fn decode(
    rank: usize,
    bytes: &[u8],
    architecture: &Architecture,
    sparse: &[bool],
) -> Result<Vec<u32>> {
    let (words, _) = bytes.as_chunks::<4>();
    let codes: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    let mut first = 0;
    let table = architecture.tables().first();
    let features = table.into_iter().flat_map(|table| &table.widths);
    let features = features.map(|(codes, _)| {
        first += codes;
        first - codes..first
    });
    let features: Vec<_> = features
        .zip(sparse)
        .filter_map(|(feature, sparse)| sparse.then_some(feature))
        .collect();
    let of_rows = codes.chunks(features.len());
    let is_sound = bytes.len().is_multiple_of(size_of::<u32>() * features.len())
        && of_rows.clone().all(|codes| {
            let mut codes = codes.iter().zip(&features);
            codes.all(|(code, feature)| feature.contains(&(*code as usize)))
        });
    match is_sound {
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

    /// Of each feature, whether its rows are picked, by a rank that may.
    fn sparse(spec: &TrainSpec, codes: &[usize], global_batch: u64, picks: bool) -> Vec<bool> {
        let sizes = Sizes {
            codes: codes.to_vec(),
            continuous: 2,
            bins: vec![vec![]; 2],
            outputs: 1,
            rows: 0,
        };
        let layers = testing::custom_layers();
        let of = Architecture::new(spec, &sizes, 1.0, &layers).unwrap();
        let cancel = CancellationToken::new();
        let mut alone = Communicator::in_process(1, &Options::default(), &cancel).unwrap();
        let sparse = agree(spec, &of, (1000, global_batch), picks, &mut alone[0]).unwrap();
        let all: usize = of.parameters().iter().map(Parameter::len).sum();
        let left_out = codes.iter().zip(&sparse).filter(|(_, sparse)| **sparse);
        let left_out: usize = left_out.map(|(codes, _)| (codes - 10) * 4).sum();
        assert_eq!(gradient_len(&of, &sparse, 10), all - left_out + TAIL);
        sparse
    }

    #[test]
    fn features_with_many_codes_are_sparse_where_the_optimizer_allows_it() {
        let mut spec = testing::spec();
        spec.network.linear = Linear::None;
        let codes = [200, 5, 81];
        assert_eq!(sparse(&spec, &codes, 10, true), [true, false, true]);
        assert_eq!(sparse(&spec, &codes, 11, true), [true, false, false]);
        assert!(sparse(&spec, &codes, 100, true).is_empty());
        assert!(sparse(&spec, &codes, 10, false).is_empty());
        spec.optimizer.rule = Rule::Lbfgs { memory: 3 };
        assert!(sparse(&spec, &codes, 10, true).is_empty());
    }

    #[test]
    fn codes_of_peers_are_checked() {
        let sizes = Sizes {
            codes: vec![200, 5, 90],
            continuous: 0,
            bins: vec![],
            outputs: 1,
            rows: 0,
        };
        let layers = testing::custom_layers();
        let of = Architecture::new(&testing::spec(), &sizes, 1.0, &layers).unwrap();
        let read = |codes: &[u32]| {
            let bytes = bytemuck::cast_slice(codes);
            decode(1, bytes, &of, &[true, false, true])
        };
        assert_eq!(read(&[199, 205, 0, 294]).unwrap(), [199, 205, 0, 294]);
        assert!(read(&[]).unwrap().is_empty());
        for wrong in [&[200, 205][..], &[0, 204], &[0, 295], &[0, 205, 1]] {
            let error = read(wrong).unwrap_err();
            assert!(error.to_string().contains("codes of a batch"), "{error}");
        }
        assert!(decode(1, &[0; 7], &of, &[true, false, true]).is_err());
    }
}
