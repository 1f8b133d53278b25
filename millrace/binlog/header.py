"""The common header in front of every event.

::

    offset  size
    0       4     timestamp       seconds since 1970, when the statement began on its origin
    4       1     type_code       see EventType
    5       4     server_id       the server on which the event originated
    9       4     event_size      header, post-header, body and checksum together
    13      4     next_position   where the next event starts; 0 or another meaning in some logs
    17      2     flags           see HeaderFlag
    19      …     extra_headers   when the format description declares a header longer than 19 bytes

Version 1 (MySQL 3.23) ends after ``event_size``. FORMAT_DESCRIPTION and ROTATE never have extra headers, for
they are read before, or without, a format description. ``next_position`` is the end of the event in its file
modulo 2^32 since 4.1 (v4); the start of the event in v3 logs; the primary's position in relay logs; 0 in
artificial events and, since MariaDB 11.4, inside transactions.
"""

import struct

from millrace.binlog.errors import EncodeError, TruncatedError
from millrace.binlog.values import value

__all__ = [
    "FIRST_POSITION",
    "FLAGS_OFFSET",
    "HEADER_LENGTH",
    "TYPE_OFFSET",
    "V1_HEADER_LENGTH",
    "EventHeader",
]

FIRST_POSITION = 4
"""Where the first event of a file starts: after the magic bytes."""

HEADER_LENGTH = 19
"""Length of the common header of v3 and v4 logs, without extra headers."""

V1_HEADER_LENGTH = 13
"""Length of the common header of v1 logs."""

TYPE_OFFSET, FLAGS_OFFSET = 4, 17
"""Where a header has its ``type_code`` and its ``flags``."""

_V1 = struct.Struct("<IBII")
_V4 = struct.Struct("<IBIIIH")
_unpack_v4 = _V4.unpack_from


@value
class EventHeader:
    """The common header; all integers are unsigned and little-endian on the wire."""

    timestamp: int
    type_code: int
    server_id: int
    event_size: int
    next_position: int = 0
    flags: int = 0
    extra_headers: bytes = b""

    @classmethod
    def decode(cls, data: bytes, header_length: int = HEADER_LENGTH) -> "EventHeader":
        """Read the header at the start of ``data``; ``header_length`` is what the log's format says.

        Raises TruncatedError when ``data`` is shorter than that.
        """
        if len(data) < header_length:
            raise TruncatedError(f"an event header is {header_length} bytes long, {len(data)} are there")
        if header_length == HEADER_LENGTH:
            return cls(*_unpack_v4(data))
        if header_length == V1_HEADER_LENGTH:
            timestamp, type_code, server_id, event_size = _V1.unpack_from(data)
            return cls(timestamp, type_code, server_id, event_size)
        timestamp, type_code, server_id, event_size, next_position, flags = _unpack_v4(data)
        extra = data[HEADER_LENGTH:header_length]
        return cls(timestamp, type_code, server_id, event_size, next_position, flags, extra)

    def encode(self, header_length: int = HEADER_LENGTH) -> bytes:
        """Write the header in the form of a log whose headers have ``header_length`` bytes."""
        if header_length == V1_HEADER_LENGTH:
            return _V1.pack(self.timestamp, self.type_code, self.server_id, self.event_size)
        if len(self.extra_headers) != header_length - HEADER_LENGTH:
            raise EncodeError(
                f"{len(self.extra_headers)} bytes of extra headers do not make a header of {header_length}"
            )
        fixed = _V4.pack(
            self.timestamp, self.type_code, self.server_id, self.event_size, self.next_position, self.flags
        )
        return fixed + self.extra_headers
