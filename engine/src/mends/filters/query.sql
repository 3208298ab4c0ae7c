CREATE TABLE a AS SELECT value AS id, value AS v FROM range(1, 9);
CREATE TABLE b AS SELECT value AS id, value + 100 AS v FROM range(1, 9);
SELECT * FROM (SELECT a.v, b.v AS y FROM a FULL JOIN b ON a.id = b.id) x
  WHERE y > 100 AND coalesce(x.v, 0) + y > 113 ORDER BY y;
-- 7,107
-- 8,108
