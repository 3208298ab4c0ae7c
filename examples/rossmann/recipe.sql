-- A better network for the same features than the published one in train.sql: a learning rate that rises and falls
-- once, weights that are averaged over steps, and the squared error of the logarithm, which is nearly that of
-- the share by which a prediction is off.

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
    'Promo2SinceYear', 'Events', 'Promo', 'StateHoliday', 'SchoolHoliday'
  ],
  hidden_units = [512, 256],
  dropout = 0.05,
  loss = 'mse',
  learn_rate = ${learn_rate},
  global_batch_size = 1024,
  epochs = ${epochs},
  ranks = ${ranks},
  seed = ${seed}
)
AS SELECT * EXCEPT ("Date") FROM training_set;
