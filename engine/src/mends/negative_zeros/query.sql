SELECT count(*) OVER (PARTITION BY x) AS n, rank() OVER (ORDER BY x) AS r FROM (VALUES (0.0), (-0.0)) t (x);
-- 2,1
-- 2,1
