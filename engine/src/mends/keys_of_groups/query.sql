CREATE TABLE t AS SELECT value % 4 AS k FROM range(0, 40);
SELECT k FROM (SELECT count(*) AS n, k FROM t GROUP BY k ORDER BY n LIMIT 10) ORDER BY n, k DESC;
-- 3
-- 2
-- 1
-- 0
