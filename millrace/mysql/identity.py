"""What tells one server's log from another's of the same name.

File names and positions repeat: after RESET MASTER, after a fail-over, after a restore. What does not repeat
is the head of a file (when and by which server it was begun, which transactions lie before it) together with
the server's own names for itself.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.binlog.header import FIRST_POSITION, FLAGS_OFFSET
from millrace.binlog.types import HeaderFlag
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import LinkLostError
from millrace.mysql.packets import DumpEnd

_STEP_S: Final = 0.5
_HEAD_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServerNames:
    """What a server calls itself forever: ``@@server_uuid`` of MySQL, ``@@server_uid`` of MariaDB 10.10."""

    uuid: str | None
    uid: str | None


@dataclass(frozen=True, slots=True)
class LogHead:
    """The first events of a log file, whole: the format description and, if there is one, the next."""

    format_description: bytes
    second: bytes | None


def server_names(connection: MysqlConnection) -> ServerNames:
    """Ask a server what it calls itself."""
    return ServerNames(connection.variable("server_uuid"), connection.variable("server_uid"))


def read_head(
    address: MysqlAddress, replica: ReplicaIdentity, log_file: str, beat: Callable[[], None] = lambda: None
) -> LogHead:
    """Fetch the head of a log file over a connection of its own; ``beat`` is :class:`MysqlConnection`'s.

    Raises :class:`~millrace.mysql.errors.PurgedError` where the server does not have the file.
    """
    with MysqlConnection(address, beat) as connection:
        dump = Dump.at_position(
            connection, replica, log_file, FIRST_POSITION, wait=False, buffer_size=64 * 1024
        )
        events: list[bytes] = []
        until = time.monotonic() + _HEAD_S
        try:
            while len(events) < 2:
                beat()
                if time.monotonic() > until:
                    raise LinkLostError(
                        f"{address}: timed out after {_HEAD_S:g} s waiting for the head of {log_file}"
                    )
                for data, first, last, _ in dump.read(_STEP_S):
                    in_file = not data[FLAGS_OFFSET] & HeaderFlag.ARTIFICIAL_F
                    if first and last and in_file and len(events) < 2:
                        events.append(data)
        except DumpEnd:
            pass
    if not events:
        raise LinkLostError(f"{address}: {log_file} has no format description yet")
    return LogHead(events[0], events[1] if len(events) > 1 else None)
