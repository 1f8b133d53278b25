"""From a column as a statement writes it to the one that the server's catalogue shows.

The rules are those of ``Create_field::init`` and ``mysql_prepare_create_table`` in the servers' sources, and
of the chapters "Silent Column Specification Changes" and "Data Types" of the manuals.
"""

import struct
from contextlib import suppress
from dataclasses import replace
from typing import Final

from millrace.binlog.columns import charsets
from millrace.binlog.columns.charsets import BINARY, max_bytes_per_character
from millrace.binlog.columns.column import LengthMetadata
from millrace.binlog.columns.declaration import codec_of
from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.table import ColumnDefinition, column_of, kept_default
from millrace.ddl.statements import ColumnSpec
from millrace.ddl.tokens import NotUnderstoodError, Server, Session

_WIDTHS: Final = {"tinyint": 4, "smallint": 6, "mediumint": 9, "int": 11, "bigint": 20}
_REALS: Final = frozenset({"float", "double"})
_FRACTIONS: Final = frozenset({"time", "datetime", "timestamp"})
_WITHOUT_ARGUMENTS: Final = frozenset(
    {"date", "tinytext", "mediumtext", "longtext", "tinyblob", "mediumblob", "longblob", *GEOMETRY_TYPES}
)
_OF_MARIADB: Final = frozenset({"inet4", "inet6", "uuid"})
_BINARY_OF: Final = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_TEXTS: Final = ((255, "tinytext"), (65_535, "text"), (16_777_215, "mediumtext"), (4_294_967_295, "longtext"))
_MAX_VARCHAR: Final = 65_535
_UNITS: Final = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_UTF8: Final = ("utf8mb3", "utf8mb4")
_LENGTHY: Final = frozenset(("char", "varchar", "binary", "varbinary"))
_WITH_PREFIX: Final = frozenset((*_BINARY_OF, *_BINARY_OF.values(), *GEOMETRY_TYPES))
"""Types whose prefix may be in a key. A column that gets another type is in its keys entirely."""
_WITH_CHARSET: Final = frozenset(("char", "varchar", "enum", "set", *(name for _, name in _TEXTS)))


def charset_of(collation: str | None) -> str | None:
    """Name the character set of a collation; None for one of several, as MariaDB's uca1400_ai_ci."""
    if collation is None or collation.startswith("uca1400_"):
        return None
    return charset_named(collation.partition("_")[0])


def charset_named(name: str) -> str:
    """Spell the name of a character set as the newest servers do."""
    return "utf8mb3" if name == "utf8" else name


def has_charset(column: ColumnDefinition) -> bool:
    """Return whether a column has a character set that converting its table changes."""
    return column.charset not in (None, BINARY) and SqlType.parse(column.column_type).name in _WITH_CHARSET


def names_charset(spec: ColumnSpec, server: Server) -> bool:
    """Return whether a column that a statement defines has a character set of its own, other than binary."""
    if spec.type in ("nchar", "nvarchar") or (spec.type == "json" and server.mariadb):
        return True
    named = spec.charset or charset_of(spec.collation)
    return spec.type in _WITH_CHARSET and named not in (None, BINARY)


def column_definition(spec: ColumnSpec, table_charset: str | None, session: Session) -> ColumnDefinition:
    """Return the definition of a column, at ordinal 0 and in no key.

    Raise NotUnderstoodError if its type or its character set is unknown.
    """
    if session.other_types:
        raise NotUnderstoodError("in this sql_mode names of types have other meanings")
    server = session.server
    definition = ColumnDefinition(
        0,
        spec.name,
        "",
        nullable=spec.nullable is not False,
        generated=spec.generated,
        hidden=spec.hidden,
        default=kept_default(spec.default),
    )
    name = spec.type
    if name in ("nchar", "nvarchar"):
        spec = replace(spec, type=name[1:], charset=spec.charset or "utf8mb3")
        name = spec.type
    if name == "json" and server.mariadb:
        return replace(definition, column_type="longtext", charset="utf8mb4", collation="utf8mb4_bin")
    if name in _WITH_CHARSET:
        return _text(spec, definition, table_charset, server)
    text, unsigned = _TYPES[name](spec, session) if name in _TYPES else _plain(spec, server)
    if spec.type == "serial":
        definition = replace(definition, nullable=spec.nullable is True and not server.mariadb)
    if name == "timestamp" and spec.nullable is None and spec.row_period is None:
        definition = replace(definition, nullable=session.timestamp_not_null is False)
    if spec.compressed:
        text += " /*M!100301 COMPRESSED*/"
    return replace(definition, column_type=text, unsigned=unsigned)


def _text(
    spec: ColumnSpec, definition: ColumnDefinition, table_charset: str | None, server: Server
) -> ColumnDefinition:
    charset = charset_named(spec.charset) if spec.charset else charset_of(spec.collation) or table_charset
    if charset is None:
        raise NotUnderstoodError(f"the character set of column {spec.name} comes from an unknown default")
    return _with_charset(spec, replace(definition, collation=spec.collation, charset=charset), server)


def _with_charset(spec: ColumnSpec, definition: ColumnDefinition, server: Server) -> ColumnDefinition:
    name, charset = spec.type, definition.charset
    assert charset is not None
    width = max_bytes_per_character(charset)
    if name in ("enum", "set"):
        members = tuple(_member(member, charset) for member in spec.members or ())
        text = f"{name}({','.join(map(_quoted, members))})"
        if charset == BINARY and not server.mariadb:
            definition = replace(definition, charset=None, collation=None)
        return replace(definition, column_type=text, members=members)
    if name in ("char", "varchar"):
        if not spec.arguments and name == "varchar":
            raise NotUnderstoodError(f"column {spec.name} has no length")
        length = spec.arguments[0] if spec.arguments else 1
        if name == "varchar" and length * width > _MAX_VARCHAR:
            name, text = _text_of(length * width), ""
        else:
            text = f"({length})"
    else:
        size = _size(spec, server)
        if name == "text" and size is not None:
            name = _text_of(size * width)
        text = ""
    if charset == BINARY:
        name, definition = _BINARY_OF[name], replace(definition, charset=None, collation=None)
    compressed = " /*M!100301 COMPRESSED*/" if spec.compressed else ""
    return replace(definition, column_type=f"{name}{text}{compressed}")


def _member(member: str | bytes, charset: str) -> str:
    """Return a member as a character set holds it: without spaces at its end, with ? for what it lacks."""
    if isinstance(member, bytes):
        return _text_of_bytes(member, charset)
    if charset == BINARY:
        return member
    codec = charsets.charset(charset)

    def kept(letter: str) -> str:
        try:
            codec.encode(letter)
        except ValueError:
            return "?"
        return letter

    return "".join(letter if letter.isascii() else kept(letter) for letter in member.rstrip(" "))


def _text_of_bytes(member: bytes, charset: str) -> str:
    """Return a member that a statement writes as bytes; servers fill the first character up with zeros."""
    missing = -len(member) % _UNITS.get(charset, 1)
    try:
        text = (
            (bytes(missing) + member).decode()
            if charset == BINARY
            else charsets.charset(charset).decode(bytes(missing) + member)
        )
    except ValueError:
        raise NotUnderstoodError(
            f"a member is written as 0x{member.hex()}, which is no text in {charset}"
        ) from None
    return text if charset == BINARY else text.rstrip(" ")


def _text_of(size: int) -> str:
    return next((name for limit, name in _TEXTS if size <= limit), "longtext")


def _quoted(member: str) -> str:
    text = member.replace("\\", "\\\\").replace("'", "''")
    return "'" + text.replace("\0", "\\0").replace("\n", "\\n").replace("\r", "\\r") + "'"


def converted(
    column: ColumnDefinition, charset: str, collation: str | None, server: Server
) -> ColumnDefinition:
    """Return a text column as CONVERT TO CHARACTER SET leaves it: it holds as many characters as before."""
    sql_type = SqlType.parse(column.column_type)
    assert column.charset is not None
    arguments = sql_type.arguments
    name = sql_type.name
    members = column.members
    if name in ("enum", "set") and column.charset != charset:
        members = tuple(_read_again(member, column, charset, server) for member in members or ("",))
    limit = next((limit for limit, text in _TEXTS if text == name), None)
    if limit is not None and charset != BINARY:
        characters = limit // max_bytes_per_character(column.charset)
        name = _text_of(characters * max_bytes_per_character(charset))
    spec = ColumnSpec(
        column.name,
        name,
        () if members is not None else arguments,
        members,
        compressed="compressed" in sql_type.attributes,
    )
    return _with_charset(spec, replace(column, charset=charset, collation=collation), server)


def _read_again(member: str, column: ColumnDefinition, charset: str, server: Server) -> str:
    """Return what a member's bytes are in another character set: servers keep them, "ü" becomes "Ã¼"."""
    assert column.charset is not None
    before = charset_named(column.charset)
    # Where "?" or nothing is shown, the bytes may be others, and behind a character of several there may be
    # some that are not shown.
    tells = member.isascii() or before in _UTF8 or max_bytes_per_character(before) == 1
    if before in _UNITS:
        tells = max(member, default="") < "\u0100"  # or they are bytes of two characters of another set
    if member and tells and "?" not in member:
        with suppress(ValueError):
            raw = charsets.charset(before).encode(member)
            if charset == BINARY:
                return raw.decode()
            if charset == "ascii" and server.mariadb:
                return raw.decode("ascii", "replace").replace("\ufffd", "?")
            if charset == "utf8mb4" and len(raw) == 1 and not raw.isascii():
                return "?" if server.mariadb else ""  # the first byte of a code
            left = len(raw) % _UNITS.get(charset, 1)
            shown = charsets.charset(charset).decode(raw[: len(raw) - left])
            return shown + "?" * left if server.mariadb else shown
    raise NotUnderstoodError(
        f"the bytes of {member!r}, a member of column {column.name}, are another text in {charset}"
    )


# -- columns in keys ----------------------------------------------------------------------------------

_POINT_BYTES: Final = 25
"""What a key of MariaDB has of a POINT."""


def key_characters(column: ColumnDefinition, prefix: int, server: Server) -> int | None:
    """Return how much of a column is in a key that has ``prefix`` of it, 0 for all; None for no limit.

    The unit is a character of its character set, a byte for columns without one.
    """
    if prefix:
        return prefix
    sql_type = SqlType.parse(column.column_type)
    if sql_type.name in _LENGTHY:
        return sql_type.argument(1)
    if sql_type.name == "point" and server.mariadb:
        return _POINT_BYTES
    try:
        codec = codec_of(column_of(column, mariadb=server.mariadb))
    except UnsupportedError:
        return None
    if codec.struct_code:
        return struct.calcsize("<" + codec.struct_code) // _bytes_per_character(column)
    metadata = codec.column.metadata
    return metadata.max_length if isinstance(metadata, LengthMetadata) else None


def key_prefix(column: ColumnDefinition, prefix: int, server: Server) -> int:
    """Return the prefix that the catalogue shows where a key is to have ``prefix`` of a column, 0 for all."""
    sql_type = SqlType.parse(column.column_type)
    if sql_type.name == "point" and server.mariadb:
        return prefix or _POINT_BYTES
    if sql_type.name in _LENGTHY:
        return 0 if prefix == sql_type.argument(1) else prefix
    return prefix if sql_type.name in _WITH_PREFIX else 0


def key_bytes(column: ColumnDefinition, prefix: int, server: Server) -> int | None:
    """Return how many bytes a column has in a key, as :func:`key_characters` has characters."""
    characters = key_characters(column, prefix, server)
    return None if characters is None else characters * _bytes_per_character(column)


def _bytes_per_character(column: ColumnDefinition) -> int:
    return max_bytes_per_character(column.charset) if column.charset else 1


# -- types without a character set --------------------------------------------------------------------


def _integer(spec: ColumnSpec, session: Session) -> tuple[str, bool]:
    name, arguments, unsigned = spec.type, spec.arguments, spec.unsigned
    if name == "boolean":
        name, arguments = "tinyint", (1,)
    if name == "serial":
        name, unsigned = "bigint", True
    width = arguments[0] if arguments else _WIDTHS[name] - (unsigned and name != "bigint")
    if width == 0:
        width = _WIDTHS[name] - (unsigned and name != "bigint")
    bare = not session.server.shows_widths and not spec.zerofill
    shown = name if bare and not (name == "tinyint" and width == 1 and not unsigned) else f"{name}({width})"
    return _signed(shown, spec, unsigned=unsigned)


def _signed(text: str, spec: ColumnSpec, *, unsigned: bool) -> tuple[str, bool]:
    return text + " unsigned" * unsigned + " zerofill" * spec.zerofill, unsigned


def _decimal(spec: ColumnSpec, _session: Session) -> tuple[str, bool]:
    precision, scale, *_ = (*spec.arguments, *(10, 0)[len(spec.arguments) :])
    return _signed(f"decimal({precision or 10},{scale})", spec, unsigned=spec.unsigned)


def _real(spec: ColumnSpec, session: Session) -> tuple[str, bool]:
    name, arguments = spec.type, spec.arguments
    if name == "real":
        name = "float" if session.real_is_float else "double"
    if name == "float" and len(arguments) == 1:
        name, arguments = "float" if arguments[0] <= 24 else "double", ()
    text = f"{name}({arguments[0]},{arguments[1]})" if len(arguments) == 2 else name
    return _signed(text, spec, unsigned=spec.unsigned)


def _temporal(spec: ColumnSpec, _session: Session) -> tuple[str, bool]:
    digits = spec.arguments[0] if spec.arguments else 0
    return f"{spec.type}({digits})" if digits else spec.type, False


def _year(spec: ColumnSpec, session: Session) -> tuple[str, bool]:
    if session.server.mariadb and spec.arguments == (2,):
        return "year(2)", False
    # The sign of YEAR is noted for MariaDB and 5.7, where its column is unsigned but never shown so.
    return "year(4)" if session.server.shows_widths else "year", False


def _lengthy(spec: ColumnSpec, _session: Session) -> tuple[str, bool]:
    if not spec.arguments and spec.type == "varbinary":
        raise NotUnderstoodError(f"column {spec.name} has no length")
    length = spec.arguments[0] if spec.arguments else 1
    if spec.type == "varbinary" and length > _MAX_VARCHAR:
        return _BINARY_OF[_text_of(length)], False
    if spec.type == "bit":
        length = length or 1  # MariaDB takes BIT(0) for BIT(1), MySQL refuses it
    return f"{spec.type}({length})", False


def _blob(spec: ColumnSpec, session: Session) -> tuple[str, bool]:
    size = _size(spec, session.server)
    return _BINARY_OF[_text_of(_MAX_VARCHAR if size is None else size)], False


def _size(spec: ColumnSpec, server: Server) -> int | None:
    """Return the size of a TEXT or BLOB that is given; MariaDB takes TEXT(0) for TEXT."""
    size = spec.arguments[0] if spec.arguments else None
    return None if size == 0 and server.mariadb else size


def _vector(spec: ColumnSpec, _session: Session) -> tuple[str, bool]:
    return f"vector({spec.arguments[0] if spec.arguments else 2048})", False


def _json(spec: ColumnSpec, _session: Session) -> tuple[str, bool]:
    return spec.type, False


def _geometries(spec: ColumnSpec, session: Session) -> tuple[str, bool]:
    short = not session.server.mariadb and session.server.version >= (8, 0, 11)
    return "geomcollection" if short else spec.type, False


_TYPES = {
    **dict.fromkeys((*_WIDTHS, "boolean", "serial"), _integer),
    **dict.fromkeys((*_REALS, "real"), _real),
    **dict.fromkeys(_FRACTIONS, _temporal),
    **dict.fromkeys(("binary", "varbinary", "bit"), _lengthy),
    "decimal": _decimal,
    "year": _year,
    "blob": _blob,
    "vector": _vector,
    "json": _json,
    "geometrycollection": _geometries,
}


def _plain(spec: ColumnSpec, server: Server) -> tuple[str, bool]:
    """Return a type of one word."""
    if spec.type not in _WITHOUT_ARGUMENTS and not (server.mariadb and spec.type in _OF_MARIADB):
        raise NotUnderstoodError(f"the type {spec.type} of column {spec.name} is not known")
    return spec.type, False
