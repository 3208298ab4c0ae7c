//! Metadata that planning reads of files: columns of Arrow files, where records of CSV files begin, and texts without
//! characters in them.
//!
//! Files are read by DataFusion.

pub(crate) mod arrow_file;
pub(crate) mod csv_records;
pub(crate) mod decompressed;
pub(crate) mod empty_text;
