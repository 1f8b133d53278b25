"""The log as a data source of Spark.

from millrace.spark import register

register(spark)
spark.read.format("millrace").load("/var/lib/mysql/mysql-bin.*")
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the format ``millrace`` known to a session, classic or Connect.

    It pushes filters down, for which Spark has a switch that is off by default.
    """
    from millrace.spark.source import MillraceDataSource  # noqa: PLC0415 - jobs need no data source

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(MillraceDataSource)
