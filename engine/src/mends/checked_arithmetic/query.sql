SELECT 9223372036854775807 + 1 AS s;
-- error: overflows
