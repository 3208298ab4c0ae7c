-- A first model: a dozen columns, and the default network. The rows that "split" calls EVAL are held out.

CREATE OR REPLACE MODEL first
OPTIONS (
  input_label_cols = ['Sales'],
  label_transform = 'ln',
  data_split_method = 'custom',
  data_split_col = 'split',
  categorical = ['Store', 'StoreType', 'DayOfWeek', 'Month', 'Promo', 'StateHoliday', 'SchoolHoliday'],
  continuous = ['Day', 'BeforePromo', 'AfterPromo', 'BeforeStateHoliday', 'AfterStateHoliday'],
  epochs = ${epochs},
  ranks = ${ranks},
  seed = ${seed}
)
AS SELECT * FROM training_set;
