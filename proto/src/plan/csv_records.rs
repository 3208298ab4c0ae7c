//! Where records of a CSV file begin: line breaks within quoted values end none.
//!
//! A large file is read by several tasks, each from a byte on that nobody chose for what is there. DataFusion takes the next
//! line break for the end of a record, and object_store loses count of the quotes where it collects lines to infer
//! columns from. Here the record near any byte is found without what is before: quotes are followed twice, as if a quoted
//! value were open there and as if not, until one of both meets what no writer of CSV writes, as a quote in the midst of a
//! value without quotes. Whether that was right is known to who reads the [part](part_of_records) before: it ends with a
//! record, or within one. Values are read by DataFusion.

use std::ops::Range;

use bytes::Bytes;
use datafusion::common::config::CsvOptions;
use datafusion::datasource::physical_plan::CsvSource;
use datafusion::error::Result;
use futures::future::try_join;
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use memchr::{memchr, memchr2, memchr3};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

/// What is read near a byte at first, and how many times as much then.
const WINDOW: u64 = 16 << 10;
const GROWTH: u64 = 4;
/// How far after a byte it is decided on whether a quoted value is open there.
const FAR: usize = 256 << 10;
/// What is parsed at once to infer columns, and how much at most if no record ends.
const PIECE: usize = 256 << 10;
const MOST: usize = 64 << 20;
/// What a file may begin with, and a reader passes over.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The characters that tell values and records of a CSV file apart.
#[derive(Debug, Clone, Copy)]
pub struct CsvDialect {
    delimiter: u8,
    quote: u8,
    escape: Option<u8>,
    /// A line break of any kind if there is none.
    terminator: Option<u8>,
    comment: Option<u8>,
}

impl From<&CsvOptions> for CsvDialect {
    fn from(options: &CsvOptions) -> Self {
        Self {
            delimiter: options.delimiter,
            quote: options.quote,
            escape: options.escape,
            terminator: options.terminator,
            comment: options.comment,
        }
    }
}

impl From<&CsvSource> for CsvDialect {
    fn from(source: &CsvSource) -> Self {
        Self {
            delimiter: source.delimiter(),
            quote: source.quote(),
            escape: source.escape(),
            terminator: source.terminator(),
            comment: source.comment(),
        }
    }
}

impl CsvDialect {
    /// Whether it ends a record outside of quotes.
    fn is_line_end(&self, byte: u8) -> bool {
        match self.terminator {
            Some(terminator) => byte == terminator,
            None => matches!(byte, b'\n' | b'\r'),
        }
    }

    /// Whether files can be cut: a comment may have any quotes.
    fn can_be_cut(&self) -> bool {
        self.comment.is_none()
    }

    /// What ends a record where a file is cut, as DataFusion has it.
    fn cut_after(&self) -> u8 {
        self.terminator.unwrap_or(b'\n')
    }

    fn is_quote_or_escape(&self, byte: u8) -> bool {
        byte == self.quote || self.escape == Some(byte)
    }

    /// What comes after a byte outside of quotes.
    fn after(&self, byte: u8) -> State {
        match byte {
            _ if self.is_line_end(byte) => State::LineStart,
            _ if byte == self.delimiter => State::ValueStart,
            _ => State::Value,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    ValueStart,
    /// Within a value without quotes, or behind the quotes of one.
    Value,
    Quoted,
    /// After an escape within quotes.
    Escaped,
    /// After a quote within quotes: it ends them, or is the first of two that stand for one.
    MaybeClosed,
    Comment,
}

/// Follows the bytes of a CSV file: which of them are within quotes.
#[derive(Debug, Clone)]
struct Scanner {
    dialect: CsvDialect,
    state: State,
    /// How many bytes it has followed.
    followed: u64,
    /// Which of them was the first that no writer of CSV writes.
    odd: Option<u64>,
}

impl Scanner {
    /// Begins where a record does.
    fn new(dialect: CsvDialect) -> Self {
        Self::within(dialect, State::LineStart)
    }

    fn within(dialect: CsvDialect, state: State) -> Self {
        Self {
            dialect,
            state,
            followed: 0,
            odd: None,
        }
    }

    /// Follows these bytes.
    fn follow(&mut self, bytes: &[u8]) {
        self.advance(bytes, false);
    }

    /// Whether the next byte is within quotes, as far as is known without it.
    fn is_quoted(&self) -> bool {
        matches!(self.state, State::Quoted | State::Escaped)
    }

    /// There are no more bytes.
    fn ends(&mut self) {
        if self.is_quoted() {
            self.odd.get_or_insert(self.followed);
        }
    }

    /// Follows these bytes up to the end of a record. Returns how many that are, if a record ends in them.
    fn record_end(&mut self, bytes: &[u8]) -> Option<usize> {
        self.advance(bytes, true)
    }

    fn advance(&mut self, bytes: &[u8], to_record_end: bool) -> Option<usize> {
        let begun = self.followed;
        let mut at = 0;
        let end = loop {
            let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else {
                break None;
            };
            let (taken, ends) = self.step(rest, to_record_end);
            at += taken;
            self.followed = begun + at as u64;
            if ends {
                break Some(at);
            }
        };
        self.followed = begun + at as u64;
        end
    }

    /// Follows some of these bytes, of which there are any. Returns how many, and whether a record ends with them.
    fn step(&mut self, bytes: &[u8], to_record_end: bool) -> (usize, bool) {
        let CsvDialect {
            quote,
            escape,
            comment,
            ..
        } = self.dialect;
        let up_to = |found: Option<usize>| found.map_or(bytes.len(), |at| at + 1);
        match self.state {
            State::Quoted => {
                let found = memchr2(quote, escape.unwrap_or(quote), bytes);
                if let Some(at) = found {
                    let closes = bytes[at] == quote;
                    self.state = if closes {
                        State::MaybeClosed
                    } else {
                        State::Escaped
                    };
                }
                (up_to(found), false)
            }
            State::Escaped => {
                self.state = State::Quoted;
                (1, false)
            }
            State::MaybeClosed if bytes[0] == quote => {
                self.state = State::Quoted;
                (1, false)
            }
            State::MaybeClosed => {
                if self.dialect.after(bytes[0]) == State::Value && bytes[0] != b'\r' {
                    // It is the quote that is odd: it is so as well if it is taken for one outside of quotes.
                    self.odd.get_or_insert(self.followed.saturating_sub(1));
                }
                self.state = State::Value;
                (0, false)
            }
            State::Comment => {
                // Whatever ends records ends no comment.
                let found = memchr(b'\n', bytes);
                if found.is_some() {
                    self.state = State::LineStart;
                }
                (up_to(found), false)
            }
            State::LineStart if comment == Some(bytes[0]) => {
                self.state = State::Comment;
                (1, false)
            }
            State::LineStart | State::ValueStart | State::Value => {
                self.outside(bytes, to_record_end)
            }
        }
    }

    /// As [`step`](Self::step), outside of quotes.
    fn outside(&mut self, bytes: &[u8], to_record_end: bool) -> (usize, bool) {
        let dialect = self.dialect;
        // Ends of lines count where records end with them, or comments may begin.
        let found = match (
            to_record_end || dialect.comment.is_some(),
            dialect.terminator,
        ) {
            (false, _) => memchr(dialect.quote, bytes),
            (true, Some(terminator)) => memchr2(dialect.quote, terminator, bytes),
            (true, None) => memchr3(dialect.quote, b'\n', b'\r', bytes),
        };
        let before = |at: usize| match at {
            0 => self.state,
            at => dialect.after(bytes[at - 1]),
        };
        match found {
            None => {
                self.state = before(bytes.len());
                (bytes.len(), false)
            }
            Some(at) if bytes[at] == dialect.quote => {
                let opens = before(at) != State::Value;
                if !opens {
                    self.odd.get_or_insert(self.followed + at as u64);
                }
                self.state = if opens { State::Quoted } else { State::Value };
                (at + 1, false)
            }
            Some(at) => {
                self.state = State::LineStart;
                let ends = to_record_end && bytes[at] == dialect.cut_after();
                (at + 1, ends)
            }
        }
    }
}

/// The records of a part of a file: from that which begins at the part's first byte or is the next after it, to that which
/// begins at its end or is the next. Parts that follow each other have all records, each once, or one of them ends within a
/// record: where a quoted value is open for long without a quote, or quotes are not as any writer of CSV has them. A part
/// that ends before it begins is such a one as well.
///
/// # Errors
/// When the file cannot be read.
pub async fn part_of_records(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    part: Range<u64>,
    dialect: CsvDialect,
) -> object_store::Result<Range<u64>> {
    if !dialect.can_be_cut() {
        let end = if part.start == 0 { file.size } else { 0 };
        return Ok(0..end);
    }
    let start_of = |byte| record_start(store, file, byte, dialect);
    let (start, end) = try_join(start_of(part.start), start_of(part.end)).await?;
    Ok(start..end)
}

/// Where the first record begins that begins at a byte of a file or after it, or the file's size. It is the same for who
/// reads the part before and who reads that after.
async fn record_start(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    byte: u64,
    dialect: CsvDialect,
) -> object_store::Result<u64> {
    if byte == 0 || byte >= file.size {
        return Ok(byte.min(file.size));
    }
    // The byte before tells whether a record begins with this one.
    let begun = byte - 1;
    let mut windows = Windows {
        store,
        file,
        next: begun,
        size: WINDOW,
    };
    let mut near = Vec::new();
    // What a quote means can be told only together with those before it.
    let mut from = 1;
    loop {
        while from < near.len().min(FAR) && dialect.is_quote_or_escape(near[from - 1]) {
            from += 1;
        }
        if from < near.len() {
            break;
        }
        match windows.next().await? {
            Some(bytes) => near.extend_from_slice(&bytes),
            None => return Ok(file.size),
        }
    }
    let outside = Scanner::within(dialect, dialect.after(near[from - 1]));
    let quoted = Scanner::within(dialect, State::Quoted);
    let mut both = [outside.clone(), quoted.clone()];
    let mut seen = from;
    loop {
        for scanner in &mut both {
            scanner.follow(&near[seen..]);
        }
        seen = near.len();
        let is_decided = both.iter().any(|scanner| scanner.odd.is_some());
        if is_decided || seen >= FAR {
            break;
        }
        match windows.next().await? {
            Some(bytes) => near.extend_from_slice(&bytes),
            None => {
                both.iter_mut().for_each(Scanner::ends);
                break;
            }
        }
    }
    // What is odd later, or nowhere, is meant.
    let [if_outside, if_quoted] = both.map(|scanner| scanner.odd.unwrap_or(u64::MAX));
    let is_quoted = if_quoted > if_outside;
    if !is_quoted && near[from - 1] == dialect.cut_after() {
        return Ok(begun + from as u64);
    }
    let mut scanner = if is_quoted { quoted } else { outside };
    let mut start = begun + from as u64;
    let mut rest = Bytes::from(near).slice(from..);
    loop {
        if let Some(end) = scanner.record_end(&rest) {
            return Ok(start + end as u64);
        }
        start += rest.len() as u64;
        match windows.next().await? {
            Some(bytes) => rest = bytes,
            None => return Ok(file.size),
        }
    }
}

/// Reads a file from a byte on, in ever larger pieces.
struct Windows<'a> {
    store: &'a dyn ObjectStore,
    file: &'a ObjectMeta,
    next: u64,
    size: u64,
}

impl Windows<'_> {
    async fn next(&mut self) -> object_store::Result<Option<Bytes>> {
        let range = self.next..self.file.size.min(self.next + self.size);
        if range.is_empty() {
            return Ok(None);
        }
        self.next = range.end;
        self.size = self.size.saturating_mul(GROWTH).min(FAR as u64);
        let bytes = self.store.get_range(&self.file.location, range).await?;
        Ok(Some(bytes))
    }
}

/// The bytes of a file in pieces of whole records, of `PIECE` bytes and more, to infer columns from. All that is left is the
/// last piece, whether it ends or not. A record of `MOST` bytes is cut.
pub fn whole_records(
    bytes: BoxStream<'static, Result<Bytes>>,
    dialect: CsvDialect,
) -> BoxStream<'static, Result<Bytes>> {
    let begun = (bytes, Scanner::new(dialect), Vec::new());
    try_unfold(
        begun,
        move |(mut bytes, mut scanner, mut piece)| async move {
            while let Some(more) = bytes.try_next().await? {
                let mut end = match scanner.followed == 0 && more.starts_with(BYTE_ORDER_MARK) {
                    true => BYTE_ORDER_MARK.len(),
                    false => 0,
                };
                while let Some(record) = scanner.record_end(&more[end..]) {
                    end += record;
                }
                let is_whole = end > 0 && piece.len() + end >= PIECE;
                if is_whole || piece.len() >= MOST {
                    piece.extend_from_slice(&more[..end]);
                    let rest = more[end..].to_vec();
                    return Ok(Some((piece.into(), (bytes, scanner, rest))));
                }
                piece.extend_from_slice(&more);
            }
            let mut lines = piece.split(|byte| matches!(byte, b'\n' | b'\r'));
            let is_record =
                |line: &[u8]| !line.is_empty() && dialect.comment != line.first().copied();
            match lines.any(is_record) {
                true => Ok(Some((piece.into(), (bytes, scanner, Vec::new())))),
                // Who infers takes it for a record without columns.
                false => Ok(None),
            }
        },
    )
    .boxed()
}

#[cfg(test)]
mod tests {
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
}
