"""A server's binary log as it lies in its files, over a replication dump.

The address is ``mysql://user:password@host:port/`` for all logs, with the name of a log file after it for
that one. TLS and defaults come from the settings ``MILLRACE_MYSQL_…``, as for the reader.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from millrace.binlog.changes import ChangeEvent, ChangeReader
from millrace.binlog.errors import InvalidValueError, TooLargeError
from millrace.binlog.file import MAX_EVENT_SIZE
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.header import FIRST_POSITION
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import RefusedError, RetriableError
from millrace.mysql.packets import DumpEnd, EventPiece
from millrace.mysql.position import ALTERED, NOT_IN_FILE, PositionTracker
from millrace.mysql.settings import SCHEMES, MysqlSettings, values_of_url
from millrace.mysql.status import LogFile, binary_logs
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import EnvironmentSettings, load_settings

_LAST_POSITION: Final = 0xFFFFFFFF
_WAIT_S: Final = 0.5
_RECONNECT_S: Final = 1.0
_RECONNECTS: Final = 60


class _Settings(EnvironmentSettings):
    """How the server is reached where the address does not say it."""

    mysql: MysqlSettings


def is_server(name: str) -> bool:
    """Return whether an argument is the address of a server."""
    return urlsplit(name).scheme in SCHEMES and "//" in name


def given_settings() -> set[str]:
    """Return which of the settings MILLRACE_MYSQL_… are given; raises UserError."""
    return load_settings(_Settings, mysql={}).mysql.model_fields_set


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, how we log in, and which of its logs is meant; None for all."""

    mysql: MysqlAddress
    log_file: str | None

    @classmethod
    def parse(cls, url: str, password: str | None = None) -> "ServerAddress":
        """Read an address; raises UserError. ``password`` wins over what it and the settings say."""
        try:
            values, log_file = values_of_url(url)
        except ValueError as error:
            raise UserError(str(error), ExitCode.SETTINGS) from None
        if password is not None:
            values["password"] = password
        return cls.of_settings(values, log_file)

    @classmethod
    def of_settings(cls, values: dict[str, Any], log_file: str | None) -> "ServerAddress":
        """Return the address that values of :class:`MysqlSettings` say; raises UserError."""
        return cls(load_settings(_Settings, mysql=values).mysql.address(), log_file)

    def __str__(self) -> str:
        return f"mysql://{self.mysql}"


class PlacedPiece(NamedTuple):
    """A run of bytes of one event, and where the event starts."""

    file: str
    position: int
    piece: EventPiece


class ServerLog:
    """The events of a server's log as they lie in its files, from a place on.

    What stands in no file (heartbeats, made-up ROTATE events) is left out. With ``follow``, reading waits for
    what the server writes next, and continues by itself, at the event that was not complete, after a
    connection that was lost.
    """

    def __init__(
        self,
        address: MysqlAddress,
        *,
        follow: bool = False,
        note: Callable[[str], None] = lambda _: None,
        server_id: int | None = None,
    ) -> None:
        """Read the log of the server at ``address``, as a replica with an id of its own or ``server_id``.

        ``note`` is told of connections that were lost.
        """
        self._address = address
        self._note = note
        self._follow = follow
        self.replica = ReplicaIdentity.new("millrace-binlog")
        if server_id is not None:
            self.replica = replace(self.replica, server_id=server_id)

    def binary_logs(self) -> list[LogFile]:
        """List the server's log files; raises SourceError."""
        with MysqlConnection(self._address) as connection:
            logs = binary_logs(connection)
        if not logs:
            raise RefusedError(f"{self._address}: the server has no binary log")
        return logs

    def after_gtids(self, gtids: str) -> Iterator[PlacedPiece]:
        """Yield the pieces of all transactions but those in a GTID set; raises SourceError."""
        place: tuple[str, int] | None = None
        try:
            for placed in self._connected_after(gtids):
                yield placed
                place = _place_after(placed)
        except RetriableError as error:
            if not self._follow or place is None:
                raise
            self._note(f"{error}; connecting again")
        else:
            return
        yield from self.pieces(*place)

    def _connected_after(self, gtids: str) -> Iterator[PlacedPiece]:
        with MysqlConnection(self._address) as connection:
            mariadb = connection.flavour is Flavour.MARIADB
            try:
                encoded = b"" if mariadb else GtidSet.parse(gtids).encode()
            except InvalidValueError as error:
                raise UserError(f"--after-gtids for a server of MySQL: {error}", ExitCode.SETTINGS) from None
            dump = Dump.after_gtids(connection, self.replica, gtids, encoded, wait=self._follow)
            tracker = PositionTracker("", FIRST_POSITION, skips=True, zero_allowed=mariadb)
            for placed in _placed(dump, tracker):
                # The format description, which the server alters for such a dump, is at the head of a file.
                yield placed if placed.position != ALTERED else placed._replace(position=FIRST_POSITION)

    def pieces(self, file: str, position: int = FIRST_POSITION) -> Iterator[PlacedPiece]:
        """Yield the pieces from an event on; raises SourceError. The first of an event may come again."""
        attempts = 0
        while True:
            try:
                for placed in self._connected(file, position):
                    attempts = 0
                    yield placed
                    file, position = _place_after(placed)
            except RetriableError as error:
                if not self._follow or attempts == _RECONNECTS:
                    raise
                if not attempts:
                    self._note(f"{error}; connecting again")
            else:
                return
            attempts += 1
            time.sleep(_RECONNECT_S)

    def _connected(self, file: str, position: int) -> Iterator[PlacedPiece]:
        # The command has 32 bits for the position; in a longer file we begin at its head and pass by.
        start = position if position <= _LAST_POSITION else FIRST_POSITION
        with MysqlConnection(self._address) as connection:
            dump = Dump.at_position(connection, self.replica, file, start, wait=self._follow)
            mariadb = connection.flavour is Flavour.MARIADB
            for placed in _placed(dump, PositionTracker(file, start, zero_allowed=mariadb)):
                if placed.position != ALTERED and (placed.file != file or placed.position >= position):
                    yield placed


def _place_after(placed: PlacedPiece) -> tuple[str, int]:
    """Return the place to continue at: after an event that is complete, else at its beginning."""
    file, position, piece = placed
    return file, position + piece.event_size if piece.last else position


def _placed(dump: Dump, tracker: PositionTracker) -> Iterator[PlacedPiece]:
    """Say of each piece in which file its event lies and where it starts, or that it is ALTERED."""
    file, position = tracker.log_file, NOT_IN_FILE
    while True:
        try:
            pieces = dump.read(_WAIT_S)
        except DumpEnd:
            return
        for piece in pieces:
            if piece.first:
                data = piece.data
                file = tracker.log_file
                position = tracker.place(
                    data[4],
                    piece.event_size,
                    int.from_bytes(data[13:17], "little"),
                    int.from_bytes(data[17:19], "little"),
                    data,
                )
            if position != NOT_IN_FILE:
                yield PlacedPiece(file, position, piece)


def whole_events(
    pieces: Iterable[PlacedPiece], max_size: int = MAX_EVENT_SIZE
) -> Iterator[tuple[str, int, bytes]]:
    """Join pieces to events; give file, position and bytes of each.

    Raises TooLargeError for an event of more than ``max_size`` bytes.
    """
    parts: list[bytes] = []
    for file, position, piece in pieces:
        if piece.first:
            parts.clear()  # of an event that was not complete when the connection was lost
            if piece.event_size > max_size:
                message = f"an event of {piece.event_size} bytes; up to {max_size} are read"
                raise TooLargeError(message).at(file, position)
        parts.append(piece.data)
        if piece.last:
            yield file, position, b"".join(parts)


def follow_changes(
    url: str, *, after_gtids: str | None = None, follow: bool = True, reader: ChangeReader | None = None
) -> Iterator[ChangeEvent]:
    """Yield the changes of rows in the log of the server at ``mysql://user:password@host:port/LOGFILE``.

    Without a log file they begin with the first that the server has; with ``after_gtids``, after these
    transactions. With ``follow`` what the server writes next is waited for, over lost connections too;
    without it this ends where the log ends now. TLS and what the address leaves out come from the settings
    MILLRACE_MYSQL_…. ``reader`` is one that knows definitions of tables.

    Raises UserError, SourceError and BinlogError.
    """
    address = ServerAddress.parse(url)
    reader = ChangeReader() if reader is None else reader
    log = ServerLog(address.mysql, follow=follow)
    if after_gtids is not None:
        pieces = log.after_gtids(after_gtids)
    else:
        pieces = log.pieces(address.log_file or log.binary_logs()[0].name)
    for file, position, data in whole_events(pieces):
        yield from reader.feed(data, file, position)
