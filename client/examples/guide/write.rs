//! Writing a folder of Parquet files, one folder below it for each year, and reading it back.

use std::path::Path;

use volley::datafusion::dataframe::DataFrameWriteOptions;
use volley::datafusion::prelude::*;
use volley::{FileOptions, Session};

use crate::Result;

pub(crate) async fn run(session: &Session, folder: &Path) -> Result {
    let days = "SELECT 2023 + value % 2 AS year, value AS day FROM range(100)";
    let days = session.sql(days).await?;
    let written = format!("{}/days/", folder.display());
    let by_year = DataFrameWriteOptions::new().with_partition_by(vec!["year".to_owned()]);
    days.write_parquet(&written, by_year, None).await?;
    assert!(Path::new(&written).join("year=2024").is_dir());

    // Folders named `k=v` are columns of text. A filter on them leaves out the files of other folders.
    let read = session.read_parquet(&written, FileOptions::new()).await?;
    assert_eq!(read.clone().count().await?, 100);
    let last_year = read.filter(col("year").eq(lit("2024")))?;
    assert_eq!(last_year.count().await?, 50);

    // The same in SQL, which reads such folders as numbers where all of them are.
    let sql = format!("SELECT * FROM '{written}' WHERE year = 2024");
    assert_eq!(session.sql(&sql).await?.count().await?, 50);
    Ok(())
}
