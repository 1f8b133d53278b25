"""Positions computed from the sequences of events that servers send."""

import struct
import zlib

import pytest

from millrace.mysql.errors import (
    GapError,
    ProtocolError,
)
from millrace.mysql.position import ALTERED, NOT_IN_FILE, PositionTracker, _heartbeat_v2

ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2, GTID, GTID_LIST = 4, 15, 27, 41, 33, 163
ARTIFICIAL = 0x20


def event(
    type_code: int, next_position: int, body: bytes = b"", *, flags: int = 0, crc: bool = True
) -> bytes:
    size = 19 + len(body) + (4 if crc else 0)
    data = struct.pack("<IBIIIH", 0, type_code, 1, size, next_position & 0xFFFFFFFF, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if crc else data


def rotate(name: bytes, position: int, next_position: int = 0, **options: bool) -> bytes:
    flags = 0 if next_position else ARTIFICIAL
    return event(ROTATE, next_position, struct.pack("<Q", position) + name, flags=flags, **options)


def place(tracker: PositionTracker, data: bytes) -> int:
    _, type_code, _, size, next_position, flags = struct.unpack_from("<IBIIIH", data)
    return tracker.place(type_code, size, next_position, flags, data)


@pytest.mark.parametrize("crc", [True, False])
def test_a_dump_from_the_start_through_two_files(crc: bool) -> None:
    tracker = PositionTracker("log.1", 4)
    assert place(tracker, rotate(b"log.1", 4, crc=crc)) == NOT_IN_FILE
    fde = event(FORMAT_DESCRIPTION, 0, bytes(97), crc=crc)
    fde = event(FORMAT_DESCRIPTION, 4 + len(fde), bytes(97), crc=crc)
    assert place(tracker, fde) == 4
    start = tracker.position
    size = len(rotate(b"log.2", 4, crc=crc))
    assert place(tracker, rotate(b"log.2", 4, start + size, crc=crc)) == start
    assert (tracker.log_file, tracker.position) == ("log.2", 4)
    assert place(tracker, rotate(b"log.2", 4, crc=crc)) == NOT_IN_FILE
    assert (tracker.log_file, tracker.position) == ("log.2", 4)


def test_a_dump_from_the_middle_starts_with_an_altered_format_description() -> None:
    tracker = PositionTracker("log.1", 1000)
    assert place(tracker, rotate(b"log.1", 1000)) == NOT_IN_FILE
    assert place(tracker, event(FORMAT_DESCRIPTION, 0, bytes(97))) == ALTERED
    assert place(tracker, event(GTID, 1073, bytes(50))) == 1000
    assert tracker.position == 1073


def test_positions_go_on_beyond_4_gib() -> None:
    tracker = PositionTracker("log.1", (1 << 32) - 50)
    assert place(tracker, event(GTID, (1 << 32) + 23, bytes(50))) == (1 << 32) - 50
    assert place(tracker, event(GTID, (1 << 32) + 96, bytes(50))) == (1 << 32) + 23
    assert tracker.position == (1 << 32) + 96


def test_an_event_that_ends_at_4_gib_exactly_says_0() -> None:
    tracker = PositionTracker("log.1", (1 << 32) - 73)
    assert place(tracker, event(GTID, 0, bytes(50))) == (1 << 32) - 73


def test_missing_bytes_stop_a_dump_by_position() -> None:
    tracker = PositionTracker("log.1", 1000)
    with pytest.raises(GapError, match=r"log\.1 at 1000.*bytes of the log are missing"):
        place(tracker, event(GTID, 1146, bytes(50)))


def test_zero_is_admitted_where_the_server_writes_it() -> None:
    mariadb = PositionTracker("log.1", 1000, zero_allowed=True)
    assert place(mariadb, event(30, 0, bytes(50))) == 1000
    assert place(mariadb, event(30, 1146, bytes(50))) == 1073
    with pytest.raises(GapError):
        place(PositionTracker("log.1", 1000), event(30, 0, bytes(50)))


def test_a_dump_by_gtid_goes_on_where_the_next_event_says() -> None:
    tracker = PositionTracker("", 4, skips=True)
    place(tracker, rotate(b"log.1", 4))
    place(tracker, event(FORMAT_DESCRIPTION, 124, bytes(97)))
    assert place(tracker, event(GTID, 5073, bytes(50))) == 5000
    assert tracker.position == 5073


@pytest.mark.parametrize("far", [(1 << 31) - 1, 3 << 30, (1 << 32) - 200])
@pytest.mark.parametrize("says_so", [True, False])
def test_a_dump_by_gtid_leaves_out_more_than_2_gib_at_the_head_of_a_file(far: int, says_so: bool) -> None:
    """A transaction of that size which the replica has; MySQL says so in a heartbeat, MariaDB does not."""
    tracker = PositionTracker("", 4, skips=True)
    place(tracker, rotate(b"log.1", 4))
    place(tracker, event(FORMAT_DESCRIPTION, 124, bytes(97)))
    if says_so:
        assert place(tracker, event(HEARTBEAT, far, b"log.1")) == NOT_IN_FILE
        assert tracker.position == far
    assert place(tracker, event(GTID, far + 73, bytes(50))) == far
    assert tracker.position == far + 73


def test_a_dump_by_gtid_does_not_go_back() -> None:
    tracker = PositionTracker("log.1", 5000, skips=True)
    with pytest.raises(GapError, match="bytes of the log are missing"):
        place(tracker, event(GTID, 4073, bytes(50)))


def test_a_heartbeat_of_a_dump_by_gtid_says_where_it_goes_on() -> None:
    tracker = PositionTracker("log.1", 1000, skips=True)
    assert place(tracker, event(HEARTBEAT, 9000, b"log.1")) == NOT_IN_FILE
    assert tracker.position == 9000
    assert place(tracker, event(HEARTBEAT, 8000, b"log.1")) == NOT_IN_FILE, "one that is late"
    assert tracker.position == 9000
    assert place(tracker, event(HEARTBEAT, 9500, b"log.0")) == NOT_IN_FILE, "one of another file"
    assert tracker.position == 9000


def test_a_heartbeat_of_a_dump_by_position_changes_nothing() -> None:
    tracker = PositionTracker("log.1", 1000)
    assert place(tracker, event(HEARTBEAT, 9000, b"log.1")) == NOT_IN_FILE
    assert tracker.position == 1000


def test_heartbeat_of_mariadb_beyond_4_gib() -> None:
    """Its header says 0; the position stands in front of the name."""
    tracker = PositionTracker("log.1", 4, skips=True)
    far = (1 << 32) + 5000
    assert place(tracker, event(HEARTBEAT, 0, far.to_bytes(8, "little") + b"log.1")) == NOT_IN_FILE
    assert tracker.position == far


def test_heartbeat_v2_has_64_bits() -> None:
    tracker = PositionTracker("log.1", 4, skips=True)
    position = (1 << 32) - 10
    body = b"\x01\x05log.1" + b"\x02\x09\xfe" + struct.pack("<Q", position) + b"\x00"
    assert place(tracker, event(HEARTBEAT_V2, 0, body)) == NOT_IN_FILE
    assert tracker.position == position
    with pytest.raises(ProtocolError, match="heartbeat"):
        place(tracker, event(HEARTBEAT_V2, 0, b"\x01\x05lo"))


def test_a_gtid_list_that_the_dump_made_up_is_in_no_file() -> None:
    tracker = PositionTracker("log.1", 1000, skips=True)
    assert place(tracker, event(GTID_LIST, 1040, bytes(17), flags=ARTIFICIAL)) == NOT_IN_FILE
    assert tracker.position == 1000
    assert place(tracker, event(GTID_LIST, 1040, bytes(17))) == 1000


def test_a_rotate_without_a_name() -> None:
    with pytest.raises(ProtocolError, match=r"^a ROTATE event of \d+ bytes names no file$"):
        place(PositionTracker("", 4), event(ROTATE, 0, bytes(8)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x01\x09abc", "field needs 9 bytes at offset 2, 3 are left: 0109616263"),
        (b"\x01\xfc\x01", "length-encoded integer needs 3 bytes at offset 1, 2 are left: 01fc01"),
        (b"\x02\x01\xfb", "length-encoded integer: 251 does not start one (offset 0): 0201fb"),
    ],
)
def test_a_heartbeat_that_is_cut(body: bytes, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        _heartbeat_v2(body)
    assert str(caught.value) == f"a heartbeat of the server cannot be read: {message}"
