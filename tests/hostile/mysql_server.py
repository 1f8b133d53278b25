"""A scripted MySQL server on loopback: it behaves, except where a test makes it misbehave.

As it stands it is a MySQL 8.0.15 without TLS that lets everybody in, answers what Millrace asks, and serves
one small real log. A case replaces one of its steps (``greet``, ``authenticate``, ``query``, ``register``,
``dump``, …) by a function: ``MysqlServer(query=flood)``. A step talks through its :class:`Peer`, the
connection, which numbers packets by itself unless told otherwise.

All that clients send is kept in ``received``, and ``reached`` tells a test that a step has come.
"""

import contextlib
import re
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["LOG", "MysqlServer", "Peer", "event", "lenenc", "nobody_accepts", "text"]

LOG = Path(__file__).parents[1] / "unit" / "binlog_command" / "logs" / "mysql.000001"

COM_QUIT, COM_QUERY, COM_PING = 1, 3, 14
COM_REGISTER, COM_DUMP, COM_DUMP_GTID = 0x15, 0x12, 0x1E

SSL = 0x800
EVERYTHING = 0x81BFF7FF & ~SSL
"""What the server says it can: all but TLS."""

NATIVE, CACHING_SHA2 = b"mysql_native_password", b"caching_sha2_password"
SALT = b"0123456789abcdefghij"
ON_LOOPBACK = "127.0.0.1"

VARIABLES = {
    "version": "8.0.15",
    "version_comment": "MySQL Community Server - GPL",
    "log_bin": "ON",
    "server_id": "11",
    "server_uuid": "d808318d-e5b4-11f1-a5c4-02fc00000101",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "net_write_timeout": "60",
    "max_allowed_packet": "67108864",
    "binlog_checksum": "CRC32",
    "binlog_expire_logs_seconds": "2592000",
    "log_slave_updates": "ON",
    "gtid_purged": "",
}


def lenenc(number: int) -> bytes:
    """Write a length-encoded integer."""
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + struct.pack("<H", number)
    if number < 1 << 24:
        return b"\xfd" + struct.pack("<I", number)[:3]
    return b"\xfe" + struct.pack("<Q", number)


def text(value: str | bytes | None) -> bytes:
    """Write a value of a row, or any length-encoded text."""
    if value is None:
        return b"\xfb"
    data = value.encode() if isinstance(value, str) else value
    return lenenc(len(data)) + data


def event(type_code: int, body: bytes, *, next_position: int = 0, flags: int = 0, crc: bool = True) -> bytes:
    """Make an event of a log; ``crc`` adds its checksum."""
    size = 19 + len(body) + 4 * crc
    data = struct.pack("<IBIIIH", 1_600_000_000, type_code, 11, size, next_position, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if crc else data


@contextlib.contextmanager
def nobody_accepts() -> Iterator[Any]:
    """An address where no connection comes about: so many wait already to be accepted."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((ON_LOOPBACK, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


class Peer:
    """One connection of a client."""

    def __init__(self, link: socket.socket, received: list[bytes]) -> None:
        self.link = link
        self.sequence = 0
        self._received = received

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.link.sendall(data)

    def send(self, payload: bytes, *, sequence: int | None = None) -> None:
        """Send a packet, or several where it is too large for one."""
        number = self.sequence if sequence is None else sequence
        while True:
            part, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            self.raw(struct.pack("<I", len(part) | number << 24) + part)
            number = (number + 1) & 0xFF
            if len(part) < 0xFFFFFF:
                break
        self.sequence = number

    def read(self) -> bytes:
        """Read a packet of the client; what we send next answers it. Raises ConnectionError at the end."""
        head = self._exactly(4)
        length = int.from_bytes(head[:3], "little")
        self.sequence = (head[3] + 1) & 0xFF
        payload = self._exactly(length)
        self._received.append(payload)
        return payload

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.link.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def ok(self) -> None:
        self.send(b"\0\0\0\2\0\0\0")

    def error(self, code: int, message: str | bytes, state: bytes = b"#HY000") -> None:
        said = message.encode() if isinstance(message, str) else message
        self.send(b"\xff" + struct.pack("<H", code) + state + said)

    def end(self) -> None:
        self.send(b"\xfe\0\0\2\0")

    def columns(self, names: Sequence[str]) -> None:
        """Send the head of a result."""
        self.send(lenenc(len(names)))
        for name in names:
            rest = struct.pack("<xHIBHBxx", 45, 1024, 253, 0, 0)
            self.send(text("def") + text("") * 3 + text(name) * 2 + b"\x0c" + rest[1:])
        self.end()

    def row(self, *values: str | bytes | None) -> None:
        self.send(b"".join(map(text, values)))

    def result(self, names: Sequence[str], rows: Iterable[Sequence[str | bytes | None]]) -> None:
        """Send a whole result."""
        self.columns(names)
        for row in rows:
            self.row(*row)
        self.end()

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.link = context.wrap_socket(self.link, server_side=True)


Step = Callable[..., None]


class MysqlServer:
    """The server; a context manager that ends all its connections."""

    capabilities = EVERYTHING
    version = "8.0.15"
    plugin = NATIVE
    logs: Sequence[tuple[str, str]] = (("mysql-bin.000001", str(LOG.stat().st_size)),)

    def __init__(self, tls: ssl.SSLContext | None = None, **steps: Step) -> None:
        self.received: list[bytes] = []
        self.reached: dict[str, threading.Event] = {}
        self.variables = dict(VARIABLES)
        self.tables: Iterable[Sequence[str | None]] = [("shop", "t", "BASE TABLE", "InnoDB", None)]
        self.column_rows: Iterable[Sequence[str | None]] = ()
        self.tls = tls
        if tls is not None:
            self.capabilities = EVERYTHING | SSL
        for name, step in steps.items():
            assert hasattr(self, name), name
            setattr(self, name, step.__get__(self))
        self.ended = threading.Event()
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def environment(self) -> dict[str, str]:
        """Settings of whoever is to read from it."""
        return {
            "MILLRACE_MYSQL_HOST": ON_LOOPBACK,
            "MILLRACE_MYSQL_PORT": str(self.port),
            "MILLRACE_MYSQL_USER": "millrace",
            "MILLRACE_MYSQL_PASSWORD": "hush-hush",
        }

    def url(self, log_file: str = "", options: str = "") -> str:
        return f"mysql://millrace:hush-hush@{ON_LOOPBACK}:{self.port}/{log_file}{options}"

    def __enter__(self) -> Self:
        self._listener = socket.create_server((ON_LOOPBACK, 0))
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for link in (self._listener, *self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for link in (self._listener, *self._links):
            link.close()

    def step(self, name: str) -> threading.Event:
        """Return what is set once a step of that name has come."""
        return self.reached.setdefault(name, threading.Event())

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            self._links.append(link)
            self._start(self._serve, link)

    def _serve(self, link: socket.socket) -> None:
        peer = Peer(link, self.received)
        # The client hangs up, or the test has ended: both are as they should be.
        with contextlib.suppress(OSError):
            self.session(peer)
        if peer.link is not link:
            self._links.append(peer.link)
        with contextlib.suppress(OSError):
            peer.link.shutdown(socket.SHUT_RDWR)

    def silent(self) -> None:
        """Say nothing until the test ends."""
        self.ended.wait()
        raise ConnectionError

    def drip(self, peer: Peer) -> None:
        """Send a byte from time to time, forever."""
        while not self.ended.wait(0.2):
            peer.raw(b"\0")

    def flood(self, peer: Peer) -> None:
        """Send a packet that has no end."""
        while True:
            peer.raw(struct.pack("<I", 0xFFFFFF | peer.sequence << 24) + bytes(0xFFFFFF))
            peer.sequence = (peer.sequence + 1) & 0xFF

    # -- the steps, in their order ------------------------------------------------------------------

    def session(self, peer: Peer) -> None:
        self.step("greet").set()
        self.greet(peer)
        response = peer.read()
        if self.tls is not None and len(response) == 32:
            self.step("tls").set()
            self.start_tls(peer)
            response = peer.read()
        self.step("authenticate").set()
        self.authenticate(peer, response)
        while True:
            command = peer.read()
            self.command(peer, command[0], command[1:])

    def greeting(self) -> bytes:
        capabilities = self.capabilities
        head = b"\x0a" + self.version.encode() + b"\0" + struct.pack("<I", 7) + SALT[:8] + b"\0"
        low, high = struct.pack("<H", capabilities & 0xFFFF), struct.pack("<H", capabilities >> 16)
        return head + low + b"\x2d\2\0" + high + b"\x15" + bytes(10) + SALT[8:] + b"\0" + self.plugin + b"\0"

    def greet(self, peer: Peer) -> None:
        peer.send(self.greeting())

    def start_tls(self, peer: Peer) -> None:
        assert self.tls is not None
        peer.start_tls(self.tls)

    def authenticate(self, peer: Peer, response: bytes) -> None:
        peer.ok()

    def command(self, peer: Peer, code: int, body: bytes) -> None:
        if code == COM_QUERY and body.startswith((b"SET NAMES", b"SET AUTOCOMMIT")):
            peer.ok()
        elif code == COM_QUERY:
            self.step("query").set()
            self.query(peer, body.decode())
        elif code == COM_REGISTER:
            self.step("register").set()
            self.register(peer)
        elif code in (COM_DUMP, COM_DUMP_GTID):
            self.step("dump").set()
            wait = not struct.unpack_from("<H", body, 4 if code == COM_DUMP else 0)[0] & 1
            self.dump(peer, wait)
        elif code == COM_QUIT:
            raise ConnectionError
        else:
            peer.ok()

    def register(self, peer: Peer) -> None:
        peer.ok()

    def query(self, peer: Peer, sql: str) -> None:
        self.answer(peer, sql)

    def answer(self, peer: Peer, sql: str) -> None:
        """Answer what Millrace asks of a server that behaves."""
        sql = " ".join(sql.split())
        if sql.startswith("SHOW GLOBAL VARIABLES"):
            found = re.search(r"LIKE '(.*)'", sql)
            wanted = None if found is None else found[1].replace("\\", "")
            rows = [pair for pair in self.variables.items() if wanted in (None, pair[0])]
            peer.result(("Variable_name", "Value"), rows)
        elif sql.startswith("SHOW BINARY LOGS"):
            self.binary_logs(peer)
        elif sql.startswith(("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")):
            self.step("catalogue").set()
            self.master_status(peer)
        elif "information_schema.TABLES" in sql:
            self.catalogue_tables(peer)
        elif "information_schema.COLUMNS" in sql:
            self.catalogue_columns(peer)
        elif "COLLATION_CHARACTER_SET" in sql:
            peer.result(("collation", "charset"), [("utf8mb4_0900_ai_ci", "utf8mb4")])
        elif sql.startswith(("SELECT GET_LOCK", "SELECT RELEASE_LOCK")):
            peer.result(("1",), [("1",)])
        elif sql.startswith("SELECT @@"):
            peer.result(("value",), [("",)])
        elif sql.startswith(("SELECT", "SHOW")):
            peer.result(("nothing",), [])
        else:
            peer.ok()

    def binary_logs(self, peer: Peer) -> None:
        peer.result(("Log_name", "File_size", "Encrypted"), [(*log, "No") for log in self.logs])

    def master_status(self, peer: Peer) -> None:
        names = ("File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set")
        peer.result(names, [(*self.logs[-1], "", "", "")])

    def catalogue_tables(self, peer: Peer) -> None:
        peer.result(("database", "table", "type", "engine", "collation"), self.tables)

    def catalogue_columns(self, peer: Peer) -> None:
        names = ("database", "table", "ordinal", "name", "column_type", "nullable", "charset")
        peer.result((*names, "collation", "extra", "preset"), self.column_rows)

    def dump(self, peer: Peer, wait: bool) -> None:
        """Send the log, with a made-up ROTATE before it; then wait, or end."""
        self.rotate(peer)
        for data in self.events():
            self.event(peer, data)
        if wait:
            self.idle(peer)
        else:
            peer.end()

    def rotate(self, peer: Peer, name: bytes = b"mysql-bin.000001") -> None:
        self.event(peer, event(4, struct.pack("<Q", 4) + name, flags=0x20))

    def event(self, peer: Peer, data: bytes) -> None:
        peer.send(b"\0" + data)

    def events(self) -> Iterable[bytes]:
        """Yield the events of the log that we have."""
        log, at = LOG.read_bytes(), 4
        while at < len(log):
            size = int.from_bytes(log[at + 9 : at + 13], "little")
            yield log[at : at + size]
            at += size

    def idle(self, peer: Peer) -> None:
        """Have nothing new, and send heartbeats."""
        self.step("idle").set()
        name = self.logs[-1][0].encode()
        while not self.ended.wait(0.5):
            self.event(peer, event(27, name, next_position=int(self.logs[-1][1])))
