"""A Spark session of two threads in one process, for peers. What a peer tunes beyond it, it says itself."""

import os
import sys

import pyspark
from pyspark.sql import SparkSession


def start(**settings):
    """Starts a session; settings are Spark's, with underscores where it has dots."""
    here = os.getcwd()
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "4g")
        # A fifth faster than the default collector in the Rossmann features.
        .config("spark.driver.extraJavaOptions", "-XX:+UseParallelGC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", here)
        .config("spark.sql.warehouse.dir", os.path.join(here, "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
    )
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def versions(session):
    """Of Spark, the Java it runs on, and Python."""
    java = session.sparkContext._jvm.java.lang.System.getProperty("java.version")
    return {"Spark": pyspark.__version__, "Java": java, "Python": sys.version.split()[0]}
