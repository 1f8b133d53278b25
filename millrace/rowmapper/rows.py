"""The rows of an event on their way to the topic of their table.

All rows of an event take one way: they are cut into batches, minimal images are completed, the kernel or the
reference writes a batch's records, and only if that succeeds for the whole batch are they put to the output.
Of an event that has several batches all rows are published or none: they are written once before, and the
records discarded.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from millrace.avro.row_records import RowsEventWriter
from millrace.binlog.events import RowsEvent
from millrace.binlog.events.rows import PartialUpdateRowsEvent
from millrace.binlog.row_images import present_ordinals
from millrace.rowmapper.binding import Binder, BoundTable
from millrace.rowmapper.completion import Completion
from millrace.rowmapper.known_rows import RowLayout, Run, ValueTooLargeError
from millrace.rowmapper.logged_rows import EVERYTHING, LoggedRows, RowBatch
from millrace.rowmapper.partition import partition_of
from millrace.rowmapper.transaction_output import Coordinate, OutputFormat, TransactionOutput

_MUCH_TOO_LARGE: Final = 4
"""A value of so many times what a record takes does not fit into one, however few bytes its text has."""

AT_ONCE: Final = 1024 * 1024
"""Bytes of rows that are mapped at once; those of a larger event are mapped batch by batch."""
ROWS_AT_ONCE: Final = 100_000


class RowPublisher:
    """Publishes the rows of events; none where not ``publishes``."""

    def __init__(
        self, binder: Binder, completion: Completion, output_format: OutputFormat, *, publishes: bool
    ) -> None:
        self._publishes = publishes
        self._binder = binder
        self._completion = completion
        self._unpacked_limit = output_format.unpacked_limit

    def selects(self, rows: LoggedRows) -> bool:
        """Return whether rows of an event are published."""
        return self._publishes and self._binder.selection.publishes(
            *rows.name, rows.event.operation, rows.incoming.event.server_id
        )

    def is_undone(self, to: TransactionOutput, rows: LoggedRows) -> bool:
        """Return whether a rollback undid the rows of an event."""
        incoming = rows.incoming
        return to.is_undone(incoming.offset) and self._binder.is_transactional(*rows.name, incoming.position)

    def publish(self, to: TransactionOutput, rows: LoggedRows) -> Iterator[None]:
        """Write the rows of an event to the topic of their table; raises BinlogError where that fails."""
        rows = rows.unpacked(self._unpacked_limit)
        incoming = rows.incoming
        bound = self._binder.bind(rows.table_map, incoming.position, rows.server_version)
        layout = self._completion.layout(rows)
        first = to.done_of(incoming).row
        is_much = incoming.large is not None or _is_much(bound, rows.event)
        if is_much and not first:
            for batch in _batches(bound, rows, first, is_much=is_much):
                self._write(to, bound, rows, batch, [_as_logged(rows, batch)])
        for batch in _batches(bound, rows, first, is_much=is_much):
            records = to.done_of(incoming).records
            for writer in self._write_completed(to, bound, rows, batch, layout):
                self._put(to, bound, rows, writer)
                records += len(writer.records)
            if is_much or first:
                to.done = Coordinate(incoming.offset, batch.first_row + batch.count, records)
                yield
        to.complete(incoming)

    def _write_completed(
        self,
        to: TransactionOutput,
        bound: BoundTable,
        rows: LoggedRows,
        batch: RowBatch,
        layout: RowLayout | None,
    ) -> list[RowsEventWriter]:
        """Write the rows of a batch completed, unless a value is too large that their event lacks."""
        runs = [] if layout is None else self._completion.complete(rows, layout, batch)
        if runs and not batch.references:
            with suppress(ValueTooLargeError):
                return self._write(to, bound, rows, batch, runs)
        return self._write(to, bound, rows, batch, [_as_logged(rows, batch)])

    def _write(
        self, to: TransactionOutput, bound: BoundTable, rows: LoggedRows, batch: RowBatch, runs: Sequence[Run]
    ) -> list[RowsEventWriter]:
        """Write the records of a batch, and leave it to the caller to put them to the output."""
        writers, count = [], 0
        done = to.done_of(rows.incoming).records
        for run in runs:
            writer = RowsEventWriter(
                bound.encoder,
                to.metadata(
                    rows.incoming,
                    bound.schema_source,
                    rows.query,
                    total=to.records + 1 + count,
                    of_table=to.tables.get(bound.name, 0) + 1 + count,
                ),
                run.event.columns_before_image,
                run.event.columns_after_image,
                partial(_locate, bound, rows, batch, run),
                records=bound.encoder.new_records(rows.incoming.timestamp_ms),
                first=done + count,
                references=batch.references,
            )
            bound.write(run.event, writer)
            writers.append(writer)
            count += len(writer.records)
        return writers

    def _put(
        self, to: TransactionOutput, bound: BoundTable, rows: LoggedRows, writer: RowsEventWriter
    ) -> None:
        """Put records to the output."""
        records, timestamp_ms = writer.records, rows.incoming.timestamp_ms
        if not records:
            return
        to.begin()
        output, topic, headers = to.sink.output, bound.topic, to.headers
        noted = self._binder.note(bound)
        if noted is not None:
            output.add(to.sink.topics.state, noted.key, noted.to_bytes(), timestamp_ms)
        if not isinstance(records, list):
            output.add_block(topic, records, timestamp_ms)
        elif bound.encoder.marks:
            for key, value, header in writer.marked(rows.event.operation):
                own = headers if header is None else [*(headers or ()), header]
                partition = partition_of(key, bound.partitions)
                output.add(topic, key, value, timestamp_ms, own, partition=partition)
        elif bound.partitions == 1:
            size = sum([len(value) for _, value in records])
            output.extend(topic, [(key, value, timestamp_ms, headers) for key, value in records], size)
        else:
            for key, value in records:
                partition = partition_of(key, bound.partitions)
                output.add(topic, key, value, timestamp_ms, headers, partition=partition)
        to.count_rows(bound.name, len(records))


def _is_much(bound: BoundTable, event: RowsEvent) -> bool:
    """Return whether rows are mapped batch by batch; partial JSON cannot be."""
    if isinstance(event, PartialUpdateRowsEvent):
        return False
    size = len(event.rows)
    # A row may take a byte, and its record hundreds.
    return size > AT_ONCE or (size > ROWS_AT_ONCE and bound.count(event) > ROWS_AT_ONCE)


def _batches(bound: BoundTable, rows: LoggedRows, first: int, *, is_much: bool) -> Iterable[RowBatch]:
    """Cut rows from the one numbered ``first`` on into batches; most events are one."""
    if not is_much and not first:
        return (RowBatch(rows.event.rows, 0, 0, {}),)
    keep = _MUCH_TOO_LARGE * bound.encoder.record_limit if is_much else EVERYTHING
    return rows.batches(bound.table.columns, keep, first)


def _as_logged(rows: LoggedRows, batch: RowBatch) -> Run:
    """Return the rows of a batch as they are in the log."""
    event = rows.event
    if batch.rows is not event.rows:
        event = replace(event, rows=batch.rows)  # type: ignore[call-arg]  # its subclasses have the field
    return Run(event, batch.first_row, batch.count)


def _locate(bound: BoundTable, rows: LoggedRows, batch: RowBatch, run: Run, *where: int) -> tuple[int, int]:
    """Find a value of a run in its event; raises ValueTooLargeError where that lacks it."""
    row, side, ordinal = where
    found = batch.references.get((row, side, ordinal))
    if found is not None:
        return found
    columns = bound.table.columns
    bitmap = (rows.event.columns_before_image, rows.event.columns_after_image)[side]
    if ordinal not in present_ordinals(bitmap, len(columns)):
        raise ValueTooLargeError("a value is too large for a record, and its event does not contain it")
    return rows.locate(columns, (row + run.first_row, side, ordinal))
