SELECT count(*) AS n FROM (SELECT DISTINCT k FROM (SELECT k, unnest(l) AS u FROM
  (SELECT k, array_agg(x) AS l FROM (VALUES (1, 2), (1, 1), (2, 3)) v (k, x) GROUP BY k)));
-- 2
