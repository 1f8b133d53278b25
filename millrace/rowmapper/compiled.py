"""The kernel's way from events to the row topics: whole transactions, or their rows, if they are ordinary.

The kernel stops before anything else, and leaves it to :mod:`millrace.rowmapper.publication`.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from millrace.binlog.events import TableMapEvent
from millrace.contract import SourcePosition
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.event_reader import EventBatch
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.rows import ROWS_AT_ONCE
from millrace.rowmapper.transaction_output import Coordinate, Sink, TransactionOutput
from millrace.stage import Record

if TYPE_CHECKING:
    from millrace.kernel.transactions import TableWriter, TransactionWriter

_MOST_BYTES: Final = 1024 * 1024
"""Events of a transaction that the kernel takes at once."""


class CompiledPublisher:
    """Publishes with the kernel's ``writer``; whole transactions of at most ``most_bytes`` of events."""

    def __init__(
        self,
        writer: "TransactionWriter",
        sink: Sink,
        binder: Binder,
        *,
        quarantine: Quarantine,
        known: KnownRows,
        most_bytes: int,
    ) -> None:
        self.writer = writer
        self._sink = sink
        self._binder = binder
        self._quarantine = quarantine
        self._known = known
        self._most_bytes = min(most_bytes, _MOST_BYTES)

    def publish(
        self, records: Sequence[Record], index: int, prefix: bytes, server_version: str | None
    ) -> int:
        """Publish whole transactions from ``index`` on; return the index of the first record that is left."""
        writer, sink = self.writer, self._sink
        end = writer.take(
            records,
            index,
            prefix,
            sink.now_us(),
            *sink.output.room,
            self._most_bytes,
            partial(self._find_table, server_version),
        )
        if end > index:
            sink.output.merge(writer.groups, writer.count, writer.size)
            if writer.transactions:
                sink.counters["rows"] += writer.rows
                sink.counters["transactions"] += writer.transactions
        return end

    def writes_rows_of(self, to: TransactionOutput) -> bool:
        """Return whether rows of a transaction that is not published whole may be for the kernel."""
        transaction = to.transaction
        named = transaction.gtid in {None, transaction.id} and transaction.id.isascii()
        return named and not self._known.is_used and not to.has_undone

    def publish_rows(
        self,
        to: TransactionOutput,
        batch: EventBatch,
        index: int,
        table_maps: dict[int, tuple[TableMapEvent, bytes]],
    ) -> int:
        """Publish rows from ``index`` on; return the index of the first event that is left."""
        record, prefix, done = batch.records[index], batch.reader.prefix, to.done
        if record is None or prefix is None or record.offset < done.offset or any(done[1:]):
            return index
        writer, sink, transaction = self.writer, self._sink, to.transaction
        end = writer.take_rows(
            batch.records,
            index,
            prefix,
            sink.now_us(),
            *sink.output.room,
            ROWS_AT_ONCE,  # bytes, of which a row takes one at least
            partial(self._find_table, transaction.server_version),
            (transaction.id.encode(), transaction.gtid is not None, transaction.committed_us, to.thread),
            table_maps,
            to.tables,
        )
        if end == index:
            return end
        if writer.count:
            to.begin()
            sink.output.merge(writer.groups, writer.count, writer.size)
            to.records += writer.rows
            sink.counters["rows"] += writer.rows
        last = batch.records[end - 1]
        assert last is not None
        to.done = Coordinate(last.offset + 1)
        return end

    def _find_table(
        self, server_version: str | None, table_map: TableMapEvent, epoch: int, log_file: str, position: int
    ) -> "tuple[TableWriter | None, bool] | None":
        """Return the kernel a table, or none where its rows are not published.

        None alone is for what the reference must see to.
        """
        name, selection = (table_map.database, table_map.table), self._binder.selection
        if not selection.selects(*name):
            return None, True
        if name in self._quarantine or selection.ignored_operations(*name) or self._known.concerns(*name):
            return None
        at = SourcePosition(epoch, log_file, position)
        found = self._binder.find(table_map, at, server_version)
        return None if found is None or found[0].filter is not None else (found[0].compiled(), found[1])
