"""Values of JSON as the definitions of columns say, and what is no row of a definition."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from millrace.binlog.columns.declaration import AvroOptions
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.verify.json_rows import JsonRows

TYPES = {
    "id": "int",
    "größe": "decimal(8,3)",
    "data": "varbinary(10)",
    "text": "varchar(10)",
    "day": "date",
    "at": "datetime(6)",
    "ts": "timestamp(6)",
    "t": "time(3)",
    "f": "float",
    "r": "double",
    "big": "bigint unsigned",
}
TABLE = TableDefinition(
    "shop",
    "t",
    tuple(
        ColumnDefinition(
            ordinal,
            name,
            text,
            unsigned="unsigned" in text,
            charset="utf8mb4" if name == "text" else None,
            key_position={"id": 0, "day": 1}.get(name),
        )
        for ordinal, (name, text) in enumerate(TYPES.items())
    ),
)
ROW = {
    "id": 7,
    "größe": "+y4=",
    "data": "AP8=",
    "text": "AP8=",
    "day": 19_782,
    "at": 1_709_201_472_123_456,
    "ts": 1_709_201_472_123_456,
    "t": -1_500_000,
    "f": 1.1,
    "r": 1.1,
    "big": "AP//////////",
}


def read(row, key=None, hidden=(), **envelope):
    made = {"before": None, "after": row, "unrepresentable": None, **envelope}
    return JsonRows(AvroOptions(), mariadb=False).rows(key, made, TABLE, hidden)


def test_values_are_those_of_avro() -> None:
    _, envelope = read(ROW)
    at = dt.datetime(2024, 2, 29, 10, 11, 12, 123456)  # noqa: DTZ001 - a DATETIME has no zone
    assert envelope["after"] == {
        "id": 7,
        "gr_x00F6__x00DF_e": Decimal("-1.234"),
        "data": b"\x00\xff",
        "text": "AP8=",
        "day": dt.date(2024, 2, 29),
        "at": at,
        "ts": at.replace(tzinfo=dt.UTC),
        "t": -1_500_000,
        "f": 1.100000023841858,
        "r": 1.1,
        "big": Decimal(2**64 - 1),
    }
    assert read(dict.fromkeys(TYPES))[1]["after"]["day"] is None
    assert read({**ROW, "data": "masked"}, hidden={"data"})[1]["after"]["data"] == "masked"


def test_keys_are_read_in_both_forms() -> None:
    day = dt.date(2024, 2, 29)
    for key, wanted in (
        ({"id": 1, "day": 19_782}, day),
        ({"id": 1, "day": "0000-00-00"}, "0000-00-00"),
        ({"schema": {}, "payload": {"id": 1, "day": {"int": 19_782, "string": None}}}, day),
        ({"schema": {}, "payload": {"id": 1, "day": {"int": None, "string": "0000-00-00"}}}, "0000-00-00"),
    ):
        assert read(ROW, json.dumps(key).encode())[0] == {"id": 1, "day": wanted}


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({**ROW, "data": "é"}, None),
        ({**ROW, "data": 5}, None),
        ({**ROW, "day": 10**12}, None),
        ({**ROW, "f": "x"}, None),
        ({**ROW, "f": 1e300}, None),
        ([], None),
        (ROW, b"{"),
        (ROW, b'{"id": [1]'),
        (ROW, b"[]"),
        (ROW, b"\xff"),
    ],
)
def test_what_is_no_row_is_an_error_of_the_record(row: object, key: bytes | None) -> None:
    with pytest.raises(ValueError):
        read(row, key)
