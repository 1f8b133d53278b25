"""Pauses tables: from one event on, their rows wait in the dead letter topic until they are resumed.

A paused table is quarantined by command. As in redriving, this is done by a row mapper that takes over from
any other, completes a partly published transaction, commits the state with the tables on its
list, and exits. So a pause persists over restarts, and no row is lost or published twice.
"""

from collections.abc import Callable, Sequence
from threading import Event

from millrace.avro.service_state import QuarantinedTable
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.state import newest_offset
from millrace.rowmapper.redrive import settle
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.takeover import assembled
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service


def pause(
    settings: RowMapperSettings, names: Sequence[str], say: Callable[[str], None], stop: Event
) -> list[str]:
    """Pause tables, named ``database.table``; give those that were quarantined already."""
    tables = [_table(name) for name in names]
    service = Service("rowmapper", settings, get_logger(__name__), stop)
    say("taking over from the row mapper: if one still runs, it waits")

    def add() -> list[str]:
        with assembled(service, role="pause") as parts:
            settle(parts, stop)
            quarantine, offset = parts.stage.quarantine, parts.stage.state().input_offset
            known = [f"{database}.{table}" for database, table in tables if (database, table) in quarantine]
            dead_letter = newest_offset(settings.kafka, parts.topics.deadletter)
            for database, table in tables:
                quarantine.add(QuarantinedTable.paused(database, table, offset, dead_letter))
            parts.committer.settle(parts.stage.output, parts.stage.state())
            parts.committer.commit()
        return known

    return in_place_of_service(add)


def _table(name: str) -> tuple[str, str]:
    database, dot, table = name.partition(".")
    if not (database and dot and table):
        raise UserError(f"{name} is not DATABASE.TABLE", ExitCode.SETTINGS)
    return database, table
