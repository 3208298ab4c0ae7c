-- Versions: training goes on from the weights of a model, and publishes the next version.

CREATE OR REPLACE MODEL shops OPTIONS (
  model_type = 'dnn_regressor',
  input_label_cols = ['sales'],
  label_transform = 'ln',
  data_split_col = 'split',
  categorical = ['shop', 'kind', 'promo', 'rain', 'weekday'],
  continuous = ['celsius', 'sales_before', 'sales_of_a_week'],
  embedding_dim = 4,
  hidden_units = [32, 16],
  global_batch_size = 32,
  learn_rate = 0.002,
  epochs = 20,
  ranks = 2,
  warm_start = true
) AS SELECT * FROM training_set;

SHOW MODELS;
DESCRIBE MODEL shops;

-- A version can be named, to compare it with another.
SELECT 1 AS version, * FROM ML.EVALUATE(MODEL shops, 1, (SELECT * FROM training_set WHERE split = 'EVAL'))
UNION ALL
SELECT 2 AS version, * FROM ML.EVALUATE(MODEL shops, 2, (SELECT * FROM training_set WHERE split = 'EVAL'))
ORDER BY version;
