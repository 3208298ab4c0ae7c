//! Tests of the comparison: differences that count, and those that do not.

use super::*;

fn rows(rows: &[&[&str]]) -> Rows {
    let cell = |text: &&str| match (*text, text.parse::<f64>()) {
        ("NULL", _) => Cell::Null,
        (text, Ok(value)) if text.contains(['.', 'N', 'f']) => Cell::Float(value),
        (text, _) => Cell::Exact(text.to_owned()),
    };
    let rows: Vec<Vec<_>> = rows
        .iter()
        .map(|row| row.iter().map(cell).collect())
        .collect();
    let width = rows.first().map_or(0, Vec::len);
    Rows {
        names: (0..width).map(|at| format!("c{at}")).collect(),
        types: vec![DataType::Utf8; width],
        rows,
    }
}

fn kind(due: &[&[&str]], got: &[&[&str]], asked: &Asked) -> Option<&'static str> {
    difference(&rows(due), &rows(got), asked).map(|difference| difference.kind())
}

#[test]
fn rows_are_a_multiset() {
    let any = Asked::default();
    let due: &[&[&str]] = &[&["1", "a"], &["1", "a"], &["2", "NULL"]];
    assert_eq!(
        kind(due, &[&["2", "NULL"], &["1", "a"], &["1", "a"]], &any),
        None
    );
    assert_eq!(
        kind(due, &[&["2", "NULL"], &["1", "a"], &["2", "NULL"]], &any),
        Some("other rows")
    );
    assert_eq!(kind(due, &due[..2], &any), Some("another number of rows"));
    assert_eq!(
        kind(due, &[due[0], due[0], due[0], due[2]], &any),
        Some("another number of rows")
    );
    // NULL differs from a text of that name, and adjacent cells do not merge.
    let null = Rows {
        names: vec!["c0".into()],
        types: vec![DataType::Utf8],
        rows: vec![vec![Cell::Null]],
    };
    let text = Rows {
        rows: vec![vec![Cell::Exact("NULL".into())]],
        ..null.clone()
    };
    assert!(difference(&null, &text, &any).is_some());
    assert_eq!(
        kind(&[&["ab", "c"]], &[&["a", "bc"]], &any),
        Some("other rows")
    );
    let named = Rows {
        names: vec!["x".into()],
        ..null.clone()
    };
    let told = difference(&null, &named, &any).expect("other names");
    assert_eq!(told.kind(), "other columns");
    let large = Rows {
        types: vec![DataType::LargeUtf8],
        ..null.clone()
    };
    let told = difference(&null, &large, &any).expect("other types");
    assert_eq!(told.kind(), "other types");
}

#[test]
fn orders_are_compared_where_they_were_asked_for() {
    let asked = Asked {
        order: vec!["c0".into()],
        some: None,
    };
    let due: &[&[&str]] = &[&["1", "a"], &["1", "b"], &["2", "c"]];
    assert_eq!(
        kind(due, &[due[1], due[0], due[2]], &asked),
        None,
        "equal keys"
    );
    assert_eq!(
        kind(due, &[due[0], due[2], due[1]], &asked),
        Some("another order")
    );
    assert_eq!(
        kind(due, &[due[0], due[2], due[1]], &Asked::default()),
        None
    );
}

#[test]
fn a_limit_without_a_total_order_takes_any_rows() {
    let asked = Asked {
        order: Vec::new(),
        some: Some(2),
    };
    let all: &[&[&str]] = &[&["1"], &["2"], &["2"], &["3"]];
    assert_eq!(kind(all, &[&["3"], &["1"]], &asked), None);
    assert_eq!(kind(all, &[&["2"], &["2"]], &asked), None);
    assert_eq!(kind(all, &[&["3"], &["3"]], &asked), Some("other rows"));
    assert_eq!(
        kind(all, &[&["1"], &["2"], &["3"]], &asked),
        Some("another number of rows")
    );
    assert_eq!(
        kind(&all[..1], &[&["1"]], &asked),
        None,
        "fewer than the limit"
    );
    let ordered = Asked {
        order: vec!["c0".into()],
        some: Some(2),
    };
    assert_eq!(kind(all, &[&["1"], &["2"]], &ordered), None);
    assert_eq!(
        kind(all, &[&["1"], &["3"]], &ordered),
        Some("another order")
    );
}

#[test]
fn floats_may_be_rounded_otherwise_and_no_more() {
    let any = Asked::default();
    let same = |a: &str, b: &str| kind(&[&[a]], &[&[b]], &any).is_none();
    assert!(same("0.1", "0.10000000001"));
    assert!(same("NaN", "NaN") && same("inf", "inf") && same("0.0", "-0.0"));
    assert!(!same("0.1", "0.11") && !same("inf", "-inf") && !same("NaN", "0.5"));
    assert!(
        !same("1000000.5", "1000000.6") && !same("0.5", "NULL") && !same("inf", "1000000000000.0")
    );
    // Rounding of one value changes the order of both rows.
    let due: &[&[&str]] = &[&["1.0", "5.0"], &["1.0000000001", "3.0"]];
    let got: &[&[&str]] = &[&["1.0000000001", "5.0"], &["1.0", "3.0"]];
    assert_eq!(kind(due, got, &any), None);
    assert_eq!(kind(due, &[got[0], got[0]], &any), Some("other rows"));
}
