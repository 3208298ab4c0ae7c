"""Queries in Spark SQL: one process of two threads, over Parquet files.

Asked {"tables": {NAME: FILE}}, it reads the tables from there on. Asked {"sql": QUERY}, it answers with
the seconds from the text to the rows as Arrow in this process, and the rows.
"""

import time

import answers
import spark_session
from serve import serve


def main():
    spark = spark_session.start(
        spark_sql_shuffle_partitions="4",
        spark_sql_autoBroadcastJoinThreshold="100m",
        spark_sql_execution_arrow_pyspark_enabled="true",
        # As in standard SQL and the other systems.
        spark_sql_ansi_doubleQuotedIdentifiers="true",
    )

    def answer(question):
        for table, file in question.get("tables", {}).items():
            spark.read.parquet(file).createOrReplaceTempView(table)
        if "sql" not in question:
            return {}
        started = time.perf_counter()
        table = spark.sql(question["sql"]).toArrow()
        return answers.of_arrow(time.perf_counter() - started, table)

    serve(answer, spark_session.versions(spark))


if __name__ == "__main__":
    main()
