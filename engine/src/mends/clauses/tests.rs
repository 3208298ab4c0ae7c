use datafusion::execution::SessionStateBuilder;
use datafusion::sql::parser::DFParser;

use super::*;
use crate::mends::list::{Act, MENDS};

/// Returns a statement's text after normalization.
fn normalized(sql: &str) -> Result<String> {
    let mut statement = DFParser::parse_sql(sql)?.pop_front().unwrap();
    let clauses = MENDS.iter().flat_map(|mend| mend.acts);
    let clauses = clauses.filter_map(|act| match act {
        Act::Clause(clause) => Some(clause),
        _ => None,
    });
    let state = SessionStateBuilder::new_with_default_features().build();
    normalize(&mut statement, clauses.collect(), &state)?;
    Ok(statement.to_string())
}

#[test]
fn clauses_are_rewritten_as_those_that_are_planned() {
    for (sql, due) in [
        (
            "SELECT sum(x) OVER (w ORDER BY y ROWS 1 PRECEDING), max(x) OVER W FROM t WINDOW w AS (PARTITION BY k)",
            "SELECT sum(x) OVER (PARTITION BY k ORDER BY y ROWS 1 PRECEDING), max(x) OVER (PARTITION BY k) FROM t",
        ),
        (
            "SELECT 1 FROM t WINDOW a AS (PARTITION BY k), b AS (a ORDER BY y), c AS b \
             QUALIFY sum(x) OVER (c ROWS 1 PRECEDING) > 1 ORDER BY min(x) OVER b",
            "SELECT 1 FROM t QUALIFY sum(x) OVER (PARTITION BY k ORDER BY y ROWS 1 PRECEDING) > 1 \
             ORDER BY min(x) OVER (PARTITION BY k ORDER BY y)",
        ),
        (
            "SELECT (SELECT max(y) OVER w FROM u WINDOW w AS (ORDER BY y)), max(x) OVER w FROM t WINDOW w AS (ORDER BY x)",
            "SELECT (SELECT max(y) OVER (ORDER BY y) FROM u), max(x) OVER (ORDER BY x) FROM t",
        ),
        (
            "SELECT max(x) OVER w FROM t WINDOW w AS (ORDER BY x) UNION SELECT max(x) OVER w FROM t WINDOW w AS (ORDER BY y)",
            "SELECT max(x) OVER (ORDER BY x) FROM t UNION SELECT max(x) OVER (ORDER BY y) FROM t",
        ),
        (
            "SELECT a, b FROM t ORDER BY all DESC NULLS LAST",
            "SELECT a, b FROM t ORDER BY ALL DESC NULLS LAST",
        ),
        (
            "SELECT \"all\" FROM t ORDER BY \"all\"",
            "SELECT \"all\" FROM t ORDER BY \"all\"",
        ),
        (
            "SELECT a, b FROM t GROUP BY (a, b), c",
            "SELECT a, b FROM t GROUP BY a, b, c",
        ),
        (
            "SELECT a, b FROM t GROUP BY a, b WITH ROLLUP",
            "SELECT a, b FROM t GROUP BY ROLLUP (a, b)",
        ),
        (
            "SELECT a + 1 AS c, b FROM t GROUP BY 1, 2 WITH CUBE",
            "SELECT a + 1 AS c, b FROM t GROUP BY CUBE (a + 1, b)",
        ),
        (
            "SELECT a, b FROM t GROUP BY GROUPING SETS ((1, 2), ())",
            "SELECT a, b FROM t GROUP BY GROUPING SETS ((a, b), ())",
        ),
        (
            "SELECT a FROM t FETCH FIRST ROW ONLY",
            "SELECT a FROM t LIMIT 1",
        ),
        (
            "SELECT a FROM t ORDER BY a OFFSET 2 ROWS FETCH NEXT 3 ROWS ONLY",
            "SELECT a FROM t ORDER BY a LIMIT 3 OFFSET 2 ROWS",
        ),
        (
            "COPY (FROM t) TO 'x.csv' STORED AS CSV",
            "COPY (SELECT * FROM t) TO x.csv STORED AS CSV",
        ),
        (
            "SELECT * FROM t ANTI JOIN u ON t.a = u.a SEMI JOIN v USING (a)",
            "SELECT * FROM t LEFT ANTI JOIN u ON t.a = u.a LEFT SEMI JOIN v USING(a)",
        ),
        (
            "SELECT * FROM a FULL JOIN b USING (k) JOIN c ON true NATURAL RIGHT JOIN d LEFT JOIN e USING (k) ORDER BY x",
            "SELECT * FROM (((a FULL JOIN b USING(k)) __merged JOIN c ON true NATURAL RIGHT JOIN d) __merged \
             LEFT JOIN e USING(k)) __merged ORDER BY x",
        ),
        (
            "SELECT k, b.y FROM (a JOIN b USING (k)) j, (d RIGHT JOIN e ON true) UNION SELECT k FROM a JOIN b USING (k)",
            "SELECT k, b.y FROM ((a JOIN b USING(k)) __merged) j, (d RIGHT JOIN e ON true) UNION SELECT k FROM (a JOIN b USING(k)) __merged",
        ),
        (
            "SELECT k FROM a LEFT JOIN b USING (k) WHERE b.k IS NULL",
            "SELECT k FROM a LEFT JOIN b USING(k) WHERE b.k IS NULL",
        ),
        (
            "SELECT y FROM a FULL JOIN b USING (k) ORDER BY b.k",
            "SELECT y FROM a FULL JOIN b USING(k) ORDER BY b.k",
        ),
        (
            "SELECT x IS NOT DISTINCT FROM y AND z OR NOT a IS DISTINCT FROM b FROM t JOIN u ON x IS DISTINCT FROM (y OR z)",
            "SELECT x IS NOT DISTINCT FROM y AND z OR NOT a IS DISTINCT FROM b FROM t JOIN u ON x IS DISTINCT FROM (y OR z)",
        ),
        (
            "SELECT a SIMILAR TO 'a%|(b_)+.' AND NOT b NOT SIMILAR TO '[^%_]x%y_x.' ESCAPE 'x' FROM t",
            "SELECT (a ~ '^(?s:a.*|(b.)+\\.)$') AND NOT (b !~ '^(?s:[^%_]%y.\\.)$') FROM t",
        ),
    ] {
        assert_eq!(
            normalized(sql).unwrap_or_else(|e| panic!("{sql}: {e}")),
            due,
            "{sql}"
        );
    }
}

#[test]
fn what_is_planned_stays_as_it_is() {
    for sql in [
        "SELECT count(DISTINCT a), sum(b) FILTER (WHERE b > 1) FROM t GROUP BY ALL",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x), median(x) OVER (ORDER BY y) FROM t",
        "SELECT quantile_cont(x, 0.5 ORDER BY (x) DESC) FROM t",
        "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT * FROM r LIMIT 3",
        "SELECT * FROM t AS u (a, b) JOIN v ON true CROSS JOIN LATERAL (SELECT 1) AS w",
        "SELECT (a, b) FROM t GROUP BY GROUPING SETS ((a), ())",
        "CREATE TABLE t (a INT NOT NULL DEFAULT 1 PRIMARY KEY, b VARCHAR COMMENT 'x')",
    ] {
        assert_eq!(normalized(sql).unwrap(), sql);
    }
}

#[test]
fn what_would_be_ignored_is_refused_by_name() {
    let mut wrong = vec![];
    for (sql, due) in [
        ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        (
            "SELECT * FROM (SELECT 1) AS t TABLESAMPLE RESERVOIR (5)",
            "TABLESAMPLE",
        ),
        ("SELECT * FROM range(3) WITH ORDINALITY", "WITH ORDINALITY"),
        (
            "SELECT * FROM f() AS t (a INT)",
            "types of the columns of t",
        ),
        ("SELECT a FROM t FOR UPDATE", "FOR UPDATE"),
        (
            "SELECT a FROM t WHERE NOT (a, b) IN (SELECT x, y FROM u)",
            "(a, b) IN (SELECT",
        ),
        (
            "SELECT a FROM t UNION ALL SELECT 9 ORDER BY ALL",
            "ORDER BY ALL",
        ),
        ("SELECT a FROM t FETCH FIRST 3 ROWS WITH TIES", "WITH TIES"),
        ("SELECT a FROM t FETCH FIRST 3 PERCENT ROWS ONLY", "PERCENT"),
        (
            "SELECT a FROM t LIMIT 3 FETCH FIRST 3 ROWS ONLY",
            "there is LIMIT 3 already",
        ),
        ("SELECT a FROM t SETTINGS x = 1", "SETTINGS"),
        ("SELECT a FROM t FORMAT JSON", "FORMAT"),
        ("SELECT a FROM t PREWHERE a = 1", "PREWHERE"),
        ("SELECT a FROM t CONNECT BY a = 1", "CONNECT BY"),
        ("SELECT 1 UNION SELECT 2 INTO t", "INTO"),
        (
            "SELECT a FROM t GROUP BY ALL WITH ROLLUP",
            "GROUP BY ALL with a modifier",
        ),
        ("SELECT a FROM t GROUP BY a WITH TOTALS", "WITH TOTALS"),
        (
            "SELECT a FROM t GROUP BY a WITH ROLLUP WITH CUBE",
            "several modifiers",
        ),
        (
            "SELECT a FROM t GROUP BY ROLLUP (a, 7)",
            "there is no position 7",
        ),
        (
            "SELECT * FROM t LEFT JOIN u",
            "LEFT JOIN u: it has no condition",
        ),
        (
            "SELECT * FROM (t FULL JOIN u)",
            "FULL JOIN u: it has no condition",
        ),
        ("SELECT sum(x) OVER w FROM t", "window w is not defined"),
        (
            "SELECT sum(x) OVER v FROM t WINDOW w AS (), u AS ()",
            "these are: w, u",
        ),
        (
            "SELECT sum(x) OVER (w PARTITION BY a) FROM t WINDOW w AS ()",
            "PARTITION BY",
        ),
        (
            "SELECT sum(x) OVER (w ORDER BY a) FROM t WINDOW w AS (ORDER BY b)",
            "its own ORDER BY",
        ),
        (
            "SELECT sum(x) OVER (w) FROM t WINDOW w AS (ORDER BY b ROWS 1 PRECEDING)",
            "has a frame",
        ),
        (
            "SELECT 1 FROM t WINDOW w AS (), w AS ()",
            "w is defined twice",
        ),
        (
            "SELECT 1 FROM t WINDOW w AS (v), v AS ()",
            "window v is not defined",
        ),
        (
            "SELECT abs(DISTINCT a) FROM t",
            "DISTINCT in abs(DISTINCT a)",
        ),
        ("SELECT upper(a) FILTER (WHERE b) FROM t", "FILTER"),
        ("SELECT Abs(a) OVER () FROM t", "OVER in"),
        ("SELECT concat(a ORDER BY b) FROM t", "ORDER BY in"),
        ("SELECT abs(a) IGNORE NULLS FROM t", "IGNORE NULLS"),
        (
            "SELECT quantile_cont(x, 0.5 ORDER BY y) FROM t",
            "order by the first argument",
        ),
        ("SELECT f(1)(a) FROM t", "two lists of arguments"),
        (
            "SELECT 1 FROM t WHERE z AND x IS NOT DISTINCT FROM y OR w",
            "in parentheses",
        ),
        (
            "SELECT 1 FROM t WHERE NOT x IS NOT DISTINCT FROM y AND w",
            "in parentheses",
        ),
        (
            "SELECT any_value(a ORDER BY b) FROM t",
            "first_value(x ORDER BY y)",
        ),
        ("SELECT * ILIKE 'a%' FROM t", "* ILIKE 'a%'"),
        ("SELECT a SIMILAR TO b FROM t", "a pattern that is computed"),
        (
            "SELECT a SIMILAR TO 'b' ESCAPE 'xy' FROM t",
            "several characters",
        ),
        (
            "EXPLAIN SELECT * FROM t TABLESAMPLE (1 ROWS)",
            "TABLESAMPLE",
        ),
        (
            "COPY (SELECT * FROM t TABLESAMPLE (1 ROWS)) TO 'x' STORED AS CSV",
            "TABLESAMPLE",
        ),
        ("SELECT * FROM a POSITIONAL JOIN b", "POSITIONAL JOIN"),
        ("SELECT * FROM a any LEFT JOIN b ON a.k = b.k", "any JOIN"),
        ("DROP TABLE t CASCADE", "CASCADE and RESTRICT of DROP TABLE"),
        ("DROP VIEW IF EXISTS t RESTRICT", "RESTRICT of DROP VIEW"),
        ("DROP TABLE t PURGE", "PURGE"),
        ("CREATE SECURE VIEW v AS SELECT 1", "SECURE"),
        (
            "CREATE TABLE t (a VARCHAR COLLATE nocase)",
            "COLLATE nocase of column a",
        ),
        (
            "CREATE TABLE t (a INT GENERATED ALWAYS AS (1) STORED)",
            "of column a",
        ),
        (
            "CREATE EXTERNAL TABLE t (a VARCHAR COLLATE nocase) STORED AS CSV LOCATION 'x'",
            "COLLATE nocase of column a",
        ),
        ("CREATE SCHEMA s WITH (a = 1)", "options of a schema"),
    ] {
        let said = match normalized(sql) {
            Err(error) => error.to_string(),
            Ok(said) => said,
        };
        if !said.contains(due) {
            wrong.push(format!("{sql}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
