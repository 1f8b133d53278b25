"""Up to where in a log the definitions of tables may have been others than those that the server has now.

Where a log is read from a place in the past, rows come that are older than the definitions that were read.
"""

from dataclasses import replace
from typing import Final

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import FormatDescriptionEvent
from millrace.binlog.header import FLAGS_OFFSET, TYPE_OFFSET
from millrace.binlog.state import StreamState
from millrace.binlog.statement import classify
from millrace.binlog.types import EventType
from millrace.contract import SourcePosition
from millrace.ddl import altered
from millrace.mysql.packets import EventPiece
from millrace.reader.statements import READ, may_define, read_statement
from millrace.rowmapper.session import DEFINING, is_on_temporary_table, session_of, statement_text

_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)


class Alterations:
    """Where in a log the last statement stands that may have altered each table.

    :meth:`feed` takes the first pieces of events, from the head of a log file on. With ``any_case`` names of
    databases and tables do not differ by case, and are in lower case. ``before`` is a place up to which any
    table may have been altered.
    """

    def __init__(self, *, any_case: bool, before: tuple[str, int] | None = None) -> None:
        self.bytes = 0
        """Bytes of the events that were taken."""
        self._any_case = any_case
        self._before = before
        self._places: dict[tuple[str, str], tuple[str, int]] = {}
        self._stream = StreamState()
        self._server_version: str | None = None

    def feed(self, log_file: str, position: int, piece: EventPiece) -> None:
        """Take the event that stands there; raises BinlogError for a damaged format description."""
        self.bytes += piece.event_size
        if piece.data[TYPE_OFFSET] == _FORMAT_DESCRIPTION:
            event = decode_event(piece.data, self._stream, verify=False).event
            assert isinstance(event, FormatDescriptionEvent)
            self._server_version = event.server_version
        elif may_define(piece):
            for table in self._altered(piece):
                self._places[table] = log_file, position

    @property
    def tables(self) -> int:
        """Number of tables that statements may have altered, of a database that is dropped one."""
        return len(self._places)

    def _altered(self, piece: EventPiece) -> set[tuple[str, str]]:
        try:
            event = read_statement(piece, checksums=self._stream.has_checksums)
            statement = classify(event.query)
            flags = int.from_bytes(piece.data[FLAGS_OFFSET : FLAGS_OFFSET + 2], "little")
            if statement.verb not in DEFINING or is_on_temporary_table(statement, flags):
                return set()
            text, whole = statement_text(event, event.query)
            session = replace(session_of(event, self._server_version), lower_case_names=self._any_case)
            return altered(text, session, whole=whole and piece.last and len(piece.data) <= READ)
        except BinlogError:
            # Nothing is known of it by the row mapper either.
            return set()

    def of(self, database: str, table: str) -> tuple[str, int] | None:
        """Return file and position for a table; None where nothing has altered it."""
        found = [self._places.get((database, table)), self._places.get((database, "")), self._before]
        places = (place for place in found if place is not None)
        return max(places, key=lambda place: SourcePosition(0, *place).order(), default=None)
