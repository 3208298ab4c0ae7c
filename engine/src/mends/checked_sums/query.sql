SELECT sum(x) AS s FROM (VALUES (9223372036854775807), (1)) t (x);
-- error: sum overflows Int64
