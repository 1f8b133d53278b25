r"""The text of hostile logs, executed by real clients: they run nothing but what was in the log.

Whoever may write a log wants a client to run a command of its own, or SQL that the log has in comments. Each
log has statements made of fragments that lexers take for different things, then canaries: comments and
strings with commands in them. The clients run with ``--force``, so that no error protects anybody, and talk
to a server that keeps what they ask for.

``CLIENTS`` holds more programs than the tests find by themselves, separated by blanks; a program's name
begins with that of its kind, ``mysql`` or ``mariadb``.
"""

import io
import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.binlog.columns.charsets import collation_of_charset
from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    AnnotateRowsEvent,
    QueryEvent,
    RowsQueryLogEvent,
    StatusVariables,
    UserVarEvent,
)
from millrace.binlog.events.query import SessionCharset
from millrace.binlog.types import SqlMode
from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput
from millrace.binlog_command.records import LogDecoder
from millrace.binlog_command.text import TextOptions, TextOutput
from millrace.local.artifacts import fetch
from tests.debian import unpacked
from tests.unit.binlog_command.made_logs import MadeLog

from .mysql_server import COM_QUERY, COM_QUIT, MysqlServer, Peer

SHELL = "touch shell_canary"
QUOTES = ("'", '"', "`")
CONTROLS = tuple(map(chr, (*range(32), 0x7F)))
KNOWN = (
    *(f"create table v.t(a int) --{sign}{quote}" for sign in (*CONTROLS, "\xa0") for quote in QUOTES),
    *(
        f"create table v.t(a int) {begin}{quote}{end}"
        for begin, end in (
            *(("/*M!999999 ", " */"), ("/*!999999 ", " */"), ("/*!99999 ", " */"), ("/*M!100 ", " */")),
            *(
                ("/*+ ", " */"),
                ("/* ", " */"),
                ("/*/ ", " */"),
                ("/*! /* ", " */ */"),
                ("# ", "\n"),
                ("-- ", "\n"),
            ),
            *(
                ("$$ ", " $$"),
                ("$a$", "$a$"),
                ("\\", ""),
                ("", ""),
                ("--", ""),
                ("--- ", "\n"),
                ("a\x00", ""),
            ),
        )
        for quote in QUOTES
    ),
    *(f"select {quote}\\{quote} , {quote}" for quote in QUOTES),
    *(f"select {quote}a\\\\{quote}" for quote in QUOTES),
    *(f"select 1 {word} ;\n\\! {SHELL}\n" for word in ("delimiter", "DELIMITER", "xdelimiter", "dëlimiter")),
    *(
        f"{begin}{word} {SHELL}"
        for begin in ("", "\n", "/* */ ", "# \n")
        for word in ("system", "\\!", "SYSTEM")
    ),
    *(f"{word}" for word in ("quit", "exit", "notee", "help", "\\q", "?", "\\r", "clear", "go")),
)
"""Statements as they were found, with their siblings."""

FRAGMENTS = (
    *QUOTES, "\\", "\\\\", "--", "-- ", "--\x01", "#", "/*", "*/", "/*!", "/*!99999 ", "/*M!999999 ", "/*+ ",
    "\n", "\r\n", "\r", "\x00", "\x7f", "$$", "$a$", " ", ";", "a", "delimiter ", "system ", "\\N", "''",
    "/*!*/;", "/*1*/;", "/*!\\C gbk */", "select ", "é", "\udce9", "\udcbf", "\udc81", "\udc8f", "\udcbf\\",
    "\udc95`", "\udca0",
)  # fmt: skip
COMMANDS = f"\\! {SHELL}\nsystem {SHELL}\nDELIMITER |\nCREATE DATABASE sql_canary|\nDELIMITER ;\n"
CANARIES = tuple(f"DO 0 /* {quote} \n{COMMANDS} */" for quote in QUOTES)
CHARSETS = ("utf8mb4", "latin1", "gbk", "sjis", "big5", "cp932", "ujis", "gb18030")
MODES = (0, int(SqlMode.ANSI_QUOTES), int(SqlMode.NO_BACKSLASH_ESCAPES), None)


def variables(charset: str | None, mode: int | None, time_zone: str | None = None) -> StatusVariables:
    number = None if charset is None else collation_of_charset(charset)
    return StatusVariables(
        sql_mode=mode,
        charset=None if number is None else SessionCharset(number, number, number),
        time_zone=time_zone,
    )


def query(
    text: str,
    charset: str | None = "utf8mb4",
    mode: int | None = 0,
    database: str = "",
    zone: str | None = None,
) -> QueryEvent:
    data = text.encode("utf-8", "surrogateescape")
    return QueryEvent(9, 0, 0, variables(charset, mode, zone), database, data)


def named(name: str) -> list[Event]:
    """Events that have a name of a user's making."""
    return [
        query("DO 1", database=name),
        query("DO 2", database=name, charset="gbk"),
        UserVarEvent(name, 0, 0, 45, b"x", 0),
        query("DO 3", zone=name[:60]),
        query("DO 4", mode=int(SqlMode.NO_BACKSLASH_ESCAPES), zone=name[:59]),
        RowsQueryLogEvent(0, name.encode("utf-8", "surrogateescape")),
        AnnotateRowsEvent(name.encode("utf-8", "surrogateescape")),
    ]


def hostile(chosen: random.Random) -> Iterator[Event]:
    """Events without an end, made at random."""
    while True:
        text = "".join(chosen.choices(FRAGMENTS, k=chosen.randrange(1, 7)))
        kind = chosen.randrange(5)
        if kind == 0:
            yield chosen.choice(named(text))
        else:
            text = chosen.choice(("", "DO 1 ", "select ", "create table v.t (a int) ")) + text
            yield query(text, chosen.choice(CHARSETS), chosen.choice(MODES))


def log_of(events: list[Event], version: str) -> MadeLog:
    """Write a log in which canaries follow each event, and a sentinel all of them."""
    log = MadeLog(version)
    for event in events:
        log.add(event)
        for canary in CANARIES:
            log.add(query(canary))
    return log.add(query("CREATE DATABASE sentinel"))


def text_of(log: MadeLog, *, flashback: bool = False) -> bytes:
    stream = io.BytesIO()
    output = (
        FlashbackOutput(stream, FlashbackOptions(verbose=2, force=True))
        if flashback
        else TextOutput(stream, TextOptions(verbose=2, skip_gtids=True))
    )
    for record in LogDecoder().records([log.raw()]):
        output.write(record)
    output.close()
    return stream.getvalue()


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All clients at hand: the local stack's, Debian's, those on PATH, and those that are named."""
    found = [fetch("mariadb") / "bin" / "mariadb"]
    debian = unpacked(tmp_path_factory.mktemp("clients") / "debian", "mariadb-client-core")
    if debian is not None:
        found.append(debian / "usr" / "bin" / "mariadb")
    found += [Path(path) for name in ("mysql", "mariadb") if (path := shutil.which(name))]
    return [*found, *map(Path, os.environ.get("CLIENTS", "").split())]


class Recorder(MysqlServer):
    """A server that does nothing, and keeps what it is asked to do."""

    status = 2

    def __init__(self, dollar_quotes: int) -> None:
        super().__init__()
        self.queries: list[bytes] = []
        self._dollar_quotes = dollar_quotes

    def command(self, peer: Peer, code: int, body: bytes) -> None:
        if code == COM_QUIT:
            raise ConnectionError
        if code == COM_QUERY and body == b"select $$":
            peer.error(self._dollar_quotes, "no")  # by which clients find out whether these are quotes
            return
        if code == COM_QUERY and b"version_comment" in body:
            peer.error(1193, "no")
            return
        if found := re.fullmatch(rb"SET @@session.sql_mode=(\d+).*", body):
            plain = int(found[1]) & SqlMode.NO_BACKSLASH_ESCAPES
            self.status = 2 | (0x200 if plain else 0)
        if code == COM_QUERY:
            self.queries.append(body)
        peer.send(b"\0\0\0" + self.status.to_bytes(2, "little") + b"\0\0")


@pytest.fixture(params=[1054, 1064], ids=["MySQL 8", "MySQL 9"])
def server(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    with Recorder(request.param) as running:
        yield running


def run(client: Path, server: Recorder, text: bytes, folder: Path) -> list[str]:
    """Execute a text; return what came of it that should not."""
    canary = folder / "shell_canary"
    canary.unlink(missing_ok=True)
    server.queries.clear()
    no_tls = "--ssl-mode=DISABLED" if client.name.startswith("mysql") else "--skip-ssl"
    command = [
        client,
        "--no-defaults",
        "--force",
        "--user=root",
        "--host=127.0.0.1",
        "--protocol=tcp",
        no_tls,
    ]
    done = subprocess.run(
        [*command, f"--port={server.port}"],
        input=text,
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=120,
    )
    wrong = ["shell"] if canary.exists() else []
    wrong += ["sql"] if any(each.strip() == b"CREATE DATABASE sql_canary" for each in server.queries) else []
    if not any(each.strip() == b"CREATE DATABASE sentinel" for each in server.queries):
        wrong.append(f"stopped: {done.stderr[-300:]!r}")
    return wrong


def check(events: list[Event], clients: list[Path], server: Recorder, folder: Path) -> None:
    """Execute a log by all clients; where something is wrong, say by which event."""
    for client, version in itertools.product(clients, ("8.0.30", "11.4.5-MariaDB")):
        guilty = events
        while wrong := run(client, server, text_of(log_of(guilty, version)), folder):
            half = len(guilty) // 2
            if not half:
                raise AssertionError((client, wrong, guilty))
            first, second = guilty[:half], guilty[half:]
            guilty = first if run(client, server, text_of(log_of(first, version)), folder) else second


def test_statements_that_lexers_read_differently(
    server: Recorder, clients: list[Path], tmp_path: Path
) -> None:
    events: list[Event] = [query(text) for text in KNOWN]
    events += [query(text, mode=mode) for text in KNOWN[:: len(KNOWN) // 20] for mode in MODES[1:]]
    check(events, clients, server, tmp_path)


def test_names_and_comments(server: Recorder, clients: list[Path], tmp_path: Path) -> None:
    names = [f"x{sign}{quote}\n\\! {SHELL}\n" for sign in ("", "\\", "\x00", "\udc95") for quote in QUOTES]
    names += [f"x{quote}/*!*/;\nsystem {SHELL}\n" for quote in QUOTES]
    check([event for name in names for event in named(name)], clients, server, tmp_path)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_what_is_made_at_random(seed: int, server: Recorder, clients: list[Path], tmp_path: Path) -> None:
    events = hostile(random.Random(seed))
    check([next(events) for _ in range(150)], clients, server, tmp_path)


def test_flashback(server: Recorder, clients: list[Path], tmp_path: Path) -> None:
    log = log_of([query(text) for text in KNOWN], "8.0.30")
    text = text_of(log, flashback=True).replace(
        b"DELIMITER ;\n", b"CREATE DATABASE sentinel/*!*/;\nDELIMITER ;\n"
    )
    for client in clients:
        assert run(client, server, text, tmp_path) == []
