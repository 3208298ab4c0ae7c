//! Delta tables, of this host and of a bucket: the newest snapshot's rows, and what is refused of one by its name.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use volley_tests::{Cluster, FaultPlan, FaultyProxy, RemoteStore, S3Server, Setup};

/// A bucket, whose folder executors and clients see as well.
struct World {
    // Before the server: dropped first. It counts requests, and none fails.
    proxy: FaultyProxy,
    server: S3Server,
    cluster: Cluster,
}

impl World {
    fn start() -> Self {
        let server = S3Server::start();
        let proxy = FaultyProxy::to(&server.address(), FaultPlan::even(0, 0.0));
        let cluster = Cluster::start_with(Setup {
            executors: 2,
            remote_store: Some(RemoteStore {
                url: format!("s3://{}/models", S3Server::BUCKET),
                dir: server.bucket_dir().join("models"),
                environment: S3Server::environment(&proxy.endpoint()),
            }),
            ..Setup::default()
        });
        Self {
            proxy,
            server,
            cluster,
        }
    }

    fn table<'w>(&'w self, name: &str) -> Table<'w> {
        Table {
            world: self,
            name: name.to_owned(),
            version: 0,
        }
    }

    /// Returns the places of a table: its local folder, and the one in the bucket.
    fn places(&self, table: &str) -> [String; 2] {
        let here = self.server.bucket_dir().join(table);
        let there = format!("s3://{}/{table}", S3Server::BUCKET);
        [here.display().to_string(), there]
    }

    /// Checks what a query of a table gives, `{t}` in its text, by both of its places.
    fn gives(&self, table: &str, sql: &str, expected: &Value) {
        for place in self.places(table) {
            let sql = sql.replace("{t}", &place);
            assert_eq!(json!(self.cluster.query(&sql)), *expected, "{sql}");
        }
    }

    /// Checks what is said to a query of a table, by both of its places.
    fn refuses(&self, table: &str, sql: &str, words: &[&str]) {
        for place in self.places(table) {
            let sql = sql.replace("{t}", &place);
            let said = self.cluster.fail(&sql);
            for word in words {
                assert!(said.contains(word), "{sql}: {word} in {said}");
            }
        }
    }
}

/// A Delta table that is written by hand: Delta's protocol, version 1.
struct Table<'w> {
    world: &'w World,
    name: String,
    version: u64,
}

impl Table<'_> {
    fn folder(&self) -> PathBuf {
        self.world.server.bucket_dir().join(&self.name)
    }

    /// Writes the columns, and the partition columns.
    fn columns(&mut self, columns: &[(&str, &str)], partition: &[&str], configuration: &Value) {
        let field = |(name, data_type): &(&str, &str)| json!({"name": name, "type": data_type, "nullable": true, "metadata": {}});
        let fields: Vec<_> = columns.iter().map(field).collect();
        let schema = json!({"type": "struct", "fields": fields}).to_string();
        let format = json!({"provider": "parquet", "options": {}});
        self.commit(&[
            json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
            json!({"metaData": {
                "id": self.name, "format": format, "schemaString": schema,
                "partitionColumns": partition, "configuration": configuration, "createdTime": 0
            }}),
        ]);
    }

    /// Writes the rows of a query into a file, and returns that it was added.
    fn add(&self, path: &str, query: &str, partition: &Value) -> Value {
        let file = self.folder().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let file_name = file.display();
        let cluster = &self.world.cluster;
        cluster.query(&format!(
            "COPY ({query}) TO '{file_name}' STORED AS PARQUET"
        ));
        let size = fs::metadata(&file).unwrap().len();
        let path = path.replace('%', "%25");
        json!({"add": {
            "path": path, "partitionValues": partition, "size": size, "modificationTime": 0,
            "dataChange": true
        }})
    }

    fn commit(&mut self, actions: &[Value]) {
        let log = self.folder().join("_delta_log");
        fs::create_dir_all(&log).unwrap();
        let lines: String = actions.iter().map(|action| format!("{action}\n")).collect();
        fs::write(log.join(format!("{:020}.json", self.version)), lines).unwrap();
        self.version += 1;
    }
}

fn removed(path: &str) -> Value {
    json!({"remove": {"path": path, "deletionTimestamp": 0, "dataChange": true}})
}

#[test]
fn the_newest_snapshot_says_which_files_are_rows() {
    let world = World::start();
    let mut table = world.table("plain");
    table.columns(&[("k", "long"), ("v", "string")], &[], &json!({}));
    const ALL: &str = "SELECT k, v FROM '{t}' ORDER BY k";
    world.gives(
        "plain",
        "SELECT count(*) AS n FROM '{t}'",
        &json!([{"n": 0}]),
    );
    let a = "SELECT column1 AS k, column2 AS v FROM (VALUES (1, 'x'), (2, 'y'))";
    let a = table.add("a.parquet", a, &json!({}));
    let b = table.add("b.parquet", "SELECT 3 AS k, 'z' AS v", &json!({}));
    table.commit(&[a, b]);
    let rows = json!([{"k": 1, "v": "x"}, {"k": 2, "v": "y"}, {"k": 3, "v": "z"}]);
    world.gives("plain", ALL, &rows);
    for place in world.places("plain") {
        let script = format!(
            "CREATE EXTERNAL TABLE t STORED AS DELTA LOCATION '{place}'; SELECT sum(k) AS s FROM t"
        );
        assert_eq!(world.cluster.query(&script).last(), Some(&json!({"s": 6})));
    }
    // The file stays where it is, and its rows are gone. Another column comes.
    let more = "SELECT 4 AS k, 'w' AS v, 2.5 AS x";
    let c = table.add("x=1/c.parquet", more, &json!({}));
    table.columns(
        &[("k", "long"), ("v", "string"), ("x", "double")],
        &[],
        &json!({}),
    );
    table.commit(&[removed("a.parquet"), c]);
    let rows = json!([
        {"k": 3, "v": "z", "x": null},
        {"k": 4, "v": "w", "x": 2.5}
    ]);
    world.gives("plain", "SELECT * FROM '{t}' ORDER BY k", &rows);
    table.commit(&[removed("b.parquet"), removed("x=1/c.parquet")]);
    world.gives("plain", ALL, &json!([]));
    for (sql, words) in [
        (
            "SELECT * FROM '{t}/*.parquet'",
            &["Delta table", "name that folder"][..],
        ),
        (
            "SELECT * FROM '{t}/../'",
            &["Delta table", "name that folder"],
        ),
        (
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{t}/'",
            &["Delta table", "STORED AS DELTA"],
        ),
        (
            "CREATE EXTERNAL TABLE t (k INT) STORED AS DELTA LOCATION '{t}'",
            &["STORED AS DELTA with columns"],
        ),
        (
            "CREATE EXTERNAL TABLE t STORED AS DELTA LOCATION '{t}-nothing/'",
            &["it has no folder _delta_log"],
        ),
    ] {
        if sql.contains("..") {
            let here = &world.places("plain")[0];
            let said = world.cluster.fail(&sql.replace("{t}", here));
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
            continue;
        }
        world.refuses("plain", sql, words);
    }
}

/// Another snapshot may be committed between two looks.
#[test]
fn a_query_that_names_a_table_twice_reads_its_log_no_more_often() {
    let world = World::start();
    let mut table = world.table("twice");
    table.columns(&[("k", "long")], &[], &json!({}));
    let a = table.add("a.parquet", "SELECT 1 AS k", &json!({}));
    table.commit(&[a]);
    let place = &world.places("twice")[1];
    let reads = |sql: &str| {
        let read = || world.proxy.requests_of("GET", "twice/_delta_log/");
        let before = read();
        let rows = world.cluster.query(&sql.replace("{t}", place));
        assert_eq!(json!(rows), json!([{"n": 1}]), "{sql}");
        read() - before
    };
    let once = reads("SELECT count(*) AS n FROM '{t}'");
    assert!(once > 0);
    let joined = "SELECT count(*) AS n FROM '{t}' a JOIN '{t}' b ON a.k = b.k WHERE a.k IN (SELECT k FROM '{t}')";
    assert_eq!(reads(joined), once);
}

#[test]
fn folders_have_the_values_of_a_partitioned_table() {
    let world = World::start();
    let mut table = world.table("parts");
    let columns = [("y", "string"), ("k", "long"), ("d", "date")];
    table.columns(&columns, &["y", "d"], &json!({}));
    let adds = [
        ("y=007/d=2024-02-29/a.parquet", 1, "007", "2024-02-29"),
        ("y=007/d=2024-03-01/a.parquet", 2, "007", "2024-03-01"),
        ("y=a%20b/d=2024-03-01/a.parquet", 3, "a b", "2024-03-01"),
    ];
    let adds = adds.map(|(path, k, y, d)| {
        let rows = format!("SELECT CAST({k} AS BIGINT) AS k");
        table.add(path, &rows, &json!({"y": y, "d": d}))
    });
    table.commit(&adds);
    world.gives(
        "parts",
        "SELECT k, y FROM '{t}' WHERE d >= DATE '2024-03-01' ORDER BY k",
        &json!([{"k": 2, "y": "007"}, {"k": 3, "y": "a b"}]),
    );
    for place in world.places("parts") {
        let sql = format!("SELECT * FROM '{place}' ORDER BY k");
        let run = world.cluster.run(&["--format", "csv", "-c", &sql]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let first = run.stdout.lines().take(2).collect::<Vec<_>>();
        assert_eq!(first, ["y,k,d", "007,1,2024-02-29"], "in the table's order");
    }
    table.commit(&[removed("y=007/d=2024-02-29/a.parquet")]);
    world.gives("parts", "SELECT min(k) AS k FROM '{t}'", &json!([{"k": 2}]));
    let of_null = "y=__HIVE_DEFAULT_PARTITION__/d=2024-03-01/b.parquet";
    let values = json!({"y": null, "d": "2024-03-01"});
    let add = table.add(of_null, "SELECT CAST(4 AS BIGINT) AS k", &values);
    table.commit(&[add]);
    world.gives(
        "parts",
        "SELECT k, y FROM '{t}' WHERE y IS NULL",
        &json!([{"k": 4, "y": null}]),
    );
    table.commit(&[removed(of_null)]);
    for (path, y, word) in [
        ("y=/d=2024-03-01/b.parquet", json!(""), "y=/d"),
        ("between/y=u/d=2024-03-01/b.parquet", json!("u"), "between/"),
        ("b.parquet", json!("v"), "y = v"),
        ("y=v/d=2024-03-01/b.parquet", json!("w"), "y = w"),
    ] {
        let add = table.add(path, "SELECT 4 AS k", &json!({"y": y, "d": "2024-03-01"}));
        table.commit(&[add]);
        world.refuses("parts", "SELECT * FROM '{t}'", &[word, "partition"]);
        table.commit(&[removed(path)]);
    }
    world.gives("parts", "SELECT min(k) AS k FROM '{t}'", &json!([{"k": 2}]));
    for inside in ["'{t}/y=007/'", "'{t}/y=007/*/*.parquet'"] {
        let sql = format!("SELECT * FROM {inside}");
        world.refuses("parts", &sql, &["Delta table", "name that folder"]);
    }
    let csv = world.server.bucket_dir().join("x.csv");
    fs::write(csv, "a\n1\n").unwrap();
    world.gives("*.csv", "SELECT a FROM '{t}'", &json!([{"a": 1}]));
    let lost = table.folder().join("y=007/d=2024-03-01/a.parquet");
    fs::remove_file(&lost).unwrap();
    world.refuses(
        "parts",
        "SELECT * FROM '{t}'",
        &["y=007/d=2024-03-01/a.parquet", "not there"],
    );
}

#[test]
fn what_files_alone_do_not_say_is_refused_by_name() {
    let world = World::start();
    let mut mapped = world.table("mapped");
    let mapping =
        json!({"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"});
    let field = json!({"name": "k", "type": "long", "nullable": true, "metadata": {
        "delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"
    }});
    let schema = json!({"type": "struct", "fields": [field]}).to_string();
    mapped.commit(&[
        json!({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}),
        json!({"metaData": {
            "id": "m", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
            "partitionColumns": [], "configuration": mapping, "createdTime": 0
        }}),
    ]);
    world.refuses("mapped", "SELECT * FROM '{t}'", &["column mapping"]);

    let mut deleted = world.table("deleted");
    deleted.columns(
        &[("k", "long")],
        &[],
        &json!({"delta.enableDeletionVectors": "true"}),
    );
    deleted.commit(&[json!({"protocol": {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]
    }})]);
    let mut add = deleted.add("a.parquet", "SELECT CAST(1 AS BIGINT) AS k", &json!({}));
    deleted.commit(&[add.clone()]);
    world.gives("deleted", "SELECT k FROM '{t}'", &json!([{"k": 1}]));
    add["add"]["deletionVector"] = json!({
        "storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4,
        "sizeInBytes": 40, "cardinality": 1
    });
    deleted.commit(&[removed("a.parquet"), add]);
    world.refuses(
        "deleted",
        "SELECT k FROM '{t}'",
        &["a.parquet", "deletion vector"],
    );

    let mut later = world.table("later");
    later.columns(&[("k", "long")], &[], &json!({}));
    later.commit(&[json!({"protocol": {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["aFeatureToCome"], "writerFeatures": ["aFeatureToCome"]
    }})]);
    world.refuses("later", "SELECT k FROM '{t}'", &["aFeatureToCome"]);

    let broken = world.table("broken");
    let log = broken.folder().join("_delta_log");
    fs::create_dir_all(&log).unwrap();
    fs::write(log.join(format!("{:020}.json", 0)), "no json").unwrap();
    world.refuses("broken", "SELECT k FROM '{t}'", &["cannot read", "broken"]);
}
