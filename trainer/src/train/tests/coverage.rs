//! Every row is trained on once per epoch, and any deviation is noticed.

use tokio_util::sync::CancellationToken;

use super::{CpuFit, with_fit};
use crate::encode::Settled;
use crate::testing::{Deaf, model, rows, spec, train_split};
use crate::{Error, Result};

/// Trains one epoch; shards may be spoilt after they were counted.
fn train(spoil_key: bool, spoil_fit: impl FnOnce(&mut CpuFit<'_>)) -> Result<()> {
    let spoil_shards = |shards: &mut [Settled]| {
        if spoil_key {
            shards[0].train.keys.to_mut()[3] ^= 1 << 40;
        }
    };
    with_fit(spoil_shards, |fit, communicator| {
        spoil_fit(fit);
        fit.run(communicator, &Deaf, &CancellationToken::new())
    })
}

#[test]
fn a_row_taken_for_another_is_noticed() {
    train(false, |_| ()).unwrap();
    let error = train(true, |_| ()).unwrap_err();
    let Error::Coverage {
        epoch: 1,
        account,
        expected,
        actual,
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(account, "the totals of its steps");
    assert_eq!((expected.rows, actual.rows), (70, 70));
    assert_ne!(expected.checksum, actual.checksum);
}

#[test]
fn ranks_own_accounts_must_add_up_to_the_totals() {
    let error = train(false, |fit| fit.own.rows += 1).unwrap_err();
    let Error::Coverage {
        account,
        expected,
        actual,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(account, "the ranks' own accounts");
    assert_eq!((expected.rows, actual.rows), (70, 71));
}

#[test]
fn records_say_which_rank_used_what() {
    let data = rows(0..300);
    let one = train_split(&spec(), &data, 1);
    let three = train_split(&spec(), &data, 3);
    let manifests = [&one, &three].map(|outcomes| model(outcomes).manifest().clone());
    let [one, three] = &manifests;
    assert_eq!(one.train_checksum.len(), 16);
    assert_eq!(one.train_checksum, three.train_checksum);
    let record = &three.history[0];
    assert_eq!(
        (record.rows, &record.checksum),
        (210, &three.train_checksum)
    );
    assert_eq!(record.earlier, None);
    assert_eq!(record.ranks.len(), 3);
    let checksum = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let total = record.ranks.iter().fold((0, 0_u64), |(rows, sum), rank| {
        let sum = sum.wrapping_add(checksum(&rank.checksum));
        (rows + rank.rows, sum)
    });
    assert_eq!(total, (210, checksum(&record.checksum)));
}
