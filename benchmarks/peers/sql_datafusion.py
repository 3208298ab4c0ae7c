"""Queries in DataFusion alone: one process of two threads, over Parquet files, without a cluster.

Asked {"tables": {NAME: FILE}}, it reads the tables from there on. Asked {"sql": QUERY}, it answers with
the seconds from the text to the rows as Arrow in this process, and the rows.
"""

import time

import datafusion
import pyarrow

import answers
from serve import serve


def main():
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2))

    def answer(question):
        for table, file in question.get("tables", {}).items():
            context.register_parquet(table, file)
        if "sql" not in question:
            return {}
        started = time.perf_counter()
        table = context.sql(question["sql"]).to_arrow_table()
        return answers.of_arrow(time.perf_counter() - started, table)

    serve(answer, {"DataFusion": datafusion.__version__, "PyArrow": pyarrow.__version__})


if __name__ == "__main__":
    main()
