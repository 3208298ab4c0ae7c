CREATE TABLE t (x INT) AS VALUES (1), (2);
SELECT count(*) FROM t TABLESAMPLE (1 ROWS);
-- error: not supported: TABLESAMPLE
