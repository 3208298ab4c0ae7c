//! Format and compression of a file, by its name.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::datasource::file_format::FileFormat;
use datafusion::execution::SessionState;

use crate::{Error, Result};

/// Number of rows of a text file from which column types are inferred, unless an option sets it.
const SAMPLE: usize = 20_480;

/// The format and compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) format: Format,
    /// An extension such as `gz`.
    pub(super) compression: Option<&'static str>,
}

/// A format that is known by its extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Csv,
    Tsv,
    Json,
    Parquet,
    Avro,
    Arrow,
}

impl Format {
    const EXTENSIONS: [(&str, Self); 9] = [
        ("csv", Self::Csv),
        ("tsv", Self::Tsv),
        ("json", Self::Json),
        ("jsonl", Self::Json),
        ("ndjson", Self::Json),
        ("parquet", Self::Parquet),
        ("avro", Self::Avro),
        ("arrow", Self::Arrow),
        ("feather", Self::Arrow),
    ];

    /// Returns DataFusion's name of the format.
    fn name(self) -> &'static str {
        match self {
            Self::Csv | Self::Tsv => "csv",
            Self::Json => "json",
            Self::Parquet => "parquet",
            Self::Avro => "avro",
            Self::Arrow => "arrow",
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Json)
    }
}

/// Extensions of compressed text files, after that of their format.
const COMPRESSIONS: [&str; 4] = ["gz", "zst", "bz2", "xz"];

impl Kind {
    pub(super) const PARQUET: Self = Self {
        format: Format::Parquet,
        compression: None,
    };

    /// Returns the kind of a file with this name, if the name has a known extension.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let name = file.file_name()?.to_string_lossy().to_ascii_lowercase();
        let (stem, extension) = name.rsplit_once('.')?;
        let compression = COMPRESSIONS.into_iter().find(|known| *known == extension);
        let extension = match compression {
            Some(_) => stem.rsplit_once('.')?.1,
            None => extension,
        };
        let mut known = Format::EXTENSIONS.into_iter();
        let (_, format) = known.find(|(known, _)| *known == extension)?;
        (compression.is_none() || format.is_text()).then_some(Self {
            format,
            compression,
        })
    }

    /// Returns the kind that all files have.
    ///
    /// # Errors
    /// When a file has none, or two differ; the error names them.
    pub(super) fn of_all(files: &[PathBuf]) -> Result<Self> {
        let mut first: Option<(&PathBuf, Self)> = None;
        for file in files {
            let Some(kind) = Self::of(file) else {
                return Err(Error::FileName {
                    file: file.display().to_string(),
                });
            };
            match first {
                None => first = Some((file, kind)),
                Some((other, found)) if found != kind => {
                    return Err(Error::FilesDiffer {
                        one: other.display().to_string(),
                        other: file.display().to_string(),
                        how: format!("the first is {found}, the second {kind}"),
                    });
                }
                Some(_) => {}
            }
        }
        first.map(|(_, kind)| kind).ok_or_else(|| Error::NoFiles {
            place: String::new(),
            reason: "no file that can be read".to_owned(),
        })
    }

    /// DataFusion's format, with the session's options for it.
    pub(super) fn format(
        self,
        state: &SessionState,
    ) -> datafusion::error::Result<Arc<dyn FileFormat>> {
        let mut options = HashMap::new();
        let mut set = |key: &str, value: &str| {
            options.insert(format!("format.{key}"), value.to_owned());
        };
        if let Some(compression) = self.compression {
            set("compression", compression);
        }
        if self.format == Format::Tsv {
            set("delimiter", "\t");
        }
        if self.format.is_text() {
            set("schema_infer_max_rec", &SAMPLE.to_string());
        }
        let name = self.format.name();
        let factory = state.get_file_format_factory(name).ok_or_else(|| {
            datafusion::common::internal_datafusion_err!("the session has no format {name}")
        })?;
        factory.create(state, &options)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known = Format::EXTENSIONS.into_iter();
        let name = known.find(|(_, format)| *format == self.format);
        f.write_str(name.map_or("", |(extension, _)| extension))?;
        match self.compression {
            Some(compression) => write!(f, ".{compression}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_say_what_a_file_is() {
        let kind = |name: &str| Kind::of(Path::new(name)).map(|kind| kind.to_string());
        for (name, expected) in [
            ("a.csv", "csv"),
            ("d/A.CSV.GZ", "csv.gz"),
            ("a.b.jsonl", "json"),
            ("a.ndjson.zst", "json.zst"),
            ("y=1/part-0.parquet", "parquet"),
            ("a.feather", "arrow"),
            ("a.avro", "avro"),
            ("a.tsv", "tsv"),
        ] {
            assert_eq!(kind(name).as_deref(), Some(expected), "{name}");
        }
        for name in [
            "a",
            "csv",
            "a.txt",
            "a.gz",
            "a.parquet.gz",
            "a.csv.uncommitted",
        ] {
            assert_eq!(kind(name), None, "{name}");
        }
    }

    #[test]
    fn files_of_two_kinds_are_named() {
        let of = |names: &[&str]| {
            let files: Vec<_> = names.iter().map(PathBuf::from).collect();
            Kind::of_all(&files)
        };
        assert!(of(&["a.csv", "b.csv"]).is_ok());
        let error = of(&["a.csv", "b.csv.gz"]).unwrap_err().to_string();
        assert!(
            error.contains("a.csv") && error.contains("b.csv.gz"),
            "{error}"
        );
        let error = of(&["a.csv", "b.txt"]).unwrap_err().to_string();
        assert!(error.contains("b.txt"), "{error}");
    }
}
