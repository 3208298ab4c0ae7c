"""The Rossmann features in DuckDB: one process of two threads, one script, a new database in memory each time.
It keeps the features in memory and writes them twice: one COPY with PARTITION_BY takes four times as long.

Asked {"data": DIR, "out": DIR}, it writes train.parquet and test.parquet and answers with the seconds.
"""

import pathlib
import time

import duckdb

from serve import serve

SCRIPT = pathlib.Path(__file__).with_name("features_duckdb.sql").read_text()


def answer(question):
    started = time.perf_counter()
    script = SCRIPT.replace("${data}", question["data"]).replace("${out}", question["out"])
    with duckdb.connect() as connection:
        connection.execute(script)
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    serve(answer, {"DuckDB": duckdb.__version__})
