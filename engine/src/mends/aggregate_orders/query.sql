CREATE TABLE t AS SELECT value AS id, 10 - value AS k FROM range(0, 6);
SELECT last_value(k ORDER BY id, id DESC) AS v FROM t;
-- 5
