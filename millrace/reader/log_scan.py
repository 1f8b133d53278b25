"""Walks over the log of a server, from the head of a file on, to find a place in it.

That may take long: ``beat`` is called again and again, as a sign of life, and may raise to end it.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from millrace.binlog.gtid_set import MariadbGtid
from millrace.binlog.header import FIRST_POSITION, HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.types import EventType
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.identity import read_head
from millrace.mysql.packets import DumpEnd, EventPiece
from millrace.mysql.position import PositionTracker
from millrace.mysql.status import LogFile, LogStatus, log_status
from millrace.reader.start_position import PlaceCheck, StartPosition, StartPositionFinder

if TYPE_CHECKING:
    from millrace.reader.alterations import Alterations

_LAST_POSITION: Final = 0xFFFFFFFF
_WAIT_S: Final = 1.0
_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)
_MARIADB_GTID: Final = int(EventType.MARIADB_GTID_EVENT)
_GTID: Final = struct.Struct(f"<5xI{HEADER_LENGTH - 9}xQI")
"""Of a GTID event of MariaDB: server_id, sequence number, domain_id."""
_PLACING: Final = struct.Struct("<4xB4xIIH")
"""Of an event's header: type code, size, next_position, flags."""


def creation_time(
    connection: MysqlConnection, replica: ReplicaIdentity, log: LogFile, beat: Callable[[], None]
) -> int:
    """Return when a file was begun, in seconds since 1970."""
    head = read_head(connection.address, replica, log.name, beat)
    return int.from_bytes(head.format_description[:4], "little")


def start_position_at(
    connection: MysqlConnection,
    replica: ReplicaIdentity,
    logs: Sequence[LogFile],
    since: int,
    beat: Callable[[], None],
) -> StartPosition:
    """Find where the first transaction begins that ended at a time or later, else the end of the log."""
    # The last file that was begun before that time: files before it were complete by then.
    index = max(
        0, bisect_left(logs, since, key=lambda log: creation_time(connection, replica, log, beat)) - 1
    )
    finder = StartPositionFinder(since)
    reached = StartPosition(logs[index].name, FIRST_POSITION, None)
    end = log_status(connection)
    for log_file, position, piece in _walk(connection, replica, logs[index].name, beat, end):
        found = finder.feed(log_file, position, piece.data)
        if found is not None:
            return found
        reached = StartPosition(log_file, position + piece.event_size, None)
    return replace(reached, gtid_set=finder.gtid_set, binlog_state=finder.binlog_state)


def with_gtids_before(
    connection: MysqlConnection,
    replica: ReplicaIdentity,
    log_file: str,
    position: int,
    beat: Callable[[], None],
) -> StartPosition:
    """Return a place with the GTIDs of what lies before it, if any are known.

    Raises :class:`NoPlaceError` where no event begins or ends there.
    """
    place = StartPosition(log_file, position, None)
    finder, check = StartPositionFinder(), PlaceCheck(position)
    for found_file, start, piece in _walk(connection, replica, log_file, beat, log_status(connection)):
        if found_file != log_file or check.passes(start, piece.event_size):
            break
        finder.feed(found_file, start, piece.data)
    check.found()
    if connection.flavour is Flavour.MYSQL and connection.variable("gtid_mode") != "ON":
        return place
    return replace(place, gtid_set=finder.gtid_set, binlog_state=finder.binlog_state)


def mariadb_gtids(
    connection: MysqlConnection, replica: ReplicaIdentity, log_file: str, beat: Callable[[], None]
) -> Iterator[MariadbGtid]:
    """Yield the transactions in the log of a MariaDB from the head of a file on, up to its present end."""
    with MysqlConnection(connection.address, beat) as other:
        dump = Dump.at_position(other, replica, log_file, FIRST_POSITION, wait=False)
        try:
            while True:
                beat()
                for data, first, _, _ in dump.read(_WAIT_S):
                    if first and data[TYPE_OFFSET] == _MARIADB_GTID:
                        server_id, seq_no, domain_id = _GTID.unpack_from(data)
                        yield MariadbGtid(domain_id, server_id, seq_no)
        except DumpEnd:
            return


def search(
    connection: MysqlConnection,
    replica: ReplicaIdentity,
    since: tuple[str, int],
    until: LogStatus,
    beat: Callable[[], None],
    *,
    found: "Alterations",
) -> None:
    """Look which tables statements may have altered between two places.

    A dump has positions of 32 bits: what lies further on is looked for from the head of its file on.
    """
    if since == (until.log_file, until.position):
        return
    begin = since[1] if since[1] <= _LAST_POSITION else FIRST_POSITION
    for log_file, position, piece in _walk(connection, replica, since[0], beat, until, begin=begin):
        found.feed(log_file, position, piece)


def _walk(
    connection: MysqlConnection,
    replica: ReplicaIdentity,
    log_file: str,
    beat: Callable[[], None],
    until: LogStatus,
    *,
    begin: int = FIRST_POSITION,
) -> Iterator[tuple[str, int, EventPiece]]:
    """Yield the events from the head of a file up to a place: file, position, first piece.

    At the end of its log a server may wait for more, whatever it was asked (MySQL 5.6).
    From another place than the head the first is the format description, whose position is below 0.
    """
    tracker = PositionTracker(log_file, begin, zero_allowed=connection.flavour is Flavour.MARIADB)
    with MysqlConnection(connection.address, beat) as other:
        dump = Dump.at_position(other, replica, log_file, begin, wait=False)
        try:
            while True:
                beat()
                for piece in dump.read(_WAIT_S):
                    if not piece.first:
                        continue
                    type_code, size, next_position, flags = _PLACING.unpack_from(piece.data)
                    at = tracker.log_file
                    position = tracker.place(type_code, size, next_position, flags, piece.data)
                    if position >= 0 or (begin > FIRST_POSITION and type_code == _FORMAT_DESCRIPTION):
                        yield at, position, piece
                    end = position + piece.event_size
                    if position >= 0 and at == until.log_file and end >= until.position:
                        return
        except DumpEnd:
            return
