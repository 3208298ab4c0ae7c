//! Reading files: CSV and JSON, with inferred and with given columns.

use std::fs;
use std::path::Path;

use volley::datafusion::arrow::datatypes::{DataType, Field, Schema};
use volley::datafusion::assert_batches_eq;
use volley::datafusion::prelude::*;
use volley::{Error, FileOptions, Session};

use crate::Result;

pub(crate) async fn run(session: &Session, folder: &Path) -> Result {
    // The files' names tell a compression, all files tell the columns.
    let sales = folder.join("sales.csv");
    fs::write(
        &sales,
        "store;day;sales\n07;2024-01-01;10.5\n07;2024-01-02;\n12;2024-01-01;7\n",
    )?;
    let semicolons = FileOptions::new().option("format.delimiter", ";");
    let inferred = session.read_csv(&sales, semicolons.clone()).await?;
    let by_day = vec![col("store").sort(true, true), col("day").sort(true, true)];
    let rows = inferred.sort(by_day)?.collect().await?;
    let due = [
        "+-------+------------+-------+",
        "| store | day        | sales |",
        "+-------+------------+-------+",
        "| 7     | 2024-01-01 | 10.5  |",
        "| 7     | 2024-01-02 |       |",
        "| 12    | 2024-01-01 | 7.0   |",
        "+-------+------------+-------+",
    ];
    assert_batches_eq!(due, &rows);

    // Given columns are not inferred: `07` stays text.
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let columns = Schema::new(vec![text("store"), text("day"), text("sales")]);
    let given = session
        .read_csv(&sales, semicolons.columns(columns))
        .await?;
    assert_eq!(given.filter(col("store").eq(lit("07")))?.count().await?, 2);

    // A JSON file has an object a line. The columns of a file are qualified by its name.
    let stores = folder.join("stores.json");
    fs::write(&stores, "{\"id\": 7, \"city\": \"Berlin\"}\n{\"id\": 12}\n")?;
    let stores = session.read_json(&stores, FileOptions::new()).await?;
    let cities = stores.filter(col("stores.city").is_not_null())?;
    assert_eq!(cities.count().await?, 1);

    // Errors can be matched.
    let place = "ftp://host/sales.csv";
    let refused = session.read_csv(place, FileOptions::new()).await;
    assert!(matches!(refused, Err(Error::NotSupported { .. })));
    Ok(())
}
