"""The first transaction of a time, and what lies before a place."""

import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from millrace.avro.service_state import ReaderState
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.gtid_set import GtidSet
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.errors import PurgedError
from millrace.mysql.identity import ServerNames
from millrace.mysql.status import LogFile
from millrace.reader import live
from millrace.reader.live import LiveSource
from millrace.reader.settings import ReaderSettings
from millrace.reader.start_position import (
    NoPlaceError,
    PlaceCheck,
    StartPosition,
    StartPositionFinder,
    seconds_of,
)
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import load_settings

from .logs import GTID_PREFIX, SID, Log

if TYPE_CHECKING:
    from millrace.reader.stage import RawStage


def log() -> Log:
    """Transactions 1 to 4; the third lasts from 200 to 400, and one statement has no GTID."""
    made = Log(timestamp=100)
    before = GtidSet.parse("00000000-0000-0000-0000-00000000000f:1-5")
    made.add(35, before.encode())
    made.transaction(1, 10)
    made.timestamp = 200
    made.transaction(2, 10)
    made.add(33, b"\0" + SID + struct.pack("<Q", 3) + bytes(17))
    made.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN")
    made.add(16, bytes(8), timestamp=400)
    made.timestamp = 300
    made.transaction(4, 10)
    return made


def starts(made: Log) -> list[int]:
    positions, at = [], 4
    for data in made.events:
        positions.append(at)
        at += len(data)
    return positions


def find(made: Log, since: int | None) -> tuple[StartPosition | None, StartPositionFinder]:
    finder = StartPositionFinder(since)
    for position, data in zip(starts(made), made.events, strict=True):
        place = finder.feed(made.name, position, data)
        if place is not None:
            return place, finder
    return None, finder


BEFORE = "00000000-0000-0000-0000-00000000000f:1-5"


@pytest.mark.parametrize(
    ("since", "event", "gtids"),
    [
        (50, 2, BEFORE),
        (100, 2, BEFORE),
        (101, 6, f"{GTID_PREFIX}:1,{BEFORE}"),
        (200, 6, f"{GTID_PREFIX}:1,{BEFORE}"),
        (201, 10, f"{GTID_PREFIX}:1-2,{BEFORE}"),
        (400, 10, f"{GTID_PREFIX}:1-2,{BEFORE}"),
    ],
)
def test_the_first_transaction_that_ended_then_or_later(since: int, event: int, gtids: str) -> None:
    made = log()
    place, _ = find(made, since)
    assert place is not None
    assert (place.log_file, place.position) == (made.name, starts(made)[event])
    assert place.gtid_set is not None
    assert GtidSet.parse(place.gtid_set) == GtidSet.parse(gtids)


@pytest.mark.parametrize("since", [401, None])
def test_nothing_of_that_time(since: int | None) -> None:
    place, finder = find(log(), since)
    assert place is None
    assert finder.gtid_set is not None
    assert GtidSet.parse(finder.gtid_set) == GtidSet.parse(f"{GTID_PREFIX}:1-4,{BEFORE}")


def test_a_statement_with_its_settings_and_without_a_gtid() -> None:
    made = Log(timestamp=100)
    made.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0CREATE TABLE t (i INT)")
    setting = made.add(5, bytes(9), timestamp=200)
    made.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0INSERT INTO t VALUES (1)", timestamp=200)
    place, finder = find(made, 150)
    assert place == StartPosition(made.name, setting, None)
    assert finder.gtid_set is None


GTID = (33, b"\0" + SID + struct.pack("<Q", 9) + bytes(17))
BEGIN = (2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN")
STATEMENT = (2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0INSERT INTO t VALUES (1)")
ROWS, XID = (30, bytes(20)), (16, bytes(8))


@pytest.mark.parametrize(
    ("before", "after", "begin", "whole"),
    [
        pytest.param([GTID, BEGIN, ROWS], [ROWS, XID], 0, True, id="a relay log continues with it"),
        pytest.param([GTID], [BEGIN, ROWS, XID], 0, True, id="a relay log, after the GTID"),
        pytest.param([GTID, BEGIN, ROWS], [GTID, BEGIN, ROWS, XID], 3, True, id="it comes again"),
        pytest.param([BEGIN, STATEMENT], [STATEMENT, XID], 0, False, id="without GTIDs"),
        pytest.param([BEGIN, ROWS], [BEGIN, ROWS, XID], 2, False, id="the server died in it"),
        pytest.param([GTID, BEGIN, ROWS, XID], [GTID, BEGIN, XID], 4, True, id="between two"),
    ],
)
def test_a_file_that_ends_within_a_transaction(
    before: list[tuple[int, bytes]], after: list[tuple[int, bytes]], begin: int, whole: bool
) -> None:
    made = Log(timestamp=100)
    made.add(35, struct.pack("<Q", 0))
    places = [made.add(*event) for event in before]
    made.add(4, bytes(8) + b"relay.000002")
    made.add(15, struct.pack("<H50sIB", 4, b"8.0.15", 0, 19) + bytes(42) + b"\x01")
    made.timestamp = 200
    places += [made.add(*event) for event in after]
    place, _ = find(made, 150)
    assert place is not None
    assert place.position == places[begin]
    _, finder = find(made, None)
    assert finder.gtid_set == (f"{GTID_PREFIX}:9" if whole else "")
    assert finder.open_at is None


def test_what_was_open_when_a_server_died_is_no_transaction() -> None:
    made = Log(timestamp=100)
    made.add(35, struct.pack("<Q", 0))
    made.add(*GTID)
    made.add(*BEGIN)
    made.add(15, struct.pack("<H50sIB", 4, b"8.0.15", 0, 19) + bytes(42) + b"\x01")
    made.transaction(4, 10)
    assert find(made, None)[1].gtid_set == f"{GTID_PREFIX}:4"


def test_an_event_that_is_too_short() -> None:
    made = Log()
    made.add(2, b"")
    with pytest.raises(InvalidValueError, match="type 2"):
        find(made, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02T00:00:00Z", 86400),
        ("1970-01-02T02:00:00+02:00", 86400),
        ("1970-01-02T00:00:00.9Z", 86400),
    ],
)
def test_times(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-31", "2026-01-31T12:00:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time: expected 2026-01-31T12:00:00Z"):
        seconds_of(text)


def live_source(start: str) -> LiveSource:
    settings = load_settings(
        ReaderSettings,
        source="shop",
        kafka={"bootstrap_servers": "localhost:1"},
        mysql={"host": "db"},
        start=start,
    )
    return LiveSource(settings, cast("RawStage", None), lambda: None, lambda: None)


SERVER = cast(
    "MysqlConnection",
    SimpleNamespace(flavour=Flavour.MYSQL, address=MysqlAddress("db"), query=lambda *_, **__: []),
)
"""A server of MySQL that lists no logs."""


def test_what_a_server_has_purged() -> None:
    with pytest.raises(PurgedError) as caught:
        live_source("earliest")._gap_allowed(SERVER, "the server no longer has bin.000001", "bin.000007")
    assert str(caught.value) == (
        "db:3306: the server no longer has bin.000001. Put the files back, read a copy of them under another "
        "MILLRACE_SOURCE with MILLRACE_FILES, or continue without them at bin.000007 with "
        "MILLRACE_ON_GAP=continue; and keep logs for longer (binlog_expire_logs_seconds, expire_logs_days)"
    )


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            "bin.000001:5",
            "MILLRACE_START is wrong: bin.000001:5, of db:3306: the server has no such file.*",
        ),
        ("gtid:0-1-5", "MILLRACE_START is wrong: 0-1-5 is not a GTID set of MySQL, which db:3306 is"),
        ("gtid:yesterday", "MILLRACE_START is wrong: .*yesterday.*"),
    ],
)
def test_a_start_that_cannot_be_asked_for(start: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        live_source(start)._start(SERVER, ServerNames(None, None), start, None)
    assert re.fullmatch(message, caught.value.message)
    assert caught.value.exit_code is ExitCode.SETTINGS


LATER = LogFile("bin.000007", 100)


READ = ReaderState(0, "bin.000001", 4, gtid_set=f"{'0' * 8}-0000-0000-0000-{'0' * 12}:1-5")


GONE = (
    ". Put the files back, read a copy of them under another MILLRACE_SOURCE with MILLRACE_FILES, or "
    "continue "
)


def purged(monkeypatch: pytest.MonkeyPatch, act: Callable[[LiveSource], object]) -> str:
    """What is said where the oldest log of a server is the seventh."""
    monkeypatch.setattr(live, "binary_logs", lambda _: [LATER])
    monkeypatch.setattr(live, "creation_time", lambda *_: 2**32)
    with pytest.raises(PurgedError) as caught:
        act(live_source("earliest"))
    said, mark, advice = str(caught.value).partition(GONE)
    assert mark
    assert advice.startswith("without them at bin.000007 with MILLRACE_ON_GAP=continue; ")
    return said


def test_what_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ServerNames(None, None)
    gone = READ.gtid_set.replace("1-5", "1-9")
    assert purged(monkeypatch, lambda source: source._after_purge(SERVER, names, READ)) == (
        "db:3306: the server no longer has bin.000001, which was read up to 4: what lies between that and "
        "bin.000007, its oldest, is missing"
    )
    assert purged(
        monkeypatch, lambda source: source._after_gtids(SERVER, names, READ.gtid_set, gone, None)
    ) == (
        "db:3306: the server has purged logs that were not read, with the transactions "
        f"{READ.gtid_set.replace('1-5', '6-9')}"
    )
    assert purged(monkeypatch, lambda source: source._start_position_at(SERVER, "2026-01-31T12:00:00Z")) == (
        "db:3306: what was written between 2026-01-31T12:00:00Z and the oldest log, bin.000007, is purged"
    )


def test_a_start_beyond_4_gib_without_gtids(monkeypatch: pytest.MonkeyPatch) -> None:
    place = StartPosition("bin.000001", 5_000_000_000, None)
    monkeypatch.setattr(LiveSource, "_with_gtids", lambda *_: place)
    start = f"{place.log_file}:{place.position}"
    with pytest.raises(UserError, match=r"START leads to bin.000001:5000000000, .* start at an earlier"):
        live_source(start)._start(SERVER, ServerNames(None, None), start, None)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (4, None),
        (126, None),
        (200, None),  # the end
        (1, "no event begins there, but at 4$"),
        (5, "no event begins there, but at 4 and 126"),
        (199, "no event begins there, but at 126 and 200"),
        (201, "the file ends at 200"),
    ],
)
def test_a_position_at_which_no_event_begins(position: int, said: str | None) -> None:
    check = PlaceCheck(position)
    for start, size in ((4, 122), (126, 74)):
        if check.passes(start, size):
            break
    with nullcontext() if said is None else pytest.raises(NoPlaceError, match=said):
        check.found()
