"""The cases that drive the codec's tests in both directions: events of real servers, and some made by hand.

By hand are those that no server at hand can be made to write; ``SOURCES`` names the two independent sources
from which the layout of each was taken.
"""

import functools
from dataclasses import dataclass

from millrace.binlog.checksum import compute_checksum
from millrace.binlog.declaration import Event
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import (
    CertificationItem,
    CreateFileEvent,
    DeleteRowsCompressedEvent,
    ExecLoadEvent,
    HeartbeatLogEvent,
    HeartbeatLogEventV2,
    IgnorableLogEvent,
    LoadEvent,
    NewLoadEvent,
    PartialRowDataEvent,
    SlaveEvent,
    TransactionContextEvent,
    UpdateRowsCompressedEvent,
    ViewChangeEvent,
    WriteRowsCompressedEvent,
    WriteSetItem,
)
from millrace.binlog.events.control import UnknownEvent
from millrace.binlog.state import LogFormat, StreamState
from tests.unit.binlog.vectors import FORMATS, REAL

__all__ = ["CASES", "SOURCES", "Case", "make_event", "state_of"]

MYSQL_97 = "9.7.4-2"
MARIADB_118 = "11.8.6-MariaDB-0+deb13u1 from Debian-log"


@dataclass(frozen=True, slots=True)
class Case:
    """An event in the format of a server: its bytes, and what they say; ``by_hand`` no server wrote it."""

    server: str
    data: bytes
    event: Event
    by_hand: bool = False

    def __str__(self) -> str:
        return f"{type(self.event).__name__} {self.server}"


@functools.cache
def _format_of(server: str) -> LogFormat | None:
    state = StreamState()
    decode_event(bytes.fromhex(FORMATS[server]), state, verify=False)
    return state.format


def state_of(server: str) -> StreamState:
    """Make the state after the format description of a server."""
    return StreamState(_format_of(server))


def make_event(type_code: int, body: bytes, *, checksum: bool = True) -> bytes:
    """Put a header in front of an event's post-header and body, and a checksum after."""
    size = 19 + len(body) + 4 * checksum
    header = (
        (1700000000).to_bytes(4, "little")
        + bytes([type_code])
        + (7).to_bytes(4, "little")
        + size.to_bytes(4, "little")
        + (4711).to_bytes(4, "little")
        + b"\0\0"
    )
    data = header + body
    return data + compute_checksum(data) if checksum else data


# A compressed record: 0x81, the length 4, and zlib's stream for 00 01 02 03.
_COMPRESSED = bytes.fromhex("8104789c636064620600000e0007")

# The worked example of CREATE_FILE_EVENT in the description of the v3 format, from its lines-to-skip on.
_WORKED_OPTIONS = (
    "012c0122010a013e015c06010101610062006300780074657374002f6d2f746d702f752e747874"
)  # fmt: skip
_WORKED_BLOCK = bytes.fromhex("3e312c322c330a3e342c352c360a3e372c382c390a3e31302c31312c3132")

_HAND = [
    (
        "4.1.26-debug-log",
        6,
        # thread, time, lines to skip, sizes of table and database, columns; one byte per option, two of flags
        "0500000000000000020000000104010000002c220a3e5c060801610078007465737400" + b"/m/tmp/u.txt".hex(),
        LoadEvent(5, 0, 2, b",", b'"', b"\n", b">", b"\\", 6, ("a",), "x", "test", "/m/tmp/u.txt", 8),
    ),
    (
        "4.1.26-debug-log",
        8,
        "05000000000000000200000001040300000003000000" + _WORKED_OPTIONS + "00" + _WORKED_BLOCK.hex(),
        CreateFileEvent(
            5,
            0,
            2,
            b",",
            b'"',
            b"\n",
            b">",
            b"\\",
            6,
            ("a", "b", "c"),
            "x",
            "test",
            "/m/tmp/u.txt",
            _WORKED_BLOCK,
            3,
        ),
    ),
    (
        "4.1.26-debug-log",
        12,
        "050000000000000002000000010403000000" + _WORKED_OPTIONS,
        NewLoadEvent(
            5, 0, 2, b",", b'"', b"\n", b">", b"\\", 6, ("a", "b", "c"), "x", "test", "/m/tmp/u.txt"
        ),
    ),
    (MYSQL_97, 7, "", SlaveEvent(b"")),
    (MARIADB_118, 10, "05000000", ExecLoadEvent(5)),
    (
        MARIADB_118,
        27,
        "0000000001000000" + b"b.001".hex(),
        HeartbeatLogEvent(1 << 32, "b.001"),
    ),
    (MYSQL_97, 28, "0102", IgnorableLogEvent(b"\1\2")),
    (
        MYSQL_97,
        36,
        # post-header: size of the uuid, thread id, gtid specified, size of the snapshot version, both sets
        (
            "03"
            "09000000"
            "01"
            "02000000"
            "02000000"
            "01000000"
            # body
            "612d62"
            "aabb"
            "0200"
            "0102"
            "0000"
            "0100"
            "ff"
        ),
        TransactionContextEvent(
            9, 1, "a-b", b"\xaa\xbb", (WriteSetItem(b"\1\2"), WriteSetItem(b"")), (WriteSetItem(b"\xff"),)
        ),
    ),
    (
        MYSQL_97,
        37,
        b"17:4".hex() + "00" * 36 + "08000000000000000100000001006b020000007676",
        ViewChangeEvent("17:4", 8, (CertificationItem(b"k", b"vv"),)),
    ),
    (
        MYSQL_97,
        41,
        # type 1, length, name; type 2, length, position; 0
        "0105622e3030310209fe000000000100000000",
        HeartbeatLogEventV2("b.001", 1 << 32),
    ),
    (MYSQL_97, 250, "010203", UnknownEvent(b"\1\2\3")),
    (
        MARIADB_118,
        169,
        "680000000000010002000307" + _COMPRESSED.hex(),
        WriteRowsCompressedEvent(0x68, 1, b"", 3, b"", b"\7", _COMPRESSED),
    ),
    (
        MARIADB_118,
        170,
        "68000000000001000400ffff030705" + _COMPRESSED.hex(),
        UpdateRowsCompressedEvent(0x68, 1, b"\xff\xff", 3, b"\7", b"\5", _COMPRESSED),
    ),
    (
        MARIADB_118,
        171,
        "6800000000000000020009ff01" + _COMPRESSED.hex(),
        DeleteRowsCompressedEvent(0x68, 0, b"", 9, b"\xff\1", b"", _COMPRESSED),
    ),
    (
        MARIADB_118,
        172,
        # fragments in all, number of this one, flags, size of the whole, data
        "02000000" + "01000000" + "01" + "2800000000000000" + "aabb",
        PartialRowDataEvent(2, 1, 1, 40, b"\xaa\xbb"),
    ),
    (
        MARIADB_118,
        172,
        "02000000" + "02000000" + "00" + "ccdd",
        PartialRowDataEvent(2, 2, 0, None, b"\xcc\xdd"),
    ),
]

CASES = [
    *(Case(vector.server, bytes.fromhex(vector.data), vector.event) for vector in REAL),
    *(
        Case(server, make_event(code, bytes.fromhex(body), checksum=not server.startswith("4.")), event, True)
        for server, code, body, event in _HAND
    ),
]

_MYSQL_57 = "`sql/log_event.cc` of MySQL 5.7"
_BINLOG_EVENT = "`binlog_event.h` of MySQL 9"
_CONTROL_EVENTS = "the decoder in MySQL 5.7's `control_events.cpp`"
_V3 = "the description of the v3 format with its worked example"
_MARIADB = "`sql/log_event.cc` of MariaDB"
_PROTOCOL = "MariaDB's replication protocol in its documentation"

SOURCES: dict[int, tuple[str, str]] = {
    6: (_MYSQL_57, _V3),
    7: (_MYSQL_57, _V3),
    8: (_MYSQL_57, _V3),
    10: (_MYSQL_57, _V3),
    12: (_MYSQL_57, _V3),
    27: ("`sql/sql_repl.cc` of MariaDB", "zongji, a client in JavaScript"),
    28: (_BINLOG_EVENT, "`sql/log_event.h` of MariaDB, which ignores it"),
    36: (_CONTROL_EVENTS, "the offsets in MySQL 8's `control_events.h`, whose 18 bytes real logs declare"),
    37: (_CONTROL_EVENTS, "the offsets in MySQL 8's `control_events.h`, whose 52 bytes real logs declare"),
    41: ("`codecs/binary.cpp` of MySQL 8", "a client's writer of it in Go"),
    169: (_MARIADB, _PROTOCOL),
    170: (_MARIADB, _PROTOCOL),
    171: (_MARIADB, _PROTOCOL),
    172: (_PROTOCOL, "the review of that page, which quotes `sql/log_event.h` of MariaDB 12.3"),
}
"""Of each type of which a case was made by hand: where its layout was learnt, twice."""
