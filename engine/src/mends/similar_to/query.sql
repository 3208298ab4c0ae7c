SELECT 'abc' SIMILAR TO 'a%', 'abc' SIMILAR TO 'b';
-- true,false
