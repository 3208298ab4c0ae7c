//! Windows: clauses of functions besides their arguments, and orders over joins.

use super::{Known, PLAIN};

/// Table of a hundred rows in three files, with NULLs and a key of three values.
const FILES: &[&str] = &[
    "COPY (SELECT value AS v, CASE WHEN value % 3 = 0 THEN value END AS x, value % 3 AS s FROM generate_series(1, 40)) TO 'DIR/t/1.csv' STORED AS CSV",
    "COPY (SELECT value AS v, CASE WHEN value % 3 = 0 THEN value END AS x, value % 3 AS s FROM generate_series(41, 60)) TO 'DIR/t/2.csv' STORED AS CSV",
    "COPY (SELECT value AS v, CASE WHEN value % 3 = 0 THEN value END AS x, value % 3 AS s FROM generate_series(61, 100)) TO 'DIR/t/3.csv' STORED AS CSV",
];
const TABLES: &[&str] = &[
    "CREATE EXTERNAL TABLE t (v INT, x INT, s INT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
];

const WINDOW: Known = Known {
    files: FILES,
    tables: TABLES,
    ..PLAIN
};

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "a limit of any rows of a window, whose partitions are exchanged",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "volley.single_task_bytes = 0",
        ],
        query: "SELECT min(c) AS least FROM (SELECT count(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 5 PRECEDING AND 2 FOLLOWING) AS c FROM t WHERE v IN (1, 4, 7, 2, 5, 8) LIMIT 2) q",
        means: Some("SELECT 3 AS least"),
        ..WINDOW
    },
    Known {
        name: "a limit of the first rows of a window, whose partitions are exchanged",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "volley.single_task_bytes = 0",
        ],
        query: "SELECT s, v, count(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 5 PRECEDING AND 2 FOLLOWING) AS c FROM t ORDER BY s, v LIMIT 5",
        order: &["s", "v"],
        ..WINDOW
    },
    Known {
        name: "an order of columns that are equal",
        settings: &["datafusion.execution.target_partitions = 2"],
        query: "SELECT lag(v) IGNORE NULLS OVER (ORDER BY v, v NULLS FIRST, x) AS c FROM t WHERE nullif(v, v) = v",
        ..WINDOW
    },
    Known {
        name: "an aggregate in the order of a merge join by a constant",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "datafusion.optimizer.prefer_hash_join = false",
        ],
        query: "SELECT array_agg(r2.c3 ORDER BY r2.c3 DESC NULLS LAST) AS c1 FROM t r1 FULL JOIN ((SELECT (s IS NOT DISTINCT FROM 1) AS c2, (SELECT count(*) AS n FROM t) AS c3 FROM t) EXCEPT (SELECT true AS c2, v AS c3 FROM t WHERE v < 50)) r2 ON r1.v = r2.c3 WHERE r2.c2",
        ..WINDOW
    },
    Known {
        name: "two aggregates whose orders differ in a constant that is grouped by",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "volley.single_task_bytes = 0",
        ],
        query: "SELECT min(b.y) OVER (ORDER BY b.x, a.v) AS m FROM t a JOIN (SELECT nth_value(n, 2 ORDER BY n, c) AS x, nth_value(n, 2 ORDER BY c NULLS FIRST) AS y FROM (SELECT 1 AS c, count(*) AS n FROM t WHERE v < 0 GROUP BY 1) g) b ON true",
        ..WINDOW
    },
    Known {
        name: "two aggregates whose orders differ in a constant, behind an exchange",
        settings: &[
            "datafusion.execution.target_partitions = 2",
            "volley.single_task_bytes = 0",
        ],
        query: "SELECT s, nth_value(v, 2 ORDER BY c, v) AS a, nth_value(v, 2 ORDER BY c NULLS FIRST, v) AS b FROM (SELECT DISTINCT 1 AS c, s, v FROM t) u GROUP BY s",
        ..WINDOW
    },
    Known {
        name: "the first rows of a union of constants",
        query: "(SELECT 5 AS x, value % 3 AS y FROM generate_series(1, 30)) UNION ALL (SELECT -2 AS x, max(value) AS y FROM generate_series(1, 40)) ORDER BY x, y NULLS FIRST LIMIT 3",
        means: Some("SELECT x, y FROM (VALUES (-2, 40), (5, 0), (5, 0)) t (x, y) ORDER BY x, y"),
        order: &["x", "y"],
        ..PLAIN
    },
    Known {
        name: "lag in two opposite orders",
        query: "SELECT v, lag(v) OVER (ORDER BY v DESC) AS a, lag(v) OVER (ORDER BY v) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "lead, first and last values in two opposite orders",
        query: "SELECT v, lead(v) OVER (ORDER BY v DESC) AS a, lead(v) OVER (ORDER BY v) AS b, \
                first_value(v) OVER (ORDER BY v DESC) AS c, last_value(v) OVER (ORDER BY v) AS d FROM t",
        ..WINDOW
    },
    Known {
        name: "a window's filter",
        query: "SELECT v, count(*) FILTER (WHERE v < 0) OVER () AS n FROM t",
        ..WINDOW
    },
    Known {
        name: "a window's filter in a sliding frame",
        query: "SELECT v, min(v) FILTER (WHERE v % 2 = 0) OVER (ORDER BY v ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS a, \
                sum(v) FILTER (WHERE v % 5 = 0) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "IGNORE NULLS of last_value",
        query: "SELECT v, last_value(x) IGNORE NULLS OVER (ORDER BY v) AS a FROM t",
        ..WINDOW
    },
    Known {
        name: "IGNORE NULLS of first_value and nth_value",
        query: "SELECT v, first_value(x) IGNORE NULLS OVER (ORDER BY v) AS a, \
                nth_value(x, 2) IGNORE NULLS OVER (ORDER BY v) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "IGNORE NULLS of lag and lead",
        query: "SELECT v, lag(x) IGNORE NULLS OVER (ORDER BY v) AS a, lead(x) IGNORE NULLS OVER (ORDER BY v) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "row numbers partitioned by what they are ordered by, and in the other order",
        query: "SELECT v, row_number() OVER (PARTITION BY s ORDER BY s, v) AS a, row_number() OVER (ORDER BY s DESC, v) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "ranks partitioned by what they are ordered by, and in the other order",
        query: "SELECT s, rank() OVER (PARTITION BY s ORDER BY s) AS a, rank() OVER (ORDER BY s DESC) AS b FROM t",
        ..WINDOW
    },
    Known {
        name: "two windows in two orders over a join",
        query: "SELECT t.v, row_number() OVER (PARTITION BY t.s ORDER BY t.v DESC) AS a, sum(u.v) OVER (ORDER BY t.v) AS b \
                FROM t JOIN t u ON t.v = u.v + 1",
        ..WINDOW
    },
    Known {
        name: "two windows over a semi join",
        query: "SELECT t.v, row_number() OVER (ORDER BY t.v DESC) AS a, lag(t.v) OVER (PARTITION BY t.s ORDER BY t.v) AS b \
                FROM t LEFT SEMI JOIN t u ON t.v = u.x",
        ..WINDOW
    },
    Known {
        name: "a union of constants and numbers of rows in an order",
        query: "(SELECT 'b' AS x, CAST(row_number() OVER (ORDER BY v) AS BIGINT) AS n FROM t) UNION ALL (SELECT 'a' AS x, 1 AS n FROM t) ORDER BY x, n DESC",
        order: &["x", "n"],
        ..WINDOW
    },
    Known {
        name: "frames after a NaN, an infinity and a number that takes the digits of others",
        query: "SELECT id, sum(x) OVER w AS s, avg(x) FILTER (WHERE id <> 4) OVER w AS a FROM (VALUES (1, 1.0), (2, CAST('NaN' AS DOUBLE)), (3, 2.0), (4, CAST('inf' AS DOUBLE)), (5, 3.0), (6, 1e16), (7, 1.0), (8, 2.0)) AS t (id, x) WINDOW w AS (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        means: Some(
            "SELECT * FROM (VALUES (1, 1.0, 1.0), (2, CAST('NaN' AS DOUBLE), CAST('NaN' AS DOUBLE)), (3, CAST('NaN' AS DOUBLE), CAST('NaN' AS DOUBLE)), (4, CAST('inf' AS DOUBLE), 2.0), (5, CAST('inf' AS DOUBLE), 3.0), (6, 1e16 + 3, (1e16 + 3) / 2), (7, 1e16 + 1, (1e16 + 1) / 2), (8, 3.0, 1.5)) AS t (id, s, a)",
        ),
        ..PLAIN
    },
    Known {
        name: "the deviation of equal values, and bits of no row",
        query: "SELECT * FROM (SELECT id, stddev(x) OVER w AS d, corr(x, id) OVER w AS c, bit_xor(k) OVER w AS b, bool_or(k > 2) OVER w AS o FROM (VALUES (1, 0.1, 5), (2, 7.3, 6), (3, 0.1, NULL), (4, 0.1, NULL), (5, 0.1, 1)) AS t (id, x, k) WINDOW w AS (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)) WHERE id > 3",
        means: Some(
            "SELECT * FROM (VALUES (4, 0.0, CAST(NULL AS DOUBLE), NULL, NULL), (5, 0.0, NULL, 1, false)) AS t (id, d, c, b, o)",
        ),
        ..PLAIN
    },
    Known {
        name: "rows that are sorted by more than a column in the place of the key",
        query: "SELECT n, k, CAST(row_number() OVER (ORDER BY n, k DESC) AS BIGINT) AS r FROM (SELECT count(*) AS n, k FROM (SELECT value % 7 AS k FROM generate_series(0, 69)) GROUP BY k ORDER BY n LIMIT 10) ORDER BY n, k DESC",
        means: Some(
            "SELECT * FROM (VALUES (10, 6, 1), (10, 5, 2), (10, 4, 3), (10, 3, 4), (10, 2, 5), (10, 1, 6), (10, 0, 7)) AS t (n, k, r) ORDER BY r",
        ),
        order: &["n", "k", "r"],
        ..PLAIN
    },
    Known {
        name: "rows that are sorted by more above a limit of another order",
        files: &[
            "COPY (SELECT value % 3 AS n, value AS k FROM generate_series(1, 40)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
            "COPY (SELECT value % 3 AS n, value AS k FROM generate_series(41, 70)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (n BIGINT, k BIGINT) STORED AS PARQUET LOCATION 'DIR/t/'",
        ],
        settings: &["volley.single_task_bytes = 0"],
        query: "SELECT n, k FROM (SELECT n, k FROM t GROUP BY n, k, n + k ORDER BY n LIMIT 100) ORDER BY n, k DESC",
        means: Some("SELECT n, k FROM t ORDER BY n, k DESC"),
        order: &["n", "k"],
        ..PLAIN
    },
    Known {
        name: "groups under two names, joined by the second, below two orders",
        settings: &[
            "volley.single_task_bytes = 0",
            "ballista.optimizer.broadcast_join_threshold_bytes = 0",
        ],
        files: &[
            "COPY (SELECT value AS id, value % 5 AS k FROM generate_series(1, 40)) TO 'DIR/t/1.csv' STORED AS CSV OPTIONS ('format.has_header' 'true')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT c FROM (SELECT (SELECT count(*) FROM t x WHERE x.id = r.b) AS c FROM (SELECT k AS a, k AS b FROM t GROUP BY k) r JOIN t y ON r.a = y.k ORDER BY c OFFSET 5) q ORDER BY c",
        order: &["c"],
        ..PLAIN
    },
    Known {
        name: "rows in the order of what only grows, and is NULL first",
        query: "SELECT id, max(k) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS m FROM (VALUES (1, NULL), (2, 7), (3, 9)) AS t (id, k) ORDER BY m, id",
        means: Some(
            "SELECT * FROM (VALUES (3, 7), (1, NULL), (2, NULL)) AS t (id, m) ORDER BY m, id",
        ),
        order: &["m", "id"],
        ..PLAIN
    },
    Known {
        name: "a primary key in another place",
        files: &[
            "COPY (SELECT * FROM (VALUES (7, 2), (8, 2)) AS t (id, k)) TO 'DIR/t/1.csv' STORED AS CSV OPTIONS ('format.has_header' 'true')",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (id BIGINT PRIMARY KEY, k BIGINT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT cume_dist() OVER (PARTITION BY a ORDER BY c DESC, b) AS d, c FROM (SELECT k AS a, 5 AS b, id AS c FROM t ORDER BY a DESC, c LIMIT 5)",
        means: Some("SELECT * FROM (VALUES (0.5, 8), (1.0, 7)) AS t (d, c)"),
        ..PLAIN
    },
];
