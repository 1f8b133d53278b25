"""Statements that the log has as text: DDL, and statements that changed rows without logging them.

They go to ``{source}.ddl``, and the definitions that DDL changes to ``{source}.schemas``.
"""

from typing import Final, NamedTuple

from millrace.avro.service_state import ANY_TABLE
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.statement import Statement, StatementKind, TableName, classify
from millrace.binlog.types import HeaderFlag
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.event_reader import Incoming
from millrace.rowmapper.non_row_changes import NON_ROW_CHANGE, TEMPORARY, NonRowChanges, operations
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.session import DEFINING, defining_statement
from millrace.rowmapper.transaction_output import OutputFormat, TransactionOutput

_KINDS: Final = {
    StatementKind.DDL: "DDL",
    StatementKind.DML: NON_ROW_CHANGE,
    StatementKind.OTHER: "OTHER",
}


class LoggedStatement(NamedTuple):
    """A statement with its event; ``kind`` is what the topic of DDL calls it."""

    incoming: Incoming
    event: StatementEvent
    statement: Statement
    kind: str

    @property
    def is_temporary(self) -> bool:
        """Whether all tables that it names are temporary ones of its session."""
        return self.kind == TEMPORARY

    def full_name(self, table: TableName) -> str:
        """Return the name of a table with its database."""
        return f"{table.database or self.event.database}.{table.table}"

    @property
    def objects(self) -> list[str]:
        """Names of what it is about."""
        statement = self.statement
        if statement.database is not None:
            return [statement.database]
        return [self.full_name(table) for table in statement.tables or statement.changes]


class StatementPublisher:
    """Publishes statements; none where not ``publishes``."""

    def __init__(
        self,
        binder: Binder,
        quarantine: Quarantine,
        non_row_changes: NonRowChanges,
        output_format: OutputFormat,
        *,
        publishes: bool,
    ) -> None:
        self._publishes = publishes
        self._binder = binder
        self._quarantine = quarantine
        self._non_row_changes = non_row_changes
        self._serialize = output_format.serialize_ddl
        self._limit = output_format.statement_limit
        self._truncates = output_format.truncate

    def read(self, incoming: Incoming, event: StatementEvent) -> LoggedStatement | None:
        """Classify a statement, and follow the temporary tables of sessions; None for transaction control."""
        statement = classify(event.query)
        kind = _KINDS.get(statement.kind)
        if kind is None:
            return None
        logged = LoggedStatement(incoming, event, statement, kind)
        if not self._is_temporary(logged):
            return logged
        session = incoming.event.server_id, event.thread_id or 0
        self._non_row_changes.follow(statement, session, event.database)
        return logged._replace(kind=TEMPORARY)

    def publish(self, to: TransactionOutput, logged: LoggedStatement) -> None:
        """Record DDL, and statements that changed rows and were logged as text."""
        incoming, event, statement, kind = logged
        if not self._publishes:
            return
        changed = [] if logged.is_temporary else self._changed(to, logged)
        if to.is_undone(incoming.offset) and not changed:
            return
        if changed:
            to.begin()
            to.count_non_row_change()
            self._non_row_changes.count(changed)
        if statement.kind is not StatementKind.DML:
            to.sink.counters["ddl"] += 1
        if statement.verb in DEFINING and not logged.is_temporary:
            self._define(to, logged)
        if self._truncates and statement.verb == "TRUNCATE" and not logged.is_temporary:
            self._truncate(to, logged)
        at, query, size = incoming.event, event.query, len(event.query)
        if incoming.large is not None:
            size = incoming.large.field_size
            query = b"".join(incoming.large.field(min(size, self._limit)))
        committed_us = to.transaction.committed_us
        record = {
            "kind": kind,
            "database": event.database,
            "statement": query[: self._limit].decode(errors="backslashreplace"),
            "size": size,
            "name": f"{statement.verb} {statement.object_type or ''}".rstrip(),
            "objects": logged.objects,
            "gtid": to.transaction.gtid,
            "ts_ms": committed_us // 1000 or _ended(at.timestamp, event.exec_time) * 1000,
            "server_id": at.server_id,
            "thread": event.thread_id,
            "error_code": event.error_code,
            "epoch": at.epoch,
            "file": at.log_file,
            "pos": at.position,
            "sub_index": at.sub_index,
            "changed": changed,
        }
        to.sink.output.add(to.sink.topics.ddl, incoming.key, self._serialize(record), incoming.timestamp_ms)
        to.complete(incoming)

    def _is_temporary(self, logged: LoggedStatement) -> bool:
        """Return whether all tables that a statement names are temporary ones of its session."""
        statement = logged.statement
        if statement.temporary or (statement.verb == "CREATE" and statement.object_type == "TABLE"):
            return statement.temporary
        renamed = {new for _, new in statement.renames}
        names = [name for name in statement.tables if name not in renamed] or statement.changes
        guess = statement.kind is StatementKind.DML
        return bool(names) and all(self._is_temporary_table(logged, name, guess=guess) for name in names)

    def _is_temporary_table(self, logged: LoggedStatement, name: TableName, *, guess: bool) -> bool:
        """Return whether a table is temporary; with ``guess`` by its name where the log did not tell."""
        at = logged.incoming.event
        if not at.header.flags & HeaderFlag.THREAD_SPECIFIC_F:
            return False
        found = name.database or logged.event.database, name.table
        session = at.server_id, logged.event.thread_id or 0
        if self._non_row_changes.is_temporary(session, found):
            return True
        return guess and not self._binder.exists(*found, logged.incoming.position)

    def _changed(self, to: TransactionOutput, logged: LoggedStatement) -> list[str]:
        """Name the published tables whose rows a statement has changed, which the log has no rows of."""
        incoming, event, statement, _ = logged
        names = statement.changes
        if statement.kind is not StatementKind.DML and not names:
            return []
        binder, selection = self._binder, self._binder.selection
        selects_server = selection.selects_server
        if selects_server is not None and not selects_server(incoming.event.server_id):
            return []
        undone, is_dml = to.is_undone(incoming.offset), statement.kind is StatementKind.DML
        changed = []
        for name in names or (TableName(None, ANY_TABLE),):
            database, table = binder.spelled(name.database or event.database), binder.spelled(name.table)
            ignored = selection.ignored_operations(database, table)
            if (
                (undone and binder.is_transactional(database, table, incoming.position))
                or (is_dml and names and self._is_temporary_table(logged, name, guess=True))
                or (ignored and set(operations(statement, event.query)) <= set(ignored))
                or not (selection.selects(database, table) if names else selection.may_select(database))
            ):
                continue
            changed.append(f"{database}.{table}")
        return changed

    def _truncate(self, to: TransactionOutput, logged: LoggedStatement) -> None:
        """Write a record into the topics of tables that are emptied; rows that wait are not before it."""
        incoming, spelled = logged.incoming, self._binder.spelled
        for name in logged.statement.tables:
            database, table = spelled(name.database or logged.event.database), spelled(name.table)
            if (database, table) in self._quarantine:
                continue
            found = self._binder.truncation(database, table, to.metadata(incoming, "ddl"))
            if found is not None:
                to.sink.output.add(found[0], None, found[1], incoming.timestamp_ms)

    def _define(self, to: TransactionOutput, logged: LoggedStatement) -> None:
        """Apply a statement to the definitions of tables, and write the resulting ones."""
        incoming, event = logged.incoming, logged.event
        text, session, whole = defining_statement(
            event, to.transaction.server_version, incoming.large, incoming.event.header.flags
        )
        for version in self._binder.define(text, session, incoming.position, whole=whole):
            to.sink.output.add(to.sink.topics.schemas, version.key, version.to_bytes(), incoming.timestamp_ms)


def _ended(began: int, seconds: int) -> int:
    """Return when a statement ended: exec_time counts from its TIMESTAMP, modulo 2^32 if that is later."""
    return (began + seconds) & 0xFFFFFFFF
