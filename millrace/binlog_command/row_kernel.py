"""The rows of events by the kernel: what it needs to know of a table to write, check or count them.

It stands in for :class:`~millrace.binlog.row_images.RowImages` and for what the outputs do with each
value, and gives the same bytes. It writes ordinary values itself; the others it hands to a function of their
column. An event with a row that cannot be read is left to the reference from that row on.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace import kernel
from millrace.binlog.columns.declaration import AvroOptions, ColumnCodec, NativeKind
from millrace.binlog.columns.types import COMPRESSED_TYPES
from millrace.binlog.row_images import present_ordinals

if TYPE_CHECKING:
    from millrace.kernel.text import RowText

_ENOUGH: Final = 1 << 20

NO_ESCAPES: Final = (b"",) * 256


class TextKind(IntEnum):
    """How the kernel writes the bytes of a value."""

    PYTHON = 0
    """By the function of the column."""
    NOTHING = 1
    """Not at all, nor what stands around it."""
    SIGNED = 2
    UNSIGNED = 3
    BOTH_SIGNS = 4
    """A little-endian integer with its sign, and the reading without one in brackets where it differs."""
    STRING = 5
    """In quotes, with escapes; where ``a`` is not 0, UTF-8 in which no byte is above it."""
    DECIMAL = 6
    """Of ``a`` digits, ``b`` of them after the point."""
    DATE = 7
    """With the character ``a`` between the parts."""
    TIME = 8
    """With ``a`` digits of a fraction; so in the next three."""
    DATETIME = 9
    SECONDS = 10
    """A TIMESTAMP as seconds since 1970."""
    TIMESTAMP = 11
    """A TIMESTAMP as date and time in UTC."""
    REAL = 12
    """FLOAT or DOUBLE, as mysqlbinlog writes it where ``a`` is 1, else as JSON has it."""
    JSON = 13
    """A document's text as a string; ``a`` is 1 where a double without a fraction is written as an integer
    is, ``b`` where a document that is a mere string or the like is left to the column's function."""


class Value(NamedTuple):
    """How the kernel writes the values of a column: a kind, its numbers, the quote around the text."""

    kind: TextKind
    a: int = 0
    b: int = 0
    quote: bytes = b""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """How a column is written: its values, what stands around them, and what stands for NULL.

    ``write`` takes a payload, as :meth:`ColumnCodec.decode` does.
    """

    value: Value
    write: Callable[[Any], bytes]
    before: bytes = b""
    after: bytes = b""
    null: bytes = b""


Around = tuple[bytes, bytes]
"""What stands before and after the columns of an image."""
_NOTHING: Final[Around] = (b"", b"")


class Rows:
    """The rows of the events that share a table map and the bitmaps of present columns."""

    def __init__(self, text: "RowText") -> None:
        self._write = text.write

    def write(self, rows: bytes, out: Callable[[bytes], object]) -> tuple[int, int]:
        """Write rows to ``out``, piece by piece, up to one that cannot be read.

        Give where the last row that was written ends, and how many were. Raises what the columns' functions
        raise.
        """
        position = count = 0
        while position < len(rows):
            text, position, more = self._write(rows, position, _ENOUGH)
            if not more:
                break
            out(text)
            count += more
        return position, count

    def count(self, rows: bytes) -> int | None:
        """Count rows; None where one cannot be read."""
        end, count = self.write(rows, len)
        return count if end == len(rows) else None


_FRACTIONS: Final = frozenset({TextKind.TIME, TextKind.DATETIME, TextKind.SECONDS, TextKind.TIMESTAMP})


def value_of(codec: ColumnCodec, values: Mapping[NativeKind, Value]) -> Value:
    """Choose how the kernel writes a column among those for its kinds; fill in the numbers that are 0."""
    native = codec.native(AvroOptions())
    value = None if native is None else values.get(native.kind)
    if native is None or value is None:
        return Value(TextKind.PYTHON)
    if value.kind in _FRACTIONS:
        return value._replace(a=getattr(codec.column.metadata, "digits", 0))
    return value._replace(a=value.a or native.a, b=value.b or native.b)


def rows_by_kernel(
    codecs: Sequence[ColumnCodec],
    columns: Sequence[TextColumn],
    bitmaps: tuple[bytes | None, bytes | None],
    *,
    escapes: Sequence[bytes] = NO_ESCAPES,
    around: tuple[Around, Around] = (_NOTHING, _NOTHING),
    between: bytes = b"",
    only_check: bool = False,
) -> Rows | None:
    """Make what writes the rows of a table; None where the reference must.

    ``bitmaps`` are those of the columns present in the images before and after, None for one that the events
    lack, and ``around`` is what stands around these images; ``escapes`` has what stands for each byte of a
    string, nothing where that is the byte. With ``only_check`` nothing is written.
    """
    # What columns of one event may unpack is bounded, which the reference keeps count of.
    if not kernel.has("text") or any(codec.column.type in COMPRESSED_TYPES for codec in codecs):
        return None
    present = [None if bitmap is None else present_ordinals(bitmap, len(codecs)) for bitmap in bitmaps]
    if not any(present):
        return None
    from millrace.kernel.text import RowText  # noqa: PLC0415 - whether it is built shows when it runs

    images = [
        None if ordinals is None else ([ordinal in ordinals for ordinal in range(len(codecs))], *pieces)
        for ordinals, pieces in zip(
            (frozenset(one) if one is not None else None for one in present), around, strict=True
        )
    ]
    text = RowText(
        [_facts(codec, column) for codec, column in zip(codecs, columns, strict=True)],
        [_from_bytes(codec, column.write) for codec, column in zip(codecs, columns, strict=True)],
        escapes,
        images[0],
        images[1],
        between,
        only_check,
    )
    return Rows(text)


def counting(codecs: Sequence[ColumnCodec], bitmaps: tuple[bytes | None, bytes | None]) -> Rows | None:
    """Make what counts the rows of a table."""
    nothing = TextColumn(Value(TextKind.NOTHING), bytes)
    return rows_by_kernel(codecs, [nothing] * len(codecs), bitmaps)


def _facts(
    codec: ColumnCodec, column: TextColumn
) -> tuple[int, int, int, int, int, int, bytes, bytes, bytes]:
    size = struct.calcsize("<" + codec.struct_code) if codec.struct_code else 0
    kind, a, b, quote = column.value
    return (
        kind,
        codec.length_bytes,
        size,
        a,
        b,
        quote[0] if quote else 0,
        column.before,
        column.after,
        column.null,
    )


def _from_bytes(codec: ColumnCodec, write: Callable[[Any], bytes]) -> Callable[[bytes], bytes]:
    """Bind a function of payloads to take their bytes."""
    code = codec.struct_code
    if not code or code.endswith("s"):
        return write
    unpack = struct.Struct("<" + code).unpack
    return lambda data: write(unpack(data)[0])
