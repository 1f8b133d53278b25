"""NOT NULL and DEFAULT of columns, in the Avro types of their fields.

They stand there as properties, which neither change a value nor matter to the compatibility of schemas:
parameters of Kafka Connect, and ``connect.default``, where Connect's Avro converters have a default. A field
stays a union with null, since a row image may lack any column, and a value may be one that no type holds.
"""

import struct
from typing import Any, Final

from millrace.binlog.columns.column import Column
from millrace.binlog.columns.declaration import AvroOptions, AvroType, ColumnCodec, codec_of
from millrace.binlog.errors import BinlogError

__all__ = ["with_attributes"]

_SHARED: Final = ("record", "array")
"""Types of which a schema has one for several columns, and those without literals."""


def with_attributes(avro: AvroType, column: Column, options: AvroOptions) -> AvroType:
    """Add to a field's type what its column is declared with, as the options ask for it."""
    if options.column_attributes == "none":
        return avro
    made: dict[str, Any] = dict(avro) if isinstance(avro, dict) else {"type": avro}
    if made["type"] in _SHARED or "." in made["type"]:
        return avro
    parameters = {} if column.nullable else {"millrace.nullable": "false"}
    found = None if column.default is None else _default(codec_of(column), column.default, options)
    if found is not None:
        text, value = found
        parameters["millrace.default"] = text
        if options.column_attributes == "debezium":
            made["connect.default"] = value
    if parameters:
        made["connect.parameters"] = {**made.get("connect.parameters", {}), **parameters}
    return made if len(made) > 1 else avro


def _default(codec: ColumnCodec, literal: str, options: AvroOptions) -> tuple[str, Any] | None:
    """Give a default as the server shows it, and as JSON has it in a schema; None where none can be told."""
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
