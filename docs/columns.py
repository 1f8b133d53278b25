"""Tables of ``docs/columns.md`` and ``docs/types.md`` from the column types: see ``generate.py``."""  # noqa: INP001 - a script

from collections.abc import Iterator

from millrace.avro.compatibility import promotes
from millrace.binlog.columns import COLUMNS, VARIANTS, AvroOptions, ColumnCodec, codec_of
from millrace.binlog.columns.charsets import collation_servers
from millrace.binlog.columns.declaration import AvroType, catalog_types
from millrace.binlog.table import ColumnDefinition, column_of

__all__ = ["avro_types_shown", "changes_text", "columns_text", "spark_type", "types_text"]


def columns_text() -> str:
    """List the classes with their types, and the types that travel as others."""
    classes: dict[type[ColumnCodec], list[str]] = {}
    for column_type, codec in sorted(COLUMNS.items()):
        classes.setdefault(codec, []).append(f"{column_type.name} {int(column_type)}")
    variants = {codec: [f"{name} as {column_type.name}"] for (column_type, name), codec in VARIANTS.items()}
    return "\n".join(
        (
            f"Character sets and collation ids were read from {_enumeration(collation_servers())}.\n",
            "| types | class: value | metadata |\n| --- | --- | --- |",
            *(
                f"| {_cells(codec, types)} | {codec.metadata_layout.description} |"
                for codec, types in classes.items()
            ),
            "\nThese are bytes without the catalog, which alone names them:\n",
            "| type | class: value |\n| --- | --- |",
            *(f"| {_cells(codec, types)} |" for codec, types in variants.items()),
        )
    )


def _cells(codec: type[ColumnCodec], types: list[str]) -> str:
    return f"{', '.join(types)} | `{codec.__name__}`: {_plain(codec.__doc__ or '')}"


def _enumeration(servers: list[str]) -> str:
    named = [server if "MariaDB" in server else f"MySQL {server}" for server in servers]
    return f"{', '.join(named[:-1])} and {named[-1]}"


_TYPES: tuple[tuple[str, str, str], ...] = (
    ("TINYINT (BOOLEAN)", "tinyint", "int16"),
    ("TINYINT UNSIGNED", "tinyint unsigned", "int16"),
    ("SMALLINT", "smallint", "int16"),
    ("SMALLINT UNSIGNED", "smallint unsigned", "int32"),
    ("MEDIUMINT", "mediumint", "int32"),
    ("MEDIUMINT UNSIGNED", "mediumint unsigned", "int32"),
    ("INT", "int", "int32"),
    ("INT UNSIGNED", "int unsigned", "int64"),
    ("BIGINT", "bigint", "int64"),
    ("BIGINT UNSIGNED", "bigint unsigned", "int64, wrong from 2^63 on"),
    ("DECIMAL(12,2)", "decimal(12,2)", "Decimal"),
    ("DECIMAL(60,2): more than 38 digits", "decimal(60,2)", "Decimal"),
    ("FLOAT", "float", "float32"),
    ("DOUBLE", "double", "float64"),
    ("BIT(1)", "bit(1)", "boolean"),
    ("BIT(12)", "bit(12)", "io.debezium.data.Bits, the least significant byte first"),
    ("YEAR", "year", "io.debezium.time.Year"),
    ("DATE", "date", "io.debezium.time.Date"),
    ("TIME", "time", "io.debezium.time.MicroTime"),
    ("DATETIME, DATETIME(1) to (3)", "datetime", "io.debezium.time.Timestamp"),
    ("DATETIME(4) to (6)", "datetime(6)", "io.debezium.time.MicroTimestamp"),
    ("TIMESTAMP", "timestamp", "io.debezium.time.ZonedTimestamp"),
    ("CHAR, VARCHAR, TEXT", "varchar(10)", "string"),
    ("BINARY, VARBINARY, BLOB", "blob", "bytes"),
    ("ENUM", "enum", "io.debezium.data.Enum"),
    ("SET", "set", "io.debezium.data.EnumSet"),
    ("JSON of MySQL", "json", "io.debezium.data.Json"),
    ("GEOMETRY and its kinds", "geometry", "io.debezium.data.geometry.Geometry; POINT: .Point"),
    ("VECTOR", "vector", "io.debezium.data.FloatVector"),
    ("INET4, INET6, UUID of MariaDB", "uuid", "string"),
)
"""Types as SQL has them, a column of each, and what Debezium 3.6.1 makes of it unless told otherwise.

A type of the catalog that is declared in no class of these has a line of its own.
"""

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


def _codec(sql: str) -> ColumnCodec:
    charset = "utf8mb4" if sql.startswith("varchar") else None
    definition = ColumnDefinition(0, "", sql, unsigned="unsigned" in sql, charset=charset, members=("a", "b"))
    return codec_of(column_of(definition, mariadb=False))


def _declarations(codec: ColumnCodec) -> list[type]:
    """Return the class of a declaration, and those that it shares with others."""
    return [one for one in type(codec).__mro__ if issubclass(one, ColumnCodec) and one is not ColumnCodec]


def _codecs() -> Iterator[tuple[str, ColumnCodec, str]]:
    shown: set[type] = set()
    for sql, column_type, debezium in _TYPES:
        codec = _codec(column_type)
        shown.update(_declarations(codec))
        yield sql, codec, debezium
    for name in catalog_types():
        codec = _codec(name)
        if shown.isdisjoint(_declarations(codec)):
            yield name.upper(), codec, ""


def avro_types_shown() -> list[tuple[str, AvroType]]:
    """Return the Avro type of each type that the page shows."""
    return [(sql, codec.avro_type(AvroOptions())) for sql, codec, _ in _codecs()]


def types_text() -> str:
    """Write the types of row topics beside those of Spark and Debezium, and what options change."""
    lines = [
        "| SQL | Avro | Spark | `connect.name` | Debezium | by option |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows: dict[tuple[str, ...], list[str]] = {}
    for sql, codec, debezium in _codecs():
        avro = codec.avro_type(AvroOptions())
        own = avro.get("connect.name", "") if isinstance(avro, dict) else ""
        changed = []
        for option, value in _OPTIONS:
            other = codec.avro_type(AvroOptions(**{option: value}))  # type: ignore[arg-type]  # one of its values
            if other != avro:
                changed.append(f"`{option}={value}`: {_shown(other, name=True)}")
        cells = _shown(avro), spark_type(avro), own, debezium, "; ".join(changed)
        rows.setdefault(cells, []).append(sql)
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
    return "\n".join(lines)


_CHANGED: tuple[str, ...] = (
    *("tinyint", "smallint unsigned", "int", "int unsigned", "bigint", "bigint unsigned"),
    *("decimal(8,2)", "decimal(12,2)", "decimal(12,4)", "decimal(20,0)", "decimal(38,2)", "decimal(40,2)"),
    *("float", "double", "bit(1)", "bit(12)", "year", "date", "time", "time(6)", "datetime", "datetime(3)"),
    *("datetime(6)", "timestamp", "timestamp(6)", "varchar(20)", "varbinary(20)", "binary(3)"),
    *("enum('a','b')", "set('a','b')", "json"),
)
_DEBEZIUM = AvroOptions(bigint_unsigned="long", wide_decimal="decimal", temporal="debezium", bit="debezium")


def changes_text() -> str:
    """Write which types may become which others, so that consumers get the same values of older records."""
    lines = ["| from | compatible, by default | compatible, as Debezium has them |", "| --- | --- | --- |"]
    for old in _CHANGED:
        cells = []
        for options in (AvroOptions(), _DEBEZIUM):
            was = _codec(old).avro_type(options)
            others = (new for new in _CHANGED if new != old and promotes(was, _codec(new).avro_type(options)))
            cells.append(", ".join(map(_in_capitals, others)) or "none")
        cells[1] = "the same" if cells[1] == cells[0] else cells[1]
        lines.append(f"| {_in_capitals(old)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _in_capitals(sql: str) -> str:
    return sql.partition("('")[0].upper()


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
    """Return the type that Spark's ``from_avro`` makes of an Avro type, as ``simpleString`` writes it."""
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


def _plain(paragraph: str) -> str:
    text = " ".join(paragraph.split()).replace("``", "`").replace(":class:`~", "`")
    return text.replace(":class:`", "`").replace(":meth:`", "`").replace(":data:`", "`")
