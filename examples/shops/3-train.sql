-- A network for tomorrow's sales. Days without a day before have no features, and are left out.

CREATE OR REPLACE VIEW training_set AS SELECT * FROM features WHERE sales_before IS NOT NULL;

-- What training would take, without training.
EXPLAIN CREATE MODEL shops OPTIONS (
  model_type = 'dnn_regressor', input_label_cols = ['sales'], label_transform = 'ln',
  data_split_col = 'split', ranks = 2
) AS SELECT * FROM training_set;

CREATE OR REPLACE MODEL shops OPTIONS (
  model_type = 'dnn_regressor',
  input_label_cols = ['sales'],
  label_transform = 'ln',
  data_split_method = 'custom',
  data_split_col = 'split',
  categorical = ['shop', 'kind', 'promo', 'rain', 'weekday'],
  continuous = ['celsius', 'sales_before', 'sales_of_a_week'],
  embedding_dim = 4,
  hidden_units = [32, 16],
  global_batch_size = 32,
  epochs = 6,
  ranks = 2,
  seed = 1
) AS SELECT * FROM training_set;

SELECT iteration, loss, eval_loss FROM ML.TRAINING_INFO(MODEL shops) ORDER BY iteration;
