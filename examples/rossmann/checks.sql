-- No join of the features may lose or duplicate rows: one row a join, with the rows before and after.
-- Where they differ the query fails with a sentence that names the first such join: casting it to a
-- number is how SQL without RAISE raises.

-- How many rows each state has on each day: all that the joins on "State" and "Date" need to see.
CREATE OR REPLACE VIEW sales_days AS
SELECT
  "State", "Date", date_part('year', "Date") AS "Year", date_part('week', "Date") AS "Week",
  count(*) AS n
FROM sales_store GROUP BY "State", "Date";

CREATE OR REPLACE VIEW join_counts AS
SELECT 1 AS step, 'store with store_states' AS joined, a.n AS rows_before, b.n AS rows_after
FROM (SELECT count(*) AS n FROM store) AS a CROSS JOIN (SELECT count(*) AS n FROM stores) AS b
UNION ALL
SELECT 2, 'train and test with store', a.n, b.n
FROM (SELECT count(*) AS n FROM sales) AS a CROSS JOIN (SELECT coalesce(sum(n), 0) AS n FROM sales_days) AS b
UNION ALL
SELECT 3, 'train and test with googletrend of the state', a.n, b.n
FROM (SELECT coalesce(sum(n), 0) AS n FROM sales_days) AS a CROSS JOIN (
  SELECT coalesce(sum(n), 0) AS n FROM sales_days AS days JOIN trends
  ON days."State" = trends."State" AND days."Year" = trends."Year" AND days."Week" = trends."Week") AS b
UNION ALL
SELECT 4, 'train and test with googletrend of Germany', a.n, b.n
FROM (SELECT coalesce(sum(n), 0) AS n FROM sales_days) AS a CROSS JOIN (
  SELECT coalesce(sum(n), 0) AS n FROM sales_days AS days JOIN trends
  ON trends."State" IS NULL AND days."Year" = trends."Year" AND days."Week" = trends."Week") AS b
UNION ALL
SELECT 5, 'weather with state_names', a.n, b.n
FROM (SELECT count(*) AS n FROM weather) AS a CROSS JOIN (SELECT count(*) AS n FROM weather_by_state) AS b
UNION ALL
SELECT 6, 'train and test with weather', a.n, b.n
FROM (SELECT coalesce(sum(n), 0) AS n FROM sales_days) AS a CROSS JOIN (
  SELECT coalesce(sum(n), 0) AS n FROM sales_days AS days JOIN weather_by_state AS weather
  ON days."State" = weather."State" AND days."Date" = weather."Date") AS b;

SELECT
  joined, rows_before, rows_after,
  CASE WHEN step <> first_changed OR first_changed IS NULL THEN 0 ELSE CAST(concat(
    'the join of ', joined, ' lost or duplicated rows: ',
    CAST(rows_before AS VARCHAR), ' before, ', CAST(rows_after AS VARCHAR), ' after') AS BIGINT)
  END AS difference
FROM (
  SELECT *, min(CASE WHEN rows_before <> rows_after THEN step END) OVER () AS first_changed
  FROM join_counts
) ORDER BY step;
