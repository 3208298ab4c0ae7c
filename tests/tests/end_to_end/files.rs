//! Files as tables, tables without files, and what is said of files that cannot be read.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::ipc::writer::{FileWriter, StreamWriter};
use datafusion::parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use volley_tests::Cluster;

/// Writes files by their names below a folder.
fn write(dir: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let file = dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

/// Returns the rows of a query of places in a folder, `{d}` in its text.
fn ask(cluster: &Cluster, dir: &Path, sql: &str) -> Vec<Value> {
    cluster.query(&sql.replace("{d}", dir.to_str().unwrap()))
}

/// Returns the error of a query of places in a folder.
fn refused(cluster: &Cluster, dir: &Path, sql: &str) -> String {
    cluster.fail(&sql.replace("{d}", dir.to_str().unwrap()))
}

/// Writes the rows (1, a) and (2, b).
fn write_arrow(file: &Path) {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let rows = RecordBatch::try_from_iter([("k", keys), ("v", values)]).unwrap();
    let file = File::create(file).unwrap();
    let mut writer = FileWriter::try_new(file, &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
}

#[test]
fn patterns_folders_and_their_names_are_tables() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    write(
        &dir,
        &[
            ("p1.csv", "k,v\n1,a\n2,b\n"),
            ("p2.csv", "k,v\n3,c\n"),
            ("p3.csv", "k,v\n4,d\n5,e\n6,f\n"),
            ("notes.txt", "no table"),
            ("y=2023/m=01/a.csv", "n\n1\n2\n"),
            ("y=2024/m=01/a.csv", "n\n3\n"),
            ("y=2024/m=02/a.csv", "n\n4\n"),
        ],
    );
    let count = |from: &str| {
        let sql = format!("SELECT count(*) AS n, sum(k) AS s FROM {from}");
        let row = ask(&cluster, &dir, &sql).remove(0);
        (row["n"].as_u64().unwrap(), row["s"].as_u64().unwrap())
    };
    assert_eq!(count("'{d}/p1.csv'"), (2, 3));
    assert_eq!(count("'{d}/p[12].csv'"), (3, 6));
    assert_eq!(count("'{d}/*.csv'"), (6, 21));
    assert_eq!(count("'file://{d}/p*.csv'"), (6, 21));
    assert_eq!(
        count("'{d}/p[12].csv' a JOIN '{d}/*.csv' b USING (k)"),
        (3, 6)
    );

    let years = "SELECT y, m, sum(n) AS s, arrow_typeof(y) AS t FROM '{d}/y=*/*/*.csv' \
                 WHERE y >= 2023 GROUP BY y, m ORDER BY y, m";
    let years = ask(&cluster, &dir, years);
    assert_eq!(
        years,
        [
            json!({"y": 2023, "m": "01", "s": 3, "t": "Int64"}),
            json!({"y": 2024, "m": "01", "s": 3, "t": "Int64"}),
            json!({"y": 2024, "m": "02", "s": 4, "t": "Int64"}),
        ]
    );
    let some =
        "SELECT sum(n) AS s, count(DISTINCT y) AS ys FROM '{d}/y=202[34]/m=01/*.csv' LIMIT 5";
    assert_eq!(ask(&cluster, &dir, some), [json!({"s": 6, "ys": 2})]);

    // A view finds the files that are there when it is read.
    let view = "CREATE VIEW v AS SELECT * FROM '{d}/p*.csv'; ";
    let n = format!("{view} SELECT count(*) AS n FROM v");
    assert_eq!(ask(&cluster, &dir, &n)[0]["n"], 6);
    write(&dir, &[("p4.csv", "k,v\n7,g\n")]);
    assert_eq!(ask(&cluster, &dir, &n)[0]["n"], 7);
}

#[test]
fn a_table_s_location_may_be_a_pattern() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir(&dir).unwrap();
    for file in ["p1", "p2", "p3"] {
        let copy = "COPY (SELECT value AS k FROM range(300)) TO '{d}/";
        ask(&cluster, &dir, &format!("{copy}{file}.parquet'"));
    }
    write(&dir, &[("p1.csv", "not,parquet\n")]);
    for (pattern, rows) in [("p[12]*.parquet", 600), ("*.parquet", 900)] {
        let table = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{{d}}/{pattern}'; \
             SELECT count(*) AS n, count(DISTINCT k) AS k FROM t"
        );
        let expected = json!({"n": rows, "k": 300});
        assert_eq!(ask(&cluster, &dir, &table), [expected], "{pattern}");
    }
}

#[test]
fn every_kind_of_file_is_read_by_its_name() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    write(
        &dir,
        &[
            ("t.csv", "k,v\n1,a\n2,b\n"),
            ("t.tsv", "k\tv\n1\ta\n2\tb\n"),
            ("t.jsonl", "{\"k\":1,\"v\":\"a\"}\n{\"k\":2,\"v\":\"b\"}\n"),
        ],
    );
    let copy = |to: &str, options: &str| {
        let sql = format!("COPY (SELECT * FROM '{{d}}/t.csv') TO '{{d}}/{to}' {options}");
        ask(&cluster, &dir, &sql);
    };
    copy("t.parquet", "");
    write_arrow(&dir.join("t.arrow"));
    for format in ["csv", "json"] {
        for (extension, name) in [("gz", "gzip"), ("zst", "zstd")] {
            copy(
                &format!("c.{format}.{extension}"),
                &format!("STORED AS {format} OPTIONS ('format.compression' '{name}')"),
            );
        }
    }
    for file in ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.arrow"] {
        let sql = format!("SELECT k, v FROM '{{d}}/{file}' ORDER BY k DESC");
        let expected = [json!({"k": 2, "v": "b"}), json!({"k": 1, "v": "a"})];
        assert_eq!(ask(&cluster, &dir, &sql), expected, "{file}");
    }
}

#[test]
fn compressed_files_are_read_by_their_names() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    write(
        &dir,
        &[
            ("a.csv", "k,v\n1,a\n2,b\n"),
            ("b.csv", "k,v\n3,c\n"),
            ("t.jsonl", "{\"k\":1,\"v\":\"a\"}\n{\"k\":2,\"v\":\"b\"}\n"),
        ],
    );
    let packed = Command::new("gzip")
        .args(["a.csv", "b.csv", "t.jsonl"])
        .current_dir(&dir)
        .status();
    assert!(packed.unwrap().success());
    let sum = |from: &str| {
        let sql = format!("SELECT sum(k) AS s, count(DISTINCT v) AS v FROM {from}");
        ask(&cluster, &dir, &sql).remove(0)
    };
    assert_eq!(sum("'{d}/[ab].csv.gz'"), json!({"s": 6, "v": 3}));
    assert_eq!(sum("'{d}/t.jsonl.gz'"), json!({"s": 3, "v": 2}));
    // Several files in a row are one, as `cat` makes it.
    for (codec, ending) in [
        ("gzip", "gz"),
        ("bzip2", "bz2"),
        ("xz", "xz"),
        ("zstd", "zst"),
    ] {
        let members = [(7, true), (8, false)].map(|(k, has_header)| {
            let name = format!("{codec}-{k}.csv");
            let copy = format!(
                "COPY (SELECT {k} AS k, 'a' AS v) TO '{{d}}/{name}' STORED AS CSV \
                 OPTIONS ('format.compression' '{codec}', 'format.has_header' '{has_header}')"
            );
            ask(&cluster, &dir, &copy);
            fs::read(dir.join(name)).unwrap()
        });
        fs::write(dir.join(format!("members.csv.{ending}")), members.concat()).unwrap();
        let found = sum(&format!("'{{d}}/members.csv.{ending}'"));
        assert_eq!(found, json!({"s": 15, "v": 1}), "{codec}");
    }
    let table = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{d}/[ab].csv.gz'; ";
    let sum = ask(
        &cluster,
        &dir,
        &format!("{table} SELECT sum(k) AS s FROM t"),
    );
    assert_eq!(sum, [json!({"s": 6})]);
}

#[test]
fn columns_are_those_of_all_files() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    let mut long = String::from("k,v\n");
    for k in 0..3000 {
        long.push_str(&format!("{k},{k}\n"));
    }
    write(
        &dir,
        &[
            ("types/a.csv", &long),
            ("types/b.csv", "k,v\n1,0.5\n"),
            ("json/a.jsonl", "{\"k\":1}\n"),
            ("json/b.jsonl", "{\"v\":\"x\",\"k\":2}\n"),
            ("wrong/a.csv", "k,v\n1,2\n"),
            ("wrong/b.csv", "k,v\n1,text\n"),
            ("other/a.csv", "k,v\n1,2\n"),
            ("other/b.csv", "v,k\n1,2\n"),
        ],
    );
    for table in ["'{d}/types/*.csv'", "t"] {
        let sql = format!(
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{{d}}/types/'; \
             SELECT count(*) AS n, min(v) FILTER (WHERE v > 0) AS least FROM {table}"
        );
        let expected = [json!({"n": 3001, "least": 0.5})];
        assert_eq!(ask(&cluster, &dir, &sql), expected, "{table}");
    }
    let json = "SELECT k, v FROM '{d}/json/*.jsonl' ORDER BY k";
    let json = ask(&cluster, &dir, json);
    assert_eq!((&json[0]["v"], &json[1]["v"]), (&Value::Null, &json!("x")));
    // As Spark leaves it, and a column that is in the files and in their folders' names: these are meant.
    for (p, x) in [("a", 1), ("b", 2)] {
        let copy = format!("COPY (SELECT {x} AS x, 'z' AS p) TO '{{d}}/hive/p={p}/1.parquet'");
        ask(&cluster, &dir, &copy);
    }
    write(&dir, &[("hive/_SUCCESS", "")]);
    for table in ["", " PARTITIONED BY (p)"] {
        let sql = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET{table} LOCATION '{{d}}/hive/'; \
             SELECT x, p, arrow_typeof(p) AS t FROM t WHERE p = 'b'"
        );
        let due = [json!({"x": 2, "p": "b", "t": "Utf8"})];
        assert_eq!(ask(&cluster, &dir, &sql), due, "{table}");
    }
    for folder in ["wrong", "other"] {
        for from in ["'{d}/folder/'", "'{d}/folder/*.csv'", "t"] {
            let sql = format!(
                "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{{d}}/folder/'; SELECT * FROM {from}"
            );
            let said = refused(
                &cluster,
                &dir,
                &sql.replace("/folder/", &format!("/{folder}/")),
            );
            let named = said.contains("a.csv") && said.contains("b.csv");
            assert!(named, "{folder} {from}: {said}");
        }
    }
}

#[test]
fn files_of_other_types_go_together_in_tables() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir_all(dir.join("a")).unwrap();
    for (file, key, text) in [("1", "Int8", "Utf8"), ("2", "Int16", "LargeUtf8")] {
        let copy = format!(
            "COPY (SELECT arrow_cast(value, '{key}') AS k, arrow_cast('c' || CAST(value % 7 AS VARCHAR), \
             'Dictionary({key}, Utf8)') AS c, arrow_cast('v', '{text}') AS v FROM range(100)) TO '{{d}}/"
        );
        ask(&cluster, &dir, &format!("{copy}p/{file}.parquet'"));
        ask(&cluster, &dir, &format!("{copy}a/{file}.arrow'"));
    }
    // The other of Arrow's formats, without one of the columns.
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1000, 2000]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let rows = RecordBatch::try_from_iter([("v", text), ("k", keys)]).unwrap();
    let file = File::create(dir.join("a/3.arrow")).unwrap();
    let mut writer = StreamWriter::try_new(file, &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();

    let sums = "SELECT count(*) AS n, sum(k) AS k, count(DISTINCT c) AS c, max(v) AS v, \
                arrow_typeof(max(k)) AS t, min(arrow_typeof(c)) AS d FROM";
    let parquet = json!({"n": 200, "k": 9900, "c": 7, "v": "v", "t": "Int16", "d": "Utf8View"});
    let arrow = json!({"n": 202, "k": 12900, "c": 7, "v": "y", "t": "Int64", "d": "Utf8"});
    for (kind, folder, due) in [("PARQUET", "p", &parquet), ("ARROW", "a", &arrow)] {
        let named = format!("{sums} '{{d}}/{folder}/*.{}'", kind.to_lowercase());
        assert_eq!(
            ask(&cluster, &dir, &named),
            std::slice::from_ref(due),
            "{kind}"
        );
        let table = format!(
            "CREATE EXTERNAL TABLE t STORED AS {kind} LOCATION '{{d}}/{folder}/'; {sums} t"
        );
        assert_eq!(
            ask(&cluster, &dir, &table),
            std::slice::from_ref(due),
            "{kind}"
        );
    }
    let given = "CREATE EXTERNAL TABLE t (w BIGINT, c VARCHAR, k DOUBLE) STORED AS ARROW LOCATION '{d}/a/'; \
                 SELECT c, k, w FROM t WHERE k >= 99 ORDER BY k, c";
    assert_eq!(
        ask(&cluster, &dir, given),
        [
            json!({"c": "c1", "k": 99.0, "w": null}),
            json!({"c": "c1", "k": 99.0, "w": null}),
            json!({"c": null, "k": 1000.0, "w": null}),
            json!({"c": null, "k": 2000.0, "w": null}),
        ]
    );
}

#[test]
fn rows_that_are_inserted_have_the_types_of_their_table() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    // A union's types are coerced after those of what is inserted are looked at.
    let union = |last: &str| {
        format!(
            "INSERT INTO w SELECT c FROM ((SELECT arrow_cast(value, 'Int16') AS c FROM range(1, 4)) \
             UNION (SELECT {last} AS c)) q; "
        )
    };
    let rows = "SELECT c, arrow_typeof(c) AS t FROM w ORDER BY c";
    let due = [1, 2, 3, 7].map(|c| json!({"c": c, "t": "Int16"}));
    for (number, table) in [
        "CREATE TABLE w (c SMALLINT); ",
        "CREATE EXTERNAL TABLE w (c SMALLINT) STORED AS PARQUET LOCATION '{d}/w/'; ",
        "CREATE EXTERNAL TABLE w (c SMALLINT) STORED AS ARROW LOCATION '{d}/w/'; ",
    ]
    .into_iter()
    .enumerate()
    {
        let table = table.replace("w/", &format!("w{number}/"));
        let got = ask(&cluster, &dir, &(table.clone() + &union("7") + rows));
        // The first is of how many rows were inserted.
        assert_eq!(got[1..], due, "{table}");
        let said = refused(&cluster, &dir, &(table.clone() + &union("70000")));
        assert!(
            said.contains("Can't cast value 70000 to type Int16"),
            "{table}{said}"
        );
    }
    let null = "CREATE EXTERNAL TABLE w (k INT, c INT NOT NULL) STORED AS CSV LOCATION '{d}/n/'; \
                INSERT INTO w VALUES (1, 2), (2, NULL)";
    let said = refused(&cluster, &dir, null);
    assert!(
        said.contains("column c of") && said.contains("NOT NULL"),
        "{said}"
    );
}

#[test]
fn an_error_about_a_file_names_it() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    let mut late = String::from("k,v\n");
    for k in 0..30_000 {
        late.push_str(&format!("{k},1\n"));
    }
    late.push_str("7,text\n");
    write(
        &dir,
        &[
            ("late/good.csv", "k,v\n1,2\n"),
            ("late/bad.csv", &late),
            ("wide/good.csv", "k,v\n1,2\n"),
            ("wide/bad.csv", "k,v\n1,2\n3,4,5\n"),
            ("json/bad.jsonl", "{\"k\":1}\n{\"k\":\n"),
            ("zip/bad.csv.gz", "this is not gzip"),
        ],
    );
    fs::create_dir(dir.join("cut")).unwrap();
    for file in ["good", "bad"] {
        let copy = "COPY (SELECT value AS k FROM range(30000)) TO '{d}/cut/";
        ask(&cluster, &dir, &format!("{copy}{file}.parquet'"));
    }
    let bad = dir.join("cut/bad.parquet");
    let bytes = fs::read(&bad).unwrap();
    fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap();

    let create = |format: &str, columns: &str, from: &str| {
        format!(
            "CREATE EXTERNAL TABLE t {columns} STORED AS {format} LOCATION '{{d}}/{from}' ; \
             SELECT count(v) AS n FROM t"
        )
    };
    let csv = "(k BIGINT, v BIGINT)";
    for (bad, sql) in [
        (
            "late/bad.csv",
            "SELECT sum(v) AS s FROM '{d}/late/*.csv'".to_owned(),
        ),
        ("late/bad.csv", create("CSV", csv, "late/")),
        ("wide/bad.csv", create("CSV", csv, "wide/")),
        ("wide/bad.csv", "SELECT * FROM '{d}/wide/*.csv'".to_owned()),
        (
            "json/bad.jsonl",
            "SELECT * FROM '{d}/json/bad.jsonl'".to_owned(),
        ),
        (
            "zip/bad.csv.gz",
            "SELECT * FROM '{d}/zip/bad.csv.gz'".to_owned(),
        ),
        (
            "cut/bad.parquet",
            "SELECT * FROM '{d}/cut/*.parquet'".to_owned(),
        ),
        ("cut/bad.parquet", create("PARQUET", "", "cut/")),
        ("cut/bad.parquet", create("PARQUET", csv, "cut/")),
        (
            "none/x.parquet",
            "SELECT * FROM '{d}/none/x.parquet'".to_owned(),
        ),
        ("none/*.csv", "SELECT * FROM '{d}/none/*.csv'".to_owned()),
        ("x.unknown", "SELECT * FROM '{d}/x.unknown'".to_owned()),
    ] {
        let said = refused(&cluster, &dir, &sql);
        assert!(said.contains(bad), "{sql}: {said}");
    }

    // The line, of whatever ends lines, and though a file is read in parts.
    let rows = |end: &str| format!("k,v{end}1,\"2\"{end}3,\"x{end}y\"{end}4,z{end}");
    let far: String = (0..1_000_000).map(|k| format!("{k},\"1\n\"\n")).collect();
    write(
        &dir,
        &[
            ("lines/n.csv", &rows("\n")),
            ("lines/rn.csv", &rows("\r\n")),
            ("lines/r.csv", &rows("\r")),
            ("lines/far.csv", &format!("k,v\n{far}x,1\n")),
        ],
    );
    for (file, columns, line) in [
        ("n", "(k BIGINT, v BIGINT)", "csv, line 3:"),
        ("rn", "(k BIGINT, v BIGINT)", "csv, line 3:"),
        ("r", "(k BIGINT, v BIGINT)", "csv, line 3:"),
        ("n", "(k BIGINT)", "for line 1,"),
        ("r", "(k BIGINT, v VARCHAR, w BIGINT)", "for line 1,"),
        ("far", "(k BIGINT, v VARCHAR)", "csv, line 2000002:"),
    ] {
        let sql = format!(
            "CREATE EXTERNAL TABLE t {columns} STORED AS CSV LOCATION '{{d}}/lines/{file}.csv' \
             OPTIONS ('format.has_header' 'true'); SELECT count(k) AS n, max(v) AS m FROM t"
        );
        let sql = match columns.contains("v ") {
            true => sql,
            false => sql.replace(", max(v) AS m", ""),
        };
        let said = refused(&cluster, &dir, &sql);
        assert!(said.contains(line), "{sql}: {said}");
    }
}

#[test]
fn json_values_are_kept_or_named() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    let rows = |from: usize, to: usize| {
        let rows = (from..to).map(|row| format!("{{\"id\":{row},\"code\":7}}\n"));
        rows.collect::<String>()
    };
    // Read in parts, and the value is far behind the rows whose types are looked at.
    let late = |value: &str| {
        let row = format!("{{\"id\":-1,\"code\":{value}}}\n");
        rows(0, 600_000) + &row + &rows(0, 9_999)
    };
    write(
        &dir,
        &[
            ("text.jsonl", &late("\"0012\"")),
            ("fraction.jsonl", &late("7.5")),
            ("list.jsonl", &late("[7]")),
            (
                "mixed.jsonl",
                "{\"a\":1.50}\n{\"a\":\"0012\"}\n{\"a\":true}\n{\"a\":null}\n",
            ),
            ("great.jsonl", "{\"a\":18446744073709551615}\n"),
            ("same.jsonl", "{\"a\":1}\n{\"a\":2.0}\n"),
        ],
    );
    for (name, value) in [
        ("text", "the text \"0012\""),
        ("fraction", "7.5"),
        ("list", "a list"),
    ] {
        let sql = format!("SELECT sum(code) AS s FROM '{{d}}/{name}.jsonl'");
        let said = refused(&cluster, &dir, &sql);
        let line = format!("line 600001 has {value} in column \"code\", which is Int64");
        assert!(
            said.contains(&format!("{name}.jsonl")) && said.contains(&line),
            "{said}"
        );
        let other = format!("SELECT count(id) AS n FROM '{{d}}/{name}.jsonl'");
        assert_eq!(ask(&cluster, &dir, &other), [json!({"n": 610_000})]);
    }
    let declared = "CREATE EXTERNAL TABLE t (id BIGINT, code VARCHAR) STORED AS JSON LOCATION '{d}/text.jsonl'; \
                    SELECT code, count(*) AS n FROM t GROUP BY code ORDER BY n";
    let due = [
        json!({"code": "0012", "n": 1}),
        json!({"code": "7", "n": 609_999}),
    ];
    assert_eq!(ask(&cluster, &dir, declared), due);
    let mixed = ask(&cluster, &dir, "SELECT a FROM '{d}/mixed.jsonl' ORDER BY a");
    let due = [json!("0012"), json!("1.50"), json!("true"), json!(null)];
    assert_eq!(mixed, due.map(|a| json!({"a": a})));
    let great = refused(&cluster, &dir, "SELECT a FROM '{d}/great.jsonl'");
    assert!(
        great.contains("18446744073709551615 in column \"a\""),
        "{great}"
    );
    let same = "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS JSON LOCATION '{d}/same.jsonl'; SELECT sum(a) AS s FROM t";
    assert_eq!(ask(&cluster, &dir, same), [json!({"s": 3})]);
}

#[test]
fn null_and_a_text_without_characters_are_two_values_in_csv() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir(&dir).unwrap();
    let rows =
        "(SELECT * FROM (VALUES (1, NULL, 'x'), (2, '', NULL), (3, 'a,\"b\"', '')) t (k, a, b))";
    let read = "SELECT k, a, b FROM '{d}/FROM' ORDER BY k";
    let due = [
        json!({"k": 1, "a": null, "b": "x"}),
        json!({"k": 2, "a": "", "b": null}),
        json!({"k": 3, "a": "a,\"b\"", "b": ""}),
    ];
    for (to, from, options) in [
        ("one.csv", "one.csv", ""),
        ("many/", "many/*.csv", ""),
        ("gzip.csv.gz", "gzip.csv.gz", ""),
        (
            "always.csv",
            "always.csv",
            "OPTIONS ('format.quote_style' 'Always')",
        ),
        (
            "some.csv",
            "some.csv",
            "OPTIONS ('format.quote_style' 'NonNumeric')",
        ),
    ] {
        let copy = format!("COPY {rows} TO '{{d}}/{to}' STORED AS CSV {options}");
        let copy = match to.ends_with("gz") {
            true => format!("{copy} OPTIONS ('format.compression' 'gzip')"),
            false => copy,
        };
        ask(&cluster, &dir, &copy);
        assert_eq!(
            ask(&cluster, &dir, &read.replace("FROM'", &format!("{from}'"))),
            due,
            "{to}"
        );
    }
    let one = fs::read_to_string(dir.join("one.csv")).unwrap();
    assert_eq!(one, "k,a,b\n1,,x\n2,\"\",\n3,\"a,\"\"b\"\"\",\"\"\n");
    // With a text for NULL, the empty text is still one.
    let named = "OPTIONS ('format.null_value' 'NA')";
    let copy = format!("COPY {rows} TO '{{d}}/named.csv' STORED AS CSV {named}");
    ask(&cluster, &dir, &copy);
    let named = fs::read_to_string(dir.join("named.csv")).unwrap();
    assert_eq!(named, "k,a,b\n1,NA,x\n2,\"\",NA\n3,\"a,\"\"b\"\"\",\"\"\n");
    // Folders, rows that are inserted, and files that another program wrote.
    let copy = format!("COPY {rows} TO '{{d}}/split/' STORED AS CSV PARTITIONED BY (k)");
    ask(&cluster, &dir, &copy);
    assert_eq!(
        ask(&cluster, &dir, &read.replace("FROM'", "split/k=*/*.csv'")),
        due
    );
    let table = "CREATE EXTERNAL TABLE t (k INT, a VARCHAR, b VARCHAR) STORED AS CSV LOCATION '{d}/into/' \
                 OPTIONS ('format.has_header' 'true')";
    fs::create_dir(dir.join("into")).unwrap();
    let insert = format!("{table}; INSERT INTO t {rows}");
    assert_eq!(ask(&cluster, &dir, &insert), [json!({"count": 3})]);
    let all = format!("{table}; SELECT * FROM t ORDER BY k");
    assert_eq!(ask(&cluster, &dir, &all), due);
    write(
        &dir,
        &[(
            "other.csv",
            "k,n,a\n\"1\",\"\",\"\"\n2,3,\n\"3\",\"4\",\"\"",
        )],
    );
    let other = ask(
        &cluster,
        &dir,
        "SELECT k, n, a FROM '{d}/other.csv' ORDER BY k",
    );
    let due = [
        json!({"k": 1, "n": null, "a": ""}),
        json!({"k": 2, "n": 3, "a": null}),
        json!({"k": 3, "n": 4, "a": ""}),
    ];
    assert_eq!(other, due);
    // The only column of a file.
    let said = refused(
        &cluster,
        &dir,
        "COPY (SELECT CAST(NULL AS VARCHAR) AS a) TO '{d}/null.csv'",
    );
    assert!(
        said.contains("column \"a\" is the only one of a CSV file"),
        "{said}"
    );
    ask(
        &cluster,
        &dir,
        "COPY (SELECT unnest(['', 'x']) AS a) TO '{d}/text.csv'",
    );
    let text = ask(&cluster, &dir, "SELECT a FROM '{d}/text.csv' ORDER BY a");
    assert_eq!(text, [json!({"a": ""}), json!({"a": "x"})]);
}

#[test]
fn tables_in_memory_are_queried_on_the_cluster() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    write(&dir, &[("t.csv", "k,v\n1,a\n2,b\n3,c\n")]);
    let setup = "CREATE TABLE z AS SELECT k, v FROM '{d}/t.csv' WHERE k > 1; \
                 CREATE TABLE w (k BIGINT, x DOUBLE) AS VALUES (2, 0.5), (3, NULL); \
                 CREATE TABLE e (k BIGINT, v VARCHAR); ";
    let query = |sql: &str| ask(&cluster, &dir, &format!("{setup} {sql}"));
    assert_eq!(
        query("SELECT * FROM z ORDER BY k"),
        [json!({"k": 2, "v": "b"}), json!({"k": 3, "v": "c"})]
    );
    assert_eq!(
        query(
            "SELECT z.v, w.x, t.v AS u FROM z JOIN w USING (k) JOIN '{d}/t.csv' t USING (k) ORDER BY z.v"
        ),
        [
            json!({"v": "b", "x": 0.5, "u": "b"}),
            json!({"v": "c", "x": null, "u": "c"})
        ]
    );
    assert_eq!(query("SELECT count(*) AS n FROM z a, z b, w")[0]["n"], 8);
    assert_eq!(query("SELECT count(*) AS n FROM e")[0]["n"], 0);
    assert_eq!(query("SELECT k FROM z LIMIT 1").len(), 1);
    assert_eq!(
        query("SELECT x FROM (VALUES (1), (2)) v(x) LIMIT 1").len(),
        1
    );
    assert_eq!(
        query(
            "INSERT INTO e SELECT k, v FROM z; INSERT INTO e VALUES (9, 'z'); \
             SELECT count(*) AS n, max(k) AS k FROM e"
        )
        .pop(),
        Some(json!({"n": 3, "k": 9}))
    );
    let again = "CREATE OR REPLACE TABLE z AS SELECT k + 1 AS k FROM z; SELECT sum(k) AS s FROM z";
    assert_eq!(query(again), [json!({"s": 7})]);
    let twice = refused(
        &cluster,
        &dir,
        &format!("{setup} CREATE TABLE z AS SELECT 1"),
    );
    assert!(twice.contains("table z exists already"), "{twice}");
    let large = "CREATE TABLE large AS SELECT value AS k FROM range(20000000)";
    let said = refused(&cluster, &dir, large);
    assert!(said.contains("8 MiB") && said.contains("COPY"), "{said}");
    // What is just below the limit goes to the scheduler and to both executors.
    let large = "CREATE TABLE large AS SELECT value AS k FROM range(900000); \
                 SELECT count(*) AS n, sum(k) AS s FROM large";
    assert_eq!(
        ask(&cluster, &dir, large),
        [json!({"n": 900_000, "s": 404_999_550_000_u64})]
    );
}

#[test]
fn series_are_made_on_the_cluster() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir();
    for (sql, expected) in [
        ("SELECT count(*) AS n FROM range(1000)", json!({"n": 1000})),
        (
            "SELECT count(*) AS n, sum(value) AS s FROM generate_series(1, 10, 3)",
            json!({"n": 4, "s": 22}),
        ),
        ("SELECT count(*) AS n FROM range(NULL)", json!({"n": 0})),
        (
            "SELECT count(*) AS n FROM range(0, 1000000) a JOIN range(999990, 1000010) b USING (value)",
            json!({"n": 10}),
        ),
        (
            "SELECT max(value) AS m FROM generate_series(TIMESTAMP '2024-01-01T00:00:00', \
             TIMESTAMP '2024-01-03T00:00:00', INTERVAL '1 day')",
            json!({"m": "2024-01-03T00:00:00"}),
        ),
        (
            "SELECT sum(x) AS s FROM (VALUES (1), (2), (39)) AS t(x)",
            json!({"s": 42}),
        ),
    ] {
        assert_eq!(ask(&cluster, dir, sql), [expected], "{sql}");
    }
}

#[test]
fn a_copy_adds_to_no_folder_that_has_files() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir(&dir).unwrap();
    // Hidden files are no rows.
    write(
        &dir,
        &[("out/_SUCCESS", ""), ("out/.hidden/x.csv", "k\n9\n")],
    );
    let count = |from: &str| {
        let sql = format!("SELECT count(*) AS n FROM '{{d}}/{from}'");
        ask(&cluster, &dir, &sql)[0]["n"].clone()
    };
    for (options, from) in [("", "out/"), ("PARTITIONED BY (p)", "parted/")] {
        let rows = "(SELECT value AS k, value % 2 AS p FROM range(30))";
        let copy = format!("COPY {rows} TO '{{d}}/{from}' STORED AS CSV {options}");
        ask(&cluster, &dir, &copy);
        for again in [
            copy.clone(),
            copy.replace("FROM range(30)", "FROM range(30) ORDER BY k"),
        ] {
            let said = refused(&cluster, &dir, &again);
            assert!(said.contains("already has files"), "{said}");
            assert_eq!(count(from), 30, "{again}");
        }
        ask(&cluster, &dir, &format!("EXPLAIN {copy}"));
    }
    // INSERT adds rows, and a single file is replaced.
    let table = "CREATE EXTERNAL TABLE t (k INT, p INT) STORED AS CSV LOCATION '{d}/out/' \
                 OPTIONS ('format.has_header' 'true')";
    ask(
        &cluster,
        &dir,
        &format!("{table}; INSERT INTO t VALUES (1, 2)"),
    );
    assert_eq!(count("out/"), 31);
    for _ in 0..2 {
        ask(&cluster, &dir, "COPY (SELECT 1 AS k) TO '{d}/one.csv'");
        assert_eq!(count("one.csv"), 1);
    }
}

#[test]
fn dates_and_times_are_written_as_text() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir(&dir).unwrap();
    let rows = "(SELECT DATE '2021-02-03' AS d, TIMESTAMP '2021-02-03T04:05:06.5' AS t, \
                TIME '04:05:06' AS c)";
    ask(
        &cluster,
        &dir,
        &format!("COPY {rows} TO '{{d}}/one.csv' STORED AS CSV"),
    );
    ask(
        &cluster,
        &dir,
        &format!("COPY {rows} TO '{{d}}/many/' STORED AS CSV"),
    );
    let table =
        "CREATE EXTERNAL TABLE t (d DATE, t TIMESTAMP, c TIME) STORED AS CSV LOCATION '{d}/into/'";
    fs::create_dir(dir.join("into")).unwrap();
    ask(&cluster, &dir, &format!("{table}; INSERT INTO t {rows}"));
    for from in ["one.csv", "many/*.csv", "into/*.csv"] {
        let sql = format!("SELECT d, t, c FROM '{{d}}/{from}'");
        let rows = ask(&cluster, &dir, &sql);
        let expected = json!({"d": "2021-02-03", "t": "2021-02-03T04:05:06.500", "c": "04:05:06"});
        assert_eq!(rows, [expected], "{from}");
    }
}

#[test]
fn a_quote_that_nothing_closes_is_an_error() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    let rows = |from: usize, to: usize| {
        let rows = (from..to).map(|row| format!("{row},text number {row}\n"));
        rows.collect::<String>()
    };
    // It is read in parts, and the quote is far behind the rows whose types are looked at.
    let large = format!("a,b\n{}1,\"open\n{}", rows(0, 600_000), rows(0, 9_999));
    let files = [
        ("end.csv", "a,b\n1,x\n2,\"open\n3,y\n", 3),
        ("next.csv", "a,b\n1,\"open\n2,\"y\"\n3,z\n", 2),
        ("large.csv", &large, 600_002),
    ];
    for (name, text, line) in files {
        write(&dir, &[(name, text)]);
        let said = refused(
            &cluster,
            &dir,
            &format!("SELECT count(*) AS n FROM '{{d}}/{name}'"),
        );
        let line = format!("line {line} opens a quote");
        assert!(said.contains(name) && said.contains(&line), "{said}");
    }
    let whole = [
        ("tail.csv", "a,b\n1,x\n2,\"quoted\"tail\n3,\"y\"\n"),
        ("inch.csv", "a,b\n1,5\" pipe\n2,6\" pipe\n3,7 pipe\n"),
        ("two.csv", "a,b\n1,\"two\nlines\"\n2,x\n3,\"\""),
    ];
    write(&dir, &whole);
    for (name, _) in whole {
        let sql = format!("SELECT count(*) AS n, sum(a) AS s FROM '{{d}}/{name}'");
        assert_eq!(
            ask(&cluster, &dir, &sql),
            [json!({"n": 3, "s": 6})],
            "{name}"
        );
    }
}

#[test]
fn null_and_any_text_are_names_of_folders() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    let copy = "COPY (SELECT * FROM (VALUES (1, 'a/b', 2020), (2, NULL, 2021), (3, '', NULL), (4, '50 % ü', 2021)) t \
                (k, c, y)) TO '{d}/t/' STORED AS PARQUET PARTITIONED BY (c, y)";
    ask(&cluster, &dir, copy);
    let given = "CREATE EXTERNAL TABLE t (k BIGINT, c VARCHAR, y INT) STORED AS PARQUET PARTITIONED BY (c, y) \
                 LOCATION '{d}/t/';";
    let due = [
        json!({"k": 1, "c": "a/b", "y": 2020}),
        json!({"k": 2, "c": null, "y": 2021}),
        json!({"k": 3, "c": "", "y": null}),
        json!({"k": 4, "c": "50 % ü", "y": 2021}),
    ];
    for (given, table) in [("", "'{d}/t/*/*/*.parquet'"), (given, "t")] {
        let rows = |tail: &str| {
            let sql = format!("{given} SELECT k, c, y FROM {table} {tail}");
            ask(&cluster, &dir, &sql)
        };
        assert_eq!(rows("ORDER BY k"), due, "{table}");
        assert_eq!(rows("WHERE c IS NULL"), due[1..2], "{table}");
        assert_eq!(rows("WHERE y IS NULL"), due[2..3], "{table}");
        assert_eq!(
            rows("WHERE y > 2020 ORDER BY k"),
            [due[1].clone(), due[3].clone()],
            "{table}"
        );
        assert_eq!(
            rows("WHERE c <> 'a/b' AND y IS NOT NULL"),
            due[3..],
            "{table}"
        );
        let counts = format!(
            "{given} SELECT count(c) AS c, count(y) AS y, sum(y) AS s, count(*) AS n FROM {table}"
        );
        assert_eq!(
            ask(&cluster, &dir, &counts),
            [json!({"c": 3, "y": 3, "s": 6062, "n": 4})],
            "{table}"
        );
    }
    let insert = format!(
        "{given} INSERT INTO t VALUES (5, NULL, 2022); SELECT k FROM t WHERE c IS NULL AND y = 2022"
    );
    assert_eq!(ask(&cluster, &dir, &insert).last(), Some(&json!({"k": 5})));
    let overflow = format!("{given} SELECT k FROM t WHERE y + 9223372036854775807 > 0");
    let said = refused(&cluster, &dir, &overflow).to_lowercase();
    assert!(said.contains("overflow"), "{said}");
    let ordered = "COPY (SELECT * FROM '{d}/t/*/*/*.parquet' ORDER BY k) TO '{d}/o/' STORED AS CSV PARTITIONED BY (c)";
    ask(&cluster, &dir, ordered);
    let sql = "SELECT k, c, y FROM '{d}/o/*/*.csv' WHERE k < 5 ORDER BY k";
    assert_eq!(ask(&cluster, &dir, sql), due);
    let said = refused(
        &cluster,
        &dir,
        "COPY (SELECT 1 AS k, '__HIVE_DEFAULT_PARTITION__' AS c) TO '{d}/u/' STORED AS CSV PARTITIONED BY (c)",
    );
    assert!(
        said.contains("__HIVE_DEFAULT_PARTITION__") && said.contains("NULL"),
        "{said}"
    );
}

#[test]
fn names_that_are_not_utf_8_are_named() {
    let cluster = Cluster::start(1);
    let dir = cluster.dir().join("files");
    write(&dir, &[("a.csv", "a\n1\n")]);
    let odd = OsStr::from_bytes(b"caf\xe9.csv");
    fs::copy(dir.join("a.csv"), dir.join(odd)).unwrap();
    for place in ["{d}/*.csv", "{d}/"] {
        let said = refused(&cluster, &dir, &format!("SELECT * FROM '{place}'"));
        assert!(said.contains("caf") && said.contains("UTF-8"), "{said}");
    }
    let sql = "SELECT a FROM '{d}/a*.csv'";
    assert_eq!(ask(&cluster, &dir, sql), [json!({"a": 1})]);
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let cluster = Cluster::start(1);
    let dir = cluster.dir().join("files");
    write(&dir, &[("d.csv", "id,v,v\n1,10,100\n")]);
    let numbers = |of: i64| Arc::new(Int64Array::from(vec![of])) as ArrayRef;
    let field = |name: &str| Field::new(name, DataType::Int64, false);
    let schema = Arc::new(Schema::new(vec![field("id"), field("v"), field("v")]));
    let columns = vec![numbers(1), numbers(10), numbers(100)];
    let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let file = File::create(dir.join("d.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    for name in ["d.csv", "d.parquet"] {
        for select in ["*", "sum(v) AS s", "id"] {
            let said = refused(
                &cluster,
                &dir,
                &format!("SELECT {select} FROM '{{d}}/{name}'"),
            );
            assert!(said.contains('v') && said.contains(name), "{said}");
        }
    }
}

#[test]
fn names_in_partitioned_by_may_be_quoted() {
    let cluster = Cluster::start(2);
    let dir = cluster.dir().join("files");
    fs::create_dir(&dir).unwrap();
    let copy = "COPY (SELECT value AS k, value % 3 AS \"Day\" FROM range(9)) TO '{d}/t/' STORED AS PARQUET \
                PARTITIONED BY (\"Day\")";
    ask(&cluster, &dir, copy);
    for columns in ["(\"Day\")", "(\"Day\" VARCHAR)"] {
        let declared = match columns.contains("VARCHAR") {
            true => "(k BIGINT)",
            false => "",
        };
        let table = format!(
            "CREATE EXTERNAL TABLE t {declared} STORED AS PARQUET LOCATION '{{d}}/t/' PARTITIONED BY {columns}; \
             SELECT sum(k) AS s FROM t WHERE \"Day\" = '2'"
        );
        assert_eq!(ask(&cluster, &dir, &table), [json!({"s": 15})], "{columns}");
    }
}
