import io

import pytest

from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError, UnsupportedError
from millrace.binlog.events import FormatDescriptionEvent, XidEvent
from millrace.binlog.file import MAGIC, check_magic, decode_file, is_in_use, iter_events, iter_pieces
from tests.unit.binlog.cases import MYSQL_97, make_event
from tests.unit.binlog.vectors import FORMATS

FIRST = bytes.fromhex(FORMATS[MYSQL_97])
XID = make_event(16, (5).to_bytes(8, "little"))
BIG = make_event(29, b"\xff" + b"x" * 3_000_000)
LOG = MAGIC + FIRST + XID + BIG + XID


class Trickle(io.BytesIO):
    """A stream that gives little at a time, as a pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 1000) if size and size > 0 else 1000)


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
    pieces = iter_pieces(io.BytesIO(end), 1 << 20, "mysql-bin.000001")
    next(pieces)
    with pytest.raises(TruncatedError, match="ends in the middle of"):
        next(pieces)


def test_impossible_length() -> None:
    data = MAGIC + FIRST + XID[:9] + b"\x05\0\0\0" + XID[13:]
    for events in (iter_events(io.BytesIO(data)), iter_pieces(io.BytesIO(data), 1 << 20)):
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
    for events in (iter_events(io.BytesIO(head), "x"), iter_pieces(io.BytesIO(head), 100, "x")):
        with pytest.raises(error, match=f"^x at 0: .*{words}"):
            next(events)


@pytest.mark.parametrize("size", [13, 19, 1000, 1 << 24])
def test_pieces(size: int) -> None:
    log = MAGIC + FIRST + XID + make_event(29, b"\xff" + b"x" * 3000) + XID
    pieces = list(iter_pieces(io.BytesIO(log), size))
    assert MAGIC + b"".join(piece.data for piece in pieces) == log
    assert all(len(piece.data) <= size for piece in pieces)
    assert sum(piece.is_last for piece in pieces) == 4


def test_a_piece_must_hold_a_header() -> None:
    with pytest.raises(ValueError, match="does not hold an event header"):
        next(iter_pieces(io.BytesIO(LOG), 12))


def test_in_use() -> None:
    assert not is_in_use(FIRST)
    assert is_in_use(FIRST[:17] + b"\1\0" + FIRST[19:])
    assert not is_in_use(XID)
