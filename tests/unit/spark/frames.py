"""Events as frames, in the form in which the jobs have them once they are decoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.common.events import EVENT_SCHEMA, arrow_schema

NAMES = [part.split()[0] for part in EVENT_SCHEMA.split(",")]
OPERATIONS = {"WRITE": "insert", "UPDATE": "update", "DELETE": "delete"}


@dataclass
class Log:
    """Writes events one after the other, as one source's stream."""

    source: str = "shop"
    epoch: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def event(
        self, type_: str, *, server_id: int = 1, timestamp: int = 1000, size: int = 50, **more: Any
    ) -> None:
        offset = len(self.events) * 2
        position = 4 + len(self.events) * 100
        self.events.append(
            {
                "source": self.source, "offset": offset, "epoch": self.epoch, "log_file": "bin.000001",
                "raw_key": f"{server_id}:{self.epoch}:bin.000001:{position}", "position": position,
                "sub_index": 0,
                "server_id": server_id, "timestamp": timestamp, "type": type_, "size": size,
                "operation": OPERATIONS.get(type_[:6].rstrip("_")) if "ROWS_EVENT" in type_ else None, **more,
            }
        )  # fmt: skip

    def transaction(
        self, name: str | None = None, *, events: Sequence[str] = ("WRITE_ROWS_EVENT",), **more: Any
    ) -> str:
        """Write a transaction: its GTID event, its other events, its end; without a name it is anonymous."""
        position = 4 + len(self.events) * 100
        transaction = name or f"bin.000001:{position}"
        first = "GTID_LOG_EVENT" if name else "ANONYMOUS_GTID_LOG_EVENT"
        for ordinal, type_ in enumerate([first, *events, "XID_EVENT"]):
            table = {"database": "shop", "table": "log"} if "ROWS" in type_ else {}
            self.event(type_, transaction=transaction, ordinal=ordinal, **{**table, **more})
        return transaction

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(event.get(name) for name in NAMES) for event in self.events]


def frame(spark: SparkSession, *logs: Log, partitions: int = 1) -> DataFrame:
    rows = [row for log in logs for row in log.rows()]
    columns = [list(column) for column in zip(*rows, strict=True)]
    fields = arrow_schema(EVENT_SCHEMA)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], schema=fields)
    return spark.createDataFrame(table).repartition(partitions)


def dicts(rows: DataFrame | Iterable[Any]) -> list[dict[str, Any]]:
    collected = rows.collect() if isinstance(rows, DataFrame) else rows
    return [row.asDict(recursive=True) for row in collected]
