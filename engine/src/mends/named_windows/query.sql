SELECT x, sum(x) OVER (w ORDER BY x) FROM (VALUES (1, 1), (2, 1), (3, 2)) t (x, k) WINDOW w AS (PARTITION BY k) ORDER BY x;
-- 1,1
-- 2,3
-- 3,3
