COPY (SELECT 1 AS n, value AS k FROM range(0, 6)) TO 'DIR/t/1.csv';
COPY (SELECT 1 AS n, value - 4 AS k FROM range(0, 3)) TO 'DIR/t/2.csv';
CREATE EXTERNAL TABLE t (n INT, k INT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true');
SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 9) ORDER BY n, k;
-- 1,-4
-- 1,-3
-- 1,-2
-- 1,0
-- 1,1
-- 1,2
-- 1,3
-- 1,4
-- 1,5
