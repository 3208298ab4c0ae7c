"""Queries in DuckDB: one process of two threads, over Parquet files.

Asked {"tables": {NAME: FILE}}, it reads the tables from there on. Asked {"sql": QUERY}, it answers with
the seconds from the text to the rows as Arrow in this process, and the rows.
"""

import time

import duckdb

import answers
from serve import serve


def main():
    connection = duckdb.connect(config={"threads": 2})

    def answer(question):
        for table, file in question.get("tables", {}).items():
            connection.execute(f"CREATE OR REPLACE VIEW {table} AS FROM read_parquet('{file}')")
        if "sql" not in question:
            return {}
        started = time.perf_counter()
        table = connection.execute(question["sql"]).to_arrow_table()
        return answers.of_arrow(time.perf_counter() - started, table)

    serve(answer, {"DuckDB": duckdb.__version__})


if __name__ == "__main__":
    main()
