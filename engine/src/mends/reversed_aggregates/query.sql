COPY (SELECT i AS y FROM range(0, 1000) AS r (i)) TO 'DIR/t/1.parquet';
COPY (SELECT i AS y FROM range(1000, 2000) AS r (i)) TO 'DIR/t/2.parquet';
COPY (SELECT i AS k FROM range(0, 7) AS r (i)) TO 'DIR/s.parquet';
CREATE EXTERNAL TABLE t (y BIGINT) STORED AS PARQUET WITH ORDER (y) LOCATION 'DIR/t/';
CREATE EXTERNAL TABLE s STORED AS PARQUET LOCATION 'DIR/s.parquet';
SELECT nth_value(y, 2 ORDER BY y DESC) AS v FROM t JOIN s ON s.k = t.y % 7;
-- 1998
