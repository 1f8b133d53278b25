"""The events of a replication dump, cut out of the wire packets that carry them. No I/O.

A packet is a length (3 bytes, little-endian), a sequence number (1 byte) and a payload. After a dump command
each payload starts with a status byte: 0x00 and then an event, 0xFE for the end of a dump that does not wait,
0xFF and then an error. An event of 16 MiB - 2 bytes or more does not fit: its first packet has the greatest
length, 0xFFFFFF, and so has each further one but the last, which may be empty; only the first has the status
byte. See "MySQL Packets" and "Binlog Network Stream" in the MySQL source documentation.

To a semi-synchronous replica two more bytes stand after the status byte: 0xEF, and 1 where the server waits
for an acknowledgement of this event, else 0. See "Semi-Sync Replication" in MariaDB's documentation, which
does not say that after an event that wants an acknowledgement the numbers of packets start again at 1.

:class:`EventSplitter` owns the buffer into which a socket reads. What fits into the buffer comes out whole;
an event that does not comes out in pieces, so that memory is bounded whatever the size of an event. The first
of them has what its event says of itself, the header and more: ``HEAD_SIZE`` bytes.
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from millrace import kernel
from millrace.binlog.header import HEADER_LENGTH
from millrace.mysql.errors import ProtocolError

HEAD_SIZE: Final = 4096
"""Bytes that the first piece of an event has at least, where the event does not come whole."""

_MAX_PAYLOAD = 0xFFFFFF
_SEMI_SYNC = 0xEF
_LENGTH = struct.Struct("<I")
_U16 = struct.Struct("<H")


class EventPiece(NamedTuple):
    """A run of bytes of one event; an ordinary event is one piece, both first and last."""

    data: bytes
    first: bool
    last: bool
    event_size: int
    """Bytes of the whole event, as its header says."""


class DumpEnd(Exception):  # noqa: N818 - no error, as StopIteration is none
    """The server has sent all there is, and does not wait for more."""


class ServerError(Exception):
    """The error packet of the server: code, SQL state and text."""

    def __init__(self, code: int, state: str, text: str) -> None:
        super().__init__(code, state, text)
        self.code = code
        self.state = state
        self.text = text


_TakeEvents = Callable[[bytearray, int, int, int, type[EventPiece], list[EventPiece]], tuple[int, int]]


def _kernel() -> _TakeEvents | None:
    """Return what takes ordinary packets; None where the kernel is not there."""
    if not kernel.has("packets"):
        return None
    from millrace.kernel.packets import take_events  # noqa: PLC0415 - only where it is built

    return take_events


class EventSplitter:
    """Takes the bytes of a dump as they come, gives the events in them.

    Fill :meth:`space` from the socket, report the number of bytes to :meth:`filled`, call :meth:`split`.
    With ``semi_sync`` events come as a semi-synchronous replica gets them, and ``wants_ack`` is set once
    one of those that were given wants an acknowledgement; whoever sends it sets it back.
    """

    __slots__ = (
        "_buffer",
        "_end",
        "_event_left",
        "_event_size",
        "_event_wants_ack",
        "_in_parts",
        "_kernel",
        "_more_packets",
        "_packet_left",
        "_prefix",
        "_sequence",
        "_start",
        "_view",
        "_waiting",
        "wants_ack",
    )

    def __init__(self, buffer_size: int = 1 << 20, *, semi_sync: bool = False) -> None:
        self._prefix = 3 if semi_sync else 1
        self._kernel = None if semi_sync else _kernel()
        self.wants_ack = False
        self._event_wants_ack = False
        self._buffer = bytearray(buffer_size)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._sequence = 1
        # An event larger than the buffer, and the packet of it that is being read:
        self._in_parts = False
        self._event_size = 0
        self._event_left = 0
        self._packet_left = 0
        self._more_packets = False
        self._waiting: Exception | None = None

    def space(self) -> memoryview:
        """Return the free end of the buffer, never empty, for ``recv_into``."""
        if self._start:
            kept = self._end - self._start
            self._buffer[:kept] = self._buffer[self._start : self._end]
            self._start, self._end = 0, kept
        return self._view[self._end :]

    def filled(self, size: int) -> None:
        """Note that ``size`` bytes were written to :meth:`space`."""
        self._end += size

    def split(self) -> list[EventPiece]:
        """Return the events, or pieces of one, that the buffer holds.

        Raises :class:`DumpEnd` or :class:`ServerError` once everything before it has been returned, and
        :class:`ProtocolError` where the packets do not join.
        """
        if self._waiting is not None:
            raise self._waiting
        pieces: list[EventPiece] = []
        try:
            while self._parts(pieces) if self._in_parts else self._whole_events(pieces):
                pass
        except (DumpEnd, ServerError, ProtocolError) as error:
            if not pieces:
                raise
            self._waiting = error
        return pieces

    def _whole_events(self, pieces: list[EventPiece]) -> bool:
        """Take the complete packets; return whether an event begins that comes in parts."""
        buffer, start, end, sequence = self._buffer, self._start, self._end, self._sequence
        if self._kernel is not None:
            start, sequence = self._kernel(buffer, start, end, sequence, EventPiece, pieces)
        unpack_length = _LENGTH.unpack_from
        append = pieces.append
        prefix = self._prefix
        first = 4 + prefix
        least = prefix + HEADER_LENGTH
        while end - start >= 5:
            (head,) = unpack_length(buffer, start)
            length = head & _MAX_PAYLOAD
            stop = start + 4 + length
            if (
                head >> 24 != sequence
                or length < least
                or buffer[start + 4]
                or stop > end
                or length == _MAX_PAYLOAD
            ):
                break
            if prefix > 1 and self._semi_sync_flag(start):
                self.wants_ack = True
                sequence = 0
            append(EventPiece(bytes(buffer[start + first : stop]), True, True, length - prefix))
            sequence = (sequence + 1) & 0xFF
            start = stop
        self._start, self._sequence = start, sequence
        # An empty packet has no status byte to wait for.
        complete = end - start >= 5 or buffer[start:end] == _LENGTH.pack(sequence << 24)
        return complete and self._odd_packet()

    def _odd_packet(self) -> bool:
        """Look at a packet that holds no whole event; return whether one begins that comes in parts."""
        buffer, start = self._buffer, self._start
        (head,) = _LENGTH.unpack_from(buffer, start)
        length = head & _MAX_PAYLOAD
        if length and buffer[start + 4]:
            # Looked at before the packet's number: a server that shuts down sends its error as number 0.
            if start + 4 + length > self._end:
                return False
            _raise_status(bytes(buffer[start + 4 : start + 4 + length]))
        self._packet_length()
        if length < self._prefix + HEADER_LENGTH:
            raise ProtocolError(
                f"an event of {max(0, length - self._prefix)} bytes came, and the header alone has "
                f"{HEADER_LENGTH}"
            )
        first = 4 + self._prefix
        fits = length < _MAX_PAYLOAD and 4 + length <= len(buffer)
        if fits or self._end - start < min(first + HEAD_SIZE, len(buffer)):
            return False
        self._event_wants_ack = self._prefix > 1 and self._semi_sync_flag(start)
        (self._event_size,) = _LENGTH.unpack_from(buffer, start + first + 9)
        self._event_left = self._event_size
        self._start += first
        self._open_packet(length - self._prefix, more=length == _MAX_PAYLOAD)
        self._in_parts = True
        return True

    def _semi_sync_flag(self, start: int) -> bool:
        """Return whether the event in the packet at ``start`` wants an acknowledgement."""
        mark, flag = self._buffer[start + 5], self._buffer[start + 6]
        if mark != _SEMI_SYNC:
            raise ProtocolError(f"a packet to a semi-synchronous replica has {mark:#04x} where 0xef must be")
        return flag == 1

    def _packet_length(self) -> int:
        """Return the length of the packet at the start of the buffer; its number must be the next."""
        (head,) = _LENGTH.unpack_from(self._buffer, self._start)
        if head >> 24 != self._sequence:
            raise ProtocolError(f"packet number {head >> 24} arrived, expected number {self._sequence}")
        return int(head & _MAX_PAYLOAD)

    def _open_packet(self, size: int, *, more: bool) -> None:
        """Begin a packet with ``size`` bytes of the event that comes in parts."""
        if size > self._event_left or (not more and size != self._event_left):
            raise ProtocolError(
                f"an event of {self._event_size} bytes has {self._event_left} bytes left, and its "
                f"{'next' if more else 'last'} packet {size}"
            )
        self._packet_left = size
        self._more_packets = more
        self._sequence = (self._sequence + 1) & 0xFF

    def _parts(self, pieces: list[EventPiece]) -> bool:
        """Take what is there of an event that comes in parts; return whether there may be more to take."""
        if self._packet_left:
            size = min(self._packet_left, self._end - self._start)
            if not size:
                return False
            data = bytes(self._view[self._start : self._start + size])
            first = self._event_left == self._event_size
            self._start += size
            self._packet_left -= size
            self._event_left -= size
            pieces.append(EventPiece(data, first, not self._event_left, self._event_size))
            return True
        if self._more_packets:
            if self._end - self._start < 4:
                return False
            length = self._packet_length()
            self._start += 4
            self._open_packet(length, more=length == _MAX_PAYLOAD)
            return True
        self._in_parts = False
        if self._event_wants_ack:
            self.wants_ack = True
            self._sequence = 1
        return True


def _raise_status(payload: bytes) -> None:
    """Raise what a payload means that holds no event."""
    status = payload[0]
    if status == 0xFE and len(payload) < 9:
        raise DumpEnd
    if status == 0xFF and len(payload) >= 3:
        (code,) = _U16.unpack_from(payload, 1)
        state, text = "", payload[3:]
        if text[:1] == b"#":
            state, text = text[1:6].decode("ascii", "replace"), text[6:]
        raise ServerError(code, state, text.decode("utf-8", "replace"))
    raise ProtocolError(
        f"a packet of the dump starts with {status:#04x}, which means neither event, error nor end"
    )
