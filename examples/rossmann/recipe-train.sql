-- One network of the recipe, by its seed.

CREATE OR REPLACE MODEL rossmann_recipe_${seed}
OPTIONS (
  input_label_cols = ['ratio'],
  label_transform = 'ln',
  data_split_method = 'custom',
  data_split_col = 'split',
  categorical = [
    'Store', 'State', 'DayOfWeek', 'Month', 'Day', 'StoreType', 'Assortment', 'PromoInterval', 'Promo2Weeks',
    'Promo', 'StateHoliday', 'SchoolHoliday', 'open_2_before', 'open_1_before', 'open_1_after', 'open_2_after'
  ],
  continuous = [
    'usual', 'store_50', 'store_50_deviation', 'store_184', 'store_184_deviation', 'store_year_before',
    'store_season_before', 'like_92', 'like_92_rows', 'like_366', 'like_year_before', 'state_50', 'state_year_before',
    'open_before_14', 'open_after_14', 'promo_after_14', 'promo_before_7', 'holiday_around_7',
    'CompetitionDistance', 'Year', 'Week', 'BeforePromo', 'AfterPromo', 'AfterStateHoliday', 'BeforeStateHoliday',
    'BeforeSchoolHoliday', 'AfterSchoolHoliday'
  ],
  hidden_units = [256, 128],
  dropout = 0.1,
  numeric_embedding = 'none',
  learn_rate = 2e-3,
  global_batch_size = 1024,
  epochs = ${epochs},
  ranks = ${ranks},
  seed = ${seed}
)
AS SELECT * FROM recipe_rows;
