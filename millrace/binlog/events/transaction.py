"""Events that end, prepare or enclose a transaction.

XID_EVENT (16), XA_PREPARE_LOG_EVENT (38), TRANSACTION_PAYLOAD_EVENT (40). Format: MySQL's
``libs/mysql/binlog/event/control_events.h`` and ``codecs/binary.cpp``.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Protocol, Self, cast

import zstandard

from millrace.binlog.declaration import Event, body, event, item, structure
from millrace.binlog.errors import (
    EncodeError,
    InvalidValueError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.fields import U8, U32, U64, Lenenc, RestBytes, pack_lenenc, read_lenenc, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.header import HEADER_LENGTH
from millrace.binlog.inflate import MAX_UNPACKED
from millrace.binlog.types import CompressionType

__all__ = [
    "PayloadField",
    "TransactionPayloadEvent",
    "XaPrepareLogEvent",
    "XidEvent",
]


@event(16, role=Role.COMMIT)
class XidEvent(Event):
    """Commit of a transaction in a transactional engine; ``xid`` is its number there."""

    xid: U64 = body()


@event(38, role=Role.PREPARE, post_header_lengths=(0,))
class XaPrepareLogEvent(Event):
    """An XA transaction is prepared (or, with ``one_phase``, committed) under this name.

    ``format_id``, ``gtrid`` and ``bqual`` are the parts of the XID as the client gave them.
    """

    one_phase: U8 = body()
    format_id: U32 = body()
    gtrid_length: ClassVar[U32] = body(length_of="gtrid")
    bqual_length: ClassVar[U32] = body(length_of="bqual")
    gtrid: RestBytes = body()
    bqual: RestBytes = body()


@structure
class PayloadField:
    """A field of a payload's head that is not known, as type and value."""

    type: Lenenc = item()
    value: RestBytes = item()


_END_MARK, _SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE = range(4)
_PIECE = 1 << 18


@event(40, role=Role.PAYLOAD, post_header_lengths=(0,), extensible=False)
class TransactionPayloadEvent(Event):
    """The events of a whole transaction, compressed together.

    A list of (type, length, value), all length-encoded, ends with type 0; ``payload`` follows it.
    ``compression_type`` is 0 for ZSTD and 255 for none; ``uncompressed_size`` is that of the events inside.
    ``field_order`` holds the types of the list as they stand, ``unknown_fields`` those of no known type.

    The format description gives the type a post-header of 40 bytes, and servers write none. Codec by hand:
    the list is in any order, and is read from the beginning of a large event too.
    """

    rest_field = "payload"

    compression_type: Lenenc = body()
    uncompressed_size: Lenenc | None = body()
    payload: RestBytes = body()
    field_order: RestBytes = body(default=bytes((_SIZE, _COMPRESSION, _UNCOMPRESSED_SIZE)))
    unknown_fields: tuple[PayloadField, ...] = body(default=())

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        return cls.decode_beginning(data, offset, end, 0, post_header_length)

    @classmethod
    def decode_beginning(
        cls, data: bytes, offset: int, end: int, missing: int, post_header_length: int
    ) -> Self:
        """Read the event without the last ``missing`` bytes of its payload."""
        head = _read_head(data, offset, end)
        if head.payload_size != end - head.end + missing:
            raise InvalidValueError(
                f"the head of a payload gives its size as {head.payload_size}, "
                f"{end - head.end + missing} bytes follow it"
            )
        return cls(
            head.compression_type,
            head.uncompressed_size,
            data[head.end : end],
            bytes(head.order),
            tuple(head.unknown),
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        known = {
            _SIZE: len(self.payload),
            _COMPRESSION: self.compression_type,
            _UNCOMPRESSED_SIZE: self.uncompressed_size,
        }
        unknown = iter(self.unknown_fields)
        parts = []
        for kind in self.field_order:
            number = known.get(kind)
            if kind in known and number is None:
                raise EncodeError(f"field {kind} is announced in field_order and is None")
            value = next(unknown).value if number is None else pack_lenenc(number)
            parts.append(pack_lenenc(kind) + pack_lenenc(len(value)) + value)
        return b"".join(parts) + b"\0" + self.payload

    def events(self, max_size: int = MAX_UNPACKED) -> Iterator[bytes]:
        """Unpack the events inside one by one, each with its header and without a checksum.

        Decode them with :meth:`millrace.binlog.state.StreamState.for_payload`. Memory is bounded by the
        largest event. Raises TooLargeError for one of more than ``max_size`` bytes, MalformedError where the
        payload is damaged or ends in mid-event, and UnsupportedError for another compression.
        """
        unpacked = _unpacked(io.BytesIO(self.payload), self.compression_type)
        yield from _held(inner_events(unpacked, self.uncompressed_size, max_size), max_size)


def _held(events: Iterable["bytes | LargeInnerEvent"], max_size: int) -> Iterator[bytes]:
    """Yield events, none of which may be too large to be held."""
    for inner in events:
        size = inner.size if isinstance(inner, LargeInnerEvent) else len(inner)
        if isinstance(inner, LargeInnerEvent) or size > max_size:
            raise TooLargeError(f"an event of {size} bytes in a payload; up to {max_size} are read")
        yield inner


@dataclass(frozen=True, slots=True)
class LargeInnerEvent:
    """An event inside a payload that is too large to be held.

    ``head`` are its first bytes; it starts at ``start`` of what the payload unpacks to and has ``size``.
    """

    head: bytes
    start: int
    size: int


def unpack_payload(payload: Iterable[bytes], size: int, compression_type: int) -> Iterator[bytes]:
    """Unpack a payload of ``size`` bytes, which comes in pieces, in pieces that are cut anywhere.

    What follows the payload is not looked at. Raises as :meth:`TransactionPayloadEvent.events`.
    """
    joined = _Joined(iter(payload), size)
    yield from _unpacked(joined, compression_type)
    if joined.left:
        raise TruncatedError(f"a payload of {size} bytes ends {joined.left} bytes before that")


@dataclass(slots=True)
class _Head:
    """The fields in front of a payload, and the offset at which they end."""

    compression_type: int
    uncompressed_size: int | None
    payload_size: int
    order: bytearray
    unknown: list[PayloadField]
    end: int


def _read_head(data: bytes, offset: int, end: int) -> _Head:
    known: dict[int, int] = {}
    order = bytearray()
    unknown = []
    while True:
        kind, offset = read_lenenc(data, offset, end)
        if kind == _END_MARK:
            break
        size, offset = read_lenenc(data, offset, end)
        after = offset + size
        if after > end:
            raise truncated(f"payload field {kind}", size, offset, end)
        if kind in known or kind > 250:
            raise InvalidValueError(f"field {kind} in the head of a payload: repeated or out of range")
        order.append(kind)
        if kind <= _UNCOMPRESSED_SIZE:
            known[kind], value_end = read_lenenc(data, offset, end)
            if value_end != after:
                raise InvalidValueError(f"field {kind} in the head of a payload has {size} bytes")
        else:
            unknown.append(PayloadField(kind, data[offset:after]))
        offset = after
    if _COMPRESSION not in known or _SIZE not in known:
        raise InvalidValueError("the head of a payload lacks its size or its compression")
    return _Head(known[_COMPRESSION], known.get(_UNCOMPRESSED_SIZE), known[_SIZE], order, unknown, offset)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Joined:
    """Reads pieces as one stream, up to so many bytes; what follows them is not looked at."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces = pieces
        self._held = b""
        self.left = size

    def read(self, size: int, /) -> bytes:
        while not self._held and self.left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = piece
        taken = self._held[: min(size, self.left)]
        self._held = self._held[len(taken) :]
        self.left -= len(taken)
        return taken


def _unpacked(source: _Readable, compression_type: int) -> Iterator[bytes]:
    """Unpack a payload in pieces, cut anywhere."""
    if compression_type == CompressionType.NONE:
        while piece := source.read(_PIECE):
            yield piece
        return
    if compression_type != CompressionType.ZSTD:
        raise UnsupportedError(f"compression type {compression_type} of a payload; 0 and 255 are known")
    try:
        # The stubs want a file; what is needed is its read method.
        stream = cast("BinaryIO", source)
        with zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True) as reader:
            while piece := reader.read(_PIECE):
                yield piece
    except zstandard.ZstdError as error:
        raise InvalidValueError(f"a payload cannot be unpacked: {error}") from error


def inner_events(
    pieces: Iterable[bytes], uncompressed_size: int | None, held_bytes: int | None = None
) -> Iterator[bytes | LargeInnerEvent]:
    """Cut what a payload unpacks to, in pieces, into its events.

    Of one that is larger than ``held_bytes``, where that is given, only the beginning is given, once there
    are some hundred kilobytes. Raises as :meth:`TransactionPayloadEvent.events`.
    """
    pending = bytearray()
    total = left_out = 0
    for piece in pieces:
        passed = min(left_out, len(piece))
        left_out -= passed
        pending += piece[passed:]
        total += len(piece)
        if uncompressed_size is not None and total > uncompressed_size:
            raise InvalidValueError(f"a payload unpacks to more than {uncompressed_size} bytes, its size")
        start = 0
        while len(pending) - start >= HEADER_LENGTH:
            size = int.from_bytes(pending[start + 9 : start + 13], "little")
            if size < HEADER_LENGTH:
                raise InvalidValueError(f"an event in a payload says {size} bytes, less than its header")
            there = len(pending) - start
            if there < size:
                if held_bytes is not None and size > held_bytes and there >= min(_PIECE, held_bytes):
                    yield LargeInnerEvent(bytes(pending[start:]), total - there, size)
                    start, left_out = len(pending), size - there
                break
            yield bytes(pending[start : start + size])
            start += size
        del pending[:start]
    if left_out:
        raise TruncatedError(f"a payload ends {left_out} bytes before the end of an event")
    if pending:
        raise TruncatedError(f"a payload ends with {len(pending)} bytes of an event that is longer")
    if uncompressed_size is not None and total != uncompressed_size:
        raise TruncatedError(f"a payload unpacks to {total} of {uncompressed_size} bytes")
