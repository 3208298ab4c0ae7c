"""Runs statements in DuckDB and writes the rows of the last one to a Parquet file.

Takes the file's path as its argument and the statements as a JSON list on standard input. They are DataFusion's: tables of files
become DuckDB's tables with the same columns, filled from the same files.
"""

import json
import re
import signal
import sys

import duckdb

SECONDS = 60
EXTERNAL = re.compile(
    r"CREATE EXTERNAL TABLE (?P<name>\w+)(?: \((?P<columns>.*?)\))? STORED AS (?P<format>\w+)(?: PARTITIONED BY \(\w+\))?"
    r"(?: WITH ORDER \(.*?\))? LOCATION '(?P<place>[^']*)'(?: OPTIONS \((?P<options>.*)\))?",
    re.DOTALL,
)


def translated(statement):
    table = EXTERNAL.fullmatch(statement)
    if table is None:
        return [statement]
    place = table["place"] + ("**" if table["place"].endswith("/") else "")
    options = table["options"] or ""
    if table["format"] == "CSV":
        header = "'format.has_header' 'false'" not in options
        compression = re.search(r"'format.compression' '(\w+)'", options)
        compression = compression[1] if compression else "auto"
        rows = f"read_csv('{place}', header = {header}, compression = '{compression}', all_varchar = {bool(table['columns'])})"
    elif table["format"] == "JSON":
        rows = f"read_json('{place}', format = 'newline_delimited')"
    elif table["format"] == "PARQUET":
        rows = f"read_parquet('{place}')"
    else:
        raise ValueError(f"DuckDB does not read {table['format']}")
    if not table["columns"]:
        return [f"CREATE TABLE {table['name']} AS SELECT * FROM {rows}"]
    columns = re.sub(r"STRUCT<(.*?)>", r"STRUCT(\1)", table["columns"])
    return [
        f"CREATE TABLE {table['name']} ({columns})",
        f"INSERT INTO {table['name']} BY NAME SELECT * FROM {rows}",
    ]


signal.alarm(SECONDS)
session = duckdb.connect()
session.execute("SET threads = 1; SET TimeZone = 'UTC'; SET integer_division = true")
session.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
*tables, query = json.load(sys.stdin)
for table in tables:
    for statement in translated(table):
        session.execute(statement)
session.execute(f"COPY ({query}) TO '{sys.argv[1]}' (FORMAT parquet)")
