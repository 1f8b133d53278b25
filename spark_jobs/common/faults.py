"""Records that cannot be read: a job counts them, lists them, finishes everything else and exits with code 9.

Executors pass such a record on as a line with only its position, its bytes and the reason, the columns of
:data:`FAULT_SCHEMA`. :meth:`Faults.take` finds these lines on the driver; executors that return only sums
pass the numbers and the first records to :meth:`Faults.add`.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from spark_jobs.common.charts import many
from spark_jobs.common.report import Code, Report

if TYPE_CHECKING:
    from spark_jobs.common.job import Job

FAULT_SCHEMA: Final = "topic string, partition int, offset bigint, key binary, value binary, fault string"
"""A record that cannot be read: its place, its bytes, and why; ``fault`` is null in lines of others."""

FAULT_COLUMNS: Final = tuple(column.split()[0] for column in FAULT_SCHEMA.split(", "))

RECORD_COLUMNS: Final = FAULT_COLUMNS[:-1]
"""What of these a record has: its place and its bytes."""

NO_FAULT: Final = (None,) * len(FAULT_COLUMNS)
"""What the line of a record that can be read has in them."""

DEAD_LETTERS: Final = "deadletter"
"""The table that has all of them."""

_LISTED: Final = 100
_KEY_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A record that cannot be read, as it is listed."""

    topic: str
    partition: int
    offset: int
    key: str
    reason: str

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, key: bytes | None, reason: str) -> "Fault":
        """Make what is listed of a record."""
        shown = "" if key is None else key[:_KEY_SHOWN].decode("ascii", "backslashreplace")
        return cls(topic, partition, offset, shown, reason)


@dataclass(slots=True)
class Faults:
    """How many records of a job's input cannot be read, and the first of them."""

    number: int = 0
    first: list[Fault] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """Topics of which they are counted."""

    def add(self, number: int, first: Iterable[Fault]) -> None:
        """Count records, and list the first of them."""
        self.number += number
        self.first = sorted([*self.first, *first])[:_LISTED]

    def take(self, folder: str, lines: DataFrame) -> None:
        """Count and list those among lines that have a ``fault``, and write them into the table of all.

        That is in ``folder``. Records of a topic are taken once, however often a job reads it.
        """
        faulty = lines.where("fault is not null").select(*FAULT_COLUMNS)
        if self.taken:
            faulty = faulty.where(~sf.col("topic").isin(*self.taken))
        counts = {row.topic: row["count"] for row in faulty.groupBy("topic").count().collect()}
        if not counts:
            return
        self.taken |= counts.keys()
        faulty.write.mode("append").parquet(f"{folder}/{DEAD_LETTERS}")
        first = faulty.drop("value").orderBy("topic", "partition", "offset").limit(_LISTED).collect()
        self.add(
            sum(counts.values()),
            [Fault.of(row.topic, row.partition, row.offset, row.key, row.fault) for row in first],
        )

    def summary(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of them."""
        return {"number": self.number, "first": [asdict(one) for one in self.first]}

    def show(self, page: Report) -> None:
        """Say in a report that there are some, and list them at its end."""
        if not self.number:
            return
        number = many(self.number, "record")
        page.notice(f"{number} could not be read: see the end of the page. Everything else was read.")
        page.section(
            "Records that could not be read",
            f"The first {len(self.first)} are listed; for the others see the table {DEAD_LETTERS}."
            if self.number > len(self.first)
            else "",
        )
        page.table(
            ["topic", "partition", "offset", "key", "reason"],
            [
                (one.topic, str(one.partition), one.offset, Code(one.key) if one.key else None, one.reason)
                for one in self.first
            ],
        )


def tell_corrupt(job: "Job", corrupt: DataFrame) -> None:
    """Count and list the rows of the view ``_corrupt``, with their ``source``, and write them as a result."""
    topics = {one.source: one.part.topic for one in job.inputs}
    number = job.faults.number
    for row in corrupt.groupBy("source").count().collect():
        first = corrupt.where(sf.col("source") == row.source).orderBy("offset").limit(_LISTED).collect()
        told = [
            Fault(topics[row.source], 0, one.offset, one.key, f"{one.error_class}: {one.error}")
            for one in first
        ]
        job.faults.add(row["count"], told)
    if job.faults.number > number:
        job.write(DEAD_LETTERS, corrupt.withColumnRenamed("offset", "raw_offset").orderBy("raw_offset"))
