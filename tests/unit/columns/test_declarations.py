"""What a declaration says beside a type's bytes: how it is printed, compared, selected and counted."""

import pytest

from millrace.binlog.columns import ColumnType, codec_of
from millrace.binlog.columns.column import BlobMetadata, FractionMetadata, LengthMetadata, NoMetadata
from millrace.binlog.columns.declaration import COLUMNS, ColumnKind, Servers
from millrace.binlog.columns.metadata import MetadataRules
from millrace.binlog.table import ColumnDefinition, TableDefinition, column_of, resolve_columns
from millrace.selection.rows import kind_of
from millrace.snapshot.images import SelectedTable

NUMBER, REAL, TEXT, MOMENT, TIME, OTHER = ColumnKind
PLAIN, AS_NUMBER = "{}", "CAST({} AS UNSIGNED)"


@pytest.mark.parametrize(
    ("sql", "printed", "meta", "kind", "selection"),
    [
        ("tinyint", "TINYINT", 0, NUMBER, PLAIN),
        ("smallint", "SHORTINT", 0, NUMBER, PLAIN),
        ("mediumint", "MEDIUMINT", 0, NUMBER, PLAIN),
        ("int", "INT", 0, NUMBER, PLAIN),
        ("bigint", "LONGINT", 0, NUMBER, PLAIN),
        ("decimal(10,2)", "DECIMAL(10,2)", 2562, NUMBER, PLAIN),
        ("float", "FLOAT", 4, REAL, "{}*1e0"),
        ("double", "DOUBLE", 8, REAL, "{}*1e0"),
        ("bit(12)", "BIT(12)", 260, OTHER, PLAIN),
        ("year", "YEAR", 0, NUMBER, PLAIN),
        ("date", "DATE", 0, MOMENT, PLAIN),
        ("time(3)", "TIME(3)", 3, TIME, PLAIN),
        ("datetime", "DATETIME(0)", 0, MOMENT, PLAIN),
        ("timestamp(6)", "TIMESTAMP(6)", 6, MOMENT, "UNIX_TIMESTAMP({})"),
        ("char(80)", "STRING(320)", 60992, TEXT, PLAIN),
        ("varchar(20)", "VARSTRING(80)", 80, TEXT, PLAIN),
        ("binary(3)", "STRING(3)", 65027, OTHER, PLAIN),
        ("tinytext", "TINYBLOB/TINYTEXT", 1, TEXT, PLAIN),
        ("blob", "BLOB/TEXT", 2, OTHER, PLAIN),
        ("varchar(9) compressed", "VARSTRING(37) COMPRESSED", 37, OTHER, PLAIN),
        ("text compressed", "BLOB/TEXT COMPRESSED", 2, OTHER, PLAIN),
        ("enum", "ENUM(1 byte)", 63233, TEXT, AS_NUMBER),
        ("set", "SET(1 bytes)", 63489, TEXT, AS_NUMBER),
        ("json", "JSON", 4, OTHER, PLAIN),
        ("point", "GEOMETRY", 4, OTHER, PLAIN),
        ("vector(3)", "VECTOR(3)", 4, OTHER, PLAIN),
        ("uuid", "UUID", 65040, OTHER, PLAIN),
    ],
)
def test_types_of_the_catalog(sql: str, printed: str, meta: int, kind: ColumnKind, selection: str) -> None:
    charset = "utf8mb4" if sql.startswith(("char", "varchar", "tinytext")) else None
    definition = ColumnDefinition(0, "c", sql, charset=charset, members=("a", "b"))
    codec = codec_of(column_of(definition, mariadb=False))
    layout = codec.metadata_layout
    assert codec.printed_type() == printed
    assert int.from_bytes(layout.encode(codec.column.metadata), layout.printed) == meta
    assert codec.kind is kind
    assert codec.selection == selection
    if "compressed" not in sql:
        assert kind_of(sql.partition("(")[0]) is kind
    # A table map of such a column fits the definition that it was made of.
    selected = SelectedTable(TableDefinition("d", "t", (definition,)), mariadb=False)
    table = resolve_columns(selected.table_map, selected.definition, server_version=selected.server_version)
    assert table.columns[0].sql_type == sql


def test_which_types_servers_count() -> None:
    only = {
        server: {codec for codec in COLUMNS.values() if codec.signedness | codec.collations == server}
        for server in (Servers.MARIADB, Servers.MYSQL | Servers.MARIADB)
    }
    assert {codec.__name__ for codec in only[Servers.MARIADB]} == {
        "CompressedBlob",
        "CompressedVarchar",
        "Geometry",
    }
    assert {codec.__name__ for codec in only[Servers.MYSQL | Servers.MARIADB]} == {"Year"}
    rules = MetadataRules("8.0.19"), MetadataRules("8.0.20"), MetadataRules("10.5.4-MariaDB")
    assert [ColumnType.YEAR in one.numeric for one in rules] == [False, True, True]
    assert [ColumnType.GEOMETRY in one.character for one in rules] == [False, False, True]
    assert all(ColumnType.VECTOR in one.character and ColumnType.JSON not in one.character for one in rules)


@pytest.mark.parametrize(
    ("travels", "metadata", "sql"),
    [
        (ColumnType.TIME, FractionMetadata(2), "time(2)"),
        (ColumnType.DATETIME, FractionMetadata(0), "datetime"),
        (ColumnType.TIMESTAMP, FractionMetadata(6), "timestamp(6)"),
        (ColumnType.NEWDATE, NoMetadata(), "date"),
        (ColumnType.VAR_STRING, LengthMetadata(8), "varchar(2)"),
        (ColumnType.BLOB_COMPRESSED, BlobMetadata(2), "text"),
    ],
)
def test_other_codes_under_which_a_type_travels(travels: ColumnType, metadata: object, sql: str) -> None:
    definition = TableDefinition("d", "t", (ColumnDefinition(0, "c", sql, charset="utf8mb4"),))
    table_map = SelectedTable(definition, mariadb=True).table_map
    layout = COLUMNS[travels].metadata_layout
    changed = table_map.__class__(
        1, 1, "d", "t", bytes((travels,)), layout.encode(metadata), table_map.null_bits, b""
    )
    table = resolve_columns(changed, definition, server_version="10.0.38-MariaDB")
    assert table.columns[0].metadata == metadata
