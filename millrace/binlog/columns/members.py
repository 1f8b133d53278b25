"""ENUM and SET: small integers that stand for members which the table's definition lists.

Both travel under the type code STRING; the real type and the size of a value are in the metadata. The
natural value is the integer: an ENUM's place from 1, 0 for the empty string that stands for an error; a
SET's bits, the first member lowest. An ENUM may have '' for a member as well, so the text alone would not
give the number back.

A member may be known as bytes alone (see :class:`~millrace.binlog.columns.column.Column`): such a value has
no text, and Avro cannot hold it.
"""

from abc import abstractmethod
from functools import lru_cache
from typing import Any

from millrace.binlog.columns.charsets import BINARY, charset
from millrace.binlog.columns.column import Column, Member, PackMetadata
from millrace.binlog.columns.declaration import (
    AvroOptions,
    AvroType,
    CatalogColumn,
    ColumnCodec,
    ColumnKind,
    Convert,
    MetadataLayout,
    Native,
    NativeKind,
    Print,
    SelectedKind,
    declare,
    quoted,
    semantic,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError, UnrepresentableError

__all__: list[str] = []


def _pack_metadata(column_type: ColumnType) -> MetadataLayout:
    return MetadataLayout(
        2,
        f"{int(column_type)}, size of a value (uint8 each); the type code is STRING",
        lambda raw: PackMetadata(raw[1]),
        lambda metadata: bytes((column_type, metadata.size)),
        "big",
    )


def _text(member: Member) -> str:
    if isinstance(member, bytes):
        raise UnrepresentableError(f"a member is known as bytes alone: {member[:40].hex()}")
    return member


def _allowed(members: tuple[Member, ...]) -> str:
    """Write what sinks make the column's type of; a comma in a member stands after a backslash."""
    texts = (one if isinstance(one, str) else f"0x{one.hex()}" for one in members)
    return ",".join(text.replace(",", "\\,") for text in texts)


_CODES = {1: "B", 2: "H", 3: "3s", 4: "I", 8: "Q"}


class _MemberCodec(ColumnCodec):
    selection = "CAST({} AS UNSIGNED)"
    selected = SelectedKind.UNSIGNED
    name = ""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, PackMetadata)
        self.size = column.metadata.size
        if self.size not in _CODES:
            raise InvalidValueError(f"{self.name.upper()} values cannot have {self.size} bytes")
        self.struct_code = _CODES[self.size]
        self.members = column.members
        self.kind = ColumnKind.OTHER if column.members is None else ColumnKind.TEXT

    @abstractmethod
    def _is_known(self, value: int) -> bool:
        """Return whether the members have a name for the value."""

    def from_selected(self, value: bytes) -> int:
        """Read decimal digits."""
        return int(value)

    def to_json(self, value: int) -> Any:
        """Return the text; the number where there is none, for its digits could be a member's name."""
        return self.text(value) if self._is_known(value) else value

    def decode(self, payload: Any) -> int:
        """Return the integer."""
        value: int = int.from_bytes(payload, "little") if self.size == 3 else payload
        return value

    def encode(self, value: int) -> int | bytes:
        """Take the integer."""
        return value.to_bytes(3, "little") if self.size == 3 else value

    def sql_type(self) -> str:
        """Write the type with its members, where they are known."""
        if self.members is None:
            return self.name
        members = (quoted(one) if isinstance(one, str) else f"x'{one.hex()}'" for one in self.members)
        return f"{self.name}({','.join(members)})"

    def _texts(self) -> list[bytes] | None:
        """Return the members in UTF-8, None where one has no text."""
        found = []
        for member in self.members or ():
            if isinstance(member, bytes):
                return None
            found.append(member.encode())
        return found

    def sql_literal(self, value: int) -> str:
        """Write the integer, which SQL takes for a member by number."""
        return str(value)


@declare(ColumnType.ENUM, catalog={"enum": lambda column: PackMetadata(1 if column.members < 256 else 2)})
class Enum(_MemberCodec):
    """ENUM: an int, the member's place from 1."""

    metadata_layout = _pack_metadata(ColumnType.ENUM)
    name = "enum"

    def _is_known(self, value: int) -> bool:
        return self.members is not None and value <= len(self.members)

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return string where the members are known, else int."""
        if self.members is None:
            return "int"
        return semantic("string", "io.debezium.data.Enum", allowed=_allowed(self.members))

    def avro_decoder(self, options: AvroOptions) -> Convert | None:  # noqa: ARG002 - the same for all options
        """Convert to the member."""
        if self.members is None:
            return None
        texts = ("", *self.members)

        def convert(value: int) -> str:
            if value >= len(texts):
                raise UnrepresentableError(f"the ENUM has {len(texts) - 1} members, this is number {value}")
            return _text(texts[value])

        return convert

    def native(self, options: AvroOptions) -> Native | None:  # noqa: ARG002 - the same for all options
        """Take the member's text, else the number."""
        if self.members is None:
            return Native(NativeKind.UNSIGNED)
        texts = self._texts()
        return None if texts is None else Native(NativeKind.MEMBER, texts=(b"", *texts))

    def from_default(self, text: str) -> int:
        """Take a member as the type has it; raise ValueError for one spelled otherwise."""
        return 1 + (self.members or ()).index(text)

    def text(self, value: int) -> str | bytes:
        """Return the member, or its bytes; its number where it has no name."""
        if self.members is None or not self._is_known(value):
            return str(value)
        return self.members[value - 1] if value else ""

    def printed_type(self) -> str:
        """Name the type with its size."""
        return f"ENUM({self.size} byte{'s' if self.size > 1 else ''})"

    def printer(self) -> Print:
        """Write the number."""
        return lambda payload: b"%d" % self.decode(payload)


def _set_size(column: CatalogColumn) -> PackMetadata:
    return PackMetadata(8 if column.members > 32 else max(1, (column.members + 7) // 8))


@declare(ColumnType.SET, catalog={"set": _set_size})
class Set(_MemberCodec):
    """SET: an int, one bit per member, the first the lowest."""

    metadata_layout = _pack_metadata(ColumnType.SET)
    name = "set"

    def _is_known(self, value: int) -> bool:
        return self.members is not None and not value >> len(self.members)

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return string where the members are known, else long."""
        if self.members is None:
            return "long"
        return semantic("string", "io.debezium.data.EnumSet", allowed=_allowed(self.members))

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to the members with commas between them."""
        members = self.members
        if members is None:

            def number(payload: Any) -> int:
                value = self.decode(payload)
                if value >= 1 << 63:
                    raise UnrepresentableError(f"{value} is too large for a long")
                return value

            return number

        @lru_cache(maxsize=1024)
        def convert(payload: Any) -> str:
            value = self.decode(payload)
            if value >> len(members):
                raise UnrepresentableError(f"the SET has {len(members)} members, the value is {value:b}")
            return ",".join(_text(member) for bit, member in enumerate(members) if value >> bit & 1)

        return convert

    def native(self, options: AvroOptions) -> Native | None:  # noqa: ARG002 - the same for all options
        """Take the members' texts, else the bits."""
        if self.members is None:
            return Native(NativeKind.UNSIGNED)
        texts = self._texts()
        return None if texts is None else Native(NativeKind.MEMBERS, texts=tuple(texts))

    def from_default(self, text: str) -> int:
        """Take members as the type has them, with commas between them."""
        members = self.members or ()
        return sum(1 << members.index(one) for one in set(text.split(","))) if text else 0

    def text(self, value: int) -> str | bytes:
        """Return the members, separated by commas, as bytes if one is; the number where one has no name."""
        if self.members is None or not self._is_known(value):
            return str(value)
        chosen = [member for bit, member in enumerate(self.members) if value >> bit & 1]
        texts = [member for member in chosen if isinstance(member, str)]
        if len(texts) == len(chosen):
            return ",".join(texts)
        # One is invalid in the character set, or all of them are bytes in one that is not known.
        encode = str.encode if self.column.charset in (None, BINARY) else charset(self.column.charset).encode
        return b",".join(encode(one) if isinstance(one, str) else one for one in chosen)

    def printed_type(self) -> str:
        """Name the type with its size."""
        return f"SET({self.size} bytes)"

    def printer(self) -> Print:
        """Write the bits of the bytes in their order: the lowest byte first, of each the highest bit."""
        size = self.size

        def write(payload: Any) -> bytes:
            packed = payload if isinstance(payload, bytes) else payload.to_bytes(size, "little")
            return f"b'{int.from_bytes(packed, 'big'):0{8 * size}b}'".encode("ascii")

        return write
