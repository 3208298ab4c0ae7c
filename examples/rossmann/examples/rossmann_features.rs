//! The Rossmann features in a plain DataFusion session, written as Parquet.
//!
//! ```text
//! cargo run --example rossmann_features -- DATA OUT
//! ```

use std::path::PathBuf;

use anyhow::Context;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::prelude::SessionContext;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let data = arguments
        .next()
        .context("the first argument is the directory of the tables")?;
    let out = arguments
        .next()
        .context("the second argument is a directory for the features")?;
    tokio::runtime::Runtime::new()?.block_on(write_features(data, out))
}

async fn write_features(data: PathBuf, out: PathBuf) -> anyhow::Result<()> {
    let ctx = SessionContext::new();
    volley_rossmann::register_tables(&ctx, &data).await?;
    volley_rossmann::check_joins(&ctx).await?;
    let features = volley_rossmann::features(&ctx).await?;
    for (name, frame) in [("train", features.train), ("test", features.test)] {
        let path = out.join(format!("{name}.parquet"));
        let path = path.to_string_lossy();
        frame
            .write_parquet(&path, DataFrameWriteOptions::new(), None)
            .await?;
        let rows = ctx
            .read_parquet(path.as_ref(), Default::default())
            .await?
            .count()
            .await?;
        println!("{name}: {rows} rows in {path}");
    }
    Ok(())
}
