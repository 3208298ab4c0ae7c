SELECT abs(DISTINCT x) FROM (VALUES (1), (1)) t (x);
-- error: not supported: DISTINCT in abs(DISTINCT x)
