SET datafusion.optimizer.prefer_hash_join = false;
CREATE TABLE a AS VALUES (1, 1, 9, 5), (2, 2, 9, 5);
CREATE TABLE b AS VALUES (1, 1, 7), (2, 2, 3);
SELECT a.column2 AS x, b.column1 AS y FROM a LEFT JOIN b ON a.column1 = b.column1 AND a.column4 < b.column3 ORDER BY x;
-- 1,1
-- 2,
