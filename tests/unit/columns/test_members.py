"""ENUM and SET whose members come without a character set, as MySQL before 8.0.15 logs them.

``logs/mysql-8.0.12.000001`` is of a real server with binlog_row_metadata=FULL. Its table::

    CREATE TABLE members (id INT PRIMARY KEY,
      plain ENUM('a','b') CHARACTER SET utf8mb4, western ENUM('café','thé') CHARACTER SET latin1,
      wide ENUM('ab','é') CHARACTER SET ucs2, some SET('x','ÿ','z') CHARACTER SET latin1,
      bin ENUM('q') CHARACTER SET binary, js JSON)
"""

import base64
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner

from millrace.avro.row_records import table_schemas
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.column import NoMetadata, PackMetadata
from millrace.binlog.events.rows import RowsEvent, RowsOperation
from millrace.binlog.file import decode_file
from millrace.binlog.table import ColumnDefinition, ResolvedTable, TableDefinition, resolve_columns
from millrace.cli import main
from tests.unit.avro.test_row_records import plain
from tests.unit.kernel.both_rows import Way

LOG = Path(__file__).parent / "logs" / "mysql-8.0.12.000001"
DEFINITION = TableDefinition(
    "shop",
    "members",
    (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0),
        ColumnDefinition(1, "plain", "enum('a','b')", charset="utf8mb4", members=("a", "b")),
        ColumnDefinition(2, "western", "enum('café','thé')", charset="latin1", members=("café", "thé")),
        ColumnDefinition(3, "wide", "enum('ab','é')", charset="ucs2", members=("ab", "é")),
        ColumnDefinition(4, "some", "set('x','ÿ','z')", charset="latin1", members=("x", "ÿ", "z")),
        ColumnDefinition(5, "bin", "enum('q')", charset="binary", members=("q",)),
        ColumnDefinition(6, "js", "json"),
    ),
)


def rows_events() -> list[tuple[RowsEvent, Any]]:
    with LOG.open("rb") as stream:
        return [
            (decoded.event, decoded.table_map)
            for _, decoded in decode_file(stream)
            if isinstance(decoded.event, RowsEvent)
        ]


def resolved(definition: TableDefinition | None) -> ResolvedTable:
    return resolve_columns(rows_events()[0][1], definition, server_version="8.0.12")


def written(table: ResolvedTable, event: RowsEvent, *, compiled: bool) -> list[dict[str, Any]]:
    """Write the rows of an event as Avro, and read them."""
    schema = fastavro.parse_schema(plain(table_schemas("s", table, AvroOptions()).envelope))
    records = Way(table, event.operation, compiled=compiled)(event.rows)
    assert isinstance(records, list)
    return [fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None) for _, value in records]


@pytest.mark.parametrize("compiled", [True, False])
def test_members_of_an_unknown_character_set_are_bytes(compiled: bool) -> None:
    insert, _ = rows_events()[0]
    first, second, third = written(resolved(None), insert, compiled=compiled)
    assert first["after"] == {
        "id": 1,
        "plain": None,
        "western": None,
        "wide": None,
        "some": None,
        "bin": None,
        "js": '{"d": 1.0}',
    }
    lost = {note["column"]: note["bytes"] for note in first["unrepresentable"]}
    assert lost == {
        "plain": b"a",
        "western": b"caf\xe9",
        "wide": b"\0a\0b",
        "some": b"x,\xff",
        "bin": b"q",
    }
    assert second["unrepresentable"][2]["bytes"] == b"\0\xe9"
    assert third["unrepresentable"] is None
    assert third["after"]["some"] == ""


@pytest.mark.parametrize("compiled", [True, False])
def test_the_catalogue_knows_the_character_set(compiled: bool) -> None:
    """The values are what SELECT gave on that server."""
    table = resolved(DEFINITION)
    assert table.schema_source == "table_map"
    insert, update, delete = (event for event, _ in rows_events())
    first, second, third = (one["after"] for one in written(table, insert, compiled=compiled))
    texts = {"plain": "a", "western": "café", "wide": "ab", "some": "x,ÿ", "bin": "q"}
    assert {name: first[name] for name in texts} == texts
    texts = {"plain": "b", "western": "thé", "wide": "é", "some": "z", "bin": None}
    assert {name: second[name] for name in texts} == texts
    assert third["western"] is None
    (changed,) = written(table, update, compiled=compiled)
    assert (changed["after"]["western"], changed["after"]["some"]) == ("thé", "ÿ,z")
    (gone,) = written(table, delete, compiled=compiled)
    assert gone["before"]["western"] == "thé"
    assert changed["unrepresentable"] is None


def test_json_has_them_as_bytes() -> None:
    outcome = CliRunner().invoke(
        main, ["binlog", "--json", "--op", "insert", str(LOG)], catch_exceptions=False
    )
    after = json.loads(outcome.stdout)["rows"][0]["after"]
    assert base64.b64decode(after["western"]["base64"]) == b"caf\xe9"
    assert base64.b64decode(after["some"]["base64"]) == b"x,\xff"


def test_one_member_that_is_invalid_costs_its_own_values_alone() -> None:
    """It is in the character set that the table map gives, which other servers log."""
    one = Column(0, ColumnType.SET, PackMetadata(1), charset="utf8mb4", members=("ä", b"\xff", "c"), name="s")
    codec = codec_of(one)
    assert codec.text(1 | 4) == "ä,c"
    assert codec.text(1 | 2) == b"\xc3\xa4,\xff"
    assert codec.sql_type() == "set('ä',x'ff','c')"
    assert codec.native(AvroOptions()) is None
    table = ResolvedTable("d", "t", (one,), (), "table_map")
    for compiled in (True, False):
        records = Way(table, RowsOperation.WRITE, compiled=compiled)(b"\0\x05\0\x02")
        assert isinstance(records, list)
        schema = fastavro.parse_schema(plain(table_schemas("s", table, AvroOptions()).envelope))
        fine, lost = (fastavro.schemaless_reader(io.BytesIO(v[5:]), schema, None) for _, v in records)
        assert fine["after"] == {"s": "ä,c"}
        assert lost["after"] == {"s": None}
        assert lost["unrepresentable"][0]["bytes"] == b"\xff"


def test_a_key_has_such_a_member_as_text() -> None:
    enum = Column(0, ColumnType.ENUM, PackMetadata(1), members=(b"\xe9",), name="e", key_position=0)
    number = Column(1, ColumnType.TINY, NoMetadata(), name="n")
    table = ResolvedTable("d", "t", (enum, number), (enum,), "table_map")
    for compiled in (True, False):
        ((key, _),) = Way(table, RowsOperation.WRITE, compiled=compiled)(b"\0\x01\x07")
        assert key[5:] == b"\x080xe9"
