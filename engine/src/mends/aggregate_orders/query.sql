SELECT last_value(k ORDER BY id, id DESC) AS v FROM (VALUES (1, 10), (2, 20)) t (id, k);
-- 20
