//! Scalar subqueries: they must return one row, wherever they stand.

use super::{Known, PLAIN};

const FILES: &[&str] = &[
    "COPY (SELECT value AS k, value % 3 AS s FROM generate_series(1, 10)) TO 'DIR/t/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k, value % 3 AS s FROM generate_series(11, 15)) TO 'DIR/t/2.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(1, 3)) TO 'DIR/u/1.parquet' STORED AS PARQUET",
    "COPY (SELECT value AS k FROM generate_series(4, 5)) TO 'DIR/u/2.parquet' STORED AS PARQUET",
];
const TABLES: &[&str] = &[
    "CREATE EXTERNAL TABLE t (k BIGINT, s BIGINT) STORED AS PARQUET LOCATION 'DIR/t/'",
    "CREATE EXTERNAL TABLE u (k BIGINT) STORED AS PARQUET LOCATION 'DIR/u/'",
];
const ASKED: Known = Known {
    files: FILES,
    tables: TABLES,
    ..PLAIN
};
const FAILS: Known = Known {
    error: Some("Scalar subquery returned more than one row"),
    ..ASKED
};

/// Declared key that does not hold: files are not checked for it.
const DECLARED: Known = Known {
    tables: &[
        "CREATE EXTERNAL TABLE t (k BIGINT, s BIGINT) STORED AS PARQUET LOCATION 'DIR/t/'",
        "CREATE EXTERNAL TABLE declared (k BIGINT, s BIGINT PRIMARY KEY) STORED AS PARQUET LOCATION 'DIR/t/'",
    ],
    ..ASKED
};

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "groups of which lists are unnested, once each",
        query: "SELECT DISTINCT s FROM (SELECT s, unnest(l) AS u FROM (SELECT s, array_agg(k) AS l FROM t GROUP BY s))",
        means: Some("SELECT DISTINCT s FROM t"),
        ..ASKED
    },
    Known {
        name: "a value of rows of which lists are unnested, by their group",
        tables: &["CREATE TABLE m (k BIGINT NOT NULL, x INT) AS VALUES (1, 2), (1, 1)"],
        query: "SELECT o.k, (SELECT w.u FROM (SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(x) AS l FROM m GROUP BY k)) w WHERE w.k = o.k) AS u FROM (VALUES (1)) o (k)",
        refused: Some("Correlated scalar subquery must be aggregated"),
        ..PLAIN
    },
    Known {
        name: "a value of groups, by what they are grouped by",
        tables: &["CREATE TABLE m (k BIGINT NOT NULL, x INT) AS VALUES (1, 2), (1, 1)"],
        query: "SELECT o.k, (SELECT w.n FROM (SELECT k, count(*) AS n FROM m GROUP BY k) w WHERE w.k = o.k) AS n FROM (VALUES (1)) o (k)",
        means: Some("SELECT 1 AS k, 2 AS n"),
        ..PLAIN
    },
    Known {
        name: "settings of which lists are unnested, by their group",
        query: "SELECT count(*) - count(DISTINCT t) AS n FROM (SELECT DISTINCT t FROM (SELECT t, unnest(l) AS u FROM (SELECT left(name, 3) AS t, array_agg(name) AS l FROM information_schema.df_settings GROUP BY left(name, 3))))",
        means: Some("SELECT 0 AS n"),
        ..PLAIN
    },
    Known {
        name: "rows of which lists are unnested, by their group",
        query: "SELECT s, count(*) AS n FROM (SELECT s, unnest(l) AS u FROM (SELECT s, array_agg(k) AS l FROM t GROUP BY s)) GROUP BY s",
        means: Some("SELECT s, count(*) AS n FROM t GROUP BY s"),
        ..ASKED
    },
    Known {
        name: "a window over rows of which lists are unnested, in the order of their groups",
        query: "WITH w AS (SELECT s, unnest(l) AS u FROM (SELECT s, array_agg(k) AS l FROM t GROUP BY s)) SELECT s, sum(u) OVER (ORDER BY s) AS n FROM w",
        means: Some("SELECT s, sum(k) OVER (ORDER BY s) AS n FROM t"),
        ..ASKED
    },
    Known {
        name: "groups of groups of which lists are unnested",
        query: "SELECT count(*) AS n FROM (SELECT s, u FROM (SELECT s, unnest(l) AS u FROM (SELECT s, array_agg(k) AS l FROM t GROUP BY s)) GROUP BY s, u)",
        means: Some("SELECT 15 AS n"),
        ..ASKED
    },
    Known {
        name: "an order of groups of which lists are unnested",
        query: "SELECT s, u FROM (SELECT s, unnest(l) AS u FROM (SELECT s, array_agg(k) AS l FROM t GROUP BY s)) ORDER BY s, u DESC",
        means: Some("SELECT s, k AS u FROM t ORDER BY s, u DESC"),
        order: &["s", "u"],
        ..ASKED
    },
    Known {
        name: "values of a column that is said to be unique, once each",
        query: "SELECT DISTINCT s FROM declared",
        means: Some("SELECT DISTINCT s FROM t"),
        ..DECLARED
    },
    Known {
        name: "groups by a column that is said to be unique",
        query: "SELECT s, count(*) AS n FROM declared GROUP BY s",
        means: Some("SELECT s, count(*) AS n FROM t GROUP BY s"),
        ..DECLARED
    },
    Known {
        name: "an order by a column that is said to be unique",
        query: "SELECT s, k, sum(k) OVER (ORDER BY s) AS n FROM declared ORDER BY s, k DESC",
        means: Some("SELECT s, k, sum(k) OVER (ORDER BY s) AS n FROM t ORDER BY s, k DESC"),
        order: &["s", "k"],
        ..DECLARED
    },
    Known {
        name: "groups of a table in memory by a column that is said to be unique",
        tables: &[
            "CREATE TABLE m (k BIGINT, s BIGINT UNIQUE) AS VALUES (1, NULL), (2, NULL), (3, 7)",
        ],
        query: "SELECT s, count(*) AS n FROM m GROUP BY s",
        means: Some("SELECT * FROM (VALUES (NULL, 2), (7, 1)) v (s, n)"),
        ..PLAIN
    },
    Known {
        name: "a join by a primary key of rows of which lists are unnested",
        tables: &[
            "CREATE EXTERNAL TABLE keyed (k BIGINT PRIMARY KEY) STORED AS PARQUET LOCATION 'DIR/u/'",
        ],
        query: "SELECT a.k FROM keyed a JOIN (SELECT k, unnest(make_array(1, 2)) AS u FROM keyed) b ON a.k = b.k",
        means: Some("SELECT k FROM keyed UNION ALL SELECT k FROM keyed"),
        ..ASKED
    },
    Known {
        name: "grouping sets of a constant, in an order",
        query: "SELECT k, c, count(*) AS n FROM (SELECT 8 AS c, value AS k FROM generate_series(1, 3)) t WHERE k = 2 GROUP BY CUBE (c, k) ORDER BY k DESC NULLS FIRST, c DESC NULLS FIRST",
        means: Some(
            "SELECT * FROM (VALUES (NULL, NULL, 1), (NULL, 8, 1), (2, NULL, 1), (2, 8, 1)) AS t (k, c, n) ORDER BY k DESC NULLS FIRST, c DESC NULLS FIRST",
        ),
        order: &["k", "c"],
        ..PLAIN
    },
    Known {
        name: "a value of several rows in a projection",
        query: "SELECT k, (SELECT k FROM u) AS x FROM t",
        ..FAILS
    },
    Known {
        name: "a value of several rows in a condition",
        query: "SELECT k FROM t WHERE k > (SELECT k FROM u)",
        ..FAILS
    },
    Known {
        name: "a value of several groups",
        query: "SELECT k, (SELECT count(*) FROM u GROUP BY k) AS x FROM t",
        ..FAILS
    },
    Known {
        name: "a value of no row is NULL",
        query: "SELECT k, (SELECT k FROM u WHERE k > 100) AS x FROM t",
        ..ASKED
    },
    Known {
        name: "a value of one row, and one of a limit",
        query: "SELECT k, (SELECT k FROM u WHERE k = 2) AS x, (SELECT k FROM u ORDER BY k DESC LIMIT 1) AS y FROM t",
        ..ASKED
    },
    Known {
        name: "a value in an aggregate, a group and a condition of groups",
        query: "SELECT s + (SELECT min(k) FROM u) AS g, sum(k * (SELECT max(k) FROM u)) AS n FROM t GROUP BY s + (SELECT min(k) FROM u) HAVING sum(k) > (SELECT avg(k) FROM u)",
        ..ASKED
    },
    Known {
        name: "a value among the keys of grouping sets, named as a column",
        query: "SELECT count(*) AS n FROM (SELECT s AS k FROM t) x GROUP BY GROUPING SETS (((SELECT max(k) AS k FROM u)), ())",
        ..ASKED
    },
    Known {
        name: "a part of a struct beside a value",
        query: "SELECT r1.k FROM u r1 FULL JOIN (SELECT k, named_struct('b', s) AS n FROM t) r2 ON r1.k BETWEEN r2.k AND 3 WHERE r2.n['b'] BETWEEN (SELECT min(k) - 1 AS v FROM u) AND r2.k",
        ..ASKED
    },
    Known {
        name: "NOT IN a subquery that depends on the row, with NULLs on both sides",
        query: "SELECT k, s FROM (SELECT CASE WHEN k % 4 > 0 THEN k END AS k, s FROM t) a WHERE k NOT IN (SELECT CASE WHEN k < 5 THEN k END AS k FROM u WHERE u.k % 3 = a.s)",
        means: Some(
            "SELECT k, s FROM (SELECT CASE WHEN k % 4 > 0 THEN k END AS k, s FROM t) a WHERE s NOT IN (0, 1, 2) OR s = 1 AND k <> 1 AND k <> 4 OR s = 0 AND k <> 3",
        ),
        ..ASKED
    },
    Known {
        name: "NOT IN a subquery that depends on the row and has none",
        query: "SELECT k FROM (SELECT CASE WHEN k % 4 > 0 THEN k END AS k, s FROM t) a WHERE NOT k IN (SELECT u.k FROM u WHERE u.k = a.s + 2)",
        means: Some(
            "SELECT k FROM (SELECT CASE WHEN k % 4 > 0 THEN k END AS k, s FROM t) a WHERE k <> s + 2",
        ),
        ..ASKED
    },
    Known {
        name: "NOT IN a subquery that depends on the same column",
        query: "WITH w AS (SELECT k AS c FROM t WHERE s < 2) SELECT c FROM w r WHERE r.c NOT IN (SELECT x.k - 1 AS v FROM u x WHERE x.k = r.c + 1)",
        means: Some("SELECT k AS c FROM t WHERE s < 2 AND k > 4"),
        ..ASKED
    },
    Known {
        name: "NOT IN a subquery of two columns of one name",
        query: "SELECT b.x, b.k FROM (SELECT nullif(k, 4) AS x, s AS k FROM t) b WHERE b.x NOT IN (SELECT c.k FROM (SELECT k, s FROM t) a JOIN u c ON a.k = c.k WHERE a.s = b.k)",
        means: Some("SELECT nullif(k, 4) AS x, s AS k FROM t WHERE nullif(k, 4) > 5"),
        ..ASKED
    },
    Known {
        name: "NOT IN a subquery of the same table, unnamed",
        query: "SELECT t.k, b.s FROM t, (SELECT 1 AS s) b WHERE t.k NOT IN (SELECT t.k FROM t WHERE t.s = b.s AND t.k > 1)",
        means: Some("SELECT k, 1 AS s FROM t WHERE s <> 1 OR k = 1"),
        ..ASKED
    },
    Known {
        name: "a value not in a subquery that depends on the row",
        query: "SELECT k FROM t WHERE (SELECT max(k) AS v FROM u) NOT IN (SELECT k FROM u WHERE u.k = t.k)",
        means: Some("SELECT k FROM t WHERE k <> 5"),
        ..ASKED
    },
    Known {
        name: "NOT IN beside OR, of rows with NULL",
        query: "SELECT k FROM t WHERE k NOT IN (SELECT nullif(k, 3) AS k FROM u WHERE k < 4) OR s = 0 AND k > 5",
        means: Some("SELECT k FROM t WHERE s = 0 AND k > 5"),
        ..ASKED
    },
    Known {
        name: "NOT IN beside OR, of a value that is NULL",
        query: "SELECT k FROM t WHERE nullif(k, 2) NOT IN (SELECT 3) OR k = 3",
        means: Some("SELECT k FROM t WHERE k <> 2"),
        ..ASKED
    },
    Known {
        name: "NOT IN beside OR, of no rows",
        query: "SELECT k FROM t WHERE nullif(k, 2) NOT IN (SELECT k FROM u WHERE k > 100) OR k > 100",
        means: Some("SELECT k FROM t"),
        ..ASKED
    },
    Known {
        name: "NOT IN of a computed value that is NULL",
        query: "SELECT k FROM t WHERE CASE WHEN k = 3 THEN 1 END NOT IN (SELECT 5)",
        means: Some("SELECT k FROM t WHERE k = 3"),
        ..ASKED
    },
    Known {
        name: "NOT IN of a value of no row",
        query: "SELECT k FROM t WHERE (SELECT k FROM t WHERE k > 100) NOT IN (SELECT 5)",
        means: Some("SELECT k FROM t WHERE k > 100"),
        ..ASKED
    },
    Known {
        name: "IN that is NULL",
        query: "SELECT k FROM t WHERE (k IN (SELECT nullif(k, 3) AS k FROM u WHERE k < 4)) IS NULL",
        means: Some("SELECT k FROM t WHERE k > 2"),
        ..ASKED
    },
    Known {
        name: "IN in a CASE",
        query: "SELECT k FROM t WHERE CASE WHEN k IN (SELECT nullif(k, 3) AS k FROM u WHERE k < 4) THEN 1 WHEN k NOT IN (SELECT nullif(k, 3) AS k FROM u WHERE k < 4) THEN 2 ELSE 3 END = 3",
        means: Some("SELECT k FROM t WHERE k > 2"),
        ..ASKED
    },
    Known {
        name: "NOT IN beside OR that depends on the row",
        query: "SELECT k FROM t WHERE nullif(k, 4) NOT IN (SELECT nullif(k, 5) AS v FROM u WHERE u.k >= t.k) OR s > 100",
        means: Some("SELECT k FROM t WHERE k > 5"),
        ..ASKED
    },
    Known {
        name: "IN a subquery of two columns of one name that depends on the row",
        query: "SELECT k FROM t b WHERE b.k IN (SELECT c.k FROM t a JOIN (SELECT k AS k, k + 1 AS n FROM u) c ON a.k + 1 = c.k WHERE a.k = b.k - 1)",
        means: Some("SELECT k FROM t WHERE k BETWEEN 2 AND 5"),
        ..ASKED
    },
    Known {
        name: "IN a subquery whose value is called like a column",
        query: "SELECT k FROM t b WHERE b.s IN (SELECT c.k % 3 AS k FROM u c WHERE c.k = b.k)",
        means: Some("SELECT k FROM t WHERE k < 6"),
        ..ASKED
    },
    Known {
        name: "a value for each row of two columns of one name",
        query: "SELECT b.k, (SELECT max(a.k) FROM t a JOIN (SELECT k AS k, k + 1 AS n FROM u) c ON a.k + 1 = c.k WHERE c.k = b.k AND a.k = b.k - 1) AS n FROM t b",
        means: Some("SELECT k, CASE WHEN k BETWEEN 2 AND 5 THEN k - 1 END AS n FROM t"),
        ..ASKED
    },
    Known {
        name: "a value for each row, called like a column",
        query: "SELECT b.k, (SELECT sum(c.k + 1) AS k FROM u c WHERE c.k = b.k) AS n FROM t b",
        means: Some("SELECT k, CASE WHEN k < 6 THEN k + 1 END AS n FROM t"),
        ..ASKED
    },
    Known {
        name: "EXISTS of two columns of one name",
        query: "SELECT k FROM t b WHERE EXISTS (SELECT 1 FROM t a JOIN (SELECT k AS k, k + 1 AS n FROM u) c ON a.k + 1 = c.k WHERE a.k = b.k - 1 AND c.k = b.k AND a.s = b.s - 1)",
        means: Some("SELECT k FROM t WHERE k BETWEEN 2 AND 5 AND k <> 3"),
        ..ASKED
    },
    Known {
        name: "a part of a struct above a union",
        query: "SELECT r1.k AS c FROM t r1 JOIN ((SELECT DISTINCT named_struct('a', k, 'b', 'x') AS c FROM u) UNION ALL (SELECT named_struct('a', s, 'b', CAST(false AS VARCHAR)) AS c FROM t)) r5 ON true WHERE greatest(r1.k, r5.c['a']) > 14",
        ..ASKED
    },
    Known {
        name: "distinct rows of a merge join with a limit",
        settings: &["datafusion.optimizer.prefer_hash_join = false"],
        query: "SELECT DISTINCT r1.k AS c0 FROM t r1 JOIN u r2 ON r1.k = r2.k AND r1.s <> r2.k LIMIT 50",
        ..ASKED
    },
    Known {
        name: "a value over a lateral join",
        query: "WITH w AS (SELECT a.k AS x FROM u a JOIN LATERAL (SELECT b.s FROM t b WHERE b.k = a.k) c ON true) SELECT count((SELECT min(x) FROM w)) AS n FROM t",
        means: Some("SELECT count(*) AS n FROM t"),
        ..ASKED
    },
    Known {
        name: "NOT IN rows of a lateral join",
        query: "WITH w AS (SELECT a.k FROM u a JOIN LATERAL (SELECT b.s FROM t b WHERE b.k = a.k) c ON true) SELECT k FROM t WHERE k NOT IN (SELECT k FROM w)",
        means: Some("SELECT k FROM t WHERE k > 5"),
        ..ASKED
    },
    Known {
        name: "IN beside OR, of rows of a lateral join",
        query: "SELECT k FROM t WHERE k NOT IN (SELECT nullif(a.k, 4) FROM u a JOIN LATERAL (SELECT b.s FROM t b WHERE b.k = a.k) c ON true) OR k = 2",
        means: Some("SELECT k FROM t WHERE k = 2"),
        ..ASKED
    },
    Known {
        name: "EXISTS of all columns of a join",
        query: "SELECT k FROM t b WHERE EXISTS (SELECT * FROM t a JOIN u c ON a.k = c.k WHERE a.k = b.k)",
        means: Some("SELECT k FROM t WHERE k < 6"),
        ..ASKED
    },
    Known {
        name: "a constant NOT IN rows with NULL",
        query: "SELECT k FROM t WHERE 9 NOT IN (SELECT nullif(k, 3) AS y FROM u)",
        means: Some("SELECT k FROM t WHERE false"),
        ..ASKED
    },
    Known {
        name: "NOT IN beside OR within a subquery that depends on the row",
        query: "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u b WHERE b.k = t.k AND b.k NOT IN (SELECT nullif(k, 3) AS y FROM u))",
        means: Some("SELECT k FROM t WHERE false"),
        ..ASKED
    },
    Known {
        name: "two columns of one name beside a subquery of a subquery",
        query: "SELECT k FROM t b WHERE b.k IN (SELECT c.k FROM t a JOIN u c ON a.k + 1 = c.k WHERE a.k = b.k - 1 AND EXISTS (SELECT 1 FROM u d WHERE d.k = a.k))",
        means: Some("SELECT k FROM t WHERE k BETWEEN 2 AND 5"),
        ..ASKED
    },
    Known {
        name: "a lateral join of two columns of one name",
        query: "SELECT b.k, q.m FROM t b, LATERAL (SELECT max(a.k) AS m FROM t a JOIN u c ON a.k + 1 = c.k WHERE c.k = b.k AND a.k = b.k - 1) q",
        means: Some("SELECT k, CASE WHEN k BETWEEN 2 AND 5 THEN k - 1 END AS m FROM t"),
        ..ASKED
    },
    Known {
        name: "a lateral join that depends on a relation before its own join",
        query: "SELECT a.k, b.k AS bk, q.n FROM u a, (t b CROSS JOIN LATERAL (SELECT c.k AS n FROM u c WHERE a.k + b.s = c.k) q)",
        means: Some(
            "SELECT a.k, b.k AS bk, c.k AS n FROM u a CROSS JOIN t b JOIN u c ON a.k + b.s = c.k",
        ),
        ..ASKED
    },
    Known {
        name: "a lateral join with ON that depends on a relation before its own join",
        query: "SELECT a.k, b.k AS bk, q.n FROM u a, (t b JOIN LATERAL (SELECT c.k AS n FROM u c WHERE a.k + b.s = c.k) q ON b.k > 3)",
        means: Some(
            "SELECT a.k, b.k AS bk, c.k AS n FROM u a CROSS JOIN t b JOIN u c ON a.k + b.s = c.k WHERE b.k > 3",
        ),
        ..ASKED
    },
    Known {
        name: "a lateral join that depends on a relation before its own join, in a value",
        query: "SELECT (SELECT count(*) FROM u a, (t b CROSS JOIN LATERAL (SELECT c.k AS n FROM u c WHERE a.k + b.s = c.k) q)) AS n",
        means: Some("SELECT count(*) AS n FROM u a CROSS JOIN t b JOIN u c ON a.k + b.s = c.k"),
        ..ASKED
    },
    Known {
        name: "a lateral join below an outer one that depends on a relation before it",
        query: "SELECT a.k, b.k AS bk, q.n FROM u a LEFT JOIN (t b CROSS JOIN LATERAL (SELECT c.k AS n FROM u c WHERE a.k + b.s = c.k) q) ON true",
        refused: Some("LATERAL whose condition"),
        ..ASKED
    },
    Known {
        name: "NOT IN what depends on the row and asks another",
        query: "SELECT k FROM t WHERE k NOT IN (SELECT nullif(u.k, 2) FROM u WHERE u.k = t.k AND EXISTS (SELECT 1 FROM t n WHERE n.k = u.k + 1))",
        means: Some("SELECT k FROM t WHERE k > 5"),
        ..ASKED
    },
    Known {
        name: "a searched CASE of IN that depends on the row",
        query: "SELECT k FROM t WHERE CASE WHEN k IN (SELECT DISTINCT nullif(u.k, 2) FROM u WHERE u.k = t.k) THEN true ELSE false END",
        means: Some("SELECT k FROM t WHERE k < 6 AND k <> 2"),
        ..ASKED
    },
    Known {
        name: "NOT IN distinct rows that depend on the row, beside OR",
        query: "SELECT k FROM t WHERE k NOT IN (SELECT DISTINCT nullif(u.k, 2) FROM u WHERE u.k = t.k) OR k = 4",
        means: Some("SELECT k FROM t WHERE k > 5 OR k = 4"),
        ..ASKED
    },
    Known {
        name: "IN of the row's own value",
        query: "SELECT k FROM t WHERE (nullif(t.k, 3) IN (SELECT nullif(t.k, 3) FROM u)) IS NULL",
        means: Some("SELECT k FROM t WHERE k = 3"),
        ..ASKED
    },
    Known {
        name: "marks beside a column of an outer query",
        query: "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u b WHERE b.k = t.k AND (nullif(b.k, 2) NOT IN (SELECT nullif(k, 3) AS y FROM u) OR b.k = t.s))",
        refused: Some("several of IN and EXISTS"),
        ..ASKED
    },
    Known {
        name: "two columns of one name in a derived table that depends on the row",
        query: "SELECT k FROM t b WHERE EXISTS (SELECT 1 FROM (SELECT a.k, a.s FROM t a WHERE a.k = b.k) x JOIN u c ON c.k = x.k + 1 WHERE c.k = b.k + 1)",
        refused: Some("two of their columns have one name"),
        ..ASKED
    },
    Known {
        name: "a condition that is NULL above groups without keys",
        query: "SELECT 1 AS c FROM (SELECT 1 AS d FROM t GROUP BY CUBE (s)) a WHERE CAST(NULL AS BIGINT) IN (SELECT k FROM u)",
        means: Some("SELECT 1 AS c FROM t WHERE false"),
        ..ASKED
    },
    Known {
        name: "a table of counts for each row",
        tables: &[
            TABLES[0],
            TABLES[1],
            "CREATE TABLE z AS SELECT (SELECT count(*) AS n FROM u WHERE u.k = t.k) AS n FROM t",
        ],
        query: "SELECT n FROM z",
        ..ASKED
    },
    Known {
        name: "values that nobody reads, beside each other",
        query: "SELECT t.k FROM t, (SELECT (SELECT max(k) AS v FROM u) AS x, (SELECT min(k) AS v FROM u) AS y FROM u WHERE k = 1) z, (SELECT 1 AS one) w",
        ..ASKED
    },
    Known {
        name: "a value in an order",
        query: "SELECT k FROM t ORDER BY abs(k - (SELECT max(k) FROM u)), k LIMIT 4",
        order: &[],
        ..ASKED
    },
    Known {
        name: "a value in a window",
        query: "SELECT k, lag(k + (SELECT max(k) FROM u)) OVER (ORDER BY k) AS x, sum(k - (SELECT min(k) FROM u)) OVER (PARTITION BY s) AS y FROM t",
        ..ASKED
    },
    Known {
        name: "values in the conditions of joins",
        query: "SELECT a.k, b.k AS x FROM t a LEFT JOIN u b ON a.k = b.k AND b.k < (SELECT max(k) FROM u) FULL JOIN u c ON c.k = a.k + (SELECT min(k) FROM u)",
        ..ASKED
    },
    Known {
        name: "a value in a value, and in EXISTS",
        query: "SELECT k FROM t WHERE k <= (SELECT max(k) FROM u WHERE k < (SELECT max(k) FROM u)) OR EXISTS (SELECT 1 FROM u WHERE u.k + 10 = t.k AND u.k > (SELECT min(k) FROM u))",
        ..ASKED
    },
    Known {
        name: "a value in a subquery of rows",
        query: "SELECT k, (SELECT count(*) FROM u WHERE u.k = t.k AND u.k > (SELECT min(k) FROM u)) AS x FROM t",
        ..ASKED
    },
    Known {
        name: "values in a union, DISTINCT and CASE",
        query: "SELECT DISTINCT CASE WHEN k > (SELECT avg(k) FROM u) THEN (SELECT max(k) FROM u) END AS x FROM t UNION ALL SELECT (SELECT count(*) FROM t)",
        ..ASKED
    },
    Known {
        name: "values in grouping sets",
        query: "SELECT s + (SELECT min(k) FROM u) AS g, k, count(*) AS n FROM t GROUP BY GROUPING SETS ((s + (SELECT min(k) FROM u), k), (k), ())",
        ..ASKED
    },
    Known {
        name: "a value of statistics in a union",
        query: "SELECT k + 1 AS x FROM t UNION SELECT (SELECT max(k) FROM u) AS x FROM t",
        ..ASKED
    },
    Known {
        name: "a value that is looked for among rows",
        query: "SELECT k FROM t WHERE (SELECT max(k) FROM u) IN (SELECT k FROM u WHERE k > 1) OR k < 1",
        ..ASKED
    },
    Known {
        name: "a value without a table",
        query: "SELECT (SELECT max(k) FROM u) + 1 AS x, (SELECT 7) AS y",
        ..ASKED
    },
    Known {
        name: "a text, a list and a struct as values",
        query: "SELECT (SELECT 'x' || k FROM u WHERE k = 1) AS a, (SELECT [k, NULL] FROM u WHERE k = 1) AS b, (SELECT {'k': k} FROM u WHERE k = 1) AS c FROM t LIMIT 1",
        ..ASKED
    },
    Known {
        name: "a value of statistics that is NULL or not, beside rows",
        query: "SELECT k + 1 AS x FROM t UNION ALL SELECT m.x FROM (SELECT max(k) AS x FROM u HAVING max(k) > 1) m CROSS JOIN t",
        ..ASKED
    },
    Known {
        name: "a sum of decimals beside what is distinct",
        files: &[
            "COPY (SELECT value AS k, CAST(value AS DECIMAL(12, 2)) AS d FROM generate_series(1, 9)) TO 'DIR/d/1.csv' STORED AS CSV",
        ],
        tables: &[
            "CREATE EXTERNAL TABLE d (k BIGINT, d DECIMAL(12, 2)) STORED AS CSV LOCATION 'DIR/d/' OPTIONS ('format.has_header' 'true')",
        ],
        query: "SELECT count(DISTINCT k) AS n, sum(d) AS s, arrow_typeof(sum(d)) AS t FROM d HAVING CAST(sum(d) AS DECIMAL(12, 2)) <= CAST(50 AS DECIMAL(12, 2))",
        // DataFusion alone fails.
        means: Some("SELECT 9 AS n, CAST(45 AS DECIMAL(22, 2)) AS s, 'Decimal128(22, 2)' AS t"),
        ..PLAIN
    },
];
