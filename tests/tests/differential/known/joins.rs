//! Joins whose sides have several files, and operators over their rows.

use super::{Known, PLAIN};

/// Tables: `a` is 1 to 10 in two files, `b` is 1 to 100 in one.
const AB_FILES: &[&str] = &[
    "COPY (SELECT value AS k FROM generate_series(1, 5)) TO 'DIR/a/1.csv' STORED AS CSV",
    "COPY (SELECT value AS k FROM generate_series(6, 10)) TO 'DIR/a/2.csv' STORED AS CSV",
    "COPY (SELECT value AS k FROM generate_series(1, 100)) TO 'DIR/b/1.csv' STORED AS CSV",
];
const AB: &[&str] = &[
    "CREATE EXTERNAL TABLE a (k INT) STORED AS CSV LOCATION 'DIR/a/' OPTIONS ('format.has_header' 'true')",
    "CREATE EXTERNAL TABLE b (k INT) STORED AS CSV LOCATION 'DIR/b/' OPTIONS ('format.has_header' 'true')",
];

/// Tables with one row on the left, and one row in each of two files on the right.
const ONE_TWO_FILES: &[&str] = &[
    "COPY (SELECT 5 AS x) TO 'DIR/a/1.csv' STORED AS CSV",
    "COPY (SELECT 10 AS y) TO 'DIR/b/1.csv' STORED AS CSV",
    "COPY (SELECT 1 AS y) TO 'DIR/b/2.csv' STORED AS CSV",
];
const ONE_TWO: &[&str] = &[
    "CREATE EXTERNAL TABLE a (x INT) STORED AS CSV LOCATION 'DIR/a/' OPTIONS ('format.has_header' 'true')",
    "CREATE EXTERNAL TABLE b (y INT) STORED AS CSV LOCATION 'DIR/b/' OPTIONS ('format.has_header' 'true')",
];

/// Tables: `e` has two files without rows, `p` is 0 to 9 in two files, `b` is 0 to 99 in one.
const EMPTY_FILES: &[&str] = &[
    "COPY (SELECT value AS k FROM generate_series(1, 3) WHERE value > 5) TO 'DIR/e/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(1, 3) WHERE value > 5) TO 'DIR/e/2.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(0, 4)) TO 'DIR/p/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(5, 9)) TO 'DIR/p/2.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(0, 99)) TO 'DIR/b/1.parquet' STORED AS PARQUET",
];
const EMPTY: &[&str] = &[
    "CREATE EXTERNAL TABLE e (k BIGINT) STORED AS PARQUET LOCATION 'DIR/e/'",
    "CREATE EXTERNAL TABLE p (k BIGINT) STORED AS PARQUET LOCATION 'DIR/p/'",
    "CREATE EXTERNAL TABLE b (k BIGINT) STORED AS PARQUET LOCATION 'DIR/b/'",
];

/// Tables: `t` in two Parquet files, `u` in one JSON file.
const METRICS_FILES: &[&str] = &[
    "COPY (SELECT value AS id, CASE WHEN value % 3 = 0 THEN value % 7 END AS k FROM generate_series(0, 6)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS id, CASE WHEN value % 3 = 0 THEN value % 7 END AS k FROM generate_series(7, 19)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS id, value * 10 AS k FROM generate_series(-2, 4)) TO 'DIR/u/1.json' STORED AS JSON",
];
const METRICS: &[&str] = &[
    "CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT) STORED AS PARQUET LOCATION 'DIR/t/'",
    "CREATE EXTERNAL TABLE u (id BIGINT, k BIGINT) STORED AS JSON LOCATION 'DIR/u/'",
];

/// Tables: 90,000 rows in four files, and 20,000 in one.
const LARGE_FILES: &[&str] = &[
    "COPY (SELECT value AS k, value % 7 AS v FROM generate_series(1, 22500)) TO 'DIR/l/1.csv' STORED AS CSV",
    "COPY (SELECT value + 22500 AS k, value % 7 AS v FROM generate_series(1, 22500)) TO 'DIR/l/2.csv' STORED AS CSV",
    "COPY (SELECT value AS k, value % 5 AS v FROM generate_series(1, 22500)) TO 'DIR/l/3.csv' STORED AS CSV",
    "COPY (SELECT value % 100 AS k, value % 3 AS v FROM generate_series(1, 22500)) TO 'DIR/l/4.csv' STORED AS CSV",
    "COPY (SELECT value AS id, value * 2 AS k FROM generate_series(1, 20000)) TO 'DIR/r/1.csv' STORED AS CSV",
];
const LARGE: &[&str] = &[
    "CREATE EXTERNAL TABLE l (k INT, v INT) STORED AS CSV LOCATION 'DIR/l/' OPTIONS ('format.has_header' 'true')",
    "CREATE EXTERNAL TABLE r (id INT, k INT) STORED AS CSV LOCATION 'DIR/r/' OPTIONS ('format.has_header' 'true')",
];

/// Sorted files, the first of which does not have the first rows, and joins that exchange them.
const IN_ORDER: Known = Known {
    settings: &[
        "ballista.optimizer.broadcast_join_threshold_bytes = 0",
        "datafusion.optimizer.prefer_existing_sort = true",
        "datafusion.execution.target_partitions = 3",
    ],
    files: &[
        "COPY (SELECT value AS k, value % 3 AS v FROM generate_series(2000, 4000)) TO 'DIR/s/1.csv' STORED AS CSV",
        "COPY (SELECT value AS k, value % 3 AS v FROM generate_series(1, 3000)) TO 'DIR/s/2.csv' STORED AS CSV",
        "COPY (SELECT value AS k, value % 3 AS v FROM generate_series(500, 800)) TO 'DIR/s/3.csv' STORED AS CSV",
        "COPY (SELECT value AS k, value % 3 AS v FROM generate_series(1, 10)) TO 'DIR/t/1.csv' STORED AS CSV",
    ],
    tables: &[
        "CREATE EXTERNAL TABLE s (k INT, v INT) STORED AS CSV WITH ORDER (k ASC) LOCATION 'DIR/s/' OPTIONS ('format.has_header' 'true')",
        "CREATE EXTERNAL TABLE t (k INT, v INT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
    ],
    order: &["k"],
    ..PLAIN
};

const UNEQUAL: Known = Known {
    files: ONE_TWO_FILES,
    tables: ONE_TWO,
    ..PLAIN
};
const WITH_EMPTY: Known = Known {
    files: EMPTY_FILES,
    tables: EMPTY,
    ..PLAIN
};
const WITH_AB: Known = Known {
    files: AB_FILES,
    tables: AB,
    ..PLAIN
};

/// Many partitions of few rows, which share tasks.
const THIN: Known = Known {
    settings: &[
        "datafusion.execution.target_partitions = 60",
        "datafusion.optimizer.repartition_file_min_size = 1",
        "ballista.optimizer.broadcast_join_threshold_bytes = 0",
        "volley.single_task_bytes = 100000",
    ],
    files: &[
        "COPY (SELECT value AS k, value % 50 AS g, value % 7 AS v FROM generate_series(1, 6000)) TO 'DIR/t/1.csv' STORED AS CSV",
        "COPY (SELECT value AS k, value % 20 AS g FROM generate_series(1, 3000)) TO 'DIR/s/1.parquet' STORED AS PARQUET",
    ],
    tables: &[
        "CREATE EXTERNAL TABLE t (k BIGINT, g BIGINT, v BIGINT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        "CREATE EXTERNAL TABLE s (k BIGINT, g BIGINT) STORED AS PARQUET LOCATION 'DIR/s/'",
    ],
    ..PLAIN
};

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "groups of many partitions with few rows",
        query: "SELECT g, count(*), sum(v), count(DISTINCT v) FROM t GROUP BY g",
        ..THIN
    },
    Known {
        name: "joins of many partitions with few rows",
        query: "SELECT t.k, t.v, s.g FROM t LEFT JOIN s ON t.k = s.k WHERE t.k NOT IN (SELECT g FROM s WHERE g > 3)",
        ..THIN
    },
    Known {
        name: "a full join and its groups of many partitions with few rows",
        query: "SELECT g, n, m FROM (SELECT g, count(*) AS n FROM t GROUP BY g) a FULL JOIN \
                (SELECT g, max(k) AS m FROM s GROUP BY g) b USING (g)",
        ..THIN
    },
    Known {
        name: "windows and an order of many partitions with few rows",
        query: "SELECT k, g, row_number() OVER (PARTITION BY g ORDER BY k DESC) AS r FROM t ORDER BY k LIMIT 100",
        order: &["k"],
        ..THIN
    },
    Known {
        name: "a union of many partitions with few rows",
        query: "SELECT x, count(*) FROM (SELECT g AS x FROM t UNION ALL SELECT g + 10 FROM s) GROUP BY x",
        ..THIN
    },
    Known {
        name: "groups by a constant, of rows that are spread by a column of its value",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "volley.single_task_bytes = 0",
        ],
        files: &[
            "COPY (SELECT value % 3 AS id, value AS k FROM generate_series(1, 10)) TO 'DIR/t/1.csv' STORED AS CSV",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT DISTINCT x.k, x.one FROM (SELECT b.k, a.id, 1 AS one FROM (SELECT id FROM t GROUP BY id) a \
                FULL JOIN t b ON a.id = b.id) x CROSS JOIN t WHERE x.id = 1",
        ..PLAIN
    },
    Known {
        name: "groups by a constant, of rows that are spread by a column of its value, in an order",
        settings: &[
            "datafusion.execution.target_partitions = 4",
            "volley.single_task_bytes = 0",
        ],
        files: &[
            "COPY (SELECT value % 3 AS id, value AS k FROM generate_series(1, 10)) TO 'DIR/t/1.csv' STORED AS CSV",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT DISTINCT x.k, x.one FROM (SELECT b.k, a.id, 1 AS one FROM (SELECT id FROM t GROUP BY id) a \
                FULL JOIN t b ON a.id = b.id) x CROSS JOIN t WHERE x.id = 1 ORDER BY k DESC",
        order: &["k"],
        ..PLAIN
    },
    Known {
        name: "a value from the end of an order that a join keeps once its sides are swapped",
        settings: &[
            "datafusion.execution.target_partitions = 2",
            "volley.single_task_bytes = 0",
        ],
        files: &[
            "COPY (SELECT value AS y FROM generate_series(1, 1000)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS y FROM generate_series(1001, 2000)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
            "COPY (SELECT value AS k FROM generate_series(0, 6)) TO 'DIR/s/1.parquet' STORED AS PARQUET",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t (y BIGINT) STORED AS PARQUET WITH ORDER (y) LOCATION 'DIR/t/'",
            "CREATE EXTERNAL TABLE s (k BIGINT) STORED AS PARQUET LOCATION 'DIR/s/'",
        ],
        query: "SELECT nth_value(y, 3 ORDER BY y DESC) AS v FROM t JOIN s ON s.k = t.y % 7",
        means: Some("SELECT 1998 AS v"),
        ..PLAIN
    },
    Known {
        name: "a union of a join and of groups, of whose tasks some report of an operator more",
        settings: &[
            "datafusion.execution.target_partitions = 2",
            "ballista.optimizer.broadcast_join_threshold_bytes = 0",
        ],
        files: METRICS_FILES,
        tables: METRICS,
        query: "SELECT l.c2 AS c1 FROM (SELECT x.k AS c1, (SELECT min(k) FROM t) AS c2, y.id AS c5 FROM t x FULL JOIN t y ON true) l JOIN (SELECT abs(u.id) AS c0, u.id AS c4 FROM u JOIN t ON u.k = t.id AND u.k <> t.k AND u.id >= t.k WHERE t.k IS NOT NULL) r ON l.c5 = r.c4 AND l.c1 < r.c0 UNION ALL SELECT DISTINCT id FROM t",
        ..PLAIN
    },
    Known {
        name: "a join whose NULLs are equal, beside others",
        files: AB_FILES,
        tables: AB,
        query: "SELECT x.k, y.n, z.k AS z FROM (SELECT nullif(k, 3) AS n FROM a) y JOIN (SELECT nullif(k, 4) AS n FROM b WHERE k < 6) w ON y.n IS NOT DISTINCT FROM w.n JOIN a x ON true, b z WHERE x.k < 3 AND z.k = x.k",
        means: Some(
            "SELECT x.k, y.n, x.k AS z FROM (SELECT column1 AS n FROM (VALUES (1), (2), (NULL), (5)) AS v) y, (SELECT CAST(column1 AS INT) AS k FROM (VALUES (1), (2)) AS v) x",
        ),
        ..PLAIN
    },
    Known {
        name: "a join whose NULLs are not equal, beside one whose are",
        files: AB_FILES,
        tables: AB,
        query: "SELECT count(*) AS n FROM (SELECT nullif(k, 3) AS n, nullif(k, 4) AS m FROM a) y, (SELECT nullif(k, 4) AS m FROM a) z JOIN (SELECT nullif(k, 3) AS n FROM a) w ON z.m IS NOT DISTINCT FROM w.n WHERE y.m = z.m",
        means: Some("SELECT 8 AS n"),
        ..PLAIN
    },
    Known {
        name: "a merge join by what is not a number",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        files: AB_FILES,
        tables: AB,
        query: "SELECT count(*) AS n FROM (SELECT CASE WHEN k > 3 THEN CAST('NaN' AS DOUBLE) ELSE k END AS x FROM a) a JOIN (SELECT CASE WHEN k > 3 THEN CAST('NaN' AS DOUBLE) ELSE k END AS x FROM b) b ON a.x = b.x AND a.x <= b.x",
        means: Some("SELECT 682 AS n"),
        ..PLAIN
    },
    Known {
        name: "a limit above a merge join",
        settings: &[
            "datafusion.optimizer.prefer_hash_join = false",
            "datafusion.execution.target_partitions = 2",
        ],
        query: "SELECT a.t FROM (SELECT bool_and(k > 0) AS t FROM a) a LEFT SEMI JOIN (SELECT k > 5 AS t FROM a) b ON a.t = b.t ORDER BY a.t DESC LIMIT 1",
        means: Some("SELECT true AS t"),
        ..WITH_AB
    },
    Known {
        name: "a union of joins spread by columns known to be equal",
        settings: &[
            "ballista.optimizer.broadcast_join_threshold_bytes = 0",
            "datafusion.execution.target_partitions = 6",
        ],
        query: "(SELECT x.k AS c, y.k AS d FROM a x JOIN b y ON x.k = y.k) UNION (SELECT z.c, (SELECT max(2) AS v FROM b w WHERE w.k = z.d) AS d FROM (SELECT k AS c, k AS d FROM a) z)",
        ..WITH_AB
    },
    Known {
        name: "a join that keeps the order of a union, of which a task has a part",
        files: &[
            "COPY (SELECT value AS id, value AS k FROM generate_series(1, 3) WHERE value > 5) TO 'DIR/t0/1.csv' STORED AS CSV",
            "COPY (SELECT 5 AS id, NULL AS k, DATE '2021-05-06' AS c2 UNION ALL SELECT 8, 5, DATE '2020-12-21') TO 'DIR/t1/1.csv' STORED AS CSV",
            "COPY (SELECT 1 AS id, 1 AS k) TO 'DIR/t0/2.csv' STORED AS CSV",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE t0 (id BIGINT, k INT) STORED AS CSV LOCATION 'DIR/t0/' OPTIONS ('format.has_header' 'true')",
            "CREATE EXTERNAL TABLE t1 (id BIGINT, k BIGINT, c2 DATE) STORED AS CSV LOCATION 'DIR/t1/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT y.id, CAST(rank() OVER (ORDER BY u.c DESC NULLS LAST, u.d DESC) AS BIGINT) AS r FROM ((SELECT 1 AS c, id AS d FROM t0) UNION ALL (SELECT CAST(extract(month FROM c2) AS BIGINT) AS c, id AS d FROM t1)) u LEFT JOIN t1 y ON u.c = y.k",
        means: Some("SELECT * FROM (VALUES (NULL, 1), (8, 2), (NULL, 3)) AS t (id, r)"),
        ..PLAIN
    },
    Known {
        name: "a limit within a limit, in one order",
        query: "SELECT * FROM (SELECT k FROM a ORDER BY k LIMIT 3) x ORDER BY k LIMIT 5",
        means: Some("SELECT CAST(k AS INT) AS k FROM (VALUES (1), (2), (3)) AS t (k)"),
        order: &["k"],
        ..WITH_AB
    },
    Known {
        name: "a limit within a limit, in one order of one partition",
        settings: &["datafusion.execution.target_partitions = 1"],
        query: "SELECT * FROM (SELECT k FROM b ORDER BY k DESC LIMIT 3) x ORDER BY k DESC LIMIT 5",
        means: Some("SELECT CAST(k AS INT) AS k FROM (VALUES (100), (99), (98)) AS t (k)"),
        order: &["k"],
        ..WITH_AB
    },
    Known {
        name: "an unequal left join tells unmatched rows once",
        query: "SELECT a.x, b.y FROM a LEFT JOIN b ON a.x < b.y",
        ..UNEQUAL
    },
    Known {
        name: "an unequal full join tells unmatched rows once",
        query: "SELECT a.x, b.y FROM a FULL JOIN b ON a.x < b.y",
        ..UNEQUAL
    },
    Known {
        name: "EXISTS by an unequal condition",
        query: "SELECT x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.x < b.y)",
        ..UNEQUAL
    },
    Known {
        name: "NOT EXISTS by an unequal condition",
        query: "SELECT x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.x < b.y)",
        ..UNEQUAL
    },
    Known {
        name: "a count over a join with a table without rows",
        query: "SELECT count(*) AS n FROM b LEFT JOIN e USING (k)",
        ..WITH_EMPTY
    },
    Known {
        name: "a count over a join with a query that is estimated to have no rows",
        query: "SELECT count(*) AS n FROM b LEFT JOIN (SELECT k FROM p WHERE k > 1000) q USING (k)",
        ..WITH_EMPTY
    },
    Known {
        name: "a count over a join where nothing is small enough to be sent whole",
        settings: &["ballista.optimizer.broadcast_join_threshold_bytes = 0"],
        query: "SELECT count(*) AS n FROM b JOIN p USING (k)",
        ..WITH_EMPTY
    },
    Known {
        name: "a count over a join that is not repartitioned",
        settings: &["datafusion.optimizer.repartition_joins = false"],
        query: "SELECT count(*) AS n FROM (SELECT k FROM p WHERE k > 1000) q RIGHT JOIN b USING (k)",
        ..WITH_EMPTY
    },
    Known {
        name: "the first rows of a join with a table without rows",
        query: "SELECT b.k FROM b LEFT JOIN e USING (k) ORDER BY b.k LIMIT 3",
        order: &["k"],
        ..WITH_EMPTY
    },
    Known {
        name: "row numbers over a join with a table without rows",
        query: "SELECT b.k, row_number() OVER (ORDER BY b.k) AS n FROM b LEFT JOIN e USING (k)",
        ..WITH_EMPTY
    },
    Known {
        name: "a union of a cross join and a table",
        query: "SELECT count(*) AS n FROM (SELECT b.k FROM a CROSS JOIN b UNION ALL SELECT k FROM b) q",
        ..WITH_AB
    },
    Known {
        name: "a union of an unequal join and a table",
        query: "SELECT count(*) AS n FROM (SELECT b.k FROM a JOIN b ON a.k < b.k UNION ALL SELECT k FROM b) q",
        ..WITH_AB
    },
    Known {
        name: "a union of an aggregate and a table",
        query: "SELECT count(*) AS n FROM (SELECT max(k) k FROM a UNION ALL SELECT k FROM b) q",
        ..WITH_AB
    },
    Known {
        name: "a union of a constant and a table",
        query: "SELECT count(*) AS n FROM (SELECT 1 k UNION ALL SELECT k FROM b) q",
        ..WITH_AB
    },
    Known {
        name: "the order of a join of two tables of some size",
        files: LARGE_FILES,
        tables: LARGE,
        query: "SELECT r.id FROM l JOIN r ON l.k = r.k WHERE l.v % 1 = 0 ORDER BY r.id",
        order: &["id"],
        ..PLAIN
    },
    Known {
        name: "the first rows of a join in the order of a side that is exchanged",
        query: "SELECT s.k FROM t JOIN s USING (v) ORDER BY s.k LIMIT 5",
        ..IN_ORDER
    },
    Known {
        name: "the first rows of a union of joins in the order of sides that are exchanged",
        query: "SELECT k FROM (SELECT s.k FROM t JOIN s USING (v) UNION ALL SELECT s.k + 1 AS k FROM t JOIN s USING (v)) q ORDER BY k LIMIT 5",
        ..IN_ORDER
    },
    Known {
        name: "the order of a join with constants",
        query: "SELECT b.k FROM b INNER JOIN (VALUES (3), (7), (50)) v(x) ON b.k > v.x ORDER BY b.k",
        order: &["k"],
        ..WITH_AB
    },
    Known {
        name: "a semi join by sort and merge on what is not distinct",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        query: "SELECT b.k FROM b LEFT SEMI JOIN a ON b.k IS NOT DISTINCT FROM a.k",
        ..WITH_AB
    },
    Known {
        name: "an anti join by sort and merge",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        query: "SELECT count(*) AS n FROM b LEFT ANTI JOIN a ON b.k = a.k LEFT ANTI JOIN (SELECT k + 20 AS k FROM a) c ON b.k = c.k",
        ..WITH_AB
    },
    Known {
        name: "a full join by sort and merge on a constant",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        query: "SELECT b.k AS x FROM (SELECT 20 AS c) r JOIN a ON r.c = a.k FULL JOIN b ON r.c = b.k",
        ..WITH_AB
    },
    Known {
        name: "a condition on one of two columns of a name, above a join",
        settings: &["ballista.optimizer.broadcast_join_threshold_bytes = 0"],
        query: "SELECT count(*) AS n FROM (SELECT k, k + 100 AS v FROM b) x FULL JOIN (SELECT k, 5 AS v, 1 AS w FROM a) y ON x.k IS NOT DISTINCT FROM y.k WHERE y.w <> 2 AND CASE WHEN x.v > 50 THEN y.w ELSE x.k END = 1 GROUP BY y.v",
        ..WITH_AB
    },
    Known {
        name: "one row of a full join",
        query: "SELECT a.k FROM a FULL JOIN b ON a.k = b.k + 1000 ORDER BY a.k LIMIT 1",
        order: &["k"],
        ..WITH_AB
    },
    Known {
        name: "an aggregate over anti joins",
        query: "SELECT count(*) AS n FROM b LEFT ANTI JOIN a ON b.k < a.k",
        ..WITH_AB
    },
    Known {
        name: "rows in the order of a value that equals an expression of itself",
        query: "SELECT array_agg(b.k ORDER BY -b.k, a.k, b.k) AS ks FROM a RIGHT JOIN b ON true WHERE nullif(b.k, -1) = b.k AND b.k < 4",
        ..WITH_AB
    },
    Known {
        name: "an order of the first none of rows",
        query: "SELECT array_agg(k ORDER BY k) AS ks FROM (SELECT k, k + 1 AS x FROM (SELECT k FROM a ORDER BY k LIMIT 1) c ORDER BY k, x LIMIT 5 OFFSET 1) d",
        ..WITH_AB
    },
    Known {
        name: "rows in the order of a value that equals an expression of another that it equals",
        query: "SELECT array_agg(b.k ORDER BY -b.k, a.k, b.k) AS ks FROM a RIGHT JOIN b ON true WHERE abs(b.k) = b.k + 0 AND abs(b.k) = b.k AND b.k < 4",
        // DataFusion alone fails.
        means: Some(
            "SELECT array_agg(b.k ORDER BY -b.k, a.k, b.k) AS ks FROM a RIGHT JOIN b ON true WHERE b.k < 4",
        ),
        ..WITH_AB
    },
];
