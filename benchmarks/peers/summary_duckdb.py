"""What is in a Parquet file, or in a folder of them, whatever the order of rows and columns and the
width of numbers: two systems that wrote the same rows get the same summary.

Asked {"path": PATH, "without": [COLUMN, …] or nothing}, it answers with the number of rows, for every column its nulls, least and greatest
value, and the sum of numbers, flags and dates (as days) or the number of different texts; and with the
sum of the rows' hashes, which tells that the columns of a row belong together.
"""

import os

import duckdb

from serve import serve

NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT",
           "DOUBLE", "DECIMAL")  # fmt: skip


def canonical(name, kind):
    """A column in the type that all systems' types of it are cast to."""
    column = f'"{name}"'
    if kind.startswith(NUMBERS):
        return f"{column}::DOUBLE"
    if kind == "BOOLEAN":
        return f"{column}::INTEGER::DOUBLE"
    if kind == "DATE":
        return f"({column} - DATE '1970-01-01')::DOUBLE"
    if kind == "VARCHAR":
        return column
    raise ValueError(f"column {name} is of type {kind}")


def answer(question):
    path = question["path"]
    files = os.path.join(path, "**/*.parquet") if os.path.isdir(path) else path
    with duckdb.connect() as connection:
        described = connection.execute("DESCRIBE FROM read_parquet(?, hive_partitioning = false)", [files]).fetchall()
        columns = {name: canonical(name, kind) for name, kind, *_ in described}
        names = sorted(set(columns) - set(question.get("without", [])))
        last = {name: "sum({0})" if "::" in columns[name] else "count(DISTINCT {0})" for name in names}
        each = ", ".join(
            f"count(*) - count({columns[name]}), min({columns[name]}), max({columns[name]}), "
            + last[name].format(columns[name])
            for name in names
        )
        whole = ", ".join(columns[name] for name in names)
        query = f"SELECT count(*), sum(hash({whole}))::VARCHAR, {each} FROM read_parquet(?, hive_partitioning = false)"
        count, hashes, *figures = connection.execute(query, [files]).fetchall()[0]
    figures = {name: figures[4 * at : 4 * at + 4] for at, name in enumerate(names)}
    return {"rows": count, "hashes": hashes, "columns": figures}


if __name__ == "__main__":
    serve(answer, {"DuckDB": duckdb.__version__})
