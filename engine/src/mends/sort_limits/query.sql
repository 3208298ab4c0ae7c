SET datafusion.optimizer.prefer_hash_join = false;
COPY (SELECT value AS k FROM range(1, 9)) TO 'DIR/a.csv';
CREATE EXTERNAL TABLE a (k INT) STORED AS CSV LOCATION 'DIR/a.csv' OPTIONS ('format.has_header' 'true');
SELECT a.t FROM (SELECT bool_and(k > 0) AS t FROM a) a LEFT SEMI JOIN (SELECT k > 5 AS t FROM a) b USING (t)
  ORDER BY a.t DESC LIMIT 1;
-- true
