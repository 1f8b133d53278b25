"""Columns as JSON by the kernel, and by the reference."""

import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millrace import kernel
from millrace.spark.json_columns import json_rows

pytestmark = pytest.mark.skipif(not kernel.has("json_columns"), reason="the kernel is not built")

_ROWS = 400
_DAY = 86_400_000_000
_FIRST, _LAST = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31


def _array(one: random.Random, value: Callable[[], Any], type_: pa.DataType) -> pa.Array:
    return pa.array([None if one.random() < 0.2 else value() for _ in range(_ROWS)], type_)


def _text(one: random.Random) -> str:
    return "".join(one.choices('ab "\\\n\x01\x7fé€😀,{', k=one.randrange(6)))


def _rows(one: random.Random) -> pa.StructArray:
    columns = {
        'a "text"': _array(one, lambda: _text(one), pa.string()),
        "ö": _array(one, lambda: one.randrange(-(2**63), 2**63), pa.int64()),
        "int": _array(one, lambda: one.randrange(-(2**31), 2**31), pa.int32()),
        "boolean": _array(one, lambda: one.random() < 0.5, pa.bool_()),
        "date": _array(one, lambda: one.randrange(_FIRST, _LAST + 1), pa.date32()),
        "time": _array(one, lambda: one.randrange(_FIRST * _DAY, _LAST * _DAY), pa.timestamp("us")),
        "utc": _array(one, lambda: one.randrange(_FIRST * _DAY, _LAST * _DAY), pa.timestamp("us", "UTC")),
        "double": _array(one, lambda: one.gauss(0, 1) * 10.0 ** one.randrange(-20, 20), pa.float64()),
        "bytes": _array(one, lambda: one.randbytes(one.randrange(5)), pa.binary()),
        "texts": _array(one, lambda: [_text(one) for _ in range(one.randrange(3))], pa.list_(pa.string())),
        "large": _array(one, lambda: Decimal(one.randrange(-(10**38) + 1, 10**38)), pa.decimal128(38, 0)),
    }
    for scale in (0, 1, 8, 18):
        column = _array(one, lambda s=scale: Decimal(_digits(one)).scaleb(-s), pa.decimal128(18, scale))  # type: ignore[misc]
        columns[f"decimal {scale}"] = column
    missing = pa.array([one.random() < 0.1 for _ in range(_ROWS)])
    return pa.StructArray.from_arrays([*columns.values()], [*columns], mask=missing)


def _digits(one: random.Random) -> int:
    return one.randrange(-(10**18) + 1, 10**18) // 10 ** one.randrange(19)


@pytest.mark.parametrize("seed", range(5))
def test_as_the_reference(seed: int) -> None:
    rows = _rows(random.Random(seed))
    nested = pa.StructArray.from_arrays([rows, rows.field(0)], ["row", "text"])
    for part in (rows, rows.slice(7, 100), rows.slice(8, 0), nested):
        names = [field.name for field in part.type]
        found = json_rows(part, names)
        found.validate(full=True)
        assert found.equals(json_rows(part, names, native=False))
    parsed = [
        json.loads(text)
        for text in json_rows(rows, [field.name for field in rows.type]).drop_null().to_pylist()
    ]
    assert {len(row) for row in parsed} == {len(rows.type)}


def test_what_is_out_of_the_ordinary() -> None:
    """Years beyond four digits are left to the reference."""
    times = pa.StructArray.from_arrays([pa.array([0, (_LAST + 1) * _DAY], pa.timestamp("us"))], ["t"])
    assert json_rows(times, ["t"]).equals(json_rows(times, ["t"], native=False))
