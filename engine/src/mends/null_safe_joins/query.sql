CREATE TABLE a AS SELECT value AS k FROM range(1, 4);
SELECT count(*) AS n FROM (SELECT nullif(k, 3) AS n FROM a) x
  JOIN (SELECT nullif(k, 2) AS n FROM a) y ON x.n IS NOT DISTINCT FROM y.n JOIN a ON true, a b
  WHERE b.k = a.k AND a.k = 1;
-- 2
