"""A live server as the source of events: where to start, whether it is still the same log, the catalogue."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.service_state import ReaderState
from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbBinlogState
from millrace.binlog.header import FIRST_POSITION
from millrace.contract import Topics
from millrace.mysql.catalog import CatalogReading, read_catalog, read_tables
from millrace.mysql.checks import check_primary, check_replicas, check_source, check_topology, own_gtids
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import (
    AnonymousError,
    DuplicateReplicaError,
    LogMismatchError,
    ProtocolError,
    PurgedError,
    RefusedError,
    RetriableError,
    SourceError,
)
from millrace.mysql.identity import LogHead, ServerNames, read_head, server_names
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.mysql.semisync import require_semi_sync, semi_sync_findings
from millrace.mysql.status import LogFile, binary_logs, first_with_gtids, log_status
from millrace.reader.gtids import GtidProgress
from millrace.reader.history import (
    WhereReadEnds,
    after_both,
    binlog_state_before,
    executed,
    gtids_before,
    lacking,
    missing,
    purged,
    state_after,
)
from millrace.reader.log_identity import LogMismatch, log_mismatch
from millrace.reader.log_scan import (
    creation_time,
    mariadb_gtids,
    search,
    start_position_at,
    with_gtids_before,
)
from millrace.reader.settings import ReaderSettings
from millrace.reader.stage import RawStage
from millrace.reader.start_position import NoPlaceError, StartPosition, moved_on_purpose, seconds_of
from millrace.reader.statements import touched
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger

if TYPE_CHECKING:
    from millrace.reader.alterations import Alterations

_LOG = get_logger(__name__)
_FIRST: Final = "MILLRACE_START"
_NAMESPACE: Final = uuid.UUID("7d3a0a9e-6f0c-4f0e-9d0b-6d696c6c7261")
_READ_AGAIN_S: Final = 1.0
_MOST_TOUCHED: Final = 100
"""Tables that are read one by one after statements have changed them; for more, all are."""
_READINGS_OF_END: Final = 100
"""A MariaDB says in one answer where its log ends and in another what it holds; both are of one moment."""
_LAST_POSITION: Final = 0xFFFFFFFF
_REFUSED_AT: Final = re.compile(r"at file (?:[^,]*[/\\])?([^,/\\]+), position (\d+)")
"""Where the transaction begins that a server refuses to send, in its error 1236."""

_BRING_BACK: Final = (
    "Bring back the server that was read, or one that holds all of it, or read this one under another "
    "MILLRACE_SOURCE"
)


class LiveSource:
    """Connects, as often as need be, and reads the dump.

    While it looks for a server and its place it calls ``beat`` again and again, which shows a sign of life,
    and raises where the reader was asked to stop. ``commit`` commits what the stage has written.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        stage: RawStage,
        commit: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._stage = stage
        self._commit = commit
        self._beat = beat
        self._addresses = settings.mysql.addresses()
        self._at = 0
        self._replica = ReplicaIdentity(
            settings.replica_server_id,
            str(uuid.uuid5(_NAMESPACE, settings.source)),
            f"millrace-{settings.source}",
        )
        self._connection: MysqlConnection | None = None
        self._dump: Dump | None = None
        # Whether what Kafka has is to be acknowledged, though nothing that has come asks for it.
        self._goes_on = False
        # What was written last, with its epoch and whether it was all, and what is to be written with the
        # first events.
        self._catalog: tuple[int, bytes, bool] | None = None
        self._unwritten: CatalogReading | None = None
        # From where on statements may have altered tables that nobody has looked for: where a first session
        # begins, or one after a gap; later the last reading of the catalogue. Else nobody looks.
        self._since: tuple[str, int] | None = None
        self._alterations: Alterations | None = None
        # Up to where definitions may have been others in any case, as what came before was read from files.
        self._unsearched: tuple[str, int] | None = None
        self._read_again_at: float | None = None
        # Tables whose definitions statements have changed since they were read, and when to read them.
        self._touched: dict[tuple[str, str], None] = {}
        self._touched_at = 0.0
        self._warned: set[str] = set()

    def __str__(self) -> str:
        return str(self._addresses[self._at])

    def open(self) -> None:
        """Connect, find the place to continue at, write the catalogue, ask for the dump.

        Of several servers the one that was read last comes first, so that no epoch is begun without need;
        then the others, in their order. Where none can be read, but one may be later, that is retriable.
        """
        self._on_one_server(self._open)

    def examine(self) -> None:
        """Connect as :meth:`open` does, and look whether the server may be read and is the right one.

        A reader of this source that runs meanwhile is not disturbed: nothing is asked for as a replica.
        """
        self._on_one_server(self._examine)

    def _on_one_server(self, attempt: Callable[[MysqlAddress], None]) -> None:
        failures: list[SourceError] = []
        count, last = len(self._addresses), self._at
        for self._at in [(last + step) % count for step in range(count)]:
            self._beat()
            try:
                _LOG.info("connecting", server=str(self))
                with self._as_protocol_error():
                    attempt(self._addresses[self._at])
            except DuplicateReplicaError:
                raise
            except SourceError as error:
                self.close()
                if count == 1:
                    raise
                _LOG.warning("a server of the topology cannot be read", server=str(self), reason=str(error))
                failures.append(error)
            else:
                return
        self._at = last
        kind = next(
            (type(error) for error in failures if isinstance(error, RetriableError)), type(failures[0])
        )
        raise kind("no server can be read: " + "; ".join(map(str, failures)))

    def _open(self, address: MysqlAddress) -> None:
        with self._anonymous_in_words():
            self._find_place(address)

    def _examine(self, address: MysqlAddress) -> None:
        with MysqlConnection(address, self._beat) as connection:
            self._check(connection)
            state = self._stage.state()
            if state is None:
                self._place(connection, self._settings.start, _FIRST)
            if state is None or state.reset is not None:
                return
            other = log_mismatch(connection, None, server_names(connection), state, self._beat)
            if other is not None and self._has_gtids(connection, state, other):
                self._check_history(connection, state, other.reason, executed(connection))

    def _find_place(self, address: MysqlAddress) -> None:
        self._connection = connection = MysqlConnection(address, self._beat)
        self._check(connection)
        names = server_names(connection)
        state = self._stage.state()
        if state is None:
            self._start(connection, names, self._settings.start, None)
            return
        if state.reset is not None:
            self._start(connection, names, state.reset, moved_on_purpose(state))
            return
        other = log_mismatch(connection, self._replica, names, state, self._beat)
        if other is None:
            self._go_on(connection, names, state)
        else:
            self._change(connection, names, state, other)

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return what has come, as :meth:`millrace.mysql.dump.Dump.read` does.

        Definitions are read again with no transaction of Kafka open: that may take longer than one may last.
        """
        assert self._dump is not None
        self.settle()
        if self._read_again_at is not None and time.monotonic() >= self._read_again_at:
            self._commit()
            with MysqlConnection(self._addresses[self._at], self._beat) as connection:
                self._read_catalog(connection)
        if self._touched and time.monotonic() >= self._touched_at:
            self._commit()
            self._read_touched()
        with self._anonymous_in_words():
            pieces = self._dump.read(timeout_s)
        self._touched.update(dict.fromkeys(touched(pieces, checksums=self._stage.checksums)))
        if pieces and self._goes_on:
            # The server hears us now. It may wait for what an earlier session committed and did not come to
            # acknowledge, and a dump by GTID leaves out.
            self._goes_on = False
            if not self._dump.wants_ack:
                self._acknowledge(self._dump)
        if pieces and self._unwritten is not None:
            self._write_catalog(self._unwritten)
            self._unwritten = None
        return pieces

    def settle(self) -> None:
        """Commit and acknowledge what was read, where the server waits for that."""
        if self._dump is not None and self._dump.wants_ack:
            self._acknowledge(self._dump)

    def _acknowledge(self, dump: Dump) -> None:
        """Commit what was read so far, for which the server waits, and say so."""
        self._commit()
        state = self._stage.state()
        if state is not None:
            dump.acknowledge(state.log_file, state.position)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._dump = None
        self._goes_on = False
        self._unwritten = self._read_again_at = None
        self._since = self._unsearched = self._alterations = None
        self._touched.clear()

    def _check(self, connection: MysqlConnection) -> None:
        warnings = check_source(
            connection, self._replica.server_id, allow_statements=self._settings.mysql.allow_statements
        )
        check_replicas(connection, self._replica)
        if len(self._addresses) > 1:
            warnings += check_topology(connection)
        if self._settings.semi_sync:
            require_semi_sync(connection)
            check_primary(connection)
            findings = semi_sync_findings(connection, connected=False)
            warnings += [f"{each.text}: {each.advice}" for each in findings if each.level != "ok"]
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _LOG.warning("the source could be set up better", advice=warning)

    @contextmanager
    def _as_protocol_error(self) -> Iterator[None]:
        try:
            yield
        except BinlogError as error:
            raise ProtocolError(
                f"{self}: what it says of its log and its GTIDs cannot be read: {error}"
            ) from error

    @contextmanager
    def _anonymous_in_words(self) -> Iterator[None]:
        """Name the first place that can be read, where the server refuses to send what has no GTID."""
        try:
            yield
        except AnonymousError as error:
            address = self._addresses[self._at]
            found = _REFUSED_AT.search(str(error))
            if found is None:
                raise
            with MysqlConnection(address, self._beat) as connection:
                logs = _logs(connection)
                index = first_with_gtids(connection, logs)
            names = [log.name for log in logs]
            if found[1] in names:
                index = max(index, names.index(found[1]) + 1)
            source = self._settings.source
            first = f"{names[index]}:{FIRST_POSITION}" if index < len(names) else "latest"
            raise AnonymousError(
                f"{address}: at {found[1]}:{found[2]} a transaction without GTID begins, from before "
                "gtid_mode was turned ON, and in that mode a server sends such to no replica. The first "
                f"place that can be read is {first}. Run SET GLOBAL gtid_mode=ON_PERMISSIVE until the reader "
                "has passed them, then ON again, and nothing is missing; or read a copy of these files under "
                "another MILLRACE_SOURCE with MILLRACE_FILES; or continue without them, with "
                f"MILLRACE_START={first} the first time, else with 'millrace source reset {source} --to "
                f"{first}'"
            ) from error

    # -- where to continue --------------------------------------------------------------------------

    def _start(self, connection: MysqlConnection, names: ServerNames, start: str, moved: str | None) -> None:
        """Start where ``start`` says; in a new epoch where ``moved`` says that the source was moved."""
        said_by = _FIRST if moved is None else "the place of 'millrace source reset'"
        place = self._place(connection, start, said_by)
        if isinstance(place, str):
            gtids, gone = place, self._gone(connection)
            self._since = self._file_of(connection, gtids), FIRST_POSITION
            self._after_gtids(connection, names, gtids, gone, moved, gap=moved is not None)
            return
        self._since = place.log_file, place.position
        if place.position <= _LAST_POSITION:
            self._dump_at(connection, names, place, gap=moved)
        elif place.gtid_set:
            gtids, gap = place.gtid_set, moved is not None
            log = place.binlog_state
            self._dump_after(connection, names, gtids, log, moved, left_out=gtids, gap=gap)
        else:
            raise UserError(
                f"{said_by} leads to {place.log_file}:{place.position}, and a server without GTIDs can "
                "be asked for positions below 4 GiB only; start at an earlier one",
                ExitCode.SETTINGS,
            )

    def _place(self, connection: MysqlConnection, start: str, said_by: str) -> StartPosition | str:
        """Find the place that ``start`` names, or its GTIDs; raises UserError where there is none."""
        if start.startswith("gtid:"):
            try:
                gtids = GtidProgress(start.removeprefix("gtid:")).text()
            except BinlogError as error:
                raise UserError(f"{said_by} is wrong: {error}", ExitCode.SETTINGS) from None
            if gtids and (":" in gtids) is (connection.flavour is Flavour.MARIADB):
                raise UserError(
                    f"{said_by} is wrong: {gtids} is not a GTID set of {connection.flavour.value}, which "
                    f"{connection.address} is",
                    ExitCode.SETTINGS,
                )
            return gtids
        if start == "earliest":
            return StartPosition(_logs(connection)[0].name, FIRST_POSITION, None)
        if start == "latest":
            return _end(connection)
        if start.startswith("time:"):
            return self._start_position_at(connection, start.removeprefix("time:"))
        log_file, _, number = start.rpartition(":")
        try:
            return self._with_gtids(connection, log_file, int(number))
        except NoPlaceError as error:
            raise UserError(
                f"{said_by} is wrong: {start}, of {connection.address}: {error}", ExitCode.SETTINGS
            ) from None

    def _file_of(self, connection: MysqlConnection, gtids: str) -> str:
        """Name the newest file of which nothing lies before ``gtids``, else the oldest."""
        names = [log.name for log in _logs(connection)]
        for name in reversed(names):
            before = gtids_before(self._head(connection, name))
            if before and not missing(gtids, before):
                return name
        return names[0]

    def _start_position_at(self, connection: MysqlConnection, time_text: str) -> StartPosition:
        """Find where to start for a time; logs of that time must not have been purged."""
        since, logs = seconds_of(time_text), _logs(connection)
        oldest = logs[0].name
        if creation_time(connection, self._replica, logs[0], self._beat) > since and not _is_first(oldest):
            words = f"what was written between {time_text} and the oldest log, {oldest}, is purged"
            self._gap_allowed(connection, words, oldest)
            _LOG.error("changes are missing", reason=words)
        return start_position_at(connection, self._replica, logs, since, self._beat)

    def _with_gtids(self, connection: MysqlConnection, log_file: str, position: int) -> StartPosition:
        """Find out which GTIDs lie before a position, so that another server can be read from there."""
        logs = [log.name for log in binary_logs(connection)]
        if log_file not in logs:
            has = f"those from {logs[0]} to {logs[-1]}" if logs else "none"
            raise NoPlaceError(f"the server has no such file. SHOW BINARY LOGS lists {has}")
        if position == FIRST_POSITION:
            return StartPosition(log_file, position, None)  # the file's own head will tell
        return with_gtids_before(connection, self._replica, log_file, position, self._beat)

    def _go_on(self, connection: MysqlConnection, names: ServerNames, state: ReaderState) -> None:
        """Resume where the state says, in the log that it names; the server may be told that position."""
        self._goes_on = self._settings.semi_sync
        if _from_files(state, names):
            # Files have no catalogue. What is read now is that of all rows from here on that nothing alters.
            self._since = state.log_file, state.position
            self._unsearched = state.log_file, state.position - 1
        if state.left_out:
            before = gtids_before(self._head(connection, state.log_file)) or ""
            if lacking(state.left_out, before):
                # What the epoch leaves out may lie after our place as well, where a dump by position has it.
                log = state.binlog_state
                self._dump_after(connection, names, state.gtid_set, log, None, left_out=state.left_out)
                return
        position = state.position
        if position > _LAST_POSITION:
            # The command's position has 32 bits. What comes again is left out by the writer.
            position = state.boundary
        self._dump_at(connection, names, StartPosition(state.log_file, position, None))

    def _change(
        self, connection: MysqlConnection, names: ServerNames, state: ReaderState, other: LogMismatch
    ) -> None:
        """Continue in another log, which only GTIDs can do; raise where they say that we cannot."""
        if not self._has_gtids(connection, state, other):
            self._after_purge(connection, names, state)
            return
        gone = self._gone(connection)
        if other.other_server:
            history = executed(connection)
        elif other.followed_by is None:
            history = gone
        else:
            history = gtids_before(self._head(connection, other.followed_by.name)) or ""
        self._check_history(connection, state, other.reason, history)
        if state.binlog_state is None:
            self._after_gtids(connection, names, state.gtid_set, gone, other.reason)
        else:
            self._after_all_servers(connection, names, state, state.binlog_state, other.reason)

    def _after_all_servers(
        self, connection: MysqlConnection, names: ServerNames, state: ReaderState, log: str, reason: str
    ) -> None:
        """Continue in another log of MariaDB, where exactly what was read lies before a place in it."""
        read = MariadbBinlogState.parse(log)
        changed = reason
        for file in reversed(_logs(connection)):
            before = binlog_state_before(self._head(connection, file.name))
            if before is not None and not read.lacking(before):
                break
        else:
            if before is None:
                raise self._other_log(
                    connection, state, reason, f"{file.name} does not say what lies before it"
                )
            reached = {(gtid.domain_id, gtid.server_id): f"after {gtid} " for gtid in read}
            unread = ", ".join(
                f"{reached.get((gtid.domain_id, gtid.server_id), '')}up to {gtid}"
                for gtid in read.lacking(before)
            )
            changed = self._purged(connection, unread)
            read.update(before)
        ends = WhereReadEnds(read, before)
        if not ends.found:
            for gtid in mariadb_gtids(connection, self._replica, file.name, self._beat):
                if not ends.take(gtid):
                    raise self._other_log(
                        connection,
                        state,
                        reason,
                        f"in its order {gtid}, which was not read, comes before {ends.lacking}, which "
                        "was: it would be left out",
                    )
                if ends.found:
                    break
        if not ends.found:
            raise self._other_log(
                connection, state, reason, f"its log does not hold {ends.lacking}, which was read"
            )
        self._dump_after(
            connection, names, ends.after, str(read), changed, left_out=str(read), gap=changed != reason
        )

    def _has_gtids(self, connection: MysqlConnection, state: ReaderState, other: LogMismatch) -> bool:
        """Return whether there are GTIDs to continue by; raise where there is no other way."""
        without_gtids = connection.flavour is Flavour.MYSQL and connection.variable("gtid_mode") != "ON"
        read_server_id = state.identity.server_id if other.other_server and state.identity else None
        own = own_gtids(connection.all_variables(), read_server_id)
        if state.gtid_set and not without_gtids and own is None:
            if connection.flavour is Flavour.MARIADB and state.binlog_state is None:
                raise self._other_log(
                    connection,
                    state,
                    other.reason,
                    "the servers whose transactions were read are not known before the log that was read "
                    "begins its next file (FLUSH BINARY LOGS)",
                )
            return True
        if other.purged and not other.other_server:
            return False
        if own is not None:
            raise self._other_log(connection, state, other.reason, own)
        why = "the server does not write GTIDs" if without_gtids else "no GTIDs were read so far"
        raise self._other_log(
            connection, state, other.reason, f"as {why}, it is not known where to continue in it"
        )

    def _other_log(
        self, connection: MysqlConnection, state: ReaderState, reason: str, why: str
    ) -> LogMismatchError:
        return LogMismatchError(
            f"{connection.address}: this is not the log that was read so far up to {state.place} ({reason}), "
            f"and {why}. {_BRING_BACK}, or move the source to a place in this log with 'millrace source "
            f"reset {self._settings.source} --to …': what lies between is then missing, or comes again"
        )

    def _check_history(
        self, connection: MysqlConnection, state: ReaderState, reason: str, history: str
    ) -> None:
        """Raise where the history of a server does not hold what was read."""
        lost = lacking(state.gtid_set if state.binlog_state is None else state.binlog_state, history)
        if lost:
            raise self._other_log(
                connection, state, reason, f"its history does not hold {lost}, which was read"
            )

    def _after_gtids(
        self,
        connection: MysqlConnection,
        names: ServerNames,
        gtids: str,
        gone: str,
        reason: str | None,
        *,
        gap: bool = False,
    ) -> None:
        """Continue after ``gtids``; where more than these is ``gone``, that is a gap, as it may be anyway."""
        lost = missing(gtids, gone)
        if lost:
            reason, gap, gtids = self._purged(connection, lost), True, after_both(gtids, gone)
        log = self._log_after(connection, gtids)
        self._dump_after(connection, names, gtids, log, reason, left_out=gtids, gap=gap)

    def _purged(self, connection: MysqlConnection, lost: str) -> str:
        """Say what is missing, as logs were purged unread; raise unless that is allowed."""
        oldest = binary_logs(connection)[0].name
        words = f"the server has purged logs that were not read, with the transactions {lost}"
        self._gap_allowed(connection, words, oldest)
        self._since = oldest, FIRST_POSITION
        return words

    def _log_after(self, connection: MysqlConnection, gtids: str) -> str | None:
        """Return what the log of a MariaDB holds up to a position; None of MySQL, or where it ends before."""
        if connection.flavour is not Flavour.MARIADB:
            return None
        file = self._file_of(connection, gtids)
        before = binlog_state_before(self._head(connection, file))
        if before is None:
            return None
        following = mariadb_gtids(connection, self._replica, file, self._beat)
        log = state_after(gtids, before, following)
        return None if log is None else str(log)

    def _after_purge(self, connection: MysqlConnection, names: ServerNames, state: ReaderState) -> None:
        """Continue in the oldest file, where the one that was read is gone and there are no GTIDs."""
        oldest = binary_logs(connection)[0].name
        words = (
            f"the server no longer has {state.log_file}, which was read up to {state.position}: "
            f"what lies between that and {oldest}, its oldest, is missing"
        )
        self._gap_allowed(connection, words, oldest)
        self._since = oldest, FIRST_POSITION
        self._dump_at(connection, names, StartPosition(oldest, FIRST_POSITION, None), gap=words)

    def _gap_allowed(self, connection: MysqlConnection, words: str, oldest: str) -> None:
        if self._settings.on_gap != "continue":
            raise PurgedError(
                f"{connection.address}: {words}. Put the files back, read a copy of them under another "
                f"MILLRACE_SOURCE with MILLRACE_FILES, or continue without them at {oldest} with "
                "MILLRACE_ON_GAP=continue; and keep logs for longer (binlog_expire_logs_seconds, "
                "expire_logs_days)"
            )

    def _gone(self, connection: MysqlConnection) -> str:
        """Return the GTIDs of what no log of the server holds any more."""
        return purged(connection, self._head(connection, _logs(connection)[0].name))

    def _head(self, connection: MysqlConnection, log_file: str) -> LogHead:
        return read_head(connection.address, self._replica, log_file, self._beat)

    def _dump_at(
        self,
        connection: MysqlConnection,
        names: ServerNames,
        place: StartPosition,
        *,
        gap: str | None = None,
    ) -> None:
        log_file, position = place.log_file, place.position
        mariadb = connection.flavour is Flavour.MARIADB
        tracker = PositionTracker(log_file, position, zero_allowed=mariadb)
        self._stage.begin_session(
            tracker,
            server_uuid=names.uuid,
            server_uid=names.uid,
            gtid_set=place.gtid_set,
            binlog_state=place.binlog_state,
            changed=gap,
            gap=gap is not None,
        )
        self._read_catalog(connection)
        self._dump = Dump.at_position(
            connection,
            self._replica,
            log_file,
            position,
            heartbeat_s=self._settings.mysql.heartbeat_s,
            semi_sync=self._settings.semi_sync,
        )
        _LOG.info(
            "reading", server=str(self), version=connection.version, log_file=log_file, position=position
        )

    def _dump_after(
        self,
        connection: MysqlConnection,
        names: ServerNames,
        gtids: str,
        binlog_state: str | None,
        changed: str | None,
        *,
        left_out: str,
        gap: bool = False,
    ) -> None:
        mariadb = connection.flavour is Flavour.MARIADB
        tracker = PositionTracker("", FIRST_POSITION, skips=True, zero_allowed=mariadb)
        self._stage.begin_session(
            tracker,
            server_uuid=names.uuid,
            server_uid=names.uid,
            gtid_set=gtids,
            binlog_state=binlog_state,
            left_out=left_out,
            changed=changed,
            gap=gap,
        )
        self._read_catalog(connection)
        self._dump = Dump.after_gtids(
            connection,
            self._replica,
            gtids,
            b"" if mariadb else GtidSet.parse(gtids).encode(),
            heartbeat_s=self._settings.mysql.heartbeat_s,
            semi_sync=self._settings.semi_sync,
        )
        _LOG.info("reading", server=str(self), version=connection.version, after=gtids)

    # -- the catalogue ------------------------------------------------------------------------------

    def _read_catalog(self, connection: MysqlConnection) -> None:
        """Read the definitions of all tables, which are written with the first events.

        Until these come, the place to start at may prove wrong, or another server be read, in another epoch.
        An ALTER that waits for our acknowledgement has locked its table, and must not be waited for: such a
        table is read once it is free.

        A reader that begins in the past looks in the log which tables may have been others since, and again
        up to each later reading: it may be the first of a table.
        """
        self._unwritten = read_catalog(connection, wait=not self._settings.semi_sync)
        self._read_again_at = None if self._unwritten.whole else time.monotonic() + _READ_AGAIN_S
        if self._since is not None:
            self._search(connection, self._since, self._unwritten)

    def _search(self, connection: MysqlConnection, since: tuple[str, int], reading: CatalogReading) -> None:
        """Look which tables statements may have altered up to a reading."""
        from millrace.reader.alterations import Alterations  # noqa: PLC0415 - a first start alone needs it

        status, began = reading.status, time.monotonic()
        found = self._alterations or Alterations(any_case=reading.lower_case_names, before=self._unsearched)
        logged = {"since": f"{since[0]}:{since[1]}", "until": f"{status.log_file}:{status.position}"}
        _LOG.info("searching the log for statements that alter tables", **logged)
        # As another replica: a server ends the dump that is running for one who asks for a second.
        replica = ReplicaIdentity.new(self._replica.name)
        search(connection, replica, since, status, self._beat, found=found)
        self._since, self._alterations = (status.log_file, status.position), found
        _LOG.info(
            "searched the log for statements that alter tables",
            **logged,
            tables=found.tables,
            bytes=found.bytes,
            seconds=round(time.monotonic() - began, 1),
        )

    def _read_touched(self) -> None:
        """Read the definitions of tables that statements have changed, on a connection of its own.

        The row mapper follows statements by itself; this tells it what it could not follow. So nothing that
        goes wrong here stops the reader.
        """
        if not self._stage.confirmed:
            return
        names = list(self._touched)
        self._touched.clear()
        try:
            with MysqlConnection(self._addresses[self._at], self._beat) as connection:
                if len(names) > _MOST_TOUCHED:
                    reading = read_catalog(connection, wait=False)
                else:
                    reading = read_tables(connection, names)
        except SourceError as error:
            _LOG.warning("definitions of tables cannot be read again", tables=len(names), reason=str(error))
            return
        self._write_definitions(reading)
        if not reading.whole:
            self._touched.update(dict.fromkeys(names))
            self._touched_at = time.monotonic() + _READ_AGAIN_S

    def _write_catalog(self, reading: CatalogReading) -> None:
        """Write the definitions of all tables, unless they are there already."""
        definitions = reading.definitions
        written = self._stage.session_epoch, definitions.digest(), reading.lists_all
        if self._catalog == written:
            return
        self._write_definitions(reading, self._alterations)
        self._catalog = written
        _LOG.info("catalogue read", tables=len(definitions))
        if definitions.databases() <= {"mysql"}:
            _LOG.warning("no tables can be seen", advice="run the GRANT that millrace doctor prints")

    def _write_definitions(self, reading: CatalogReading, found: "Alterations | None" = None) -> None:
        """Write definitions, each with the place up to which it may have been another.

        That is the place of the reading itself where nobody has looked what statements altered until then.
        """
        status, epoch = reading.status, self._stage.session_epoch
        here = status.log_file, status.position
        now_ms = int(time.time() * 1000)
        topic = Topics(self._settings.source).catalog
        whole = len(reading.definitions) if reading.lists_all else None
        for definition in reading.definitions:
            altered = here if found is None else found.of(definition.database, definition.table)
            entry, value = CatalogEntry(
                epoch,
                status.log_file,
                status.position,
                definition,
                now_ms,
                status.gtid_set,
                reading.lower_case_names,
                *(altered or ("", 0)),
                whole=whole,
            ).kept()
            if entry.unknown is not None:
                _LOG.warning(
                    "the definition of a table is not kept",
                    table=f"{definition.database}.{definition.table}",
                    reason=entry.unknown,
                )
            self._stage.output.add(topic, entry.key, value, now_ms)
            if self._stage.output.full:
                # 10,000 tables take longer than a transaction of Kafka lasts.
                self._beat()
                self._commit()


def _from_files(state: ReaderState, names: ServerNames) -> bool:
    """Return whether what a state names last was read from a file: no server has said its name."""
    known = state.identity
    return known is None or bool(
        (names.uuid and not known.server_uuid) or (names.uid and not known.server_uid)
    )


def _logs(connection: MysqlConnection) -> list[LogFile]:
    """Return the server's log files, of which there is one at least."""
    logs = binary_logs(connection)
    if not logs:
        raise RefusedError(f"{connection.address}: there are no binary logs")
    return logs


def _end(connection: MysqlConnection) -> StartPosition:
    """Return the end of the log, and what lies before it."""
    for _ in range(_READINGS_OF_END):
        before = executed(connection) if connection.flavour is Flavour.MARIADB else None
        status = log_status(connection)
        place = StartPosition(status.log_file, status.position, status.gtid_set, before)
        if before is None or executed(connection) == before:
            return place
    return replace(place, binlog_state=None)


def _is_first(log_file: str) -> bool:
    """Return whether a file is, by its number, the first that its server ever wrote, or wrote after RESET."""
    number = Path(log_file).suffix[1:]
    return number.isdecimal() and int(number) == 1
