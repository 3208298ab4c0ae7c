SELECT k FROM (VALUES (1)) a (k) FULL JOIN (VALUES (2)) b (k) USING (k) ORDER BY k;
-- 1
-- 2
