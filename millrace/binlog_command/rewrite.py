"""``--rewrite-db``: other names for databases in what is printed.

The names are changed where the log has them as names: in table maps, as the default database of statements
(USE) and of LOAD DATA. The text of a statement is not looked into: ``INSERT INTO a.t`` stays as it is, as
with mysqlbinlog.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import TableMapEvent
from millrace.binlog.state import StreamState
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode


@dataclass(frozen=True, slots=True)
class DatabaseRewrite:
    """Which database is called what; one that is not named keeps its name."""

    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, rules: Iterable[str]) -> Self:
        """Read rules such as ``from->to``; raise :class:`UserError` for anything else."""
        names = {}
        for rule in rules:
            old, arrow, new = rule.partition("->")
            old, new = old.strip(), new.strip()
            if not arrow or not old or not new:
                raise UserError(
                    f"--rewrite-db {rule!r} names no two databases; write 'from->to'", ExitCode.SETTINGS
                )
            if old in names:
                raise UserError(
                    f"--rewrite-db has two new names for {old!r}; leave one out", ExitCode.SETTINGS
                )
            names[old] = new
        return cls(names)

    def __bool__(self) -> bool:
        return bool(self.names)

    def name(self, database: str) -> str:
        """Return the new name of a database, or its own."""
        return self.names.get(database, database)

    def table_map(self, decoded: BinlogEvent, state: StreamState) -> bytes | None:
        """Write a table map with the new name, checksum included; None where the name stays.

        ``state`` gives the format; it is not changed.
        """
        event = decoded.event
        assert isinstance(event, TableMapEvent)
        database = self.name(event.database)
        if database == event.database:
            return None
        renamed = replace(event, database=database)
        changed = BinlogEvent(decoded.header, renamed, decoded.checksum, decoded.post_header_extra)
        return seal(changed, StreamState(state.format))
