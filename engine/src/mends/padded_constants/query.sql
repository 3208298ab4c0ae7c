CREATE TABLE b AS SELECT value AS id FROM range(1, 41);
CREATE TABLE a AS SELECT value AS id, 5 AS k FROM range(1, 41, 2);
SELECT b.id, x.k FROM b LEFT JOIN (SELECT * FROM a WHERE k = 5) x ON b.id = x.id ORDER BY x.k NULLS FIRST, b.id LIMIT 3;
-- 2,
-- 4,
-- 6,
