"""The records that come of events, however these come in and wherever the reader was stopped."""

import struct
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from millrace.avro.state import ReaderState
from millrace.contract import (
    ABANDONED,
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
from services.reader.metrics import ReaderMetrics
from services.reader.writer import BadChecksumError, RawWriter

if TYPE_CHECKING:
    from millrace.kafka.pipe import TransactionalProducer

LIMIT = 1000
SID = bytes(range(16))
GTID_PREFIX = "00010203-0405-0607-0809-0a0b0c0d0e0f"

Headers = Sequence[tuple[str, bytes]] | None


class Recorder:
    """Stands where Kafka is: keeps committed records and the last state, drops what is aborted."""

    def __init__(self) -> None:
        self.committed: list[tuple[bytes, bytes, int, dict[str, bytes]]] = []
        self.open: list[tuple[bytes, bytes, int, dict[str, bytes]]] = []
        self.state: bytes | None = None
        self.pending = False
        self.due = False
        self.commits: list[int] = []

    def begin(self) -> None:
        self.pending = True

    def produce(
        self, topic: str, key: bytes, value: bytes, timestamp_ms: int, headers: Headers = None
    ) -> None:
        assert topic == "s.raw"
        assert len(value) <= LIMIT
        self.pending = True
        self.open.append((key, value, timestamp_ms, dict(headers or ())))

    def commit(self, state: bytes | None) -> None:
        self.committed += self.open
        self.commits.append(len(self.open))
        self.open, self.pending, self.state = [], False, state


class Log:
    """A log in memory: events with headers, positions and checksums as a server writes them."""

    def __init__(self, name: str = "log.000001", *, timestamp: int = 1_700_000_000) -> None:
        self.name = name
        self.timestamp = timestamp
        self.events: list[bytes] = []
        self.end = 4
        lengths = bytes(42)
        body = struct.pack("<H50sIB", 4, b"8.0.15", 0, 19) + lengths + b"\x01"
        self.add(15, body)

    def add(self, type_code: int, body: bytes, *, timestamp: int | None = None, bad: bool = False) -> int:
        start = self.end
        stamp = self.timestamp if timestamp is None else timestamp
        self.events.append(event(type_code, body, start, stamp, bad=bad))
        self.end += len(self.events[-1])
        return start

    def transaction(self, number: int, *sizes: int) -> None:
        self.add(33, b"\0" + SID + struct.pack("<Q", number) + bytes(17))
        self.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN")
        for size in sizes:
            self.add(30, bytes(size))
        self.add(16, bytes(8))

    def start_of_dump(self, position: int) -> list[bytes]:
        """What a server sends before the event at ``position``."""
        rotate = event(4, struct.pack("<Q", position) + self.name.encode(), None, 0, flags=0x20)
        if position == 4:
            return [rotate]
        altered = bytearray(self.events[0])
        altered[13:17] = bytes(4)
        altered[-4:] = struct.pack("<I", zlib.crc32(altered[:-4]))
        return [rotate, bytes(altered)]

    def dump(self, position: int = 4) -> list[bytes]:
        starts, at = [], 4
        for data in self.events:
            starts.append(at)
            at += len(data)
        return self.start_of_dump(position) + [
            data for start, data in zip(starts, self.events, strict=True) if start >= position
        ]


def event(
    type_code: int, body: bytes, start: int | None, timestamp: int, *, flags: int = 0, bad: bool = False
) -> bytes:
    size = 19 + len(body) + 4
    end = 0 if start is None else start + size
    data = struct.pack("<IBIIIH", timestamp, type_code, 7, size, end, flags) + body
    return data + struct.pack("<I", zlib.crc32(data) ^ int(bad))


def whole(data: bytes) -> list[EventPiece]:
    return [EventPiece(data, True, True, len(data))]


def parts(data: bytes, size: int) -> list[EventPiece]:
    cuts = [data[at : at + size] for at in range(0, len(data), size)]
    if len(cuts) == 1:
        return whole(data)
    return [
        EventPiece(cut, number == 0, number == len(cuts) - 1, len(data)) for number, cut in enumerate(cuts)
    ]


def make(kafka: Recorder, *, retry_checksums: bool = False) -> RawWriter:
    state = None if kafka.state is None else ReaderState.from_bytes(kafka.state)
    return RawWriter(
        cast("TransactionalProducer", kafka),
        "s.raw",
        LIMIT,
        ReaderMetrics(CollectorRegistry()),
        state,
        retry_checksums=retry_checksums,
    )


def resume(writer: RawWriter, log: Log) -> list[bytes]:
    """Begin a session where the writer stands; return what the server sends then."""
    state = writer.state
    position = 4 if state is None else state.position
    writer.begin_session(PositionTracker(log.name, position), server_uuid="u1")
    return log.dump(position)


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


def test_records_of_a_log() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    for data in resume(writer, log):
        writer.write(whole(data))
    writer.commit()
    assert records_of(kafka) == expected(log)
    state = writer.state
    assert state is not None
    assert (state.log_file, state.position, state.chunk) == (log.name, log.end, 0)
    assert state.gtid_set == f"{GTID_PREFIX}:1-3"
    assert state.identity is not None
    assert (state.identity.server_uuid, state.identity.server_version) == ("u1", "8.0.15")


@settings(max_examples=150, deadline=None)
@given(
    piece_size=st.integers(150, 1500),
    stops=st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), max_size=6),
)
def test_wherever_it_stops_nothing_is_missing_and_nothing_twice(
    piece_size: int, stops: list[tuple[int, bool, bool]]
) -> None:
    """A stop comes after some pieces; with or without a commit before; of the process or of the link."""
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    for count, commit, process in stops:
        pieces = [piece for data in resume(writer, log) for piece in parts(data, piece_size)]
        for piece in pieces[:count]:
            writer.write([piece])
        if commit:
            writer.commit()
        if process:
            kafka.open, kafka.pending = [], False
            writer = make(kafka)
    for data in resume(writer, log):
        writer.write(parts(data, piece_size))
    writer.checkpoint()
    assert records_of(kafka) == expected(log)
    state = writer.state
    assert state is not None
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
    for data in log.dump(position):
        writer.write(whole(data))
    writer.commit()
    key, value, _, headers = kafka.committed[0]
    assert (key, headers) == (RawKey(7, 0, log.name, 4).encode(), {HEADER_ARTIFICIAL: b"1"})
    assert value == log.start_of_dump(position)[1]
    count = len(kafka.committed)
    writer = make(kafka)
    for data in resume(writer, log):
        writer.write(whole(data))
    writer.checkpoint()
    assert len(kafka.committed) == count


def test_the_place_is_not_recorded_before_the_source_confirms_it() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    writer.begin_session(PositionTracker(log.name, 700))
    for data in log.start_of_dump(700):
        writer.write(whole(data))
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
    for data in resume(writer, log):
        writer.write(whole(data))
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
    state = writer.state
    assert state is not None
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
    for data in stream[:cut]:
        writer.write(whole(data))
    writer.commit()
    before = writer.state
    assert before is not None
    assert before.open_gtid == f"{GTID_PREFIX}:3"
    writer.begin_session(PositionTracker("", 4, skips=True), server_uuid="u2", changed="server_uuid was u1")
    assert writer.state == before, "until the other log is seen"
    assert writer.session_epoch == 1
    count = len(kafka.committed)
    for data in second.dump():
        writer.write(whole(data))
    writer.commit()
    abandoned, changed, head, *_ = kafka.committed[count:]
    assert abandoned[0] == RawKey(0, 0, first.name, before.position).encode()
    assert abandoned[3] == {HEADER_MARKER: ABANDONED}
    assert changed[0] == RawKey(0, 1, second.name, 0).encode()
    assert changed[3] == {HEADER_MARKER: SOURCE_CHANGED}
    assert head[0] == RawKey(7, 1, second.name, 4).encode()
    state = writer.state
    assert state is not None
    assert (state.epoch, state.log_file, state.position) == (1, second.name, second.end)
    assert state.gtid_set == f"{GTID_PREFIX}:1-2:4", "the cut transaction counts once it is whole"


def test_events_that_are_not_as_long_as_they_say() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    stream = resume(writer, log)
    with pytest.raises(GapError, match="an event of 123 bytes came as 124"):
        writer.write([EventPiece(stream[1] + b"x", True, True, len(stream[1]) + 1)])


def test_an_altered_head_of_a_known_file_is_not_written_again() -> None:
    log, kafka = sample(), Recorder()
    writer = make(kafka)
    for data in resume(writer, log)[:6]:
        writer.write(whole(data))
    writer.commit()
    for data in resume(writer, log):
        writer.write(whole(data))
    writer.commit()
    assert records_of(kafka) == expected(log)
