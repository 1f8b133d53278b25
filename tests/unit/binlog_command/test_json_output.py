"""``--json``: every event a line of valid JSON that loses nothing."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.binlog.columns.column import BlobMetadata, Column, PackMetadata, RealMetadata
from millrace.binlog.columns.declaration import codec_of
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import (
    GtidTaggedLogEvent,
    QueryEvent,
    RotateEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    UserVarEvent,
    WriteRowsEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog_command.json_output import JsonOutput, _conversion, dump, event_fields
from millrace.binlog_command.records import LogRecord

from .made_logs import listed

LOGS = Path(__file__).parent / "logs"


def written(event: Any, *, type_code: int = 2, table_map: TableMapEvent | None = None) -> dict[str, Any]:
    stream = io.BytesIO()
    decoded = BinlogEvent(EventHeader(1, type_code, 1, 100), event, table_map=table_map)
    JsonOutput(stream).write(LogRecord("p", "f", 4, b"", 0, decoded, None, None, StreamState()))
    return json.loads(stream.getvalue())


@pytest.mark.parametrize("name", ["mysql.000001", "mariadb.000001"])
def test_the_rows_of_a_transaction(name: str) -> None:
    rows = [line for line in listed(str(LOGS / name)) if "rows" in line]
    written, ordered = rows[0]["rows"], rows[1]["rows"]
    assert written == [
        {"after": {"id": 1, "name": "café", "kind": "b", "tags": "x,y", "weight": 0.1, "bits": 5}},
        {"after": dict.fromkeys(("name", "kind", "tags", "weight", "bits")) | {"id": 2}},
    ]
    assert ordered == [
        {
            "after": {
                "id": 10,
                "item": 1,
                "note": "first",
                "at": "2024-02-29 12:30:00.125",
                "price": "19.90",
                "raw": {"base64": "AP9B"},
            }
        }
    ]
    (change,) = rows[2]["rows"]
    assert change["before"] == ordered[0]["after"]
    assert change["after"] == ordered[0]["after"] | {"note": "changed"}
    assert list(next(line for line in rows if line["type"].startswith("DELETE"))["rows"][0]) == ["before"]


def test_the_fields_of_a_line() -> None:
    line = listed(str(LOGS / "mysql.000001"))[3]
    gtid = line.pop("gtid")
    assert gtid.endswith(":1")
    variables = line["event"].pop("status_variables")
    assert variables["sql_mode"] == 1168113696
    assert base64.b64decode(variables["codes"]["base64"])[:3] == bytes((0, 1, 6))
    assert line == {
        "file": "mysql.000001",
        "position": 232,
        "next_position": 338,
        "timestamp": line["timestamp"],
        "type_code": 2,
        "type": "QUERY_EVENT",
        "server_id": 11,
        "size": 106,
        "flags": 8,
        "sub_index": 0,
        "event": {
            "thread_id": line["event"]["thread_id"],
            "exec_time": 0,
            "error_code": 0,
            "database": "shop",
            "query": "CREATE DATABASE shop",
        },
    }


def test_text_that_is_no_utf8_is_base64() -> None:
    event = QueryEvent(1, 0, 0, None, "d\udcff", b"SELECT '\xe9'")
    line = written(event)
    assert base64.b64decode(line["event"]["query"]["base64"]) == b"SELECT '\xe9'"
    assert base64.b64decode(line["event"]["database"]["base64"]) == b"d\xff"
    assert written(RotateEvent(4, "bin\udcff.1"))["event"]["new_log_ident"] == {"base64": "Ymlu/y4x"}


def test_json_is_valid_and_harmless_whatever_a_name_holds() -> None:
    assert dump({"ü": 1}) == '{"ü":1}'
    assert dump({"a\udcffb": 1}) == r'{"a\\xffb":1}'
    harmful = {"\x1b[2J": "\x9b31m\x7f\u202e\u2028"}
    text = dump(harmful)
    assert text == r'{"\u001b[2J":"\u009b31m\u007f\u202e\u2028"}'
    assert json.loads(text) == harmful


def test_binary_fields_are_base64_and_sids_are_uuids() -> None:
    variable = UserVarEvent("v", 0, 0, 63, b"text", None)
    assert event_fields(variable)["value"] == {"base64": "dGV4dA=="}
    tagged = GtidTaggedLogEvent(0, bytes(range(16)), 5, "tag", 0, 1, None, None, 0, None, None, None, None)
    assert event_fields(tagged)["sid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_what_follows_in_another_form_is_left_out() -> None:
    payload = TransactionPayloadEvent(255, 3, b"abc")
    assert "payload" not in event_fields(payload)
    assert event_fields(payload)["compression_type"] == 255


def test_rows_that_cannot_be_read_are_kept_as_bytes() -> None:
    event = WriteRowsEvent(7, 1, b"", 1, b"", b"\x01", b"\0\x01")
    without = written(event, type_code=30)
    assert without["rows_error"] == "no table map for table id 7 comes before the rows"
    assert without["rows_bytes"] == {"base64": "AAE="}
    table_map = TableMapEvent(7, 1, "d", "t", bytes([3]), b"", b"\0")
    short = written(event, type_code=30, table_map=table_map)
    assert (short["database"], short["table"]) == ("d", "t")
    assert "reaches past the end" in short["rows_error"]
    assert "rows" not in short


def test_columns_without_names_are_numbered_and_absent_ones_left_out() -> None:
    table_map = TableMapEvent(7, 1, "d", "t", bytes([1, 1]), b"", b"\0")
    event = WriteRowsEvent(7, 1, b"", 2, b"", b"\x02", b"\0\x05")
    assert written(event, type_code=30, table_map=table_map)["rows"] == [{"after": {"column_2": 5}}]


def test_an_error_is_a_line_of_its_own() -> None:
    stream = io.BytesIO()
    error = InvalidValueError("broken").at("p", 9)
    JsonOutput(stream).write(LogRecord("p", "f", 9, b"", 0, error, None, None, StreamState()))
    assert json.loads(stream.getvalue()) == {"file": "f", "position": 9, "sub_index": 0, "error": "broken"}


def converted(column_type: ColumnType, value: Any, **attributes: Any) -> Any:
    metadata = {
        ColumnType.FLOAT: RealMetadata(4),
        ColumnType.DOUBLE: RealMetadata(8),
        ColumnType.ENUM: PackMetadata(1),
        ColumnType.SET: PackMetadata(1),
        ColumnType.VECTOR: BlobMetadata(4),
        ColumnType.JSON: BlobMetadata(4),
        ColumnType.BLOB: BlobMetadata(2),
    }[column_type]
    codec = codec_of(Column(0, column_type, metadata, "c", **attributes))
    return _conversion(codec)(codec.decode(codec.encode(value)))


@pytest.mark.parametrize(
    ("column_type", "value", "expected"),
    [
        (ColumnType.DOUBLE, 0.1, 0.1),
        (ColumnType.FLOAT, 0.10000000149011612, 0.1),
        (ColumnType.FLOAT, 16777216.0, 16777216.0),
        (ColumnType.FLOAT, 3.4028234663852886e38, 3.4028235e38),
        (ColumnType.VECTOR, (0.5, 0.10000000149011612), [0.5, 0.1]),
        (ColumnType.BLOB, b"\xff", {"base64": "/w=="}),
    ],
)
def test_values_are_exact_and_valid_json(column_type: ColumnType, value: Any, expected: Any) -> None:
    shown = converted(column_type, value)
    assert shown == expected
    assert json.loads(dump(shown)) == expected


def test_members_are_text_where_they_are_known() -> None:
    assert converted(ColumnType.ENUM, 2, members=("1", "x")) == "x"
    assert converted(ColumnType.ENUM, 1, members=("1", "x")) == "1"
    assert converted(ColumnType.ENUM, 0, members=("1", "x")) == ""
    assert converted(ColumnType.ENUM, 3, members=("1", "x")) == 3
    assert converted(ColumnType.ENUM, 2) == 2
    assert converted(ColumnType.SET, 3, members=("a", "b")) == "a,b"
    assert converted(ColumnType.SET, 4, members=("a", "b")) == 4
