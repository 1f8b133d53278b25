"""What each service writes to ``{source}.state`` in the Kafka transaction of its output.

One record per service, in Avro single-object encoding (:mod:`millrace.avro.single_object`), by the schemas
``ReaderState``, ``DecoderState`` and ``RowMapperState``, whose fields these classes repeat; what a field
means is said there. :class:`RowsContext` is what the row mapper keeps beside each of its dead letters.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from millrace.avro import single_object
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

__all__ = [
    "DecoderState",
    "LogIdentity",
    "OffsetRange",
    "PendingXa",
    "PlainValue",
    "QuarantinedTable",
    "ReaderState",
    "RowMapperState",
    "RowsContext",
    "stored_state",
]

PlainValue = None | bool | int | float | bytes | str | list["PlainValue"] | dict[str, "PlainValue"]
"""What a codec's state saves itself as; integers within 64 bits, dictionaries keyed by text."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What tells one server's log from another's of the same name."""

    server_id: int
    server_version: str
    created: int
    """Timestamp of the file's FORMAT_DESCRIPTION, seconds."""
    server_uuid: str | None = None
    server_uid: str | None = None
    previous_gtids: str | None = None


@dataclass(frozen=True, slots=True)
class ReaderState:
    """Where the reader stands."""

    epoch: int
    log_file: str
    position: int
    chunk: int = 0
    boundary: int = 4
    identity: LogIdentity | None = None
    gtid_set: str = ""
    left_out: str = ""
    open_gtid: str | None = None
    last_timestamp: int = 0
    reset: str | None = None

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("ReaderState", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("ReaderState", data)
        identity = record.pop("identity")
        return cls(identity=LogIdentity(**identity) if identity is not None else None, **record)


@dataclass(frozen=True, slots=True)
class DecoderState:
    """Where the decoder stands; ``stream`` and ``tracker`` are what the codec's own ``save()`` returns."""

    input_offset: int
    first_chunk_offset: int | None = None
    sub_index: int = 0
    chunk: int = field(default=0, kw_only=True)
    dead_letter: bool = field(default=False, kw_only=True)
    stream: Mapping[str, Any] = field(default_factory=dict)
    tracker: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode as a single object; raises :class:`TypeError` where a saved state is not plain."""
        return single_object.encode(
            "DecoderState",
            {
                "input_offset": self.input_offset,
                "first_chunk_offset": self.first_chunk_offset,
                "sub_index": self.sub_index,
                "chunk": self.chunk,
                "dead_letter": self.dead_letter,
                "stream": _to_plain(self.stream),
                "tracker": _to_plain(self.tracker),
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("DecoderState", data)
        stream, tracker = (_from_plain(record.pop(name)) or {} for name in ("stream", "tracker"))
        return cls(stream=stream, tracker=tracker, **record)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets in the events topic from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PendingXa:
    """A prepared XA transaction, and the ranges in it that ROLLBACK TO SAVEPOINT undid."""

    xid: str
    start: int
    end: int
    undone: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantinedTable:
    """A table whose rows wait in the dead letter topic, from the event ``key`` on.

    ``error`` and ``error_class`` are those of that event's letter. ``letter`` and ``published`` say how far
    its letters were given back, where that was begun.
    """

    database: str
    table: str
    key: str
    transaction: int
    offset: int
    error: str
    error_class: str = "SchemaMismatchError"
    letter: int | None = None
    published: int = 0

    @property
    def name(self) -> str:
        """The table as ``database.table``, the way dead letters name it."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class RowsContext:
    """What must be known beside a rows event that waits in the dead letter topic, to map its rows later."""

    transaction: str
    gtid: str | None
    thread: int | None
    query: str | None
    server_version: str | None
    before: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("RowsContext", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("RowsContext", data)
        return cls(**{**record, "before": tuple(record["before"])})


@dataclass(frozen=True, slots=True)
class RowMapperState:
    """Where the row mapper stands."""

    input_offset: int
    published: int = 0
    server_version: str | None = None
    pending_xa: tuple[PendingXa, ...] = ()
    quarantined: tuple[QuarantinedTable, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode(
            "RowMapperState",
            {
                "input_offset": self.input_offset,
                "published": self.published,
                "server_version": self.server_version,
                "pending_xa": [asdict(pending) for pending in self.pending_xa],
                "quarantined": [asdict(table) for table in self.quarantined],
                "counters": dict(self.counters),
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("RowMapperState", data)
        return cls(
            input_offset=record["input_offset"],
            published=record["published"],
            server_version=record["server_version"],
            pending_xa=tuple(
                PendingXa(**{**xa, "undone": tuple(OffsetRange(**range_) for range_ in xa["undone"])})
                for xa in record["pending_xa"]
            ),
            quarantined=tuple(QuarantinedTable(**table) for table in record["quarantined"]),
            counters=record["counters"],
        )


def _to_plain(value: Any) -> dict[str, Any]:
    """Wrap ``value`` as the schema ``Plain`` has it: a record around each value, so that it may nest."""
    if isinstance(value, list | tuple):
        return {"value": [_to_plain(item) for item in value]}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a saved state has the keys {list(value)[:3]}…, only text is plain")
        return {"value": {key: _to_plain(item) for key, item in value.items()}}
    if value is not None and not isinstance(value, bool | int | float | bytes | str):
        raise TypeError(f"a saved state holds a {type(value).__name__}, which is not plain")
    return {"value": value}


def _from_plain(record: dict[str, Any] | None) -> Any:
    """Unwrap what :func:`_to_plain` gave; tuples come back as lists."""
    if record is None:
        return None
    value = record["value"]
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _from_plain(item) for key, item in value.items()}
    return value


S = TypeVar("S", ReaderState, DecoderState, RowMapperState)


def stored_state(kind: type[S], stored: bytes | None, topic: str) -> S | None:
    """Decode the state that a service has in ``topic``; raises :class:`UserError` where it cannot be read."""
    if stored is None:
        return None
    try:
        return kind.from_bytes(stored)
    except single_object.SingleObjectError as error:
        advice = (
            "" if kind is ReaderState else ". 'millrace recompute' lets decoder and row mapper begin anew"
        )
        raise UserError(f"the state in {topic} cannot be read: {error}{advice}", ExitCode.DATA) from error
