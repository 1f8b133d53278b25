"""The schema history, rebuilt from definitions in an SQL file and from each statement of a log."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from millrace.avro.events import EventRecord
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import FormatDescriptionEvent, QueryCompressedEvent, QueryEvent
from millrace.binlog.statement import classify
from millrace.contract import SourcePosition
from millrace.ddl import State, Unknown, definitions
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.event_reader import LargeEvent
from millrace.rowmapper.session import DEFINING, defining_statement, is_on_temporary_table
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode


def read_definitions(script: Path) -> dict[tuple[str, str], State]:
    """Read definitions; raise UserError if there are none, or one is not understood."""
    try:
        found = definitions(script.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{script} is not in UTF-8: {error}", ExitCode.SETTINGS) from error
    for (database, table), state in found.items():
        kept = SchemaVersion(database, table, 0, "", 0, state).bounded().state
        if isinstance(kept, Unknown) or not database:
            name = f"{database}.{table}".strip(".")
            reason = kept.reason if isinstance(kept, Unknown) else "USE is missing before it"
            raise UserError(f"{script}: the definition of {name} is unknown: {reason}", ExitCode.SETTINGS)
    if not found:
        raise UserError(f"{script} has neither CREATE TABLE nor CREATE DATABASE", ExitCode.SETTINGS)
    return found


class DefiningStatements:
    """Applies the statements and gaps of a log, in their order, to what is known before them.

    Of the history that is ``stored`` only what no event can lead to again is used: what is older than the
    first event, and what was given as of places where none starts.
    """

    def __init__(self, catalog: Catalog, stored: Iterable[SchemaVersion] = ()) -> None:
        self._catalog = catalog
        self._coming = deque(sorted(stored, key=lambda version: version.place.order()))
        self._last: SourcePosition | None = None
        self._server_version: str | None = None

    def come_to(self, place: SourcePosition | None) -> list[SchemaVersion]:
        """Return the stored versions that are used, of before ``place``, or all that are left."""
        used = []
        while self._coming and (place is None or self._coming[0].place.order() < place.order()):
            version = self._coming.popleft()
            if self._last is None or version.place.order() > self._last.order():
                self._catalog.restore(version)
                used.append(version)
        return used

    def gap(self, place: SourcePosition) -> list[SchemaVersion]:
        """Return what is used of before a gap, and the note of it."""
        return [*self.come_to(place), self._catalog.gap(place)]

    def take(self, record: EventRecord, large: LargeEvent | None = None) -> list[SchemaVersion]:
        """Return what is used of before an event, and the versions to which it leads.

        One that is a dead letter leads to none.
        """
        place = SourcePosition(record.epoch, record.log_file, record.position)
        used = self.come_to(place)
        self._last = place
        return used + self._apply(record, place, large)

    def _apply(
        self, record: EventRecord, place: SourcePosition, large: LargeEvent | None
    ) -> list[SchemaVersion]:
        try:
            event = record.event
            if isinstance(event, FormatDescriptionEvent):
                self._server_version = event.server_version
            elif isinstance(event, QueryEvent | QueryCompressedEvent):
                statement = classify(event.query)
                if statement.verb in DEFINING and not is_on_temporary_table(statement, record.header.flags):
                    text, session, whole = defining_statement(
                        event, self._server_version, large, record.header.flags
                    )
                    return self._catalog.apply(text, session, place, whole=whole)
        except BinlogError:
            pass
        return []
