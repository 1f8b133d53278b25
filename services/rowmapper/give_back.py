"""Gives a table that was set aside back: its dead letters are mapped, in their order, then it is set free.

This is done by a row mapper, the only writer of row topics: one that takes over from any other, maps no new
events but those of a transaction that it finds half published, and ends. The rows, and how far the letters
were given back, are written in the same Kafka transactions; the one with the last of them sets the table
free. So this may end anywhere, and go on when it is started again; meanwhile the table stays set aside from
the next letter on, and what is newer waits behind it.

A letter holds the rows event, its table map, and what else its rows need: the events topic is not read. The
letters of a transaction stand between a BEGIN and an END of their own in the transactions topic. A definition
that contradicts a letter gives way to the first one that was read later and agrees, since a table is given
back because somebody has looked at it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Final

from millrace.avro.events import EventDeserializer
from millrace.avro.single_object import SingleObjectError
from millrace.avro.state import QuarantinedTable, RowMapperState, RowsContext, stored_state
from millrace.binlog.errors import BinlogError
from millrace.contract import Topics
from millrace.deadletter.letters import Letter, Unreadable, is_first_waiting, read_letters
from millrace.kafka.pipe import TransactionalProducer
from millrace.kafka.state import read_state
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service, StopRequestedError
from services.rowmapper.app import RowMapper, assembled
from services.rowmapper.assembler import Transaction
from services.rowmapper.incoming import Incoming
from services.rowmapper.mapper import Mapper
from services.rowmapper.publisher import Publication, Publisher, WaitingRows
from services.rowmapper.settings import RowMapperSettings
from services.rowmapper.sink import Sink
from services.rowmapper.tables import Tables

__all__ = ["Drain", "GivenBack", "Settings", "WaitingLetter", "give_back", "waiting_letters"]

Settings: Final = RowMapperSettings
"""The row mapper's own settings, so that rows are written as it writes them."""

_BATCH: Final = 500


@dataclass(slots=True)
class GivenBack:
    """What came of one table; ``failed`` is the key of the first letter that cannot be mapped, and why."""

    table: str
    letters: int = 0
    rows: int = 0
    failed: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class WaitingLetter:
    """Rows that wait, and the offset of their letter in the dead letter topic."""

    offset: int
    rows: WaitingRows


def give_back(
    settings: RowMapperSettings, names: Sequence[str], say: Callable[[str], None], stop: Event
) -> list[GivenBack]:
    """Give back the tables that are named, or all that are set aside; ``say`` is told what is being done.

    Raises :class:`UserError` where a name is that of no table set aside, or a letter is missing.
    """
    service = Service("rowmapper", settings, get_logger(__name__), stop)
    stored = read_state(settings.kafka, settings.source, "rowmapper")
    value = None if stored is None else stored.value
    state = stored_state(RowMapperState, value, Topics(settings.source).state)
    if stored is None or not _chosen(settings.source, () if state is None else state.quarantined, names):
        return []
    say(f"taking over from the row mapper, {stored.owner}: if it still runs, it ends with code 6")
    outcomes: list[GivenBack] = []
    with suppress(StopRequestedError), assembled(service) as parts:
        _settle(service, parts)
        parts.tables.trust_later = True
        for entry in _chosen(settings.source, parts.tables.quarantined, names):
            outcome = GivenBack(entry.name)
            outcomes.append(outcome)
            say(f"giving {outcome.table} back")
            letters = _letters_of(service, parts, entry)
            drain = Drain(
                entry,
                outcome,
                mapper=parts.mapper,
                tables=parts.tables,
                publisher=parts.publisher,
                producer=parts.producer,
            )
            drain.run(letters)
    return outcomes


def _chosen(
    source: str, quarantined: Sequence[QuarantinedTable], names: Sequence[str]
) -> list[QuarantinedTable]:
    known = [entry.name for entry in quarantined]
    for name in names:
        if name not in known:
            raise UserError(
                f"{name} is no table of {source} that is set aside; set aside are: "
                f"{', '.join(known) or 'none'}",
                ExitCode.SETTINGS,
            )
    return [entry for entry in quarantined if not names or entry.name in names]


def _settle(service: Service[RowMapperSettings], parts: RowMapper) -> None:
    """Complete the transaction that the last row mapper has published in part."""
    while not parts.mapper.settled and not service.stop.is_set():
        records = parts.reader.read(_BATCH, 1.0)
        if records:
            parts.mapper.process(records)
    parts.mapper.commit()


def _letters_of(
    service: Service[RowMapperSettings], parts: RowMapper, entry: QuarantinedTable
) -> Iterator[WaitingLetter]:
    settings = service.settings
    found = read_letters(settings.kafka, parts.registry, settings.source, start=entry.letter or 0)

    def watched() -> Iterator[Letter | Unreadable]:
        """Those of other tables may be many: no Kafka transaction waits for all of them."""
        for letter in found:
            if parts.producer.due or service.stop.is_set():
                parts.mapper.commit()
            yield letter

    return waiting_letters(watched(), entry, parts.deserialize, Topics(settings.source).deadletter)


def waiting_letters(
    letters: Iterator[Letter | Unreadable],
    entry: QuarantinedTable,
    deserialize: EventDeserializer,
    topic: str,
) -> Iterator[WaitingLetter]:
    """Yield those of a table that wait; raises :class:`UserError` where one of them may be missing."""
    begun = False
    for letter in letters:
        if isinstance(letter, Unreadable):
            if not begun and entry.letter is None:
                continue
            raise _unreadable(letter.offset, topic, letter.error, entry)
        content = letter.content
        if content.service != "rowmapper" or content.table != entry.name:
            continue
        if not begun:
            begun = is_first_waiting(letter, entry)
            if not begun:
                continue
        if content.context is None:
            raise UserError(
                f"the letter at offset {letter.offset} of {topic} has no table map with it: it was written "
                "by a version that could not give tables back",
                ExitCode.DATA,
            )
        try:
            rows = _waiting_rows(letter, deserialize)
            table_map = rows.table_map
        except (BinlogError, SingleObjectError) as error:
            raise _unreadable(letter.offset, topic, str(error), entry) from error
        if (table_map.database, table_map.table) == (entry.database, entry.table):
            yield WaitingLetter(letter.offset, rows)
    if not begun:
        raise UserError(
            f"the first letter of {entry.name} that waits, {entry.key}, is no longer in {topic}; "
            "'millrace recompute' makes the row topics anew",
            ExitCode.DATA,
        )


def _unreadable(offset: int, topic: str, reason: str, entry: QuarantinedTable) -> UserError:
    return UserError(
        f"the record at offset {offset} of {topic} cannot be read: {reason}. It may hold rows of "
        f"{entry.name}, so that nothing behind it is given back",
        ExitCode.DATA,
    )


def _waiting_rows(letter: Letter, deserialize: EventDeserializer) -> WaitingRows:
    content = letter.content
    assert content.context is not None
    context = RowsContext.from_bytes(content.context)
    return WaitingRows(
        [
            Incoming(
                content.offset,
                content.offset + 1,
                letter.timestamp_ms,
                content.key,
                value,
                deserialize(value),
            )
            for value in (*context.before, content.value)
        ],
        context,
    )


class Drain:
    """Maps the letters of one table; while it does, the state has from it how far it is."""

    def __init__(
        self,
        entry: QuarantinedTable,
        outcome: GivenBack,
        *,
        mapper: Mapper,
        tables: Tables,
        publisher: Publisher,
        producer: TransactionalProducer,
    ) -> None:
        self._entry = entry
        self._outcome = outcome
        self._mapper = mapper
        self._tables = tables
        self._producer = producer
        self._sink = Sink(producer, mapper.commit)
        self._publisher = replace(publisher, sink=self._sink)
        self._at = entry.letter

    def run(self, letters: Iterator[WaitingLetter]) -> None:
        """Map letters until none is left, which sets the table free, or one cannot be mapped."""
        outcome = self._outcome
        publication: Publication | None = None
        transaction = ""
        self._mapper.quarantined = self._quarantined
        for letter in letters:
            if publication is None or letter.rows.context.transaction != transaction:
                self._finish(publication)
                transaction = letter.rows.context.transaction
                publication = self._begin(letter)
            try:
                publication.give_back(letter.rows)
            except BinlogError as error:
                self._finish(publication)
                outcome.failed = letter.rows.events[-1].key.decode(), str(error)
                self._stand_at(letter.offset)
                break
            outcome.letters += 1
        else:
            self._finish(publication)
            self._tables.give_back(self._entry.database, self._entry.table)
        self._mapper.quarantined = None
        self._producer.commit(self._mapper.state())

    def _begin(self, letter: WaitingLetter) -> Publication:
        """Go on to the letters of another transaction."""
        entry, first = self._entry, letter.rows.events[-1]
        self._at = letter.offset
        self._sink.start(entry.published if letter.offset == entry.letter else 0)
        context = letter.rows.context
        return Publication(
            self._publisher, Transaction(context.transaction, first, first, gtid=context.gtid), ()
        )

    def _finish(self, publication: Publication | None) -> None:
        if publication is not None:
            publication.finish()
            self._outcome.rows += publication.outcome.rows
            self._mapper.counters["rows"] += publication.outcome.rows

    def _stand_at(self, offset: int) -> None:
        """Let the table wait from the letter at ``offset`` on."""
        self._tables.update(replace(self._entry, letter=offset, published=0))

    def _quarantined(self) -> tuple[QuarantinedTable, ...]:
        now = replace(self._entry, letter=self._at, published=self._sink.done)
        return tuple(now if other == self._entry else other for other in self._tables.quarantined)
