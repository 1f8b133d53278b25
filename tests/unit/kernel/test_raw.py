"""The reader writes the same records with the kernel as without, and stands at the same place after them."""

import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import kernel
from millrace.mysql.errors import GapError
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.reader.stage import BadChecksumError, RawStage
from tests.unit.kernel.both import NOT_BUILT
from tests.unit.reader.logs import LIMIT, SID, Log, Recorder, Writer, event, make, parts, whole

pytestmark = pytest.mark.skipif(not kernel.built("events"), reason=NOT_BUILT)

QUERY_HEAD = struct.pack("<IIBHH", 1, 0, 4, 0, 3) + b"abc" + b"shop\0"


def gtid(log: Log, number: int) -> None:
    log.add(33, b"\0" + SID + struct.pack("<Q", number) + bytes(17))


def mariadb_gtid(log: Log, number: int) -> None:
    log.add(162, struct.pack("<QIB", number, 0, number % 4) + bytes(6))


def query(log: Log, number: int) -> None:
    texts = [
        b"BEGIN",
        b"COMMIT",
        b"ROLLBACK",
        b"XA START X'61'",
        b"XA COMMIT X'61'",
        b"XA",
        b"CREATE TABLE t",
        b"rollback",
        b"ROLLBACK TO a",
        b"REPLACE t VALUES (1)",
        b"(COMMIT",
        b"",
        b"c",
    ]
    log.add(2, QUERY_HEAD + texts[number % len(texts)])


EVENTS: list[Callable[[Log, int], object]] = [
    gtid,
    mariadb_gtid,
    query,
    query,
    query,
    lambda log, number: log.add(16, bytes(8)),
    lambda log, number: log.add(30, bytes(number)),
    lambda log, number: log.add(30, bytes(number), timestamp=1_700_000_000 + number * (number % 3 - 1)),
    lambda log, number: log.add(30, bytes(4), timestamp=4_000_000_000),
    lambda log, number: log.add(34, bytes(42)),
    lambda log, number: log.add(38, bytes(20)),
    lambda log, number: log.add(40, bytes(number)),
    lambda log, number: log.add(3, b""),
    lambda log, number: log.add(165, bytes(20)),
    lambda log, number: log.add(2, bytes(number)),
    lambda log, number: log.add(35, struct.pack("<Q", 0)),
    lambda log, number: log.add(30, bytes(LIMIT + number)),
    lambda log, number: log.add(30, bytes(number), bad=number % 4 == 0),
    lambda log, number: log.events.append(event(27, log.name.encode(), None, 0)),
    lambda log, number: log.events.append(event(33, bytes(42), None, 0)),
    lambda log, number: log.add(161, b"\x01"),
]


@st.composite
def stream(draw: st.DrawFn) -> list[list[EventPiece]]:
    """A dump, in the batches in which it comes."""
    log = Log()
    for make_event in draw(st.lists(st.sampled_from(EVENTS), max_size=25)):
        make_event(log, draw(st.integers(0, 200)))
    pieces = []
    for data in log.dump():
        pieces += parts(data, 300) if draw(st.integers(0, 9)) == 0 else whole(data)
    batches = []
    while pieces:
        size = draw(st.integers(1, 20))
        batches.append(pieces[:size])
        del pieces[:size]
    return batches


def write(batches: list[list[EventPiece]], due: int, again: int, *, mariadb: bool, compiled: bool) -> Any:
    """Return what a writer writes and where it stands after each batch; ``again`` batches come twice."""
    found: list[Any] = []
    with patch.object(kernel, "_enabled", compiled), patch("time.time", lambda: 1_800_000_000.5):
        kafka = Recorder()
        writer = make(kafka, retry_checksums=True)
        for batches_of_session in (batches[:again], batches):
            _session(writer, kafka, batches_of_session, due, mariadb, found)
    writer.commit()
    return kafka.committed, kafka.commits, kafka.state, found


def _session(
    writer: Writer,
    kafka: Recorder,
    batches: list[list[EventPiece]],
    due: int,
    mariadb: bool,
    found: list[Any],
) -> None:
    tracker = PositionTracker("log.000001", 4, zero_allowed=mariadb)
    writer.begin_session(tracker, server_uuid="u")
    for number, batch in enumerate(batches):
        kafka.due = number % due == 0
        try:
            writer.write(batch)
        except (GapError, BadChecksumError) as error:
            found.append(str(error))
            return
        writer.pause()
        found.append((writer.state, tracker.position, tracker.log_file, kafka.pending))


@settings(max_examples=300)
@given(stream(), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_the_same_records(batches: list[list[EventPiece]], due: int, again: int, mariadb: bool) -> None:
    compiled = write(batches, due, again, mariadb=mariadb, compiled=True)
    assert compiled == write(batches, due, again, mariadb=mariadb, compiled=False)


def test_the_kernel_takes_what_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, the comparison could compare the reference with itself."""
    noted: list[int] = []
    monkeypatch.setattr(RawStage, "_note", lambda self, type_code, *rest: noted.append(type_code))
    log = Log()
    for number in range(1, 4):
        log.transaction(number, 10, 20)
    pieces = [piece for data in log.dump() for piece in whole(data)]
    committed, *_ = write([pieces], 1, 0, mariadb=False, compiled=True)
    assert len(committed) == len(log.events)
    assert noted == [15]
