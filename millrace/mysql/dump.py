"""The replication stream of a server: registering as a replica, asking for a dump, reading its events.

Commands and negotiation are those of "COM_REGISTER_SLAVE", "COM_BINLOG_DUMP" and "COM_BINLOG_DUMP_GTID" in
the MySQL source documentation and of "Replica Registration" in MariaDB's. What is agreed beforehand by user
variables: that we know checksums (so that events come as they are in the file), how often a heartbeat comes
when there is nothing else, who we are, and with MariaDB that we know its GTID events (capability 4).
"""

import struct
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from pymysql.constants import COMMAND

from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import LinkLostError, ProtocolError, from_server
from millrace.mysql.packets import DumpEnd, EventPiece, EventSplitter, ServerError
from millrace.mysql.semisync import REPLICA_VARIABLES, acknowledgement

_COM_BINLOG_DUMP_GTID: Final = 0x1E

_NON_BLOCKING: Final = 1
_HEARTBEAT_V2: Final = 2
"""MySQL 8.0.26 and later; earlier servers do not look at the bit."""
_ANNOTATE_ROWS: Final = 2
"""MariaDB: send ANNOTATE_ROWS events, which are left out otherwise."""
_THROUGH_GTID: Final = 4

_SEEK_PATIENCE_S: Final = 600.0
"""How long a server may look for the first transaction to send; some are silent meanwhile."""

_SEND_S: Final = 30.0
"""How long a server may take to read an acknowledgement."""

WRITE_TIMEOUT_S: Final = 600
"""How long the server is asked to wait for us to read, while Kafka makes us wait: net_write_timeout."""

_SILENT_PERIODS: Final = 3

_SIGN_OF_LIFE: Final = 4096
"""Bytes of an event that show that the server is alive; fewer may drip in forever."""

_ENOUGH: Final = 1 << 20
"""Bytes that are worth a pass through the stages, which cost least where a batch has whole transactions."""

_BUFFER: Final = 2 * _ENOUGH

_MAX_POSITION: Final = 0xFFFFFFFF

_HIGH_IDS: Final = 0x4D000000


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Who we are to the server: a server id and uuid that no other replica uses, a name for its lists."""

    server_id: int
    uuid: str
    name: str = "millrace"

    @classmethod
    def new(cls, name: str) -> Self:
        """Make one that nobody else has: a server ends the dump of whoever has the same as a later one."""
        number = uuid.uuid4()
        return cls(_HIGH_IDS | number.int & 0xFFFFFF, str(number), name)


class Dump:
    """A running dump; make one with :meth:`at_position` or :meth:`after_gtids`."""

    def __init__(
        self,
        connection: MysqlConnection,
        heartbeat_s: float,
        buffer_size: int,
        *,
        wait: bool = True,
        semi_sync: bool = False,
        seeks: bool = False,
    ) -> None:
        self._connection = connection
        self._wait = wait
        self._wire = connection.wire
        self._splitter = EventSplitter(buffer_size, semi_sync=semi_sync)
        self._silence_s = _SILENT_PERIODS * heartbeat_s
        self._patience_s = max(self._silence_s, _SEEK_PATIENCE_S) if seeks else self._silence_s
        # When we last listened, when there was the last sign of life, and bytes since that are none.
        self._listened = self._heard = time.monotonic()
        self._unheard = 0

    @classmethod
    def at_position(
        cls,
        connection: MysqlConnection,
        replica: ReplicaIdentity,
        log_file: str,
        position: int,
        *,
        heartbeat_s: float = 10.0,
        wait: bool = True,
        semi_sync: bool = False,
        buffer_size: int = _BUFFER,
    ) -> "Dump":
        """Ask for everything from ``position`` in ``log_file`` on; the command's position has 32 bits.

        Without ``wait`` the dump ends (:class:`~millrace.mysql.packets.DumpEnd`) where the log does. With
        ``semi_sync`` the server may wait for :meth:`acknowledge` before it continues with a commit.
        """
        if not 4 <= position <= _MAX_POSITION:
            raise ValueError(f"position {position} does not fit a dump by file and position")
        _register(connection, replica, heartbeat_s, None, semi_sync=semi_sync)
        flags = _flags(connection, wait=wait)
        payload = struct.pack("<IHI", position, flags, replica.server_id) + _name(log_file)
        connection.send(COMMAND.COM_BINLOG_DUMP, payload, "ask for the binary log")
        return cls(connection, heartbeat_s, buffer_size, wait=wait, semi_sync=semi_sync)

    @classmethod
    def after_gtids(
        cls,
        connection: MysqlConnection,
        replica: ReplicaIdentity,
        gtids: str,
        encoded_gtids: bytes,
        *,
        heartbeat_s: float = 10.0,
        wait: bool = True,
        semi_sync: bool = False,
        buffer_size: int = _BUFFER,
    ) -> "Dump":
        """Ask for all transactions but those in a GTID set.

        MariaDB takes ``gtids`` as text, the last of each domain; MySQL takes the set in its binary form,
        ``encoded_gtids``, as in COM_BINLOG_DUMP_GTID.
        """
        if connection.flavour is Flavour.MARIADB:
            _register(connection, replica, heartbeat_s, gtids, semi_sync=semi_sync)
            payload = struct.pack("<IHI", 4, _flags(connection, wait=wait), replica.server_id)
            connection.send(COMMAND.COM_BINLOG_DUMP, payload, "ask for the binary log")
        else:
            _register(connection, replica, heartbeat_s, None, semi_sync=semi_sync)
            flags = _flags(connection, wait=wait) | _THROUGH_GTID
            payload = struct.pack("<HIIQI", flags, replica.server_id, 0, 4, len(encoded_gtids))
            connection.send(_COM_BINLOG_DUMP_GTID, payload + encoded_gtids, "ask for the binary log")
        return cls(connection, heartbeat_s, buffer_size, wait=wait, semi_sync=semi_sync, seeks=True)

    @property
    def wants_ack(self) -> bool:
        """Whether the server waits for an acknowledgement of what was read."""
        return self._splitter.wants_ack

    def acknowledge(self, log_file: str, position: int) -> None:
        """Tell the server that everything before ``position`` in ``log_file`` is safe here.

        Raises :class:`LinkLostError`.
        """
        payload = acknowledgement(log_file, position)
        self._wire.doing = "acknowledge what was read"
        self._wire.begin(_SEND_S, _SEND_S)
        # A packet of its own, so that its number is 0.
        self._wire.sendall(len(payload).to_bytes(4, "little") + payload)
        self._splitter.wants_ack = False

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return the events that have come, waiting up to ``timeout_s`` seconds for the first; maybe none.

        Raises :class:`~millrace.mysql.packets.DumpEnd` at the end of a dump that does not wait,
        :class:`LinkLostError` when the connection is gone or has been silent for three heartbeat periods,
        and what the server reports.
        """
        now = time.monotonic()
        # While nobody listened, because Kafka made us wait, the server was not silent.
        self._heard += now - self._listened
        until = now + timeout_s
        try:
            pieces = self._splitter.split()
            while not pieces:
                left_s = until - time.monotonic()
                if not self._receive(max(0.0, left_s)):
                    break
                pieces = self._splitter.split()
                if left_s < 0:
                    break
        except ServerError as error:
            address = self._connection.address
            raise from_server(
                error.code, error.text, server=str(address), user=address.user, doing="read the binary log"
            ) from error
        except DumpEnd:
            if not self._wait:
                raise
            raise LinkLostError(f"{self._connection.address}: the server ended the dump") from None
        except ProtocolError as error:
            raise ProtocolError(f"{self._connection.address}: {error}") from None
        self._listened = time.monotonic()
        if pieces or self._unheard >= _SIGN_OF_LIFE:
            self._heard, self._unheard, self._patience_s = self._listened, 0, self._silence_s
        else:
            self._check_silence()
        return pieces

    def _receive(self, timeout_s: float) -> bool:
        """Read what comes within ``timeout_s``, then what lies in the socket; tell whether anything came."""
        received = size = self._receive_once(self._splitter.space(), timeout_s)
        # A server that has sent all it had ends a record of TLS with each transaction: a read gives no more.
        with suppress(LinkLostError):  # the next read meets it again, once what has come was split
            while size and received < _ENOUGH and (space := self._splitter.space()):
                size = self._receive_once(space, 0.0)
                received += size
        self._unheard += received
        return bool(received)

    def _receive_once(self, space: memoryview, timeout_s: float) -> int:
        size = self._wire.receive_into(space, timeout_s)
        self._splitter.filled(size)
        return size

    def _check_silence(self) -> None:
        silent_s = time.monotonic() - self._heard
        if silent_s > self._patience_s:
            raise LinkLostError(
                f"{self._connection.address}: nothing arrived for {silent_s:.0f} s, not even a heartbeat"
            )


def _register(
    connection: MysqlConnection,
    replica: ReplicaIdentity,
    heartbeat_s: float,
    gtid_state: str | None,
    *,
    semi_sync: bool,
) -> None:
    """Say who we are and what we understand."""
    variables: dict[str, str | int] = {
        "master_binlog_checksum": "CRC32",
        "master_heartbeat_period": round(heartbeat_s * 1e9),
        "slave_uuid": replica.uuid,
    }
    if connection.flavour is Flavour.MARIADB:
        variables["mariadb_slave_capability"] = 4
        if gtid_state is not None:
            variables["slave_connect_state"] = gtid_state
            variables["slave_gtid_strict_mode"] = 1
            variables["slave_gtid_ignore_duplicates"] = 0
    else:
        variables["source_binlog_checksum"] = "CRC32"
        variables["source_heartbeat_period"] = variables["master_heartbeat_period"]
        variables["replica_uuid"] = replica.uuid
    if semi_sync:
        variables |= dict.fromkeys(REPLICA_VARIABLES, 1)
    assignments = ["SESSION net_write_timeout = %s", *(f"@{name} = %s" for name in variables)]
    write_timeout = max(WRITE_TIMEOUT_S, connection.number("net_write_timeout") or 0)
    values = [write_timeout, *variables.values()]
    connection.query(f"SET {', '.join(assignments)}", values, doing="agree on a dump")
    name = replica.name.encode()[:59]
    payload = struct.pack("<IB", replica.server_id, len(name)) + name + b"\0\0" + struct.pack("<HII", 0, 0, 0)
    connection.send_and_expect_ok(COMMAND.COM_REGISTER_SLAVE, payload, "register as a replica")


def _flags(connection: MysqlConnection, *, wait: bool) -> int:
    known = _ANNOTATE_ROWS if connection.flavour is Flavour.MARIADB else _HEARTBEAT_V2
    return known | (0 if wait else _NON_BLOCKING)


def _name(log_file: str) -> bytes:
    return log_file.encode("utf-8", "surrogateescape")
