SET datafusion.optimizer.prefer_hash_join = false;
CREATE TABLE a AS SELECT value AS k FROM range(1, 9);
SELECT a.t FROM (SELECT bool_and(k > 0) AS t FROM a) a LEFT SEMI JOIN (SELECT k > 5 AS t FROM a) b USING (t)
  ORDER BY a.t DESC LIMIT 1;
-- true
