SELECT count(*) FROM (VALUES (DATE '2015-07-31')) t (day) WHERE day = 20150731;
-- error: cannot compare t.day (Date32) with 20150731 (Int64)
