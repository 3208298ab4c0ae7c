CREATE TABLE t AS SELECT column1 AS id, column2 AS k FROM (VALUES (1, NULL), (2, 7), (3, 9));
SELECT id FROM (SELECT id, max(k) OVER (ORDER BY id) AS m FROM t) ORDER BY m;
-- 2
-- 3
-- 1
