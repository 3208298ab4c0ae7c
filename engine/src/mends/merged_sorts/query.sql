CREATE TABLE a AS SELECT value AS k FROM range(1, 9);
(SELECT 5 AS x, k FROM a) UNION ALL (SELECT -2 AS x, count(*) FROM a) ORDER BY x, k LIMIT 3;
-- -2,8
-- 5,1
-- 5,2
