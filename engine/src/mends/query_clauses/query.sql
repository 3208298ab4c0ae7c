SELECT count(*) FROM (VALUES (1), (2)) t (x) PREWHERE x = 1;
-- error: not supported: PREWHERE
