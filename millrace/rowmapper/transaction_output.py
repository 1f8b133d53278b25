"""The output of one transaction: where it goes, its BEGIN and END, and how much of it is published.

Progress is a coordinate: all output for what lies before (offset of an event, row in it, chunk of its dead
letter). So another version, or another catalogue, may write the rest.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from millrace.avro.records import RecordSerializer, TransactionSerializer
from millrace.avro.row_records import EventMetadata
from millrace.avro.service_state import OffsetRange, Progress
from millrace.contract import Topics
from millrace.rowmapper.assembly import Transaction
from millrace.rowmapper.event_reader import Incoming, Unreadable
from millrace.stage import Headers, Output

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock


@dataclass(frozen=True, slots=True)
class Sink:
    """Where records go, and what counts them; ``now_us`` returns the time, in microseconds since 1970."""

    topics: Topics
    output: Output
    counters: Counter[str]
    now_us: Callable[[], int]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How records are written, and how large they may be.

    With ``new_block`` the kernel writes transactions' records in blocks.
    """

    serialize_transaction: TransactionSerializer
    serialize_ddl: RecordSerializer
    serialize_dead_letter: RecordSerializer
    deadletter_limit: int
    statement_limit: int
    unpacked_limit: int
    include_query: bool
    truncate: bool
    new_block: "Callable[[], RecordBlock] | None" = None


class Coordinate(NamedTuple):
    """Everything made of what lies before is published; see :class:`Progress`."""

    offset: int
    row: int = 0
    records: int = 0
    part: int = 0
    fingerprint: int = 0


class TransactionOutput:
    """What is written of one transaction.

    ``undone`` are ranges of offsets whose rows were undone. ``progress`` says how much of it is published
    already. ``headers`` are those of its rows, its BEGIN and its END.
    """

    def __init__(
        self,
        sink: Sink,
        output_format: OutputFormat,
        transaction: Transaction,
        *,
        undone: Sequence[OffsetRange] = (),
        progress: Progress | None = None,
        headers: Headers = None,
    ) -> None:
        self.transaction = transaction
        self.headers = headers
        self.thread: int | None = None
        """The connection that made the next changes."""
        progress = progress or Progress(-1)
        self.done = Coordinate(
            progress.offset, progress.row, progress.records, progress.part, progress.fingerprint
        )
        self.tables = dict(progress.tables)
        """Numbers of rows, by database and table."""
        self.records = sum(self.tables.values())
        self.sink = sink
        self._serialize = output_format.serialize_transaction
        self._undone = undone
        self._begun = progress.begun
        self._non_row_changes = progress.non_row_changes

    @property
    def progress(self) -> Progress | None:
        """How much is published; None for nothing."""
        if self.done.offset < 0:
            return None
        return Progress(*self.done, self._begun, dict(self.tables), self._non_row_changes)

    def is_done(self, offset: int) -> bool:
        """Return whether all that is made of an event is published."""
        return offset < self.done.offset

    def done_of(self, incoming: Incoming | Unreadable) -> Coordinate:
        """Return how much of an event is published."""
        return self.done if self.done.offset == incoming.offset else Coordinate(incoming.offset)

    def is_undone(self, offset: int) -> bool:
        """Return whether a rollback undid the rows of an event of a transactional table."""
        at = bisect_right(self._undone, offset, key=lambda undone: undone.start) - 1
        return at >= 0 and offset < self._undone[at].end

    @property
    def has_undone(self) -> bool:
        """Whether a rollback undid any of it."""
        return bool(self._undone)

    def complete(self, incoming: Incoming | Unreadable) -> None:
        """Record that all that is made of an event is published."""
        self.done = Coordinate(incoming.next_offset)

    def count_rows(self, table: tuple[str, str], count: int) -> None:
        """Count rows of a table."""
        self.tables[table] = self.tables.get(table, 0) + count
        self.records += count
        self.sink.counters["rows"] += count

    def count_non_row_change(self) -> None:
        """Count a statement that changed rows and was logged as text."""
        self._non_row_changes += 1

    def begin(self) -> None:
        """Write the BEGIN, unless it is written."""
        if not self._begun:
            self._begun = True
            first, id_ = self.transaction.first, self.transaction.id
            assert isinstance(first, Incoming)
            self._put_boundary(first, self._serialize.begin(id_, first.event, self._ts_ms(first)))

    def end(self) -> None:
        """Write the END of what has a BEGIN."""
        if self._begun:
            last, id_ = self.transaction.last, self.transaction.id
            assert isinstance(last, Incoming)
            ts_ms = self._ts_ms(last)
            value = self._serialize.end(id_, last.event, ts_ms, self.tables, self._non_row_changes)
            self._put_boundary(last, value)
            self.sink.counters["transactions"] += 1

    def _ts_ms(self, incoming: Incoming) -> int:
        return self.transaction.committed_us // 1000 or incoming.event.timestamp * 1000

    def _put_boundary(self, incoming: Incoming, value: bytes) -> None:
        key = self.transaction.id.encode(errors="backslashreplace")
        topic = self.sink.topics.transactions
        self.sink.output.add(topic, key, value, incoming.timestamp_ms, self.headers)

    def metadata(
        self,
        incoming: Incoming,
        schema_source: str,
        query: str | None = None,
        *,
        total: int = 0,
        of_table: int = 0,
    ) -> EventMetadata:
        """Return what an envelope says of an event; ``total`` and ``of_table`` number its first record."""
        record, transaction = incoming.event, self.transaction
        return EventMetadata(
            transaction.committed_us or record.timestamp * 1_000_000,
            record.server_id,
            transaction.gtid,
            record.log_file,
            record.position,
            record.epoch,
            record.sub_index,
            self.thread,
            query,
            schema_source,
            self.sink.now_us(),
            transaction.id,
            total,
            of_table,
            incoming.key,
        )
