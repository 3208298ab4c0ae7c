"""The Rossmann features by the method of the published Horovod-on-Spark example: tables of text that
are cast as needed, DataFrame joins, and the elapsed days counted by Python generators over an RDD.

The rows of each store are brought together and sorted by date within partitions, backwards and then
forwards; for every event a generator walks over them, remembers the last date on which it held, and
passes each row on with one more field. What is joined is cached, as it is there, because it is read
again. Left out are the example's row counts, printed rows and vocabularies: they are not the features.

Asked {"data": DIR, "out": DIR}, it writes train.parquet and test.parquet and answers with the seconds.
"""

import os
import time

from pyspark.sql import Row
from pyspark.sql import functions as F

import spark_session
from serve import serve

EVENTS = ["Promo", "StateHoliday", "SchoolHoliday"]
ELAPSED = [when + event for event in EVENTS for when in ("Before", "After")]
INTEGERS = ["Store", "DayOfWeek", "CompetitionOpenSinceYear", "Promo2SinceYear"]
TEXTS = ["State", "StoreType", "Assortment", "PromoInterval", "Events"]
COMPUTED = ["Year", "Month", "Day", "Week", "CompetitionMonthsOpen", "Promo2Weeks"]
NUMBERS = [
    "CompetitionDistance", "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC", "Max_Humidity",
    "Mean_Humidity", "Min_Humidity", "Max_Wind_SpeedKm_h", "Mean_Wind_SpeedKm_h", "CloudCover", "trend",
    "trend_de",
] + ELAPSED  # fmt: skip


def walk(event, name):
    """A generator over sorted rows that adds the days since the event last held, or since the first row."""

    def generator(rows):
        store, since = None, None
        for row in rows:
            if row.Store != store:
                store, since = row.Store, row.Date
            if row[event]:
                since = row.Date
            yield Row(**row.asDict(), **{name: (row.Date - since).days})

    return generator


def elapsed_days(sales):
    """Before and After of every event, by store and date."""
    sales = sales.repartition("Store")
    for when, order in (("Before", F.col("Date").desc()), ("After", F.col("Date").asc())):
        rows = sales.sortWithinPartitions(F.col("Store").asc(), order).rdd
        for event in EVENTS:
            rows = rows.mapPartitions(walk(event, when + event))
        sales = rows.toDF()
    return sales


def with_calendar(table):
    return (
        table.withColumn("Date", F.col("Date").cast("date"))
        .withColumn("Year", F.year("Date"))
        .withColumn("Month", F.month("Date"))
        .withColumn("Week", F.weekofyear("Date"))
        .withColumn("Day", F.dayofmonth("Date"))
    )


def since(column, most):
    """Days from a date, at least 0 and at most so many; 0 where there is no date."""
    days = F.coalesce(F.datediff("Date", F.col(column)), F.lit(0))
    return F.greatest(F.lit(0), F.least(F.lit(most), days))


def joined(sales, tables):
    """Sales with all that is known of their store, state and date."""
    sales = with_calendar(sales)
    for flag in ["Open"] + EVENTS:
        sales = sales.withColumn(flag, F.col(flag) != "0")
    stores = tables["store"].join(tables["store_states"], "Store")
    sales = sales.join(stores, "Store")

    trend = with_calendar(
        tables["googletrend"]
        .withColumn("Date", F.regexp_extract("week", "(.*?) -", 1))
        .withColumn("State", F.regexp_extract("file", "Rossmann_DE_(.*)", 1))
        .withColumn("State", F.when(F.col("State") == "NI", "HB,NI").otherwise(F.col("State")))
    )
    of_states = trend.select("State", "Year", "Week", "trend")
    of_germany = trend.where("file = 'Rossmann_DE'").select("Year", "Week", F.col("trend").alias("trend_de"))
    sales = sales.join(of_states, ["State", "Year", "Week"]).join(of_germany, ["Year", "Week"])

    weather, names = tables["weather"], tables["state_names"]
    weather = weather.join(names, weather.file == names.StateName)
    weather = weather.withColumn("Date", F.col("Date").cast("date"))
    sales = sales.join(weather, ["State", "Date"])

    for column, default in (
        ("CompetitionOpenSinceYear", "1900"),
        ("CompetitionOpenSinceMonth", "1"),
        ("Promo2SinceYear", "1900"),
        ("Promo2SinceWeek", "1"),
    ):
        sales = sales.withColumn(column, F.coalesce(F.col(column), F.lit(default)).cast("int"))
    return (
        sales.withColumn(
            "competition_since",
            F.expr("IF(CompetitionOpenSinceYear > 1900, make_date(CompetitionOpenSinceYear, CompetitionOpenSinceMonth, 15), NULL)"),
        )
        .withColumn(
            "promo2_since",
            F.expr("IF(Promo2SinceYear > 1900, date_add(make_date(Promo2SinceYear, 1, 1), (Promo2SinceWeek - 1) * 7), NULL)"),
        )
        .withColumn("CompetitionMonthsOpen", (since("competition_since", 720) / 30).cast("int"))
        .withColumn("Promo2Weeks", (since("promo2_since", 175) / 7).cast("int"))
    )


def selected(sales, others):
    """The features, with their types."""
    columns = [F.col(name).cast("int").alias(name) for name in INTEGERS]
    columns += [F.nullif(F.col(name), F.lit("")).alias(name) for name in TEXTS]
    columns += [F.coalesce(F.col(name).cast("float"), F.lit(0.0).cast("float")).alias(name) for name in NUMBERS]
    return sales.select(*others, "Date", *COMPUTED, *EVENTS, *columns)


def run(spark, data, out):
    """Writes the features of the tables in a folder to another."""
    names = ["train", "test", "store", "store_states", "state_names", "googletrend", "weather"]
    tables = {name: spark.read.csv(os.path.join(data, f"{name}.csv"), header=True) for name in names}
    train = joined(tables["train"], tables).cache()
    test = joined(tables["test"], tables).cache()
    keys = ["Date", "Store"]
    sales = train.select(*keys, *EVENTS).unionAll(test.select(*keys, *EVENTS))
    elapsed = elapsed_days(sales).select(*keys, *ELAPSED)
    with_sales = train.join(elapsed, keys).where("CAST(Sales AS INT) > 0")
    with_sales = selected(with_sales, [F.col("Sales").cast("int").alias("Sales")])
    with_sales.write.parquet(os.path.join(out, "train.parquet"))
    with_id = selected(test.join(elapsed, keys), [F.col("Id").cast("int").alias("Id"), "Open"])
    with_id.write.parquet(os.path.join(out, "test.parquet"))
    train.unpersist(blocking=True)
    test.unpersist(blocking=True)


def main():
    spark = spark_session.start(spark_sql_shuffle_partitions="16")

    def answer(question):
        started = time.perf_counter()
        run(spark, question["data"], question["out"])
        return {"seconds": time.perf_counter() - started}

    serve(answer, spark_session.versions(spark))


if __name__ == "__main__":
    main()
