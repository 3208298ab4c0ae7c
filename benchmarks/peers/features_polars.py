"""The Rossmann features in Polars: one process of two threads, one lazy query from all files to both data sets; with
`--collect`, to the features, which are kept in memory and written twice.

Asked {"data": DIR, "out": DIR}, it writes train.parquet and test.parquet and answers with the seconds.
What the features mean is told in examples/rossmann/features.sql.
"""

import os
import pathlib
import sys
import time

# Read when Polars is loaded.
os.environ["POLARS_MAX_THREADS"] = "2"

import polars as pl  # noqa: E402

from serve import serve  # noqa: E402

INT, REAL, TEXT, DAY = pl.Int32, pl.Float32, pl.String, pl.Date

FLAGS = ["Open", "Promo", "StateHoliday", "SchoolHoliday"]
# Of which the features have the days since the last one and until the next one.
EVENTS = ["Promo", "StateHoliday", "SchoolHoliday"]
# Of which the features have a number, 0 where it is not known.
WEATHER = [
    "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC", "Max_Humidity", "Mean_Humidity", "Min_Humidity",
    "Max_Wind_SpeedKm_h", "Mean_Wind_SpeedKm_h", "CloudCover",
]  # fmt: skip

SCHEMAS = {
    "train": {"Store": INT, "DayOfWeek": INT, "Date": DAY, "Sales": INT, "Customers": INT}
    | dict.fromkeys(FLAGS, TEXT),
    "test": {"Id": INT, "Store": INT, "DayOfWeek": INT, "Date": DAY} | dict.fromkeys(FLAGS, TEXT),
    "store": {
        "Store": INT, "StoreType": TEXT, "Assortment": TEXT, "CompetitionDistance": INT,
        "CompetitionOpenSinceMonth": INT, "CompetitionOpenSinceYear": INT,
        "Promo2": INT, "Promo2SinceWeek": INT, "Promo2SinceYear": INT, "PromoInterval": TEXT,
    },
    "store_states": {"Store": INT, "State": TEXT},
    "state_names": {"StateName": TEXT, "State": TEXT},
    "googletrend": {"file": TEXT, "week": TEXT, "trend": INT},
    "weather": {
        "file": TEXT, "Date": DAY,
        "Max_TemperatureC": INT, "Mean_TemperatureC": INT, "Min_TemperatureC": INT,
        "Dew_PointC": INT, "MeanDew_PointC": INT, "Min_DewpointC": INT,
        "Max_Humidity": INT, "Mean_Humidity": INT, "Min_Humidity": INT,
        "Max_Sea_Level_PressurehPa": INT, "Mean_Sea_Level_PressurehPa": INT, "Min_Sea_Level_PressurehPa": INT,
        "Max_VisibilityKm": INT, "Mean_VisibilityKm": INT, "Min_VisibilitykM": INT,
        "Max_Wind_SpeedKm_h": INT, "Mean_Wind_SpeedKm_h": INT, "Max_Gust_SpeedKm_h": INT,
        "Precipitationmm": pl.Float64, "CloudCover": INT, "Events": TEXT, "WindDirDegrees": INT,
    },
}  # fmt: skip


def elapsed():
    """Columns of the days since and until each event, of rows in the order of stores and days."""
    date = pl.col("Date")
    for event in EVENTS:
        then = pl.when(pl.col(event)).then(date)
        past = then.forward_fill().over("Store").fill_null(date.first().over("Store"))
        future = then.backward_fill().over("Store").fill_null(date.last().over("Store"))
        for name, day in ((f"After{event}", past), (f"Before{event}", future)):
            yield (date - day).dt.total_days().cast(REAL).alias(name)


def number(name):
    return pl.col(name).fill_null(0).cast(REAL)


def known(name):
    """A text column without empty texts."""
    return pl.when(pl.col(name) != "").then(pl.col(name)).alias(name)


def features(data):
    table = {
        name: pl.scan_csv(pathlib.Path(data) / f"{name}.csv", schema=schema) for name, schema in SCHEMAS.items()
    }
    flags = [(pl.col(flag) != "0").alias(flag) for flag in FLAGS]
    sales = (
        pl.concat(
            [
                table["train"].select(pl.lit(None, INT).alias("Id"), "Store", "DayOfWeek", "Date", "Sales", *flags),
                table["test"].select("Id", "Store", "DayOfWeek", "Date", pl.lit(None, INT).alias("Sales"), *flags),
            ]
        )
        .sort("Store", "Date")
        .with_columns(*elapsed())
    )

    year, month, week = (pl.col(name) for name in ("CompetitionOpenSinceYear", "CompetitionOpenSinceMonth", "Promo2SinceWeek"))
    promo_year = pl.col("Promo2SinceYear")
    stores = (
        table["store"]
        .join(table["store_states"], on="Store")
        .select(
            "Store", "State", "StoreType", "Assortment", known("PromoInterval"),
            year.fill_null(1900), promo_year.fill_null(1900),
            pl.when(year > 1900).then(pl.date(year, month.fill_null(1), 15)).alias("competition_since"),
            pl.when(promo_year > 1900)
            .then(pl.date(promo_year, 1, 1) + pl.duration(days=(week.fill_null(1) - 1) * 7))
            .alias("promo2_since"),
            number("CompetitionDistance"),
        )
    )  # fmt: skip

    file, date = pl.col("file"), pl.col("Date")
    trends = table["googletrend"].select(
        pl.when(file == "Rossmann_DE").then(None).when(file == "Rossmann_DE_NI").then(pl.lit("HB,NI"))
        .otherwise(file.str.slice(12)).alias("State"),
        pl.col("week").str.slice(0, 10).str.to_date("%Y-%m-%d").alias("Date"),
        number("trend"),
    ).select("State", date.dt.year().alias("Year"), date.dt.week().alias("Week"), "trend")  # fmt: skip
    weather = (
        table["weather"]
        .join(table["state_names"], left_on="file", right_on="StateName")
        .select(
            "State", "Date", date.dt.year().alias("Year"), date.dt.month().alias("Month"),
            date.dt.day().alias("Day"), date.dt.week().alias("Week"), known("Events"),
            *[number(name) for name in WEATHER],
        )
    )  # fmt: skip
    germany = trends.filter(pl.col("State").is_null()).select("Year", "Week", pl.col("trend").alias("trend_de"))
    days = weather.join(trends, on=["State", "Year", "Week"]).join(germany, on=["Year", "Week"])

    def since(day, most, unit):
        elapsed = (date - pl.col(day)).dt.total_days().fill_null(0)
        return (elapsed.clip(0, most) // unit).cast(INT)

    return (
        sales.join(stores, on="Store")
        .join(days, on=["State", "Date"])
        .select(
            "Id", "Date", "Sales", "Open", "Store", "State", "DayOfWeek", "Year", "Month", "Day", "Week",
            since("competition_since", 720, 30).alias("CompetitionMonthsOpen"),
            since("promo2_since", 175, 7).alias("Promo2Weeks"),
            "StoreType", "Assortment", "PromoInterval", "CompetitionOpenSinceYear", "Promo2SinceYear",
            "Events", "Promo", "StateHoliday", "SchoolHoliday", "CompetitionDistance", *WEATHER, "trend", "trend_de",
            *[f"{side}{event}" for event in EVENTS for side in ("Before", "After")],
        )
    )  # fmt: skip


def answer(question):
    started = time.perf_counter()
    rows = features(question["data"])
    if "--collect" in sys.argv[1:]:
        rows = rows.collect().lazy()
    out = pathlib.Path(question["out"])
    test = pl.col("Id").is_not_null()
    train = rows.filter(~test & (pl.col("Sales") > 0)).drop("Id", "Open")
    test = rows.filter(test).drop("Sales")
    files = [(train, "train.parquet"), (test, "test.parquet")]
    pl.collect_all([rows.sink_parquet(out / name, lazy=True) for rows, name in files])
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    serve(answer, {"Polars": pl.__version__})
