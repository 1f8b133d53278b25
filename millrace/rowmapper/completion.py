"""Minimal images completed by known rows: a step before rows are published, and alone where they are not."""

from collections.abc import Iterator

from millrace.binlog.errors import BinlogError
from millrace.binlog.events.rows import RowsOperation
from millrace.ddl import Server
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.known_rows import LARGEST, KnownRows, RowLayout, Run
from millrace.rowmapper.logged_rows import LoggedRows, RowBatch
from millrace.rowmapper.transaction_output import Coordinate, OutputFormat, TransactionOutput


class Completion:
    """Completes the images of tables whose rows are known, and learns from all of them."""

    def __init__(self, known: KnownRows, binder: Binder, output_format: OutputFormat) -> None:
        self.known = known
        self._binder = binder
        self._unpacked_limit = output_format.unpacked_limit

    def layout(self, rows: LoggedRows) -> RowLayout | None:
        """Return how rows of a table are told apart; None, and they are forgotten, where they are not."""
        if not self.known.concerns(*rows.name):
            return None
        layout = self._binder.layout(rows.table_map, rows.incoming.position, rows.server_version)
        if layout is None:
            self.known.forget(*rows.name)
        return layout

    def complete(self, rows: LoggedRows, layout: RowLayout, batch: RowBatch) -> list[Run]:
        """Learn the rows of a batch, and return them completed."""
        return self.known.complete(layout, rows.event, batch, tells_all=_tells_all(rows, layout))

    def learn(self, rows: LoggedRows, to: TransactionOutput, *, waits: bool) -> Iterator[None]:
        """Learn rows that are not published; forget those of a table that ``waits`` or cannot be read."""
        try:
            layout = None if waits else self.layout(rows)
            if layout is None:
                self.known.forget(*rows.name)
            else:
                yield from self._learn(rows.unpacked(self._unpacked_limit), layout, to)
        except BinlogError:
            self.known.forget(*rows.name)
        to.complete(rows.incoming)

    def _learn(self, rows: LoggedRows, layout: RowLayout, to: TransactionOutput) -> Iterator[None]:
        incoming = rows.incoming
        stop = self.known.stop_of(to.transaction.start, incoming.offset)
        for batch in rows.batches(layout.columns, LARGEST, to.done_of(incoming).row, stop):
            self.complete(rows, layout, batch)
            to.done = Coordinate(incoming.offset, batch.first_row + batch.count)
            if self.known.full:
                yield


def _tells_all(rows: LoggedRows, layout: RowLayout) -> bool:
    """Return whether an update has changed nothing but what its images after it have."""
    server = Server.parse(rows.server_version)
    if rows.event.operation is not RowsOperation.UPDATE or (not server.mariadb and server.version >= (8,)):
        return True
    after = layout.ordinals(rows.event.columns_after_image)
    return rows.verb == "UPDATE" and set(layout.key).isdisjoint(after)
