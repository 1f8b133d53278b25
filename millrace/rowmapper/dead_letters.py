"""Writes events that could not be published to the dead letter topic, and reads their rows back.

A dead letter of a rows event holds the event, its table map, and what else its rows need.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Self

from millrace.avro.records import DeadLetter
from millrace.avro.service_state import RowsContext
from millrace.binlog.errors import BinlogError, InvalidValueError
from millrace.binlog.events import PartialRowDataEvent, RowsEvent, TableMapEvent
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.contract import HEADER_TABLE
from millrace.kafka.chunks import split, split_parts
from millrace.rowmapper.event_reader import Incoming, Unreadable
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.transaction_output import OutputFormat, TransactionOutput
from millrace.runtime.errors import UserError


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """A rows event that waited in the dead letter topic: the last event of ``events``, after its table map.

    Where it came in fragments, these are between the two.
    """

    events: Sequence[Incoming]
    context: RowsContext

    @property
    def table_map(self) -> TableMapEvent:
        """The table map; raises InvalidValueError where the first event is none."""
        event = self.events[0].event.event
        if not isinstance(event, TableMapEvent):
            raise InvalidValueError(f"a dead letter has {type(event).__name__} instead of its table map")
        return event

    def rows_event(self) -> RowsEvent:
        """Return the rows, fragments joined; raises BinlogError where that fails."""
        if len(self.events) == 2 and isinstance(event := self.events[1].event.event, RowsEvent):
            return event
        assembler = PartialRowsAssembler()
        whole = None
        for incoming in self.events[1:]:
            fragment = incoming.event.event
            if not isinstance(fragment, PartialRowDataEvent):
                raise InvalidValueError(f"a dead letter has {type(fragment).__name__} instead of rows")
            whole = assembler.feed(fragment)
        rows = None if whole is None else rows_event_of(whole)
        if rows is None:
            raise InvalidValueError("a dead letter has only a part of its rows event")
        return rows


class Reason(NamedTuple):
    """Why an event is a dead letter: the class of the error, and its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the reason that an error gives."""
        text = error.message if isinstance(error, BinlogError | UserError) else str(error)
        return cls(type(error).__name__, text)


class DeadLetterPublisher:
    """Writes dead letters."""

    def __init__(self, quarantine: Quarantine, output_format: OutputFormat) -> None:
        self._quarantine = quarantine
        self._serialize = output_format.serialize_dead_letter
        self._limit = output_format.deadletter_limit

    def publish(
        self,
        to: TransactionOutput,
        incoming: Incoming | Unreadable,
        reason: Reason,
        table: str | None = None,
        context: RowsContext | None = None,
    ) -> Iterator[None]:
        """Write an event to the dead letter topic, whole."""
        sink, limit = to.sink, self._limit
        large = incoming.large if isinstance(incoming, Incoming) else None
        at = incoming.position
        content = DeadLetter(
            service="rowmapper",
            topic=sink.topics.events,
            offset=incoming.offset,
            key=incoming.key,
            value=b"" if large is not None else incoming.value,
            epoch=at.epoch,
            log_file=at.log_file,
            position=at.position,
            error_class=reason.kind,
            error=reason.text,
            table=table,
            context=None if context is None else context.to_bytes(),
        ).to_dict()
        if large is None:
            whole = self._serialize(content)
            fingerprint = zlib.crc32(whole)
            pieces = split(whole, limit)
        else:
            before, after = self._serialize.around(content, "value", large.value.size)
            size = len(before) + large.value.size + len(after)
            fingerprint = zlib.crc32(after, zlib.crc32(before))
            pieces = split_parts(chain((before,), large.pieces(), (after,)), size, limit)
        fingerprint ^= limit
        done = to.done_of(incoming)
        # Chunks that were cut from something else are written again, from the first: readers forget the
        # others.
        skip = done.part if done.fingerprint == fingerprint else 0
        named = [] if table is None else [(HEADER_TABLE, table.encode("utf-8", "replace"))]
        for index, (header, piece) in enumerate(pieces):
            if index < skip:
                continue
            headers = [*([] if header is None else [header]), *named] or None
            sink.output.add(sink.topics.deadletter, incoming.key, piece, incoming.timestamp_ms, headers)
            if header is not None:
                to.done = done._replace(part=index + 1, fingerprint=fingerprint)
                yield
        sink.counters["dead_letters"] += 1
        if table is not None:
            self._quarantine.waiting[table] += 1
        to.complete(incoming)
