SET datafusion.execution.target_partitions = 3;
CREATE TABLE t AS SELECT value AS v, (value % 2) * 11 AS s FROM range(1, 61);
SELECT s, v, n FROM (SELECT s, v, count(v) OVER (PARTITION BY s ORDER BY v ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS n
  FROM t LIMIT 31) WHERE n < 3 AND v < 57;
