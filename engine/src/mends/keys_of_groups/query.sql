CREATE TABLE t AS SELECT value % 7 AS k FROM range(0, 70);
SELECT k FROM (SELECT row_number() OVER (ORDER BY n, k DESC) AS r, k FROM
  (SELECT count(*) AS n, k FROM t GROUP BY k ORDER BY n LIMIT 10)) ORDER BY r;
-- 6
-- 5
-- 4
-- 3
-- 2
-- 1
-- 0
