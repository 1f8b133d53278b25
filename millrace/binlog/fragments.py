"""Rows events put together from the pieces in which MariaDB 12.3 logs one that is too large.

``binlog_row_event_fragment_threshold`` says how large that is. The pieces, PARTIAL_ROW_DATA_EVENT (172),
stand one after the other and after the TABLE_MAP of the rows. Joined they are the whole rows event, common
header included (nothing else tells its type), without a checksum. Format: "PARTIAL_ROW_DATA_EVENT" in
MariaDB's replication protocol.
"""

from millrace.binlog.checksum import CHECKSUM_LENGTH, checksum_matches
from millrace.binlog.declaration import EVENTS
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.mariadb import PartialRowDataEvent
from millrace.binlog.events.rows import RowsEvent
from millrace.binlog.header import HEADER_LENGTH

__all__ = ["PartialRowsAssembler", "rows_event_of"]


class PartialRowsAssembler:
    """Takes the pieces as they come and gives the rows event after the last one.

    What it holds is bounded by the event's size, which the first piece tells. A group that is not finished
    ends where the next one begins, or with :meth:`clear`.
    """

    __slots__ = ("_held", "_parts", "_size", "_total")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the pieces of an event that is not complete: the log ends, or another event interrupts."""
        self._parts: list[bytes] = []
        self._held = 0
        self._total = 0
        self._size: int | None = None

    @property
    def is_open(self) -> bool:
        """True between the first piece of an event and its last."""
        return bool(self._parts)

    @property
    def held_bytes(self) -> int:
        """How many bytes of an event are held."""
        return self._held

    def feed(self, event: PartialRowDataEvent) -> bytes | None:
        """Take the next piece; give the bytes of the rows event if it is the last one, else None.

        Decode them in the state of :meth:`millrace.binlog.state.StreamState.for_payload`: a checksum after
        them is left out. The ``event_size`` in their header is corrected; of what is larger than 4 GiB it
        holds the lower 32 bits. Raises InvalidValueError where a piece is missing or the sizes do not agree,
        and forgets the event.
        """
        if event.seq_no == 1:
            self.clear()
            self._total, self._size = event.total_fragments, event.orig_event_size
        try:
            self._check(event)
        except InvalidValueError:
            self.clear()
            raise
        self._parts.append(event.data)
        self._held += len(event.data)
        if event.seq_no < self._total:
            return None
        whole = b"".join(self._parts)
        expected = self._size
        self.clear()
        if expected is not None and expected != len(whole):
            raise InvalidValueError(f"the fragments of a rows event have {len(whole)} of {expected} bytes")
        if len(whole) < HEADER_LENGTH:
            raise InvalidValueError(f"the fragments of a rows event have {len(whole)} bytes, no whole header")
        if checksum_matches(whole):
            whole = whole[:-CHECKSUM_LENGTH]
        return whole[:9] + (len(whole) & 0xFFFFFFFF).to_bytes(4, "little") + whole[13:]

    def _check(self, event: PartialRowDataEvent) -> None:
        if (event.seq_no, event.total_fragments) != (len(self._parts) + 1, self._total):
            raise InvalidValueError(
                f"fragment {event.seq_no} of {event.total_fragments} of a rows event, "
                f"where {len(self._parts) + 1} of {self._total or 'any number'} was to come"
            )
        if event.seq_no > event.total_fragments:
            raise InvalidValueError(f"fragment {event.seq_no} of {event.total_fragments} of a rows event")
        if self._size is not None and self._held + len(event.data) > self._size:
            raise InvalidValueError(f"the fragments of a rows event have more than its {self._size} bytes")


def rows_event_of(whole: bytes) -> RowsEvent:
    """Decode what :meth:`PartialRowsAssembler.feed` gave, where no state is at hand: by MariaDB's layout.

    Raises MalformedError where it is no rows event of MariaDB.
    """
    declaration = EVENTS.get(whole[4])
    if declaration is None or not issubclass(declaration.event_class, RowsEvent):
        raise InvalidValueError(f"the fragments of a rows event make an event of type {whole[4]}")
    event = declaration.decode(whole, HEADER_LENGTH, len(whole), declaration.post_header_lengths[-1])
    assert isinstance(event, RowsEvent)
    return event
