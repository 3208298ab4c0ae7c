use object_store::memory::InMemory;
use object_store::path::Path;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const PLAIN: CsvDialect = CsvDialect {
    delimiter: b',',
    quote: b'"',
    escape: None,
    terminator: None,
    comment: None,
};

/// A file, and where its records begin and end.
struct Written {
    bytes: Vec<u8>,
    starts: Vec<u64>,
}

/// Writes rows of values of these characters, as writers of CSV do.
fn written(rng: &mut StdRng, dialect: CsvDialect, of: &[u8], rows: usize) -> Written {
    let mut bytes = Vec::new();
    let mut starts = vec![0];
    let columns = rng.random_range(1..4);
    let end: &[u8] = match dialect.terminator {
        Some(_) => b";",
        None if rng.random() => b"\r\n",
        None => b"\n",
    };
    for _ in 0..rows {
        if dialect.comment.is_some() && rng.random_ratio(1, 10) {
            bytes.extend_from_slice(b"#it's, \"5 o'clock\n");
        }
        for column in 0..columns {
            if column > 0 {
                bytes.push(dialect.delimiter);
            }
            let length = rng.random_range(0..6);
            let value: Vec<u8> = (0..length)
                .map(|_| of[rng.random_range(0..of.len())])
                .collect();
            let special = [dialect.delimiter, dialect.quote, b'\n', b'\r', b';', b'#'];
            let is_quoted = value.iter().any(|byte| special.contains(byte));
            if !is_quoted && rng.random_ratio(3, 4) {
                bytes.extend_from_slice(&value);
                continue;
            }
            bytes.push(dialect.quote);
            for byte in value {
                match dialect.escape {
                    Some(escape) if byte == dialect.quote || byte == escape => {
                        bytes.extend_from_slice(&[escape, byte]);
                    }
                    None if byte == dialect.quote => bytes.extend_from_slice(&[byte, byte]),
                    _ => bytes.push(byte),
                }
            }
            bytes.push(dialect.quote);
        }
        bytes.extend_from_slice(end);
        starts.push(bytes.len() as u64);
    }
    Written { bytes, starts }
}

fn dialects() -> [CsvDialect; 4] {
    let mut dialects = [PLAIN; 4];
    dialects[1].escape = Some(b'\\');
    dialects[2].comment = Some(b'#');
    dialects[3].terminator = Some(b';');
    dialects
}

async fn stored(bytes: &[u8]) -> (InMemory, ObjectMeta) {
    let (store, path) = (InMemory::new(), Path::from("t.csv"));
    store.put(&path, bytes.to_vec().into()).await.unwrap();
    let file = store.head(&path).await.unwrap();
    (store, file)
}

#[test]
fn a_scanner_knows_what_is_quoted_however_the_bytes_arrive() {
    let mut rng = StdRng::seed_from_u64(1);
    for dialect in dialects().into_iter().cycle().take(200) {
        let Written { bytes, starts } = written(&mut rng, dialect, b"ab,\"\n\\#;", 20);
        let mut scanner = Scanner::new(dialect);
        let mut found = vec![0];
        let mut at = 0;
        while at < bytes.len() {
            let piece = rng.random_range(1..40).min(bytes.len() - at);
            let piece = &bytes[at..at + piece];
            let mut seen = 0;
            while let Some(end) = scanner.record_end(&piece[seen..]) {
                seen += end;
                found.push((at + seen) as u64);
                assert!(!scanner.is_quoted());
            }
            at += piece.len();
        }
        assert_eq!(
            found,
            starts,
            "{dialect:?} {:?}",
            bytes.escape_ascii().to_string()
        );
        assert_eq!(scanner.followed, bytes.len() as u64);
    }
}

#[tokio::test]
async fn a_part_begins_with_a_record_or_the_one_before_ends_within_one() {
    let mut rng = StdRng::seed_from_u64(2);
    let dialects = dialects().into_iter().filter(CsvDialect::can_be_cut);
    for dialect in dialects.collect::<Vec<_>>().into_iter().cycle().take(400) {
        // Little else than what is special, and as files are.
        let dense = rng.random();
        let of: &[u8] = match dense {
            true => b"ab,\"\n\\#;",
            false => b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,\"\n",
        };
        let Written { bytes, starts } = written(&mut rng, dialect, of, 30);
        let (store, file) = stored(&bytes).await;
        let mut scanner = Scanner::new(dialect);
        let mut followed = 0;
        for byte in 0..=file.size {
            let start = record_start(&store, &file, byte, dialect);
            let start = start.await.unwrap();
            let shown = || bytes[..byte as usize].escape_ascii().to_string();
            let due = starts.iter().find(|start| **start >= byte);
            if !dense {
                assert_eq!(Some(&start), due, "{dialect:?} at {byte}: {}", shown());
            }
            if start < followed {
                // Who reads it says so.
                continue;
            }
            scanner.follow(&bytes[followed as usize..start as usize]);
            followed = start;
            let ends_within = scanner.state != State::LineStart;
            let begins = starts.contains(&start);
            assert!(begins || ends_within, "{dialect:?} at {byte}: {}", shown());
        }
    }
}

#[tokio::test]
async fn quotes_in_the_midst_of_values_open_none() {
    let lines = "1,a 5\" pipe\n2,\"in\nside\"\n3,he said \"no\" twice\n4,\n";
    let (store, file) = stored(lines.repeat(5).as_bytes()).await;
    let starts: Vec<_> = (0..5)
        .flat_map(|round| [0, 12, 24, 45, 48].map(|start| round * 48 + start))
        .collect();
    for byte in 0..=file.size {
        let start = record_start(&store, &file, byte, PLAIN).await.unwrap();
        assert!(starts.contains(&start), "{byte}: {start}");
    }
}

#[tokio::test]
async fn comments_are_not_cut() {
    let (store, file) = stored(b"k\n# a,\"b\n1\n2\n").await;
    let dialect = CsvDialect {
        comment: Some(b'#'),
        ..PLAIN
    };
    let part = async |part| part_of_records(&store, &file, part, dialect).await.unwrap();
    assert_eq!(part(0..4).await, 0..file.size);
    assert!(part(4..file.size).await.is_empty());
}

#[tokio::test]
async fn pieces_are_of_whole_records() {
    let line = "1,\"two\nlines, \"\"quoted\"\"\"\n";
    let text = format!("k,v\n{}# the end\n\n", line.repeat(30_000));
    let dialect = CsvDialect {
        comment: Some(b'#'),
        ..PLAIN
    };
    let chunks = text.as_bytes().chunks(8192).map(Bytes::copy_from_slice);
    let chunks: Vec<_> = chunks.map(Ok).collect();
    let chunks = futures::stream::iter(chunks).boxed();
    let pieces: Vec<_> = whole_records(chunks, dialect).try_collect().await.unwrap();
    assert!(pieces.len() > 2);
    for piece in &pieces {
        let text = std::str::from_utf8(piece).unwrap();
        let is_record = text.starts_with("k,v\n") || text.starts_with("1,\"two");
        assert!(is_record && piece.ends_with(b"\n"));
    }
}

/// Returns the line of a quote that nothing closes, as the check finds it in these pieces.
fn open_quote(text: &str, dialect: CsvDialect, piece: usize) -> Option<u64> {
    let mut check = QuoteCheck::new(dialect, true);
    let mut pieces = text.as_bytes().chunks(piece);
    let followed = pieces.try_for_each(|piece| check.follow(piece));
    followed
        .and_then(|()| check.end())
        .err()
        .map(|open| open.line)
}

#[test]
fn a_quote_that_nothing_closes_is_found_with_its_line() {
    for (text, due) in [
        ("a,b\n1,x\n2,\"unclosed\n3,y\n", Some(3)),
        // The next quote is in the midst of a value.
        ("a,b\n1,\"unclosed\n2,\"y\"\n3,z\n", Some(2)),
        ("\u{feff}\"a\",b\n1,\"two\nlines\"\n2,\"", Some(4)),
        ("a\n\"two\nlines\"\n\"x\"\"\n", Some(4)),
        // Lines of old Macs and of Windows.
        ("a,b\r1,x\r2,\"unclosed\r3,y\r", Some(3)),
        ("a,b\r\n1,x\r\n2,\"unclosed\r\n3,y\r\n", Some(3)),
        // Read as they are.
        (
            "a,b\n1,\"quoted\"tail\n2,5\" pipe\n3,\"two\nlines\" ,x\n",
            None,
        ),
        ("\u{feff}\"a\"\n\"x\"", None),
        ("a\n\"\"", None),
    ] {
        for piece in 1..=text.len() {
            assert_eq!(open_quote(text, PLAIN, piece), due, "{text:?} {piece}");
        }
    }
}

#[test]
fn quotes_as_writers_have_them_are_closed() {
    let mut rng = StdRng::seed_from_u64(3);
    for dialect in dialects().into_iter().cycle().take(400) {
        let Written { bytes, .. } = written(&mut rng, dialect, b"ab,\"\n\\#;", 20);
        let text = String::from_utf8(bytes).unwrap();
        let piece = rng.random_range(1..40);
        assert_eq!(
            open_quote(&text, dialect, piece),
            None,
            "{dialect:?} {text:?}"
        );
    }
}

#[test]
fn both_ways_to_follow_bytes_find_the_same() {
    let mut rng = StdRng::seed_from_u64(4);
    let dialects = dialects();
    let without = |dialect: &CsvDialect| dialect.escape.is_none() && dialect.comment.is_none();
    for dialect in dialects.into_iter().filter(without).cycle().take(2000) {
        let length = rng.random_range(0..200);
        let bytes: Vec<u8> = (0..length)
            .map(|_| b"ab,,\"\"\"\"\n\r; "[rng.random_range(0..12)])
            .collect();
        let [mut one, mut other] = [Scanner::new(dialect), Scanner::new(dialect)];
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(rng.random_range(1..=rest.len()));
            one.follow_quotes(piece);
            other.advance(piece, false);
            rest = left;
            let found = |scanner: &Scanner| {
                let Scanner {
                    followed,
                    malformed,
                    opened,
                    swallowed,
                    ..
                } = *scanner;
                (scanner.is_quoted(), followed, malformed, opened, swallowed)
            };
            let shown = bytes[..bytes.len() - rest.len()].escape_ascii();
            assert_eq!(found(&one), found(&other), "{dialect:?} {shown}");
        }
    }
}

/// Returns the values `""` in a text: the offset of the end of each, and its column.
fn empty_texts(text: &str, dialect: CsvDialect, piece: usize) -> Vec<(usize, usize)> {
    let mut check = QuoteCheck::new(dialect, true).with_empty_texts();
    let mut found = Vec::new();
    let mut followed = 0;
    for piece in text.as_bytes().chunks(piece) {
        check.follow(piece).unwrap();
        let empty = check.empty_texts().iter();
        found.extend(empty.map(|empty| (followed + empty.end, empty.column)));
        followed += piece.len();
    }
    found.extend(
        check
            .ends_with_empty_text()
            .map(|column| (followed, column)),
    );
    found
}

#[test]
fn texts_without_characters_are_found_with_their_columns() {
    let escaped = CsvDialect {
        escape: Some(b'\\'),
        ..PLAIN
    };
    let commented = CsvDialect {
        comment: Some(b'#'),
        ..PLAIN
    };
    for (text, due) in [
        ("a,b\n1,\"\"\n\"\",2\n", &[(8, 1), (11, 0)][..]),
        ("a,b\n1,\nx,y\n,\"\"", &[(14, 1)]),
        ("\u{feff}\"\",\"\"\r\n", &[(5, 0), (8, 1)]),
        (
            "\"\"\"\",\"a\"\"\",\"\"\"a\",\"\"a,\"\" ,\"\"\n",
            &[(27, 5)],
        ),
        ("\"a,\n\",\"\",x\n", &[(8, 1)]),
        ("5\" pipe,\"\"\n\"\",\"\"\r", &[(10, 1), (13, 0), (16, 1)]),
    ] {
        // A byte order mark comes in one piece.
        let least = text.chars().next().map_or(1, char::len_utf8);
        for dialect in [PLAIN, escaped, commented] {
            for piece in least..=text.len() {
                assert_eq!(
                    empty_texts(text, dialect, piece),
                    due,
                    "{text:?} {dialect:?} {piece}"
                );
            }
        }
    }
}

#[test]
fn texts_without_characters_are_found_in_what_writers_write() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut seen = 0;
    for dialect in dialects().into_iter().cycle().take(800) {
        if dialect.comment.is_some() {
            // The comments that are drawn have quotes, which the split below does not follow.
            continue;
        }
        let Written { bytes, starts } = written(&mut rng, dialect, b"ab,\"\n\\#;", 20);
        let text = String::from_utf8(bytes).unwrap();
        let mut due = Vec::new();
        for record in starts.windows(2) {
            let (mut column, mut is_quoted, mut begun) = (0, false, record[0] as usize);
            let mut at = begun;
            while at < record[1] as usize {
                let byte = text.as_bytes()[at];
                match byte {
                    _ if is_quoted && dialect.escape == Some(byte) => at += 1,
                    _ if byte == dialect.quote => is_quoted = !is_quoted,
                    _ if !is_quoted && (byte == dialect.delimiter || dialect.is_line_end(byte)) => {
                        due.extend((&text[begun..at] == "\"\"").then_some((at, column)));
                        column += 1;
                        begun = at + 1;
                    }
                    _ => {}
                }
                at += 1;
            }
        }
        seen += due.len();
        let piece = rng.random_range(1..40);
        assert_eq!(
            empty_texts(&text, dialect, piece),
            due,
            "{dialect:?} {text:?}"
        );
    }
    assert!(seen > 300, "{seen}");
}

#[tokio::test]
async fn records_have_the_numbers_of_their_lines() {
    let commented = CsvDialect {
        comment: Some(b'#'),
        ..PLAIN
    };
    for (text, dialect, from, due) in [
        (
            "a,b\n1,\"two\nlines\"\n\n2,x\n3,y",
            PLAIN,
            0,
            &[1, 2, 5, 6][..],
        ),
        ("a,b\r\n1,x\r\n\r\n2,y\r\n", PLAIN, 0, &[1, 2, 4]),
        ("a,b\r1,x\r2,y\r", PLAIN, 0, &[1, 2, 3]),
        ("\u{feff}\"a\"\n1\n", PLAIN, 0, &[1, 2]),
        ("a,b\n1,\"two\nlines\"\n2,x\n3,y", PLAIN, 18, &[4, 5]),
        ("# \"\na\n# x\n1\n", commented, 0, &[2, 4]),
    ] {
        for piece in 1..=text.len() {
            for (record, due) in due.iter().enumerate() {
                let pieces = text.as_bytes().chunks(piece).map(Bytes::copy_from_slice);
                let pieces: Vec<_> = pieces.map(Ok).collect();
                let pieces = futures::stream::iter(pieces).boxed();
                let line = line_of_record(pieces, dialect, from, record as u64)
                    .await
                    .unwrap();
                assert_eq!(line, *due, "{text:?} {record} {piece}");
            }
        }
    }
}
