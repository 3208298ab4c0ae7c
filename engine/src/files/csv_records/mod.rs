//! Starts of the records of a CSV file: line breaks within quoted values end none.
//!
//! A large file is read by several tasks, each from an arbitrary byte on. DataFusion takes the next line break for the
//! end of a record, and object_store loses count of the quotes where it collects lines to infer columns from. Here the
//! start of a record near any byte is found by speculation (as in Ge, Li, Eilebrecht, Chandramouli and Kossmann,
//! Speculative Distributed CSV Data Parsing, 2019): bytes are scanned twice, as if a quoted value were open there and
//! as if not, until one of the scans meets malformed text, such as a quote inside a value without quotes. The reader of
//! the [part](part_of_records) before validates the result: its part ends with a record, or within one. Values are not
//! parsed here, but a value `""` is found, because it is a text and not NULL, and the reader's parser drops the quotes.

#[cfg(test)]
mod tests;

use std::ops::Range;

use bytes::Bytes;
use datafusion::common::config::CsvOptions;
use datafusion::common::exec_datafusion_err;
use datafusion::datasource::physical_plan::CsvSource;
use datafusion::error::{DataFusionError, Result};
use futures::future::try_join;
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use memchr::{memchr, memchr_iter, memchr2, memchr3, memrchr, memrchr2};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

/// Bytes that are read near a position at first, and the factor of each further read.
const WINDOW: u64 = 16 << 10;
const GROWTH: u64 = 4;
/// Maximum distance after a byte within which the scan decides whether a quoted value is open there.
const FAR: usize = 256 << 10;
/// Bytes that are parsed at once to infer columns, and their maximum if no record ends.
const PIECE: usize = 256 << 10;
const MOST: usize = 64 << 20;
/// Byte order mark that a file may begin with, and that readers skip.
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
    /// Checks whether a byte ends a record outside of quotes.
    fn is_line_end(&self, byte: u8) -> bool {
        match self.terminator {
            Some(terminator) => byte == terminator,
            None => matches!(byte, b'\n' | b'\r'),
        }
    }

    /// Checks whether files can be cut: not where there are comments, which may contain any quotes.
    fn can_be_cut(&self) -> bool {
        self.comment.is_none()
    }

    /// Returns the byte that ends a record where DataFusion cuts a file.
    fn cut_after(&self) -> u8 {
        self.terminator.unwrap_or(b'\n')
    }

    fn is_quote_or_escape(&self, byte: u8) -> bool {
        byte == self.quote || self.escape == Some(byte)
    }

    fn has_line_break(&self, value: &[u8]) -> bool {
        match self.terminator {
            Some(terminator) => memchr(terminator, value).is_some(),
            None => memchr2(b'\n', b'\r', value).is_some(),
        }
    }

    /// Returns the state after a byte outside of quotes.
    fn after(&self, byte: u8) -> State {
        match byte {
            _ if self.is_line_end(byte) => State::LineStart,
            _ if byte == self.delimiter => State::ValueStart,
            _ => State::Value,
        }
    }
}

/// Position of a scanner within a record.
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

/// Tracks which bytes of a CSV file are within quotes.
#[derive(Debug, Clone)]
struct Scanner {
    dialect: CsvDialect,
    state: State,
    /// Number of bytes that it has followed.
    followed: u64,
    /// Position of the first malformed one.
    malformed: Option<u64>,
    /// The last quote that opened a value, and whether a line break followed it.
    opened: u64,
    has_line_break: bool,
    /// The first quote whose value has a line break and is malformed at its end.
    swallowed: Option<u64>,
    /// Delimiters before it in the record.
    column: usize,
    /// True if the last value with quotes is `""`, as far as is known without the next byte.
    is_empty: bool,
    /// The values `""`, if they are asked for: the byte after each, and its column.
    empty: Option<Vec<(u64, usize)>>,
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
            malformed: None,
            opened: 0,
            has_line_break: false,
            swallowed: None,
            column: 0,
            is_empty: false,
            empty: None,
        }
    }

    /// Follows these bytes.
    fn follow(&mut self, bytes: &[u8]) {
        match self.dialect.escape.or(self.dialect.comment) {
            None => self.follow_quotes(bytes),
            Some(_) => {
                self.advance(bytes, false);
            }
        }
    }

    /// Advances to the end as [`advance`](Self::advance) does, in files without escapes and comments: where every value
    /// is quoted, a search for each quote takes longer than a look at each byte.
    fn follow_quotes(&mut self, bytes: &[u8]) {
        let dialect = self.dialect;
        let quote = dialect.quote;
        let ends = [b'\n', b'\r'].map(|end| dialect.terminator.unwrap_or(end));
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.state {
                State::Quoted => {
                    let mut has_line_break = self.has_line_break;
                    let mut rest = bytes[at..].iter();
                    let inside = rest.position(|byte| {
                        has_line_break |= ends.contains(byte);
                        *byte == quote
                    });
                    self.has_line_break = has_line_break;
                    match inside {
                        Some(inside) => {
                            at += inside + 1;
                            self.closes(self.followed + at as u64);
                        }
                        None => at = bytes.len(),
                    }
                }
                State::MaybeClosed if byte == quote => {
                    self.state = State::Quoted;
                    at += 1;
                }
                State::MaybeClosed => {
                    self.follows_closed(byte, self.followed + at as u64);
                    self.enters(dialect.after(byte));
                    at += 1;
                }
                State::LineStart | State::ValueStart if byte == quote => {
                    self.opens(self.followed + at as u64);
                    at += 1;
                }
                State::LineStart | State::ValueStart => {
                    self.enters(dialect.after(byte));
                    at += 1;
                }
                _ => match memchr(quote, &bytes[at..]) {
                    None => {
                        self.passes(&bytes[at..]);
                        self.state = dialect.after(bytes[bytes.len() - 1]);
                        at = bytes.len();
                    }
                    Some(before) => {
                        self.passes(&bytes[at..at + before]);
                        at += before;
                        let is_start = before > 0 && dialect.after(bytes[at - 1]) != State::Value;
                        match is_start {
                            true => self.opens(self.followed + at as u64),
                            false => {
                                self.malformed.get_or_insert(self.followed + at as u64);
                                self.state = State::Value;
                            }
                        }
                        at += 1;
                    }
                },
            }
        }
        self.followed += bytes.len() as u64;
    }

    /// Follows a quote at this byte that opens a value.
    fn opens(&mut self, at: u64) {
        self.state = State::Quoted;
        self.opened = at;
        self.has_line_break = false;
    }

    /// Follows the quote before this byte, which closes a value or is the first of two.
    fn closes(&mut self, after: u64) {
        self.state = State::MaybeClosed;
        self.is_empty = after == self.opened + 2;
    }

    /// Follows one byte outside of quotes, after which it is here.
    fn enters(&mut self, state: State) {
        self.state = state;
        match state {
            State::LineStart => self.column = 0,
            State::ValueStart => self.column += 1,
            _ => {}
        }
    }

    /// Counts the delimiters of bytes outside of quotes.
    fn passes(&mut self, bytes: &[u8]) {
        let line_end = match self.dialect.terminator {
            Some(terminator) => memrchr(terminator, bytes),
            None => memrchr2(b'\n', b'\r', bytes),
        };
        let record = match line_end {
            Some(end) => {
                self.column = 0;
                &bytes[end + 1..]
            }
            None => bytes,
        };
        self.column += memchr_iter(self.dialect.delimiter, record).count();
    }

    /// Checks the byte after a quote that closes a value.
    fn follows_closed(&mut self, byte: u8, at: u64) {
        if self.dialect.after(byte) != State::Value {
            if self.is_empty
                && let Some(empty) = &mut self.empty
            {
                empty.push((at, self.column));
            }
            return;
        }
        if byte == b'\r' {
            return;
        }
        // The quote counts, as it does if it is taken for one outside of quotes.
        self.malformed.get_or_insert(at.saturating_sub(1));
        if self.has_line_break && !matches!(byte, b' ' | b'\t') {
            self.swallowed.get_or_insert(self.opened);
        }
    }

    /// Checks whether the next byte is within quotes, as far as is known without it.
    fn is_quoted(&self) -> bool {
        matches!(self.state, State::Quoted | State::Escaped)
    }

    /// Ends the file: an open quote is malformed.
    fn ends(&mut self) {
        if self.is_quoted() {
            self.malformed.get_or_insert(self.followed);
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
                let value = &bytes[..found.unwrap_or(bytes.len())];
                self.has_line_break |= self.dialect.has_line_break(value);
                match found {
                    Some(at) if bytes[at] == quote => self.closes(self.followed + at as u64 + 1),
                    Some(_) => self.state = State::Escaped,
                    None => {}
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
                self.follows_closed(bytes[0], self.followed);
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

    /// Advances as [`step`](Self::step) does, outside of quotes.
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
        let state = before(found.unwrap_or(bytes.len()));
        // A line end that was found is counted with what is before it.
        let quote = found.filter(|at| bytes[*at] == dialect.quote);
        let passed = quote.or(found.map(|at| at + 1)).unwrap_or(bytes.len());
        self.passes(&bytes[..passed]);
        match found {
            None => {
                self.state = state;
                (bytes.len(), false)
            }
            Some(at) if bytes[at] == dialect.quote => {
                let opens = state != State::Value;
                match opens {
                    true => self.opens(self.followed + at as u64),
                    false => {
                        self.malformed.get_or_insert(self.followed + at as u64);
                        self.state = State::Value;
                    }
                }
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

/// Checks the quotes of the bytes from one record on.
///
/// A quote is open that no other closes: there is none, or the next one is in the midst of a value some lines further on. A
/// parser takes the lines up to there, or to the end of the file, for one value.
#[derive(Debug)]
pub struct QuoteCheck {
    scanner: Scanner,
    begins_file: bool,
    /// The lines that were followed, and those before that of the last quote that opened a value.
    lines: Lines,
    lines_before_quote: Lines,
    /// The values `""` in the bytes that were followed last.
    empty: Vec<EmptyText>,
}

/// The end of a value `""`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyText {
    /// Offset of its end in the bytes that were followed last.
    pub end: usize,
    /// The number of its column, from 0.
    pub column: usize,
}

/// A count of line ends, which are line feeds, carriage returns, or both of each.
#[derive(Debug, Default, Clone, Copy)]
struct Lines {
    feeds: u64,
    returns: u64,
}

impl Lines {
    fn follow(&mut self, bytes: &[u8], dialect: CsvDialect) {
        let count = |end: u8| memchr_iter(end, bytes).count() as u64;
        self.feeds += count(dialect.cut_after());
        if dialect.terminator.is_none() && self.feeds == 0 {
            self.returns += count(b'\r');
        }
    }

    /// Returns the number of the line after those that have ended.
    fn next(self) -> u64 {
        1 + match self.feeds {
            0 => self.returns,
            feeds => feeds,
        }
    }
}

/// A quote that nothing closes opens in this line; the first that was followed is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenQuote {
    /// The line's number.
    pub line: u64,
}

impl OpenQuote {
    /// Returns the error for the user; the caller adds the file's name.
    pub fn error(self) -> DataFusionError {
        exec_datafusion_err!(
            "line {} opens a quote that nothing closes: close it before a delimiter or the end of a line, double the \
             quotes within the value, or name another character with CREATE EXTERNAL TABLE … OPTIONS ('format.quote' '…')",
            self.line
        )
    }
}

impl QuoteCheck {
    /// Begins where a record does, of a file's first byte or of another.
    pub fn new(dialect: CsvDialect, begins_file: bool) -> Self {
        Self {
            scanner: Scanner::new(dialect),
            begins_file,
            lines: Lines::default(),
            lines_before_quote: Lines::default(),
            empty: vec![],
        }
    }

    /// Begins where a record does, and [finds values `""`](Self::empty_texts).
    pub fn with_empty_texts(mut self) -> Self {
        self.scanner.empty = Some(vec![]);
        self
    }

    /// Returns the values `""` whose ends were in the bytes that were followed last.
    pub fn empty_texts(&self) -> &[EmptyText] {
        &self.empty
    }

    /// Returns the column of the value `""` at the end of the bytes, if there is one.
    pub fn ends_with_empty_text(&self) -> Option<usize> {
        let Scanner {
            state,
            is_empty,
            column,
            ..
        } = self.scanner;
        (state == State::MaybeClosed && is_empty).then_some(column)
    }

    /// Follows the next bytes.
    ///
    /// # Errors
    /// When they show that a quote is open.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<(), OpenQuote> {
        let records = self.after_mark(bytes);
        let mark = bytes.len() - records.len();
        let begun = self.scanner.followed;
        self.scanner.follow(records);
        let found = self
            .scanner
            .empty
            .iter_mut()
            .flat_map(|found| found.drain(..));
        self.empty.clear();
        self.empty.extend(found.map(|(end, column)| EmptyText {
            end: mark + (end - begun) as usize,
            column,
        }));
        self.followed(records, begun)
    }

    /// Returns the bytes after the byte order mark that a file may begin with.
    fn after_mark<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let is_first = self.begins_file && self.scanner.followed == 0;
        let after = bytes.strip_prefix(BYTE_ORDER_MARK);
        after.filter(|_| is_first).unwrap_or(bytes)
    }

    /// Counts the lines of bytes that the scanner followed from one on.
    fn followed(&mut self, bytes: &[u8], begun: u64) -> Result<(), OpenQuote> {
        let dialect = self.scanner.dialect;
        let quote = self.scanner.swallowed.unwrap_or(self.scanner.opened);
        if let Some(at) = quote.checked_sub(begun) {
            let before = &bytes[..bytes.len().min(at as usize)];
            self.lines_before_quote = self.lines;
            self.lines_before_quote.follow(before, dialect);
        }
        self.lines.follow(bytes, dialect);
        match self.scanner.swallowed {
            Some(_) => Err(self.open()),
            None => Ok(()),
        }
    }

    /// Checks that the bytes end outside of quotes.
    ///
    /// # Errors
    /// When a quote is open.
    pub fn end(&self) -> Result<(), OpenQuote> {
        match self.scanner.is_quoted() {
            true => Err(self.open()),
            false => Ok(()),
        }
    }

    fn open(&self) -> OpenQuote {
        OpenQuote {
            line: self.lines_before_quote.next(),
        }
    }
}

/// Returns the line in which a record begins, by its number among the records from a byte on. Blank lines and comments
/// are not records.
///
/// # Errors
/// When the file cannot be read.
pub async fn line_of_record(
    mut bytes: BoxStream<'static, Result<Bytes>>,
    dialect: CsvDialect,
    from: u64,
    mut record: u64,
) -> Result<u64> {
    let mut lines = Lines::default();
    let mut scanner = Scanner::new(dialect);
    let mut followed = 0;
    while let Some(piece) = bytes.try_next().await? {
        let mark = match followed + from {
            0 if piece.starts_with(BYTE_ORDER_MARK) => BYTE_ORDER_MARK.len() as u64,
            _ => 0,
        };
        let before = (from.saturating_sub(followed) + mark).min(piece.len() as u64);
        followed += piece.len() as u64;
        let (before, records) = piece.split_at(before as usize);
        lines.follow(before, dialect);
        for (at, byte) in records.iter().enumerate() {
            let is_begin = scanner.state == State::LineStart
                && !dialect.is_line_end(*byte)
                && dialect.comment != Some(*byte);
            if is_begin && record == 0 {
                lines.follow(&records[..at], dialect);
                return Ok(lines.next());
            }
            record -= u64::from(is_begin);
            scanner.follow(&[*byte]);
        }
        lines.follow(records, dialect);
    }
    Ok(lines.next())
}

/// Returns the records of a part of a file: from the first record at or after the part's first byte up to the first one
/// at or after its end. Adjacent parts together have all records, each once, unless one of them ends within a record:
/// where a quoted value is open for long without a quote, or quotes are not as any writer of CSV has them. A part that
/// ends before it begins counts as one that ends within a record.
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

/// Returns the start of the first record at or after a byte of a file, or the file's size. The readers of the part
/// before and of the part after find the same one.
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
        let is_decided = both.iter().any(|scanner| scanner.malformed.is_some());
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
    // The speculation that is malformed later, or nowhere, is right.
    let [if_outside, if_quoted] = both.map(|scanner| scanner.malformed.unwrap_or(u64::MAX));
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

/// Returns the bytes of a file in pieces of whole records, of `PIECE` bytes and more, to infer columns from. The rest
/// is the last piece, whether its last record ends or not. A record of `MOST` bytes is cut.
pub fn whole_records(
    bytes: BoxStream<'static, Result<Bytes>>,
    dialect: CsvDialect,
) -> BoxStream<'static, Result<Bytes>> {
    let begun = (bytes, QuoteCheck::new(dialect, true), Vec::new());
    try_unfold(begun, move |(mut bytes, mut check, mut piece)| async move {
        while let Some(more) = bytes.try_next().await? {
            let records = check.after_mark(&more);
            let mark = more.len() - records.len();
            let begun = check.scanner.followed;
            let mut end = 0;
            while let Some(record) = check.scanner.record_end(&records[end..]) {
                end += record;
            }
            check.followed(records, begun).map_err(OpenQuote::error)?;
            let is_whole = end > 0 && piece.len() + end >= PIECE;
            if is_whole || piece.len() >= MOST {
                piece.extend_from_slice(&more[..mark + end]);
                let rest = more[mark + end..].to_vec();
                return Ok(Some((piece.into(), (bytes, check, rest))));
            }
            piece.extend_from_slice(&more);
        }
        check.end().map_err(OpenQuote::error)?;
        let mut lines = piece.split(|byte| matches!(byte, b'\n' | b'\r'));
        let is_record = |line: &[u8]| !line.is_empty() && dialect.comment != line.first().copied();
        match lines.any(is_record) {
            true => Ok(Some((piece.into(), (bytes, check, Vec::new())))),
            // Who infers takes it for a record without columns.
            false => Ok(None),
        }
    })
    .boxed()
}
