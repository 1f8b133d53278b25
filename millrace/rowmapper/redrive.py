"""Redrives quarantined tables: their dead letters are mapped, in their order, then they are released.

This is done by a row mapper, the only writer of row topics: it takes over from any other, maps no new events
except those of a partly published transaction, and exits. The rows, and the progress of the redrive, are
written in the same Kafka transactions; the last one releases the table. So a redrive may be interrupted
anywhere and resumes at the next start; meanwhile the table stays quarantined from the next dead letter on,
and newer rows wait after it.

A dead letter holds the rows event, its table map, and what else its rows need: the events topic is not read.
The dead letters of a transaction get a BEGIN and an END of their own in the transactions topic. If a
definition contradicts a dead letter, the first later one that agrees with it is used, which must have been
read before the next statement that may have changed the table. A topic that was
created again is accepted as it is, since an operator started the redrive.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Event
from typing import Final

from millrace.avro.events import EventDeserializer
from millrace.avro.service_state import (
    Progress,
    QuarantinedTable,
    RowMapperState,
    RowsContext,
    stored_state,
)
from millrace.avro.single_object import SingleObjectError
from millrace.binlog.errors import BinlogError
from millrace.contract import HEADER_REDRIVEN
from millrace.dead_letters import DeadLetterRecord, Unreadable, is_first_waiting, read_dead_letters
from millrace.kafka.errors import FencedError
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.refusals import TopicsRefusedError
from millrace.kafka.state import oldest_offset, read_state
from millrace.rowmapper.assembly import Transaction
from millrace.rowmapper.dead_letters import WaitingRows
from millrace.rowmapper.event_reader import Incoming
from millrace.rowmapper.publication import Publication
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.snapshot_topic import end_before
from millrace.rowmapper.stage import RowMapperStage
from millrace.rowmapper.takeover import RowMapper, assembled
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service

"""The row mapper's own settings, so that rows are written as it writes them."""

_BATCH: Final = 500


@dataclass(slots=True)
class Redriven:
    """The result for one table; ``failed`` is the key of a dead letter that cannot be mapped, and why."""

    table: str
    dead_letters: int = 0
    rows: int = 0
    failed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class WaitingDeadLetter:
    """Rows that wait, and the offset of their dead letter in its topic."""

    offset: int
    rows: WaitingRows


def redrive(
    settings: RowMapperSettings, names: Sequence[str], say: Callable[[str], None], stop: Event
) -> list[Redriven]:
    """Redrive the tables that are named, or all that are quarantined but not paused.

    ``say`` reports progress. A table whose topic refuses rows stays quarantined; it is restarted
    with the others. Raises :class:`UserError` where a name is that of no quarantined table, or a dead letter
    is missing.
    """
    service = Service("rowmapper", settings, get_logger(__name__), stop)
    stored = read_state(settings.kafka, settings.source, "rowmapper")
    value = None if stored is None else stored.value
    state = stored_state(RowMapperState, value, settings.names.state)
    chosen = _chosen(settings.source, () if state is None else state.quarantined, names)
    if stored is None or not chosen:
        return []
    say(f"taking over from the row mapper, {stored.owner}: if it still runs, it waits")
    outcomes: dict[str, Redriven] = {}
    done: set[str] = set()
    refused: dict[str, str] = {}
    own = settings.names.of_service("rowmapper").kinds

    def map_left() -> None:
        with assembled(service, refused, all_versions=True, role="deadletter redrive") as parts:
            settle(parts, stop)
            left = [entry.name for entry in chosen if entry.name not in done]
            _redrive(service, parts, left, say, outcomes=outcomes, done=done)

    with suppress(StopRequestedError):
        while True:
            try:
                in_place_of_service(map_left)
            except TopicsRefusedError as error:
                if not own.keys().isdisjoint(error.topics) or refused.keys() >= error.topics.keys():
                    raise
                refused |= error.topics
            else:
                break
    return list(outcomes.values())


def _redrive(
    service: Service[RowMapperSettings],
    parts: RowMapper,
    names: Sequence[str],
    say: Callable[[str], None],
    *,
    outcomes: dict[str, Redriven],
    done: set[str],
) -> None:
    """Redrive tables one after the other; those that are done are added to ``done``.

    Raises :class:`TopicsRefusedError` where the topic of one refuses: that one is done as well.
    """
    stop, kafka = service.stop, service.settings.kafka
    reached = end_before(kafka, parts.topics.events, parts.deserialize, parts.stage.next_offset)
    parts.binder.trust_later(reached)
    for entry in parts.stage.quarantine.tables:
        if entry.name not in names:
            continue
        outcome = outcomes.setdefault(entry.name, Redriven(entry.name))
        say(f"redriving {outcome.table}")
        work = Redrive(entry, outcome, parts.stage)
        committer, output = parts.committer, parts.stage.output
        committed = replace(outcome)
        try:
            for _ in work.run(_dead_letters_of(service, parts, entry)):
                committer.settle(output, work.state())
                if committer.due:
                    committer.commit()
                    committed = replace(outcome)
                if stop.is_set():
                    committer.commit()
                    raise StopRequestedError
            committer.settle(output, work.state())
            committer.commit()
            done.add(entry.name)
        except FencedError:
            outcomes[entry.name] = committed
            raise
        except TopicsRefusedError as error:
            outcomes[entry.name] = replace(committed, failed=(entry.key, error.message))
            done.add(entry.name)
            raise


def chosen_tables(settings: RowMapperSettings, names: Sequence[str]) -> list[QuarantinedTable]:
    """Return the quarantined tables of the names; raises :class:`UserError` where a name is that of none."""
    stored = read_state(settings.kafka, settings.source, "rowmapper")
    value = None if stored is None else stored.value
    state = stored_state(RowMapperState, value, settings.names.state)
    return _chosen(settings.source, () if state is None else state.quarantined, names)


def _chosen(
    source: str, quarantined: Sequence[QuarantinedTable], names: Sequence[str]
) -> list[QuarantinedTable]:
    known = [entry.name for entry in quarantined]
    for name in names:
        if name not in known:
            raise UserError(
                f"{name} is not a quarantined table of {source}; quarantined are: "
                f"{', '.join(known) or 'none'}",
                ExitCode.SETTINGS,
            )
    return [entry for entry in quarantined if (entry.name in names if names else not entry.is_paused)]


def settle(parts: RowMapper, stop: Event) -> None:
    """Complete the transaction that the last row mapper has published in part."""
    while not parts.stage.settled and not stop.is_set():
        records = parts.reader.read(_BATCH, 1.0)
        for _ in parts.stage.take(records) if records else ():
            parts.committer.settle(parts.stage.output, parts.stage.state())
            if parts.committer.due:
                parts.committer.commit()
    parts.committer.commit()


def _dead_letters_of(
    service: Service[RowMapperSettings], parts: RowMapper, entry: QuarantinedTable
) -> Iterator[WaitingDeadLetter]:
    settings = service.settings
    topic, start = settings.names.deadletter, entry.dead_letter or 0
    if not entry.knows_first and oldest_offset(settings.kafka, topic) > start:
        raise _first_lost(entry, topic)
    found = read_dead_letters(settings.kafka, parts.registry, settings.source, start=start)

    def watched() -> Iterator[DeadLetterRecord | Unreadable]:
        """Those of other tables may be many: no Kafka transaction waits for all of them."""
        for dead_letter in found:
            parts.committer.tick()
            yield dead_letter

    return waiting_dead_letters(watched(), entry, parts.deserialize, topic)


def waiting_dead_letters(
    dead_letters: Iterator[DeadLetterRecord | Unreadable],
    entry: QuarantinedTable,
    deserialize: EventDeserializer,
    topic: str,
) -> Iterator[WaitingDeadLetter]:
    """Yield those of a table that wait; raises :class:`UserError` where one of them may be missing."""
    begun = False
    for dead_letter in dead_letters:
        if isinstance(dead_letter, Unreadable):
            if not begun and entry.dead_letter is None:
                continue
            raise _unreadable(dead_letter.offset, topic, dead_letter.error, entry)
        content = dead_letter.content
        if content.service != "rowmapper" or content.table != entry.name:
            continue
        if not begun:
            begun = is_first_waiting(dead_letter.outline, entry)
            if not begun:
                continue
        if content.context is None:
            raise UserError(
                f"the dead letter at offset {dead_letter.offset} of {topic} has no table map: it was "
                "written by a version that could not redrive",
                ExitCode.DATA,
            )
        try:
            rows = _waiting_rows(dead_letter, deserialize)
            table_map = rows.table_map
        except (BinlogError, SingleObjectError) as error:
            raise _unreadable(dead_letter.offset, topic, str(error), entry) from error
        if (table_map.database, table_map.table) == (entry.database, entry.table):
            yield WaitingDeadLetter(dead_letter.offset, rows)
    if not begun and entry.key:
        raise _first_lost(entry, topic)


def discard(
    settings: RowMapperSettings, names: Sequence[str], say: Callable[[str], None], stop: Event
) -> dict[str, int]:
    """Return up the dead letters of quarantined tables and release them; return their number by table."""
    service = Service("rowmapper", settings, get_logger(__name__), stop)
    say("taking over from the row mapper: if one still runs, it waits")
    found = {}

    def give_up() -> None:
        with assembled(service, all_versions=True, role="deadletter discard") as parts:
            settle(parts, stop)
            quarantine = parts.stage.quarantine
            counts = dict(quarantine.waiting)
            for entry in quarantine.tables:
                if entry.name not in names or stop.is_set():
                    continue
                work = Redrive(entry, Redriven(entry.name), parts.stage)
                waiting: Iterator[WaitingDeadLetter] = iter(())
                if entry.progress is not None:
                    waiting = _dead_letters_of(service, parts, entry)
                work.discard(waiting)
                found[entry.name] = counts.get(entry.name, 0)
                parts.stage.counters["dead_letters_discarded"] += found[entry.name]
            parts.committer.settle(parts.stage.output, parts.stage.state())
            parts.committer.commit()

    in_place_of_service(give_up)
    return found


def _first_lost(entry: QuarantinedTable, topic: str) -> UserError:
    first = f"the first dead letter of {entry.name} that waits{entry.key and f', {entry.key},'}"
    return UserError(
        f"{first} is no longer in {topic}: rows of this table were deleted before they were published. "
        "Nothing was redriven; 'millrace reprocess' writes the row topics again from the raw topic, and "
        "'millrace deadletter discard' goes on without these rows",
        ExitCode.DATA,
    )


def _unreadable(offset: int, topic: str, reason: str, entry: QuarantinedTable) -> UserError:
    return UserError(
        f"the record at offset {offset} of {topic} cannot be read: {reason}. It may hold rows of "
        f"{entry.name}, so nothing after it is redriven",
        ExitCode.DATA,
    )


def _waiting_rows(dead_letter: DeadLetterRecord, deserialize: EventDeserializer) -> WaitingRows:
    """Make the events of a dead letter; their offsets are that of the dead letter in its topic."""
    content = dead_letter.content
    assert content.context is not None
    context = RowsContext.from_bytes(content.context)
    return WaitingRows(
        [
            Incoming(
                dead_letter.offset,
                dead_letter.offset + 1,
                dead_letter.timestamp_ms,
                content.key,
                value,
                deserialize(value),
            )
            for value in (*context.before, content.value)
        ],
        context,
    )


class Redrive:
    """Maps the dead letters of one table; meanwhile the state says how far it is."""

    def __init__(self, entry: QuarantinedTable, outcome: Redriven, stage: RowMapperStage) -> None:
        self._entry = entry
        self._outcome = outcome
        self._stage = stage
        self._publication: Publication | None = None

    def state(self) -> RowMapperState:
        """Return the row mapper's state after everything that was written up to the last yield."""
        state, publication = self._stage.state(), self._publication
        if publication is None:
            return state
        now = replace(self._entry, progress=publication.progress)
        return replace(
            state,
            quarantined=tuple(now if other.name == now.name else other for other in state.quarantined),
        )

    def run(self, dead_letters: Iterator[WaitingDeadLetter]) -> Iterator[None]:
        """Map dead letters until none is left, which releases the table, or one cannot be mapped."""
        outcome, transaction = self._outcome, ""
        rows_before = self._stage.counters["rows"]
        for waiting in dead_letters:
            publication = self._publication
            if publication is None or waiting.rows.context.transaction != transaction:
                transaction = waiting.rows.context.transaction
                publication = self._begin(waiting)
            try:
                yield from publication.redrive(waiting.rows)
            except BinlogError as error:
                outcome.failed = waiting.rows.events[-1].key.decode(), str(error)
                done = publication.progress
                self._end(waiting.offset)
                if done is not None and done.offset == waiting.offset:
                    # Some of its rows are published, by a version that could map them.
                    rest = Progress(done.offset, done.row, done.records)
                    self._stage.quarantine.update(replace(self._entry, progress=rest))
                break
            outcome.dead_letters += 1
            self._stage.counters["dead_letters_redriven"] += 1
            outcome.rows = self._stage.counters["rows"] - rows_before
            yield
        else:
            self._end(None)
            self._stage.quarantine.release(self._entry.database, self._entry.table)
        outcome.rows = self._stage.counters["rows"] - rows_before

    def discard(self, dead_letters: Iterator[WaitingDeadLetter]) -> None:
        """Release the table; end the transaction that an interrupted redrive has published in part."""
        with suppress(UserError):  # the dead letter is gone, and nothing tells what it was of
            for waiting in islice(dead_letters, 1):
                self._begin(waiting)
                self._end(None)
        self._stage.quarantine.release(self._entry.database, self._entry.table)

    def _begin(self, waiting: WaitingDeadLetter) -> Publication:
        """Go on to the dead letters of another transaction."""
        self._end(waiting.offset)
        first, context = waiting.rows.events[-1], waiting.rows.context
        transaction = Transaction(
            context.transaction,
            first,
            first,
            server_version=context.server_version,
            gtid=context.gtid,
            committed_us=context.committed_us,
        )
        self._publication = self._stage.publication(
            transaction, progress=self._entry.progress, headers=[(HEADER_REDRIVEN, b"1")]
        )
        return self._publication

    def _end(self, offset: int | None) -> None:
        """End the transaction at hand; the table waits from the dead letter at ``offset`` on."""
        if self._publication is not None:
            self._publication.end()
            self._publication = None
            self._entry = replace(self._entry, progress=None)
        if offset is not None and self._entry.dead_letter != offset:
            self._entry = replace(self._entry, dead_letter=offset)
            self._stage.quarantine.update(self._entry)
