//! Categorical features that cannot generalize, as notes on a training: those with a value of their own in almost every
//! row, and those whose values in evaluated rows no training row has, such as the date in a forecast.
//!
//! Notes change nothing. All ranks take part, since each has a part of the rows.

use volley_proto::limits::grouped;
use volley_proto::spec::{FeatureKind, TrainSpec};

use super::agree::World;
use crate::Result;
use crate::collective::Communicator;
use crate::encode::{Class, Settled, Vocabulary};

/// Share of the rows from which a feature is noted.
const ALMOST: f64 = 0.9;
/// Least number of training rows to judge distinct values by.
const LEAST_ROWS: u64 = 20;
/// Maximum number of features that are noted.
const MOST_NOTES: usize = 5;

/// Values of a categorical feature over all ranks' rows.
#[derive(Debug)]
struct Values<'a> {
    column: &'a str,
    class: Class,
    /// Values with a code of their own.
    distinct: usize,
    /// Codes that training rows have.
    trained: usize,
    /// Evaluated rows with a code that no training row has.
    unseen: u64,
}

/// Returns a note for each feature that cannot generalize. `trained` is the weight of all ranks' training rows with each
/// code.
pub(super) fn notes(
    spec: &TrainSpec,
    vocabularies: &[Vocabulary],
    trained: &[f64],
    (shards, world): (&[Settled], &World),
    communicator: &mut Communicator,
) -> Result<Vec<String>> {
    let mut unseen = vec![0.0; vocabularies.len()];
    for shard in shards {
        for row in 0..shard.eval.len() {
            let codes = shard.eval.codes_of(row).iter();
            for (unseen, code) in unseen.iter_mut().zip(codes) {
                *unseen += f64::from(u8::from(trained[*code as usize] == 0.0));
            }
        }
    }
    if !unseen.is_empty() {
        communicator.all_reduce_sum_f64(&mut unseen)?;
    }
    let features = spec.features.iter();
    let features = features.filter(|feature| feature.kind == FeatureKind::Categorical);
    let mut rest = trained;
    let mut notes = Vec::new();
    for ((feature, vocabulary), unseen) in features.zip(vocabularies).zip(unseen) {
        let (of_feature, others) = rest.split_at(vocabulary.codes());
        rest = others;
        let values = Values {
            column: &feature.column,
            class: vocabulary.class(),
            distinct: vocabulary.distinct(),
            trained: of_feature.iter().filter(|weight| **weight > 0.0).count(),
            unseen: unseen as u64,
        };
        notes.extend(note(&values, world.train.rows, world.eval.rows));
    }
    let more = notes.len().saturating_sub(MOST_NOTES);
    if more > 0 {
        notes.truncate(MOST_NOTES);
        notes.push(match more {
            1 => "1 more categorical feature is like these".to_owned(),
            _ => format!("{more} more categorical features are like these"),
        });
    }
    Ok(notes)
}

/// Returns a note on a feature, over so many training and evaluated rows.
fn note(values: &Values<'_>, train: u64, eval: u64) -> Option<String> {
    let Values {
        column,
        class,
        distinct,
        trained,
        unseen,
    } = *values;
    let is_number = matches!(class, Class::Integer | Class::Date);
    let share = |rows: u64, all: u64| rows as f64 / all.max(1) as f64;
    if train >= LEAST_ROWS && share(trained as u64, train) >= ALMOST {
        let instead = match is_number {
            true => "leave it out, or, to use it as a number, name it in continuous",
            false => "leave it out",
        };
        return Some(format!(
            "feature {column:?} has a different value in almost every row: it cannot generalize; {instead}"
        ));
    }
    let unseen_share = share(unseen, eval);
    if unseen_share < ALMOST {
        return None;
    }
    let rows = match unseen == eval {
        true => "all evaluated rows".to_owned(),
        // Rounding up must not make it all of them.
        false => format!("{:.0} % of evaluated rows", (100.0 * unseen_share).floor()),
    };
    let instead = match is_number {
        true => "; to use it as a number, name it in continuous",
        false => ", and nothing is learnt about others",
    };
    Some(format!(
        "{rows} have values of {column:?} that no training row has: it is a categorical feature with {} values{instead}",
        grouped(distinct as u64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_without_a_value_twice_or_a_known_one_are_noted() {
        let of = |class, trained, unseen| Values {
            column: "x",
            class,
            distinct: 1800,
            trained,
            unseen,
        };
        let said = |values: Values<'_>| note(&values, 1000, 100);
        assert_eq!(said(of(Class::Date, 899, 89)), None);
        let distinct = "feature \"x\" has a different value in almost every row: it cannot generalize; leave it out";
        assert_eq!(said(of(Class::Text, 900, 100)).as_deref(), Some(distinct));
        let due = format!("{distinct}, or, to use it as a number, name it in continuous");
        assert_eq!(said(of(Class::Integer, 1000, 0)), Some(due));
        let due = "all evaluated rows have values of \"x\" that no training row has: it is a categorical feature with \
            1,800 values; to use it as a number, name it in continuous";
        assert_eq!(said(of(Class::Date, 800, 100)).as_deref(), Some(due));
        let most = said(of(Class::Text, 800, 99)).unwrap();
        assert!(most.starts_with("99 % of evaluated rows have"), "{most}");
        assert!(
            most.ends_with("values, and nothing is learnt about others"),
            "{most}"
        );
        // Without evaluated rows, or with few rows, there is nothing to note.
        assert_eq!(note(&of(Class::Date, 800, 0), 1000, 0), None);
        assert_eq!(note(&of(Class::Date, 19, 0), 19, 4), None);
    }
}
