"""Records of ``{source}.snapshot``, and what is noted in ``{source}.state`` of writing and merging them.

In Avro single-object encoding by the schemas ``SnapshotChunk``, ``SnapshotState`` and ``SnapshotMerged``,
which say what each field means.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from millrace.avro import single_object

MERGED_KEY: Final = b"snapshot-merged"
"""Key of :class:`SnapshotMerged` in the state topic."""


SNAPSHOT_LOST: Final = b"snapshot-lost"
"""Key in the state topic: why rows of a snapshot are lost. A new snapshot of the same tables deletes it."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Rows of one table between two places in the log."""

    snapshot: int
    database: str
    table: str
    keyed: bool
    part: int
    last: bool
    epoch: int
    low_file: str
    low_position: int
    high_file: str
    high_position: int
    read_ms: int
    server_version: str
    table_map: bytes
    count: int
    rows: bytes

    @property
    def key(self) -> bytes:
        """Key of the record."""
        return f"{self.database}.{self.table}".encode()

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("SnapshotChunk", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        return cls(**single_object.decode("SnapshotChunk", data))


@dataclass(slots=True)
class SnapshotRange:
    """A range of a table's key."""

    after: Sequence[str] = ()
    until: str = ""
    done: bool = False


@dataclass(slots=True)
class SnapshotTable:
    """A table, and how far it has been read."""

    database: str
    table: str
    where: str = ""
    rows: int = 0
    estimate: int = 0
    note: str = ""
    ranges: list[SnapshotRange] = field(default_factory=list)
    key: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to be read."""
        return bool(self.note) or (bool(self.ranges) and all(each.done for each in self.ranges))


@dataclass(slots=True)
class SnapshotState:
    """How far a snapshot has come."""

    snapshot: int
    tables: list[SnapshotTable]
    finished: bool = False
    signals_topic: str = ""
    signals_offset: int = 0

    @property
    def rows(self) -> int:
        """Rows that were written to the snapshot topic."""
        return sum(table.rows for table in self.tables)

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("SnapshotState", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("SnapshotState", data)
        tables = [
            SnapshotTable(**{**table, "ranges": [SnapshotRange(**each) for each in table["ranges"]]})
            for table in record.pop("tables")
        ]
        return cls(tables=tables, **record)


@dataclass(frozen=True, slots=True)
class SnapshotMerged:
    """How far the row mapper has merged the snapshot topic."""

    topic_id: str
    offset: int
    whole_until: int = 0
    rows: int = 0
    dropped: int = 0
    refused: int = 0

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("SnapshotMerged", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        return cls(**single_object.decode("SnapshotMerged", data))
