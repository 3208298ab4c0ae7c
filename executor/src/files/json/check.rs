//! Types of JSON values, compared with those of their columns.
//!
//! A number goes with a column of numbers if it has that value exactly: no fraction in a column of whole numbers, and no
//! whole number that a float rounds. A text goes with it if it is such a number to the letter, so `"0012"` and `"1e3"` do
//! not. Dates and times are not compared here, nor is malformed JSON found: Arrow's reader refuses both.

use std::collections::HashMap;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::exec_datafusion_err;
use datafusion::error::DataFusionError;
use memchr::{memchr_iter, memchr2};

/// Characters of a value in an error.
const SHOWN: usize = 40;

/// Number of lines that end in these bytes.
pub(super) fn lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

/// A value that does not go with the type of its column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    /// Lines that end before it, of those that were followed.
    lines: u64,
    /// The column, and the fields of structs in it.
    path: String,
    data_type: DataType,
    value: String,
}

impl Misfit {
    /// Returns the error for the user; the caller adds the file's name.
    pub(super) fn error(self, lines_before: u64) -> DataFusionError {
        let Self {
            lines,
            path,
            data_type,
            value,
        } = self;
        let line = lines_before + lines + 1;
        exec_datafusion_err!(
            "line {line} has {value} in column {path:?}, which is {data_type}: declare the column with a type that has it, \
             such as VARCHAR, in CREATE EXTERNAL TABLE t (column type, …) STORED AS JSON LOCATION '…'"
        )
    }
}

/// Values that a column takes.
#[derive(Debug)]
enum Takes {
    /// All, as far as it is known here.
    Any,
    /// Numbers and texts of one kind, and not those of containers.
    Text,
    Boolean,
    /// Whole numbers between two.
    Whole(i128, i128),
    Float,
    Decimal,
    /// Texts, and whole numbers of units.
    Time,
    List(usize),
    Map(usize),
    Struct(Fields),
}

/// The fields of a struct, with their places.
#[derive(Debug)]
struct Fields {
    in_order: Vec<(String, usize)>,
    by_name: HashMap<String, usize>,
}

/// A column, the items of a list or a field of a struct.
#[derive(Debug)]
struct Place {
    path: String,
    data_type: DataType,
    takes: Takes,
}

/// The type of a value, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// A number, a boolean or null.
    Plain,
    Object,
    List,
}

/// A container of values that are checked.
#[derive(Debug)]
struct Frame {
    place: usize,
    /// The place of the value that comes next.
    value: Option<usize>,
    /// The field that is expected next, of a struct.
    next: usize,
    is_object: bool,
    expects_key: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    /// In a text or a key, after a backslash or not.
    Quoted {
        is_key: bool,
        escaped: bool,
    },
    /// In a number, a boolean or null.
    Plain,
}

/// Follows the bytes of a JSON file from the begin of a value on.
#[derive(Debug)]
pub(super) struct Check {
    places: Vec<Place>,
    /// As deep as the types are.
    frames: Vec<Frame>,
    /// Containers that are open within one whose values are not checked.
    skipped: usize,
    state: State,
    /// The key or the value that is being read, if it counts.
    token: Vec<u8>,
    keeps: bool,
    /// The place of the value that is being read.
    place: Option<usize>,
    lines: u64,
}

impl Check {
    pub(super) fn new(schema: &Schema) -> Self {
        let mut places = Vec::new();
        let row = DataType::Struct(schema.fields().clone());
        place(&mut places, String::new(), &row);
        Self {
            places,
            frames: vec![],
            skipped: 0,
            state: State::Between,
            token: vec![],
            keeps: false,
            place: None,
            lines: 0,
        }
    }

    /// Follows the next bytes.
    ///
    /// # Errors
    /// When a value does not go with its column.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Result<(), Misfit> {
        let followed = self.follow_bytes(bytes);
        let followed = followed.map_err(|(at, place, value)| self.misfit(bytes, at, place, value));
        self.lines += lines(bytes);
        followed
    }

    fn misfit(&self, bytes: &[u8], at: usize, place: usize, value: String) -> Misfit {
        let Place {
            path, data_type, ..
        } = &self.places[place];
        Misfit {
            lines: self.lines + lines(&bytes[..at]),
            path: path.clone(),
            data_type: data_type.clone(),
            value,
        }
    }

    fn follow_bytes(&mut self, bytes: &[u8]) -> Result<(), (usize, usize, String)> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.state {
                State::Quoted { is_key, escaped } => {
                    if escaped {
                        self.keep(&bytes[at..=at]);
                        self.state = State::Quoted {
                            is_key,
                            escaped: false,
                        };
                        at += 1;
                        continue;
                    }
                    let rest = &bytes[at..];
                    let found = memchr2(b'"', b'\\', rest);
                    let within = &rest[..found.unwrap_or(rest.len())];
                    self.keep(within);
                    at += within.len();
                    let Some(found) = found else {
                        continue;
                    };
                    match rest[found] {
                        b'"' => {
                            self.state = State::Between;
                            match is_key {
                                true => self.key(),
                                false => self
                                    .value(Kind::Text)
                                    .map_err(|(place, value)| (at, place, value))?,
                            }
                        }
                        escape => {
                            self.keep(&[escape]);
                            self.state = State::Quoted {
                                is_key,
                                escaped: true,
                            };
                        }
                    }
                    at += 1;
                }
                State::Plain => {
                    let rest = &bytes[at..];
                    let ends = |byte: &u8| byte.is_ascii_whitespace() || b",]}[{:\"".contains(byte);
                    let length = rest.iter().position(ends).unwrap_or(rest.len());
                    self.keep(&rest[..length]);
                    at += length;
                    if at < bytes.len() {
                        self.state = State::Between;
                        self.value(Kind::Plain)
                            .map_err(|(place, value)| (at, place, value))?;
                    }
                }
                State::Between => {
                    self.begins(byte)
                        .map_err(|(place, value)| (at, place, value))?;
                    // The first byte of a plain value is one of it.
                    at += usize::from(self.state != State::Plain);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.keeps {
            self.token.extend_from_slice(bytes);
        }
    }

    /// Follows a byte between values and keys.
    fn begins(&mut self, byte: u8) -> Result<(), (usize, String)> {
        match byte {
            _ if byte.is_ascii_whitespace() => {}
            b'"' => {
                let top = self.frames.last().filter(|_| self.skipped == 0);
                let is_key = top.is_some_and(|top| top.is_object && top.expects_key);
                self.begin(is_key);
                self.state = State::Quoted {
                    is_key,
                    escaped: false,
                };
            }
            b'{' | b'[' if self.skipped > 0 => self.skipped += 1,
            b'{' | b'[' => {
                let is_object = byte == b'{';
                self.place = self.expected();
                self.token.clear();
                self.value(if is_object { Kind::Object } else { Kind::List })?;
                let inside = self.place.and_then(|place| {
                    let value = match &self.places[place].takes {
                        Takes::List(items) | Takes::Map(items) => Some(*items),
                        Takes::Struct(..) => None,
                        _ => return None,
                    };
                    Some((place, value))
                });
                match inside {
                    Some((place, value)) => self.frames.push(Frame {
                        place,
                        value,
                        next: 0,
                        is_object,
                        expects_key: is_object,
                    }),
                    None => self.skipped = 1,
                }
            }
            b'}' | b']' if self.skipped > 0 => self.skipped -= 1,
            b'}' | b']' => drop(self.frames.pop()),
            b',' | b':' if self.skipped == 0 => {
                if let Some(top) = self.frames.last_mut() {
                    top.expects_key = byte == b',';
                }
            }
            b',' | b':' => {}
            _ => {
                self.begin(false);
                self.state = State::Plain;
            }
        }
        Ok(())
    }

    /// Returns the place of the value that comes next, if it is checked.
    fn expected(&self) -> Option<usize> {
        match self.frames.last() {
            _ if self.skipped > 0 => None,
            None => Some(0),
            Some(top) => top.value,
        }
    }

    /// Begins a key or a value.
    fn begin(&mut self, is_key: bool) {
        self.place = match is_key {
            true => None,
            false => self.expected(),
        };
        let is_free = |place: usize| matches!(self.places[place].takes, Takes::Any);
        self.keeps = is_key || self.place.is_some_and(|place| !is_free(place));
        self.token.clear();
    }

    /// Ends a key.
    fn key(&mut self) {
        let Some(top) = self.frames.last_mut() else {
            return;
        };
        let Takes::Struct(fields) = &self.places[top.place].takes else {
            // All values of a map have one place.
            return;
        };
        let unescaped = match self.token.contains(&b'\\') {
            false => None,
            true => {
                let quoted = [b"\"", self.token.as_slice(), b"\""].concat();
                serde_json::from_slice::<String>(&quoted).ok()
            }
        };
        let key = match &unescaped {
            Some(key) => Some(key.as_str()),
            None => std::str::from_utf8(&self.token).ok(),
        };
        // Objects mostly have their keys in one order.
        let expected = fields.in_order.get(top.next);
        let found = match expected.is_some_and(|(name, _)| Some(name.as_str()) == key) {
            true => Some(top.next),
            false => key.and_then(|key| fields.by_name.get(key)).copied(),
        };
        top.value = found.map(|at| fields.in_order[at].1);
        top.next = found.map_or(top.next, |at| at + 1);
    }

    /// Compares a value that ends, or a container that begins, with its column.
    fn value(&mut self, kind: Kind) -> Result<(), (usize, String)> {
        let Some(place) = self.place else {
            return Ok(());
        };
        let text = self.token.as_slice();
        if goes_with(&self.places[place].takes, kind, text) || place == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(text);
        let shown: String = text.chars().take(SHOWN).collect();
        let shown = match text.chars().count() > SHOWN {
            true => format!("{shown}…"),
            false => shown,
        };
        Err((
            place,
            match kind {
                Kind::Text => format!("the text \"{shown}\""),
                Kind::Plain => shown,
                Kind::Object => "an object".to_owned(),
                Kind::List => "a list".to_owned(),
            },
        ))
    }
}

/// Adds a place with those in it, and returns its number.
fn place(places: &mut Vec<Place>, path: String, data_type: &DataType) -> usize {
    let number = places.len();
    places.push(Place {
        path: path.clone(),
        data_type: data_type.clone(),
        takes: Takes::Any,
    });
    let signed = |bits: u32| Takes::Whole(-(1 << (bits - 1)), (1 << (bits - 1)) - 1);
    let unsigned = |bits: u32| Takes::Whole(0, (1 << bits) - 1);
    places[number].takes = match data_type {
        DataType::Int8 => signed(8),
        DataType::Int16 => signed(16),
        DataType::Int32 => signed(32),
        DataType::Int64 => signed(64),
        DataType::UInt8 => unsigned(8),
        DataType::UInt16 => unsigned(16),
        DataType::UInt32 => unsigned(32),
        DataType::UInt64 => unsigned(64),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Takes::Float,
        DataType::Boolean => Takes::Boolean,
        of if of.is_decimal() => Takes::Decimal,
        of if of.is_string() => Takes::Text,
        of if of.is_temporal() => Takes::Time,
        DataType::List(items) | DataType::LargeList(items) | DataType::FixedSizeList(items, _) => {
            Takes::List(place(places, path, items.data_type()))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => {
                Takes::Map(place(places, path, fields[1].data_type()))
            }
            _ => Takes::Any,
        },
        DataType::Struct(fields) => {
            let mut inside = Vec::with_capacity(fields.len());
            for field in fields {
                let path = match path.as_str() {
                    "" => field.name().clone(),
                    path => format!("{path}.{}", field.name()),
                };
                inside.push((field.name().clone(), place(places, path, field.data_type())));
            }
            let names = inside.iter().enumerate();
            let by_name = names.map(|(at, (name, _))| (name.clone(), at)).collect();
            Takes::Struct(Fields {
                in_order: inside,
                by_name,
            })
        }
        _ => Takes::Any,
    };
    number
}

/// Checks whether a value of a kind goes with a column.
fn goes_with(takes: &Takes, kind: Kind, text: &[u8]) -> bool {
    match (takes, kind) {
        (Takes::Any, _) => true,
        (_, Kind::Plain) if text == b"null" => true,
        (Takes::List(_), kind) => kind == Kind::List,
        (Takes::Map(_) | Takes::Struct(..), kind) => kind == Kind::Object,
        (_, Kind::List | Kind::Object) => false,
        (Takes::Boolean, kind) => kind == Kind::Plain && matches!(text, b"true" | b"false"),
        (Takes::Text, _) | (Takes::Time, Kind::Text) => true,
        (Takes::Whole(least, greatest), Kind::Text) => Number::of(text).is_some_and(|number| {
            number.is_integer()
                && number
                    .whole()
                    .is_some_and(|whole| (*least..=*greatest).contains(&whole))
        }),
        (Takes::Whole(least, greatest), Kind::Plain) => Number::of(text)
            .and_then(|number| number.whole())
            .is_some_and(|whole| (*least..=*greatest).contains(&whole)),
        (Takes::Time, Kind::Plain) => {
            let whole = Number::of(text).and_then(|number| number.whole());
            whole.is_some_and(|whole| i64::try_from(whole).is_ok())
        }
        (Takes::Float, Kind::Plain) => {
            Number::of(text).is_some_and(|number| number.is_kept_by_float())
        }
        (Takes::Float, Kind::Text) => {
            let is_other = || {
                let number = std::str::from_utf8(text)
                    .ok()
                    .and_then(|text| text.parse().ok());
                number.is_some_and(|number: f64| !number.is_finite())
            };
            Number::of(text).map_or_else(is_other, |number| number.is_kept_by_float())
        }
        (Takes::Decimal, _) => Number::of(text).is_some(),
    }
}

/// The parts of a JSON number.
struct Number<'a> {
    text: &'a str,
    digits: &'a str,
    fraction: &'a str,
    exponent: Option<&'a str>,
}

impl<'a> Number<'a> {
    /// Parses a number, if it is one to the letter.
    fn of(text: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let is_digits =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (text, None),
        };
        let (digits, fraction) = match mantissa.split_once('.') {
            Some((digits, fraction)) => (digits, Some(fraction)),
            None => (mantissa, None),
        };
        let digits = digits.strip_prefix('-').unwrap_or(digits);
        let is_number = is_digits(digits)
            && (digits == "0" || !digits.starts_with('0'))
            && fraction.is_none_or(is_digits)
            && exponent.is_none_or(|exponent| {
                is_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))
            });
        is_number.then_some(Self {
            text,
            digits,
            fraction: fraction.unwrap_or(""),
            exponent,
        })
    }

    /// Checks whether it is written as a whole number is.
    fn is_integer(&self) -> bool {
        self.fraction.is_empty() && self.exponent.is_none() && !self.text.contains('.')
    }

    /// Returns its value if that is whole, and the reader has it exactly.
    fn whole(&self) -> Option<i128> {
        if self.is_integer() {
            return self.text.parse().ok();
        }
        let exponent: i64 = self.exponent.map_or(Ok(0), str::parse).ok()?;
        let zeros = |part: &str| part.len() - part.trim_end_matches('0').len();
        let mut last = zeros(self.fraction);
        if last == self.fraction.len() {
            last += zeros(self.digits);
        }
        let places = i64::try_from(self.fraction.len()).ok()? - i64::try_from(last).ok()?;
        let value: f64 = self.text.parse().ok()?;
        let is_whole = exponent >= places || self.is_zero();
        // The reader takes a float of it.
        (is_whole && value.abs() < FLOAT_EXACT).then_some(value as i128)
    }

    fn is_zero(&self) -> bool {
        let mut digits = self.digits.bytes().chain(self.fraction.bytes());
        digits.all(|digit| digit == b'0')
    }

    /// Checks whether a float has the value: it is finite, and a whole number is not rounded.
    fn is_kept_by_float(&self) -> bool {
        let Ok(value) = self.text.parse::<f64>() else {
            return false;
        };
        if !self.is_integer() || value.abs() < FLOAT_EXACT {
            return value.is_finite();
        }
        // Writers of floats write the digits that tell it from others, and zeros.
        self.text
            .parse()
            .is_ok_and(|whole: i128| value as i128 == whole)
            || value.is_finite() && format!("{value}") == self.text
    }
}

/// Whole numbers below this are floats of 64 bits.
const FLOAT_EXACT: f64 = (1_u64 << 53) as f64;
