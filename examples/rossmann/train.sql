-- The Rossmann network, trained on every executor. Sales is predicted by way of its logarithm; the
-- rows that "split" calls TEST have no label and lend their values to the vocabularies only.

CREATE OR REPLACE MODEL rossmann
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
  continuous = [
    'CompetitionDistance', 'Max_TemperatureC', 'Mean_TemperatureC', 'Min_TemperatureC',
    'Max_Humidity', 'Mean_Humidity', 'Min_Humidity', 'Max_Wind_SpeedKm_h',
    'Mean_Wind_SpeedKm_h', 'CloudCover', 'trend', 'trend_de', 'BeforePromo', 'AfterPromo',
    'AfterStateHoliday', 'BeforeStateHoliday', 'BeforeSchoolHoliday', 'AfterSchoolHoliday'
  ],
  embedding_dim = 10,
  hidden_units = [1000, 1000, 1000, 500],
  activation_fn = 'relu',
  numeric_embedding = 'none',
  dropout = [0, 0, 0, 0.5],
  l2_reg = 5e-5,
  activation_output = 'scaled_sigmoid',
  loss = 'mae',
  optimizer = 'adam',
  learn_rate_schedule = 'constant',
  learn_rate = 1e-4,
  adam_epsilon = 1e-3,
  batch_size = ${batch_size},
  epochs = ${epochs},
  ranks = ${ranks},
  shard_by = ['Store', 'Date'],
  seed = ${seed}
)
AS SELECT * FROM training_set;
