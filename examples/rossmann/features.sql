-- The Rossmann features: views, so nothing runs before something reads them.
--
--   train ∪ test       store_states ⋈ store    state_names ⋈ weather ⋈ googletrend (twice)
--        │                       │                       │
--      sales ── sales_elapsed ── ⋈ stores ────────────── ⋈ state_days ── features ─┬─ train_features
--               one exchange and one sort                                          ├─ test_features
--               on "Store", "Date"                                                 └─ training_set
--
-- The left side of a join is the small one: it is the one that is hashed, or sent to every task.
-- Train and test travel together: the elapsed days of the first test rows reach back into train.

-- Test rows have an "Id", and train rows have "Sales". A flag is held when its text is not '0'; NULL
-- stays NULL.
CREATE OR REPLACE VIEW sales AS
SELECT
  CAST(NULL AS INT) AS "Id", "Store", "DayOfWeek", "Date", "Sales",
  "Open" <> '0' AS "Open", "Promo" <> '0' AS "Promo",
  "StateHoliday" <> '0' AS "StateHoliday", "SchoolHoliday" <> '0' AS "SchoolHoliday"
FROM train
UNION ALL
SELECT
  "Id", "Store", "DayOfWeek", "Date", CAST(NULL AS INT) AS "Sales",
  "Open" <> '0' AS "Open", "Promo" <> '0' AS "Promo",
  "StateHoliday" <> '0' AS "StateHoliday", "SchoolHoliday" <> '0' AS "SchoolHoliday"
FROM test;

-- For each event, days since the last date on which it held (else since the store's first date),
-- and days to the next one (else to the store's last date), which count as negative.
-- RANGE, not ROWS: rows of one date see the same past. All windows read one sort order.
CREATE OR REPLACE VIEW sales_elapsed AS
SELECT
  *,
  CAST("Date" - coalesce(max("Date") FILTER (WHERE "Promo") OVER past, min("Date") OVER store) AS REAL) AS "AfterPromo",
  CAST("Date" - coalesce(max("Date") FILTER (WHERE "StateHoliday") OVER past, min("Date") OVER store) AS REAL) AS "AfterStateHoliday",
  CAST("Date" - coalesce(max("Date") FILTER (WHERE "SchoolHoliday") OVER past, min("Date") OVER store) AS REAL) AS "AfterSchoolHoliday",
  CAST("Date" - coalesce(min("Date") FILTER (WHERE "Promo") OVER future, max("Date") OVER store) AS REAL) AS "BeforePromo",
  CAST("Date" - coalesce(min("Date") FILTER (WHERE "StateHoliday") OVER future, max("Date") OVER store) AS REAL) AS "BeforeStateHoliday",
  CAST("Date" - coalesce(min("Date") FILTER (WHERE "SchoolHoliday") OVER future, max("Date") OVER store) AS REAL) AS "BeforeSchoolHoliday"
FROM sales
WINDOW
  store AS (PARTITION BY "Store"),
  past AS (PARTITION BY "Store" ORDER BY "Date" RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
  future AS (PARTITION BY "Store" ORDER BY "Date" RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING);

-- Since when a store has had a competitor, and has taken part in Promo2: NULL means not at all.
CREATE OR REPLACE VIEW stores AS
SELECT
  store."Store", "State", "StoreType", "Assortment", "PromoInterval",
  CAST(coalesce("CompetitionOpenSinceYear", 1900) AS INT) AS "CompetitionOpenSinceYear",
  CAST(coalesce("Promo2SinceYear", 1900) AS INT) AS "Promo2SinceYear",
  CASE WHEN "CompetitionOpenSinceYear" > 1900
    THEN make_date("CompetitionOpenSinceYear", coalesce("CompetitionOpenSinceMonth", 1), 15)
  END AS competition_since,
  CASE WHEN "Promo2SinceYear" > 1900
    THEN make_date("Promo2SinceYear", 1, 1) + (coalesce("Promo2SinceWeek", 1) - 1) * 7
  END AS promo2_since,
  CAST(coalesce("CompetitionDistance", 0) AS REAL) AS "CompetitionDistance"
FROM store_states JOIN store ON store_states."Store" = store."Store";

-- A trend's week is filed under the calendar year and the ISO week of its first day, and has no
-- "State" where it is the whole of Germany's.
CREATE OR REPLACE VIEW trends AS
SELECT
  CASE "file" WHEN 'Rossmann_DE' THEN NULL WHEN 'Rossmann_DE_NI' THEN 'HB,NI' ELSE substr("file", 13) END AS "State",
  date_part('year', "Date") AS "Year", date_part('week', "Date") AS "Week",
  CAST(coalesce("trend", 0) AS REAL) AS "trend"
FROM (SELECT "file", "trend", CAST(split_part("week", ' -', 1) AS DATE) AS "Date" FROM googletrend);

CREATE OR REPLACE VIEW weather_by_state AS
SELECT
  "State", "Date", date_part('year', "Date") AS "Year", date_part('month', "Date") AS "Month",
  date_part('day', "Date") AS "Day", date_part('week', "Date") AS "Week", "Events",
  CAST(coalesce("Max_TemperatureC", 0) AS REAL) AS "Max_TemperatureC",
  CAST(coalesce("Mean_TemperatureC", 0) AS REAL) AS "Mean_TemperatureC",
  CAST(coalesce("Min_TemperatureC", 0) AS REAL) AS "Min_TemperatureC",
  CAST(coalesce("Max_Humidity", 0) AS REAL) AS "Max_Humidity",
  CAST(coalesce("Mean_Humidity", 0) AS REAL) AS "Mean_Humidity",
  CAST(coalesce("Min_Humidity", 0) AS REAL) AS "Min_Humidity",
  CAST(coalesce("Max_Wind_SpeedKm_h", 0) AS REAL) AS "Max_Wind_SpeedKm_h",
  CAST(coalesce("Mean_Wind_SpeedKm_h", 0) AS REAL) AS "Mean_Wind_SpeedKm_h",
  CAST(coalesce("CloudCover", 0) AS REAL) AS "CloudCover"
FROM state_names JOIN weather ON state_names."StateName" = weather."file";

-- Everything known of a state on a date. Joined before it meets the sales, of which there are
-- a hundred times more.
CREATE OR REPLACE VIEW state_days AS
SELECT weather.*, states."trend", germany."trend" AS "trend_de"
FROM trends AS states
JOIN weather_by_state AS weather
  ON states."State" = weather."State" AND states."Year" = weather."Year" AND states."Week" = weather."Week"
JOIN trends AS germany
  ON germany."State" IS NULL AND germany."Year" = weather."Year" AND germany."Week" = weather."Week";

CREATE OR REPLACE VIEW sales_store AS
SELECT sales.*, stores.* EXCEPT ("Store")
FROM stores JOIN sales_elapsed AS sales ON stores."Store" = sales."Store";

-- Every column a model reads, the categorical ones first, in the order in which train.sql lists them.
-- A competitor counts for at most two years of 360 days, Promo2 for at most 25 weeks.
CREATE OR REPLACE VIEW features AS
SELECT
  "Id" IS NOT NULL AS is_test, "Id", sales."Date", "Sales", "Open",
  "Store", sales."State", "DayOfWeek", "Year", "Month", "Day", "Week",
  CAST(greatest(0, least(720, coalesce(sales."Date" - competition_since, 0))) / 30 AS INT) AS "CompetitionMonthsOpen",
  CAST(greatest(0, least(175, coalesce(sales."Date" - promo2_since, 0))) / 7 AS INT) AS "Promo2Weeks",
  "StoreType", "Assortment", "PromoInterval", "CompetitionOpenSinceYear", "Promo2SinceYear",
  "Events", "Promo", "StateHoliday", "SchoolHoliday",
  "CompetitionDistance", "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC",
  "Max_Humidity", "Mean_Humidity", "Min_Humidity", "Max_Wind_SpeedKm_h", "Mean_Wind_SpeedKm_h",
  "CloudCover", "trend", "trend_de", "BeforePromo", "AfterPromo",
  "AfterStateHoliday", "BeforeStateHoliday", "BeforeSchoolHoliday", "AfterSchoolHoliday"
FROM state_days AS days JOIN sales_store AS sales
  ON days."State" = sales."State" AND days."Date" = sales."Date";

CREATE OR REPLACE VIEW train_features AS
SELECT * EXCEPT (is_test, "Id", "Open") FROM features WHERE NOT is_test AND "Sales" > 0;

CREATE OR REPLACE VIEW test_features AS
SELECT * EXCEPT (is_test, "Sales") FROM features WHERE is_test;

-- Both, for training: the test rows have no "Sales" and lend their values to the vocabularies only.
-- Held out are the days of the test period one year earlier.
CREATE OR REPLACE VIEW training_set AS
SELECT
  CASE
    WHEN is_test THEN 'TEST'
    WHEN "Date" - first_date > -365 AND "Date" - last_date <= -365 THEN 'EVAL'
    ELSE 'TRAIN'
  END AS split,
  features.* EXCEPT (is_test, "Id", "Open")
FROM (SELECT min("Date") AS first_date, max("Date") AS last_date FROM test) AS test_dates
CROSS JOIN features
WHERE is_test OR "Sales" > 0;
