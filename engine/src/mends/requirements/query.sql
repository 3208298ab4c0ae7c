SET datafusion.execution.target_partitions = 4;
COPY (SELECT value % 3 AS id, value AS k FROM generate_series(1, 10)) TO 'DIR/t.csv';
CREATE EXTERNAL TABLE t (id BIGINT, k BIGINT) STORED AS CSV LOCATION 'DIR/t.csv' OPTIONS ('format.has_header' 'true');
SELECT DISTINCT x.k, x.one FROM (SELECT b.k, a.id, 1 AS one FROM (SELECT id FROM t GROUP BY id) a
  FULL JOIN t b ON a.id = b.id) x CROSS JOIN t WHERE x.id = 1;
-- 1,1
-- 10,1
-- 4,1
-- 7,1
