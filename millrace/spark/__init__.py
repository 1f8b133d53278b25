"""The log as a data source of Spark.

from millrace.spark import register

register(spark)
spark.read.format("millrace").load("/var/lib/mysql/mysql-bin.*")
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the format ``millrace`` known to a session, classic or Connect.

    In a classic session whose workers are on this machine they run this Python, unless PYSPARK_PYTHON names
    another.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - without it this package can be imported

    from millrace.spark.source import MillraceDataSource  # noqa: PLC0415 - jobs need no data source

    if isinstance(spark, SparkSession) and "PYSPARK_PYTHON" not in os.environ:
        context = spark.sparkContext
        if (context.master or "").startswith("local"):
            context.pythonExec = sys.executable
    spark.dataSource.register(MillraceDataSource)
