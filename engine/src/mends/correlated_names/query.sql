SELECT count(*) AS n FROM (VALUES (1, 2)) o (x, y)
  WHERE EXISTS (SELECT 1 FROM (VALUES (1)) a (id), (VALUES (2)) b (id) WHERE a.id = o.x AND b.id = o.y);
-- 1
