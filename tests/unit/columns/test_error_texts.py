"""What is said of columns and values that cannot be read or written: the whole texts."""

import datetime as dt
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from millrace.binlog.columns import AvroOptions, Column, codec_of
from millrace.binlog.columns import ColumnType as T
from millrace.binlog.columns.charsets import charset
from millrace.binlog.columns.json_binary import decode_json
from millrace.binlog.columns.json_diffs import JsonDiffs, _legs
from millrace.binlog.columns.metadata import _lists, columns_of
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.strings import Uuid
from millrace.binlog.columns.temporals import Date, DateTime
from millrace.binlog.cursor import Cursor
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.row_images import RowImages, present_ordinals
from tests import columns

column = partial(columns.column, name="c")
INT = column(T.LONG, name="n")
TEXT = column(T.VARCHAR, 80, name="t", charset="latin1")
JSON = column(T.JSON, 4, name="j")


def encoded(made: Column, value: object) -> object:
    return codec_of(made).encode(value)


def avro(made: Column, payload: object) -> object:
    convert = codec_of(made).avro_decoder(AvroOptions())
    assert convert is not None
    return convert(payload)


def table_map(**fields: object) -> TableMapEvent:
    made = TableMapEvent(7, 1, "shop", "t", bytes((T.LONG, T.LONG)), b"", b"\x00")
    return replace(made, **fields)  # type: ignore[arg-type]


SHARED = (
    b"\x02"
    + struct.pack("<HH", 10, 68)
    + struct.pack("<BH", 2, 34) * 10
    + struct.pack("<HH", 10, 34)
    + struct.pack("<BH", 5, 0) * 10
)
"""Ten arrays in an array which are one and the same: more values than bytes."""

PARTIAL = RowImages([JSON], b"\x01", b"\x01", partial_json=True)
ROW = RowImages([INT], None, b"\x01")

CAUSES: list[tuple[Callable[[], object], str]] = [
    (lambda: charset("klingon"), "no character set is called 'klingon'"),
    (lambda: decode_json(SHARED), "the JSON document is deeper or larger than its bytes allow"),
    (lambda: _legs("$.a b"), "'$.a b' is not a JSON path"),
    (lambda: JsonDiffs(b"").applied_text(None), "the document that was changed is not in the event"),
    (lambda: codec_of(column(T.ENUM, 9)), "ENUM values cannot have 9 bytes"),
    (
        lambda: codec_of(column(T.SET, 8)).avro_decoder(AvroOptions())(1 << 63),
        f"{1 << 63} is too large for a long",
    ),
    (lambda: _lists(Cursor(b"\x09ab", 0, 3)), "9 members do not fit the 2 bytes that are left"),
    (lambda: columns_of(table_map(null_bits=b"\x00\x00")), "2 bytes of NULL bits for 2 columns"),
    (lambda: columns_of(table_map(optional_metadata=b"\x08\x01\x05")), "column 6 of 2 is in the primary key"),
    (lambda: encoded(column(T.BIT, 4), 300), "300 is out of range for bit(4)"),
    (lambda: encoded(column(T.YEAR), 1900), "1900 is not a YEAR"),
    (lambda: encoded(column(T.VECTOR, 4), (1e300,)), "(1e+300,) is not a VECTOR"),
    (lambda: SqlType.parse("("), "the catalog calls a column's type '('"),
    (lambda: encoded(replace(TEXT, charset="binary"), "a"), "column t holds bytes, not text"),
    (lambda: encoded(TEXT, "\u2603"), "'\u2603' is not text in latin1"),
    (lambda: codec_of(column(T.DATETIME2, 7)), "a second's fraction has 0-6 digits, not 7"),
    (lambda: encoded(column(T.DATE), Date(1, 16, 1)), "0001-16-01 is not a DATE"),
    (lambda: encoded(column(T.TIME2, 0), dt.timedelta(hours=1024)), "42 days, 16:00:00 is not a TIME"),
    (lambda: encoded(column(T.TIME, 0), dt.timedelta(hours=900)), "37 days, 12:00:00 is not a TIME"),
    (
        lambda: encoded(column(T.DATETIME2, 0), DateTime(2020, 13, 1, 0, 0, 0, 0)),
        "2020-13-01 00:00:00 is not a DATETIME",
    ),
    (
        lambda: encoded(column(T.DATETIME2, 0), DateTime(99999, 1, 1, 0, 0, 0, 0)),
        "99999-01-01 00:00:00 is not a DATETIME",
    ),
    (lambda: avro(replace(column(T.ENUM, 1), members=(b"\xe9",)), 1), "a member is known as bytes alone: e9"),
    (lambda: Uuid(column(T.STRING, 16)).encode("nonsense"), "'nonsense' is not a value of type uuid"),
    (lambda: present_ordinals(b"", 2), "a bitmap of 0 bytes does not fit 2 columns"),
    (lambda: ROW.encode([(None, (1, 2))]), "2 values for 1 columns"),
    (lambda: ROW.encode([((1,), None)]), "a row has other images than its event"),
    (lambda: RowImages([INT], None, b"\x00").encode([(None, (1,))]), "column 1 is not absent"),
    (
        lambda: ROW.encode([(None, (1 << 40,))]),
        f"{1 << 40} does not fit int: 'i' format requires -2147483648 <= number <= 2147483647",
    ),
    (lambda: RowImages([INT], None, None), "rows have a before image, an after image or both"),
    (
        lambda: PARTIAL.decode(b"\x00\x04\x00\x00\x00\x00\x00\x00\x00"),
        "the options of a partial row image are missing",
    ),
    (lambda: PARTIAL.decode(b"\x00\x00\x00\x00\x00\x07"), "options 0x7 of a partial row image are not known"),
    (lambda: PARTIAL.decode(b"\x00\x00\x00\x00\x00\x01"), "a bitmap of partial columns needs 1 bytes"),
    (
        lambda: RowImages([JSON], None, b"\x01", partial_json=True).decode(b"\x00"),
        "partial rows are updates: they have both images",
    ),
    (
        lambda: RowImages([INT] * 9, None, b"\xff\x01").null_fill(b"\x00"),
        "a bitmap of NULL columns needs 2 bytes",
    ),
]


@pytest.mark.parametrize(("cause", "text"), CAUSES, ids=[text[:40] for _, text in CAUSES])
def test_the_text(cause: Callable[[], object], text: str) -> None:
    with pytest.raises(BinlogError) as caught:
        cause()
    assert caught.value.message == text
