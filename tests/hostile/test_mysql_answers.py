"""A server that lets in and then answers as none should: one line, code 3, bounded memory, and an end."""

import struct
from collections.abc import Callable

import pytest

from .commands import Commands
from .mysql_server import MysqlServer, Peer, event, lenenc, text

Step = Callable[..., None]
Refused = Callable[..., None]
NOT_MYSQL = "what it sends is not what MySQL's protocol has there"


@pytest.fixture
def refused(commands: Commands) -> Refused:
    """Reads a server's log with ``millrace binlog``, which must give up with these words."""

    def check(server: MysqlServer, *words: str) -> None:
        with server:
            commands.run("binlog", "--json", server.url(), settings={}).says(3, *words)

    return check


# -- results ----------------------------------------------------------------------------------------


def columns(count: int, *, sent: int | None = None) -> Step:
    """Announce a result of so many columns, and send them."""

    def answer(self: MysqlServer, peer: Peer) -> None:
        peer.send(lenenc(count))
        for number in range(count if sent is None else sent):
            peer.send(
                text("def")
                + text("") * 3
                + text(f"c{number}") * 2
                + b"\x0c"
                + struct.pack("<HIBHBxx", 45, 4, 253, 0, 0)
            )
        peer.end()
        self.silent()

    return answer


def rows(
    *values: str | bytes | None, names: tuple[str, ...] = ("Log_name", "File_size"), count: int = -1
) -> Step:
    """Send the same row repeatedly, forever unless told how often."""

    def answer(self: MysqlServer, peer: Peer) -> None:
        peer.columns(names)
        left = count
        while left:
            peer.row(*values)
            left -= 1
        peer.end()

    return answer


def raw_row(data: bytes) -> Step:
    """Send a row of these bytes."""

    def answer(self: MysqlServer, peer: Peer) -> None:
        peer.columns(("Log_name", "File_size"))
        peer.send(data)
        peer.end()

    return answer


def a_row_without_end(self: MysqlServer, peer: Peer) -> None:
    peer.columns(("Log_name", "File_size"))
    self.flood(peer)


def a_large_description(self: MysqlServer, peer: Peer) -> None:
    peer.send(lenenc(2))
    peer.send(text("def") + text("x" * 1_000_000))
    self.silent()


def a_file_of_ours(self: MysqlServer, peer: Peer) -> None:
    peer.send(b"\xfb/etc/passwd")
    peer.read()
    peer.ok()


def hang_up(self: MysqlServer, peer: Peer) -> None:
    peer.send(lenenc(2))
    raise ConnectionError


def an_error_that_goes_on(self: MysqlServer, peer: Peer) -> None:
    peer.error(1227, "\x1b[1A\x1b[2Kneed the REPLICATION CLIENT privilege\r\n")


@pytest.mark.parametrize(
    ("binary_logs", "words"),
    [
        (a_file_of_ours, "it asks for a file of this machine (LOAD DATA LOCAL)"),
        (columns(1 << 60, sent=1), f"it announces a result of {1 << 60} columns"),
        (columns(1_000_000, sent=10), "it announces a result of 1000000 columns"),
        (columns(4096, sent=4095), "cannot list the binary logs: "),
        (a_large_description, "it sends a packet that is too large, in answer to: list the binary logs"),
        (
            rows("mysql-bin.000001", "4735"),
            "cannot list the binary logs: its answer is larger than any can be",
        ),
        (rows("x" * 100_000, "y" * 100_000), "its answer is larger than any can be"),
        (rows(None, None), "its answer is larger than any can be"),
        (a_row_without_end, "it sends a packet that is too large, in answer to: list the binary logs"),
        (rows("😀" * 3_000_000, "1"), "its answer is larger than any can be"),
        (
            an_error_that_goes_on,
            r"GRANT REPLICATION CLIENT ON *.* TO 'millrace'@'%' (error 1227: \x1b[1A\x1b[2Kneed",
        ),
        (rows("mysql-bin.000001", "many", count=1), "its answer has 'many' as File_size, expected a number"),
        (rows("1", "2", names=("a", "b"), count=1), "its answer has no column Log_name"),
        (raw_row(text("mysql-bin.000001")), NOT_MYSQL),
        (raw_row(text("mysql-bin.000001") + text("1") + b"more"), NOT_MYSQL),
        (raw_row(b"\xfe" + b"\xff" * 8), NOT_MYSQL),
        (raw_row(text(b"\xff\xfe") + text("1")), NOT_MYSQL),
        (raw_row(b""), NOT_MYSQL),
        (rows("mysql-bin.000001", "1", count=0), "the server has no binary log"),
        (hang_up, "the connection was lost (the server closed it)"),
        (lambda self, peer: peer.send(b"\1", sequence=77), NOT_MYSQL),
    ],
)
def test_results(binary_logs: Step, words: str, refused: Refused) -> None:
    refused(MysqlServer(binary_logs=binary_logs), words)


def test_a_further_result(refused: Refused) -> None:
    """Of a statement that has one; to read them all might take forever."""

    def query(self: MysqlServer, peer: Peer, sql: str) -> None:
        peer.columns(("Variable_name", "Value"))
        peer.row("version", "8.0.15")
        peer.send(b"\xfe\0\0\x0a\0")

    refused(MysqlServer(query=query), "it announces a second result for a statement that has one")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../precious.txt", "'../precious.txt'"),
        ("/etc/passwd", "'/etc/passwd'"),
        ("..\\precious.txt", r"'..\\precious.txt'"),
        ("bin\0.000001", r"'bin\x00.000001'"),
        ("bin.\x1b[2J", r"'bin.\x1b[2J'"),
        ("bin\n000001", r"'bin\n000001'"),
        ("", "''"),
        (".", "'.'"),
        ("..", "'..'"),
        ("b" * 513, "as the name of a log file is longer than 512 bytes"),
    ],
)
def test_names_of_logs(name: str, shown: str, refused: Refused) -> None:
    refused(MysqlServer(binary_logs=rows(name, "4735", count=1)), shown, "as the name of a log file")

    def rotate_elsewhere(self: MysqlServer, peer: Peer, wait: bool) -> None:
        self.rotate(peer, name.encode())
        self.silent()

    said = () if not name else (shown, "a ROTATE event of the server")
    refused(MysqlServer(dump=rotate_elsewhere), *said)


def test_as_many_logs_as_any_server_has(commands: Commands) -> None:
    """A hundred thousand files are no attack."""
    server = MysqlServer(binary_logs=rows("mysql-bin.000001", "4735", count=100_000))
    with server:
        done = commands.run("binlog", "--json", server.url(), settings={})
    assert (done.code, done.errors) == (0, "")
    done.is_well()


# -- the dump ---------------------------------------------------------------------------------------


def dump(*payloads: bytes, sequence: int | None = None) -> Step:
    """Send these payloads after the ROTATE that names the file, and then nothing."""

    def answer(self: MysqlServer, peer: Peer, wait: bool) -> None:
        self.rotate(peer)
        for payload in payloads:
            peer.send(payload, sequence=sequence)
        self.silent()

    return answer


def rotate_to(position: int) -> bytes:
    return b"\0" + event(4, struct.pack("<Q", position) + b"mysql-bin.000001", flags=0x20)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (dump(b"\0abc"), "an event of 3 bytes came, and the header alone has 19"),
        (dump(b"\0"), "an event of 0 bytes came"),
        (dump(b""), "an event of 0 bytes came"),
        (
            dump(b"\x07what?"),
            "a packet of the dump starts with 0x07, which means neither event, error nor end",
        ),
        (dump(b"\xff"), "a packet of the dump starts with 0xff"),
        (dump(b"\0" + event(30, b"x" * 50), sequence=99), "packet number 99 arrived, expected number 2"),
        (dump(b"\0" + event(4, b"\4\0\0\0\0\0\0\0", flags=0x20)), "a ROTATE event of 31 bytes names no file"),
        (dump(rotate_to((1 << 64) - 1)), f"the server names the position {(1 << 64) - 1}, which no file has"),
        (
            dump(b"\xff\xd4\4#HY000\x1b]0;owned\x07Could not find first log file name"),
            r"(error 1236: \x1b]0;owned\x07Could not find first log file name)",
        ),
    ],
)
def test_dumps(answer: Step, words: str, refused: Refused) -> None:
    refused(MysqlServer(dump=answer), words)
