SELECT x FROM (VALUES (1), (1), (1)) a (x) INTERSECT ALL SELECT y FROM (VALUES (1), (1)) b (y);
-- 1
-- 1
