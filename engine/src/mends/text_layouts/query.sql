CREATE TABLE t AS SELECT 'one' AS a, arrow_cast('own', 'LargeUtf8') AS b;
SELECT levenshtein(a, b) AS n FROM t;
-- 2
