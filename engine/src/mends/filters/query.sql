CREATE TABLE a AS SELECT value AS id, value AS k, value AS v FROM range(1, 9);
CREATE TABLE b AS SELECT value AS id, value AS k, 10 - value AS v FROM range(1, 9);
SELECT x, y FROM (SELECT a.v AS x, b.v AS y FROM a JOIN b ON a.id = b.id) WHERE x + random() > 7 ORDER BY x;
-- 7,3
-- 8,2
