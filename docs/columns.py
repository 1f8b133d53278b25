"""The tables of ``docs/columns.md``, from the declarations of the column types: see ``generate.py``."""  # noqa: INP001 - a script

import json
from collections.abc import Iterator
from itertools import groupby

from millrace.binlog.columns import COLUMNS, VARIANTS, AvroOptions, Column, ColumnCodec, ColumnType
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

__all__ = ["columns_text"]

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
    parts.append("| code | type | in SQL | Avro type | `connect.name` |\n| ---: | --- | --- | --- | --- |")
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
    codec = COLUMNS[column_type]
    metadata = _EXAMPLES.get(column_type, NoMetadata())
    plain = codec(Column(0, column_type, metadata, members=("a", "b")))
    shapes = [plain]
    if column_type in (
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
    ):
        shapes.append(codec(Column(0, column_type, metadata, unsigned=True)))
    elif plain.sql_type().endswith(("binary(40)", "blob", "compressed")):
        shapes.append(codec(Column(0, column_type, metadata, charset="utf8mb4")))
    for one in shapes:
        avro = one.avro_type(AvroOptions())
        shown = avro if isinstance(avro, dict) else {"type": avro}
        connect = shown.get("connect.name", "")
        rest = {key: value for key, value in shown.items() if key != "connect.name"}
        text = str(rest["type"]) if list(rest) == ["type"] else json.dumps(rest)
        yield f"| {int(column_type)} | {column_type.name} | `{one.sql_type()}` | `{text}` | {connect} |"


def _section(codec: type[ColumnCodec], kind: str, *, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {codec.__name__}\n"
    yield f"*{kind}*\n"
    for paragraph in (codec.__doc__ or "").split("\n\n"):
        yield _plain(paragraph) + "\n"
    yield f"Metadata: {codec.metadata_layout.description}.\n"


def _plain(paragraph: str) -> str:
    text = " ".join(paragraph.split()).replace("``", "`").replace(":class:`~", "`")
    return text.replace(":class:`", "`").replace(":meth:`", "`").replace(":data:`", "`")
