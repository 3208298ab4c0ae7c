CREATE TABLE t (a VARCHAR COLLATE nocase) AS VALUES ('A');
SELECT a = 'a' FROM t;
-- error: not supported: COLLATE nocase of column a
