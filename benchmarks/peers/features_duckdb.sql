-- The Rossmann features as DuckDB does them best: windows over one sort order that look up a value, which
-- is faster than aggregating them, and the features kept as a table between their two files. What they mean is told in examples/rossmann/features.sql.

SET threads = 2;
SET preserve_insertion_order = false;

CREATE TEMP VIEW train AS FROM read_csv('${data}/train.csv', header = true, auto_detect = false, columns = {
  'Store': 'INT', 'DayOfWeek': 'INT', 'Date': 'DATE', 'Sales': 'INT', 'Customers': 'INT',
  'Open': 'VARCHAR', 'Promo': 'VARCHAR', 'StateHoliday': 'VARCHAR', 'SchoolHoliday': 'VARCHAR'});
CREATE TEMP VIEW test AS FROM read_csv('${data}/test.csv', header = true, auto_detect = false, columns = {
  'Id': 'INT', 'Store': 'INT', 'DayOfWeek': 'INT', 'Date': 'DATE',
  'Open': 'VARCHAR', 'Promo': 'VARCHAR', 'StateHoliday': 'VARCHAR', 'SchoolHoliday': 'VARCHAR'});
CREATE TEMP VIEW store AS FROM read_csv('${data}/store.csv', header = true, auto_detect = false, columns = {
  'Store': 'INT', 'StoreType': 'VARCHAR', 'Assortment': 'VARCHAR', 'CompetitionDistance': 'INT',
  'CompetitionOpenSinceMonth': 'INT', 'CompetitionOpenSinceYear': 'INT',
  'Promo2': 'INT', 'Promo2SinceWeek': 'INT', 'Promo2SinceYear': 'INT', 'PromoInterval': 'VARCHAR'});
CREATE TEMP VIEW store_states AS FROM read_csv('${data}/store_states.csv', header = true, auto_detect = false,
  columns = {'Store': 'INT', 'State': 'VARCHAR'});
CREATE TEMP VIEW state_names AS FROM read_csv('${data}/state_names.csv', header = true, auto_detect = false,
  columns = {'StateName': 'VARCHAR', 'State': 'VARCHAR'});
CREATE TEMP VIEW googletrend AS FROM read_csv('${data}/googletrend.csv', header = true, auto_detect = false,
  columns = {'file': 'VARCHAR', 'week': 'VARCHAR', 'trend': 'INT'});
CREATE TEMP VIEW weather AS FROM read_csv('${data}/weather.csv', header = true, auto_detect = false, columns = {
  'file': 'VARCHAR', 'Date': 'DATE',
  'Max_TemperatureC': 'INT', 'Mean_TemperatureC': 'INT', 'Min_TemperatureC': 'INT',
  'Dew_PointC': 'INT', 'MeanDew_PointC': 'INT', 'Min_DewpointC': 'INT',
  'Max_Humidity': 'INT', 'Mean_Humidity': 'INT', 'Min_Humidity': 'INT',
  'Max_Sea_Level_PressurehPa': 'INT', 'Mean_Sea_Level_PressurehPa': 'INT', 'Min_Sea_Level_PressurehPa': 'INT',
  'Max_VisibilityKm': 'INT', 'Mean_VisibilityKm': 'INT', 'Min_VisibilitykM': 'INT',
  'Max_Wind_SpeedKm_h': 'INT', 'Mean_Wind_SpeedKm_h': 'INT', 'Max_Gust_SpeedKm_h': 'INT',
  'Precipitationmm': 'DOUBLE', 'CloudCover': 'INT', 'Events': 'VARCHAR', 'WindDirDegrees': 'INT'});

CREATE TEMP VIEW sales AS
SELECT NULL::INT AS Id, Store, DayOfWeek, Date, Sales, Open <> '0' AS Open, Promo <> '0' AS Promo,
  StateHoliday <> '0' AS StateHoliday, SchoolHoliday <> '0' AS SchoolHoliday, FALSE AS is_test
FROM train
UNION ALL
SELECT Id, Store, DayOfWeek, Date, NULL::INT, Open <> '0', Promo <> '0',
  StateHoliday <> '0', SchoolHoliday <> '0', TRUE
FROM test;

CREATE TEMP VIEW sales_elapsed AS
SELECT *,
  Date - coalesce(last_value(CASE WHEN Promo THEN Date END IGNORE NULLS) OVER past, first_value(Date) OVER past) AS AfterPromo,
  Date - coalesce(last_value(CASE WHEN StateHoliday THEN Date END IGNORE NULLS) OVER past, first_value(Date) OVER past) AS AfterStateHoliday,
  Date - coalesce(last_value(CASE WHEN SchoolHoliday THEN Date END IGNORE NULLS) OVER past, first_value(Date) OVER past) AS AfterSchoolHoliday,
  Date - coalesce(first_value(CASE WHEN Promo THEN Date END IGNORE NULLS) OVER future, last_value(Date) OVER future) AS BeforePromo,
  Date - coalesce(first_value(CASE WHEN StateHoliday THEN Date END IGNORE NULLS) OVER future, last_value(Date) OVER future) AS BeforeStateHoliday,
  Date - coalesce(first_value(CASE WHEN SchoolHoliday THEN Date END IGNORE NULLS) OVER future, last_value(Date) OVER future) AS BeforeSchoolHoliday
FROM sales
WINDOW
  past AS (PARTITION BY Store ORDER BY Date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
  future AS (PARTITION BY Store ORDER BY Date ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING);

CREATE TEMP VIEW stores AS
SELECT store.Store, State, StoreType, Assortment, nullif(PromoInterval, '') AS PromoInterval,
  coalesce(CompetitionOpenSinceYear, 1900) AS CompetitionOpenSinceYear,
  coalesce(Promo2SinceYear, 1900) AS Promo2SinceYear,
  CASE WHEN CompetitionOpenSinceYear > 1900
    THEN make_date(CompetitionOpenSinceYear, coalesce(CompetitionOpenSinceMonth, 1), 15) END AS competition_since,
  CASE WHEN Promo2SinceYear > 1900
    THEN make_date(Promo2SinceYear, 1, 1) + (coalesce(Promo2SinceWeek, 1) - 1) * 7 END AS promo2_since,
  coalesce(CompetitionDistance, 0)::FLOAT AS CompetitionDistance
FROM store JOIN store_states ON store.Store = store_states.Store;

CREATE TEMP VIEW trends AS
SELECT CASE file WHEN 'Rossmann_DE' THEN NULL WHEN 'Rossmann_DE_NI' THEN 'HB,NI' ELSE substr(file, 13) END AS State,
  year(Date) AS Year, week(Date) AS Week, coalesce(trend, 0)::FLOAT AS trend
FROM (SELECT file, trend, split_part(week, ' -', 1)::DATE AS Date FROM googletrend);

CREATE TEMP VIEW weather_by_state AS
SELECT State, Date, year(Date) AS Year, month(Date) AS Month, day(Date) AS Day, week(Date) AS Week,
  nullif(Events, '') AS Events,
  coalesce(Max_TemperatureC, 0)::FLOAT AS Max_TemperatureC,
  coalesce(Mean_TemperatureC, 0)::FLOAT AS Mean_TemperatureC,
  coalesce(Min_TemperatureC, 0)::FLOAT AS Min_TemperatureC,
  coalesce(Max_Humidity, 0)::FLOAT AS Max_Humidity,
  coalesce(Mean_Humidity, 0)::FLOAT AS Mean_Humidity,
  coalesce(Min_Humidity, 0)::FLOAT AS Min_Humidity,
  coalesce(Max_Wind_SpeedKm_h, 0)::FLOAT AS Max_Wind_SpeedKm_h,
  coalesce(Mean_Wind_SpeedKm_h, 0)::FLOAT AS Mean_Wind_SpeedKm_h,
  coalesce(CloudCover, 0)::FLOAT AS CloudCover
FROM weather JOIN state_names ON weather.file = state_names.StateName;

CREATE TEMP VIEW state_days AS
SELECT weather.*, states.trend AS trend, germany.trend AS trend_de
FROM weather_by_state AS weather
JOIN trends AS states
  ON states.State = weather.State AND states.Year = weather.Year AND states.Week = weather.Week
JOIN trends AS germany
  ON germany.State IS NULL AND germany.Year = weather.Year AND germany.Week = weather.Week;

CREATE TEMP TABLE features AS
SELECT is_test, Id, sales.Date, Sales, Open, sales.Store, stores.State, DayOfWeek,
  Year, Month, Day, Week,
  greatest(0, least(720, coalesce(sales.Date - competition_since, 0))) // 30 AS CompetitionMonthsOpen,
  greatest(0, least(175, coalesce(sales.Date - promo2_since, 0))) // 7 AS Promo2Weeks,
  StoreType, Assortment, PromoInterval, CompetitionOpenSinceYear, Promo2SinceYear,
  Events, Promo, StateHoliday, SchoolHoliday, CompetitionDistance,
  Max_TemperatureC, Mean_TemperatureC, Min_TemperatureC, Max_Humidity, Mean_Humidity, Min_Humidity,
  Max_Wind_SpeedKm_h, Mean_Wind_SpeedKm_h, CloudCover, trend, trend_de,
  BeforePromo::FLOAT AS BeforePromo, AfterPromo::FLOAT AS AfterPromo,
  AfterStateHoliday::FLOAT AS AfterStateHoliday, BeforeStateHoliday::FLOAT AS BeforeStateHoliday,
  BeforeSchoolHoliday::FLOAT AS BeforeSchoolHoliday, AfterSchoolHoliday::FLOAT AS AfterSchoolHoliday
FROM sales_elapsed AS sales
JOIN stores ON sales.Store = stores.Store
JOIN state_days AS days ON days.State = stores.State AND days.Date = sales.Date;

COPY (SELECT * EXCLUDE (is_test, Id, Open) FROM features WHERE NOT is_test AND Sales > 0)
TO '${out}/train.parquet' (FORMAT parquet);

COPY (SELECT * EXCLUDE (is_test, Sales) FROM features WHERE is_test)
TO '${out}/test.parquet' (FORMAT parquet);
