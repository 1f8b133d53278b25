import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.binlog.errors import (
    BinlogError,
    InvalidValueError,
    MissingStateError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.event_codec import decode_event, encode_event
from millrace.binlog.events import (
    FormatDescriptionEvent,
    IntvarEvent,
    LoadEvent,
    QueryEvent,
    RotateEvent,
    StartEventV3,
    XidEvent,
)
from millrace.binlog.file import MAGIC, check_magic, decode_file, is_in_use, iter_events
from millrace.binlog.header import EventHeader
from millrace.binlog.state import LogFormat, StreamState
from tests.unit.binlog.cases import CASES, MYSQL_97, make_event, state_of
from tests.unit.binlog.streams import Trickle
from tests.unit.binlog.vectors import FORMATS

FIRST = bytes.fromhex(FORMATS[MYSQL_97])
XID = make_event(16, (5).to_bytes(8, "little"))
BIG = make_event(29, b"\xff" + b"x" * 3_000_000)
LOG = MAGIC + FIRST + XID + BIG + XID


def test_events_and_positions() -> None:
    second = 4 + len(FIRST)
    third = second + len(XID)
    expected = [(4, FIRST), (second, XID), (third, BIG), (third + len(BIG), XID)]
    assert list(iter_events(io.BytesIO(LOG))) == expected
    assert list(iter_events(Trickle(LOG))) == expected
    assert list(iter_events(io.BytesIO(LOG[third:]), position=third)) == expected[2:]


def test_decode_file() -> None:
    events = [decoded.event for _, decoded in decode_file(io.BytesIO(MAGIC + FIRST + XID), "log")]
    assert isinstance(events[0], FormatDescriptionEvent)
    assert events[1] == XidEvent(5)
    broken = MAGIC + FIRST + XID[:-1] + b"\0"
    with pytest.raises(BinlogError, match=rf"^log at {4 + len(FIRST)}: checksum"):
        list(decode_file(io.BytesIO(broken), "log"))


@pytest.mark.parametrize("cut", [1, 12, 13, 20, len(XID) - 1])
def test_end_in_mid_event(cut: int) -> None:
    end = MAGIC + FIRST + XID[:cut]
    events = iter_events(io.BytesIO(end), "mysql-bin.000001")
    assert next(events) == (4, FIRST)
    with pytest.raises(TruncatedError, match=f"ends in the middle of .*, {cut} bytes are there") as caught:
        next(events)
    assert (caught.value.log_file, caught.value.position) == ("mysql-bin.000001", 4 + len(FIRST))


def test_impossible_length() -> None:
    data = MAGIC + FIRST + XID[:9] + b"\x05\0\0\0" + XID[13:]
    events = iter_events(io.BytesIO(data))
    next(events)
    with pytest.raises(InvalidValueError, match="5 bytes, less than its header"):
        next(events)


@pytest.mark.parametrize(
    ("head", "error", "words"),
    [
        (b"", TruncatedError, "the file has 0 bytes"),
        (b"\xfeb", TruncatedError, "the file has 2 bytes"),
        (b"\x1f\x8b\x08\x00", InvalidValueError, "not a binary log: it begins with 1f 8b 08 00"),
        (b"\xfdbin", UnsupportedError, "encrypted by MySQL"),
    ],
)
def test_foreign_files(head: bytes, error: type[BinlogError], words: str) -> None:
    with pytest.raises(error, match=words):
        check_magic(head, "x")
    with pytest.raises(error, match=f"^x at 0: .*{words}"):
        next(iter_events(io.BytesIO(head), "x"))


def test_in_use() -> None:
    assert not is_in_use(FIRST)
    assert is_in_use(FIRST[:17] + b"\1\0" + FIRST[19:])
    assert not is_in_use(XID)


def v1_event(type_code: int, body: bytes) -> bytes:
    size = 13 + len(body)
    numbers = (900000000, 4), (type_code, 1), (1, 4), (size, 4)
    return b"".join(number.to_bytes(width, "little") for number, width in numbers) + body


def test_log_of_mysql_3_23() -> None:
    """Headers of 13 bytes, no status variables, options of LOAD of one byte each, ROTATE without position."""
    load = next(case for case in CASES if isinstance(case.event, LoadEvent))
    events = [
        v1_event(1, b"\1\0" + b"3.23.58-log".ljust(50, b"\0") + (900000000).to_bytes(4, "little")),
        v1_event(5, b"\2" + (7).to_bytes(8, "little")),
        v1_event(2, (3).to_bytes(4, "little") + bytes(4) + b"\1\0\0" + b"d\0INSERT INTO t VALUES (NULL)"),
        v1_event(6, load.data[19:]),
        v1_event(4, b"log.002"),
    ]
    state, writing = StreamState(), StreamState()
    decoded = [each for _, each in decode_file(io.BytesIO(MAGIC + b"".join(events)), state=state)]
    assert [each.event for each in decoded] == [
        StartEventV3(1, "3.23.58-log", 900000000),
        IntvarEvent(2, 7),
        QueryEvent(3, 0, 0, None, "d", b"INSERT INTO t VALUES (NULL)"),
        load.event,
        RotateEvent(4, "log.002"),
    ]
    assert all(each.header.next_position == each.header.flags == 0 for each in decoded)
    assert [encode_event(each, writing) for each in decoded] == events
    assert StreamState.restore(state.save()).save() == state.save()


def v3_event(type_code: int, body: bytes, position: int) -> bytes:
    size = 19 + len(body)
    numbers = (1000000000, 4), (type_code, 1), (1, 4), (size, 4), (position, 4), (0, 2)
    return b"".join(number.to_bytes(width, "little") for number, width in numbers) + body


def test_log_of_mysql_4_without_start_event() -> None:
    """It was the second log after the server's start: only the first has START_EVENT_V3."""
    intvar = v3_event(5, b"\2" + (7).to_bytes(8, "little"), 4)
    query = v3_event(2, bytes(8) + b"\1\0\0" + b"d\0INSERT INTO t VALUES (NULL)", 4 + len(intvar))
    rotate = v3_event(4, (4).to_bytes(8, "little") + b"log.003", 4 + len(intvar) + len(query))
    log = MAGIC + intvar + query + rotate
    state = StreamState()
    events = list(decode_file(io.BytesIO(log), state=state))
    assert [decoded.header.type_code for _, decoded in events] == [5, 2, 4]
    assert isinstance(events[1][1].event, QueryEvent)
    assert events[1][1].event.query == b"INSERT INTO t VALUES (NULL)"
    assert state.format is not None
    assert state.format.binlog_version == 3
    for position, decoded in events:
        assert decoded.header.next_position == position
        assert state.format.end_of(decoded.header) == position + decoded.header.event_size
        assert encode_event(decoded, state) in log
    assert StreamState.restore(state.save()).save() == state.save()


def test_stream_without_format_is_refused() -> None:
    """Only a file tells by its head that nothing is missing."""
    with pytest.raises(MissingStateError, match="comes before any format description"):
        decode_event(XID, StreamState())
    with pytest.raises(MissingStateError, match=r"^log at 500: event type 16 comes before any"):
        next(_decoded_from(500))


def _decoded_from(position: int) -> Iterator[object]:
    state = StreamState()
    for at, data in iter_events(io.BytesIO(XID), "log", position=position):
        try:
            yield decode_event(data, state)
        except BinlogError as error:
            raise error.at("log", at) from None


def test_end_of_an_event_by_version() -> None:
    header = EventHeader(0, 16, 1, 27, 1000)
    v1, v3 = LogFormat(StartEventV3(1, "3.23.58", 0)), LogFormat(StartEventV3(3, "4.1.22", 0))
    v4 = state_of(MYSQL_97).format
    assert v4 is not None
    assert [log_format.end_of(header) for log_format in (v1, v3, v4)] == [None, 1027, 1000]
    unsaid = EventHeader(0, 16, 1, 27, 0)
    assert [log_format.end_of(unsaid) for log_format in (v1, v3, v4)] == [None, None, None]
    assert v3.end_of(EventHeader(0, 16, 1, 27, 0xFFFFFFFF)) == 26


def test_positions_beyond_4_gib() -> None:
    """The header's position begins again at 0, the iterator's continues; one event ends at 2^32 exactly."""
    end = 1 << 32
    first = end - len(XID) - len(BIG)
    events = iter_events(io.BytesIO(BIG + XID + XID), "log", position=first)
    assert [position for position, _ in events] == [first, end - len(XID), end]
    header = EventHeader(0, 16, 1, 27, (end + len(XID)) & 0xFFFFFFFF)
    v4 = state_of(MYSQL_97).format
    assert v4 is not None
    assert v4.end_of(header) == len(XID)
    cut = iter_events(io.BytesIO(XID + XID[:20]), "log", position=end)
    assert next(cut)[0] == end
    with pytest.raises(TruncatedError, match=f"^log at {end + len(XID)}: "):
        next(cut)


ZEROS = bytes(1 << 24)


class Vast(io.BytesIO):
    """A log of events that are zeros but for their headers, as in a sparse file, and other events after."""

    def __init__(self, count: int, size: int, rest: bytes) -> None:
        super().__init__(rest)
        head = v3_event(29, b"", 0)[:9] + size.to_bytes(4, "little")
        self.parts: list[bytes | int] = [MAGIC, FIRST, *[head, size - len(head)] * count]

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        if not self.parts:
            return super().read(size)
        part = self.parts.pop(0)
        given = ZEROS[: min(part, size)] if isinstance(part, int) else part[:size]
        left = part - len(given) if isinstance(part, int) else part[size:]
        if left:
            self.parts.insert(0, left)
        return given if len(given) == size or not self.parts else given + self.read(size - len(given))


def test_file_over_4_gib() -> None:
    size, count = 1 << 25, 128
    log = Vast(count, size, XID + XID)
    starts = [position for position, _ in iter_events(log)]
    end = len(MAGIC + FIRST) + count * size
    assert starts[-2:] == [end, end + len(XID)]
    assert end > 1 << 32


def test_sizes_that_promise_more_than_is_there(tmp_path: Path) -> None:
    """What an event says of its size is never taken at its word: it may say 4 GiB."""
    path = tmp_path / "log"
    path.write_bytes(MAGIC + FIRST + XID[:9] + b"\xff\xff\xff\xff" + XID[13:])
    tracemalloc.start()
    try:
        with path.open("rb") as stream, pytest.raises(TruncatedError, match="event of 4294967295 bytes"):
            list(iter_events(stream))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
