"""Millrace carries the binary log of MySQL and MariaDB to Kafka and reads it with Spark."""

__version__ = "0.1.0"
