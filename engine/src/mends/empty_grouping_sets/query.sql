CREATE TABLE t AS SELECT value AS k FROM range(1, 3);
SELECT count(*) AS n FROM t HAVING (SELECT max(k) FROM t) < 0;
