"""The Rossmann features in Spark SQL, written for speed: explicit schemas, broadcast joins, window
functions over one exchange, and one pass that writes both data sets. Two passes over what the windows
gave, cached, take as long or a tenth longer.

Asked {"data": DIR, "out": DIR}, it writes features/dataset=train and features/dataset=test and answers
with the seconds.
"""

import os
import time

import spark_session
from serve import serve

TABLES = {
    "train": "Store INT, DayOfWeek INT, Date DATE, Sales INT, Customers INT, Open STRING, Promo STRING, "
    "StateHoliday STRING, SchoolHoliday STRING",
    "test": "Id INT, Store INT, DayOfWeek INT, Date DATE, Open STRING, Promo STRING, StateHoliday STRING, "
    "SchoolHoliday STRING",
    "store": "Store INT, StoreType STRING, Assortment STRING, CompetitionDistance INT, "
    "CompetitionOpenSinceMonth INT, CompetitionOpenSinceYear INT, Promo2 INT, Promo2SinceWeek INT, "
    "Promo2SinceYear INT, PromoInterval STRING",
    "store_states": "Store INT, State STRING",
    "state_names": "StateName STRING, State STRING",
    "googletrend": "file STRING, week STRING, trend INT",
    "weather": "file STRING, Date DATE, Max_TemperatureC INT, Mean_TemperatureC INT, Min_TemperatureC INT, "
    "Dew_PointC INT, MeanDew_PointC INT, Min_DewpointC INT, Max_Humidity INT, Mean_Humidity INT, "
    "Min_Humidity INT, Max_Sea_Level_PressurehPa INT, Mean_Sea_Level_PressurehPa INT, "
    "Min_Sea_Level_PressurehPa INT, Max_VisibilityKm INT, Mean_VisibilityKm INT, Min_VisibilitykM INT, "
    "Max_Wind_SpeedKm_h INT, Mean_Wind_SpeedKm_h INT, Max_Gust_SpeedKm_h INT, Precipitationmm DOUBLE, "
    "CloudCover INT, Events STRING, WindDirDegrees INT",
}

# A frame that ends with the current row is computed in one pass; one that begins with it is not, so
# that the future is a past in the other direction. A store has one row a date.
VIEWS = {
    "sales": """
SELECT CAST(NULL AS INT) AS Id, Store, DayOfWeek, Date, Sales, Open <> '0' AS Open, Promo <> '0' AS Promo,
  StateHoliday <> '0' AS StateHoliday, SchoolHoliday <> '0' AS SchoolHoliday, FALSE AS is_test
FROM train
UNION ALL
SELECT Id, Store, DayOfWeek, Date, CAST(NULL AS INT), Open <> '0', Promo <> '0',
  StateHoliday <> '0', SchoolHoliday <> '0', TRUE
FROM test""",
    "sales_elapsed": """
SELECT *,
  datediff(Date, coalesce(last(IF(Promo, Date, NULL), TRUE) OVER past, first(Date) OVER past)) AS AfterPromo,
  datediff(Date, coalesce(last(IF(StateHoliday, Date, NULL), TRUE) OVER past, first(Date) OVER past)) AS AfterStateHoliday,
  datediff(Date, coalesce(last(IF(SchoolHoliday, Date, NULL), TRUE) OVER past, first(Date) OVER past)) AS AfterSchoolHoliday,
  datediff(Date, coalesce(last(IF(Promo, Date, NULL), TRUE) OVER future, first(Date) OVER future)) AS BeforePromo,
  datediff(Date, coalesce(last(IF(StateHoliday, Date, NULL), TRUE) OVER future, first(Date) OVER future)) AS BeforeStateHoliday,
  datediff(Date, coalesce(last(IF(SchoolHoliday, Date, NULL), TRUE) OVER future, first(Date) OVER future)) AS BeforeSchoolHoliday
FROM sales
WINDOW
  past AS (PARTITION BY Store ORDER BY Date ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW),
  future AS (PARTITION BY Store ORDER BY Date DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)""",
    "stores": """
SELECT /*+ BROADCAST(store_states) */ store.Store, State, StoreType, Assortment,
  nullif(PromoInterval, '') AS PromoInterval,
  coalesce(CompetitionOpenSinceYear, 1900) AS CompetitionOpenSinceYear,
  coalesce(Promo2SinceYear, 1900) AS Promo2SinceYear,
  IF(CompetitionOpenSinceYear > 1900,
    make_date(CompetitionOpenSinceYear, coalesce(CompetitionOpenSinceMonth, 1), 15), NULL) AS competition_since,
  IF(Promo2SinceYear > 1900,
    date_add(make_date(Promo2SinceYear, 1, 1), (coalesce(Promo2SinceWeek, 1) - 1) * 7), NULL) AS promo2_since,
  CAST(coalesce(CompetitionDistance, 0) AS FLOAT) AS CompetitionDistance
FROM store JOIN store_states ON store.Store = store_states.Store""",
    "trends": """
SELECT CASE file WHEN 'Rossmann_DE' THEN NULL WHEN 'Rossmann_DE_NI' THEN 'HB,NI' ELSE substr(file, 13) END AS State,
  year(Date) AS Year, weekofyear(Date) AS Week, CAST(coalesce(trend, 0) AS FLOAT) AS trend
FROM (SELECT file, trend, CAST(split_part(week, ' -', 1) AS DATE) AS Date FROM googletrend)""",
    "weather_by_state": """
SELECT /*+ BROADCAST(state_names) */ State, Date, year(Date) AS Year, month(Date) AS Month, day(Date) AS Day,
  weekofyear(Date) AS Week,
  nullif(Events, '') AS Events,
  CAST(coalesce(Max_TemperatureC, 0) AS FLOAT) AS Max_TemperatureC,
  CAST(coalesce(Mean_TemperatureC, 0) AS FLOAT) AS Mean_TemperatureC,
  CAST(coalesce(Min_TemperatureC, 0) AS FLOAT) AS Min_TemperatureC,
  CAST(coalesce(Max_Humidity, 0) AS FLOAT) AS Max_Humidity,
  CAST(coalesce(Mean_Humidity, 0) AS FLOAT) AS Mean_Humidity,
  CAST(coalesce(Min_Humidity, 0) AS FLOAT) AS Min_Humidity,
  CAST(coalesce(Max_Wind_SpeedKm_h, 0) AS FLOAT) AS Max_Wind_SpeedKm_h,
  CAST(coalesce(Mean_Wind_SpeedKm_h, 0) AS FLOAT) AS Mean_Wind_SpeedKm_h,
  CAST(coalesce(CloudCover, 0) AS FLOAT) AS CloudCover
FROM weather JOIN state_names ON weather.file = state_names.StateName""",
    "state_days": """
SELECT /*+ BROADCAST(states), BROADCAST(germany) */ weather.*,
  states.trend AS trend, germany.trend AS trend_de
FROM weather_by_state AS weather
JOIN trends AS states
  ON states.State = weather.State AND states.Year = weather.Year AND states.Week = weather.Week
JOIN trends AS germany
  ON germany.State IS NULL AND germany.Year = weather.Year AND germany.Week = weather.Week""",
    "features": """
SELECT /*+ BROADCAST(stores), BROADCAST(days) */
  is_test, Id, sales.Date, Sales, Open, sales.Store, stores.State, DayOfWeek,
  Year, Month, Day, Week,
  CAST(greatest(0, least(720, coalesce(datediff(sales.Date, competition_since), 0))) / 30 AS INT) AS CompetitionMonthsOpen,
  CAST(greatest(0, least(175, coalesce(datediff(sales.Date, promo2_since), 0))) / 7 AS INT) AS Promo2Weeks,
  StoreType, Assortment, PromoInterval, CompetitionOpenSinceYear, Promo2SinceYear,
  Events, Promo, StateHoliday, SchoolHoliday, CompetitionDistance,
  Max_TemperatureC, Mean_TemperatureC, Min_TemperatureC, Max_Humidity, Mean_Humidity, Min_Humidity,
  Max_Wind_SpeedKm_h, Mean_Wind_SpeedKm_h, CloudCover, trend, trend_de,
  CAST(BeforePromo AS FLOAT) AS BeforePromo, CAST(AfterPromo AS FLOAT) AS AfterPromo,
  CAST(AfterStateHoliday AS FLOAT) AS AfterStateHoliday, CAST(BeforeStateHoliday AS FLOAT) AS BeforeStateHoliday,
  CAST(BeforeSchoolHoliday AS FLOAT) AS BeforeSchoolHoliday, CAST(AfterSchoolHoliday AS FLOAT) AS AfterSchoolHoliday
FROM sales_elapsed AS sales
JOIN stores ON sales.Store = stores.Store
JOIN state_days AS days ON days.State = stores.State AND days.Date = sales.Date""",
}


def run(spark, data, out):
    """Writes the features of the tables in a folder to another."""
    for table, schema in TABLES.items():
        path = os.path.join(data, f"{table}.csv")
        spark.read.csv(path, header=True, schema=schema).createOrReplaceTempView(table)
    for view, query in VIEWS.items():
        spark.sql(query).createOrReplaceTempView(view)
    features = spark.table("features").where("is_test OR Sales > 0")
    features = features.selectExpr("IF(is_test, 'test', 'train') AS dataset", "*").drop("is_test")
    features.write.partitionBy("dataset").parquet(os.path.join(out, "features"))


def main():
    spark = spark_session.start(spark_sql_shuffle_partitions="4")

    def answer(question):
        started = time.perf_counter()
        run(spark, question["data"], question["out"])
        return {"seconds": time.perf_counter() - started}

    serve(answer, spark_session.versions(spark))


if __name__ == "__main__":
    main()
