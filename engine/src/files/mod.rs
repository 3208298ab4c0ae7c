//! Metadata that planning reads of files: columns of Arrow files, and where records of CSV files begin.
//!
//! Files are read by DataFusion.

pub(crate) mod arrow_file;
pub(crate) mod csv_records;
pub(crate) mod decompressed;
