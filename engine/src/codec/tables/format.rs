//! File formats on the wire: every option of each.
//!
//! DataFusion's own encoding has the quote styles of CSV in another order than it reads them, forgets the
//! metadata of Parquet files, and takes an empty text for none. An option that a new version adds does not
//! compile here (CSV, JSON) or fails the test below (Parquet).

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::config::{CsvOptions, JsonOptions, TableParquetOptions};
use datafusion::common::not_impl_err;
use datafusion::common::parsers::{CompressionTypeVariant, CsvQuoteStyle};
use datafusion::datasource::file_format::arrow::{ArrowFormat, ArrowFormatFactory};
use datafusion::datasource::file_format::avro::{AvroFormat, AvroFormatFactory};
use datafusion::datasource::file_format::csv::{CsvFormat, CsvFormatFactory};
use datafusion::datasource::file_format::json::{JsonFormat, JsonFormatFactory};
use datafusion::datasource::file_format::parquet::{ParquetFormat, ParquetFormatFactory};
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::error::Result;
use datafusion_proto::protobuf;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::error::External;
use crate::write::{ArrowFiles, ArrowFilesFactory};
use volley_proto::Error;

/// A format with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum EncodedFormat {
    Csv(Box<Csv>),
    Json(#[serde(with = "Json")] JsonOptions),
    Parquet(Parquet),
    Arrow,
    Avro,
}

impl EncodedFormat {
    /// Encodes the format of a table.
    ///
    /// # Errors
    /// When it is not one of DataFusion's, or has encryption keys.
    pub(super) fn of(format: &dyn FileFormat) -> Result<Self> {
        if let Some(csv) = format.downcast_ref::<CsvFormat>() {
            Ok(Self::Csv(Box::new(Csv(csv.options().clone()))))
        } else if let Some(json) = format.downcast_ref::<JsonFormat>() {
            // No reader says that it reads such ones, so none can be sent.
            if !json.options().newline_delimited {
                return not_impl_err!(
                    "JSON files that are arrays ('format.newline_delimited' 'false') on a cluster: \
                     write an object a line"
                );
            }
            Ok(Self::Json(json.options().clone()))
        } else if let Some(parquet) = format.downcast_ref::<ParquetFormat>() {
            Ok(Self::Parquet(parquet.options().try_into()?))
        } else if format.is::<ArrowFormat>() || format.is::<ArrowFiles>() {
            Ok(Self::Arrow)
        } else if format.is::<AvroFormat>() {
            Ok(Self::Avro)
        } else {
            not_impl_err!("files of the format {format:?} on a cluster")
        }
    }

    /// Encodes the format of a copy.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(crate) fn of_factory(format: &dyn FileFormatFactory) -> Result<Self> {
        if let Some(csv) = format.downcast_ref::<CsvFormatFactory>() {
            let options = csv.options.clone().unwrap_or_default();
            Ok(Self::Csv(Box::new(Csv(options))))
        } else if let Some(json) = format.downcast_ref::<JsonFormatFactory>() {
            Ok(Self::Json(json.options.clone().unwrap_or_default()))
        } else if let Some(parquet) = format.downcast_ref::<ParquetFormatFactory>() {
            let options = parquet.options.clone().unwrap_or_default();
            Ok(Self::Parquet((&options).try_into()?))
        } else if format.is::<ArrowFormatFactory>() || format.is::<ArrowFilesFactory>() {
            Ok(Self::Arrow)
        } else if format.is::<AvroFormatFactory>() {
            Ok(Self::Avro)
        } else {
            let name = format.get_ext();
            not_impl_err!("writing files of the format {name} on a cluster")
        }
    }

    pub(super) fn format(self) -> Result<Arc<dyn FileFormat>> {
        Ok(match self {
            Self::Csv(csv) => Arc::new(CsvFormat::default().with_options(with_formats(csv.0))),
            Self::Json(json) => Arc::new(JsonFormat::default().with_options(json)),
            Self::Parquet(parquet) => {
                Arc::new(ParquetFormat::default().with_options(parquet.try_into()?))
            }
            Self::Arrow => Arc::new(ArrowFiles::default()),
            Self::Avro => Arc::new(AvroFormat),
        })
    }

    pub(crate) fn factory(self) -> Result<Arc<dyn FileFormatFactory>> {
        Ok(match self {
            Self::Csv(csv) => Arc::new(CsvFormatFactory::new_with_options(with_formats(csv.0))),
            Self::Json(json) => Arc::new(JsonFormatFactory::new_with_options(json)),
            Self::Parquet(parquet) => {
                Arc::new(ParquetFormatFactory::new_with_options(parquet.try_into()?))
            }
            Self::Arrow => Arc::new(ArrowFilesFactory),
            Self::Avro => Arc::new(AvroFormatFactory::new()),
        })
    }
}

/// Sets the formats in which Arrow writes dates and times where the options give none.
///
/// DataFusion 55's encoding of a *writer* turns no format into an empty one, which writes empty cells.
fn with_formats(mut options: CsvOptions) -> CsvOptions {
    const DATE_TIME: &str = "%Y-%m-%dT%H:%M:%S%.f";
    let set = |format: &mut Option<String>, default: &str| {
        format.get_or_insert_with(|| default.to_owned());
    };
    set(&mut options.date_format, "%Y-%m-%d");
    set(&mut options.datetime_format, DATE_TIME);
    set(&mut options.timestamp_format, DATE_TIME);
    set(&mut options.time_format, "%H:%M:%S%.f");
    options
}

/// Options of CSV.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Csv(#[serde(with = "CsvFields")] CsvOptions);

#[derive(Serialize, Deserialize)]
#[serde(remote = "CsvOptions")]
struct CsvFields {
    has_header: Option<bool>,
    delimiter: u8,
    quote: u8,
    terminator: Option<u8>,
    escape: Option<u8>,
    double_quote: Option<bool>,
    #[serde(with = "text")]
    quote_style: CsvQuoteStyle,
    ignore_leading_whitespace: Option<bool>,
    ignore_trailing_whitespace: Option<bool>,
    newlines_in_values: Option<bool>,
    #[serde(with = "text")]
    compression: CompressionTypeVariant,
    compression_level: Option<u32>,
    schema_infer_max_rec: Option<usize>,
    date_format: Option<String>,
    datetime_format: Option<String>,
    timestamp_format: Option<String>,
    timestamp_tz_format: Option<String>,
    time_format: Option<String>,
    null_value: Option<String>,
    null_regex: Option<String>,
    comment: Option<u8>,
    truncated_rows: Option<bool>,
}

/// Options of JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "JsonOptions")]
struct Json {
    #[serde(with = "text")]
    compression: CompressionTypeVariant,
    compression_level: Option<u32>,
    schema_infer_max_rec: Option<usize>,
    newline_delimited: bool,
}

/// Values that are encoded as their text.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(
        value: &impl Display,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Options of Parquet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parquet {
    /// DataFusion's encoding of what follows from these on.
    options: Vec<u8>,
    metadata: HashMap<String, Option<String>>,
}

impl TryFrom<&TableParquetOptions> for Parquet {
    type Error = datafusion::error::DataFusionError;

    fn try_from(options: &TableParquetOptions) -> Result<Self> {
        let plain = TableParquetOptions::default().crypto;
        if options.crypto != plain {
            return not_impl_err!("encrypted Parquet files on a cluster");
        }
        let encoded = protobuf::ParquetFormat {
            options: Some(options.try_into()?),
        };
        Ok(Self {
            options: encoded.encode_to_vec(),
            metadata: options.key_value_metadata.clone(),
        })
    }
}

impl TryFrom<Parquet> for TableParquetOptions {
    type Error = datafusion::error::DataFusionError;

    fn try_from(parquet: Parquet) -> Result<Self> {
        let malformed = |error| Error::malformed("options of Parquet files", error);
        let format = protobuf::ParquetFormat::decode(parquet.options.as_slice());
        let options = format
            .map_err(|e| malformed(e.to_string()))
            .external()?
            .options;
        let options = options
            .ok_or_else(|| malformed("there are none".to_owned()))
            .external()?;
        Ok(Self {
            key_value_metadata: parquet.metadata,
            ..Self::try_from(&options)?
        })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::config::{ConfigField, ConfigFileType, TableOptions};

    use super::*;

    /// Values that are not the default, for options that do not take `true`, `false`, a number or a text.
    const SPECIAL: &[(&str, &str)] = &[
        ("quote_style", "NonNumeric"),
        ("compression", "ZSTD"),
        ("delimiter", ";"),
        ("quote", "'"),
        ("terminator", "|"),
        ("escape", "\\"),
        ("comment", "#"),
        ("writer_version", "2.0"),
        ("statistics_enabled", "chunk"),
        ("encoding", "plain"),
        ("coerce_int96", "us"),
        ("coerce_int96_tz", "UTC"),
        ("bloom_filter_fpp", "0.125"),
    ];

    /// Each option of a format, alone, at a value that is not its default.
    fn changed(kind: ConfigFileType) -> Vec<(String, TableOptions)> {
        let mut start = TableOptions::new();
        start.set_config_format(kind);
        let before = start.entries();
        let mut changed = Vec::new();
        for entry in &before {
            if entry.key.starts_with("format.crypto") {
                continue;
            }
            let name = entry.key.trim_start_matches("format.");
            let special = SPECIAL
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, v)| *v);
            let taken = special
                .into_iter()
                .chain(["true", "false", "7", "zstd(3)", "text"]);
            let found = taken.into_iter().find_map(|value| {
                let mut options = start.clone();
                options.set(&entry.key, value).ok()?;
                (options.entries() != before).then_some(options)
            });
            changed.push((
                entry.key.clone(),
                found.unwrap_or_else(|| panic!("no other value of {} is known here", entry.key)),
            ));
        }
        changed
    }

    fn sent(format: &EncodedFormat) -> EncodedFormat {
        serde_json::from_str(&serde_json::to_string(format).unwrap()).unwrap()
    }

    #[test]
    fn every_option_of_a_format_arrives() {
        for (key, TableOptions { csv, .. }) in changed(ConfigFileType::CSV) {
            let csv = EncodedFormat::Csv(Box::new(Csv(csv)));
            assert_eq!(sent(&csv), csv, "{key}");
        }
        for (key, TableOptions { json, .. }) in changed(ConfigFileType::JSON) {
            let json = EncodedFormat::Json(json);
            assert_eq!(sent(&json), json, "{key}");
        }
        for (key, TableOptions { parquet, .. }) in changed(ConfigFileType::PARQUET) {
            let EncodedFormat::Parquet(read) =
                sent(&EncodedFormat::Parquet((&parquet).try_into().unwrap()))
            else {
                panic!("{key}")
            };
            assert_eq!(
                TableParquetOptions::try_from(read).unwrap(),
                parquet,
                "{key}"
            );
        }
    }

    #[test]
    fn a_column_s_options_and_metadata_of_parquet_arrive() {
        let mut parquet = TableParquetOptions::default();
        parquet.set("compression::a", "snappy").unwrap();
        parquet.set("bloom_filter_enabled::b", "true").unwrap();
        parquet.set("metadata::by", "us").unwrap();
        parquet.set("metadata::empty", "").unwrap();
        let read = sent(&EncodedFormat::Parquet((&parquet).try_into().unwrap()));
        let EncodedFormat::Parquet(read) = read else {
            panic!("{read:?}")
        };
        assert_eq!(TableParquetOptions::try_from(read).unwrap(), parquet);
    }

    #[test]
    fn what_is_written_has_formats_of_dates_and_times() {
        let csv = EncodedFormat::of_factory(&CsvFormatFactory::new()).unwrap();
        let factory = csv.factory().unwrap();
        let csv = factory.downcast_ref::<CsvFormatFactory>().unwrap();
        let options = csv.options.as_ref().unwrap();
        assert_eq!(options.date_format.as_deref(), Some("%Y-%m-%d"));
        assert!(options.time_format.is_some() && options.timestamp_format.is_some());
        let given = CsvOptions {
            date_format: Some("%d.%m.%y".into()),
            ..Default::default()
        };
        assert_eq!(with_formats(given).date_format.as_deref(), Some("%d.%m.%y"));
    }
}
