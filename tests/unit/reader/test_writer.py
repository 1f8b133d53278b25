"""The records that come of events, however these come in and wherever the reader was stopped."""

import struct
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.avro.service_state import ReaderState
from millrace.contract import (
    ABANDONED,
    GAP,
    HEADER_ARTIFICIAL,
    HEADER_CHECKSUM,
    HEADER_CHUNK,
    HEADER_MARKER,
    SOURCE_CHANGED,
    RawKey,
)
from millrace.mysql.errors import GapError
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.reader.event_cutter import OtherBytesError
from millrace.reader.stage import BadChecksumError

from .logs import (
    GTID_PREFIX,
    LIMIT,
    STOPS,
    Log,
    Recorder,
    Writer,
    event,
    make,
    parts,
    resume,
    take_with_stops,
    whole,
)

pytestmark = pytest.mark.usefixtures("either_codec")


def sample() -> Log:
    log = Log()
    log.add(35, struct.pack("<Q", 0))
    log.transaction(1, 10, 20)
    log.transaction(2, 3000, 5)
    log.add(3, b"")
    log.transaction(3, LIMIT - 23, LIMIT - 22)
    return log


def expected(log: Log) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
    records = []
    at = 4
    for data in log.events:
        key = RawKey(7, 0, log.name, at).encode()
        count = -(-len(data) // LIMIT)
        for index in range(count):
            headers = {HEADER_CHUNK: b"%d/%d" % (index, count)} if count > 1 else {}
            records.append((key, data[index * LIMIT : (index + 1) * LIMIT], headers))
        at += len(data)
    return records


def records_of(kafka: Recorder) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
    return [(key, value, headers) for key, value, _, headers in kafka.committed]


def feed(writer: Writer, events: Iterable[bytes]) -> None:
    for data in events:
        writer.write(whole(data))


def state_of(writer: Writer) -> ReaderState:
    assert writer.state is not None
    return writer.state


def test_records_of_a_log() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    feed(writer, resume(writer, log))
    writer.commit()
    assert records_of(kafka) == expected(log)
    state = state_of(writer)
    assert (state.log_file, state.position, state.chunk) == (log.name, log.end, 0)
    assert state.gtid_set == f"{GTID_PREFIX}:1-3"
    assert state.identity is not None
    assert (state.identity.server_uuid, state.identity.server_version) == ("u1", "8.0.15")


@settings(max_examples=150)
@given(piece_size=st.integers(150, 1500), stops=STOPS)
def test_wherever_it_stops_nothing_is_missing_and_nothing_twice(
    piece_size: int, stops: list[tuple[int, bool, bool]]
) -> None:
    log, kafka = sample(), Recorder()
    writer = take_with_stops(log, kafka, piece_size, stops)
    assert records_of(kafka) == expected(log)
    state = state_of(writer)
    assert (state.position, state.gtid_set, state.open_gtid) == (log.end, f"{GTID_PREFIX}:1-3", None)


def test_commits_lie_between_transactions() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    stream = resume(writer, log)
    for data in stream:
        writer.write(whole(data))
        kafka.due = True
        writer.pause()
        state = writer.state
        if not kafka.pending and state is not None:
            assert state.open_gtid is None


def test_a_start_in_the_middle_has_the_head_of_the_file_once() -> None:
    log, kafka = sample(), Recorder()
    position = 4 + sum(map(len, log.events[:2]))
    writer = make(kafka)
    writer.begin_session(PositionTracker(log.name, position))
    feed(writer, log.dump(position))
    writer.commit()
    key, value, _, headers = kafka.committed[0]
    assert (key, headers) == (RawKey(7, 0, log.name, 4).encode(), {HEADER_ARTIFICIAL: b"1"})
    assert value == log.start_of_dump(position)[1]
    count = len(kafka.committed)
    writer = make(kafka)
    feed(writer, resume(writer, log))
    writer.checkpoint()
    assert len(kafka.committed) == count


def test_the_place_is_not_recorded_before_the_source_confirms_it() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    writer.begin_session(PositionTracker(log.name, 700))
    feed(writer, log.start_of_dump(700))
    writer.pause()
    assert writer.state is None
    assert kafka.committed == []
    writer.write(whole(event(27, log.name.encode(), None, 0)))
    writer.pause()
    assert kafka.state is not None
    assert ReaderState.from_bytes(kafka.state).position == 700


def test_timestamps_neither_go_back_nor_ahead_of_the_clock() -> None:
    log, kafka = Log(timestamp=1_000_000_000), Recorder()
    for timestamp in (1_000_000_100, 0, 1_000_000_050, 4_000_000_000, 1_000_000_200):
        log.add(3, b"", timestamp=timestamp)
    writer = make(kafka)
    before = int(time.time() * 1000)
    feed(writer, resume(writer, log))
    writer.commit()
    stamps = [stamp for _, _, stamp, _ in kafka.committed]
    assert stamps[:4] == [1_000_000_000_000, 1_000_000_100_000, 1_000_000_100_000, 1_000_000_100_000]
    assert all(before <= stamp <= time.time() * 1000 for stamp in stamps[4:])


@pytest.mark.parametrize("size", [10, 3000])
@pytest.mark.parametrize("piece_size", [200, 10_000])
def test_a_bad_checksum_is_asked_for_again_and_then_marked(size: int, piece_size: int) -> None:
    log, kafka = Log(), Recorder()
    log.add(30, bytes(20))
    position = log.add(30, bytes(size), bad=True)
    log.add(30, bytes(20))
    writer = make(kafka, retry_checksums=True)
    with pytest.raises(BadChecksumError, match=f"log.000001 at {position}"):
        writer.write([piece for data in resume(writer, log) for piece in parts(data, piece_size)])
    writer.commit()
    state = state_of(writer)
    assert state.position == position
    writer.write([piece for data in resume(writer, log) for piece in parts(data, piece_size)])
    writer.commit()
    plain = [(key, value) for key, value, _ in expected(log)]
    assert [(key, value) for key, value, _ in records_of(kafka)] == plain
    marked = [key for key, _, _, headers in kafka.committed if HEADER_CHECKSUM in headers]
    assert marked == [RawKey(7, 0, log.name, position).encode()]


def test_another_log_opens_an_epoch() -> None:
    first, second, kafka = sample(), Log("other.000009"), Recorder()
    second.transaction(4, 10)
    writer = make(kafka)
    stream = resume(writer, first)
    cut = len(stream) - 2
    feed(writer, stream[:cut])
    writer.commit()
    before = state_of(writer)
    assert before.open_gtid == f"{GTID_PREFIX}:3"
    writer.begin_session(
        PositionTracker("", 4, skips=True),
        server_uuid="u2",
        left_out=before.gtid_set,
        changed="server_uuid was u1",
    )
    assert writer.state == before, "until the other log is seen"
    assert writer.stage.session_epoch == 1
    count = len(kafka.committed)
    feed(writer, second.dump())
    writer.commit()
    abandoned, changed, head, *_ = kafka.committed[count:]
    assert abandoned[0] == RawKey(0, 0, first.name, before.position).encode()
    assert abandoned[3] == {HEADER_MARKER: ABANDONED}
    assert changed[0] == RawKey(0, 1, second.name, 0).encode()
    assert changed[3] == {HEADER_MARKER: SOURCE_CHANGED}
    assert head[0] == RawKey(7, 1, second.name, 4).encode()
    state = state_of(writer)
    assert (state.epoch, state.log_file, state.position) == (1, second.name, second.end)
    assert state.gtid_set == f"{GTID_PREFIX}:1-2:4", "the cut transaction counts once it is whole"
    assert (before.left_out, state.left_out) == ("", f"{GTID_PREFIX}:1-2")


def test_an_epoch_that_was_begun_by_gtid_resumes_by_gtid() -> None:
    """The dump comes from the head of the file; the open transaction, from its beginning."""
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    stream = log.dump()
    writer.begin_session(PositionTracker("", 4, skips=True), gtid_set="", left_out="")
    feed(writer, stream[:10])
    writer.commit()
    writer = make(kafka)
    writer.begin_session(PositionTracker("", 4, skips=True))
    feed(writer, stream)
    writer.checkpoint()
    assert records_of(kafka) == expected(log)


def test_the_last_boundary_that_a_dump_by_position_can_be_asked_for() -> None:
    log, kafka = Log(), Recorder()
    log.events, log.end = [], (1 << 32) - 200
    writer = make(kafka)
    writer.begin_session(PositionTracker(log.name, log.end))
    for number in range(3):
        log.transaction(number + 1, 10)
    at, boundary = (1 << 32) - 200, 0
    for data in log.events:
        boundary = at if at < 1 << 32 else boundary
        at += len(data)
        writer.write(whole(data))
        writer.commit()
        assert kafka.state is not None
        state = ReaderState.from_bytes(kafka.state)
        assert state.position == at
        assert state.boundary == (at if at < 1 << 32 else boundary)
    assert at > 1 << 32 > boundary


def test_a_gap_is_written_where_it_is() -> None:
    first, second, kafka = sample(), Log("log.000009"), Recorder()
    second.transaction(9, 10)
    writer = make(kafka)
    stream = resume(writer, first)
    feed(writer, stream[: len(stream) - 2])
    writer.commit()
    before = state_of(writer)
    count = len(kafka.committed)
    writer.begin_session(
        PositionTracker("", 4, skips=True),
        server_uuid="u1",
        gtid_set=f"{GTID_PREFIX}:1-8",
        changed="transactions 3-8 are missing",
        gap=True,
    )
    feed(writer, second.dump())
    writer.commit()
    abandoned, gap, *_ = kafka.committed[count:]
    assert abandoned[0] == RawKey(0, 0, first.name, before.position).encode()
    assert abandoned[1].endswith(b"was cut; it is among what is missing")
    assert abandoned[3] == {HEADER_MARKER: ABANDONED}
    assert gap[0] == RawKey(0, 1, second.name, 0).encode()
    assert gap[1] == b"transactions 3-8 are missing"
    assert gap[3] == {HEADER_MARKER: GAP}
    assert SOURCE_CHANGED not in [headers.get(HEADER_MARKER) for *_, headers in kafka.committed]
    state = state_of(writer)
    assert (state.epoch, state.gtid_set, state.open_gtid) == (1, f"{GTID_PREFIX}:1-9", None)


@pytest.mark.parametrize(
    "never_began",
    [
        {"gtid_set": f"{GTID_PREFIX}:1-8", "left_out": f"{GTID_PREFIX}:1-8", "changed": "a gap", "gap": True},
        {"gtid_set": f"{GTID_PREFIX}:1-8", "left_out": f"{GTID_PREFIX}:1-8"},
    ],
)
def test_a_session_that_never_began_leaves_nothing_behind(never_began: dict[str, Any]) -> None:
    """The server was lost before its dump began; the next one is read where the records end."""
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    feed(writer, resume(writer, log)[:5])
    writer.commit()
    before = state_of(writer)
    writer.begin_session(PositionTracker("", 4, skips=True), server_uuid="u2", **never_began)
    stream = resume(writer, log)
    assert writer.state == before
    feed(writer, stream)
    writer.commit()
    assert records_of(kafka) == expected(log)
    state = state_of(writer)
    assert (state.gtid_set, state.left_out) == (f"{GTID_PREFIX}:1-3", "")


def test_events_that_are_not_as_long_as_they_say() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    stream = resume(writer, log)
    with pytest.raises(GapError, match="an event of 123 bytes came as 124"):
        writer.write([EventPiece(stream[1] + b"x", True, True, len(stream[1]) + 1)])


def test_an_altered_head_of_a_known_file_is_not_written_again() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    feed(writer, resume(writer, log)[:6])
    writer.commit()
    feed(writer, resume(writer, log))
    writer.commit()
    assert records_of(kafka) == expected(log)


def test_a_piece_without_its_beginning() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    feed(writer, resume(writer, log)[:3])
    with pytest.raises(GapError, match=r"^a piece of an event came without its beginning$"):
        writer.write(parts(log.events[-1], 9)[1:2])


def test_an_event_whose_packets_are_of_another_size() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    data = next(iter(resume(writer, log)))
    with pytest.raises(GapError) as caught:
        writer.write([EventPiece(data, True, False, len(data) + 5)])
    assert str(caught.value) == f"{log.name}: an event of {len(data)} bytes came as {len(data) + 5} bytes"


@pytest.mark.parametrize("piece_size", [200, 10_000])
def test_chunks_that_are_not_those_of_the_event(piece_size: int) -> None:
    """The event that comes again after a restart has other bytes: it begins again with its first chunk."""
    log, kafka = Log(), Recorder()
    log.transaction(1, 3000)
    writer = make(kafka)
    pieces = [piece for data in resume(writer, log) for piece in parts(data, 200)]
    cut = next(number for number, piece in enumerate(pieces) if piece.event_size > 3000) + 12
    writer.write(pieces[:cut])
    writer.commit()
    state = state_of(writer)
    assert state.chunk == 2
    at = next(number for number, data in enumerate(log.events) if len(data) > 3000)
    log.events[at] = event(30, b"\1" * 3000, state.position, log.timestamp)
    writer = make(kafka)
    for _ in range(2):
        try:
            writer.write([piece for data in resume(writer, log) for piece in parts(data, piece_size)])
        except OtherBytesError:
            writer.checkpoint()
        else:
            break
    writer.commit()
    chunks = [(key, headers.get(HEADER_CHUNK), value) for key, value, headers in records_of(kafka)]
    again = [chunk for chunk in chunks if chunk[1] is not None]
    assert [header for _, header, _ in again] == [b"0/4", b"1/4", b"0/4", b"1/4", b"2/4", b"3/4"]
    assert b"".join(value for *_, value in again[2:]) == log.events[at]
