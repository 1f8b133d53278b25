"""Between which places in the log a SELECT sees a table, on each kind of server, without a lock on the table.

Every transaction that ends before the low watermark is in what SELECT gives, none that begins at the high
one or after it. The end of the log is no low watermark: a COMMIT that waits for a semi-synchronous replica is
in the log already, and SELECT does not see it yet. So the low one is

- in MariaDB the place of the consistent snapshot itself, which the server tells: there it is the high too;
- in MySQL with GTIDs the newest place of the reader whose GTIDs have all been executed
  (``gtid_executed`` has a transaction once the storage engine has committed it);
- in MySQL 8 without GTIDs the place of ``performance_schema.log_status``, which waits for such commits;
- in MySQL 5.7 without GTIDs the end of the log, and the rows are read ``LOCK IN SHARE MODE``, which waits for
  those that are being committed, and makes writers of these rows wait for the SELECT.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from millrace.avro.service_state import ReaderState
from millrace.binlog.gtid_set import GtidSet
from millrace.contract import log_number
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import ProtocolError, RefusedError, RetriableError
from millrace.mysql.names import log_file_name
from millrace.mysql.status import consistent_snapshot, log_status

_DOING: Final = "find the place of a snapshot"
_RETRY_S: Final = 0.05
_PATIENCE_S: Final = 600.0


class LogPosition(NamedTuple):
    """A place in the logs of one epoch."""

    log_file: str
    position: int

    def order(self) -> tuple[str, int, int]:
        """Return what sorts places."""
        return *log_number(self.log_file), self.position

    def __str__(self) -> str:
        return f"{self.log_file}:{self.position}"


Within = Callable[[str | None, LogPosition], bool]
"""Returns whether a snapshot sees a transaction, from its GTID and its position."""


class Method(Enum):
    """How the low watermark is found."""

    CONSISTENT_SNAPSHOT = "binlog_snapshot_position"
    GTID = "gtid_executed"
    LOG_STATUS = "performance_schema.log_status"
    SHARED_LOCK = "LOCK IN SHARE MODE"


def choose_method(connection: MysqlConnection, reader: ReaderState) -> Method:
    """Choose by what the server is, and by whether the reader follows its GTIDs."""
    if connection.flavour is Flavour.MARIADB:
        return Method.CONSISTENT_SNAPSHOT
    if connection.variable("gtid_mode") == "ON" and reader.gtid_set:
        return Method.GTID
    tables = connection.query(
        "SELECT TABLE_NAME AS name FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = 'performance_schema' AND TABLE_NAME = 'log_status'",
        doing=_DOING,
    )
    return Method.LOG_STATUS if tables else Method.SHARED_LOCK


class Watermarks:
    """Those of one connection. ``states`` gives states of the reader that were committed, newest first.

    ``wait`` is called where there is nothing to do but to wait for so many seconds; it may raise. ``begins``
    is the epoch and the place at which the raw topic begins.
    """

    def __init__(
        self,
        connection: MysqlConnection,
        method: Method,
        states: Callable[[], list[ReaderState]],
        wait: Callable[[float], None] = time.sleep,
        begins: tuple[int, LogPosition] | None = None,
    ) -> None:
        self.method = method
        self._connection = connection
        self._states = states
        self._wait = wait
        self._begins = begins
        # Nothing of before it is in the events topic.
        self._first = LogPosition("", 0)
        self._epoch = -1

    @property
    def suffix(self) -> str:
        """What stands after the SELECT."""
        return " LOCK IN SHARE MODE" if self.method is Method.SHARED_LOCK else ""

    @contextmanager
    def transaction(self) -> Iterator[tuple[int, LogPosition, LogPosition | None]]:
        """Open a transaction for reading; give the epoch, the low watermark, the high one if it is known."""
        query = self._connection.query
        epoch, low = self._low_before()
        high: LogPosition | None = None
        if self.method is Method.CONSISTENT_SNAPSHOT:
            low = high = self._consistent_snapshot()
        else:
            query("START TRANSACTION", doing=_DOING)
            assert low is not None
        try:
            yield epoch, low, high
        finally:
            query("COMMIT", doing=_DOING)

    @contextmanager
    def exact_transaction(self) -> Iterator[tuple[int, LogPosition, Within]]:
        """Open a transaction that sees the tables as of one place, which it holds for all that is read in it.

        Gives the epoch, the place, and what tells whether a transaction, by GTID and place, is in it.
        """
        query = self._connection.query
        if self.method is Method.SHARED_LOCK:
            raise RefusedError(
                f"{self._connection.address}: a table without a key cannot be read in a consistent snapshot "
                "with an exact position: this needs GTIDs, MySQL 8 or MariaDB"
            )
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            epoch, low = self._low_before()
            before = self._mark()
            if self.method is Method.CONSISTENT_SNAPSHOT:
                low = self._consistent_snapshot()
            else:
                query("START TRANSACTION WITH CONSISTENT SNAPSHOT", doing=_DOING)
            assert low is not None
            if self._mark() == before:
                try:
                    yield epoch, self.high(), partial(_is_within, self._gtids(before), low)
                finally:
                    query("COMMIT", doing=_DOING)
                return
            query("COMMIT", doing=_DOING)
        raise RetriableError(
            f"{self._connection.address}: transactions were committed all the time: no snapshot could be "
            f"taken between two of them within {_PATIENCE_S:g} s"
        )

    def high(self) -> LogPosition:
        """Return the end of the log: what was seen until now is before it."""
        found = log_status(self._connection)
        return LogPosition(found.log_file, found.position)

    def _gtids(self, mark: str) -> GtidSet | None:
        return GtidSet.parse(mark) if self.method is Method.GTID else None

    # -- each method ----------------------------------------------------------------------------------

    def _mark(self) -> str:
        """Return what changes whenever a transaction is committed."""
        if self.method is Method.GTID:
            return self._executed()
        return str(self._log_status()) if self.method is Method.LOG_STATUS else ""

    def _low_before(self) -> tuple[int, LogPosition | None]:
        """Return the epoch, and the low watermark of a SELECT that begins from now on."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            states = self._states()
            newest = states[0]
            if newest.epoch != self._epoch:
                self._epoch = newest.epoch
                self._first = LogPosition(newest.log_file, newest.position)
                if self._begins is not None and self._begins[0] == newest.epoch:
                    self._first = self._begins[1]
            low = self._try_low([state for state in states if state.epoch == newest.epoch])
            if low is not None or self.method is Method.CONSISTENT_SNAPSHOT:
                return newest.epoch, low
            if time.monotonic() > deadline:
                raise RetriableError(
                    f"{self._connection.address}: what the reader has read to {self._first} was not "
                    f"committed within {_PATIENCE_S:g} s; is this the server that the reader reads, or does "
                    "a COMMIT wait for a semi-synchronous replica?"
                )
            self._wait(_RETRY_S)

    def _try_low(self, states: list[ReaderState]) -> LogPosition | None:
        match self.method:
            case Method.GTID:
                executed = GtidSet.parse(self._executed())
                for state in states:
                    if state.open_gtid is None and executed.contains_set(GtidSet.parse(state.gtid_set)):
                        return LogPosition(state.log_file, state.position)
                return None
            case Method.LOG_STATUS:
                return self._covered(self._log_status())
            case Method.SHARED_LOCK:
                return self._covered(self.high())
            case _:
                return None

    def _covered(self, place: LogPosition) -> LogPosition | None:
        """Return a place, unless there are changes between it and what the reader read first."""
        return place if place.order() >= self._first.order() else None

    def _executed(self) -> str:
        row = self._connection.row("SELECT @@GLOBAL.gtid_executed AS executed", doing=_DOING)
        return row.text("executed").replace("\n", "")

    def _log_status(self) -> LogPosition:
        row = self._connection.row("SELECT LOCAL AS found FROM performance_schema.log_status", doing=_DOING)
        try:
            found = json.loads(row.text("found"))
            name, position = found["binary_log_file"], int(found["binary_log_position"])
        except (ValueError, KeyError, TypeError):
            raise ProtocolError(
                f"{self._connection.address}: performance_schema.log_status has no position of the log"
            ) from None
        return LogPosition(log_file_name(str(name), row.where), position)

    def _consistent_snapshot(self) -> LogPosition:
        """Open a consistent snapshot of MariaDB, and give its place."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            place = LogPosition(*consistent_snapshot(self._connection))
            if self._covered(place) is not None:
                return place
            self._connection.query("COMMIT", doing=_DOING)
            if time.monotonic() > deadline:
                raise RetriableError(
                    f"{self._connection.address}: what the reader has read to {self._first} was not "
                    f"committed within {_PATIENCE_S:g} s"
                )
            self._wait(_RETRY_S)


def _is_within(executed: GtidSet | None, low: LogPosition, gtid: str | None, at: LogPosition) -> bool:
    if executed is not None and gtid is not None:
        return executed.contains(gtid)
    return at.order() < low.order()
