//! Note of how each column enters the network, for the start of a training. Text of bounded length.

use volley_proto::limits::grouped;
use volley_proto::spec::FeatureKind;
use volley_proto::store::FeatureSummary;

use crate::encode::Vocabulary;

/// Number of characters of a list from which the other columns are only counted.
const LIST: usize = 120;
/// Number of characters of a column's name that are shown.
const NAME: usize = 40;

/// Describes the features, of which categorical ones have these vocabularies, in order.
pub(super) fn note(features: &[FeatureSummary], vocabularies: &[Vocabulary]) -> String {
    let distinct: Vec<_> = vocabularies.iter().map(Vocabulary::distinct).collect();
    told(features, &distinct)
}

fn told(features: &[FeatureSummary], distinct: &[usize]) -> String {
    let of = |kind: FeatureKind| {
        let features = features.iter().filter(move |feature| feature.kind == kind);
        features.map(|feature| shortened(&feature.column))
    };
    let numbers: Vec<_> = of(FeatureKind::Continuous).collect();
    let categories = of(FeatureKind::Categorical).zip(distinct).enumerate();
    let categories = categories.map(|(at, (name, values))| {
        let unit = if at == 0 { " values" } else { "" };
        format!("{name} ({}{unit})", grouped(*values as u64))
    });
    let categories: Vec<_> = categories.collect();
    let kinds = [("numbers", numbers), ("categories", categories)];
    let kinds = kinds.into_iter().filter(|(_, columns)| !columns.is_empty());
    let kinds: Vec<_> = kinds
        .map(|(kind, columns)| format!("{kind} {}", listed(&columns)))
        .collect();
    format!(
        "features: {}. Change with categorical = […] or continuous = […]",
        kinds.join("; ")
    )
}

/// Returns the beginning of a name.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Lists the first columns, and counts the others.
fn listed(columns: &[String]) -> String {
    let mut list = String::new();
    for (at, column) in columns.iter().enumerate() {
        if list.len() > LIST {
            return format!("{list} and {} more", columns.len() - at);
        }
        if at > 0 {
            list.push_str(", ");
        }
        list.push_str(column);
    }
    list
}

#[cfg(test)]
mod tests {
    use volley_proto::store::Scale;

    use super::*;

    fn feature(column: &str, kind: FeatureKind) -> FeatureSummary {
        FeatureSummary {
            column: column.to_owned(),
            kind,
            data_type: "Int64".to_owned(),
            vocabulary: None,
            scale: Scale::default(),
            quantiles: None,
            bins: Vec::new(),
            numbers: None,
        }
    }

    #[test]
    fn columns_are_named_by_kind() {
        use FeatureKind::{Categorical, Continuous};
        let features = [
            feature("Store", Continuous),
            feature("Date", Categorical),
            feature("Promo", Continuous),
            feature("StoreType", Categorical),
        ];
        assert_eq!(
            told(&features, &[1218, 4]),
            "features: numbers Store, Promo; categories Date (1,218 values), StoreType (4). Change with categorical = \
             […] or continuous = […]"
        );
        let one = told(&features[..1], &[]);
        assert!(one.starts_with("features: numbers Store. Change"), "{one}");
    }

    #[test]
    fn the_note_is_short_however_many_columns_there_are() {
        let name = "ä".repeat(1_000);
        let features = vec![feature(&name, FeatureKind::Continuous); 5_000];
        let note = told(&features, &[]);
        assert!(note.chars().count() < 300, "{note}");
        assert!(note.contains(" more. Change"), "{note}");
    }
}
