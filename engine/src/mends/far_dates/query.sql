CREATE TABLE t AS SELECT arrow_cast(TIMESTAMP '2020-01-02 03:04:05', 'Timestamp(ns)') AS x;
SELECT x < DATE '9999-12-31' AS a, x BETWEEN DATE '1000-01-01' AND DATE '2019-12-31' AS b, DATE '9999-12-31' = x AS c FROM t;
-- true,false,false
