"""Logs made in memory, and a stand-in for Kafka that keeps what is committed."""

import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from millrace.avro.service_state import ReaderState
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.reader.exclusion import RawExclusion
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.stage import RawStage

LIMIT = 1000
SID = bytes(range(16))
GTID_PREFIX = "00010203-0405-0607-0809-0a0b0c0d0e0f"


class Recorder:
    """Stands where Kafka is: keeps committed records and the last state, drops what is aborted."""

    def __init__(self) -> None:
        self.committed: list[tuple[bytes, bytes, int, dict[str, bytes]]] = []
        self.open: list[tuple[bytes, bytes, int, dict[str, bytes]]] = []
        self.state: bytes | None = None
        self.pending = False
        self.due = False
        self.commits: list[int] = []


class Writer:
    """Runs a stage as the reader's loop does."""

    def __init__(self, stage: RawStage, kafka: Recorder) -> None:
        self.stage = stage
        self._kafka = kafka

    @property
    def state(self) -> ReaderState | None:
        return self.stage.state()

    def begin_session(self, *arguments: Any, **options: Any) -> None:
        self.stage.begin_session(*arguments, **options)

    def write(self, pieces: Sequence[EventPiece]) -> None:
        kafka, stage = self._kafka, self.stage
        try:
            for _ in stage.take(pieces, int(time.time() * 1000), due=kafka.due):
                self._settle()
                if kafka.due and kafka.pending and not stage.inside:
                    self.commit()
        finally:
            self._settle()

    def _settle(self) -> None:
        kafka, output = self._kafka, self.stage.output
        for (topic, partition), records in output.groups.items():
            assert (topic, partition) == ("s.raw", 0)
            for key, value, timestamp_ms, headers in records:
                assert key is not None
                assert value is not None
                assert len(value) <= LIMIT
                kafka.pending = True
                kafka.open.append((key, value, timestamp_ms, dict(headers or ())))
        output.clear()

    def pause(self) -> None:
        if not self.stage.confirmed:
            return
        state, kafka = self.state, self._kafka
        if not self.stage.inside and (kafka.pending or (state is not None and kafka.state is None)):
            self.checkpoint()

    def commit(self) -> None:
        if self._kafka.pending:
            self.checkpoint()

    def checkpoint(self) -> None:
        state, kafka = self.state, self._kafka
        if state is not None and kafka.state is not None:
            assert not state.precedes(ReaderState.from_bytes(kafka.state)), "the state goes back"
        kafka.committed += kafka.open
        kafka.commits.append(len(kafka.open))
        kafka.open, kafka.pending = [], False
        kafka.state = None if state is None else state.to_bytes()


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
    end = 0 if start is None else (start + size) & 0xFFFFFFFF
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


def make(kafka: Recorder, *patterns: str, retry_checksums: bool = False) -> Writer:
    """Make a writer that continues where Kafka says; tables of ``patterns`` are left out."""
    state = None if kafka.state is None else ReaderState.from_bytes(kafka.state)
    metrics, exclusion = ReaderMetrics(CollectorRegistry()), RawExclusion(patterns) if patterns else None
    return Writer(
        RawStage("s.raw", LIMIT, metrics, state, retry_checksums=retry_checksums, exclusion=exclusion), kafka
    )


def resume(writer: Writer, log: Log) -> list[bytes]:
    """Begin a session where the stage stands; return what the server sends then."""
    state = writer.state
    position = 4 if state is None else state.position
    writer.begin_session(PositionTracker(log.name, position), server_uuid="u1")
    return log.dump(position)


def take(writer: Writer, log: Log, piece_size: int, count: int | None = None) -> None:
    """Write the log from where the writer stands, in pieces, of which only ``count``."""
    pieces = [piece for data in resume(writer, log) for piece in parts(data, piece_size)]
    for piece in pieces[:count]:
        writer.write([piece])


STOPS = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=6)
"""After how many pieces it stops, whether with a commit before, and whether it is the process or the link."""


def take_with_stops(
    log: Log, kafka: Recorder, piece_size: int, stops: list[tuple[int, bool, bool]], *patterns: str
) -> Writer:
    """Write the whole log, with stops on the way."""
    writer = make(kafka, *patterns)
    for count, commit, process in stops:
        take(writer, log, piece_size, count)
        if commit:
            writer.commit()
        if process:
            kafka.open, kafka.pending = [], False
            writer = make(kafka, *patterns)
    for data in resume(writer, log):
        writer.write(parts(data, piece_size))
    writer.checkpoint()
    return writer
