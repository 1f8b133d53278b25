"""Transactions in a stream of events.

An event's ``transaction`` is its GTID, else where it starts (``file:position``). The same transaction can
occur more than once in a stream, which is what loop detection looks for. So each occurrence has a ``lap``:
the offset of its first event, that of ordinal 0, or :data:`BEFORE` if that lies before the input.
"""

import re
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

INSTANCE: Final = ("source", "epoch", "transaction", "lap")
"""What tells one occurrence of a transaction from all others."""

BEFORE: Final = -1

_GTID: Final = re.compile(
    r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(:\w+)?:[0-9]+|[0-9]+-[0-9]+-[0-9]+", re.ASCII
)


def tells_gtid(transaction: str) -> bool:
    """Return whether this is a GTID, ``uuid[:tag]:number`` (MySQL) or ``domain-server-number`` (MariaDB)."""
    return _GTID.fullmatch(transaction) is not None


def number_laps(events: DataFrame) -> DataFrame:
    """Add the ``lap`` of each event; null outside transactions."""
    order = Window.partitionBy("source", "epoch", "transaction").orderBy("offset", "sub_index")
    begun = sf.max(sf.when(sf.col("ordinal") == 0, sf.col("offset"))).over(order)
    lap = sf.when(sf.col("transaction").isNotNull(), sf.coalesce(begun, sf.lit(BEFORE)))
    return events.withColumn("lap", lap.cast("long"))
