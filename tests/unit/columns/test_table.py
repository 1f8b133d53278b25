"""Tables: definitions to plain values and back, and columns of a table map resolved against them."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pytest

from millrace.binlog.columns import AvroOptions, ColumnType, codec_of
from millrace.binlog.columns.column import FractionMetadata
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import UnrepresentableError, UnsupportedError
from millrace.binlog.table import (
    ColumnDefinition,
    IndexDefinition,
    SchemaMismatchError,
    TableDefinition,
    resolve_columns,
)


@dataclass(frozen=True)
class Map:
    column_types: bytes
    column_metadata: bytes = b""
    optional_metadata: bytes = b""
    null_bits: bytes = b"\xff"
    database: str = "shop"
    table: str = "orders"


DEFINITION = TableDefinition(
    "shop",
    "orders",
    (
        ColumnDefinition(0, "id", "bigint(20) unsigned", nullable=False, unsigned=True, key_position=1),
        ColumnDefinition(1, "ref", "varchar(10)", charset="utf8", key_position=0, key_prefix=5),
        ColumnDefinition(2, "state", "enum('a','b')", charset="latin1", members=("a", "b")),
        ColumnDefinition(3, "raw", "varbinary(20)"),
        ColumnDefinition(4, "price", "decimal(10,2)"),
        ColumnDefinition(5, "at", "datetime(3)", hidden=True),
    ),
    engine="InnoDB",
    charset="utf8mb4",
)
MAP = Map(bytes((8, 15, 254, 15, 246, 18)), bytes.fromhex("1e00f70114000a0203"))


def test_definitions_are_plain_values_and_back() -> None:
    assert TableDefinition.from_dict(DEFINITION.to_dict()) == DEFINITION
    assert DEFINITION.key == ("ref", "id")
    assert DEFINITION.transactional is True
    assert replace(DEFINITION, engine="MyISAM").transactional is False
    assert replace(DEFINITION, engine="FEDERATED").transactional is None
    assert replace(DEFINITION, engine=None).transactional is None


def test_names_come_from_the_catalog() -> None:
    table = resolve_columns(MAP, DEFINITION)
    assert table.schema_source == "catalog"
    assert [column.name for column in table.columns] == ["id", "ref", "state", "raw", "price", "at"]
    assert [column.name for column in table.key_columns] == ["ref", "id"]
    assert table.key_columns[0].key_prefix == 5
    assert table.columns[0].unsigned
    assert [column.charset for column in table.columns] == [None, "utf8mb3", "latin1", "binary", None, None]
    assert table.columns[2].members == ("a", "b")
    assert not table.columns[5].visible
    assert table.transactional is True
    assert (table.database, table.table) == ("shop", "orders")


def test_without_a_catalog_names_are_positions() -> None:
    table = resolve_columns(MAP)
    assert table.schema_source == "positional"
    assert [column.name for column in table.columns] == [f"column_{number}" for number in range(1, 7)]
    assert table.key_columns == ()
    assert table.transactional is None
    assert table.columns[0].sign_known is False


@pytest.mark.parametrize(
    ("kind", "negative", "text", "avro"),
    [
        (ColumnType.TINY, -1, "-1 (255)", {"type": "int", "connect.type": "int16"}),
        (ColumnType.SHORT, -5, "-5 (65531)", {"type": "int", "connect.type": "int16"}),
        (ColumnType.INT24, b"\xff\xff\xff", "-1 (16777215)", "int"),
        (ColumnType.LONG, -294967296, "-294967296 (4000000000)", "int"),
        (ColumnType.LONGLONG, -1, "-1 (18446744073709551615)", "long"),
    ],
)
def test_without_a_sign_numbers_that_depend_on_it_are_refused(
    kind: ColumnType, negative: int | bytes, text: str, avro: object
) -> None:
    numbers = Map(bytes((kind,)))
    codec = codec_of(resolve_columns(numbers).columns[0])
    convert = codec.avro_decoder(AvroOptions())
    assert convert is not None
    assert codec.avro_type(AvroOptions()) == avro
    assert codec.native(AvroOptions()) is None
    assert convert(b"\x07\x00\x00" if kind is ColumnType.INT24 else 7) == 7
    assert codec.text(codec.decode(negative)) == text
    with pytest.raises(UnrepresentableError, match="not known whether the column is unsigned"):
        convert(negative)
    # MINIMAL metadata of MySQL tells it.
    told = codec_of(resolve_columns(replace(numbers, optional_metadata=b"\x01\x01\x00")).columns[0])
    assert told.text(told.decode(negative)) == text.partition(" ")[0]
    assert told.native(AvroOptions()) is not None


def test_full_metadata_needs_no_catalog() -> None:
    names = b"".join(
        bytes((len(name),)) + name for name in (b"id", b"ref", b"state", b"raw", b"price", b"at")
    )
    full = replace(MAP, optional_metadata=b"\x04" + bytes((len(names),)) + names + bytes.fromhex("080100"))
    table = resolve_columns(full)
    assert table.schema_source == "table_map"
    assert [column.name for column in table.key_columns] == ["id"]
    # A definition of some other time does not matter then ...
    assert resolve_columns(full, replace(DEFINITION, columns=DEFINITION.columns[:3])).columns == table.columns
    renamed = (replace(DEFINITION.columns[0], name="key"), *DEFINITION.columns[1:])
    assert resolve_columns(full, replace(DEFINITION, columns=renamed)).columns == table.columns
    # ... but one that agrees adds what the map does not tell.
    enriched = resolve_columns(full, DEFINITION)
    assert enriched.schema_source == "table_map"
    assert enriched.columns[5].sql_type == "datetime(3)"
    assert [column.name for column in enriched.key_columns] == ["id"]


@pytest.mark.parametrize(
    ("ordinal", "change", "message"),
    [
        (0, {"column_type": "int"}, r"column 1 \(id\) is int in the catalog, but BIGINT"),
        (1, {"column_type": "varchar(11)"}, r"but VARCHAR of up to \d+ bytes in the table map$"),
        (1, {"column_type": "text"}, "VARCHAR"),
        (1, {"charset": "utf8mb4"}, "but VARCHAR of up to "),
        (2, {"members": tuple(map(str, range(300)))}, "but ENUM in 1 byte in the table map$"),
        (2, {"column_type": "set('a','b')"}, "ENUM"),
        (4, {"column_type": "decimal(10,3)"}, r"but DECIMAL\(\d+,\d+\) in the table map$"),
        (5, {"column_type": "datetime"}, r"but DATETIME\(3\) in the table map$"),
        (5, {"column_type": "some_new_type"}, "some_new_type"),
    ],
)
def test_a_definition_that_disagrees_is_refused(
    ordinal: int, change: dict[str, object], message: str
) -> None:
    columns = list(DEFINITION.columns)
    columns[ordinal] = replace(columns[ordinal], **change)  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match=rf"table shop.orders: .*{message}"):
        resolve_columns(MAP, replace(DEFINITION, columns=tuple(columns)))


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="5 columns in the catalog, but 6 in the table map"):
        resolve_columns(MAP, replace(DEFINITION, columns=DEFINITION.columns[:5]))


DIGESTS = [hashlib.md5(text.encode()).hexdigest() for text in ("x0", "x2")]


def indexed(*names: str) -> TableDefinition:
    """A table with an index on two expressions, and a column between them."""
    columns = tuple(ColumnDefinition(at, name, "int") for at, name in enumerate(names))
    index = IndexDefinition("x", False, (("", 0), ("a", 0), ("", 0)))
    return TableDefinition("shop", "orders", columns, indexes=(index,))


def named(*names: str) -> Map:
    """The table map of INT columns, with their names."""
    texts = b"".join(bytes((len(name), *name.encode())) for name in names)
    return Map(bytes([3] * len(names)), optional_metadata=bytes((4, len(texts))) + texts)


@pytest.mark.parametrize(
    ("logged", "defined", "hidden"),
    [
        (("a", *DIGESTS, "b"), ("a", "b"), {1, 2}),
        (("a", DIGESTS[0], "b", DIGESTS[1]), ("a", "b"), {1, 3}),
        (("a", "b"), ("a", "b"), set()),  # as MySQL 9.7 logs them
        (("a", DIGESTS[0], "b"), ("a", "b"), set()),
        (("a", "b", "c", "d"), ("a", "b"), set()),
        (("a", "b", *DIGESTS), ("a", "c"), set()),
    ],
)
def test_hidden_columns_of_functional_indexes(
    logged: tuple[str, ...], defined: tuple[str, ...], hidden: set[int]
) -> None:
    """What is left out is certain: so many as the indexes have expressions, and no others are unknown."""
    table = resolve_columns(named(*logged), indexed(*defined))
    assert table.of_indexes == hidden
    assert [column.name for column in table.columns] == list(logged)


LONG, LONGLONG = 3, 8
HASH = "DB_ROW_HASH_1"


def with_hashes(count: int, *names: str) -> TableDefinition:
    """A table of MariaDB with so many hashed keys."""
    columns = tuple(ColumnDefinition(at, name, "int(11)") for at, name in enumerate(names))
    indexes = tuple(IndexDefinition(f"x{at}", True, (("a", 0),), hashed=True) for at in range(count))
    return TableDefinition("shop", "orders", columns, indexes=indexes)


def logged(types: tuple[int, ...], names: tuple[str, ...] = (), *, unsigned: bool = True) -> Map:
    """The table map of integers as MariaDB writes it, with FULL metadata where there are names."""
    if not names:
        return Map(bytes(types))
    texts = b"".join(bytes((len(name), *name.encode())) for name in names)
    signs = int("".join(str(int(unsigned and one == LONGLONG)) for one in types).ljust(8, "0"), 2)
    return Map(bytes(types), optional_metadata=bytes((1, 1, signs, 4, len(texts))) + texts)


@pytest.mark.parametrize(
    ("table_map", "definition", "hidden"),
    [
        (logged((LONG, LONG, LONGLONG), ("a", "b", HASH)), with_hashes(1, "a", "b"), {2}),
        (logged((LONG, LONG, LONGLONG), ("a", "b", HASH)), None, {2}),
        (logged((LONG, LONGLONG, LONGLONG), ("a", HASH, "DB_ROW_HASH_2")), with_hashes(2, "a"), {1, 2}),
        (logged((LONG, LONGLONG, LONGLONG), ("a", HASH, "b")), None, set()),  # they are behind all others
        (logged((LONG, LONG, LONGLONG), ("a", HASH, "DB_ROW_HASH_2")), with_hashes(1, "a", HASH), {2}),
        (logged((LONG, LONGLONG), ("a", HASH), unsigned=False), None, set()),
        (logged((LONG, LONGLONG)), with_hashes(1, "a"), {1}),
        (logged((LONG, LONGLONG, LONGLONG)), with_hashes(2, "a"), {1, 2}),
    ],
)
def test_hidden_columns_of_hashed_keys(
    table_map: Map, definition: TableDefinition | None, hidden: set[int]
) -> None:
    """With FULL metadata their names tell them, without names the number of hashed keys."""
    table = resolve_columns(table_map, definition, server_version="11.8.3-MariaDB")
    assert table.of_indexes == hidden
    assert table.schema_source == ("catalog" if table_map.optional_metadata == b"" else "table_map")
    shown = [column for column in table.columns if column.ordinal not in hidden]
    if definition is not None:
        assert [column.name for column in shown] == [column.name for column in definition.columns]
        assert all(column.sql_type == "int(11)" for column in shown)


@pytest.mark.parametrize(
    ("types", "definition", "version"),
    [
        ((LONG, LONGLONG), with_hashes(0, "a"), "11.8.3-MariaDB"),
        ((LONG, LONGLONG, LONGLONG), with_hashes(1, "a"), "11.8.3-MariaDB"),
        ((LONG, LONG), with_hashes(1, "a"), "11.8.3-MariaDB"),
        ((LONG, LONGLONG), with_hashes(1, "a"), "9.7.4"),
    ],
)
def test_columns_that_may_be_others_than_those_of_hashed_keys(
    types: tuple[int, ...], definition: TableDefinition, version: str
) -> None:
    with pytest.raises(SchemaMismatchError, match="columns in the catalog, but"):
        resolve_columns(logged(types), definition, server_version=version)


def test_hidden_columns_without_names_are_refused() -> None:
    with pytest.raises(
        SchemaMismatchError, match=r"2 columns in the catalog, but 4 in the table map\. This MySQL"
    ):
        resolve_columns(Map(bytes([3] * 4)), indexed("a", "b"))
    with pytest.raises(SchemaMismatchError, match=r"but 3 in the table map$"):
        resolve_columns(Map(bytes([3] * 3)), indexed("a", "b"))


def with_keys(*keys: tuple[str, ...], **changed: dict[str, Any]) -> TableDefinition:
    """A table of INT columns, NOT NULL unless they are ``changed``, with unique keys, the last name first."""
    columns = tuple(
        replace(ColumnDefinition(at, name, "int", nullable=False), **changed.get(name, {}))
        for at, name in enumerate(("a", "B", "c"))
    )
    indexes = tuple(
        IndexDefinition(f"k{9 - at}", True, tuple((name, 0) for name in names))
        for at, names in enumerate(keys)
    )
    return TableDefinition("shop", "orders", columns, indexes=indexes)


@pytest.mark.parametrize(
    ("definition", "key", "index"),
    [
        (with_keys(("b",)), ["B"], "k9"),
        (with_keys(("c", "a")), ["c", "a"], "k9"),
        (with_keys(("a",), ("c",)), ["c"], "k8"),
        (with_keys(("a", "c"), ("B",), c={"nullable": True}), ["B"], "k8"),
        (with_keys(("a",), c={"key_position": 0}), ["c"], "PRIMARY"),
        (with_keys(("a",), a={"generated": "VIRTUAL"}), [], ""),
        (with_keys(("a",), c={"generated": "STORED", "column_type": "bigint(20) unsigned"}), [], ""),
    ],
)
def test_a_unique_key_stands_in_for_a_primary_key(
    definition: TableDefinition, key: list[str], index: str
) -> None:
    assert [name.casefold() for name in definition.key] == [name.casefold() for name in key]
    assert definition.key_index == index
    long = any(column.column_type != "int" for column in definition.columns)
    table = resolve_columns(Map(bytes([3, 3, 8 if long else 3])), definition)
    assert [column.name for column in table.key_columns] == key


def test_a_prefix_tells_no_rows_apart() -> None:
    unique = with_keys(("a",))
    prefixed = (replace(unique.indexes[0], parts=(("a", 5),)), replace(unique.indexes[0], unique=False))
    assert replace(unique, indexes=prefixed).key == ()
    text = replace(unique.columns[0], column_type="text", charset="utf8mb4")
    assert replace(unique, columns=(text, *unique.columns[1:])).key == ()


@pytest.mark.parametrize(("logged", "key"), [(0, "c"), (2, "c"), (1, "B")])
def test_a_log_with_full_metadata_has_a_unique_key_as_the_primary_key(logged: int, key: str) -> None:
    """Of several the key is the one that it is where the log does not tell; the log knows others, too."""
    full = named("a", "B", "c")
    full = replace(full, optional_metadata=full.optional_metadata + bytes((8, 1, logged)))
    table = resolve_columns(full, with_keys(("a",), ("c",)))
    assert [column.name for column in table.key_columns] == [key]
    assert [column.ordinal for column in resolve_columns(full).key_columns] == [logged]


def test_another_character_set_is_refused() -> None:
    table_map = Map(b"\x0f", b"\x0a\x00", bytes.fromhex("020108"))
    definition = TableDefinition(
        "shop", "orders", (ColumnDefinition(0, "a", "varchar(10)", charset="cp1251"),)
    )
    with pytest.raises(SchemaMismatchError, match="cp1251 in the catalog, but latin1"):
        resolve_columns(table_map, definition)


def test_what_only_the_catalog_tells() -> None:
    columns = (
        ColumnDefinition(0, "t", "time(3) /* mariadb-5.3 */"),
        ColumnDefinition(1, "u", "uuid"),
        ColumnDefinition(2, "v", "vector(3)"),
        ColumnDefinition(3, "c", "varchar(20) /*M!100301 COMPRESSED*/", charset="utf8mb4"),
        ColumnDefinition(4, "j", "longtext", charset="utf8mb4"),
    )
    table_map = Map(bytes((11, 254, 15, 141, 252)), bytes.fromhex("fe100c00510004"))
    table = resolve_columns(table_map, TableDefinition("shop", "orders", columns))
    assert table.columns[0].metadata == FractionMetadata(3)
    assert [codec_of(column).sql_type() for column in table.columns] == [
        "time(3)",
        "uuid",
        "vector(3)",
        "varchar(20) character set utf8mb4 compressed",
        "longtext character set utf8mb4",
    ]
    assert table.columns[0].type is ColumnType.TIME


def test_the_catalog_tells_how_the_server_counted() -> None:
    # YEAR, INT UNSIGNED, INT, DECIMAL UNSIGNED: MySQL 8.0.15 has no bit for YEAR, the later ones have.
    columns = (
        ColumnDefinition(0, "y", "year"),
        ColumnDefinition(1, "a", "int unsigned", unsigned=True),
        ColumnDefinition(2, "b", "int"),
        ColumnDefinition(3, "c", "decimal(5,2) unsigned", unsigned=True),
    )
    definition = TableDefinition("shop", "orders", columns)
    for block in ("0101a0", "0101d0"):
        table_map = Map(bytes((13, 3, 3, 246)), b"\x05\x02", bytes.fromhex(block))
        table = resolve_columns(table_map, definition)
        assert [column.unsigned for column in table.columns[1:]] == [True, False, True]
    # GEOMETRY, VARCHAR: MariaDB counts the first as text, MySQL does not.
    columns = (
        ColumnDefinition(0, "g", "geometry"),
        ColumnDefinition(1, "t", "varchar(10)", charset="latin1"),
    )
    definition = TableDefinition("shop", "orders", columns)
    for block in ("020108", "02033f0108"):
        table_map = Map(bytes((255, 15)), bytes.fromhex("040a00"), bytes.fromhex(block))
        assert resolve_columns(table_map, definition).columns[1].charset == "latin1"


def test_an_empty_table_map() -> None:
    table = resolve_columns(Map(b"", null_bits=b""))
    assert table.columns == ()
    assert table.schema_source == "positional"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", SqlType("int")),
        ("BIGINT(20) unsigned zerofill", SqlType("bigint", (20,), "unsigned zerofill")),
        ("decimal(10, 2)", SqlType("decimal", (10, 2))),
        ("enum('a(1)','b')", SqlType("enum", (), "('a(1)','b')")),
        ("timestamp(6) /* mariadb-5.3 */", SqlType("timestamp", (6,), "/* mariadb-5.3 */")),
    ],
)
def test_types_of_the_catalog(text: str, expected: SqlType) -> None:
    assert SqlType.parse(text) == expected


def test_no_type_of_the_catalog() -> None:
    with pytest.raises(UnsupportedError):
        SqlType.parse("''")
