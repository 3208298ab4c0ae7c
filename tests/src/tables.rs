//! Tables and queries with known results.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Files of the table of facts, each of which one task reads.
const PARTS: u64 = 6;
/// Number of keys that join facts and dimensions.
const KEYS: u64 = 97;
/// Number of rows in the result.
const GROUPS: u64 = 5;

/// Facts and dimensions, whose grouped join has known rows.
///
/// Fact `i` has key `i mod 97` and value `i · 7919 mod 1000`; key `k` has two dimensions, with weights `3k + 1` and
/// `3k + 2`. A partition that is read twice or not at all changes every column.
#[derive(Debug)]
pub struct Numbers {
    dir: PathBuf,
    facts: u64,
}

/// Amount of computation per row, which decides how long a stage takes; it changes no count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Work per fact that is read.
    pub scan: u64,
    /// Work per joined row.
    pub join: u64,
}

impl Numbers {
    /// Writes the tables.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn write(dir: &Path, facts: u64) -> Self {
        let dir = dir.join("numbers");
        let folder = |name: &str| {
            let path = dir.join(name);
            fs::create_dir_all(&path).expect("a folder can be made in the test's own");
            path
        };
        let (fact_files, dim_files) = (folder("facts"), folder("dims"));
        for part in 0..PARTS {
            let mut csv = String::from("id,k,v\n");
            for id in (part..facts).step_by(PARTS as usize) {
                writeln!(csv, "{id},{},{}", id % KEYS, value(id)).expect("a string takes text");
            }
            fs::write(fact_files.join(format!("{part}.csv")), csv).expect("a file");
        }
        let mut csv = String::from("k,w\n");
        for key in 0..KEYS {
            for weight in weights(key) {
                writeln!(csv, "{key},{weight}").expect("a string takes text");
            }
        }
        fs::write(dim_files.join("0.csv"), csv).expect("a file");
        Self { dir, facts }
    }

    /// Returns the statements that declare the tables.
    pub fn tables(&self) -> String {
        let table = |name: &str, columns: &str| {
            let path = self.dir.join(name);
            format!(
                "CREATE EXTERNAL TABLE {name} ({columns}) STORED AS CSV LOCATION '{}/' OPTIONS \
                 ('format.has_header' 'true');",
                path.display()
            )
        };
        let settings = "\
            SET datafusion.execution.target_partitions = 6; \
            SET datafusion.execution.batch_size = 16; \
            SET datafusion.optimizer.hash_join_single_partition_threshold = 0; \
            SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0; \
            SET ballista.optimizer.broadcast_join_threshold_bytes = 0; \
            SET ballista.optimizer.broadcast_join_threshold_rows = 0;";
        format!(
            "{settings} {} {}",
            table("facts", "id BIGINT, k BIGINT, v BIGINT"),
            table("dims", "k BIGINT, w BIGINT"),
        )
    }

    /// Returns a query with a join, an aggregate and a sort, each behind an exchange.
    pub fn question(&self, work: Work) -> String {
        let (scan, join) = (costly("id", work.scan), costly("f.id + d.w", work.join));
        format!(
            "SELECT f.k % {GROUPS} AS g, count(*) AS n, sum(f.v * d.w) AS s, sum(f.h) AS h, \
             sum({join}) AS j FROM (SELECT id, k, v, {scan} AS h FROM facts) f \
             JOIN dims d ON f.k = d.k GROUP BY f.k % {GROUPS} ORDER BY g"
        )
    }

    /// Computes the rows of [`question`](Self::question).
    pub fn answer(&self, work: Work) -> Vec<Value> {
        let mut groups = vec![[0_u64; 4]; GROUPS as usize];
        for id in 0..self.facts {
            let key = id % KEYS;
            let [n, s, h, j] = &mut groups[(key % GROUPS) as usize];
            for weight in weights(key) {
                *n += 1;
                *s += value(id) * weight;
                *h += cost(id, work.scan);
                *j += cost(id + weight, work.join);
            }
        }
        let row =
            |(g, [n, s, h, j]): (usize, &[u64; 4])| json!({"g": g, "n": n, "s": s, "h": h, "j": j});
        groups.iter().enumerate().map(row).collect()
    }

    /// Returns a query for all facts ordered by value, which one last task merges.
    pub fn listing(&self) -> String {
        "SELECT id, v FROM facts ORDER BY v, id".to_owned()
    }

    /// Computes the rows of [`listing`](Self::listing), as CSV with a header.
    pub fn listed(&self) -> String {
        let mut rows: Vec<_> = (0..self.facts).map(|id| (value(id), id)).collect();
        rows.sort_unstable();
        let mut csv = String::from("id,v\n");
        for (value, id) in rows {
            writeln!(csv, "{id},{value}").expect("a string takes text");
        }
        csv
    }

    /// Returns the number of facts.
    pub fn facts(&self) -> u64 {
        self.facts
    }
}

fn value(id: u64) -> u64 {
    id * 7919 % 1000
}

fn weights(key: u64) -> [u64; 2] {
    [3 * key + 1, 3 * key + 2]
}

/// Returns SQL for the length of a number's digits written `times` times, with each 1 doubled.
fn costly(number: &str, times: u64) -> String {
    format!("length(replace(repeat(CAST({number} AS VARCHAR), {times}), '1', '22'))")
}

/// Computes the value of [`costly`].
fn cost(number: u64, times: u64) -> u64 {
    let digits = number.to_string();
    let ones = digits.matches('1').count();
    (digits.len() + ones) as u64 * times
}

/// Training rows with something to learn: `y = e^(k/4 + x/10)`, without noise.
#[derive(Debug)]
pub struct Samples {
    file: PathBuf,
    rows: usize,
}

impl Samples {
    /// Writes the table.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(dir: &Path, rows: usize) -> Self {
        let mut csv = String::from("id,k,x,y,split\n");
        for id in 0..rows {
            let (k, x) = (id % 7, (id * 37 % 101) as f64 / 10.0);
            let y = (k as f64 / 4.0 + x / 10.0).exp();
            let split = if id % 5 == 0 { "EVAL" } else { "TRAIN" };
            writeln!(csv, "{id},{k},{x},{y},{split}").expect("a string takes text");
        }
        // Trainings of different numbers of rows may run at the same time.
        let file = dir.join(format!("samples-{rows}.csv"));
        fs::write(&file, csv).expect("a file in the test's folder");
        Self { file, rows }
    }

    /// Returns the statement that declares the table.
    pub fn table(&self) -> String {
        format!(
            "CREATE EXTERNAL TABLE samples (id BIGINT, k BIGINT, x DOUBLE, y DOUBLE, split \
             VARCHAR) STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true');",
            self.file.display()
        )
    }

    /// Returns a statement that trains on the table, with further options after the common ones.
    pub fn create_model(&self, name: &str, options: &str) -> String {
        format!(
            "CREATE OR REPLACE MODEL {name} OPTIONS (model_type = 'dnn_regressor', \
             input_label_cols = ['y'], categorical = ['k'], continuous = ['x'], \
             data_split_method = 'custom', data_split_col = 'split', device = 'cpu', \
             keep = 'last', seed = 7, {options}) AS SELECT k, x, y, split, id FROM samples;"
        )
    }

    /// Returns the number of rows that each epoch trains on.
    pub fn train_rows(&self) -> u64 {
        (self.rows - self.rows.div_ceil(5)) as u64
    }
}
