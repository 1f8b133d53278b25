"""What each service writes to ``{source}.state`` in the Kafka transaction of its output.

One record per service, in Avro single-object encoding (:mod:`millrace.avro.single_object`), by the schemas
``ReaderState``, ``DecoderState`` and ``RowMapperState``, whose fields these classes repeat; what a field
means is said there. :class:`RowsContext` is what the row mapper keeps beside each of its dead letters.

A state has a :attr:`~ReaderState.place`, which never goes back: :meth:`~ReaderState.precedes` tells. Its
:class:`Continuity` is for whoever commits it: a stage leaves it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Generic, Self, TypeVar

from millrace.avro import single_object
from millrace.binlog.errors import BinlogError
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from millrace.binlog.values import value
from millrace.contract import SourcePosition, log_number
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.stage import Place

TABLE_TOPIC_PREFIX: Final = b"rowmapper:"
"""How the keys of :class:`TableTopic` begin in the state topic."""


@value
class InputRecord:
    """A record of the input topic; ``leader_epoch`` is that of its batch, -1 where it is not known."""

    offset: int
    key: bytes | None
    leader_epoch: int = -1


@value
class WrittenRecord:
    """A record of the service's own topic, by its key and the CRC-32 of its value."""

    key: bytes | None
    crc32: int


@value
class LastWritten:
    """The last record that a service wrote to a topic since its end was ``offset``; None if it wrote none."""

    offset: int
    last_output: WrittenRecord | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Make it of what Avro gave."""
        return cls(record["offset"], _output_record(record["last_output"]))


@value
class Continuity:
    """What shows that the topics are still those that a state speaks of, and hold what they held."""

    topics: Mapping[str, str] = field(default_factory=dict)
    last_input: InputRecord | None = None
    inputs: tuple[InputRecord, ...] = ()
    """Those at the offsets of the state; where the last one is at its place, these may not be."""
    last_output: WrittenRecord | None = None
    others: Mapping[str, LastWritten] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Make it of what Avro gave."""
        last_input = record["last_input"]
        return cls(
            record["topics"],
            None if last_input is None else InputRecord(**last_input),
            tuple(InputRecord(**each) for each in record["inputs"]),
            _output_record(record["last_output"]),
            {topic: LastWritten.of(since) for topic, since in record["others"].items()},
        )


def _output_record(record: Mapping[str, Any] | None) -> WrittenRecord | None:
    return None if record is None else WrittenRecord(**record)


@value
class LogIdentity:
    """What tells one server's log from another's of the same name."""

    server_id: int
    server_version: str
    created: int
    """Timestamp of the file's FORMAT_DESCRIPTION, seconds."""
    server_uuid: str | None = None
    server_uid: str | None = None
    previous_gtids: str | None = None


@value
class ReaderState:
    """Where the reader stands."""

    epoch: int
    log_file: str
    position: int
    chunk: int = 0
    chunk_crc32: int = 0
    boundary: int = 4
    identity: LogIdentity | None = None
    gtid_set: str = ""
    left_out: str = ""
    open_gtid: str | None = None
    last_timestamp: int = 0
    reset: str | None = None
    excluded_tables: list[int] = field(default_factory=list)
    binlog_state: str | None = None
    continuity: Continuity = field(default_factory=Continuity)

    @property
    def place(self) -> SourcePosition:
        """Epoch, file, position."""
        return SourcePosition(self.epoch, self.log_file, self.position)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets in the input topic: there is none."""
        return ()

    def precedes(self, other: Self) -> bool:
        """Return whether this state is one of before ``other``; of files with other names nobody can tell."""
        (base, number), (other_base, other_number) = (log_number(state.log_file) for state in (self, other))
        if self.epoch == other.epoch and base == other_base:
            return (number, self.position) < (other_number, other.position)
        return self.epoch < other.epoch

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("ReaderState", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("ReaderState", data)
        identity, continuity = record.pop("identity"), Continuity.of(record.pop("continuity"))
        return cls(
            identity=LogIdentity(**identity) if identity is not None else None,
            continuity=continuity,
            **record,
        )


@value
class LogScope:
    """What is remembered of a log file: what the codec's own ``save()`` returns."""

    epoch: int
    log_file: str
    stream: Mapping[str, Any]
    tracker: Mapping[str, Any]


@value
class DecoderState:
    """Where the decoder stands."""

    input_offset: int
    first_chunk_offset: int | None = None
    sub_index: int = 0
    chunk: int = 0
    dead_letter: bool = False
    fingerprint: int = 0
    logs: tuple[LogScope, ...] = ()
    reprocessing: bool = False
    continuity: Continuity = field(default_factory=Continuity)

    @property
    def place_to_read(self) -> int:
        """Offset where reading begins."""
        return self.input_offset if self.first_chunk_offset is None else self.first_chunk_offset

    @property
    def input_end(self) -> int:
        """Offset before which all was read."""
        return self.input_offset + (self.sub_index > 0 or self.chunk > 0)

    @property
    def place(self) -> Place:
        """Offset of the event, and records of it that are written."""
        return self.place_to_read, self.sub_index

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets in the input topic that this speaks of."""
        return self.place_to_read, self.input_offset

    def precedes(self, other: Self) -> bool:
        """Return whether this state is one of before ``other``."""
        return self.place < other.place

    def check(self) -> None:
        """Raise :class:`SingleObjectError` where what is remembered of log files cannot be restored."""
        try:
            for scope in self.logs:
                StreamState.restore(dict(scope.stream))
                TransactionTracker.restore(dict(scope.tracker))
        except (BinlogError, TypeError, ValueError) as error:
            raise single_object.SingleObjectError("DecoderState", str(error)) from error

    def to_bytes(self) -> bytes:
        """Encode as a single object; raises :class:`TypeError` where a saved state is not plain."""
        record = _plain_fields(self)
        record["logs"] = [
            {
                "epoch": scope.epoch,
                "log_file": scope.log_file,
                "stream": _to_plain(scope.stream),
                "tracker": _to_plain(scope.tracker),
            }
            for scope in self.logs
        ]
        return single_object.encode("DecoderState", record)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("DecoderState", data)
        logs = tuple(
            LogScope(
                scope["epoch"],
                scope["log_file"],
                _from_plain(scope["stream"]),
                _from_plain(scope["tracker"]),
            )
            for scope in record.pop("logs")
        )
        return cls(logs=logs, continuity=Continuity.of(record.pop("continuity")), **record)


@value
class OffsetRange:
    """Offsets in the events topic from ``start`` to before ``end``."""

    start: int
    end: int


@value
class PendingXa:
    """A prepared XA transaction, and the ranges in it that ROLLBACK TO SAVEPOINT undid."""

    xid: str
    start: int
    end: int
    undone: tuple[OffsetRange, ...] = ()


@value
class Progress:
    """How much of a transaction's output is published: all made of what lies before (offset, row, part).

    ``row`` counts the rows of the event at ``offset``, ``records`` what was made of them, ``part`` the chunks
    of its dead letter, cut from what has the ``fingerprint``. ``tables`` counts the transaction's records per
    table.
    """

    offset: int
    row: int = 0
    records: int = 0
    part: int = 0
    fingerprint: int = 0
    begun: bool = False
    tables: Mapping[tuple[str, str], int] = field(default_factory=dict)
    non_row_changes: int = 0

    @property
    def place(self) -> Place:
        """The coordinate; without chunks, which may be begun again."""
        return self.offset, self.row


_NOTHING: Final = (-1, 0)


PAUSED: Final = "Paused"
_NONE_YET: Final = -1
"""In place of the class of an error, where a table was paused by command."""


@value
class QuarantinedTable:
    """A table whose rows wait in the dead letter topic, from the event ``key`` on.

    ``error`` and ``error_class`` are those of that event's dead letter. ``dead_letter`` and ``progress`` say
    how far its dead letters were redriven, where that was begun. A table that was paused waits from the
    offset ``dead_letter`` on; ``key`` is that of its first dead letter since, and empty before there is one.
    """

    database: str
    table: str
    key: str
    transaction: int
    offset: int
    error: str
    error_class: str = "SchemaMismatchError"
    dead_letter: int | None = None
    progress: Progress | None = None

    @classmethod
    def paused(cls, database: str, table: str, transaction: int, dead_letter: int) -> "QuarantinedTable":
        """Set a table aside by command: rows of transactions that begin at an offset or later wait.

        Those of a prepared XA transaction, too, that is committed there: its events come before.
        """
        error = "paused by command; 'millrace resume' publishes its rows"
        return cls(database, table, "", transaction, _NONE_YET, error, PAUSED, dead_letter)

    @property
    def is_paused(self) -> bool:
        """Whether it was paused by command."""
        return self.error_class == PAUSED

    @property
    def knows_first(self) -> bool:
        """Whether it is known which dead letter waits first, or that none waits.

        It is not of a table that an earlier version has paused.
        """
        return not self.is_paused or self.offset == _NONE_YET

    @property
    def name(self) -> str:
        """The table as ``database.table``, the way dead letters name it."""
        return f"{self.database}.{self.table}"


@value
class RowsContext:
    """What must be known beside a rows event that waits in the dead letter topic, to map its rows later."""

    transaction: str
    gtid: str | None
    thread: int | None
    query: str | None
    server_version: str | None
    row: int
    records: int
    before: tuple[bytes, ...]
    committed_us: int = 0

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("RowsContext", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("RowsContext", data)
        return cls(**{**record, "before": tuple(record["before"])})


ANY_TABLE: Final = "*"
"""In place of the name of a table, where a statement names none; alone, of any table of any database."""


@value
class TemporaryTable:
    """A temporary table of a session, which is a connection of a server."""

    server_id: int
    thread: int
    database: str
    table: str


@value
class RowMapperState:
    """Where the row mapper stands."""

    input_offset: int
    progress: Progress | None = None
    server_version: str | None = None
    pending_xa: tuple[PendingXa, ...] = ()
    quarantined: tuple[QuarantinedTable, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    non_row_changes: Mapping[str, int] = field(default_factory=dict)
    temporary: tuple[TemporaryTable, ...] = ()
    reprocessing: bool = False
    continuity: Continuity = field(default_factory=Continuity)

    @property
    def input_end(self) -> int:
        """Offset before which all was read."""
        return self.input_offset if self.progress is None else self.progress.offset + 1

    @property
    def place(self) -> Place:
        """Where the transaction begins, and how much of its output is published."""
        return self.input_offset, *(_NOTHING if self.progress is None else self.progress.place)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets in the input topic, with those of the first and the last prepared XA transaction."""
        progress = () if self.progress is None else (self.progress.offset,)
        prepared = (xa.start for xa in (*self.pending_xa[:1], *self.pending_xa[-1:]))
        return self.input_offset, *progress, *prepared

    def precedes(self, other: Self) -> bool:
        """Return whether this state is one of before ``other``."""
        return self.place < other.place

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        record = asdict(replace(self, progress=None, quarantined=()))
        record["progress"] = _progress_record(self.progress)
        record["quarantined"] = [
            {**asdict(replace(table, progress=None)), "progress": _progress_record(table.progress)}
            for table in self.quarantined
        ]
        return single_object.encode("RowMapperState", record)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        record = single_object.decode("RowMapperState", data)
        not_by_table = record["counters"].pop("non_row_changes", 0)
        if not_by_table:  # of an earlier version
            record["non_row_changes"] = {ANY_TABLE: not_by_table}
        return cls(
            progress=_progress(record.pop("progress")),
            pending_xa=tuple(
                PendingXa(**{**xa, "undone": tuple(OffsetRange(**range_) for range_ in xa["undone"])})
                for xa in record.pop("pending_xa")
            ),
            quarantined=tuple(
                QuarantinedTable(**{**table, "progress": _progress(table["progress"])})
                for table in record.pop("quarantined")
            ),
            temporary=tuple(TemporaryTable(**table) for table in record.pop("temporary")),
            continuity=Continuity.of(record.pop("continuity")),
            **record,
        )


@value
class TableTopic:
    """What the row mapper knows of a table's topic; a record of ``{source}.state`` by itself."""

    topic: str
    id: str
    database: str
    table: str
    key_schema: int | None
    key_fingerprint: str
    value_schema: int
    value_fingerprint: str
    partitions: int = 0
    first_key: str = ""
    newest_key: str = ""

    @property
    def key(self) -> bytes:
        """Key of the record in the state topic."""
        return TABLE_TOPIC_PREFIX + self.topic.encode("ascii")

    def to_bytes(self) -> bytes:
        """Encode as a single object."""
        return single_object.encode("TableTopic", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what :meth:`to_bytes` gave; raises :class:`SingleObjectError` on anything else."""
        return cls(**single_object.decode("TableTopic", data))


def _progress(record: Mapping[str, Any] | None) -> Progress | None:
    if record is None:
        return None
    tables = {(table["database"], table["table"]): table["records"] for table in record["tables"]}
    return Progress(**{**record, "tables": tables})


def _progress_record(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    tables = [
        {"database": database, "table": table, "records": records}
        for (database, table), records in progress.tables.items()
    ]
    return {**asdict(replace(progress, tables={})), "tables": tables}


def _plain_fields(state: DecoderState) -> dict[str, Any]:
    """Return the fields of a state, the codec's own states left as they are."""
    return {
        "input_offset": state.input_offset,
        "first_chunk_offset": state.first_chunk_offset,
        "sub_index": state.sub_index,
        "chunk": state.chunk,
        "dead_letter": state.dead_letter,
        "fingerprint": state.fingerprint,
        "reprocessing": state.reprocessing,
        "continuity": asdict(state.continuity),
    }


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


@dataclass(frozen=True, slots=True)
class Rebuilt(Generic[S]):
    """A state that was made of what the topics hold.

    ``remarks`` say in words what is to be known of it, ``notes`` are other records of the state topic that go
    with it. ``write_missing`` writes what topics lack from before it; it is given the state as it is stored.
    """

    state: S
    remarks: Sequence[str] = ()
    notes: Mapping[bytes, bytes | None] = field(default_factory=dict)
    write_missing: Callable[[bytes | None], None] = lambda _: None


def stored_state(kind: type[S], stored: bytes | None, topic: str) -> S | None:
    """Decode the state that a service has in ``topic``; raises :class:`UserError` where it cannot be read."""
    if stored is None:
        return None
    try:
        found = kind.from_bytes(stored)
        if isinstance(found, DecoderState):
            found.check()
    except single_object.SingleObjectError as error:
        raise UserError(f"the state in {topic} cannot be read: {error.message}", ExitCode.DATA) from error
    return found
