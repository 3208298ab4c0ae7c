-- Features of the recipe: those of the job, and what a store has sold on like days before.
--
--   training_set ── known_sales ── sales_windows ──┐
--        └─────────────────────────────────────────┼── recipe_set
--   sales ── calendar ── calendar_windows ─────────┘
--
-- The test period is 48 days long, so sales of the 48 days before a day are not known when it is predicted: every window
-- over sales ends 49 days before its row. Sales of rows that are evaluated are in no window.

CREATE OR REPLACE VIEW known_sales AS
SELECT
  "Store", "State", "Date", "DayOfWeek", "Promo", "Date" - DATE '2013-01-01' AS day,
  CASE WHEN split = 'TRAIN' THEN ln("Sales") END AS ln_sales
FROM training_set;

-- "Like" days are those of the same store, day of the week and promotion.
CREATE OR REPLACE VIEW sales_windows AS
SELECT
  "Store", "Date", day,
  avg(ln_sales) OVER store_50 AS store_50, stddev(ln_sales) OVER store_50 AS store_50_deviation,
  avg(ln_sales) OVER store_184 AS store_184, stddev(ln_sales) OVER store_184 AS store_184_deviation,
  avg(ln_sales) OVER store_year_before AS store_year_before,
  avg(ln_sales) OVER store_season_before AS store_season_before,
  avg(ln_sales) OVER like_92 AS like_92, count(ln_sales) OVER like_92 AS like_92_rows,
  avg(ln_sales) OVER like_366 AS like_366,
  avg(ln_sales) OVER like_year_before AS like_year_before,
  avg(ln_sales) OVER state_50 AS state_50,
  avg(ln_sales) OVER state_year_before AS state_year_before
FROM known_sales
WINDOW
  store_50 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 98 PRECEDING AND 49 PRECEDING),
  store_184 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 232 PRECEDING AND 49 PRECEDING),
  store_year_before AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 378 PRECEDING AND 350 PRECEDING),
  store_season_before AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 462 PRECEDING AND 413 PRECEDING),
  like_92 AS (PARTITION BY "Store", "DayOfWeek", "Promo" ORDER BY day RANGE BETWEEN 140 PRECEDING AND 49 PRECEDING),
  like_366 AS (PARTITION BY "Store", "DayOfWeek", "Promo" ORDER BY day RANGE BETWEEN 414 PRECEDING AND 49 PRECEDING),
  like_year_before AS (PARTITION BY "Store", "DayOfWeek", "Promo" ORDER BY day RANGE BETWEEN 385 PRECEDING AND 343 PRECEDING),
  state_50 AS (PARTITION BY "State" ORDER BY day RANGE BETWEEN 98 PRECEDING AND 49 PRECEDING),
  state_year_before AS (PARTITION BY "State" ORDER BY day RANGE BETWEEN 371 PRECEDING AND 357 PRECEDING);

-- Opening days, promotions and holidays are known ahead, so these windows look both ways.
CREATE OR REPLACE VIEW calendar AS
SELECT
  "Store", "Date", "Date" - DATE '2013-01-01' AS day,
  CASE WHEN coalesce("Open", TRUE) THEN 1 ELSE 0 END AS open,
  CASE WHEN "Promo" THEN 1 ELSE 0 END AS promo,
  CASE WHEN "SchoolHoliday" THEN 1 ELSE 0 END AS holiday
FROM sales;

CREATE OR REPLACE VIEW calendar_windows AS
SELECT
  "Store", "Date",
  lag(open, 2) OVER days AS open_2_before, lag(open, 1) OVER days AS open_1_before,
  lead(open, 1) OVER days AS open_1_after, lead(open, 2) OVER days AS open_2_after,
  sum(open) OVER before_14 AS open_before_14, sum(open) OVER after_14 AS open_after_14,
  sum(promo) OVER after_14 AS promo_after_14, sum(promo) OVER before_7 AS promo_before_7,
  sum(holiday) OVER around_7 AS holiday_around_7
FROM calendar
WINDOW
  days AS (PARTITION BY "Store" ORDER BY day),
  before_14 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 14 PRECEDING AND 1 PRECEDING),
  after_14 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 1 FOLLOWING AND 14 FOLLOWING),
  before_7 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 6 PRECEDING AND CURRENT ROW),
  around_7 AS (PARTITION BY "Store" ORDER BY day RANGE BETWEEN 7 PRECEDING AND 7 FOLLOWING);

-- What is learnt is a day's sales in proportion to the mean of like days. Relative errors of that are those of sales.
-- Rows of the first 97 days have too short a past to learn from; a day whose sales are not within a factor of 1.8 of
-- like days is most often the one after a renovation or of a local event, of which no column tells.
CREATE OR REPLACE VIEW recipe_set AS
SELECT * EXCEPT (usual), usual, "Sales" / exp(usual) AS ratio
FROM (
  SELECT
    rows.*, sales.* EXCEPT ("Store", "Date"), calendar.* EXCEPT ("Store", "Date"),
    coalesce(like_92, store_50, like_366, store_184) AS usual
  FROM training_set AS rows
  JOIN sales_windows AS sales ON rows."Store" = sales."Store" AND rows."Date" = sales."Date"
  JOIN calendar_windows AS calendar ON rows."Store" = calendar."Store" AND rows."Date" = calendar."Date"
);

CREATE OR REPLACE VIEW recipe_rows AS
SELECT * FROM recipe_set
WHERE usual IS NOT NULL
  AND (split <> 'TRAIN' OR (day >= 98 AND abs(ln("Sales") - usual) < 0.6));
