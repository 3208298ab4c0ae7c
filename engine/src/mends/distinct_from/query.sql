SELECT count(*) FROM (VALUES (false, true, false)) t (x, y, z) WHERE x IS NOT DISTINCT FROM y AND z;
-- 0
