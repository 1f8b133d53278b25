"""A live server as the source of events: where to start, whether it is still the same log, the catalogue."""

import time
import uuid
from typing import TYPE_CHECKING, Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.state import LogIdentity, ReaderState
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.control import FormatDescriptionEvent
from millrace.binlog.state import StreamState
from millrace.binlog.stream import decode_event
from millrace.contract import Topics
from millrace.kafka.pipe import TransactionalProducer
from millrace.mysql.catalog import read_catalog
from millrace.mysql.checks import check_replicas, check_source
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import PurgedError, RefusedError
from millrace.mysql.identity import LogHead, ServerNames, read_head, server_names
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.mysql.status import binary_logs, log_status
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from services.reader.gtids import GtidProgress, encode_gtids
from services.reader.settings import ReaderSettings
from services.reader.writer import RawWriter

if TYPE_CHECKING:
    from millrace.binlog.table import TableDefinition

__all__ = ["LiveSource"]

_LOG = get_logger(__name__)
_NAMESPACE: Final = uuid.UUID("7d3a0a9e-6f0c-4f0e-9d0b-6d696c6c7261")
_FIRST_POSITION: Final = 4
_LAST_POSITION: Final = 0xFFFFFFFF


class LiveSource:
    """Connects, as often as need be, and reads the dump."""

    def __init__(self, settings: ReaderSettings, writer: RawWriter, producer: TransactionalProducer) -> None:
        self._settings = settings
        self._writer = writer
        self._producer = producer
        self._address = settings.mysql.address()
        self._replica = ReplicaIdentity(
            settings.replica_server_id,
            str(uuid.uuid5(_NAMESPACE, settings.source)),
            f"millrace-{settings.source}",
        )
        self._connection: MysqlConnection | None = None
        self._dump: Dump | None = None
        self._catalog: tuple[int, list[TableDefinition]] | None = None
        self._warned: set[str] = set()

    def __str__(self) -> str:
        return str(self._address)

    def open(self) -> None:
        """Connect, find the place to go on at, write the catalogue, ask for the dump."""
        self._connection = connection = MysqlConnection(self._address)
        self._check(connection)
        names = server_names(connection)
        state = self._writer.state
        if state is None:
            self._start(connection, names)
            return
        reason = self._another_log(connection, names, state)
        if reason is None:
            self._go_on(connection, names, state)
        else:
            self._change(connection, names, state, reason)

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return what has come, as :meth:`millrace.mysql.dump.Dump.read` does."""
        assert self._dump is not None
        return self._dump.read(timeout_s)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._dump = None

    def _check(self, connection: MysqlConnection) -> None:
        warnings = check_source(
            connection, self._replica.server_id, allow_statements=self._settings.mysql.allow_statements
        )
        check_replicas(connection, self._replica)
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _LOG.warning("the source could be set up better", advice=warning)

    # -- where to go on -----------------------------------------------------------------------------

    def _start(self, connection: MysqlConnection, names: ServerNames) -> None:
        """Start for the first time, where the settings say."""
        start = self._settings.start
        if start.startswith("gtid:"):
            try:
                gtids = GtidProgress(start.removeprefix("gtid:")).text()
            except BinlogError as error:
                raise UserError(f"MILLRACE_START is wrong: {error}", ExitCode.SETTINGS) from None
            self._dump_after(connection, names, gtids, None)
            return
        gtid_set: str | None = None
        if start == "earliest":
            logs = binary_logs(connection)
            if not logs:
                raise RefusedError(f"{connection.address}: there are no binary logs")
            log_file, position = logs[0].name, _FIRST_POSITION
        elif start == "latest":
            status = log_status(connection)
            log_file, position, gtid_set = status.log_file, status.position, status.gtid_set
        else:
            log_file, _, number = start.rpartition(":")
            position = int(number)
            if position > _LAST_POSITION:
                raise UserError(
                    "MILLRACE_START is wrong: a server can be asked for positions below 4 GiB only; start at "
                    "an earlier one or at a GTID set",
                    ExitCode.SETTINGS,
                )
        self._dump_at(connection, names, log_file, position, gtid_set)

    def _go_on(self, connection: MysqlConnection, names: ServerNames, state: ReaderState) -> None:
        """Go on where the state says, in the log that it speaks of."""
        position = state.position
        if position > _LAST_POSITION:
            # The command's position has 32 bits. What comes again is left out by the writer.
            position = state.boundary
        self._dump_at(connection, names, state.log_file, position, None)

    def _change(
        self, connection: MysqlConnection, names: ServerNames, state: ReaderState, reason: str
    ) -> None:
        """Go on in another log, which only GTIDs can do."""
        without_gtids = connection.flavour is Flavour.MYSQL and connection.variable("gtid_mode") != "ON"
        if not state.gtid_set or without_gtids:
            why = "the server does not write GTIDs" if without_gtids else "no GTIDs were read so far"
            raise UserError(
                f"{connection.address}: this is not the log that was read so far up to {state.log_file}:"
                f"{state.position} ({reason}), and as {why}, nobody can tell where to go on in it. "
                "Bring back the server that was read, or read this one under another MILLRACE_SOURCE",
                ExitCode.DATA,
            )
        self._dump_after(connection, names, state.gtid_set, reason)

    def _another_log(self, connection: MysqlConnection, names: ServerNames, state: ReaderState) -> str | None:
        """Say why the server's log is another one than the state speaks of, or nothing."""
        identity = state.identity
        if identity is not None:
            if identity.server_uuid and names.uuid and identity.server_uuid != names.uuid:
                return f"server_uuid was {identity.server_uuid}, is {names.uuid}"
            if identity.server_uid and names.uid and identity.server_uid != names.uid:
                return f"server_uid was {identity.server_uid}, is {names.uid}"
        try:
            head = read_head(self._address, self._replica, state.log_file)
        except PurgedError:
            if not state.gtid_set:
                raise
            return f"{state.log_file} is no longer there"
        if identity is not None and identity.created:
            difference = _difference(identity, head)
            if difference is not None:
                return f"of {state.log_file}, {difference}"
        for log in binary_logs(connection):
            if log.name == state.log_file and log.size < state.position:
                return f"{log.name} ends at {log.size}"
        return None

    def _dump_at(
        self,
        connection: MysqlConnection,
        names: ServerNames,
        log_file: str,
        position: int,
        gtid_set: str | None,
    ) -> None:
        mariadb = connection.flavour is Flavour.MARIADB
        tracker = PositionTracker(log_file, position, zero_allowed=mariadb)
        self._writer.begin_session(tracker, server_uuid=names.uuid, server_uid=names.uid, gtid_set=gtid_set)
        self._write_catalog(connection)
        self._dump = Dump.at_position(
            connection, self._replica, log_file, position, heartbeat_s=self._settings.mysql.heartbeat_s
        )
        _LOG.info(
            "reading", server=str(self), version=connection.version, log_file=log_file, position=position
        )

    def _dump_after(
        self, connection: MysqlConnection, names: ServerNames, gtids: str, changed: str | None
    ) -> None:
        mariadb = connection.flavour is Flavour.MARIADB
        tracker = PositionTracker("", _FIRST_POSITION, skips=True, zero_allowed=mariadb)
        self._writer.begin_session(
            tracker, server_uuid=names.uuid, server_uid=names.uid, gtid_set=gtids, changed=changed
        )
        self._write_catalog(connection)
        self._dump = Dump.after_gtids(
            connection,
            self._replica,
            gtids,
            b"" if mariadb else encode_gtids(gtids),
            heartbeat_s=self._settings.mysql.heartbeat_s,
        )
        _LOG.info("reading", server=str(self), version=connection.version, after=gtids)

    # -- the catalogue ------------------------------------------------------------------------------

    def _write_catalog(self, connection: MysqlConnection) -> None:
        """Write the definitions of all tables before the first event, unless they are there already."""
        status, definitions = read_catalog(connection)
        epoch = self._writer.session_epoch
        if self._catalog == (epoch, definitions):
            return
        now_ms = int(time.time() * 1000)
        topic = Topics(self._settings.source).catalog
        for definition in definitions:
            entry = CatalogEntry(epoch, status.log_file, status.position, definition, now_ms, status.gtid_set)
            self._producer.produce(topic, entry.key, entry.to_bytes(), now_ms)
        # Committed with the first events: until they come, the place to start at may prove wrong.
        self._catalog = epoch, definitions
        _LOG.info("catalogue read", tables=len(definitions))
        if all(definition.database == "mysql" for definition in definitions):
            user = connection.address.user
            _LOG.warning("no tables can be seen", advice=f"run GRANT SELECT ON *.* TO '{user}'@'%'")


def _difference(identity: LogIdentity, head: LogHead) -> str | None:
    """Say in what the head of a file is not that of the file which was read, or nothing."""
    state = StreamState()
    try:
        decoded = decode_event(head.format_description, state, verify=False)
        description = decoded.event
        if not isinstance(description, FormatDescriptionEvent):
            return f"the first event is a {type(description).__name__}"
        seen = {
            "server_id": (identity.server_id, decoded.header.server_id),
            "server_version": (identity.server_version, description.server_version),
            "the time of its beginning": (identity.created, decoded.header.timestamp),
        }
        if identity.previous_gtids is not None and head.second is not None:
            previous = GtidProgress().previous(decode_event(head.second, state, verify=False).event)
            seen["the GTIDs before it"] = (identity.previous_gtids, previous)
    except BinlogError as error:
        return f"the head cannot be read: {error}"
    for what, (was, now) in seen.items():
        if was != now:
            return f"{what} was {was}, is {now}"
    return None
