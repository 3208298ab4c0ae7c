COPY (SELECT value AS k FROM range(1, 3)) TO 'DIR/a.csv';
COPY (SELECT value AS k FROM range(1, 5)) TO 'DIR/b.csv';
CREATE EXTERNAL TABLE a (k INT) STORED AS CSV LOCATION 'DIR/a.csv' OPTIONS ('format.has_header' 'true');
CREATE EXTERNAL TABLE b (k INT) STORED AS CSV LOCATION 'DIR/b.csv' OPTIONS ('format.has_header' 'true');
SELECT array_agg(b.k ORDER BY -b.k, a.k, b.k) AS l FROM a RIGHT JOIN b ON true
  WHERE abs(b.k) = b.k + 0 AND abs(b.k) = b.k AND b.k < 4;
-- [3, 3, 2, 2, 1, 1]
