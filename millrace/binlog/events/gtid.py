"""MySQL's global transaction identifiers: which transaction follows, and which came before this log.

GTID_LOG_EVENT (33), ANONYMOUS_GTID_LOG_EVENT (34), PREVIOUS_GTIDS_LOG_EVENT (35), GTID_TAGGED_LOG_EVENT (42).
Format: ``Gtid_event`` in MySQL's ``libs/mysql/binlog/event/control_events.h``; of 42 and of tags
``libs/mysql/serialization/readme.md``, whose integers differ from those of the protocol.
"""

import functools
import uuid
from abc import abstractmethod
from enum import IntFlag
from typing import Annotated, Self

from millrace.binlog.declaration import (
    Event,
    When,
    abstract_event,
    body,
    declared_fields,
    event,
    item,
    post_header,
    read_structures,
    structure,
    write_structures,
)
from millrace.binlog.errors import EncodeError, InvalidValueError, TrailingBytesError, UnsupportedError
from millrace.binlog.fields import (
    I64,
    U8,
    U32,
    U56,
    U64,
    Bytes16,
    FieldType,
    Lenenc,
    RestBytes,
    RestText,
    decode_text,
    encode_text,
    truncated,
)
from millrace.binlog.grammar import Role
from millrace.binlog.header import EventHeader

__all__ = [
    "AnonymousGtidLogEvent",
    "GtidEvent",
    "GtidFlag",
    "GtidInterval",
    "GtidLogEvent",
    "GtidSetEntry",
    "GtidTaggedLogEvent",
    "PreviousGtidsLogEvent",
    "TransactionIdEvent",
]


def _read_logical_timestamp_type(data: bytes, offset: int, end: int) -> tuple[int, int]:
    if offset >= end:
        raise truncated("lt_type", 1, offset, end)
    if data[offset] != 2:
        raise UnsupportedError(f"a logical timestamp of type {data[offset]}; 2 is the one that servers write")
    return 2, offset + 1


LogicalTimestampType = Annotated[
    int,
    FieldType(
        "uint8, always 2", "int", _read_logical_timestamp_type, lambda value: value.to_bytes(1, "little")
    ),
]
_ORIGINAL_TIMESTAMP = When("immediate_commit_timestamp", 1 << 55, taken=True)
_ORIGINAL_VERSION = When("immediate_server_version", 1 << 31, taken=True)


def commit_times(event: "GtidEvent | GtidTaggedLogEvent") -> tuple[int | None, int | None]:
    """Return when the origin and this server committed, in µs since 1970; None where the log does not say.

    The origin's time is absent from the event where it equals this server's. It is 0 where it is unknown: the
    transaction comes from a server before MySQL 8.0.1, or from the text of mysqlbinlog.
    """
    original, immediate = event.original_commit_timestamp, event.immediate_commit_timestamp
    return (immediate if original is None else original) or None, immediate or None


@functools.lru_cache(maxsize=1024)
def sid_text(sid: bytes) -> str:
    """Write the uuid of a server, 16 bytes, as text."""
    return str(uuid.UUID(bytes=sid))


class GtidFlag(IntFlag):
    """``gtid_flags`` of MySQL's GTID events."""

    MAY_HAVE_SBR = 1
    """The transaction may hold statements."""


@abstract_event
class TransactionIdEvent(Event):
    """Which transaction follows: what MySQL's GTIDs, those with a tag and MariaDB's have in common."""

    @abstractmethod
    def transaction_id(self, header: EventHeader) -> str | None:
        """Return the identifier as text; None where the transaction has none."""


@abstract_event
class GtidEvent(TransactionIdEvent):
    """Which transaction follows. What a server version does not write yet is None.

    ``sid`` is the uuid of the origin, 16 bytes, and ``gno`` the number there (0 in an anonymous one).
    ``last_committed`` and ``sequence_number`` are logical clocks within the log file (MySQL 5.7). Commit
    timestamps are microseconds since 1970 and, like server versions (80015 for 8.0.15), MySQL 8.0's; each
    ``original_…`` is None where it equals its ``immediate_…``, and 0 where the origin's is unknown (see
    :func:`commit_times`). ``transaction_length`` counts the bytes of the transaction, this event included.
    """

    gtid_flags: U8 = post_header()
    sid: Bytes16 = post_header()
    gno: I64 = post_header()
    lt_type: LogicalTimestampType | None = post_header(default=None, since=42)
    last_committed: I64 | None = post_header(default=None, since=42)
    sequence_number: I64 | None = post_header(default=None, since=42)
    immediate_commit_timestamp: U56 | None = body(default=None, since=42, remains=True)
    original_commit_timestamp: U56 | None = body(default=None, since=42, when=_ORIGINAL_TIMESTAMP)
    transaction_length: Lenenc | None = body(default=None, since=42, remains=True)
    immediate_server_version: U32 | None = body(default=None, since=42, remains=True)
    original_server_version: U32 | None = body(default=None, since=42, when=_ORIGINAL_VERSION)
    commit_group_ticket: U64 | None = body(default=None, since=42, remains=True)

    @property
    def gtid(self) -> str:
        """The identifier as text, ``uuid:number``."""
        return f"{sid_text(self.sid)}:{self.gno}"

    def transaction_id(self, header: EventHeader) -> str | None:
        """Return the identifier as text."""
        return self.gtid


@event(33, role=Role.GTID, post_header_lengths=(25, 42))
class GtidLogEvent(GtidEvent):
    """The transaction that follows has this identifier."""


@event(34, role=Role.ANONYMOUS_GTID, post_header_lengths=(25, 42))
class AnonymousGtidLogEvent(GtidEvent):
    """The transaction that follows has no identifier."""

    def transaction_id(self, header: EventHeader) -> None:
        """Return None."""


@structure
class GtidInterval:
    """Numbers from ``start`` up to, not including, ``end``."""

    start: I64 = item()
    end: I64 = item()


@structure
class GtidSetEntry:
    """The numbers of one origin and tag; the tag is empty for plain identifiers."""

    sid: Bytes16 = item()
    tag: RestText = item()
    intervals: tuple[GtidInterval, ...] = item()


_UNTAGGED, _TAGGED = 0, 1


@event(35, role=Role.BETWEEN, post_header_lengths=(0,))
class PreviousGtidsLogEvent(Event):
    """All identifiers in the logs before this one.

    ``format`` shares 8 bytes with the count. It is 1 where tags occur (MySQL 8.3 on), else 0. Codec by hand:
    it decides what the entries hold.
    """

    format: U8 = body()
    entries: tuple[GtidSetEntry, ...] = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        at = offset + 8
        if at > end:
            raise truncated("number of sids", 8, offset, end)
        count, form = int.from_bytes(data[offset:at], "little"), data[offset + 7]
        if form == _TAGGED:
            if data[offset] != _TAGGED:
                raise InvalidValueError(f"a set of format 1 has {data[offset]} in its first byte")
            count = count >> 8 & (1 << 48) - 1
        elif form:
            raise UnsupportedError(f"format {form} of a set of identifiers; known are 0 and 1")
        entries = []
        for _ in range(count):
            entry, at = _read_entry(data, at, end, tagged=form == _TAGGED)
            entries.append(entry)
        if at != end:
            raise TrailingBytesError(f"{end - at} bytes are left over after the last identifier")
        return cls(form, tuple(entries))

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        tagged = self.format == _TAGGED
        count = len(self.entries)
        parts = [(count << 8 | _TAGGED << 56 | _TAGGED if tagged else count).to_bytes(8, "little")]
        for entry in self.entries:
            parts.append(entry.sid)
            if tagged:
                tag = encode_text(entry.tag)
                parts.append(pack_varint(len(tag)) + tag)
            elif entry.tag:
                raise EncodeError(f"tag {entry.tag!r} in a set of the untagged format")
            parts += len(entry.intervals).to_bytes(8, "little"), write_structures(entry.intervals)
        return b"".join(parts)


def _read_entry(data: bytes, offset: int, end: int, *, tagged: bool) -> tuple[GtidSetEntry, int]:
    at = offset + 16
    tag = ""
    if tagged:
        size, at = read_varint(data, at, end)
        tag = decode_text(data[at : at + size])
        at += size
    intervals_at = at + 8
    if intervals_at > end:
        raise truncated("sid, tag, number of intervals", intervals_at - offset, offset, end)
    count = int.from_bytes(data[at:intervals_at], "little")
    intervals, after = read_structures(GtidInterval, count, data, intervals_at, end)
    return GtidSetEntry(data[offset : offset + 16], tag, intervals), after


def read_varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Read an integer of ``mysql::serialization``: as many low one-bits as bytes follow the first.

    The shortest form alone is accepted; there are at most 9 bytes, of which the first is 255 then.
    """
    if offset >= end:
        raise truncated("integer", 1, offset, end)
    first = data[offset]
    more = (~first & first + 1).bit_length() - 1
    after = offset + 1 + more
    if after > end:
        raise truncated("integer", 1 + more, offset, end)
    if more == 8:
        value = int.from_bytes(data[offset + 1 : after], "little")
    else:
        value = int.from_bytes(data[offset:after], "little") >> more + 1
    if more and value < 1 << 7 * more:
        raise InvalidValueError(f"{value} at offset {offset} is not in its shortest form")
    return value, after


def pack_varint(value: int) -> bytes:
    """Write an integer of ``mysql::serialization`` in its shortest form."""
    more = max(value.bit_length() - 1, 0) // 7
    if more >= 8:
        return b"\xff" + value.to_bytes(8, "little")
    return (value << more + 1 | (1 << more) - 1).to_bytes(more + 1, "little")


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else ~value << 1 | 1


_SERIALIZATION_VERSION = 1
_SID, _TAG = 1, 3
_SIGNED = frozenset({2, 4, 5})
_REQUIRED = frozenset({0, 1, 2, 3})


@event(42, role=Role.GTID, post_header_lengths=(0,))
class GtidTaggedLogEvent(TransactionIdEvent):
    """Which transaction follows, with a tag (MySQL 8.3): the fields of GTID_LOG_EVENT in another format.

    A message of ``mysql::serialization``: version, size, last field that may not be ignored, then fields as
    (id, value) with rising ids; ``unknown_fields`` keeps what begins with an id that is not known. Codec by
    hand: no other event is written in this format.
    """

    gtid_flags: U8 = body()
    sid: Bytes16 = body()
    gno: I64 = body()
    tag: RestText = body()
    last_committed: I64 | None = body(default=None)
    sequence_number: I64 | None = body(default=None)
    immediate_commit_timestamp: U64 | None = body(default=None)
    original_commit_timestamp: U64 | None = body(default=None)
    transaction_length: U64 | None = body(default=None)
    immediate_server_version: U32 | None = body(default=None)
    original_server_version: U32 | None = body(default=None)
    commit_group_ticket: U64 | None = body(default=None)
    last_non_ignorable_field: U8 = body(default=0)
    unknown_fields: RestBytes = body(default=b"")

    @property
    def gtid(self) -> str:
        """The identifier as text, ``uuid:tag:number``."""
        tag = f"{self.tag}:" if self.tag else ""
        return f"{sid_text(self.sid)}:{tag}{self.gno}"

    def transaction_id(self, header: EventHeader) -> str:
        """Return the identifier as text."""
        return self.gtid

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        version, at = read_varint(data, offset, end)
        if version != _SERIALIZATION_VERSION:
            raise UnsupportedError(f"a GTID of serialization version {version}; 1 is known")
        size, at = read_varint(data, at, end)
        if size != end - offset:
            raise InvalidValueError(f"a GTID says {size} bytes, {end - offset} are there")
        last, at = read_varint(data, at, end)
        if last >= len(_NAMES):
            raise UnsupportedError(f"a GTID with field {last}, which may not be ignored and is not known")
        values: dict[int, int | bytes | str] = {}
        previous = -1
        while at < end:
            field, value_at = read_varint(data, at, end)
            if field <= previous:
                raise InvalidValueError(f"field {field} of a GTID comes after field {previous}")
            if field >= len(_NAMES):
                break
            previous = field
            values[field], at = _read_tagged_field(field, data, value_at, end)
        if not values.keys() >= _REQUIRED:
            raise InvalidValueError(f"a GTID has fields {sorted(values)}, and not all of {sorted(_REQUIRED)}")
        named = {_NAMES[field]: value for field, value in values.items()}
        return cls(last_non_ignorable_field=last, unknown_fields=data[at:end], **named)  # type: ignore[arg-type]  # each field has its own type

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        parts = [pack_varint(self.last_non_ignorable_field)]
        for field, name in enumerate(_NAMES):
            value = getattr(self, name)
            if value is None:
                continue
            parts.append(pack_varint(field))
            if field == _SID:
                parts += map(pack_varint, value)
            elif field == _TAG:
                tag = encode_text(value)
                parts.append(pack_varint(len(tag)) + tag)
            else:
                parts.append(pack_varint(_zigzag(value) if field in _SIGNED else value))
        content = b"".join(parts) + self.unknown_fields
        version = pack_varint(_SERIALIZATION_VERSION)
        size = len(version) + len(content) + 1
        while len(version) + len(pack_varint(size)) + len(content) != size:
            size += 1
        return version + pack_varint(size) + content


_NAMES = tuple(field.name for field in declared_fields(GtidTaggedLogEvent))[:-2]
"""The fields of the message, whose ids are their places."""


def _read_tagged_field(field: int, data: bytes, offset: int, end: int) -> tuple[int | bytes | str, int]:
    if field == _SID:
        numbers = []
        for _ in range(16):
            number, offset = read_varint(data, offset, end)
            if number > 255:
                raise InvalidValueError(f"{number} in place of a byte of a sid")
            numbers.append(number)
        return bytes(numbers), offset
    value, offset = read_varint(data, offset, end)
    if field == _TAG:
        after = offset + value
        if after > end:
            raise truncated("tag", value, offset, end)
        return decode_text(data[offset:after]), after
    return _unzigzag(value) if field in _SIGNED else value, offset
