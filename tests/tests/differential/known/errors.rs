//! Statements that DataFusion alone answers, and that a cluster once refused.

use super::{Known, PLAIN};

const FILES: &[&str] = &[
    "COPY (SELECT value AS k, value % 3 AS s FROM generate_series(1, 10)) TO 'DIR/t/1.csv' STORED AS CSV",
    "COPY (SELECT value AS k, value % 3 AS s FROM generate_series(11, 15)) TO 'DIR/t/2.csv' STORED AS CSV",
];
const TABLES: &[&str] = &[
    "CREATE EXTERNAL TABLE t (k INT, s INT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
];

const ASKED: Known = Known {
    files: FILES,
    tables: TABLES,
    ..PLAIN
};

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "one grouping set, which is empty",
        query: "SELECT count(*) AS n, max(k) FILTER (WHERE s = 1) AS m FROM t GROUP BY GROUPING SETS (())",
        ..ASKED
    },
    Known {
        name: "several empty grouping sets over no rows",
        query: "SELECT sum(k) AS n FROM t WHERE k < 0 GROUP BY GROUPING SETS ((), ())",
        ..ASKED
    },
    Known {
        name: "a window by a constant over rows without columns",
        settings: &["volley.single_task_bytes = 0"],
        query: "SELECT count(*) OVER (PARTITION BY 1 = 1) AS n FROM t WHERE k > 3",
        ..ASKED
    },
    Known {
        name: "an interleaved union of windows by a constant over rows without columns",
        settings: &["volley.single_task_bytes = 0"],
        query: "SELECT count(*) OVER (PARTITION BY 1 = 1) AS n FROM t WHERE k > 3 UNION ALL SELECT count(*) OVER (PARTITION BY 1 = 1) FROM t",
        ..ASKED
    },
    Known {
        name: "LATERAL that selects a column beside it",
        query: "SELECT a.k, l.m FROM t a, LATERAL (SELECT a.k + b.k AS m FROM t b WHERE b.s = a.s) l",
        refused: Some("LATERAL that reads a.k in its SELECT list"),
        ..ASKED
    },
    Known {
        name: "a table of decimals that are rounded to digits that turn out to be known",
        tables: &[
            "CREATE TABLE r AS SELECT round(d, 1) AS x, d * 0 AS y FROM (VALUES (CAST(1.25 AS DECIMAL(10, 3)))) v (d)",
        ],
        query: "SELECT x, y FROM r",
        means: Some(
            "SELECT round(d, 1) AS x, d * 0 AS y FROM (VALUES (CAST(1.25 AS DECIMAL(10, 3)))) v (d)",
        ),
        ..PLAIN
    },
    Known {
        name: "the first rows of LATERAL",
        query: "SELECT a.k, l.k FROM t a, LATERAL (SELECT b.k FROM t b WHERE b.s = a.s ORDER BY b.k LIMIT 1) l",
        refused: Some("LATERAL that reads a.s in its SELECT list, or in a WHERE under LIMIT"),
        ..ASKED
    },
    Known {
        name: "a table of a union of decimals that are rounded to digits that turn out to be known",
        tables: &[
            "CREATE TABLE d (d DECIMAL(10, 3), e DECIMAL(11, 3)) AS VALUES (1.25, 5.5)",
            "CREATE TABLE r AS SELECT round(d, 1) AS x, round(d, 1) AS y FROM d UNION ALL SELECT round(d, 1), e FROM d",
        ],
        query: "SELECT CAST(x AS DOUBLE) AS x, CAST(y AS DOUBLE) AS y FROM r",
        means: Some("SELECT * FROM (VALUES (1.3, 1.3), (1.3, 5.5)) v (x, y)"),
        ..PLAIN
    },
    Known {
        name: "NULL for a NOT NULL column of a table that is made of rows",
        query: "CREATE TABLE z (k INT NOT NULL, s VARCHAR) AS VALUES (1, 'a'), (NULL, 'b')",
        refused: Some("NOT NULL of column k: rows of z have NULL there"),
        ..PLAIN
    },
    Known {
        name: "NULL for a NOT NULL column of a table that was made of rows",
        tables: &["CREATE TABLE z (k INT NOT NULL, s VARCHAR) AS VALUES (1, 'a')"],
        query: "INSERT INTO z VALUES (NULL, 'b')",
        refused: Some("column at '0' has null"),
        ..PLAIN
    },
    Known {
        name: "NULL for a NOT NULL column of a table in memory",
        tables: &["CREATE TABLE z (k INT NOT NULL, s VARCHAR)"],
        query: "INSERT INTO z VALUES (1, 'a'), (NULL, 'b')",
        error: Some("column at '0' has null"),
        ..PLAIN
    },
    Known {
        name: "a recursive query of numbers",
        query: "WITH RECURSIVE r(n) AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r",
        ..PLAIN
    },
    Known {
        name: "a recursive query over a table",
        query: "WITH RECURSIVE r(k, d) AS (SELECT k, 0 AS d FROM t WHERE k = 1 UNION ALL SELECT t.k, r.d + 1 FROM r JOIN t ON t.k = r.k * 2 WHERE r.d < 5) SELECT k, d FROM r",
        ..ASKED
    },
    Known {
        name: "joins of three tables by sort and merge",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        query: "SELECT t.k, u.s, w.k AS x FROM t LEFT JOIN t u ON t.k = u.s FULL JOIN t w ON u.k = w.k",
        ..ASKED
    },
    Known {
        name: "a table of a query",
        tables: &["CREATE TABLE z AS SELECT 1 AS one"],
        query: "SELECT one FROM z",
        ..PLAIN
    },
    Known {
        name: "a view of a query",
        files: FILES,
        tables: &[
            TABLES[0],
            "CREATE VIEW z AS SELECT s, count(*) AS n FROM t GROUP BY s",
        ],
        query: "SELECT s, n FROM z",
        ..PLAIN
    },
    Known {
        name: "range",
        query: "SELECT value FROM range(1, 5)",
        ..PLAIN
    },
    Known {
        name: "generate_series",
        query: "SELECT t.k, g.value FROM t JOIN generate_series(1, 5) g ON t.s = g.value",
        ..ASKED
    },
    Known {
        name: "no rows by WHERE false",
        query: "SELECT k, s FROM t WHERE false",
        ..ASKED
    },
    Known {
        name: "distinct rows with a limit in an order",
        query: "SELECT DISTINCT s FROM t ORDER BY s LIMIT 2",
        order: &["s"],
        ..ASKED
    },
    Known {
        name: "distinct rows with a limit of files that are in order each",
        settings: &["datafusion.execution.target_partitions = 2"],
        files: &[
            FILES[0],
            FILES[1],
            "COPY (SELECT value AS k, 0 AS s FROM generate_series(0, 3)) TO 'DIR/t/3.csv' STORED AS CSV",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (k INT, s INT) STORED AS CSV WITH ORDER (k ASC) LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT DISTINCT k FROM t LIMIT 50",
        ..PLAIN
    },
    Known {
        name: "distinct floats that are not numbers with a limit in an order",
        query: "SELECT DISTINCT CASE WHEN value % 3 = 0 THEN CAST('NaN' AS DOUBLE) ELSE value % 7 END AS x FROM generate_series(1, 100) ORDER BY x DESC LIMIT 3",
        means: Some(
            "SELECT x FROM (VALUES (CAST('NaN' AS DOUBLE)), (6.0), (5.0)) t (x) ORDER BY x DESC",
        ),
        order: &["x"],
        ..ASKED
    },
    Known {
        name: "largest values of floats that are not numbers, with a limit",
        query: "SELECT x, max(value) AS m FROM (SELECT CASE WHEN value % 2 = 0 THEN CAST('NaN' AS DOUBLE) ELSE value % 7 END AS x, value FROM generate_series(1, 100)) GROUP BY x ORDER BY m DESC LIMIT 3",
        means: Some(
            "SELECT x, m FROM (VALUES (CAST('NaN' AS DOUBLE), 100), (1.0, 99), (6.0, 97)) t (x, m) ORDER BY m DESC",
        ),
        order: &["m"],
        ..ASKED
    },
    Known {
        name: "sets of a column and a cast of it",
        query: "SELECT grouping(s) AS g, s AS a, CAST(s AS BIGINT) AS b, count(*) AS n FROM t GROUP BY CUBE (s, CAST(s AS BIGINT))",
        ..ASKED
    },
    Known {
        name: "a function of a function",
        settings: &["datafusion.sql_parser.dialect = databricks"],
        query: "SELECT array_transform(make_array(k, s), x -> x + 1) AS a, array_any_match(make_array(k, s), x -> x > 3) AS b FROM t",
        ..ASKED
    },
    Known {
        name: "an offset without a limit over distinct rows",
        settings: &["datafusion.execution.target_partitions = 2"],
        query: "SELECT s FROM t UNION SELECT k FROM t ORDER BY s DESC OFFSET 3",
        order: &["s"],
        ..ASKED
    },
    Known {
        name: "a maximum of floats that a filter lets in, of more groups than are worth a first step",
        settings: &[
            "datafusion.execution.batch_size = 2",
            "datafusion.execution.skip_partial_aggregation_probe_rows_threshold = 1",
        ],
        query: "SELECT k, max(k / 4.0) FILTER (WHERE s > 0) AS m FROM t GROUP BY k",
        ..ASKED
    },
    Known {
        name: "an ordered aggregate of a union of constants",
        settings: &["volley.single_task_bytes = 0"],
        query: "SELECT array_agg(c ORDER BY c NULLS FIRST) AS a FROM (SELECT 5 AS c FROM generate_series(1, 1) UNION ALL SELECT CAST(NULL AS BIGINT) FROM generate_series(1, 1))",
        ..PLAIN
    },
    Known {
        name: "minus of the least constant",
        query: "SELECT -(-9223372036854775808) AS n",
        error: Some("verflow"),
        ..PLAIN
    },
    Known {
        name: "the absolute value of the least number",
        query: "SELECT abs(arrow_cast(s * 0 - 9223372036854775808, 'Int64')) AS n FROM t",
        error: Some("verflow"),
        ..ASKED
    },
    Known {
        name: "minus of the least number of a small type",
        query: "SELECT -arrow_cast(s * 0 - 128, 'Int8') AS n FROM t",
        refused: Some("verflow"),
        ..ASKED
    },
];
