"""The columns of a table map: types and their metadata block, and the optional metadata after the NULL bits.

``Table_map_event`` in MySQL's ``libbinlogevents/include/rows_event.h`` specifies both; MariaDB's
``Table_map_log_event::init_metadata_fields`` writes the same fields by slightly other rules:

- SIGNEDNESS has a bit for every numeric column. YEAR is one of them in MariaDB and in newer versions of
  MySQL 8.0; MySQL 8.0.15 leaves it out.
- The character sets are those of the character columns: CHAR, VARCHAR, BLOB; in MySQL VECTOR too, in MariaDB
  GEOMETRY and the compressed types. ENUM and SET have fields of their own.

Which server wrote the event is told by ``server_version`` of the format description. Without it, the first
rules that the fields do not contradict are taken: MySQL's, those of MySQL 8.0.15, MariaDB's.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache
from itertools import compress, islice
from typing import Any, Protocol, cast

from millrace.binlog.columns.charsets import BINARY, charset, charset_of_collation, collation_of_charset
from millrace.binlog.columns.column import Column, Member, Metadata, PackMetadata
from millrace.binlog.columns.declaration import COLUMNS, Servers
from millrace.binlog.columns.types import COMPRESSED_TYPES, ColumnType
from millrace.binlog.cursor import Cursor
from millrace.binlog.errors import InvalidValueError, MalformedError, UnsupportedError
from millrace.binlog.fields import pack_lenenc
from millrace.binlog.server_version import ServerVersion

__all__ = [
    "KINDS_OF_SERVER",
    "MEMBER_TYPES",
    "DefaultCharset",
    "MetadataRules",
    "OptionalMetadata",
    "OptionalMetadataType",
    "TableMap",
    "columns_of",
    "decode_column_metadata",
    "decode_optional_metadata",
    "encode_column_metadata",
    "encode_optional_metadata",
    "full_metadata",
    "member_texts",
    "plain_columns",
]


class TableMap(Protocol):
    """What is needed of a table map event; both metadata blocks are raw bytes."""

    @property
    def database(self) -> str:
        """Name of the database."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def column_types(self) -> bytes:
        """Type codes of the columns."""

    @property
    def column_metadata(self) -> bytes:
        """Metadata of the columns' types, one after the other."""

    @property
    def null_bits(self) -> bytes:
        """Bitmap of the columns that may be NULL."""

    @property
    def optional_metadata(self) -> bytes:
        """Fields of the optional metadata, one after the other."""


class OptionalMetadataType(IntEnum):
    """Types of the optional metadata's fields, ``Optional_metadata_field_type`` in MySQL 9."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_STR_VALUE = 5
    ENUM_STR_VALUE = 6
    GEOMETRY_TYPE = 7
    SIMPLE_PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11
    COLUMN_VISIBILITY = 12
    VECTOR_DIMENSIONALITY = 13


@dataclass(frozen=True, slots=True)
class DefaultCharset:
    """A collation for all columns of a kind but some: ``exceptions`` are pairs of index and collation id."""

    collation_id: int
    exceptions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OptionalMetadata:
    """The fields of the optional metadata, None where a field is not there.

    ``signedness`` is the bitmap as it is on the wire, the first numeric column in the highest bit, set for
    unsigned; ``visibility`` likewise for all columns. Indexes in the character set fields count the columns
    of their kind. Names and members are bytes: a name is UTF-8, a member in its column's character set. Keys
    are ordinals of columns, with the length of the prefix or 0. ``unknown`` keeps fields of other types;
    ``order`` is the order of the types on the wire.
    """

    signedness: bytes | None = None
    default_charset: DefaultCharset | None = None
    column_charset: tuple[int, ...] | None = None
    column_name: tuple[bytes, ...] | None = None
    set_str_value: tuple[tuple[bytes, ...], ...] | None = None
    enum_str_value: tuple[tuple[bytes, ...], ...] | None = None
    geometry_type: tuple[int, ...] | None = None
    simple_primary_key: tuple[int, ...] | None = None
    primary_key_with_prefix: tuple[tuple[int, int], ...] | None = None
    enum_and_set_default_charset: DefaultCharset | None = None
    enum_and_set_column_charset: tuple[int, ...] | None = None
    column_visibility: bytes | None = None
    vector_dimensionality: tuple[int, ...] | None = None
    unknown: tuple[tuple[int, bytes], ...] = ()
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    decode: Callable[[Cursor], Any]
    encode: Callable[[Any], bytes]


def _numbers(cursor: Cursor) -> tuple[int, ...]:
    found = []
    while cursor.remaining:
        found.append(cursor.lenenc())
    return tuple(found)


def _pack_numbers(values: Sequence[int]) -> bytes:
    return b"".join(map(pack_lenenc, values))


def _pairs(cursor: Cursor) -> tuple[tuple[int, int], ...]:
    found = []
    while cursor.remaining:
        found.append((cursor.lenenc(), cursor.lenenc()))
    return tuple(found)


def _pack_pairs(values: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(pack_lenenc(a) + pack_lenenc(b) for a, b in values)


def _default_charset(cursor: Cursor) -> DefaultCharset:
    return DefaultCharset(cursor.lenenc("collation"), _pairs(cursor))


def _pack_default_charset(value: DefaultCharset) -> bytes:
    return pack_lenenc(value.collation_id) + _pack_pairs(value.exceptions)


def _text(cursor: Cursor) -> bytes:
    return cursor.bytes(cursor.lenenc("length of a string"), "string")


def _texts(cursor: Cursor) -> tuple[bytes, ...]:
    found = []
    while cursor.remaining:
        found.append(_text(cursor))
    return tuple(found)


def _pack_texts(values: Sequence[bytes]) -> bytes:
    return b"".join(pack_lenenc(len(value)) + value for value in values)


_MAX_MEMBERS = 1 << 22
"""More than 60 columns of as many members as a column can have."""


def _lists(cursor: Cursor) -> tuple[tuple[bytes, ...], ...]:
    found = []
    total = 0
    while cursor.remaining:
        count = cursor.lenenc("number of members")
        if count > cursor.remaining:
            raise InvalidValueError(f"{count} members do not fit the {cursor.remaining} bytes that are left")
        total += count
        if total > _MAX_MEMBERS:
            raise InvalidValueError(
                f"{total} members of ENUM or SET columns or more; up to {_MAX_MEMBERS} are read"
            )
        found.append(tuple(_text(cursor) for _ in range(count)))
    return tuple(found)


def _pack_lists(values: Sequence[Sequence[bytes]]) -> bytes:
    return b"".join(pack_lenenc(len(value)) + _pack_texts(value) for value in values)


_FIELDS = {
    OptionalMetadataType.SIGNEDNESS: _Field("signedness", Cursor.rest, bytes),
    OptionalMetadataType.DEFAULT_CHARSET: _Field("default_charset", _default_charset, _pack_default_charset),
    OptionalMetadataType.COLUMN_CHARSET: _Field("column_charset", _numbers, _pack_numbers),
    OptionalMetadataType.COLUMN_NAME: _Field("column_name", _texts, _pack_texts),
    OptionalMetadataType.SET_STR_VALUE: _Field("set_str_value", _lists, _pack_lists),
    OptionalMetadataType.ENUM_STR_VALUE: _Field("enum_str_value", _lists, _pack_lists),
    OptionalMetadataType.GEOMETRY_TYPE: _Field("geometry_type", _numbers, _pack_numbers),
    OptionalMetadataType.SIMPLE_PRIMARY_KEY: _Field("simple_primary_key", _numbers, _pack_numbers),
    OptionalMetadataType.PRIMARY_KEY_WITH_PREFIX: _Field("primary_key_with_prefix", _pairs, _pack_pairs),
    OptionalMetadataType.ENUM_AND_SET_DEFAULT_CHARSET: _Field(
        "enum_and_set_default_charset", _default_charset, _pack_default_charset
    ),
    OptionalMetadataType.ENUM_AND_SET_COLUMN_CHARSET: _Field(
        "enum_and_set_column_charset", _numbers, _pack_numbers
    ),
    OptionalMetadataType.COLUMN_VISIBILITY: _Field("column_visibility", Cursor.rest, bytes),
    OptionalMetadataType.VECTOR_DIMENSIONALITY: _Field("vector_dimensionality", _numbers, _pack_numbers),
}


def decode_optional_metadata(raw: bytes) -> OptionalMetadata:
    """Read the fields after the NULL bits: type (uint8), length (length-encoded integer), value.

    Raise :class:`MalformedError`; a field that comes twice is one too.
    """
    cursor = Cursor(raw)
    values: dict[str, Any] = {}
    unknown = []
    order = []
    while cursor.remaining:
        kind = cursor.u8("type of optional metadata")
        block = cursor.sub(cursor.lenenc("length of optional metadata"), "optional metadata")
        if kind in order:
            raise InvalidValueError(f"field {kind} of the optional metadata comes twice")
        order.append(kind)
        field = _FIELDS.get(cast("OptionalMetadataType", kind))
        if field is None:
            unknown.append((kind, block.rest()))
        else:
            values[field.name] = field.decode(block)
            block.expect_end("optional metadata")
    return OptionalMetadata(**values, unknown=tuple(unknown), order=tuple(order))


def encode_optional_metadata(metadata: OptionalMetadata) -> bytes:
    """Write the fields in the order in which they were, or else by type."""
    fields = dict(metadata.unknown)
    for kind, field in _FIELDS.items():
        value = getattr(metadata, field.name)
        if value is not None:
            fields[kind] = field.encode(value)
    order = metadata.order or sorted(fields)
    return b"".join(bytes((kind,)) + pack_lenenc(len(fields[kind])) + fields[kind] for kind in order)


_MAX_COLUMNS = 4096
"""MAX_FIELDS of the servers."""


def decode_column_metadata(types: bytes, raw: bytes) -> tuple[tuple[ColumnType, Metadata], ...]:
    """Read the metadata block: for each column its real type, ENUM and SET told apart, and its metadata.

    Raise :class:`MalformedError`, and :class:`UnsupportedError` for type codes that no row image holds.
    """
    if len(types) > _MAX_COLUMNS:
        raise InvalidValueError(f"a table of {len(types)} columns; the servers allow {_MAX_COLUMNS}")
    cursor = Cursor(raw)
    found = []
    for ordinal, code in enumerate(types):
        codec = COLUMNS.get(cast("ColumnType", code))
        if codec is None:
            raise UnsupportedError(f"column {ordinal + 1} has type {code}, which is in no row image")
        layout = codec.metadata_layout
        metadata = layout.decode(cursor.bytes(layout.size, "metadata of a column"))
        column_type = ColumnType(code)
        if isinstance(metadata, PackMetadata) and column_type is ColumnType.STRING:
            column_type = ColumnType(cursor.data[cursor.position - 2])
        found.append((column_type, metadata))
    cursor.expect_end("metadata of the columns")
    return tuple(found)


def encode_column_metadata(columns: Sequence[Column]) -> tuple[bytes, bytes]:
    """Write type codes and metadata block; ENUM and SET go under STRING, as the servers have it."""
    types = bytes(ColumnType.STRING if column.type in MEMBER_TYPES else column.type for column in columns)
    raw = b"".join(COLUMNS[column.type].metadata_layout.encode(column.metadata) for column in columns)
    return types, raw


MEMBER_TYPES = frozenset((ColumnType.ENUM, ColumnType.SET))


def _bits(bitmap: bytes) -> Iterator[bool]:
    """Go through a bitmap whose first bit is the highest of its first byte."""
    return (bool(byte >> bit & 1) for byte in bitmap for bit in range(7, -1, -1))


KINDS_OF_SERVER = ("9.7.4", "8.0.15", "11.4.5-MariaDB")
"""Versions that stand for the ways in which servers count columns in the optional metadata."""


@cache
def _counted(server: Servers) -> tuple[frozenset[ColumnType], frozenset[ColumnType]]:
    """Return the types that a server counts among those with a sign, and among those with a character set."""
    numeric = (column_type for column_type, codec in COLUMNS.items() if codec.signedness & server)
    character = (column_type for column_type, codec in COLUMNS.items() if codec.collations & server)
    return frozenset(numeric), frozenset(character)


class MetadataRules:
    """Which columns the fields of the optional metadata count, for the server that wrote them."""

    def __init__(self, server_version: str) -> None:
        server = ServerVersion.parse(server_version)
        mysql = Servers.OLD_MYSQL if server.version < _YEAR_HAS_SIGN else Servers.MYSQL
        self.numeric, self.character = _counted(Servers.MARIADB if server.mariadb else mysql)
        self.whole_doubles = not server.mariadb and server.version < _DOUBLES_HAVE_A_POINT


_DOUBLES_HAVE_A_POINT = (8, 0)
"""5.7.22 prints the double 1.0 in a JSON document as 1, 8.0.12 as 1.0."""

_YEAR_HAS_SIGN = (8, 0, 20)
"""The bit is missing in MySQL 8.0.15 and there in 8.0.46; the header that lists the types is of 2020."""


def _collations(
    default: DefaultCharset | None, each: tuple[int, ...] | None, count: int
) -> Sequence[int | None]:
    """Return the collation of each of the ``count`` columns of a kind, None where the map does not tell."""
    if each is not None:
        if len(each) != count:
            raise InvalidValueError(f"{len(each)} collations are given for {count} columns")
        return each
    if default is None:
        return [None] * count
    found: list[int | None] = [default.collation_id] * count
    for index, collation in default.exceptions:
        if index >= count:
            raise InvalidValueError(f"a collation is given for column {index} of {count}")
        found[index] = collation
    return found


def _set_each(
    columns: list[Column], field: str, values: Sequence[Any], which: Sequence[int], what: str
) -> None:
    if len(values) != len(which):
        raise InvalidValueError(f"the table map gives {len(values)} {what} for {len(which)} columns")
    for ordinal, value in zip(which, values, strict=True):
        columns[ordinal] = replace(columns[ordinal], **{field: value})


def _ordinals(columns: Sequence[Column], types: Collection[ColumnType]) -> list[int]:
    return [column.ordinal for column in columns if column.type in types]


def member_texts(members: Sequence[Member], charset_name: str | None) -> tuple[Member, ...]:
    """Make text of the members of an ENUM or SET that are bytes, as far as the character set gives them one.

    MySQL before 8.0.15 logs members without it. Bytes in ASCII are no text then: in ucs2 they are other
    characters. Those of a binary column are the text that they are in UTF-8.
    """
    if charset_name is None:
        return tuple(members)
    decode = bytes.decode if charset_name == BINARY else charset(charset_name).decode
    found: list[Member] = []
    for member in members:
        try:
            found.append(decode(member) if isinstance(member, bytes) else member)
        except UnicodeDecodeError:
            found.append(member)
    return tuple(found)


def _set_charsets(columns: list[Column], which: list[int], collations: Sequence[int | None]) -> None:
    for ordinal, collation in zip(which, collations, strict=True):
        if collation is not None:
            try:
                name = charset_of_collation(collation)
            except UnsupportedError:
                name = None  # of a newer server: the catalogue may know it
            columns[ordinal] = replace(columns[ordinal], collation_id=collation, charset=name)


def _set_keys(columns: list[Column], metadata: OptionalMetadata) -> None:
    parts = metadata.primary_key_with_prefix
    if parts is None:
        parts = tuple((ordinal, 0) for ordinal in metadata.simple_primary_key or ())
    for position, (ordinal, prefix) in enumerate(parts):
        if ordinal >= len(columns):
            raise InvalidValueError(f"column {ordinal + 1} of {len(columns)} is in the primary key")
        columns[ordinal] = replace(columns[ordinal], key_position=position, key_prefix=prefix)


def plain_columns(table_map: TableMap) -> list[Column]:
    """Return the columns of a table map without its optional metadata; raise as :func:`columns_of`."""
    return _plain(table_map.column_types, table_map.column_metadata, table_map.null_bits)


def _plain(column_types: bytes, column_metadata: bytes, null_bits: bytes) -> list[Column]:
    if column_types and not null_bits:
        raise UnsupportedError("the table map has no metadata of its columns: it is of a beta of MySQL 5.1")
    types = decode_column_metadata(column_types, column_metadata)
    if len(null_bits) != (len(types) + 7) // 8:
        raise InvalidValueError(f"{len(null_bits)} bytes of NULL bits for {len(types)} columns")
    return [
        Column(
            ordinal,
            column_type,
            metadata,
            nullable=bool(null_bits[ordinal // 8] >> ordinal % 8 & 1),
        )
        for ordinal, (column_type, metadata) in enumerate(types)
    ]


def columns_of(table_map: TableMap, *, server_version: str | None = None) -> tuple[Column, ...]:
    """Return the columns of a table map with all that the event itself tells about them.

    ``server_version`` is that of the format description in front of the event: see the top of this module.
    Raise :class:`MalformedError` where the parts of the event contradict each other, and
    :class:`UnsupportedError` for types that are not known.
    """
    of_types = table_map.column_types, table_map.column_metadata, table_map.null_bits
    return _columns_of(*of_types, table_map.optional_metadata, server_version)


@lru_cache(maxsize=64)
def _columns_of(
    column_types: bytes,
    column_metadata: bytes,
    null_bits: bytes,
    optional_metadata: bytes,
    server_version: str | None,
) -> tuple[Column, ...]:
    """Return columns that were given before where a table has the same: of thousands many are alike."""
    columns = _plain(column_types, column_metadata, null_bits)
    metadata = decode_optional_metadata(optional_metadata)
    if server_version is not None:
        return _described(columns, metadata, MetadataRules(server_version))
    if COMPRESSED_TYPES.intersection(column_types):
        return _described(columns, metadata, MetadataRules("11.4.5-MariaDB"))
    first_error = None
    for version in KINDS_OF_SERVER:
        try:
            return _described(columns, metadata, MetadataRules(version))
        except MalformedError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _described(
    given: Sequence[Column], metadata: OptionalMetadata, rules: MetadataRules
) -> tuple[Column, ...]:
    """Enter what the optional metadata says into the columns."""
    columns = list(given)
    if rules.whole_doubles:
        for ordinal in _ordinals(columns, (ColumnType.JSON,)):
            columns[ordinal] = replace(columns[ordinal], whole_doubles=True)
    if metadata.signedness is not None:
        numeric = _ordinals(columns, rules.numeric)
        if len(metadata.signedness) != (len(numeric) + 7) // 8:
            raise InvalidValueError(f"{len(metadata.signedness)} bytes of signs for {len(numeric)} columns")
        unsigned = list(islice(_bits(metadata.signedness), len(numeric)))
        _set_each(columns, "unsigned", unsigned, numeric, "signs")
    character = _ordinals(columns, rules.character)
    collations = _collations(metadata.default_charset, metadata.column_charset, len(character))
    textual = [COLUMNS[columns[ordinal].type].has_charset for ordinal in character]
    _set_charsets(columns, list(compress(character, textual)), list(compress(collations, textual)))
    members = _ordinals(columns, MEMBER_TYPES)
    collations = _collations(
        metadata.enum_and_set_default_charset, metadata.enum_and_set_column_charset, len(members)
    )
    _set_charsets(columns, members, collations)
    for kind, values in (
        (ColumnType.SET, metadata.set_str_value),
        (ColumnType.ENUM, metadata.enum_str_value),
    ):
        if values is not None:
            which = _ordinals(columns, (kind,))
            lists = [
                member_texts(one, columns[ordinal].charset)
                for ordinal, one in zip(which, values, strict=False)
            ]
            _set_each(columns, "members", lists, which, "lists of members")
    if metadata.geometry_type is not None:
        which = _ordinals(columns, (ColumnType.GEOMETRY,))
        _set_each(columns, "geometry_type", metadata.geometry_type, which, "geometry types")
    if metadata.vector_dimensionality is not None:
        which = _ordinals(columns, (ColumnType.VECTOR,))
        _set_each(columns, "dimensions", metadata.vector_dimensionality, which, "dimensions")
    every = range(len(columns))
    if metadata.column_visibility is not None:
        visible = list(islice(_bits(metadata.column_visibility), len(columns)))
        _set_each(columns, "visible", visible, every, "visibilities")
    if metadata.column_name is not None:
        names = [name.decode("utf-8", "surrogateescape") for name in metadata.column_name]
        _set_each(columns, "name", names, every, "names")
    _set_keys(columns, metadata)
    return tuple(columns)


def full_metadata(columns: Sequence[Column], rules: MetadataRules) -> OptionalMetadata:
    """Describe columns as a server does with ``binlog_row_metadata=FULL``."""
    keys = sorted(
        (column.key_position, column.ordinal, column.key_prefix)
        for column in columns
        if column.key_position is not None
    )
    with_prefix = any(prefix for _, _, prefix in keys)
    lists = {
        kind: tuple(_member_bytes(column) for column in columns if column.type is kind) or None
        for kind in MEMBER_TYPES
    }
    geometries = [column.geometry_type or 0 for column in columns if column.type is ColumnType.GEOMETRY]
    dimensions = [column.dimensions or 0 for column in columns if column.type is ColumnType.VECTOR]
    return OptionalMetadata(
        signedness=_bitmap(column.unsigned for column in columns if column.type in rules.numeric),
        column_charset=_collation_ids(columns, rules.character),
        column_name=tuple((column.name or "").encode("utf-8", "surrogateescape") for column in columns),
        set_str_value=lists[ColumnType.SET],
        enum_str_value=lists[ColumnType.ENUM],
        geometry_type=tuple(geometries) or None,
        simple_primary_key=tuple(ordinal for _, ordinal, _ in keys) if keys and not with_prefix else None,
        primary_key_with_prefix=tuple((ordinal, prefix) for _, ordinal, prefix in keys)
        if with_prefix
        else None,
        enum_and_set_column_charset=_collation_ids(columns, MEMBER_TYPES),
        column_visibility=_bitmap(column.visible for column in columns),
        vector_dimensionality=tuple(dimensions) or None,
    )


def _bitmap(values: Iterable[bool]) -> bytes | None:
    """Write a bitmap whose first bit is the highest of its first byte."""
    bits = "".join("01"[value] for value in values)
    size = (len(bits) + 7) // 8
    return int(bits.ljust(8 * size, "0"), 2).to_bytes(size, "big") if bits else None


def _collation_ids(columns: Sequence[Column], types: Collection[ColumnType]) -> tuple[int, ...] | None:
    return tuple(collation_of_charset(c.charset or BINARY) for c in columns if c.type in types) or None


def _member_bytes(column: Column) -> tuple[bytes, ...]:
    encode = str.encode if column.charset in (None, BINARY) else charset(column.charset).encode
    return tuple(one if isinstance(one, bytes) else encode(one) for one in column.members or ())
