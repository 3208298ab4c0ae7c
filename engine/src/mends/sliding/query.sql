SELECT id, sum(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s
  FROM (VALUES (1, 1.0), (2, CAST('NaN' AS DOUBLE)), (3, 2.0), (4, 3.0)) t (id, x) ORDER BY id;
-- 1,1.0
-- 2,NaN
-- 3,NaN
-- 4,5.0
