"""Frames as plain values."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame


def dicts(rows: DataFrame | Iterable[Any]) -> list[dict[str, Any]]:
    collected = rows.collect() if isinstance(rows, DataFrame) else rows
    return [row.asDict(recursive=True) for row in collected]
