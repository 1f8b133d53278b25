"""Events that say something about the log itself: its format, its start and end, and what is not known.

START_EVENT_V3 (1), STOP_EVENT (3), ROTATE_EVENT (4), SLAVE_EVENT (7), FORMAT_DESCRIPTION_EVENT (15),
INCIDENT_EVENT (26), HEARTBEAT_LOG_EVENT (27), IGNORABLE_LOG_EVENT (28), HEARTBEAT_LOG_EVENT_V2 (41).
Format: ``libs/mysql/binlog/event/control_events.h`` of MySQL.
"""

import re
from typing import Self

from millrace.binlog.declaration import Event, abstract_event, body, event, post_header
from millrace.binlog.errors import EncodeError, InvalidValueError, TrailingBytesError, TruncatedError
from millrace.binlog.fields import (
    U8,
    U16,
    U32,
    U64,
    Bytes8,
    PaddedText50,
    RestBytes,
    RestText,
    decode_text,
    encode_text,
    pack_lenenc,
    read_lenenc,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import ChecksumAlgorithm

__all__ = [
    "FormatDescriptionEvent",
    "HeartbeatLogEvent",
    "HeartbeatLogEventV2",
    "IgnorableLogEvent",
    "IncidentEvent",
    "RotateEvent",
    "SlaveEvent",
    "StartEventV3",
    "StopEvent",
    "UnknownEvent",
]


@abstract_event
class UnknownEvent(Event):
    """An event of a type that is not declared here, with its bytes: post-header and body together."""

    body: RestBytes = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Keep ``data[offset:end]``."""
        return cls(data[offset:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Return the bytes back."""
        return self.body


@event(1, role=Role.START, post_header_lengths=(56,))
class StartEventV3(Event):
    """First event of a log of MySQL 3.23 to 4.1."""

    binlog_version: U16 = post_header()
    server_version: PaddedText50 = post_header()
    created: U32 = post_header()

    @property
    def version(self) -> str:
        """The server's version, as the servers read it: up to a zero byte."""
        return _version_text(self.server_version)

    @property
    def has_checksums(self) -> bool:
        """Whether the events of its log have checksums: they came later."""
        return False


@event(3, role=Role.BETWEEN)
class StopEvent(Event):
    """The server was shut down, or a replica stopped; it has neither post-header nor body."""


@event(4, role=Role.BETWEEN, post_header_lengths=(0, 8))
class RotateEvent(Event):
    """The log continues in another file, at ``position`` (4 in a v1 log, which does not say it)."""

    position: U64 = post_header(since=8, absent=4)
    new_log_ident: RestText = body()


@event(7, role=Role.BETWEEN)
class SlaveEvent(Event):
    """Declared by MySQL 4.0 and 4.1 and never written by any of them."""

    body: RestBytes = body()


_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def _version_text(server_version: str) -> str:
    """Cut off what MariaDB 10.0 and 10.1 have after the version: a zero byte and ``log``."""
    return server_version.partition("\0")[0]


def has_checksum_algorithm(server_version: str) -> bool:
    """Return whether a server of that version ends its format description with algorithm and checksum.

    So do MySQL since 5.6.1 and MariaDB since 5.3.0.
    """
    match = _VERSION.match(server_version)
    if match is None:
        return False
    first = (5, 3, 0) if "MariaDB" in _version_text(server_version) else (5, 6, 1)
    return tuple(map(int, match.groups())) >= first


@event(15, role=Role.START, post_header_lengths=(57,))
class FormatDescriptionEvent(Event):
    """First event of a log since MySQL 5.0: which server wrote it and in what format.

    ``created`` is when the server was started, if this is its first log since then, else 0.
    ``post_header_lengths`` has one byte per event type, from type 1 on. ``checksum_algorithm`` is absent from
    servers without checksums; else a checksum follows it, even if the algorithm is OFF.

    Codec by hand: the version decides what the last byte is.
    """

    binlog_version: U16 = post_header()
    server_version: PaddedText50 = post_header()
    created: U32 = post_header()
    header_length: U8 = post_header()
    post_header_lengths: RestBytes = post_header()
    checksum_algorithm: U8 | None = body(default=None)

    @property
    def version(self) -> str:
        """The server's version, as the servers read it: up to a zero byte."""
        return _version_text(self.server_version)

    @property
    def has_checksums(self) -> bool:
        """Whether the events of its log have checksums; it has one itself even where they have none."""
        return self.checksum_algorithm == ChecksumAlgorithm.CRC32

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        lengths = offset + 57
        if lengths > end:
            raise TruncatedError(f"a format description has at least 57 bytes, {end - offset} are there")
        server_version = decode_text(data[offset + 2 : offset + 52].rstrip(b"\0"))
        algorithm = None
        if has_checksum_algorithm(server_version):
            end -= 1
            if end < lengths:
                raise TruncatedError("a format description of this server version names a checksum algorithm")
            algorithm = data[end]
        return cls(
            int.from_bytes(data[offset : offset + 2], "little"),
            server_version,
            int.from_bytes(data[offset + 52 : offset + 56], "little"),
            data[offset + 56],
            data[lengths:end],
            algorithm,
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        if (self.checksum_algorithm is not None) != has_checksum_algorithm(self.server_version):
            raise EncodeError(
                f"server version {self.server_version!r} decides whether a checksum algorithm is named, "
                f"and does not agree with {self.checksum_algorithm}"
            )
        server_version = encode_text(self.server_version)
        if len(server_version) > 50:
            raise EncodeError(f"a server version has at most 50 bytes, not {len(server_version)}")
        return b"".join(
            (
                self.binlog_version.to_bytes(2, "little"),
                server_version.ljust(50, b"\0"),
                self.created.to_bytes(4, "little"),
                self.header_length.to_bytes(1, "little"),
                self.post_header_lengths,
                b"" if self.checksum_algorithm is None else self.checksum_algorithm.to_bytes(1, "little"),
            )
        )


@event(26, role=Role.INCIDENT)
class IncidentEvent(Event):
    """Something went wrong on the origin: events may be missing (``incident`` 1 is LOST_EVENTS)."""

    incident: U16 = post_header()
    message: Bytes8 = body()


_POSITION_SIZE = 8


@event(27, role=Role.BETWEEN, post_header_lengths=(0,))
class HeartbeatLogEvent(Event):
    """The source is alive and stands at the header's next_position of this file; never in a file itself.

    Beyond 4 GiB the header's next_position is 0 and MariaDB says ``log_position`` in front of the name, which
    holds no zero byte. Codec by hand: the eighth byte decides.
    """

    log_position: U64 | None = body()
    log_ident: RestText = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        name = offset + _POSITION_SIZE
        if end >= name and not data[name - 1]:
            return cls(int.from_bytes(data[offset:name], "little"), decode_text(data[name:end]))
        return cls(None, decode_text(data[offset:end]))

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        position = b"" if self.log_position is None else self.log_position.to_bytes(_POSITION_SIZE, "little")
        written = position + encode_text(self.log_ident)
        if bool(position) != (written[_POSITION_SIZE - 1 : _POSITION_SIZE] == b"\0"):
            raise EncodeError("a zero byte, the eighth, tells a heartbeat's position from its name")
        return written


@event(28, role=Role.PART)
class IgnorableLogEvent(Event):
    """An event that a reader that does not know it may ignore."""

    body: RestBytes = body()


_LOG_FILENAME, _LOG_POSITION = 1, 2


@event(41, role=Role.BETWEEN, post_header_lengths=(0,))
class HeartbeatLogEventV2(Event):
    """A heartbeat with a 64-bit position (MySQL 8.0.26 on): type, length, value; 0 ends the list.

    Codec by hand: its two fields are a list, of which a server may write more one day, and is refused then.
    """

    log_filename: RestText = body()
    log_position: U64 = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``: file name first, then position, as the server writes."""
        kind, offset = read_lenenc(data, offset, end)
        size, offset = read_lenenc(data, offset, end)
        name_end = offset + size
        if kind != _LOG_FILENAME or name_end > end:
            raise InvalidValueError(
                f"a heartbeat starts with its file name, not with field {kind} ({size} bytes)"
            )
        kind, position = read_lenenc(data, name_end, end)
        size, position = read_lenenc(data, position, end)
        value, after = read_lenenc(data, position, end)
        if kind != _LOG_POSITION or after != position + size:
            raise InvalidValueError(f"a heartbeat's second field is its position, not {kind} of {size} bytes")
        if data[after:end] != b"\0":
            raise TrailingBytesError("a heartbeat ends with a zero byte after its position")
        return cls(decode_text(data[offset:name_end]), value)

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write the body."""
        name, position = encode_text(self.log_filename), pack_lenenc(self.log_position)
        return b"".join(
            (
                pack_lenenc(_LOG_FILENAME),
                pack_lenenc(len(name)),
                name,
                pack_lenenc(_LOG_POSITION),
                pack_lenenc(len(position)),
                position,
                b"\0",
            )
        )
