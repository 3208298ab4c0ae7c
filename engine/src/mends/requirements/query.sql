SET datafusion.execution.target_partitions = 4;
SET datafusion.optimizer.hash_join_single_partition_threshold = 0;
SET datafusion.optimizer.hash_join_single_partition_threshold_rows = 0;
CREATE TABLE t AS SELECT value % 3 AS id, value AS k FROM generate_series(1, 10);
SELECT DISTINCT x.k, x.one FROM (SELECT b.k, a.id, 1 AS one FROM (SELECT id FROM t GROUP BY id) a
  FULL JOIN t b ON a.id = b.id) x CROSS JOIN t WHERE x.id = 1 ORDER BY k;
-- 1,1
-- 4,1
-- 7,1
-- 10,1
