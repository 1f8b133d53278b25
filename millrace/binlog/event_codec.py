"""Bytes of one event in, a typed event out, and back; in batches where speed matters.

An event is::

    common header | post-header | what a newer server adds to the post-header | body | checksum

Each part is found by the log's format description (see :mod:`millrace.binlog.state`). Everything is kept: an
event that is decoded and encoded again has the same bytes.
"""

import struct
import zlib

from millrace.binlog.checksum import (
    CHECKSUM_LENGTH,
    CRC32_RESIDUE,
    checksum_matches,
    verify_checksum,
    with_checksum,
)
from millrace.binlog.declaration import Event
from millrace.binlog.errors import (
    BinlogError,
    ChecksumError,
    EncodeError,
    InvalidValueError,
    MissingStateError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.events import EVENTS
from millrace.binlog.events.control import FormatDescriptionEvent, StartEventV3, has_checksum_algorithm
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.fields import decode_text
from millrace.binlog.header import HEADER_LENGTH, V1_HEADER_LENGTH, EventHeader
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag
from millrace.binlog.values import value

__all__ = [
    "Beginning",
    "BinlogEvent",
    "decode_beginning",
    "decode_event",
    "encode_event",
    "seal",
]

_START_V3_SIZE = 56
_WITHOUT_FORMAT = frozenset(
    {EventType.ROTATE_EVENT, EventType.HEARTBEAT_LOG_EVENT, EventType.HEARTBEAT_LOG_EVENT_V2}
)
_CRC32 = ChecksumAlgorithm.CRC32
_FORMAT_DESCRIPTION = EventType.FORMAT_DESCRIPTION_EVENT
_STARTS = frozenset({EventType.START_EVENT_V3, EventType.FORMAT_DESCRIPTION_EVENT})
_unpack_header = struct.Struct("<IBIIIH").unpack_from
_crc32 = zlib.crc32


@value
class BinlogEvent:
    """One event of a log: header, typed content, checksum.

    ``checksum`` holds the four bytes after the body, as they are, or None where there are none;
    ``post_header_extra`` what a newer server than we know wrote at the end of the post-header. ``table_map``
    is not part of the event: for a rows event it is the TABLE_MAP in force, None where that is not known.
    """

    header: EventHeader
    event: Event
    checksum: bytes | None = None
    post_header_extra: bytes = b""
    table_map: TableMapEvent | None = None


def decode_event(data: bytes, state: StreamState, *, verify: bool = True) -> BinlogEvent:
    """Decode one event, all of ``data``, and note in ``state`` what later events need of it.

    Raises BinlogError: ChecksumError for a wrong checksum (not with ``verify=False``), MissingStateError for
    an event that comes before the format description, MalformedError and UnsupportedError for the rest. The
    state is unchanged then.
    """
    log_format = state.format
    if log_format is None or len(data) < log_format.header_length or data[4] in _STARTS:
        return _decode_without_format(data, state, verify=verify)
    header_length = log_format.header_length
    if header_length == HEADER_LENGTH:
        header = EventHeader(*_unpack_header(data))
    else:
        header_length = log_format.header_length_of(data[4])
        header = EventHeader.decode(data, header_length)
    end = len(data)
    if header.event_size != end:
        raise _wrong_size(header, end)
    if state.encryption is not None:
        raise UnsupportedError("the log is encrypted from the START_ENCRYPTION event on; its key is needed")
    checksum = None
    if log_format.checksum is _CRC32 and (
        _crc32(data) == CRC32_RESIDUE or _has_checksum(header, data, verify)
    ):
        end -= CHECKSUM_LENGTH
        if end < header_length:
            raise TruncatedError(f"an event of {len(data)} bytes has no room for its checksum")
        checksum = data[end:]
    decode, known, excess, observed = log_format.codecs[header.type_code]
    if excess:
        return _decode_extended(data, header, header_length, checksum, state)
    event = decode(data, header_length, end, known)
    if not observed:
        return BinlogEvent(header, event, checksum)
    table_map = state.table_maps.get(event.table_id) if isinstance(event, RowsEvent) else None
    state.observe(event, header.flags)
    return BinlogEvent(header, event, checksum, b"", table_map)


@value
class Beginning:
    """An event of which the beginning is at hand: all its fields, but ``field`` is cut.

    The bytes of that field start at ``start`` in the event and are ``size``.
    """

    decoded: BinlogEvent
    field: str
    start: int
    size: int


def decode_beginning(head: bytes, size: int, crc32: int, tail: bytes, state: StreamState) -> Beginning | None:
    """Decode an event too large to be held from its first bytes, ``head``, and note it in ``state``.

    ``size`` is that of the whole event, ``crc32`` the CRC-32 of all its bytes, ``tail`` its last four. None
    for a type that has no field to take the rest (see :attr:`Event.rest_field`), and where ``head`` has more
    than the beginning of that field, or less: such an event is to be decoded whole. Raises as
    :func:`decode_event` does.
    """
    log_format = state.format
    declaration = EVENTS.get(head[4])
    field = None if declaration is None else declaration.event_class.rest_field
    if log_format is None or declaration is None or field is None:
        return None
    header_length = log_format.header_length_of(head[4])
    header = EventHeader.decode(head, header_length)
    if header.event_size != size:
        raise _wrong_size(header, size)
    if state.encryption is not None:
        raise UnsupportedError("the log is encrypted from the START_ENCRYPTION event on; its key is needed")
    checksum = None
    if log_format.checksum is _CRC32:
        if crc32 != CRC32_RESIDUE:
            raise ChecksumError(f"the checksum does not match the {size} bytes of the event")
        checksum = tail
    end = size - len(checksum or b"")
    missing = end - len(head)
    if missing <= 0:
        return None
    _, known, excess, _ = log_format.codecs[header.type_code]
    extra = b""
    if excess:
        extra_at = header_length + known
        extra = head[extra_at : extra_at + excess]
        head = head[:extra_at] + head[extra_at + excess :]
    try:
        event = declaration.event_class.decode_beginning(head, header_length, len(head), missing, known)
    except TruncatedError:
        return None
    table_map = state.table_maps.get(event.table_id) if isinstance(event, RowsEvent) else None
    state.observe(event, header.flags)
    length = len(getattr(event, field)) + missing
    return Beginning(BinlogEvent(header, event, checksum, extra, table_map), field, end - length, length)


def _decode_extended(
    data: bytes, header: EventHeader, header_length: int, checksum: bytes | None, state: StreamState
) -> BinlogEvent:
    """Decode an event whose post-header is longer than we know: what exceeds it is cut out and kept."""
    assert state.format is not None
    decode, known, excess, _ = state.format.codecs[header.type_code]
    end = len(data) - len(checksum or b"")
    extra_at = header_length + known
    if extra_at + excess > end:
        raise TruncatedError(f"a post-header of {known + excess} bytes, {end - header_length} are there")
    extra = data[extra_at : extra_at + excess]
    event = decode(data[:extra_at] + data[extra_at + excess :], header_length, end - excess, known)
    table_map = state.table_maps.get(event.table_id) if isinstance(event, RowsEvent) else None
    state.observe(event, header.flags)
    return BinlogEvent(header, event, checksum, extra, table_map)


def _wrong_size(header: EventHeader, size: int) -> BinlogError:
    message = f"the header says {header.event_size} bytes, {size} are there"
    return TruncatedError(message) if header.event_size > size else InvalidValueError(message)


def _has_checksum(header: EventHeader, data: bytes, verify: bool) -> bool:  # passed on
    """Return whether an event of a log with checksums, whose last bytes do not match, has one all the same.

    A server makes up the ROTATE at the head of a stream by its own setting, whatever the file has.
    """
    if header.type_code == EventType.ROTATE_EVENT and header.flags & HeaderFlag.ARTIFICIAL_F:
        return False
    if verify:
        verify_checksum(data)
    return True


def _decode_without_format(data: bytes, state: StreamState, *, verify: bool) -> BinlogEvent:
    """Decode an event that needs no format description, or is one."""
    if len(data) < V1_HEADER_LENGTH:
        raise TruncatedError(f"an event header is {HEADER_LENGTH} bytes long, {len(data)} are there")
    if data[4] == EventType.START_EVENT_V3:
        return _decode_start(data, state)
    header = EventHeader.decode(data)
    end = len(data)
    if header.event_size != end:
        raise _wrong_size(header, end)
    if state.format is not None:
        # Too short for the headers of its log: refused, but for those without extras.
        EventHeader.decode(data, state.format.header_length_of(header.type_code))
    if header.type_code == _FORMAT_DESCRIPTION:
        has_checksum = has_checksum_algorithm(decode_text(data[21:71].rstrip(b"\0")))
        if has_checksum and end < HEADER_LENGTH + 57 + 1 + CHECKSUM_LENGTH:
            raise TruncatedError(f"a format description of {end} bytes has no room for its checksum")
        if has_checksum and verify:
            verify_checksum(data)
        decode, known = EVENTS[header.type_code].decode, 57
    elif header.type_code in _WITHOUT_FORMAT:
        declaration = EVENTS[header.type_code]
        decode, known = declaration.decode, declaration.post_header_lengths[-1]
        has_checksum = checksum_matches(data)
    else:
        raise MissingStateError(
            f"event type {header.type_code} comes before any format description, which says how to read it"
        )
    if has_checksum:
        end -= CHECKSUM_LENGTH
    event = decode(data, HEADER_LENGTH, end, known)
    state.observe(event)
    return BinlogEvent(header, event, data[end:] if has_checksum else None)


def _decode_start(data: bytes, state: StreamState) -> BinlogEvent:
    """Decode START_EVENT_V3; its length tells the common header of v1 from that of v3."""
    header_length = V1_HEADER_LENGTH if len(data) < HEADER_LENGTH + _START_V3_SIZE else HEADER_LENGTH
    header = EventHeader.decode(data, header_length)
    if header.event_size != len(data):
        raise _wrong_size(header, len(data))
    event = StartEventV3.decode_fields(data, header_length, len(data), _START_V3_SIZE)
    log_format = LogFormat(event)
    if log_format.header_length != header_length:
        raise InvalidValueError(
            f"a log of version {log_format.binlog_version} has headers of {log_format.header_length} bytes, "
            f"not of {header_length}"
        )
    state.observe(event)
    return BinlogEvent(header, event)


def encode_event(decoded: BinlogEvent, state: StreamState) -> bytes:
    """Write an event in the format of ``state``, and note there what later events need of it.

    The header's ``event_size`` is written as it results. ``checksum`` is written as it is; None means none,
    also in a log with checksums (an artificial ROTATE has none): see :func:`seal` for an event that is new.
    Raises EncodeError for a value that does not fit its field.
    """
    header, event = decoded.header, decoded.event
    log_format = state.format
    if isinstance(event, FormatDescriptionEvent | StartEventV3):
        log_format = LogFormat(event)
    known, header_length = _layout(header.type_code, log_format)
    try:
        content = event.encode_fields(known)
        if decoded.post_header_extra:
            content = content[:known] + decoded.post_header_extra + content[known:]
        size = header_length + len(content) + len(decoded.checksum or b"")
        if size != header.event_size:
            header = _resized(header, size)
        data = header.encode(header_length) + content + (decoded.checksum or b"")
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise EncodeError(f"{type(event).__name__} cannot be written: {error}") from error
    state.observe(event, header.flags)
    return data


def _resized(header: EventHeader, size: int) -> EventHeader:
    return EventHeader(
        header.timestamp,
        header.type_code,
        header.server_id,
        size,
        header.next_position,
        header.flags,
        header.extra_headers,
    )


def _layout(type_code: int, log_format: LogFormat | None) -> tuple[int, int]:
    """Return the length of an event's known post-header and of its common header."""
    if log_format is not None and type_code != _FORMAT_DESCRIPTION:
        return log_format.codecs[type_code][1], log_format.header_length_of(type_code)
    declaration = EVENTS.get(type_code)
    return declaration.post_header_lengths[-1] if declaration else 0, HEADER_LENGTH


def seal(decoded: BinlogEvent, state: StreamState) -> bytes:
    """Write a new event as :func:`encode_event` does, with the checksum that the log's format asks for."""
    event = decoded.event
    data = encode_event(BinlogEvent(decoded.header, event, None, decoded.post_header_extra), state)
    has_checksum = state.has_checksums
    if isinstance(event, FormatDescriptionEvent):
        has_checksum = event.checksum_algorithm is not None
    return with_checksum(data) if has_checksum else data
