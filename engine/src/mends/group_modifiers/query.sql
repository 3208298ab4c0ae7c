SELECT k, count(*) FROM (VALUES (1), (1), (2)) t (k) GROUP BY k WITH ROLLUP ORDER BY k;
-- 1,2
-- 2,1
-- ,3
