//! Drawing of tables: their columns, values and files.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Fields, TimeUnit};

use super::{Column, Format, SortKey, Table, Type, Value};
use crate::dice::Dice;

/// Frequent texts, some of them awkward.
const WORDS: [&str; 11] = [
    "a",
    "b",
    "c",
    "abc",
    "Abc",
    "x,y",
    "it's",
    "%a_",
    "ünï",
    "zz top",
    "\n\"two\", lines\n",
];

/// Distribution of a column's values.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// Number of different values, equally frequent.
    Even(i64),
    /// Like `Even`, but nine of ten values are the same.
    Skewed(i64),
    /// Always the same value.
    Constant,
    /// Always NULL.
    Nothing,
}

/// Draws the tables of one case.
pub(crate) fn draw(dice: &mut Dice) -> Vec<Table> {
    let count = dice.weighted(&[(2, 1), (5, 2), (5, 3), (2, 4)]);
    // A large table covers effects that occur only over many batches.
    let large = dice.chance(4);
    (0..count)
        .map(|number| table(dice, number, large && number == 0))
        .collect()
}

fn table(dice: &mut Dice, number: usize, large: bool) -> Table {
    let format = dice.weighted(&[
        (9, Format::Csv),
        (9, Format::Parquet),
        (1, Format::Gzip),
        (1, Format::Zstd),
        (2, Format::Json),
        (2, Format::Arrow),
    ]);
    // Text in Arrow files has another type than a declared text column: DataFusion alone fails. So columns of Arrow
    // files are never declared.
    let by_folder = dice.chance(10) && !large && format != Format::Arrow;
    let in_memory = dice.chance(12) && !large && !by_folder;
    let mut columns = vec![column("id", Type::Int)];
    columns.push(column(
        "k",
        dice.pick(&[Type::Int, Type::Int, Type::Int, Type::Small]),
    ));
    for extra in 0..dice.below(5) {
        let mut of = dice.pick(&Type::PLAIN);
        if (format.has_schema() || in_memory) && !by_folder && dice.chance(15) {
            of = dice.pick(&[Type::List, Type::Struct]);
        }
        let mut column = column(&format!("c{extra}"), of);
        if dice.chance(if of == Type::Text { 50 } else { 25 }) {
            column.stored = stored(dice, of);
        }
        columns.push(column);
    }
    if by_folder {
        columns.push(column("p", dice.pick(&[Type::Int, Type::Text])));
    }
    let rows = match large {
        true => dice.between(2_000, 20_000),
        false => dice.weighted(&[(1, 0), (1, 1), (4, 5), (9, 20), (5, 60), (1, 300)]),
    };
    let rows = if rows > 5 {
        dice.between(rows / 2, rows)
    } else {
        rows
    };
    let spreads: Vec<_> = columns.iter().map(|_| spread(dice)).collect();
    let nulls: Vec<_> = columns.iter().map(|_| dice.pick(&[0, 0, 10, 40])).collect();
    let first = dice.pick(&[0, 0, 1, -5]);
    let mut rows: Vec<Vec<Value>> = (0..rows)
        .map(|row| {
            let cell = |(at, column): (usize, &Column)| match (at, by_folder) {
                (0, _) => Value::Int(first + row),
                // The folder of NULL has a name that differs between systems.
                (at, true) if at + 1 == columns.len() => {
                    value(dice, column.data_type, Spread::Even(3))
                }
                _ if dice.chance(nulls[at]) => Value::Null,
                _ => value(dice, column.data_type, spreads[at]),
            };
            columns.iter().enumerate().map(cell).collect()
        })
        .collect();
    if dice.chance(70) {
        dice.shuffle(&mut rows);
    }
    let order = match in_memory {
        true => Vec::new(),
        false => order(dice, &columns, by_folder),
    };
    let inferred = format.has_schema()
        && !in_memory
        && !by_folder
        && (columns.iter().any(|column| column.data_type.is_nested())
            || format == Format::Arrow
            || dice.chance(60));
    // Inference needs at least one file.
    let least = usize::from(inferred);
    let count = dice
        .weighted(&[(1, 0), (5, 1), (5, 2), (3, 3), (1, 4), (1, 6)])
        .max(least);
    let mut files = vec![Vec::new(); count];
    for (number, row) in rows.into_iter().enumerate() {
        if count > 0 {
            let even = number % count;
            // Some files stay empty, and some hold many rows.
            let uneven = if dice.chance(80) { count / 2 } else { even };
            files[if number % 7 < 4 { even } else { uneven }].push(row);
        }
    }
    if count > 1 && dice.chance(15) {
        files[0].clear();
    }
    let key = (!inferred && dice.chance(20)).then(|| {
        let column = dice.below(if by_folder {
            columns.len() - 1
        } else {
            columns.len()
        });
        (column, dice.pick(&["PRIMARY KEY", "UNIQUE"]))
    });
    let mut table = Table {
        name: format!("t{number}"),
        columns,
        files,
        format,
        in_memory,
        key,
        by_folder,
        order,
        inferred,
    };
    table.sort();
    table
}

fn column(name: &str, data_type: Type) -> Column {
    Column {
        name: name.to_owned(),
        data_type,
        stored: None,
    }
}

/// Draws an Arrow type in which files may store a column, with room for all values drawn for it.
fn stored(dice: &mut Dice, of: Type) -> Option<DataType> {
    use DataType::{
        Date64, Decimal32, Decimal64, Decimal256, Dictionary, Float16, Float32, Int8, Int16, Int32,
        Int64, LargeList, LargeUtf8, Struct, Timestamp, Utf8, Utf8View,
    };
    let dictionary = |keys, values| Dictionary(Box::new(keys), Box::new(values));
    let of_types: &[DataType] = match of {
        Type::Bool => &[],
        Type::Small => &[Int8, Int16],
        Type::Int => &[Int8, Int16, Int32],
        Type::Double => &[Float32, Float16],
        Type::Decimal => &[Decimal32(9, 2), Decimal64(12, 2), Decimal256(12, 2)],
        Type::Text => &[
            dictionary(Int32, Utf8),
            dictionary(Int32, Utf8),
            dictionary(Int8, LargeUtf8),
            LargeUtf8,
            Utf8View,
        ],
        Type::Date => &[Date64],
        Type::Timestamp => &[
            Timestamp(TimeUnit::Second, None),
            Timestamp(TimeUnit::Millisecond, None),
            Timestamp(TimeUnit::Microsecond, None),
            Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
        ],
        Type::List => &[
            LargeList(Arc::new(Field::new_list_field(Int64, true))),
            DataType::List(Arc::new(Field::new_list_field(Int32, true))),
        ],
        Type::Struct => &[Struct(Fields::from(vec![
            Field::new("a", Int32, true),
            Field::new("b", LargeUtf8, true),
        ]))],
    };
    (!of_types.is_empty()).then(|| dice.pick(of_types))
}

fn spread(dice: &mut Dice) -> Spread {
    dice.weighted(&[
        (6, Spread::Even(10)),
        (2, Spread::Even(3)),
        (2, Spread::Even(100)),
        (2, Spread::Skewed(20)),
        (1, Spread::Constant),
        (1, Spread::Nothing),
    ])
}

fn order(dice: &mut Dice, columns: &[Column], by_folder: bool) -> Vec<SortKey> {
    if !dice.chance(15) {
        return Vec::new();
    }
    let in_files = columns.len() - usize::from(by_folder);
    let mut keys = Vec::new();
    for _ in 0..dice.pick(&[1, 1, 2, 3]) {
        let column = dice.below(in_files);
        let of = columns[column].data_type;
        let taken = keys.iter().any(|key: &SortKey| key.column == column);
        // Some formats read empty text as NULL, and NaN has no defined place in an order.
        if !taken && !of.is_nested() && of != Type::Double && of != Type::Text {
            keys.push(SortKey {
                column,
                descending: dice.chance(40),
                nulls_first: dice.chance(50),
            });
        }
    }
    keys
}

fn value(dice: &mut Dice, of: Type, spread: Spread) -> Value {
    let number = match spread {
        Spread::Even(count) => dice.between(0, count - 1),
        Spread::Skewed(count) => match dice.chance(90) {
            true => 1,
            false => dice.between(0, count - 1),
        },
        Spread::Constant => 3,
        Spread::Nothing => return Value::Null,
    };
    match of {
        Type::Bool => Value::Bool(number % 2 == 1),
        Type::Small | Type::Int => Value::Int(number - if number % 5 == 4 { 8 } else { 0 }),
        Type::Double => Value::Double(match dice.below(25) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => f64::NEG_INFINITY,
            _ => number as f64 * 0.25 - 1.0,
        }),
        Type::Decimal => Value::Decimal(number * 125 - 300),
        Type::Text => {
            let word = WORDS[number as usize % WORDS.len()];
            Value::Text(match number / WORDS.len() as i64 {
                0 => word.to_owned(),
                round => format!("{word}{round}"),
            })
        }
        Type::Date => Value::Date((18_600 + number * 17) as i32),
        Type::Timestamp => Value::Timestamp(1_600_000_000 + number * 40_007),
        Type::List => {
            let entry = |at| ((number + at) % 4 != 3).then_some(number + at);
            Value::List((0..number % 4).map(entry).collect())
        }
        Type::Struct => {
            let a = (number % 4 != 1).then_some(number);
            let b = (number % 3 != 1).then(|| WORDS[number as usize % WORDS.len()].to_owned());
            Value::Struct(a, b)
        }
    }
}
