-- Three networks of the recipe, of the seeds 1, 2 and 3, as one model: their geometric mean.
--
-- The root of mean squares of relative errors is least below the middle of what may be. Were errors of the logarithm
-- normal with variance v, that were exp(-1.5 v) times the middle. v is taken from the rows that were trained on.

CREATE OR REPLACE VIEW recipe_predicted AS
SELECT
  split, "Store", "Date", "Sales", usual,
  ln(predicted_1) AS ln_1, ln(predicted_2) AS ln_2, ln(predicted_ratio) AS ln_3
FROM ML.PREDICT(MODEL rossmann_recipe_3, (
  SELECT * EXCEPT (predicted_ratio), predicted_ratio AS predicted_2
  FROM ML.PREDICT(MODEL rossmann_recipe_2, (
    SELECT * EXCEPT (predicted_ratio), predicted_ratio AS predicted_1
    FROM ML.PREDICT(MODEL rossmann_recipe_1, (SELECT * FROM recipe_rows WHERE split <> 'TRAIN'))))));

CREATE OR REPLACE VIEW recipe_predictions AS
SELECT
  split, "Store", "Date", "Sales",
  exp(usual + ln_1) AS network_1, exp(usual + ln_2) AS network_2, exp(usual + ln_3) AS network_3,
  exp(usual + (ln_1 + ln_2 + ln_3) / 3 - 1.5 * v) AS predicted
FROM recipe_predicted CROSS JOIN (
  SELECT avg(loss) AS v FROM (
    SELECT loss FROM ML.TRAINING_INFO(MODEL rossmann_recipe_1) WHERE published
    UNION ALL SELECT loss FROM ML.TRAINING_INFO(MODEL rossmann_recipe_2) WHERE published
    UNION ALL SELECT loss FROM ML.TRAINING_INFO(MODEL rossmann_recipe_3) WHERE published)) AS variance;

SELECT
  count(*) AS rows,
  sqrt(avg(power(1 - network_1 / "Sales", 2))) AS rmspe_1,
  sqrt(avg(power(1 - network_2 / "Sales", 2))) AS rmspe_2,
  sqrt(avg(power(1 - network_3 / "Sales", 2))) AS rmspe_3,
  sqrt(avg(power(1 - predicted / "Sales", 2))) AS rmspe,
  avg(abs(1 - predicted / "Sales")) AS mape
FROM recipe_predictions WHERE split = 'EVAL';

COPY (
  SELECT "Id", predicted AS "Sales"
  FROM test JOIN recipe_predictions AS predicted
    ON test."Store" = predicted."Store" AND test."Date" = predicted."Date"
  ORDER BY "Id"
) TO '${out}/recipe-submission.csv' STORED AS CSV OPTIONS ('format.has_header' 'true');
