import io

import pytest

from millrace.binlog.declaration import Event
from millrace.binlog.events import AnnotateRowsEvent, IgnorableLogEvent, WriteRowsEvent
from millrace.binlog_command.hexdump import HexdumpLayout, hexdump
from millrace.binlog_command.text import TextOptions, TextOutput

from .made_logs import ALL, TABLE_MAP, MadeLog

# A QUERY event of a real server: BEGIN in database `test`, at 642 of its log.
EVENT = bytes.fromhex(
    "4ef3d56502010000004b000000cd0200000800"
    "09000000000000000400001d000000000000012000a04500000000060373746404ff00ff00ff0012ff007465737400"
    "424547494e5deb56b9"
)


def dumped(data: bytes, position: int, layout: HexdumpLayout, *, has_fields: bool = True) -> str:
    return b"".join(hexdump(data, position, layout, has_fields=has_fields)).decode()


def test_mysql() -> None:
    assert dumped(EVENT, 642, HexdumpLayout.MYSQL) == (
        "# Position  Timestamp   Type   Source ID        Size      Source Pos    Flags \n"
        "# 00000282 4e f3 d5 65   02   01 00 00 00   4b 00 00 00   cd 02 00 00   08 00\n"
        "# 00000295 09 00 00 00 00 00 00 00  04 00 00 1d 00 00 00 00 |................|\n"
        "# 000002a5 00 00 01 20 00 a0 45 00  00 00 00 06 03 73 74 64 |......E......std|\n"
        "# 000002b5 04 ff 00 ff 00 ff 00 12  ff 00 74 65 73 74 00 42 |..........test.B|\n"
        "# 000002c5 45 47 49 4e 5d eb 56 b9                          |EGIN..V.|\n"
    )


def test_mysql_before_8_0() -> None:
    lines = dumped(EVENT, 642, HexdumpLayout.MYSQL_OLD).splitlines()
    assert lines[0] == "# Position  Timestamp   Type   Master ID        Size      Master Pos    Flags "
    assert lines[1] == "#      282 4e f3 d5 65   02   01 00 00 00   4b 00 00 00   cd 02 00 00   08 00"
    assert lines[-1] == "#      2c5 45 47 49 4e 5d eb 56 b9                          |EGIN..V.|"


def test_mariadb() -> None:
    assert dumped(EVENT, 642, HexdumpLayout.MARIADB) == (
        "# Position\n"
        "#           |Timestamp   |Type |Master ID   |Size        |Master Pos  |Flags\n"
        "#      282  |4e f3 d5 65 |02   |01 00 00 00 |4b 00 00 00 |cd 02 00 00 |08 00\n"
        "#\n"
        "#      295  09 00 00 00 00 00 00 00  04 00 00 1d 00 00 00 00  |................|\n"
        "#      2a5  00 00 01 20 00 a0 45 00  00 00 00 06 03 73 74 64  |... ..E......std|\n"
        "#      2b5  04 ff 00 ff 00 ff 00 12  ff 00 74 65 73 74 00 42  |..........test.B|\n"
        "#      2c5  45 47 49 4e 5d eb 56 b9                           |EGIN].V.|\n"
        "#\n"
    )


def test_a_log_before_version_4_has_no_line_for_the_header() -> None:
    text = dumped(EVENT[:20], 4, HexdumpLayout.MYSQL_OLD, has_fields=False)
    assert text == (
        "#        4 4e f3 d5 65 02 01 00 00  00 4b 00 00 00 cd 02 00 |N..e.....K......|\n"
        "#       14 00 08 00 09                                      |....|\n"
    )


def test_an_event_of_nothing_but_its_header() -> None:
    for layout in HexdumpLayout:
        lines = dumped(EVENT[:19], 4, layout).splitlines()
        assert "4e f3 d5 65" in lines[-1] or lines[-1] == "#"


def test_pieces_are_no_lines_of_their_own() -> None:
    data = bytes(range(256)) * 1024
    for layout in HexdumpLayout:
        first, *pieces = hexdump(data, 4, layout, has_fields=False)
        assert len(pieces) > 2
        lines = (first + b"".join(pieces)).splitlines()
        assert len(lines) == len(data) // 16 + (layout is HexdumpLayout.MARIADB)
        assert len(set(map(len, lines[:-1]))) == 1


class _Largest(io.BytesIO):
    """Notes how much is written at once."""

    largest = 0

    def write(self, data: object) -> int:
        written = super().write(data)  # type: ignore[arg-type]
        self.largest = max(self.largest, written)
        return written


@pytest.mark.parametrize(
    ("version", "events"),
    [
        ("8.0.30", (IgnorableLogEvent(bytes(4 << 20)),)),
        ("8.0.30", (TABLE_MAP, WriteRowsEvent(7, 0, b"", 2, b"", ALL, bytes(4 << 20)))),
        ("11.4.5-MariaDB", (AnnotateRowsEvent(b"\n" * (4 << 20)), TABLE_MAP)),
    ],
    ids=["bytes", "rows", "annotation"],
)
def test_a_large_event_is_written_in_pieces(version: str, events: tuple[Event, ...]) -> None:
    """Its text is five times as long, and is held nowhere."""
    log, stream = MadeLog(version).add(*events), _Largest()
    output = TextOutput(stream, TextOptions(hexdump=True, base64_output="decode-rows"))
    for record in log.records():
        output.write(record)
    output.close()
    assert stream.tell() > 18 << 20
    assert stream.largest < 2 << 20
