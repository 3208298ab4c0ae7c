"""Rows as JSON can carry them: what peers that run queries answer with."""

import datetime
import decimal


def plain(value):
    """A value of a row. Decimals become floats: answers are compared with a tolerance."""
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return value


def answer(seconds, columns, rows):
    """An answer to a query: how long it took, and its rows."""
    return {
        "seconds": seconds,
        "columns": list(columns),
        "rows": [[plain(value) for value in row] for row in rows],
    }


def of_arrow(seconds, table):
    """An answer of which the rows are an Arrow table."""
    columns = [column.to_pylist() for column in table.columns]
    return answer(seconds, table.column_names, zip(*columns))
