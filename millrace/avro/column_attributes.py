"""NOT NULL, DEFAULT and the SQL types of columns, in the Avro types of their fields.

They stand there as properties, which neither change a value nor matter to the compatibility of schemas:
parameters of Kafka Connect, and ``connect.default``, where Connect's Avro converters have a default. A field
stays a union with null, since a row image may lack any column, and a value may be one that no type holds.

The parameters of SQL types are those of Debezium's ``column.propagate.source.type``, as its connector for
MySQL makes them of SHOW CREATE TABLE (``io.debezium.relational.mapping``,
``PropagateSourceMetadataToSchemaParameter``; lengths in ``ColumnDefinitionParserListener``).
"""

import struct
from typing import Any, Final

from millrace.binlog.columns.column import Column
from millrace.binlog.columns.declaration import AvroOptions, AvroType, ColumnCodec, codec_of
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import BinlogError

_SOURCE: Final = "__debezium.source.column"
_SUFFIXES: Final = ("unsigned", "zerofill")
"""Attributes that are a part of a type's name."""


def with_attributes(avro: AvroType, column: Column, options: AvroOptions) -> AvroType:
    """Add to a field's type what its column is declared with, as the options ask for it."""
    made: dict[str, Any] = dict(avro) if isinstance(avro, dict) else {"type": avro}
    if made["type"] == "record" or "." in made["type"]:  # of which a schema has one for several columns
        return avro
    parameters = {}
    if options.column_attributes != "none":
        if not column.nullable:
            parameters["millrace.nullable"] = "false"
        found = None if column.default is None else _default(codec_of(column), column.default, options)
        if found is not None:
            parameters["millrace.default"], value = found
            if options.column_attributes == "debezium":
                made["connect.default"] = value
    if options.propagate_source_type and column.sql_type is not None:
        parameters |= _source_type(column, SqlType.parse(column.sql_type))
    if parameters:
        made["connect.parameters"] = {**made.get("connect.parameters", {}), **parameters}
    return made if len(made) > 1 else avro


def _source_type(column: Column, sql_type: SqlType) -> dict[str, str]:
    """Return Debezium's parameters for the type and the name of a column."""
    words = [sql_type.name]
    numbers: tuple[int, ...] = sql_type.arguments
    if column.type is ColumnType.ENUM:
        numbers = (1,)
    elif column.type is ColumnType.SET:
        numbers = (max(0, 2 * len(column.members or ()) - 1),)  # a character for each member and each comma
    else:
        words += [word for word in sql_type.attributes.split() if word in _SUFFIXES]
    sizes = zip(("length", "scale"), map(str, numbers), strict=False)
    found = {"type": " ".join(words).upper(), **dict(sizes), "name": str(column.name)}
    return {f"{_SOURCE}.{what}": text for what, text in found.items()}


def _default(codec: ColumnCodec, literal: str, options: AvroOptions) -> tuple[str, Any] | None:
    """Return a default as the server shows it, and as a schema's JSON has it; None where it is not known."""
    try:
        payload = codec.encode(codec.from_default(literal))
        if codec.struct_code:
            struct.pack("<" + codec.struct_code, payload)
        convert = codec.avro_decoder(options)
        plain = payload if convert is None else convert(payload)
        text = codec.text(codec.decode(payload))
    except (BinlogError, ValueError, ArithmeticError, struct.error):
        return None
    if isinstance(plain, bytes):  # as Avro's specification has them in JSON
        plain = plain.decode("latin-1")
    return (text if isinstance(text, str) else f"0x{text.hex()}"), plain
