//! Clauses that DataFusion alone parses but does not plan, or plans as another clause: their answers are written
//! out.

use super::{Known, PLAIN};

const I: &str = "CREATE TABLE i AS SELECT column1 AS i FROM (VALUES (1), (2), (3), (NULL))";

const KEYS: &[&str] = &[
    "CREATE TABLE a AS SELECT column1 AS k, column2 AS x FROM (VALUES (1, 10), (2, 20))",
    "CREATE TABLE b AS SELECT column1 AS k, column2 AS y FROM (VALUES (2, 200), (3, 300))",
];

pub(super) const KNOWN: &[Known] = &[
    Known {
        name: "a window that builds upon a named one",
        query: "SELECT x, count(*) OVER (w ORDER BY x) AS n FROM (VALUES (1, 1), (2, 1), (3, 2), (4, 2)) AS t (x, y) WINDOW w AS (PARTITION BY y)",
        means: Some("SELECT * FROM (VALUES (1, 1), (2, 2), (3, 1), (4, 2)) AS t (x, n)"),
        ..PLAIN
    },
    Known {
        name: "a named window in an order and in QUALIFY",
        query: "SELECT x FROM (VALUES (1, 1), (2, 1), (3, 2), (4, 2)) AS t (x, y) WINDOW w AS (PARTITION BY y ORDER BY x DESC) QUALIFY row_number() OVER w = 1 ORDER BY sum(x) OVER w DESC",
        means: Some("SELECT * FROM (VALUES (4), (2)) AS t (x) ORDER BY x DESC"),
        order: &["x"],
        ..PLAIN
    },
    Known {
        name: "WITH ROLLUP",
        query: "SELECT y, count(*) AS n FROM (VALUES (1, 1), (2, 1), (3, 2), (4, 2)) AS t (x, y) GROUP BY y WITH ROLLUP",
        means: Some("SELECT * FROM (VALUES (1, 2), (2, 2), (NULL, 4)) AS t (y, n)"),
        ..PLAIN
    },
    Known {
        name: "WITH CUBE of positions",
        query: "SELECT x > 2 AS b, y, count(*) AS n FROM (VALUES (1, 1), (2, 1), (3, 2), (4, 2)) AS t (x, y) GROUP BY 1, 2 WITH CUBE",
        means: Some(
            "SELECT * FROM (VALUES (false, 1, 2), (true, 2, 2), (NULL, 1, 2), (NULL, 2, 2), (false, NULL, 2), (true, NULL, 2), (NULL, NULL, 4)) AS t (b, y, n)",
        ),
        ..PLAIN
    },
    Known {
        name: "groups by a tuple",
        query: "SELECT y, x > 3 AS b, count(*) AS n FROM (VALUES (1, 1), (2, 1), (3, 2), (4, 2)) AS t (x, y) GROUP BY (y, x > 3)",
        means: Some(
            "SELECT * FROM (VALUES (1, false, 2), (2, false, 1), (2, true, 1)) AS t (y, b, n)",
        ),
        ..PLAIN
    },
    Known {
        name: "FETCH FIRST beside an offset",
        query: "SELECT x FROM (VALUES (1), (2), (3), (4)) AS t (x) ORDER BY x OFFSET 1 ROWS FETCH FIRST 2 ROWS ONLY",
        means: Some("SELECT * FROM (VALUES (2), (3)) AS t (x) ORDER BY x"),
        order: &["x"],
        ..PLAIN
    },
    Known {
        name: "FROM alone, and SEMI JOIN",
        query: "FROM (VALUES (1, 1), (2, 1), (3, 2)) AS t (x, y) SEMI JOIN (VALUES (2), (3)) AS u (x) ON t.x = u.x",
        means: Some("SELECT * FROM (VALUES (2, 1), (3, 2)) AS t (x, y)"),
        ..PLAIN
    },
    Known {
        name: "EXCEPT ALL takes away as many copies",
        query: "SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (3, 'c')) AS l (x, s) EXCEPT ALL SELECT * FROM (VALUES (1, 'a'), (2, NULL), (2, NULL), (2, NULL), (4, 'd')) AS r (x, s)",
        means: Some("SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (3, 'c')) AS t (x, s)"),
        ..PLAIN
    },
    Known {
        name: "INTERSECT ALL keeps as many copies as both sides have",
        query: "SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (3, 'c')) AS l (x, s) INTERSECT ALL SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (2, NULL), (2, NULL), (2, NULL), (4, 'd')) AS r (x, s)",
        means: Some("SELECT * FROM (VALUES (1, 'a'), (1, 'a'), (2, NULL), (2, NULL)) AS t (x, s)"),
        ..PLAIN
    },
    Known {
        name: "EXCEPT ALL of other types, of itself and within others",
        tables: &[I],
        query: "SELECT i FROM i EXCEPT ALL (SELECT CAST(i AS BIGINT) FROM i WHERE i < 3 INTERSECT ALL (SELECT i FROM i EXCEPT ALL SELECT 2.0))",
        means: Some("SELECT * FROM (VALUES (2), (3), (NULL)) AS t (i)"),
        ..PLAIN
    },
    Known {
        name: "ANY of a column of the same name",
        tables: &[I],
        query: "SELECT i FROM i WHERE i > ANY (SELECT i FROM i)",
        means: Some("SELECT * FROM (VALUES (2), (3)) AS t (i)"),
        ..PLAIN
    },
    Known {
        name: "ALL of a column of the same name",
        tables: &[I],
        query: "SELECT i FROM i WHERE i >= ALL (SELECT i FROM i WHERE i IS NOT NULL)",
        means: Some("SELECT * FROM (VALUES (3)) AS t (i)"),
        ..PLAIN
    },
    Known {
        name: "= ANY and <> ALL are IN and NOT IN",
        tables: &[I],
        query: "SELECT i FROM i WHERE i = ANY (SELECT i FROM i) AND i <> ALL (SELECT i FROM i WHERE i = 1)",
        means: Some("SELECT * FROM (VALUES (2), (3)) AS t (i)"),
        ..PLAIN
    },
    Known {
        name: "ALL of no row, of NULL, and of what depends on the row",
        tables: &[I],
        query: "SELECT a.i FROM i a WHERE a.i < ALL (SELECT i FROM i WHERE i > 5) AND (a.i >= ALL (SELECT i FROM i)) IS NULL AND a.i + 1 > ALL (SELECT b.i FROM i b WHERE b.i = a.i)",
        means: Some("SELECT * FROM (VALUES (3), (NULL)) AS t (i)"),
        ..PLAIN
    },
    Known {
        name: "SIMILAR TO is of all of a text",
        query: "SELECT s FROM (VALUES ('abc'), ('b'), ('a.c'), ('bbb'), (NULL)) AS t (s) WHERE s SIMILAR TO 'a%|b+' AND s NOT SIMILAR TO 'a\\.c'",
        means: Some("SELECT * FROM (VALUES ('abc'), ('b'), ('bbb')) AS t (s)"),
        ..PLAIN
    },
    Known {
        name: "FULL JOIN USING has the key of the side that has one",
        tables: KEYS,
        query: "SELECT *, k + 1 AS n FROM a FULL JOIN b USING (k) WHERE k > 0 ORDER BY k",
        means: Some(
            "SELECT * FROM (VALUES (1, 10, NULL, 2), (2, 20, 200, 3), (3, NULL, 300, 4)) AS t (k, x, y, n) ORDER BY k",
        ),
        order: &["k"],
        ..PLAIN
    },
    Known {
        name: "all columns of LEFT JOIN USING, of a right table that comes first in the alphabet",
        tables: KEYS,
        query: "SELECT * FROM b LEFT JOIN a USING (k) WHERE k > 1",
        means: Some("SELECT * FROM (VALUES (2, 200, 20), (3, 300, NULL)) AS t (k, y, x)"),
        ..PLAIN
    },
    Known {
        name: "a side's own column beside LEFT JOIN USING",
        tables: KEYS,
        query: "SELECT k, y FROM b LEFT JOIN a USING (k) WHERE a.k IS NULL",
        means: Some("SELECT * FROM (VALUES (3, 300)) AS t (k, y)"),
        ..PLAIN
    },
    Known {
        name: "RIGHT JOIN USING, and a join by what was merged",
        tables: KEYS,
        query: "SELECT k, count(*) AS c, sum(z) AS z FROM (a RIGHT JOIN b USING (k)) LEFT JOIN (SELECT k, y AS z FROM b) d USING (k) GROUP BY k",
        means: Some("SELECT * FROM (VALUES (2, 1, 200), (3, 1, 300)) AS t (k, c, z)"),
        ..PLAIN
    },
    Known {
        name: "NATURAL FULL JOIN, with and without a common column",
        tables: KEYS,
        query: "SELECT k, v FROM (a NATURAL FULL JOIN b) NATURAL FULL JOIN (SELECT x AS v FROM a WHERE false) e",
        means: Some(
            "SELECT k, CAST(v AS BIGINT) AS v FROM (VALUES (1, NULL), (2, NULL), (3, NULL)) AS t (k, v)",
        ),
        ..PLAIN
    },
    Known {
        name: "IS NOT DISTINCT FROM binds more than AND and OR",
        query: "SELECT a, b, c, a IS NOT DISTINCT FROM b AND c AS x, a IS DISTINCT FROM b OR c AS y FROM (VALUES (false, false, false), (NULL, NULL, false), (true, false, true)) AS t (a, b, c)",
        means: Some(
            "SELECT * FROM (VALUES (false, false, false, false, false), (NULL, NULL, false, false, false), (true, false, true, false, true)) AS t (a, b, c, x, y)",
        ),
        ..PLAIN
    },
];
