//! The seven tables of a directory, with declared types for all columns, none inferred.
//!
//! They are the same as in `tables.sql`. An empty field, quoted or not, is null; but `Id`, which marks test rows,
//! cannot be null.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType::{self, Date32, Float64, Int32, Utf8View};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::prelude::{CsvReadOptions, SessionContext};

use crate::Error;

/// Columns of a table, in the order of its file.
type Columns = &'static [(&'static str, DataType)];

const TRAIN: Columns = &[
    ("Store", Int32),
    ("DayOfWeek", Int32),
    ("Date", Date32),
    ("Sales", Int32),
    ("Customers", Int32),
    ("Open", Utf8View),
    ("Promo", Utf8View),
    ("StateHoliday", Utf8View),
    ("SchoolHoliday", Utf8View),
];

const TEST: Columns = &[
    ("Id", Int32),
    ("Store", Int32),
    ("DayOfWeek", Int32),
    ("Date", Date32),
    ("Open", Utf8View),
    ("Promo", Utf8View),
    ("StateHoliday", Utf8View),
    ("SchoolHoliday", Utf8View),
];

const STORE: Columns = &[
    ("Store", Int32),
    ("StoreType", Utf8View),
    ("Assortment", Utf8View),
    ("CompetitionDistance", Int32),
    ("CompetitionOpenSinceMonth", Int32),
    ("CompetitionOpenSinceYear", Int32),
    ("Promo2", Int32),
    ("Promo2SinceWeek", Int32),
    ("Promo2SinceYear", Int32),
    ("PromoInterval", Utf8View),
];

const WEATHER: Columns = &[
    ("file", Utf8View),
    ("Date", Date32),
    ("Max_TemperatureC", Int32),
    ("Mean_TemperatureC", Int32),
    ("Min_TemperatureC", Int32),
    ("Dew_PointC", Int32),
    ("MeanDew_PointC", Int32),
    ("Min_DewpointC", Int32),
    ("Max_Humidity", Int32),
    ("Mean_Humidity", Int32),
    ("Min_Humidity", Int32),
    ("Max_Sea_Level_PressurehPa", Int32),
    ("Mean_Sea_Level_PressurehPa", Int32),
    ("Min_Sea_Level_PressurehPa", Int32),
    ("Max_VisibilityKm", Int32),
    ("Mean_VisibilityKm", Int32),
    ("Min_VisibilitykM", Int32),
    ("Max_Wind_SpeedKm_h", Int32),
    ("Mean_Wind_SpeedKm_h", Int32),
    ("Max_Gust_SpeedKm_h", Int32),
    ("Precipitationmm", Float64),
    ("CloudCover", Int32),
    ("Events", Utf8View),
    ("WindDirDegrees", Int32),
];

const TABLES: [(&str, Columns); 7] = [
    ("train", TRAIN),
    ("test", TEST),
    ("store", STORE),
    ("store_states", &[("Store", Int32), ("State", Utf8View)]),
    (
        "state_names",
        &[("StateName", Utf8View), ("State", Utf8View)],
    ),
    (
        "googletrend",
        &[("file", Utf8View), ("week", Utf8View), ("trend", Int32)],
    ),
    ("weather", WEATHER),
];

/// Registers the seven CSV files of `dir` as tables, each under its file's name.
///
/// # Errors
///
/// [`Error::MissingTable`] for a missing file; nothing else is read.
pub async fn register_tables(ctx: &SessionContext, dir: &Path) -> Result<(), Error> {
    for (table, columns) in TABLES {
        let path = dir.join(format!("{table}.csv"));
        if !path.is_file() {
            return Err(Error::MissingTable { table, path });
        }
        let fields = columns
            .iter()
            .map(|(name, kind)| Field::new(*name, kind.clone(), *name != "Id"));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = CsvReadOptions::new().has_header(true).schema(&schema);
        ctx.register_csv(table, path.to_string_lossy(), options)
            .await
            .map_err(Error::query("register a table"))?;
    }
    Ok(())
}
