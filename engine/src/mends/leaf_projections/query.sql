CREATE TABLE t AS SELECT named_struct('x', 1) AS s, 2 AS x;
SELECT s['x'] AS v, y FROM (SELECT s, x AS y, 3 AS x FROM (SELECT s, x FROM t LIMIT 1));
-- 1,2
