-- A network of radial basis functions for a bump in the plane, which no plane comes near.

CREATE VIEW points AS
SELECT x, y, exp(-4 * (power(x - 0.3, 2) + power(y + 0.2, 2))) AS height
FROM (SELECT (value * 37 % 101) / 50.0 - 1 AS x, (value * 53 % 97) / 48.0 - 1 AS y FROM range(4000)) AS p;

-- The layer is registered as rbf in the executors' program; 16 and 0.5 are its arguments.
CREATE OR REPLACE MODEL bump OPTIONS (
  input_label_cols = ['height'],
  network = [custom('rbf', 16, 0.5)],
  numeric_embedding = 'none',
  device = 'cpu',
  epochs = 40,
  ranks = 2
) AS SELECT x, y, height FROM points;

DESCRIBE MODEL bump;

SELECT * FROM ML.EVALUATE(MODEL bump, TABLE points);

SELECT x, y, height, predicted_height FROM ML.PREDICT(MODEL bump, TABLE points) ORDER BY height DESC LIMIT 5;
