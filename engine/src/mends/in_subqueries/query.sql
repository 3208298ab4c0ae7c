SELECT x FROM (VALUES (1), (2)) a (x) WHERE 3 NOT IN (SELECT y FROM (VALUES (1, 1), (NULL, 2)) b (y, z) WHERE z = x);
-- 1
