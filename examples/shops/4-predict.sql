-- How good the model is on days that it was not trained on, and a prediction as a column of a query.

SELECT * FROM ML.EVALUATE(MODEL shops, (SELECT * FROM training_set WHERE split = 'EVAL'));

SELECT shop, day, sales, predicted_sales, predicted_sales / sales - 1 AS error
FROM ML.PREDICT(MODEL shops, (SELECT * FROM training_set WHERE split = 'EVAL'))
ORDER BY abs(predicted_sales / sales - 1) DESC
LIMIT 5;

-- It is a relation as any other: what a promotion would have brought on the last day.
SELECT plain.shop, plain.predicted_sales AS without, promoted.predicted_sales AS with
FROM ML.PREDICT(MODEL shops, (
  SELECT * REPLACE (false AS promo) FROM training_set WHERE day = DATE '2025-05-24')) plain
JOIN ML.PREDICT(MODEL shops, (
  SELECT * REPLACE (true AS promo) FROM training_set WHERE day = DATE '2025-05-24')) promoted
  ON promoted.shop = plain.shop
ORDER BY plain.shop;
