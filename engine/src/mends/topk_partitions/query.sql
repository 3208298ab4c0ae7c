SET datafusion.execution.target_partitions = 3;
CREATE TABLE t AS SELECT value AS v, value % 2 AS s FROM range(1, 61);
SELECT count(*) AS wrong FROM
  (SELECT v, count(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN 5 PRECEDING AND 2 FOLLOWING) AS n FROM t LIMIT 31)
  WHERE n <> least((v + 1) / 2 - 1, 5) + 1 + least(30 - (v + 1) / 2, 2);
-- 0
