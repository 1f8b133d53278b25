"""Waits for a server have limits, and end when whoever waits is told to stop."""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millrace.mysql import wire as wires
from millrace.mysql.address import MysqlAddress
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.errors import LinkLostError, ProtocolError, UnreachableError
from millrace.mysql.wire import Wire
from tests.hostile.mysql_server import MysqlServer, Peer, nobody_accepts


class Stop(Exception):  # noqa: N818 - no error
    """What a sign of life raises in a process that was told to stop."""


def stopping_after(calls: int) -> Callable[[], None]:
    left = iter(range(calls))

    def beat() -> None:
        if next(left, None) is None:
            raise Stop

    return beat


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "_STEP_S", 0.02)


def test_a_server_that_does_not_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """Such as one that takes no acknowledgements."""
    wire = Wire(pair[0], "db:3306")
    wire.doing = "acknowledge what was read"
    wire.begin(60, 0.2)
    with pytest.raises(LinkLostError) as caught:
        wire.sendall(bytes(50_000_000))
    assert str(caught.value) == "db:3306: cannot acknowledge what was read: no answer for 0.2 s"
    stopped = Wire(pair[0], "db:3306", stopping_after(3))
    stopped.begin(60, 60)
    with pytest.raises(Stop) as stop:
        stopped.sendall(bytes(50_000_000))
    assert stopped.interrupted is stop.value


def test_what_can_be_sent_at_once_is(pair: tuple[socket.socket, socket.socket]) -> None:
    """The last acknowledgement of a reader that stops: commits on the server wait for it."""
    wire = Wire(pair[0], "db:3306", stopping_after(0))
    wire.begin(60, 60)
    wire.sendall(b"acknowledged")
    assert pair[1].recv(100) == b"acknowledged"


def test_a_server_that_drips(pair: tuple[socket.socket, socket.socket]) -> None:
    """It is never silent for long, and comes to no end."""
    ours, theirs = pair
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.01):
            theirs.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    wire = Wire(ours, "db:3306")
    wire.doing, wire.allowance = "ask for version", 1 << 20
    wire.begin(0.5, 0.4)
    with pytest.raises(LinkLostError) as caught:
        wire.read(1 << 20)
    over.set()
    thread.join()
    assert str(caught.value) == "db:3306: cannot ask for version: the answer did not end within 0.5 s"


def test_what_was_read_ahead_comes_first(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abcdefgh")
    wire = Wire(ours, "db:3306")
    wire.allowance = 100
    assert wire.read(3) == b"abc"
    space = memoryview(bytearray(3))
    assert wire.receive_into(space, 1) == 3
    assert bytes(space) == b"def"
    assert wire.receive_into(space, 1) == 2
    assert bytes(space[:2]) == b"gh"
    assert wire.receive_into(space, 0) == 0
    with pytest.raises(ProtocolError, match="a packet that is too large"):
        wire.read(98)


def test_a_name_that_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's look-up cannot be limited; whoever waits for it can."""
    over = threading.Event()
    monkeypatch.setattr(wires.socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    address = MysqlAddress("db", connect_timeout_s=0.2)
    with pytest.raises(UnreachableError) as caught:
        MysqlConnection(address)
    assert str(caught.value) == (
        "db:3306: its name was not resolved within 0.2 s; look at the machine's name servers"
    )
    with pytest.raises(Stop):
        MysqlConnection(MysqlAddress("db", connect_timeout_s=60), stopping_after(3))
    over.set()


def test_a_host_of_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that takes the connection is used; those that do not answer share the time."""
    with nobody_accepts() as silent, socket.socket() as closed, MysqlServer() as server:
        closed.bind(("127.0.0.1", 0))
        places = [silent, closed.getsockname(), ("127.0.0.1", server.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]
        monkeypatch.setattr(wires.socket, "getaddrinfo", lambda *_, **__: found)
        MysqlConnection(MysqlAddress("db", connect_timeout_s=3)).close()
        monkeypatch.setattr(wires.socket, "getaddrinfo", lambda *_, **__: found[:2])
        with pytest.raises(UnreachableError, match=r"^db:3306: cannot connect \(Connection refused\)"):
            MysqlConnection(MysqlAddress("db", connect_timeout_s=0.5))


def test_unix_sockets(tmp_path: Path) -> None:
    address = MysqlAddress(unix_socket=str(tmp_path / "no.sock"), connect_timeout_s=0.3)
    with pytest.raises(UnreachableError, match=r"no\.sock: cannot connect \(No such file or directory\)"):
        MysqlConnection(address)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(address.unix_socket or "")
        listener.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(address.unix_socket or "")
        with pytest.raises(UnreachableError, match=r"no\.sock: no answer within 0\.3 s"):
            MysqlConnection(address)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda self, peer, sql: self.silent(), "cannot look: no answer for 0.2 s"),
        (lambda self, peer, sql: self.drip(peer), "cannot look: "),
        (lambda self, peer, sql: rows_that_drip(self, peer), "cannot look: its answer does not end"),
    ],
    ids=["silence", "bytes", "rows"],
)
def test_answers_have_an_end(answer: Callable[[MysqlServer, Peer, str], None], words: str) -> None:
    with MysqlServer() as server:
        address = MysqlAddress("127.0.0.1", server.port, "u", "p")
        with MysqlConnection(address) as connection:
            server.query = answer.__get__(server)  # type: ignore[attr-defined, method-assign]
            connection._client.total_s, connection._client.silence_s = 0.6, 0.2
            with pytest.raises((LinkLostError, ProtocolError), match=words):
                connection.query("SELECT 1", doing="look")


def rows_that_drip(server: MysqlServer, peer: Peer) -> None:
    peer.columns(("a",))
    while not server.ended.wait(0.1):
        peer.row("x")


def test_it_stops_between_the_blocks_of_a_flood() -> None:
    """A server that never pauses is not waited for; a sign of life is shown all the same."""
    stop = threading.Event()

    def beat() -> None:
        if stop.is_set():
            raise Stop

    with MysqlServer() as server:
        address = MysqlAddress("127.0.0.1", server.port, "u", "p")
        with MysqlConnection(address, beat) as connection:
            server.query = endless_rows.__get__(server)  # type: ignore[attr-defined, method-assign]
            rows = connection.rows("SELECT 1", doing="look")
            next(rows)
            stop.set()
            with pytest.raises(Stop):
                deque(rows, maxlen=0)


def test_an_answer_that_is_too_large_is_read_no_further() -> None:
    with MysqlServer() as server:
        address = MysqlAddress("127.0.0.1", server.port, "u", "p")
        with MysqlConnection(address) as connection:
            server.query = endless_rows.__get__(server)  # type: ignore[attr-defined, method-assign]
            with pytest.raises(ProtocolError, match="its answer is larger than any can be") as caught:
                connection.query("SELECT 1", doing="look")
            assert caught.tb is not None  # and with it what the query had
            with pytest.raises(LinkLostError, match="the connection is closed"):
                connection.query("SELECT 1", doing="look")


def test_a_result_that_nobody_wants_is_read_no_further() -> None:
    """PyMySQL reads on when it is collected, whatever has become of the connection."""
    with MysqlServer() as server:
        with MysqlConnection(MysqlAddress("127.0.0.1", server.port, "u", "p")) as connection:
            server.query = endless_rows.__get__(server)  # type: ignore[attr-defined, method-assign]
            result = connection._client.stream("SELECT 1")
        result.__del__()


def endless_rows(server: MysqlServer, peer: Peer, sql: str) -> None:
    peer.columns(("a",))
    while True:
        peer.row("x" * 1000)
