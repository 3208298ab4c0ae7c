-- A better forecast than the published network's in train.sql, from the same tables.
--
--   features ── recipe_days ── recipe_set ── rossmann_recipe
--               what is open   what a store has sold, seven weeks ago and longer
--
-- A forecast is for seven weeks, so a row may only know what was sold 49 days before it, or earlier. Of the days
-- that are held out nothing is known, nor of the days to be predicted. Squared errors of the logarithm are nearly those of
-- the share by which a prediction is off, which is what is judged.

CREATE OR REPLACE VIEW recipe_days AS
SELECT
  CASE
    WHEN is_test THEN 'TEST'
    WHEN "Date" - first_date > -365 AND "Date" - last_date <= -365 THEN 'EVAL'
    ELSE 'TRAIN'
  END AS split,
  features.* EXCEPT (is_test, "Id", "Open"),
  CAST(coalesce("Open", true) AS INT) AS open
FROM (SELECT min("Date") AS first_date, max("Date") AS last_date FROM test) AS test_dates
CROSS JOIN features;

CREATE OR REPLACE VIEW recipe_windows AS
SELECT
  * EXCEPT (open, sold),
  sum(open) OVER (store RANGE BETWEEN INTERVAL '7' DAY PRECEDING AND INTERVAL '1' DAY PRECEDING) AS open_before,
  sum(open) OVER (store RANGE BETWEEN INTERVAL '1' DAY FOLLOWING AND INTERVAL '7' DAY FOLLOWING) AS open_after,
  sum(open) OVER (store RANGE BETWEEN INTERVAL '1' DAY PRECEDING AND INTERVAL '1' DAY PRECEDING) AS open_yesterday,
  sum(open) OVER (store RANGE BETWEEN INTERVAL '1' DAY FOLLOWING AND INTERVAL '1' DAY FOLLOWING) AS open_tomorrow,
  avg(sold) OVER (store RANGE BETWEEN INTERVAL '98' DAY PRECEDING AND INTERVAL '49' DAY PRECEDING) AS recent,
  avg(sold) OVER (store RANGE BETWEEN INTERVAL '232' DAY PRECEDING AND INTERVAL '49' DAY PRECEDING) AS half_year,
  stddev(sold) OVER (store RANGE BETWEEN INTERVAL '232' DAY PRECEDING AND INTERVAL '49' DAY PRECEDING) AS spread,
  avg(sold) OVER (store RANGE BETWEEN INTERVAL '378' DAY PRECEDING AND INTERVAL '350' DAY PRECEDING) AS year_ago,
  avg(sold) OVER (like_days RANGE BETWEEN INTERVAL '140' DAY PRECEDING AND INTERVAL '49' DAY PRECEDING) AS like_days_recent,
  avg(sold) OVER (like_days RANGE BETWEEN INTERVAL '414' DAY PRECEDING AND INTERVAL '49' DAY PRECEDING) AS like_days_year,
  avg(sold) OVER (like_days RANGE BETWEEN INTERVAL '385' DAY PRECEDING AND INTERVAL '343' DAY PRECEDING) AS like_days_year_ago,
  avg(sold) OVER (state RANGE BETWEEN INTERVAL '364' DAY PRECEDING AND INTERVAL '364' DAY PRECEDING) AS state_year_ago
FROM (SELECT *, CASE WHEN split = 'TRAIN' AND "Sales" > 0 THEN ln("Sales") END AS sold FROM recipe_days) AS days
WINDOW
  store AS (PARTITION BY "Store" ORDER BY "Date"),
  like_days AS (PARTITION BY "Store", "DayOfWeek", "Promo" ORDER BY "Date"),
  state AS (PARTITION BY "State" ORDER BY "Date");

CREATE OR REPLACE VIEW recipe_set AS
SELECT * FROM recipe_windows WHERE split = 'TEST' OR "Sales" > 0;

CREATE OR REPLACE MODEL rossmann_recipe
OPTIONS (
  model_type = 'dnn_regressor',
  input_label_cols = ['Sales'],
  label_transform = 'ln',
  data_split_method = 'custom',
  data_split_col = 'split',
  categorical = [
    'Store', 'State', 'DayOfWeek', 'Year', 'Month', 'Day', 'Week', 'CompetitionMonthsOpen',
    'Promo2Weeks', 'StoreType', 'Assortment', 'PromoInterval', 'CompetitionOpenSinceYear',
    'Promo2SinceYear', 'Events', 'Promo', 'StateHoliday', 'SchoolHoliday',
    'open_before', 'open_after', 'open_yesterday', 'open_tomorrow'
  ],
  continuous = [
    'CompetitionDistance', 'Max_TemperatureC', 'Mean_TemperatureC', 'Min_TemperatureC',
    'Max_Humidity', 'Mean_Humidity', 'Min_Humidity', 'Max_Wind_SpeedKm_h',
    'Mean_Wind_SpeedKm_h', 'CloudCover', 'trend', 'trend_de', 'BeforePromo', 'AfterPromo',
    'AfterStateHoliday', 'BeforeStateHoliday', 'BeforeSchoolHoliday', 'AfterSchoolHoliday',
    'recent', 'half_year', 'spread', 'year_ago', 'like_days_recent', 'like_days_year',
    'like_days_year_ago', 'state_year_ago'
  ],
  hidden_units = [256, 128],
  dropout = 0.1,
  loss = 'mse',
  learn_rate = 2e-3,
  global_batch_size = 1024,
  epochs = ${epochs},
  ranks = ${ranks},
  shard_by = ['Store', 'Date'],
  seed = ${seed}
)
AS SELECT * FROM recipe_set;
