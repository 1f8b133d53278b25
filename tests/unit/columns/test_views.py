"""All views of a value show the same, and all of them refuse what no server writes.

Views are: Avro by the reference and by the kernel, the text of mysqlbinlog and JSON by both, SQL, and the
check that a value has the same bytes when it is encoded again.
"""

import base64
import datetime as dt
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from millrace import kernel
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import ResolvedTable
from millrace.binlog_command import json_output, row_printer, verify
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.row_kernel import TextColumn, rows_by_kernel
from tests.column_images import COLUMNS, Image, some_images
from tests.unit.kernel.both_rows import Way

T = ColumnType
_COUNT = 60
_OPTIONS = (
    AvroOptions(),
    AvroOptions(temporal="debezium", bit="debezium", decimal="string"),
    AvroOptions(temporal="connect", decimal="double"),
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIMESTAMPS = (T.TIMESTAMP, T.TIMESTAMP2)
_REALS = (T.FLOAT, T.DOUBLE)


def _name(one: Column) -> str:
    return f"{one.type.name}-{one.metadata}-{one.unsigned}"


def _moment(seconds: str) -> str:
    """Write seconds since 1970 as date and time in UTC."""
    whole, point, fraction = seconds.partition(".")
    return f"{_EPOCH + dt.timedelta(seconds=int(whole)):%Y-%m-%d %H:%M:%S}{point}{fraction}"


def _number(one: Column, text: str) -> str:
    """Read a number in one of the forms in which views write it."""
    if bits := re.fullmatch(r"b'([01]+)'", text):
        return str(int(bits[1], 2))
    signed, _, other = text.strip("'").partition(" (")
    if one.type is T.YEAR:  # 1900 is what mysqlbinlog writes for the year 0000
        return "0000" if int(signed) == 1900 else f"{int(signed):04d}"
    return other.removesuffix(")") if other and one.unsigned else signed


def _shown(one: Column, text: str) -> str:
    """Bring the text of a view into the form of the server's."""
    if one.type is T.DATE:
        return text.strip("'").replace(":", "-")
    if one.type in (T.TIME, T.TIME2, T.DATETIME, T.DATETIME2):
        return text.strip("'")
    if one.type in _TIMESTAMPS:
        return _moment(text) if ":" not in text else text.strip("'")
    if one.type in _REALS:  # mysqlbinlog writes six digits of a FLOAT
        return f"{float(text.strip()):.{5 if one.type is T.FLOAT else 16}e}"
    return _number(one, text)


def _of_avro(one: Column, value: Any) -> str:
    """Write an Avro value of the default options as the server does."""
    if one.type is T.DATE:
        return f"{_EPOCH + dt.timedelta(days=value):%Y-%m-%d}".rjust(10, "0")
    digits = getattr(one.metadata, "digits", 0)
    if one.type in (T.DATETIME, T.DATETIME2, *_TIMESTAMPS):
        moment = _EPOCH + dt.timedelta(microseconds=value)
        text = f"{moment.year:04d}-{moment:%m-%d %H:%M:%S.%f}"
        assert text.endswith("0" * (6 - digits))
        return text[: 19 + (digits and digits + 1)]
    if one.type in (T.TIME, T.TIME2):
        seconds, micros = divmod(abs(value), 1_000_000)
        clock = f"{'-' * (value < 0)}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        assert f"{micros:06d}".endswith("0" * (6 - digits))
        return clock + f".{micros:06d}"[: digits and digits + 1]
    if one.type is T.NEWDECIMAL and isinstance(value, bytes):
        number, scale = int.from_bytes(value, "big", signed=True), one.metadata.scale
        text = str(abs(number)).rjust(scale + 1, "0")
        whole, part = text[: len(text) - scale], text[len(text) - scale :]
        return f"{'-' * (number < 0)}{whole}" + (f".{part}" if scale else "")
    if isinstance(value, bytes):  # of BIT, and of BIGINT UNSIGNED
        return str(int.from_bytes(value, "big"))
    return f"{value:04d}" if one.type is T.YEAR else _shown(one, str(value))


def _row(one: Column, payload: bytes) -> bytes:
    assert codec_of(one).struct_code
    return b"\0" + payload


def _payload(one: Column, stored: bytes) -> Any:
    code = codec_of(one).struct_code
    return struct.unpack("<" + code, stored)[0]


def avro(one: Column, image: Image) -> str | None:
    """Return what Avro's reference shows, with the text of what its type has no value for."""
    found = RowImages((one,), None, b"\x01", options=AvroOptions()).avro(_row(one, image.payload))
    ((_, (value,)),) = found.rows  # type: ignore[misc] - there is an image after
    if value is not None:
        return _of_avro(one, value)
    lost = found.unrepresentable[0, 1][0]
    return lost if isinstance(lost, str) else None


def _by(one: Column, image: Image, column: TextColumn, escapes: Sequence[bytes] | None = None) -> str | None:
    """Write a value by the kernel, or without one by the function of its column."""
    try:
        rows = rows_by_kernel([codec_of(one)], [column], (None, b"\x01"))
        if rows is None:
            return column.write(_payload(one, image.payload)).decode()
        pieces: list[bytes] = []
        rows.write(_row(one, image.payload), pieces.append)
    except BinlogError:
        return None
    return b"".join(pieces).decode()


def mysqlbinlog(one: Column, image: Image) -> str | None:
    codec = codec_of(one)
    write = codec.printer()
    assert write is not None
    found = _by(one, image, TextColumn(row_printer._value(codec, write, Generation.MYSQL_8_0), write))
    return None if found is None else _shown(one, found)


def as_json(one: Column, image: Image) -> str | None:
    codec = codec_of(one)
    write = json_output._writer(codec, json_output._conversion(codec), json_output._is_plain(codec))
    found = _by(one, image, TextColumn(json_output.value_of(codec, json_output._VALUES), write))
    if found is None:
        return None
    value = json.loads(found)
    if isinstance(value, dict):
        return str(int.from_bytes(base64.b64decode(value["base64"]), "big"))
    return _shown(one, str(value))


def sql(one: Column, image: Image) -> str | None:
    codec = codec_of(one)
    try:
        return _shown(one, codec.sql_literal(codec.decode(_payload(one, image.payload))))
    except BinlogError:
        return None


def checked(one: Column, image: Image) -> bool:
    """Whether ``binlog --verify`` finds the value sound."""
    return _by(one, image, verify._checked(codec_of(one))) is not None


_VIEWS: tuple[Callable[[Column, Image], str | None], ...] = (avro, mysqlbinlog, as_json, sql)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("one", COLUMNS, ids=_name)
def test_all_views_show_the_same_or_refuse_it(one: Column, compiled: bool) -> None:
    with patch.object(kernel, "_enabled", compiled):
        for image in some_images(1, one, _COUNT):
            wanted = image.text
            if wanted is not None and one.type in (*_TIMESTAMPS, *_REALS):
                wanted = _shown(one, wanted)
            shown = {view.__name__: view(one, image) for view in _VIEWS}
            assert shown == dict.fromkeys(shown, wanted), image.payload.hex()
            assert checked(one, image) is (wanted is not None), image.payload.hex()


@pytest.mark.skipif(not kernel.built("rows"), reason="the kernel is not built (make kernel)")
@pytest.mark.parametrize("options", _OPTIONS, ids=lambda options: options.temporal)
def test_both_ways_to_avro(options: AvroOptions) -> None:
    """All columns are in one table; one image at a time is of another row than the first."""
    columns = [
        Column(**{name: getattr(one, name) for name in one.__slots__} | {"ordinal": at, "name": f"c{at}"})
        for at, one in enumerate(COLUMNS)
    ]
    table = ResolvedTable("shop", "orders", tuple(columns), (), "table_map")
    every = [some_images(2, one, _COUNT) for one in COLUMNS]
    rows = [
        bytes((len(columns) + 7) // 8) + b"".join(image.payload for image in row) for row in _turned(every)
    ]
    compiled, reference = (
        Way(table, RowsOperation.WRITE, options, compiled=which) for which in (True, False)
    )
    for row in rows:
        assert compiled(row) == reference(row)
    found = reference.images.avro(b"".join(rows))
    for number, row in enumerate(_turned(every)):
        lost = found.unrepresentable.get((number, 1), {})
        refused = {ordinal for ordinal, original in lost.items() if isinstance(original, bytes)}
        assert refused >= {at for at, image in enumerate(row) if image.text is None}
        assert not any(row[at].text is not None for at in refused)


def _turned(every: list[Sequence[Image]]) -> Iterator[tuple[Image, ...]]:
    return zip(*every, strict=True)
