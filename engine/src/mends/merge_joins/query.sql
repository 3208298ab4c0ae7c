SET datafusion.optimizer.prefer_hash_join = false;
CREATE TABLE a AS SELECT value + 10 AS z, value AS k FROM range(4, 8);
CREATE TABLE b AS SELECT value * 3 AS z, value AS k FROM range(4, 8);
SELECT a.k AS p, b.k AS q FROM a LEFT JOIN b ON a.k = b.k AND a.z < b.z ORDER BY p;
-- 4,
-- 5,
-- 6,6
-- 7,7
