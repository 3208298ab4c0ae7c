//! Generated tables with the shape of the competition's seven, for users who do not have those.
//!
//! Columns, quoting, nulls, dates and, at full size, row counts are the same; the sales depend on the features. The
//! same seed gives the same bytes on every platform.
//!
//! ```text
//! seed ─┬─ stores ──> store.csv, store_states.csv ──┐
//!       ├─ weather ─> weather.csv ──────────────────┼─> sales ─> train.csv, test.csv
//!       └─ trend ───> googletrend.csv ──────────────┘
//! ```

mod calendar;
mod dice;
mod sales;
mod stores;
mod trend;
mod weather;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use calendar::{Day, STATES, TEST_DAYS, TRAIN_DAYS};
use dice::Dice;
use sales::{Occasion, draw_sales, is_open};
use stores::{Store, draw_stores};
use weather::Weather;

use crate::Error;

/// Number of stores in the competition's tables.
pub const FULL_SIZE: u32 = stores::FULL_SIZE;

/// Stream of the sales' random numbers, far from those of stores, weather and trends.
const SALES_STREAM: u64 = 1 << 42;

/// Size and seed of the generated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GenerateOptions {
    /// Number of stores, at least 1. Weather and trends always have their full size.
    pub stores: u32,
    /// Seed: the same seed gives the same bytes.
    pub seed: u64,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            stores: FULL_SIZE,
            seed: 2015,
        }
    }
}

/// Summary of the files that [`generate`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateSummary {
    /// Tables, in the order in which they were written.
    pub tables: Vec<GeneratedTable>,
}

/// One table's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedTable {
    /// Name of the table.
    pub name: &'static str,
    /// Path of its file.
    pub path: PathBuf,
    /// Number of rows, without the header.
    pub rows: u64,
}

/// Writes the seven tables into `dir`, which is created if missing. Overwrites files of the same names.
///
/// # Errors
///
/// [`Error::NoStores`] when `options.stores` is 0; [`Error::Write`] with the path that could not be written.
pub fn generate(dir: &Path, options: &GenerateOptions) -> Result<GenerateSummary, Error> {
    if options.stores == 0 {
        return Err(Error::NoStores);
    }
    fs::create_dir_all(dir).map_err(|source| Error::Write {
        path: dir.to_owned(),
        source,
    })?;
    let world = World::draw(options);
    let write = |name, rows: fn(&World, &mut Out) -> io::Result<u64>| {
        let path = dir.join(format!("{name}.csv"));
        let written = File::create(&path).and_then(|file| {
            let mut out = BufWriter::new(file);
            let rows = rows(&world, &mut out)?;
            out.flush().map(|()| rows)
        });
        match written {
            Ok(rows) => Ok(GeneratedTable { name, path, rows }),
            Err(source) => Err(Error::Write { path, source }),
        }
    };
    let tables = vec![
        write("store", write_store)?,
        write("store_states", write_store_states)?,
        write("state_names", write_state_names)?,
        write("googletrend", write_googletrend)?,
        write("weather", write_weather)?,
        write("train", write_train)?,
        write("test", write_test)?,
    ];
    Ok(GenerateSummary { tables })
}

type Out = BufWriter<File>;

/// Everything that sales depend on.
struct World {
    seed: u64,
    stores: Vec<Store>,
    /// Days, by state and day.
    days: Vec<Vec<Day>>,
    /// Weather, by state and day.
    weather: Vec<Vec<Weather>>,
    /// Regions in the order of the file, with their trends by week.
    trends: Vec<(Option<&'static str>, Vec<i32>)>,
    /// Index into `trends` of each state's region; Germany's if the state has none.
    region: Vec<usize>,
}

impl World {
    fn draw(options: &GenerateOptions) -> Self {
        let seed = options.seed;
        let regions = trend::regions();
        let region = |state: &calendar::State| {
            regions
                .iter()
                .position(|region| *region == state.trend)
                .unwrap_or(0)
        };
        Self {
            seed,
            stores: draw_stores(options.stores, seed),
            days: STATES
                .iter()
                .map(|state| {
                    (0..TRAIN_DAYS + TEST_DAYS)
                        .map(|day| Day::new(state, day))
                        .collect()
                })
                .collect(),
            weather: (0..STATES.len())
                .map(|state| weather::draw_weather(state, seed))
                .collect(),
            region: STATES.iter().map(region).collect(),
            trends: regions
                .iter()
                .map(|region| (*region, trend::draw_trend(*region, seed)))
                .collect(),
        }
    }

    fn occasion(&self, state: usize, number: u32) -> Occasion<'_> {
        let index = number as usize;
        let days = &self.days[state];
        let is_holiday = |day: Option<&Day>| day.is_some_and(|day| day.holiday != '0');
        Occasion {
            number,
            day: days[index],
            weather: &self.weather[state][index],
            trend: self.trends[self.region[state]].1[trend::week_of(number)],
            beside_holiday: is_holiday(days.get(index + 1))
                || is_holiday(index.checked_sub(1).and_then(|before| days.get(before))),
        }
    }
}

/// Formats a field, empty if there is no value.
fn field<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn write_store(world: &World, out: &mut Out) -> io::Result<u64> {
    writeln!(
        out,
        r#""Store","StoreType","Assortment","CompetitionDistance","CompetitionOpenSinceMonth","CompetitionOpenSinceYear","Promo2","Promo2SinceWeek","Promo2SinceYear","PromoInterval""#
    )?;
    for store in &world.stores {
        writeln!(
            out,
            r#"{},"{}","{}",{},{},{},{},{},{},"{}""#,
            store.number,
            store.kind,
            store.assortment,
            field(store.competition_distance),
            field(store.competition_since.map(|(month, _)| month)),
            field(store.competition_since.map(|(_, year)| year)),
            u8::from(store.promo2.is_some()),
            field(store.promo2.map(|(week, ..)| week)),
            field(store.promo2.map(|(_, year, _)| year)),
            field(store.promo2.map(|(.., rounds)| rounds)),
        )?;
    }
    Ok(world.stores.len() as u64)
}

/// Writes a table that others added to the competition's; these quote fields only where necessary.
fn write_plain<'a>(
    out: &mut Out,
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>> + 'a,
) -> io::Result<u64> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(header)?;
    let mut count = 0;
    for row in rows {
        csv.write_record(row)?;
        count += 1;
    }
    csv.flush()?;
    Ok(count)
}

fn write_store_states(world: &World, out: &mut Out) -> io::Result<u64> {
    let rows = world.stores.iter().map(|store| {
        vec![
            store.number.to_string(),
            STATES[store.state].code.to_owned(),
        ]
    });
    write_plain(out, &["Store", "State"], rows)
}

fn write_state_names(_: &World, out: &mut Out) -> io::Result<u64> {
    let rows = STATES
        .iter()
        .map(|state| vec![state.name.to_owned(), state.code.to_owned()]);
    write_plain(out, &["StateName", "State"], rows)
}

fn write_googletrend(world: &World, out: &mut Out) -> io::Result<u64> {
    let rows = world.trends.iter().flat_map(|(region, weeks)| {
        let file = region.map_or("Rossmann_DE".to_owned(), |state| {
            format!("Rossmann_DE_{state}")
        });
        weeks
            .iter()
            .enumerate()
            .map(move |(week, trend)| vec![file.clone(), trend::label(week), trend.to_string()])
    });
    write_plain(out, &["file", "week", "trend"], rows)
}

fn write_weather(world: &World, out: &mut Out) -> io::Result<u64> {
    let rows = world.weather.iter().enumerate().flat_map(|(state, days)| {
        days.iter()
            .enumerate()
            .map(move |(day, weather)| weather.row(state, day as u32))
    });
    write_plain(out, &weather::HEADER, rows)
}

/// Writes `train.csv`: the newest day first, and the stores of each day by number.
fn write_train(world: &World, out: &mut Out) -> io::Result<u64> {
    writeln!(
        out,
        r#""Store","DayOfWeek","Date","Sales","Customers","Open","Promo","StateHoliday","SchoolHoliday""#
    )?;
    let mut dice = Dice::new(world.seed, SALES_STREAM);
    let mut rows = 0;
    for number in (0..TRAIN_DAYS).rev() {
        for store in world.stores.iter().filter(|store| store.has_row(number)) {
            let occasion = world.occasion(store.state, number);
            let day = occasion.day;
            let sold = is_open(store, &day).then(|| draw_sales(store, &occasion, &mut dice));
            writeln!(
                out,
                r#"{},{},{},{},{},{},{},"{}","{}""#,
                store.number,
                day.weekday(),
                day.date,
                sold.map_or(0, |sold| sold.sales),
                sold.map_or(0, |sold| sold.customers),
                u8::from(sold.is_some()),
                u8::from(day.promo),
                day.holiday,
                u8::from(day.school_holiday),
            )?;
            rows += 1;
        }
    }
    Ok(rows)
}

/// Writes `test.csv`: the newest day first. One store leaves `Open` empty on the last working days.
fn write_test(world: &World, out: &mut Out) -> io::Result<u64> {
    const SILENT_DAYS: u32 = 13;
    writeln!(
        out,
        r#""Id","Store","DayOfWeek","Date","Open","Promo","StateHoliday","SchoolHoliday""#
    )?;
    let stores: Vec<&Store> = world.stores.iter().filter(|store| store.in_test).collect();
    let silent = stores.get(stores.len() / 2).map(|store| store.number);
    let days = TRAIN_DAYS..TRAIN_DAYS + TEST_DAYS;
    let mut id = 0;
    for number in days.clone().rev() {
        for store in &stores {
            let day = world.days[store.state][number as usize];
            let is_silent = silent == Some(store.number)
                && number + SILENT_DAYS >= days.end
                && day.weekday() != 7;
            id += 1;
            writeln!(
                out,
                r#"{id},{},{},{},{},{},"{}","{}""#,
                store.number,
                day.weekday(),
                day.date,
                field((!is_silent).then(|| u8::from(is_open(store, &day)))),
                u8::from(day.promo),
                day.holiday,
                u8::from(day.school_holiday),
            )?;
        }
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [(&str, &str); 7] = [
        (
            "store",
            r#""Store","StoreType","Assortment","CompetitionDistance","CompetitionOpenSinceMonth","CompetitionOpenSinceYear","Promo2","Promo2SinceWeek","Promo2SinceYear","PromoInterval""#,
        ),
        ("store_states", "Store,State"),
        ("state_names", "StateName,State"),
        ("googletrend", "file,week,trend"),
        (
            "weather",
            "file,Date,Max_TemperatureC,Mean_TemperatureC,Min_TemperatureC,Dew_PointC,MeanDew_PointC,Min_DewpointC,Max_Humidity,Mean_Humidity,Min_Humidity,Max_Sea_Level_PressurehPa,Mean_Sea_Level_PressurehPa,Min_Sea_Level_PressurehPa,Max_VisibilityKm,Mean_VisibilityKm,Min_VisibilitykM,Max_Wind_SpeedKm_h,Mean_Wind_SpeedKm_h,Max_Gust_SpeedKm_h,Precipitationmm,CloudCover,Events,WindDirDegrees",
        ),
        (
            "train",
            r#""Store","DayOfWeek","Date","Sales","Customers","Open","Promo","StateHoliday","SchoolHoliday""#,
        ),
        (
            "test",
            r#""Id","Store","DayOfWeek","Date","Open","Promo","StateHoliday","SchoolHoliday""#,
        ),
    ];

    fn files(options: GenerateOptions) -> Vec<(GeneratedTable, String)> {
        let dir = tempfile::tempdir().unwrap();
        let summary = generate(dir.path(), &options).unwrap();
        let read = |table: GeneratedTable| {
            let text = fs::read_to_string(&table.path).unwrap();
            (table, text)
        };
        summary.tables.into_iter().map(read).collect()
    }

    fn texts(options: GenerateOptions) -> Vec<String> {
        files(options).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn headers_and_row_counts_are_the_competition_s() {
        for ((table, text), (name, header)) in files(GenerateOptions { stores: 3, seed: 1 })
            .into_iter()
            .zip(HEADERS)
        {
            assert_eq!((table.name, text.lines().next()), (name, Some(header)));
            assert_eq!(table.rows as usize, text.lines().count() - 1, "{name}");
            match name {
                "store" | "store_states" => assert_eq!(table.rows, 3),
                "state_names" => assert_eq!(table.rows, 16),
                "googletrend" => assert_eq!(table.rows, 2_072),
                "weather" => assert_eq!(table.rows, 15_840),
                _ => {}
            }
        }
    }

    #[test]
    fn the_seed_decides_every_byte() {
        let once = texts(GenerateOptions { stores: 3, seed: 1 });
        assert_eq!(once, texts(GenerateOptions { stores: 3, seed: 1 }));
        let other = texts(GenerateOptions { stores: 3, seed: 2 });
        for table in [0, 3, 4, 5] {
            assert_ne!(once[table], other[table], "table {table}");
        }
    }

    #[test]
    fn sales_are_of_the_competition_s_magnitude() {
        let files = files(GenerateOptions {
            stores: 40,
            seed: 1,
        });
        let mut sold = Vec::new();
        for line in files[5].1.lines().skip(1) {
            let fields: Vec<u32> = line
                .split(',')
                .enumerate()
                .filter(|(place, _)| (3..6).contains(place))
                .map(|(_, field)| field.parse().unwrap())
                .collect();
            let (sales, customers, open) = (fields[0], fields[1], fields[2]);
            assert!(open == 1 || (sales, customers) == (0, 0), "{line}");
            if open == 1 {
                sold.push(sales);
            }
        }
        let mean = sold.iter().map(|&sales| u64::from(sales)).sum::<u64>() / sold.len() as u64;
        assert!((5_500..8_500).contains(&mean), "mean {mean}");
        assert!(sold.iter().all(|&sales| sales < 42_000));
    }

    #[test]
    fn one_store_is_enough() {
        let files = files(GenerateOptions { stores: 1, seed: 1 });
        assert_eq!(files[5].0.rows, 941);
        assert_eq!(files[6].0.rows, 48);
        let silent = files[6]
            .1
            .lines()
            .filter(|line| line.contains(",,"))
            .count();
        assert_eq!(silent, 11);
    }

    #[test]
    fn no_stores_and_no_directory_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let none = generate(dir.path(), &GenerateOptions { stores: 0, seed: 1 });
        assert!(matches!(none, Err(Error::NoStores)));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let blocked = generate(&file.join("in"), &GenerateOptions { stores: 1, seed: 1 });
        assert!(matches!(blocked, Err(Error::Write { path, .. }) if path == file.join("in")));
    }
}
