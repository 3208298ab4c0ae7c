COPY (SELECT i % 10 AS v, (i + 1) % 10 AS w FROM range(0, 100) AS t (i)) TO 'DIR/t.parquet';
CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'DIR/t.parquet';
SELECT count(DISTINCT v) AS a, count(DISTINCT w) AS b FROM t WHERE v = 5 AND w = 2;
-- 0,0
