//! Every example, run as its readme says.

use std::fs;
use std::path::{Path, PathBuf};

use volley_tests::Cluster;

const SHOPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/shops");

#[test]
fn the_shops_are_worked_through() {
    let files = fs::read_dir(SHOPS).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "sql"));
    files.sort();
    let data = format!("data={}", Path::new(SHOPS).join("data").display());
    let mut args = vec!["--format", "json", "-D", &data];
    for file in &files {
        args.extend(["-f", file.to_str().unwrap()]);
    }
    let cluster = Cluster::start(2);
    let rows = cluster.run(&args).rows();
    // It learns something, and more from where it stood.
    let evaluated: Vec<_> = rows
        .iter()
        .filter(|row| row.get("version").is_some() && row.get("rmspe").is_some())
        .filter_map(|row| row["rmspe"].as_f64())
        .collect();
    let [first, second] = evaluated[..] else {
        panic!("two versions are compared: {evaluated:?}")
    };
    assert!(second < first && second < 0.3, "{evaluated:?}");
}
