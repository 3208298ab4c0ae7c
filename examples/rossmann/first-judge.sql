-- The first model on the days that it was not trained on: its errors, the features that it depends on, and some
-- predictions.

SELECT r2_score, mean_absolute_error, rmspe
FROM ML.EVALUATE(MODEL first, (SELECT * FROM training_set WHERE split = 'EVAL'));

SELECT feature, round(attribution, 3) AS attribution
FROM ML.GLOBAL_EXPLAIN(MODEL first, (SELECT * FROM training_set WHERE split = 'EVAL'))
ORDER BY attribution DESC LIMIT 5;

SELECT "Store", "Date", "Sales", round("predicted_Sales") AS predicted
FROM ML.PREDICT(MODEL first, (SELECT * FROM training_set WHERE split = 'EVAL'))
ORDER BY "Date", "Store" LIMIT 5;
