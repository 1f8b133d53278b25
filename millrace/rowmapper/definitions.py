"""The schema history made again: of definitions in a file of SQL, and of each statement of a log."""

from pathlib import Path

from millrace.avro.events import EventRecord
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import FormatDescriptionEvent, QueryCompressedEvent, QueryEvent
from millrace.binlog.statement import classify
from millrace.contract import SourcePosition
from millrace.ddl import State, Unknown, definitions
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.chunked_rows import LargeEvent
from millrace.rowmapper.session import DEFINING, defining_statement
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

__all__ = ["DefiningStatements", "read_definitions"]


def read_definitions(script: Path) -> dict[tuple[str, str], State]:
    """Read definitions; raise UserError where there are none, or one is not understood."""
    try:
        found = definitions(script.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{script} is not in UTF-8: {error}", ExitCode.SETTINGS) from error
    for (database, table), state in found.items():
        if isinstance(state, Unknown) or not database:
            name = f"{database}.{table}".strip(".")
            reason = state.reason if isinstance(state, Unknown) else "USE is missing before it"
            raise UserError(f"{script}: the definition of {name} cannot be told: {reason}", ExitCode.SETTINGS)
    if not found:
        raise UserError(f"{script} has neither CREATE TABLE nor CREATE DATABASE", ExitCode.SETTINGS)
    return found


class DefiningStatements:
    """Applies the statements of a log, in their order, to what is known before them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._server_version: str | None = None

    def take(self, record: EventRecord, large: LargeEvent | None = None) -> list[SchemaVersion]:
        """Give the versions to which an event leads; none for one that is a dead letter."""
        try:
            event = record.event
            if isinstance(event, FormatDescriptionEvent):
                self._server_version = event.server_version
            elif (
                isinstance(event, QueryEvent | QueryCompressedEvent)
                and classify(event.query).verb in DEFINING
            ):
                text, session, whole = defining_statement(event, self._server_version, large)
                place = SourcePosition(record.epoch, record.log_file, record.position)
                return self._catalog.apply(text, session, place, whole=whole)
        except BinlogError:
            pass
        return []
