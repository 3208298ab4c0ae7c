SELECT k, min(x) AS m FROM (VALUES (1, CAST('inf' AS DOUBLE)), (1, CAST('inf' AS DOUBLE))) t (k, x) GROUP BY k;
-- 1,inf
