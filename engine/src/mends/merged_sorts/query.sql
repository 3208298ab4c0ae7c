COPY (SELECT 1 AS n, k FROM (VALUES (0), (1), (8), (9)) v (k)) TO 'DIR/t/1.csv';
COPY (SELECT 1 AS n, k FROM (VALUES (2), (3), (4), (5)) v (k)) TO 'DIR/t/2.csv';
CREATE EXTERNAL TABLE t (n INT, k INT) STORED AS CSV LOCATION 'DIR/t/' OPTIONS ('format.has_header' 'true');
SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 9) ORDER BY n, k;
-- 1,0
-- 1,1
-- 1,2
-- 1,3
-- 1,4
-- 1,5
-- 1,8
-- 1,9
