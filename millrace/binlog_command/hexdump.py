"""``--hexdump``: the bytes of an event beside its text, in the layouts of mysqlbinlog.

A head that names the fields of the common header, the header field by field, then sixteen bytes a line with
the characters among them. MySQL since 8.0 writes positions with zeros in front, MySQL before that
with spaces; MariaDB rules its lines. A log before version 4 has no fields in lines of their own.
"""

from collections.abc import Callable, Iterator
from enum import Enum

from millrace.binlog.header import HEADER_LENGTH


class HexdumpLayout(Enum):
    """Whose layout."""

    MYSQL_OLD = "mysql-5"
    MYSQL = "mysql-8"
    MARIADB = "mariadb"


_PIECE = 1 << 16

_FIELDS = ((0, 4), (4, 5), (5, 9), (9, 13), (13, 17), (17, 19))
_MYSQL_HEAD = b"# Position  Timestamp   Type   %b ID        Size      %b Pos    Flags \n"
_HEADS = {
    HexdumpLayout.MYSQL_OLD: _MYSQL_HEAD % (b"Master", b"Master"),
    HexdumpLayout.MYSQL: _MYSQL_HEAD % (b"Source", b"Source"),
    HexdumpLayout.MARIADB: (
        b"# Position\n#           |Timestamp   |Type |Master ID   |Size        |Master Pos  |Flags\n"
    ),
}
_ALPHANUMERIC = bytes(code if bytes((code,)).isalnum() else ord(".") for code in range(256))
_PRINTABLE = bytes(code if 0x20 <= code < 0x7F else ord(".") for code in range(256))


def _mysql_head(position: bytes, fields: list[str]) -> bytes:
    return b"# %b %b\n" % (position, "   ".join(fields).encode("ascii"))


def _mariadb_head(position: bytes, fields: list[str]) -> bytes:
    fields[1] = fields[1].ljust(4)  # as wide as its title
    return b"# %b  |%b\n#\n" % (position, " |".join(fields).encode("ascii"))


_POSITIONS: dict[HexdumpLayout, Callable[[int], bytes]] = {
    HexdumpLayout.MYSQL_OLD: lambda position: b"%8x" % position,
    HexdumpLayout.MYSQL: lambda position: b"%08x" % position,
    HexdumpLayout.MARIADB: lambda position: b"%8x" % position,
}


def hexdump(data: bytes, position: int, layout: HexdumpLayout, *, has_fields: bool) -> Iterator[bytes]:
    """Write all bytes of an event that stands at ``position``, in pieces: the text is five times as long.

    ``has_fields`` is false for logs before version 4, whose header is written like the rest.
    """
    at = _POSITIONS[layout]
    start = 0
    if has_fields:
        fields = [data[first:last].hex(" ") for first, last in _FIELDS]
        head = _mariadb_head if layout is HexdumpLayout.MARIADB else _mysql_head
        yield _HEADS[layout] + head(at(position), fields)
        start = HEADER_LENGTH
    line = b"# %b  %-48b  |%b|\n" if layout is HexdumpLayout.MARIADB else b"# %b %-48b |%b|\n"
    shown = _PRINTABLE if layout is HexdumpLayout.MARIADB else _ALPHANUMERIC
    for first in range(start, len(data), _PIECE):
        out = bytearray()
        for offset in range(first, min(first + _PIECE, len(data)), 16):
            row = data[offset : offset + 16]
            digits = row[:8].hex(" ") + ("  " + row[8:].hex(" ") if len(row) > 8 else "")
            out += line % (at(position + offset), digits.encode("ascii"), row.translate(shown))
        yield bytes(out)
    if layout is HexdumpLayout.MARIADB and start < len(data):
        yield b"#\n"
