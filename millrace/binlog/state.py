"""What must be remembered from one event to read the next: the only state of the codec.

The grammar of a log, as far as reading single events depends on it::

    log    = magic, (START_EVENT_V3 | FORMAT_DESCRIPTION)?, event*
    stream = (artificial ROTATE, FORMAT_DESCRIPTION, event*)*
    event  = any, read as the latest FORMAT_DESCRIPTION says
    rows   = TABLE_MAP+, rows event*, rows event with STMT_END_F

A FORMAT_DESCRIPTION gives the length of the common header, of every post-header, and the checksum; it ends
the table maps of what came before, as does the rows event with STMT_END_F. Only logs of MySQL 4.0 and 4.1 may
begin with another event. :class:`StreamState` holds this and can be saved and restored, so that a reader can
continue in the middle of a log.
"""

import copy
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.errors import BinlogError, InvalidValueError, UnsupportedError
from millrace.binlog.events.control import FormatDescriptionEvent, StartEventV3, UnknownEvent
from millrace.binlog.events.mariadb import StartEncryptionEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.header import FIRST_POSITION, HEADER_LENGTH, V1_HEADER_LENGTH, EventHeader
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag

__all__ = ["LogFormat", "StreamState"]

_OBSERVED = (RowsEvent, TableMapEvent, FormatDescriptionEvent, StartEventV3, StartEncryptionEvent)
_FORMAT_COMES = frozenset(
    {EventType.START_EVENT_V3, EventType.FORMAT_DESCRIPTION_EVENT, EventType.ROTATE_EVENT}
)
_MAP_OVERHEAD, _MAX_MAP_BYTES = 512, 64 << 20
"""What a table map takes besides its bytes, and what all that are in force may take: some 100,000 tables."""
_NO_EXTRA_HEADERS = frozenset({EventType.FORMAT_DESCRIPTION_EVENT, EventType.ROTATE_EVENT})

_DROP = re.compile(r"5\.(?:1\.[1-5]|2\.[0-2]|4\.\d)-a_drop")
_DROP_TYPES = {16: 19, 17: 20, 18: 21, 19: 22, 20: 16, 21: 17, 22: 18}
"""Previews of MySQL 5.1 numbered seven types otherwise: their code to today's."""

Codec = tuple[Callable[[bytes, int, int, int], Event], int, int, bool]
"""Of one event type: how it is decoded, the length of the post-header that is known, what exceeds it, and
whether the state must take note of it."""


class LogFormat:
    """How the events of a log are laid out, made of its first event.

    ``codecs[type_code]`` tells how each type is read. Immutable once made.
    """

    __slots__ = ("binlog_version", "checksum", "codecs", "header_length", "origin")

    def __init__(self, origin: FormatDescriptionEvent | StartEventV3) -> None:
        self.origin = origin
        self.binlog_version = origin.binlog_version
        declared: bytes | None = None
        if isinstance(origin, FormatDescriptionEvent):
            if origin.header_length < HEADER_LENGTH:
                raise UnsupportedError(f"common headers of {origin.header_length} bytes in a v4 log")
            self.header_length = origin.header_length
            declared = origin.post_header_lengths
            named = origin.checksum_algorithm
            self.checksum = ChecksumAlgorithm.OFF
            if named is not None and named != ChecksumAlgorithm.UNDEF:
                if named not in (ChecksumAlgorithm.OFF, ChecksumAlgorithm.CRC32):
                    raise UnsupportedError(f"checksum algorithm {named}")
                self.checksum = ChecksumAlgorithm(named)
        else:
            if self.binlog_version not in (1, 2, 3):
                raise UnsupportedError(f"START_EVENT_V3 in a log of version {self.binlog_version}")
            self.header_length = V1_HEADER_LENGTH if self.binlog_version == 1 else HEADER_LENGTH
            self.checksum = ChecksumAlgorithm.OFF
        renumbered = _DROP.match(origin.version) is not None
        self.codecs = _codecs(self.binlog_version, declared, renumbered)

    def end_of(self, header: EventHeader) -> int | None:
        """Return the end of an event in the log for which it was first written, None where that is not said.

        That log is the primary's if this is a relay log, and the event's own otherwise. ``next_position`` is
        the start of the event in v3 logs, its end since v4; v1 has none, and servers write 0 where they do
        not know it. Modulo 2^32: true positions are those of :func:`millrace.binlog.file.iter_events`.
        """
        if self.binlog_version == 1 or not header.next_position:
            return None
        if self.binlog_version < 4:
            return header.next_position + header.event_size & 0xFFFFFFFF
        return header.next_position

    def without_checksum(self) -> "LogFormat":
        """Make the same format for events without checksums; the codecs are shared."""
        twin = copy.copy(self)
        twin.checksum = ChecksumAlgorithm.OFF
        return twin

    def header_length_of(self, type_code: int) -> int:
        """Length of the common header of an event of that type."""
        if type_code in _NO_EXTRA_HEADERS and self.header_length > HEADER_LENGTH:
            return HEADER_LENGTH
        return self.header_length


@lru_cache(maxsize=16)
def _codecs(binlog_version: int, declared: bytes | None, renumbered: bool) -> tuple[Codec, ...]:
    """Return how each type code is read; ``declared`` are the post-header lengths of a format description."""
    types = _DROP_TYPES if renumbered else {}
    return tuple(_codec(code, types.get(code, code), binlog_version, declared) for code in range(256))


def _codec(code: int, event_type: int, binlog_version: int, declared: bytes | None) -> Codec:
    declaration = EVENTS.get(event_type)
    if declaration is None:
        return UnknownEvent.decode_fields, 0, 0, False
    observed = issubclass(declaration.event_class, _OBSERVED)
    if declared is None:
        old = {EventType.QUERY_EVENT: 11, EventType.ROTATE_EVENT: 8 if binlog_version > 1 else 0}
        known = old.get(declaration.event_type, declaration.post_header_lengths[-1])
        return declaration.decode, known, 0, observed
    if event_type == EventType.ROTATE_EVENT:  # read without a format description too, so never changed
        return declaration.decode, declaration.post_header_lengths[-1], 0, observed
    length = declared[code - 1] if 0 < code <= len(declared) else 0
    try:
        known = declaration.known_post_header(length)
    except UnsupportedError as unsupported:
        return _refuse(unsupported), 0, 0, False
    excess = max(length - known, 0) if declaration.extensible else 0
    return declaration.decode, known, excess, observed


def _refuse(error: BinlogError) -> Callable[[bytes, int, int, int], Event]:
    """Make a decoder for a type that this log lays out in a way that is not known."""

    def decode(_data: bytes, _offset: int, _end: int, _post_header_length: int) -> Event:
        raise type(error)(error.message)

    return decode


def _held_bytes(event: TableMapEvent) -> int:
    return _MAP_OVERHEAD + len(event.column_types) + len(event.optional_metadata)


class StreamState:
    """Format of the log being read, table maps in force, and whether the log is encrypted from here on.

    ``encryption`` is the START_ENCRYPTION that says so; one with IGNORABLE_F does not: the events after it
    were decrypted, by the server that sent them or by :func:`millrace.binlog.file.iter_events`.
    """

    __slots__ = ("_map_bytes", "encryption", "format", "table_maps")

    def __init__(
        self,
        log_format: LogFormat | None = None,
        table_maps: dict[int, TableMapEvent] | None = None,
        encryption: StartEncryptionEvent | None = None,
    ) -> None:
        self.format = log_format
        self.table_maps = {} if table_maps is None else table_maps
        self.encryption = encryption
        self._map_bytes = [0]  # shared with the states for payloads, as the maps are

    @property
    def has_checksums(self) -> bool:
        """Whether events end with a CRC32; not as long as no format is known."""
        return self.format is not None and self.format.checksum is ChecksumAlgorithm.CRC32

    def begin_file(self, first_event: bytes) -> None:
        """Take note of how a file begins, before its first event is decoded.

        MySQL 4.0 and 4.1 wrote START_EVENT_V3 only into the first log after each start of the server; a file
        that begins with another event of their time, or a ROTATE, is such a log. In a log since MySQL 5.0 the
        description is missing then: its types are others, and its events say where they end, not where they
        start.
        """
        if self.format is not None or len(first_event) < HEADER_LENGTH or first_event[4] in _FORMAT_COMES:
            return
        size, next_position = (int.from_bytes(first_event[at : at + 4], "little") for at in (9, 13))
        if first_event[4] < EventType.FORMAT_DESCRIPTION_EVENT and next_position != FIRST_POSITION + size:
            self.format = LogFormat(StartEventV3(3, "", 0))

    def observe(self, event: Event, flags: int = 0) -> None:
        """Take note of an event that has been decoded; ``flags`` are those of its header.

        Raises InvalidValueError for more table maps than any statement has.
        """
        if isinstance(event, RowsEvent):
            if event.ends_statement:
                self.table_maps.clear()
        elif isinstance(event, TableMapEvent):
            self._hold(event)
        elif isinstance(event, FormatDescriptionEvent | StartEventV3):
            self.format = LogFormat(event)
            self.table_maps.clear()
            self.encryption = None
        elif isinstance(event, StartEncryptionEvent) and not flags & HeaderFlag.IGNORABLE_F:
            self.encryption = event

    def _hold(self, event: TableMapEvent) -> None:
        known, counted, size = self.table_maps, self._map_bytes, _held_bytes(event)
        if counted[0] + size > _MAX_MAP_BYTES:
            # What was counted may be gone by now, as at the end of each statement.
            counted[0] = sum(_held_bytes(one) for one in known.values() if one.table_id != event.table_id)
            if counted[0] and counted[0] + size > _MAX_MAP_BYTES:
                raise InvalidValueError(
                    f"{len(known)} table maps without a rows event that ends their statement"
                )
        counted[0] += size
        known[event.table_id] = event

    def for_payload(self) -> "StreamState":
        """Make the state in which the events inside a TRANSACTION_PAYLOAD are read: without checksums."""
        log_format = self.format
        if log_format is not None and log_format.checksum is not ChecksumAlgorithm.OFF:
            log_format = log_format.without_checksum()
        state = StreamState(log_format, self.table_maps)
        state._map_bytes = self._map_bytes
        return state

    def save(self) -> dict[str, Any]:
        """Return the state as plain values: bytes, integers, lists; :meth:`restore` takes them back."""
        origin = None if self.format is None else self.format.origin
        return {
            "format": None if origin is None else origin.encode_fields(0),
            "format_type": None if origin is None else int(origin.event_type),
            "table_maps": [table_map.encode_fields(8) for table_map in self.table_maps.values()],
            "encryption": None if self.encryption is None else self.encryption.encode_fields(0),
        }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> "StreamState":
        """Make the state again from what :meth:`save` gave; raises BinlogError where it is damaged."""
        try:
            return cls._restored(saved)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidValueError(f"the saved state cannot be restored: {error!r}") from error

    @classmethod
    def _restored(cls, saved: dict[str, Any]) -> "StreamState":
        state = cls()
        raw_format = saved["format"]
        if raw_format is not None:
            declaration = EVENTS[saved["format_type"]]
            state.observe(
                declaration.decode(raw_format, 0, len(raw_format), declaration.post_header_lengths[-1])
            )
        for raw in saved["table_maps"]:
            state.observe(TableMapEvent.decode_fields(raw, 0, len(raw), 8))
        if saved["encryption"] is not None:
            raw = saved["encryption"]
            state.encryption = StartEncryptionEvent.decode_fields(raw, 0, len(raw), 0)
        return state
