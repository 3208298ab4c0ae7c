CREATE TABLE a AS SELECT value AS k FROM range(1, 9);
SELECT count(*) AS n FROM (SELECT nullif(k, 3) AS n, nullif(k, 4) AS m FROM a) y, (SELECT nullif(k, 4) AS m FROM a) z
  JOIN (SELECT nullif(k, 3) AS n FROM a) w ON z.m IS NOT DISTINCT FROM w.n WHERE y.m = z.m;
-- 6
