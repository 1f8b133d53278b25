"""The Spark session for the tests of this folder."""

from tests.spark_session import spark

__all__ = ["spark"]
