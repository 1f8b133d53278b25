"""Tables of ``docs/columns.md`` and ``docs/types.md`` from the column types: see ``generate.py``."""  # noqa: INP001 - a script

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from millrace.binlog.columns import COLUMNS, VARIANTS, AvroOptions, Column, ColumnCodec, ColumnType, codec_of
from millrace.binlog.columns.charsets import collation_servers
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    Metadata,
    NoMetadata,
    PackMetadata,
    RealMetadata,
)
from millrace.binlog.columns.declaration import AvroType

__all__ = ["avro_types_shown", "columns_text", "spark_type", "types_text"]

_EXAMPLES: dict[ColumnType, Metadata] = {
    ColumnType.FLOAT: RealMetadata(4),
    ColumnType.DOUBLE: RealMetadata(8),
    ColumnType.NEWDECIMAL: DecimalMetadata(12, 2),
    ColumnType.BIT: BitMetadata(12),
    ColumnType.ENUM: PackMetadata(1),
    ColumnType.SET: PackMetadata(1),
    ColumnType.STRING: LengthMetadata(40),
    ColumnType.VARCHAR: LengthMetadata(40),
    ColumnType.VAR_STRING: LengthMetadata(40),
    ColumnType.VARCHAR_COMPRESSED: LengthMetadata(41),
    **dict.fromkeys(
        (
            ColumnType.TIME,
            ColumnType.DATETIME,
            ColumnType.TIMESTAMP,
            ColumnType.TIME2,
            ColumnType.DATETIME2,
            ColumnType.TIMESTAMP2,
        ),
        FractionMetadata(0),
    ),
    **dict.fromkeys(
        (
            ColumnType.TINY_BLOB,
            ColumnType.BLOB,
            ColumnType.MEDIUM_BLOB,
            ColumnType.LONG_BLOB,
            ColumnType.BLOB_COMPRESSED,
            ColumnType.JSON,
            ColumnType.GEOMETRY,
            ColumnType.VECTOR,
        ),
        BlobMetadata(4),
    ),
}
"""A column of each type whose metadata is not empty, to show what its declaration makes of it."""


def columns_text() -> str:
    """Write the list of types and a section for each class."""
    parts = [f"Character sets and collation ids were read from {_enumeration(collation_servers())}.\n"]
    parts.append("| code | type | section |\n| ---: | --- | --- |")
    for column_type in sorted(COLUMNS):
        parts += _rows(column_type)
    parts.append("")
    classes = sorted(COLUMNS.items(), key=lambda item: (item[1].__module__, item[1].__name__, item[0]))
    for codec, group in groupby(classes, key=lambda item: item[1]):
        names = ", ".join(f"{column_type.name} {int(column_type)}" for column_type, _ in group)
        parts += _section(codec, names)
    parts.append("## Types that travel as others\n")
    parts.append("Of these only the catalog tells; without one they are bytes.\n")
    for (column_type, name), codec in sorted(VARIANTS.items()):
        parts += _section(codec, f"{name} as {column_type.name} {int(column_type)}", level=3)
    return "\n".join(parts).rstrip()


def _enumeration(servers: list[str]) -> str:
    named = [server if "MariaDB" in server else f"MySQL {server}" for server in servers]
    return f"{', '.join(named[:-1])} and {named[-1]}"


def _rows(column_type: ColumnType) -> Iterator[str]:
    plain = COLUMNS[column_type](_column(column_type))
    section = type(plain).__name__
    yield f"| {int(column_type)} | {column_type.name} | [{section}](#{section.lower()}) |"


def _column(column_type: ColumnType, **more: Any) -> Column:
    return Column(0, column_type, _EXAMPLES.get(column_type, NoMetadata()), **more)


_UNSIGNED = {"unsigned": True}
_TEXT = {"charset": "utf8mb4"}
_MEMBERS = {"members": ("a", "b")}
_TYPES: tuple[tuple[str, ColumnType, dict[str, Any], str], ...] = (
    ("TINYINT, and BOOLEAN", ColumnType.TINY, {}, "int16"),
    ("TINYINT UNSIGNED", ColumnType.TINY, _UNSIGNED, "int16"),
    ("SMALLINT", ColumnType.SHORT, {}, "int16"),
    ("SMALLINT UNSIGNED", ColumnType.SHORT, _UNSIGNED, "int32"),
    ("MEDIUMINT", ColumnType.INT24, {}, "int32"),
    ("MEDIUMINT UNSIGNED", ColumnType.INT24, _UNSIGNED, "int32"),
    ("INT", ColumnType.LONG, {}, "int32"),
    ("INT UNSIGNED", ColumnType.LONG, _UNSIGNED, "int64"),
    ("BIGINT", ColumnType.LONGLONG, {}, "int64"),
    ("BIGINT UNSIGNED", ColumnType.LONGLONG, _UNSIGNED, "int64, wrong from 2^63 on"),
    ("DECIMAL(12,2)", ColumnType.NEWDECIMAL, {}, "Decimal"),
    (
        "DECIMAL(60,2): more than 38 digits",
        ColumnType.NEWDECIMAL,
        {"metadata": DecimalMetadata(60, 2)},
        "Decimal",
    ),
    ("FLOAT", ColumnType.FLOAT, {}, "float32"),
    ("DOUBLE", ColumnType.DOUBLE, {}, "float64"),
    ("BIT(1)", ColumnType.BIT, {"metadata": BitMetadata(1)}, "boolean"),
    ("BIT(12)", ColumnType.BIT, {}, "io.debezium.data.Bits, the least significant byte first"),
    ("YEAR", ColumnType.YEAR, {}, "io.debezium.time.Year"),
    ("DATE", ColumnType.DATE, {}, "io.debezium.time.Date"),
    ("TIME", ColumnType.TIME2, {}, "io.debezium.time.MicroTime"),
    ("DATETIME, DATETIME(1) to (3)", ColumnType.DATETIME2, {}, "io.debezium.time.Timestamp"),
    (
        "DATETIME(4) to (6)",
        ColumnType.DATETIME2,
        {"metadata": FractionMetadata(6)},
        "io.debezium.time.MicroTimestamp",
    ),
    ("TIMESTAMP", ColumnType.TIMESTAMP2, {}, "io.debezium.time.ZonedTimestamp"),
    ("CHAR, VARCHAR, TEXT", ColumnType.VARCHAR, _TEXT, "string"),
    ("BINARY, VARBINARY, BLOB", ColumnType.BLOB, {}, "bytes"),
    ("ENUM", ColumnType.ENUM, _MEMBERS, "io.debezium.data.Enum"),
    ("SET", ColumnType.SET, _MEMBERS, "io.debezium.data.EnumSet"),
    ("JSON of MySQL", ColumnType.JSON, {}, "io.debezium.data.Json"),
    ("GEOMETRY and its kinds", ColumnType.GEOMETRY, {}, "io.debezium.data.geometry.Geometry; POINT: .Point"),
    ("VECTOR", ColumnType.VECTOR, {}, "io.debezium.data.FloatVector"),
    ("INET4, INET6, UUID of MariaDB", ColumnType.STRING, {"sql_type": "uuid"}, "string"),
)
"""Types as SQL has them, a column of each, and what Debezium 3.6.1 makes of it unless told otherwise."""

_OPTIONS: tuple[tuple[str, str], ...] = (
    ("bigint_unsigned", "long"),
    ("bigint_unsigned", "string"),
    ("decimal", "string"),
    ("decimal", "double"),
    ("wide_decimal", "decimal"),
    ("temporal", "debezium"),
    ("temporal", "connect"),
    ("bit", "debezium"),
    ("binary", "base64"),
)


def _codecs() -> Iterator[tuple[str, ColumnCodec, str]]:
    for sql, column_type, more, debezium in _TYPES:
        yield sql, codec_of(replace(_column(column_type), **more)), debezium


def avro_types_shown() -> list[tuple[str, AvroType]]:
    """Give the Avro type of each type that the page shows."""
    return [(sql, codec.avro_type(AvroOptions())) for sql, codec, _ in _codecs()]


def types_text() -> str:
    """Write the types of row topics beside those of Spark and Debezium, and what options change."""
    lines = [
        "| SQL | Avro | Spark | `connect.name` | Debezium | by option |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for sql, codec, debezium in _codecs():
        avro = codec.avro_type(AvroOptions())
        own = avro.get("connect.name", "") if isinstance(avro, dict) else ""
        changed = []
        for option, value in _OPTIONS:
            other = codec.avro_type(AvroOptions(**{option: value}))  # type: ignore[arg-type]  # one of its values
            if other != avro:
                changed.append(f"`{option}={value}`: {_shown(other, name=True)}")
        cells = sql, _shown(avro), spark_type(avro), own, debezium, "; ".join(changed)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(avro: AvroType, *, name: bool = False) -> str:
    """Write an Avro type in short: the logical type, and the semantic type of Connect if asked for."""
    if isinstance(avro, str):
        return avro
    if avro["type"] == "array":
        return f"array of {avro['items']}"
    if avro["type"] == "record":
        return "record of " + " and ".join(f"`{field['name']}`" for field in avro["fields"])
    logical = avro.get("logicalType")
    if logical == "decimal":
        logical = f"decimal({avro['precision']},{avro['scale']})"
    text = avro["type"] if logical is None else f"{avro['type']} `{logical}`"
    return f"{text} as {avro['connect.name']}" if name and "connect.name" in avro else text


_SPARK = {"long": "bigint", "bytes": "binary"}
_SPARK_LOGICAL = {
    "timestamp-micros": "timestamp",
    "timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp_ntz",
    "date": "date",
}


def spark_type(avro: AvroType) -> str:
    """Give the type that Spark's ``from_avro`` makes of an Avro type, as ``simpleString`` writes it."""
    if isinstance(avro, list):
        return spark_type(next(branch for branch in avro if branch != "null"))
    if isinstance(avro, str):
        return _SPARK.get(avro, avro)
    if avro["type"] == "array":
        return f"array<{spark_type(avro['items'])}>"
    if avro["type"] == "record":
        fields = (f"{field['name']}:{spark_type(field['type'])}" for field in avro["fields"])
        return f"struct<{','.join(fields)}>"
    logical = avro.get("logicalType")
    if logical == "decimal":
        return f"decimal({avro['precision']},{avro['scale']})"
    return _SPARK_LOGICAL.get(logical) or _SPARK.get(avro["type"], avro["type"])


def _section(codec: type[ColumnCodec], kind: str, *, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {codec.__name__}\n"
    yield f"*{kind}*\n"
    for paragraph in (codec.__doc__ or "").split("\n\n"):
        yield _plain(paragraph) + "\n"
    yield f"Metadata: {codec.metadata_layout.description}.\n"


def _plain(paragraph: str) -> str:
    text = " ".join(paragraph.split()).replace("``", "`").replace(":class:`~", "`")
    return text.replace(":class:`", "`").replace(":meth:`", "`").replace(":data:`", "`")
