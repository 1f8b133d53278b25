"""A column as a row image needs it, and the typed forms of its metadata in the table map.

The layouts are those of ``Field_*::do_save_field_metadata`` in the servers' ``sql/field.cc``.
"""

from dataclasses import dataclass

from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError

__all__ = [
    "ABSENT",
    "Absent",
    "BitMetadata",
    "BlobMetadata",
    "Column",
    "DecimalMetadata",
    "FractionMetadata",
    "LengthMetadata",
    "Member",
    "Metadata",
    "NoMetadata",
    "PackMetadata",
    "RealMetadata",
]


class Absent:
    """Type of :data:`ABSENT`, which stands for a column that a row image leaves out. It is not NULL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class NoMetadata:
    """The type code says it all: 0 bytes."""


@dataclass(frozen=True, slots=True)
class RealMetadata:
    """FLOAT and DOUBLE: the size of the value in bytes (uint8)."""

    size: int


@dataclass(frozen=True, slots=True)
class DecimalMetadata:
    """NEWDECIMAL: digits in all, and digits after the point (uint8 each)."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class FractionMetadata:
    """Temporal types: digits of a second's fraction, 0-6 (uint8; not in the map for the old types)."""

    digits: int


@dataclass(frozen=True, slots=True)
class BitMetadata:
    """BIT: number of bits, 1-64 (on the wire: bits modulo 8, then bits div 8; uint8 each)."""

    bits: int


@dataclass(frozen=True, slots=True)
class LengthMetadata:
    """CHAR and VARCHAR: the greatest length in bytes (uint16; packed into two bytes for CHAR)."""

    max_length: int

    @property
    def length_bytes(self) -> int:
        """Size of the length in front of each value."""
        return 1 if self.max_length < 256 else 2


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """BLOB and what is stored like it: size of the length in front of each value, 1-4 (uint8)."""

    length_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.length_bytes <= 4:
            raise InvalidValueError(f"the length of a BLOB takes 1 to 4 bytes, not {self.length_bytes}")


@dataclass(frozen=True, slots=True)
class PackMetadata:
    """ENUM and SET: size of a value in bytes, 1-8 (on the wire: real type, then size; uint8 each)."""

    size: int


Metadata = (
    NoMetadata
    | RealMetadata
    | DecimalMetadata
    | FractionMetadata
    | BitMetadata
    | LengthMetadata
    | BlobMetadata
    | PackMetadata
)


Member = str | bytes
"""A value of an ENUM or SET: its text, or its bytes in a character set that does not give it one."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, as far as it is known from a table map and a catalog.

    ``type`` is the real type: ENUM and SET, which travel as STRING, are told apart. Without ``sign_known``
    nobody has said whether it is ``unsigned``. ``charset`` is MySQL's
    name of the character set (``binary`` for bytes) and None where it is not known, though there be a
    ``collation_id``, or there is none.
    ``members`` are the values of an ENUM or SET, None where they are not known; one is bytes where its text
    is not known, for want of the character set or because it is invalid in that. ``key_position`` is the
    column's place in the primary key, from 0, and ``key_prefix`` the number of characters (or bytes) of it
    in the key, 0 for all. ``sql_type`` is the type as the catalog writes it (``uuid``, ``tinyint(1)
    unsigned``), where there was one. ``default`` is the text of its literal DEFAULT, None where none is
    known. ``whole_doubles`` says of JSON that a double without a fraction is
    written as an integer is, by MySQL 5.7.
    """

    ordinal: int
    type: ColumnType
    metadata: Metadata
    name: str | None = None
    nullable: bool = True
    unsigned: bool = False
    sign_known: bool = True
    charset: str | None = None
    collation_id: int | None = None
    members: tuple[Member, ...] | None = None
    key_position: int | None = None
    key_prefix: int = 0
    geometry_type: int | None = None
    dimensions: int | None = None
    visible: bool = True
    sql_type: str | None = None
    default: str | None = None
    whole_doubles: bool = False
