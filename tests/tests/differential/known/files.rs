//! Content of files and the ways to read them: formats' options, compression, patterns.

use super::{Known, PLAIN};

const NUMBERED: &[&str] = &[
    "COPY (SELECT value AS a, value + 1 AS b FROM range(0, 5)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS a, value + 1 AS b FROM range(5, 8)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
];

/// Dictionaries as pandas writes them: with few values, their keys have 8 bits.
const SMALL_KEYS: &[&str] = &[
    "COPY (SELECT value AS k, arrow_cast('c' || CAST(value % 13 AS VARCHAR), 'Dictionary(Int8, Utf8)') AS c, \
     {'x': arrow_cast('s' || CAST(value % 40 AS VARCHAR), 'Dictionary(Int8, LargeUtf8)')} AS s, \
     [arrow_cast('l' || CAST(value % 7 AS VARCHAR), 'Dictionary(UInt8, Utf8)')] AS l FROM range(0, 900)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k, arrow_cast('c' || CAST(value % 19 AS VARCHAR), 'Dictionary(Int8, Utf8)') AS c, \
     {'x': arrow_cast('s' || CAST(value % 40 AS VARCHAR), 'Dictionary(Int8, LargeUtf8)')} AS s, \
     [arrow_cast('l' || CAST(value % 7 AS VARCHAR), 'Dictionary(UInt8, Utf8)')] AS l FROM range(900, 1500)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k, arrow_cast('c' || CAST(value % 13 AS VARCHAR), 'Dictionary(Int8, Utf8)') AS c, \
     {'x': arrow_cast('s' || CAST(value % 40 AS VARCHAR), 'Dictionary(Int8, LargeUtf8)')} AS s FROM range(0, 900)) TO 'DIR/a/1.arrow' STORED AS ARROW",
];

/// Values with line breaks, quotes and commas, in a file that is split into parts of a few bytes.
const CUT_WITHIN_VALUES: Known = Known {
    settings: &[
        "datafusion.execution.target_partitions = 7",
        "datafusion.optimizer.repartition_file_min_size = 1",
        "volley.single_task_bytes = 0",
    ],
    files: &[
        "COPY (SELECT value AS k, chr(10) || '\"' || repeat('two,' || chr(10), 4) || value || chr(10) AS v FROM range(0, 500)) \
         TO 'DIR/t/1.csv' STORED AS CSV",
    ],
    tables: &[
        "CREATE EXTERNAL TABLE t (k INT, v VARCHAR) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        "CREATE EXTERNAL TABLE uncut (k INT, v VARCHAR) STORED AS CSV LOCATION 'DIR/t/' \
         OPTIONS ('format.has_header' 'true', 'format.newlines_in_values' 'true')",
    ],
    means: Some("SELECT k, v FROM uncut"),
    ..PLAIN
};

/// DataFusion alone keeps the rows of all partitions where a condition on their column is NULL.
const NULL_OF_A_PARTITION: Known = Known {
    files: &[
        "COPY (SELECT value AS v, chr(97 + value) AS p FROM range(0, 3)) TO 'DIR/t/' STORED AS PARQUET PARTITIONED BY (p)",
    ],
    tables: &[
        "CREATE EXTERNAL TABLE t (v BIGINT, p VARCHAR) STORED AS PARQUET PARTITIONED BY (p) LOCATION 'DIR/t/'",
    ],
    query: "SELECT v, p FROM t WHERE nullif(p, p) <= 'a' OR nullif(p, 'a') <= 'b'",
    means: Some("SELECT v, p FROM (SELECT v, p FROM t OFFSET 0) q WHERE p = 'b'"),
    ..PLAIN
};

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "a condition on a partition column that is NULL",
        ..NULL_OF_A_PARTITION
    },
    Known {
        name: "a condition on a partition column that is NULL, in several tasks",
        settings: &["volley.single_task_bytes = 0"],
        query: "SELECT t.v, t.p FROM t JOIN t u ON t.v = u.v WHERE nullif(t.p, t.p) <= 'a' OR nullif(t.p, 'a') <= 'b'",
        ..NULL_OF_A_PARTITION
    },
    Known {
        name: "functions of texts of two layouts",
        files: &[
            "COPY (SELECT 'one' AS a, arrow_cast('own', 'LargeUtf8') AS b, arrow_cast('x', 'BinaryView') AS c) TO 'DIR/t/1.parquet' STORED AS PARQUET",
        ],
        tables: &["CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'"],
        query: "SELECT CAST(levenshtein(a, b) AS BIGINT) AS n, c FROM t",
        means: Some("SELECT 2 AS n, arrow_cast('x', 'BinaryView') AS c"),
        ..PLAIN
    },
    Known {
        name: "functions of texts of two layouts of an Arrow file",
        files: &[
            "COPY (SELECT 'one' AS a, arrow_cast('own', 'LargeUtf8') AS b, arrow_cast('ones', 'Dictionary(Int32, LargeUtf8)') AS c, \
             arrow_cast('on', 'Utf8View') AS d) TO 'DIR/t/1.arrow' STORED AS ARROW",
        ],
        tables: &["CREATE EXTERNAL TABLE t STORED AS ARROW LOCATION 'DIR/t/'"],
        query: "SELECT CAST(levenshtein(a, b) AS BIGINT) AS ab, CAST(levenshtein('x', b) AS BIGINT) AS xb, \
                CAST(levenshtein(b, c) AS BIGINT) AS bc, CAST(levenshtein(a, c) AS BIGINT) AS ac, \
                CAST(levenshtein(d, c) AS BIGINT) AS dc, CAST(levenshtein(c, NULL) AS BIGINT) AS none FROM t",
        means: Some(
            "SELECT 2 AS ab, 3 AS xb, 3 AS bc, 1 AS ac, 2 AS dc, CAST(NULL AS BIGINT) AS none",
        ),
        ..PLAIN
    },
    Known {
        name: "line breaks within values of a file that is cut",
        query: "SELECT k, v FROM t",
        ..CUT_WITHIN_VALUES
    },
    Known {
        name: "a quote that nothing closes, in a file that is cut",
        files: &[
            "COPY (SELECT value AS k, CASE WHEN value = 250 THEN '\"open' ELSE 'x' END AS v FROM range(0, 500)) \
             TO 'DIR/t/1.csv' STORED AS CSV OPTIONS ('format.quote' '`')",
        ],
        query: "SELECT count(v) AS n FROM t",
        refused: Some("line 252 opens a quote that nothing closes"),
        ..CUT_WITHIN_VALUES
    },
    Known {
        name: "line breaks within values of a file by its name",
        query: "SELECT k, v FROM 'DIR/t/1.csv'",
        means: Some("SELECT CAST(k AS BIGINT) AS k, v FROM uncut"),
        ..CUT_WITHIN_VALUES
    },
    Known {
        name: "small keys of a dictionary in many small batches",
        settings: &[
            "datafusion.execution.target_partitions = 2",
            "datafusion.execution.batch_size = 2",
            "datafusion.optimizer.prefer_hash_join = false",
            "volley.single_task_bytes = 0",
        ],
        files: SMALL_KEYS,
        tables: &["CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'"],
        query: "SELECT a.k, a.c, row_number() OVER (PARTITION BY a.c ORDER BY a.k) AS n, a.s, a.l FROM t a JOIN t b ON a.k = b.k WHERE b.c <> 'c3'",
        ..PLAIN
    },
    Known {
        name: "small keys of dictionaries in Arrow files",
        files: SMALL_KEYS,
        tables: &["CREATE EXTERNAL TABLE t STORED AS ARROW LOCATION 'DIR/a/'"],
        query: "SELECT c, count(*) AS n, max(k) AS most, max(s['x']) AS x FROM t WHERE c > 'c2' GROUP BY c",
        ..PLAIN
    },
    Known {
        name: "a union of text and a dictionary in Arrow files that are inserted into",
        files: SMALL_KEYS,
        tables: &[
            "CREATE EXTERNAL TABLE t STORED AS ARROW LOCATION 'DIR/a/'",
            "CREATE EXTERNAL TABLE w (c VARCHAR) STORED AS ARROW LOCATION 'OUT/'",
            "INSERT INTO w SELECT c FROM ((SELECT 'a' AS c FROM t) UNION (SELECT c FROM t) ORDER BY c LIMIT 5) q",
        ],
        query: "SELECT c FROM w",
        ..PLAIN
    },
    Known {
        name: "a union of text and a dictionary that is copied to Arrow files",
        files: SMALL_KEYS,
        tables: &[
            "CREATE EXTERNAL TABLE t STORED AS ARROW LOCATION 'DIR/a/'",
            "COPY (SELECT c FROM ((SELECT 'a' AS c FROM t) UNION (SELECT c FROM t)) q) TO 'OUT/' STORED AS ARROW",
            "CREATE EXTERNAL TABLE w STORED AS ARROW LOCATION 'OUT/'",
        ],
        query: "SELECT c FROM w",
        ..PLAIN
    },
    Known {
        name: "CREATE TABLE AS of a union whose types are coerced",
        tables: &[
            "CREATE TABLE written AS (SELECT arrow_cast(value, 'Int16') AS c FROM generate_series(1, 3)) UNION (SELECT 4 AS c)",
        ],
        query: "SELECT c, arrow_typeof(c) AS t FROM written",
        ..PLAIN
    },
    Known {
        name: "a table of large lists, of a query",
        tables: &[
            "CREATE TABLE a AS SELECT arrow_cast(make_array(value, NULL), 'LargeList(Int64)') AS l, \
             {'x': arrow_cast(make_array(value), 'LargeList(Int64)')} AS s FROM range(1, 9)",
        ],
        query: "SELECT l, s, arrow_typeof(l) AS of_l, arrow_typeof(s) AS of_s FROM a",
        ..PLAIN
    },
    Known {
        name: "a table of numbers of half precision, of a query",
        tables: &[
            "CREATE TABLE a AS SELECT arrow_cast(1.25, 'Float16') AS h UNION ALL SELECT arrow_cast(0.1, 'Float16')",
        ],
        query: "SELECT h, max(h) OVER () AS most, arrow_typeof(h) AS of FROM a WHERE h > arrow_cast(0.05, 'Float16')",
        ..PLAIN
    },
    Known {
        name: "columns of folders that files keep",
        tables: &[
            "COPY (VALUES ('1', 'a'), ('2', 'b')) TO 'OUT/p/' STORED AS PARQUET PARTITIONED BY (column1) \
             OPTIONS (execution.keep_partition_by_columns true)",
            "CREATE EXTERNAL TABLE w STORED AS PARQUET LOCATION 'OUT/p/column1=1/'",
        ],
        query: "SELECT column1, column2 FROM w",
        ..PLAIN
    },
    Known {
        name: "folders of days in milliseconds",
        tables: &[
            "COPY (SELECT value AS k, arrow_cast(DATE '2020-12-04', 'Date64') AS d FROM range(1, 4)) TO 'OUT/' STORED AS PARQUET PARTITIONED BY (d)",
            "CREATE EXTERNAL TABLE w (k BIGINT, d DATE) STORED AS PARQUET LOCATION 'OUT/' PARTITIONED BY (d)",
        ],
        query: "SELECT k, d FROM w WHERE d = DATE '2020-12-04'",
        ..PLAIN
    },
    Known {
        name: "a table of rows by the names of their files",
        files: NUMBERED,
        tables: &[
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'",
            "CREATE TABLE w AS SELECT a, b FROM t WHERE input_file_name() LIKE '%/2.parquet'",
        ],
        query: "SELECT a, b FROM w",
        ..PLAIN
    },
    Known {
        name: "names of files beside a column that has the name of another",
        files: NUMBERED,
        tables: &["CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'"],
        query: "SELECT b, input_file_name() LIKE '%/2.parquet' AS f FROM (SELECT a AS b, b AS a FROM t) x",
        means: Some("SELECT a AS b, a >= 5 AS f FROM t"),
        ..PLAIN
    },
    Known {
        name: "structs of which files have other fields",
        files: &[
            "COPY (SELECT 1 AS k, [named_struct('x', 10, 'y', 'a')] AS l, named_struct('v', 1) AS s) TO 'DIR/t/1.parquet' STORED AS PARQUET",
            "COPY (SELECT 2 AS k, [named_struct('y', 'b', 'z', true)] AS l, named_struct('w', 2.5) AS s) TO 'DIR/t/2.parquet' STORED AS PARQUET",
            "COPY (SELECT 1 AS k, named_struct('v', 1, 'u', 'a') AS s) TO 'DIR/j/1.json' STORED AS JSON",
            "COPY (SELECT 2 AS k, named_struct('w', 2.5) AS s) TO 'DIR/j/2.json' STORED AS JSON",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'",
            "CREATE EXTERNAL TABLE j STORED AS JSON LOCATION 'DIR/j/'",
        ],
        query: "SELECT t.k, l, t.s, l[1]['z'] AS z, j.s['u'] AS u, j.s['v'] AS v, j.s['w'] AS w FROM t JOIN j ON t.k = j.k",
        ..PLAIN
    },
    Known {
        name: "rows by the names of their files",
        files: &[
            "COPY (SELECT value AS k FROM range(0, 5)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM range(5, 8)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
        ],
        tables: &["CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t/'"],
        query: "SELECT k, input_file_name() LIKE '%/2.parquet' AS second FROM t WHERE input_file_name() LIKE '%/2.parquet'",
        ..PLAIN
    },
    Known {
        name: "VALUES within a query whose rows are inserted",
        tables: &[
            "CREATE EXTERNAL TABLE w (d DECIMAL(12, 2), n BIGINT) STORED AS PARQUET LOCATION 'OUT/w/'",
            "INSERT INTO w SELECT b, a FROM (VALUES (9, CAST(2.50 AS DECIMAL(12, 2)))) v (a, b)",
        ],
        query: "SELECT d, n FROM w",
        means: Some("SELECT CAST(2.50 AS DECIMAL(12, 2)) AS d, 9 AS n"),
        ..PLAIN
    },
    Known {
        name: "a table of a column of dictionaries",
        tables: &[
            "CREATE TABLE w AS SELECT value AS k, arrow_cast(CAST(value % 3 AS VARCHAR), 'Dictionary(Int32, Utf8)') AS s FROM range(1, 9)",
        ],
        query: "SELECT s, arrow_typeof(s) AS of, count(*) AS n FROM w GROUP BY s",
        ..PLAIN
    },
    Known {
        name: "a date in a CSV file that is copied",
        tables: &[
            "COPY (SELECT DATE '2021-02-03' AS d, TIMESTAMP '2021-02-03T04:05:06' AS t) TO 'OUT/d/' STORED AS CSV",
            "CREATE EXTERNAL TABLE w (d DATE, t TIMESTAMP) STORED AS CSV LOCATION 'OUT/d/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT d, t FROM w",
        ..PLAIN
    },
    Known {
        name: "a date that is inserted into a CSV table",
        tables: &[
            "CREATE EXTERNAL TABLE w (d DATE, t TIMESTAMP) STORED AS CSV LOCATION 'OUT/' OPTIONS ('format.has_header' 'true')",
            "INSERT INTO w SELECT DATE '2021-02-03', TIMESTAMP '2021-02-03T04:05:06'",
        ],
        query: "SELECT d, t FROM w",
        ..PLAIN
    },
    Known {
        name: "a compressed CSV file of one column of text",
        files: &[
            "COPY (SELECT 'a' AS s UNION ALL SELECT 'b' UNION ALL SELECT 'c') TO 'DIR/z/1.csv.gz' STORED AS CSV OPTIONS ('format.compression' 'gzip')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE z (s VARCHAR) STORED AS CSV LOCATION 'DIR/z/' OPTIONS ('format.has_header' 'true', 'format.compression' 'gzip')",
        ],
        query: "SELECT count(*) AS n FROM z",
        ..PLAIN
    },
    Known {
        name: "a compressed CSV file of two columns",
        files: &[
            "COPY (SELECT 'a' AS s, 1 AS k UNION ALL SELECT 'b', 2) TO 'DIR/z/1.csv.gz' STORED AS CSV OPTIONS ('format.compression' 'gzip')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE z (s VARCHAR, k INT) STORED AS CSV LOCATION 'DIR/z/' OPTIONS ('format.has_header' 'true', 'format.compression' 'gzip')",
        ],
        query: "SELECT s, k FROM z",
        ..PLAIN
    },
    Known {
        name: "a compressed JSON file",
        files: &[
            "COPY (SELECT 'a' AS s, 1 AS k UNION ALL SELECT 'b', 2) TO 'DIR/z/1.json.gz' STORED AS JSON OPTIONS ('format.compression' 'gzip')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE z (s VARCHAR, k INT) STORED AS JSON LOCATION 'DIR/z/' OPTIONS ('format.compression' 'gzip')",
        ],
        query: "SELECT s, k FROM z",
        ..PLAIN
    },
    Known {
        name: "a CSV file with another end of lines",
        files: &[
            "COPY (SELECT 'a;1;b' AS s) TO 'DIR/z/1.csv' STORED AS CSV OPTIONS ('format.has_header' 'false')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE z (s VARCHAR) STORED AS CSV LOCATION 'DIR/z/' OPTIONS ('format.has_header' 'false', 'format.terminator' ';')",
        ],
        query: "SELECT s FROM z",
        ..PLAIN
    },
    Known {
        name: "a pattern of files",
        files: &[
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p1.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p2.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p3.parquet' STORED AS PARQUET",
        ],
        tables: &["CREATE EXTERNAL TABLE d STORED AS PARQUET LOCATION 'DIR/d/p[12]*.parquet'"],
        query: "SELECT count(*) AS n FROM d",
        ..PLAIN
    },
    Known {
        name: "a pattern of files beside others",
        files: &[
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p1.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p2.csv' STORED AS CSV",
        ],
        tables: &["CREATE EXTERNAL TABLE d STORED AS PARQUET LOCATION 'DIR/d/*.parquet'"],
        query: "SELECT count(*) AS n, sum(k) AS s FROM d",
        ..PLAIN
    },
    Known {
        name: "a folder of Arrow files",
        files: &[
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p1.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM generate_series(1, 300)) TO 'DIR/d/p2.parquet' STORED AS PARQUET",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE d (k BIGINT) STORED AS PARQUET LOCATION 'DIR/d/'",
            "COPY (SELECT k, k % 2 AS v, [k] AS l, 'x' || k AS s FROM d) TO 'OUT/' STORED AS ARROW PARTITIONED BY (v)",
            "CREATE EXTERNAL TABLE w STORED AS ARROW LOCATION 'OUT/' PARTITIONED BY (v)",
            "INSERT INTO w SELECT k, l, s, '7' FROM w WHERE v = '1'",
        ],
        query: "SELECT v, k, l, s FROM w",
        ..PLAIN
    },
    Known {
        name: "one Arrow file",
        tables: &[
            "COPY (SELECT 1 AS k, 'a' AS s UNION ALL SELECT 2, NULL) TO 'OUT/one.arrow' STORED AS ARROW",
            "CREATE EXTERNAL TABLE w STORED AS ARROW LOCATION 'OUT/one.arrow'",
        ],
        query: "SELECT k, s FROM w",
        ..PLAIN
    },
    Known {
        name: "rows of gzip CSV that are written where they are read",
        files: &[
            "COPY (SELECT 'a' AS s, 1 AS k UNION ALL SELECT 'b', 2) TO 'DIR/z/1.csv.gz' STORED AS CSV OPTIONS ('format.compression' 'gzip')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE z (s VARCHAR, k INT) STORED AS CSV LOCATION 'DIR/z/' OPTIONS ('format.has_header' 'true', 'format.compression' 'gzip')",
            "COPY (SELECT s, k FROM z) TO 'OUT/' STORED AS PARQUET",
            "CREATE EXTERNAL TABLE w (s VARCHAR, k INT) STORED AS PARQUET LOCATION 'OUT/'",
        ],
        query: "SELECT s, k FROM w",
        ..PLAIN
    },
];
