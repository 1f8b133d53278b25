"""A dump read from a socket: what comes at once, what comes late, what does not come."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from millrace.mysql import identity
from millrace.mysql import server_log as server
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import LinkLostError, PurgedError, RefusedError
from millrace.mysql.packets import DumpEnd
from millrace.mysql.server_log import ServerLog
from millrace.mysql.wire import Wire

Sockets = tuple[socket.socket, socket.socket]


def event(size: int) -> bytes:
    return struct.pack("<IBIIIH", 1, 30, 1, size, 0, 0) + b"x" * (size - 19)


def packet(sequence: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload) | sequence << 24) + payload


def dump_of(ours: socket.socket, silence_s: float = 60, capacity: int = 4096, **options: bool) -> Dump:
    connection = SimpleNamespace(wire=Wire(ours, "db:3306"), address=MysqlAddress("db", user="reader"))
    return Dump(cast("MysqlConnection", connection), silence_s, capacity, **options)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pair(sockets: Sockets) -> tuple[socket.socket, Dump]:
    ours, theirs = sockets
    return theirs, dump_of(ours)


def test_events_come_byte_by_byte(pair: tuple[socket.socket, Dump]) -> None:
    server, dump = pair
    data = packet(1, b"\0" + event(30)) + packet(2, b"\0" + event(40))
    found = []
    for byte in data:
        server.sendall(bytes([byte]))
        found += [piece.data for piece in dump.read(0)]
    assert found == [event(30), event(40)]


def test_what_lies_in_records_of_tls_is_read_at_once() -> None:
    """A read gives one record at most, as of a socket that keeps messages apart."""
    ours, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, server:
        dump = dump_of(ours, 60, 100)
        for sequence in (1, 2):
            server.sendall(packet(sequence, b"\0" + event(30)))
        rest = packet(3, b"\0" + event(40))
        server.sendall(rest[:30])  # the buffer is full, and its last event not whole
        assert [piece.data for piece in dump.read(1)] == [event(30), event(30)]
        server.sendall(rest[30:])
        assert [piece.data for piece in dump.read(1)] == [event(40)]


def test_nothing_to_read(pair: tuple[socket.socket, Dump]) -> None:
    _, dump = pair
    assert dump.read(0) == []
    assert dump.read(0.01) == []


def test_what_was_sent_before_an_error_is_read_before_it(pair: tuple[socket.socket, Dump]) -> None:
    server, dump = pair
    error = (
        b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find first log file name in binary log index"
    )
    server.sendall(packet(1, b"\0" + event(30)) + packet(2, error))
    assert len(dump.read(1)) == 1
    with pytest.raises(PurgedError, match="db:3306"):
        dump.read(1)


@pytest.mark.parametrize(
    ("wait", "error", "words"),
    [(False, DumpEnd, "^$"), (True, LinkLostError, r"^db:3306: the server ended the dump$")],
)
def test_the_end_of_a_dump(wait: bool, error: type[Exception], words: str, sockets: Sockets) -> None:
    ours, server = sockets
    dump = dump_of(ours, wait=wait)
    server.sendall(packet(1, b"\xfe\0\0\2\0"))
    with pytest.raises(error, match=words):
        dump.read(1)


def test_a_closed_connection(pair: tuple[socket.socket, Dump]) -> None:
    server, dump = pair
    server.sendall(packet(1, b"\0" + event(30)))
    server.close()
    assert len(dump.read(1)) == 1
    with pytest.raises(LinkLostError, match=r"^db:3306: the server closed the connection$"):
        dump.read(1)


def test_silence_is_a_dead_link(sockets: Sockets) -> None:
    ours, server = sockets
    dump = dump_of(ours, 0.05)
    server.sendall(packet(1, b"\0" + event(30)))
    assert len(dump.read(1)) == 1
    with pytest.raises(LinkLostError, match=r"^db:3306: nothing arrived for \d+ s, not even a heartbeat$"):
        [dump.read(0.05) for _ in range(100)]


def test_only_a_search_for_gtids_may_begin_with_silence(sockets: Sockets) -> None:
    ours, _ = sockets
    searched = dump_of(ours, 0.05, seeks=True)
    assert [searched.read(0.05) for _ in range(10)] == [[]] * 10
    placed = dump_of(ours, 0.05)
    with pytest.raises(LinkLostError, match="not even a heartbeat"):
        [placed.read(0.05) for _ in range(100)]


def test_bytes_that_drip_are_no_sign_of_life(sockets: Sockets) -> None:
    """A part of an event that never becomes one; a heartbeat's worth of bytes at a time."""
    ours, server = sockets
    dump = dump_of(ours, 0.05, 1 << 20)
    server.sendall(packet(1, b"\0" + event(50_000))[:100])
    with pytest.raises(LinkLostError, match="not even a heartbeat"):
        [dump.read(0.05) for _ in range(100) if server.send(b"x")]


def test_a_server_is_not_silent_while_nobody_listens(sockets: Sockets) -> None:
    """Kafka may make us wait for minutes; what comes first then may be a part of an event."""
    ours, server = sockets
    dump = dump_of(ours, 0.05)
    whole = packet(1, b"\0" + event(30))
    server.sendall(whole[:10])
    assert dump.read(0) == []
    time.sleep(0.5)
    assert dump.read(0) == []
    server.sendall(whole[10:])
    assert [piece.data for piece in dump.read(1)] == [event(30)]


def test_a_connection_that_is_reset(pair: tuple[socket.socket, Dump]) -> None:
    server, dump = pair
    server.close()
    with pytest.raises(LinkLostError) as caught:
        dump.acknowledge("bin.000001", 4)
    assert str(caught.value) == "db:3306: the connection was lost (Broken pipe)"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as ours:
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with pytest.raises(LinkLostError) as caught:
            dump_of(ours, 0.05).read(1)
    assert str(caught.value) == "db:3306: the connection was lost (Connection reset by peer)"


SERVER = cast(
    "MysqlConnection",
    SimpleNamespace(flavour=Flavour.MYSQL, address=MysqlAddress("db"), query=lambda *_, **__: []),
)
"""A server of MySQL that lists no logs."""


REPLICA = ReplicaIdentity(7, "a-b", "millrace")


def test_a_position_that_no_dump_begins_at() -> None:
    for position in (3, 1 << 32):
        with pytest.raises(
            ValueError, match=f"^position {position} does not fit a dump by file and position$"
        ):
            Dump.at_position(SERVER, REPLICA, "bin.000001", position)


def test_a_log_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has made the file, and has not written its head yet."""

    class Empty:
        def read(self, _timeout_s: float) -> NoReturn:
            raise DumpEnd

    monkeypatch.setattr(identity, "MysqlConnection", lambda *_: nullcontext())
    monkeypatch.setattr(identity.Dump, "at_position", lambda *_, **__: Empty())
    with pytest.raises(LinkLostError) as caught:
        identity.read_head(MysqlAddress("db"), REPLICA, "bin.000002")
    assert str(caught.value) == "db:3306: bin.000002 has no format description yet"


def test_a_server_that_lists_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MysqlConnection", lambda _: nullcontext(SERVER))
    with pytest.raises(RefusedError, match=r"^db:3306: the server has no binary log$"):
        ServerLog(MysqlAddress("db")).binary_logs()
