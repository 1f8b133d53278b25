"""The row mapper's state, rebuilt from the ends of its topics after it was lost or no longer fits them.

The events topic is mapped again from its first record, by the same code, without writing anything. What the
statements before that record made of definitions is in the schemas topic. The output
is compared with the last records of the topics: the state is the one after the latest of them. A topic that
lacks earlier records has lost its end: another run writes them again (:meth:`_Rebuild.write_missing`).

A table that is quarantined meanwhile is released if its topic shows that it was redriven.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from millrace.avro.binary import long
from millrace.avro.events import EventDeserializer
from millrace.avro.records import deserialize, is_dead_letter_of
from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import Rebuilt, RowMapperState
from millrace.contract import HEADER_CHUNK, HEADER_REDRIVEN, EventKey, RawKey, Topics, is_of_rows
from millrace.dead_letters import DeadLetterRecord, read_dead_letters
from millrace.kafka.client import connect
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import held_offsets, source_topics
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.search import last_whole, records_between
from millrace.kafka.state import last_records, newest_offset, oldest_offset
from millrace.kafka.topics import TableTopicInfo, ensure_table_topics, ensure_topics
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.json_format import JsonFormat, envelope_of, json_format
from millrace.rowmapper.ports import Ports
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.stage import RowMapperStage
from millrace.rowmapper.takeover import make_stage
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service
from millrace.stage import Output, OutputRecord, Record, Target

Settings = RowMapperSettings

_BATCH: Final = 500
_COMMIT_BYTES: Final = 8 * 1024 * 1024

_Order = tuple[int, int, int]
"""Of an event: see :attr:`RawKey.order`."""


def rebuild(
    settings: RowMapperSettings, producer: TransactionalProducer, say: Callable[[str], None]
) -> Rebuilt[RowMapperState]:
    """Make the state after the last records of the row topics, and of those beside them."""
    # The registry is asked until the last record is written; the process ends then.
    work = _Rebuild(settings, open_schemas(settings.kafka, settings.registry, settings.source), producer, say)
    state = work.state()
    work.check_history()
    remarks = [
        f"{topic} lacks {count} records before the position that other topics have reached: "
        "they are written again"
        for (topic, _), count in sorted(work.missing.items())
    ]
    remarks += [f"{table.name} has been quarantined since {table.key}" for table in state.quarantined]
    return Rebuilt(state, remarks, work.notes, work.write_missing)


class _Rebuild:
    """Rebuilds the state of the row mapper of one source; ``say`` reports progress."""

    def __init__(
        self,
        settings: RowMapperSettings,
        registry: SchemaStore,
        producer: TransactionalProducer,
        say: Callable[[str], None],
    ) -> None:
        self.missing: Counter[Target] = Counter()
        """Number of records that topics lack from before the state that was found."""
        self.notes: dict[bytes, bytes | None] = {}
        """What is to be written beside the state about the topics of tables."""
        self._settings = settings
        self._service = Service("rowmapper", settings, get_logger(__name__))
        self._registry = registry
        self._json = json_format(settings.rows.format, registry.schema)
        self._producer = producer
        self._say = say
        self._topics = settings.names
        self._admin = connect(settings.kafka)
        ours = self._topics.of_service("rowmapper")
        self._infos = ensure_topics(self._admin, settings.topics, ours.kinds, captured=ours.captured)
        start, end = (find(settings.kafka, self._topics.events) for find in (oldest_offset, newest_offset))
        self._events = range(start, end)
        first = next(records_between(settings.kafka, self._topics.events, start, end), None)
        self._begin = None if first is None else EventKey.parse(first.key or b"").raw.place
        self._tails = self._find_tails()
        self._redriven = self._find_redriven()

    # -- what the topics end with -----------------------------------------------------------------

    def _find_tails(self) -> "dict[Target, _Tail | None]":
        """Find what each partition ends with; None for those that never had a record, or lost all of them."""
        kafka, topics = self._settings.kafka, self._topics
        partitions = source_topics(self._admin, self._settings.source)
        ours = {
            name: count
            for name, count in partitions.items()
            if name in (topics.transactions, topics.ddl, topics.schemas) or is_of_rows(name)
        }
        tails: dict[Target, _Tail | None] = {
            at: self._tail(at[0], record) for at, record in last_records(kafka, ours, _is_in_order).items()
        }
        tails |= dict.fromkeys(self._emptied(ours, tails))
        dead_letter = last_whole(kafka, topics.deadletter, _is_ours)
        if dead_letter is not None:
            tails[topics.deadletter, 0] = self._tail(topics.deadletter, dead_letter)
        return tails

    def _emptied(self, topics: dict[str, int], tails: Container[Target]) -> set[Target]:
        """Find the partitions without a tail that hold no record since their offset 0.

        What lost all of its records may still hold aborted ones, and the ends of their transactions. Where
        retention has deleted all, the first offset is a later one; compaction leaves nothing to tell by.
        """
        bare = {at: held for at, held in held_offsets(self._admin, topics).items() if at not in tails}
        unknown = {at[0] for at, held in bare.items() if held and held.start == 0}
        found = last_records(self._settings.kafka, {name: topics[name] for name in unknown})
        infos = ensure_table_topics(self._admin, self._settings.topics, dict.fromkeys(unknown))
        whole = {
            name for name, info in infos.items() if isinstance(info, TableTopicInfo) and not info.compacted
        }
        return {at for at, held in bare.items() if held.stop == 0 or (at not in found and at[0] in whole)}

    def _tail(self, topic: str, record: Record) -> "_Tail":
        return _Tail(self._registry, self._topics, topic, record)

    def _find_redriven(self) -> dict[str, tuple[_Order, int | None]]:
        """Return by table how far its dead letters were redriven, and the first that waits, if any."""
        dead_letters: dict[str, list[tuple[_Order, int]]] = {}
        for dead_letter in read_dead_letters(self._settings.kafka, self._registry, self._settings.source):
            if (
                isinstance(dead_letter, DeadLetterRecord)
                and dead_letter.content.service == "rowmapper"
                and dead_letter.content.table
            ):
                order = EventKey.parse(dead_letter.content.key).raw.order
                dead_letters.setdefault(dead_letter.content.table, []).append((order, dead_letter.offset))
        if not dead_letters:
            return {}
        partitions = source_topics(self._admin, self._settings.source)
        rows = {name: count for name, count in partitions.items() if is_of_rows(name)}
        found: dict[str, _Order] = {}
        for (topic, _), record in last_records(self._settings.kafka, rows, _is_redriven).items():
            tail = self._tail(topic, record)
            found[tail.table] = max(tail.order, found.get(tail.table, tail.order))
        return {
            table: (order, next((offset for at, offset in dead_letters[table] if at > order), None))
            for table, order in found.items()
            if table in dead_letters
        }

    # -- the state --------------------------------------------------------------------------------

    def state(self) -> RowMapperState:
        """Find the state; :attr:`missing` and :attr:`notes` go with it."""
        found = RowMapperState(self._events.start)
        seen: set[Target] = {at for at, tail in self._tails.items() if tail is None}
        after: Counter[Target] = Counter()
        for stage, output in self._mapped():
            sighted = False
            for at, records in output.groups.items():
                tail = self._tails.get(at)
                for record in records:
                    if at[0] == self._topics.state:
                        self.notes[record[0] or b""] = record[1]
                    elif at in seen:
                        after[at] += record[1] is not None
                    elif tail is not None and tail.is_made_of(record, self._json):
                        seen.add(at)
                        sighted = True
            if sighted:
                found, self.missing = stage.state(), after.copy()
            if len(seen) == len(self._tails):
                break
        return found

    def check_history(self) -> None:
        """Raise UserError where rows are to be written again, and statements that defined them are lost."""
        topics, kafka = self._topics, self._settings.kafka
        rows = sorted(topic for topic, _ in self.missing if is_of_rows(topic))
        if not rows or not self._events.start or not oldest_offset(kafka, topics.schemas):
            return
        raise UserError(
            f"{rows[0]} lacks rows, and the definition of its table is not known: {topics.events} and "
            f"{topics.schemas} have both lost their first records. Nothing was written; 'millrace "
            "reprocess' writes events and rows again from the raw topic",
            ExitCode.DATA,
        )

    def write_missing(self, stored: bytes | None) -> None:
        """Write what topics lack from before the state; ``stored`` is the state as it is until then."""
        if not self.missing:
            return
        begun: set[Target] = {at for at, tail in self._tails.items() if tail is None}
        rest, left = Output(), self.missing.copy()
        written: set[Target] = set()
        """Of these the last record but for tombstones was missing."""
        for _, output in self._mapped():
            for at, records in output.groups.items():
                tail = self._tails.get(at)
                for record in records:
                    key, value, timestamp_ms, headers = record
                    if value is not None:
                        written.discard(at)
                        if at in begun and left[at] > 0:
                            left[at] -= 1
                            written.add(at)
                    if at in written:
                        rest.add(at[0], key, value, timestamp_ms, headers, partition=at[1])
                    elif tail is not None and at not in begun and tail.is_made_of(record, self._json):
                        begun.add(at)
            if rest.size >= _COMMIT_BYTES or not +left:
                self._producer.send(rest if self._json is None else self._json.written(rest))
                self._producer.commit(stored)
                rest.clear()
            if not +left:
                return

    def _mapped(self) -> Iterator[tuple[RowMapperStage, Output]]:
        """Map all events; give the stage and its output wherever a Kafka transaction could end."""
        with ThreadPoolExecutor(1, "registry") as pool, ExitStack() as leave:
            ports = Ports(
                self._service,
                self._admin,
                self._registry,
                pool,
                self._producer,
                self._infos,
                lambda: None,
                leave=leave,
            )
            deserialize_event = EventDeserializer(self._registry)
            history, begin = Catalog(), self._begin
            if begin is not None:
                ports.history(history, begin)
            state = RowMapperState(self._events.start)
            stage, _ = make_stage(ports, state, deserialize_event, history=history, rebuilds=True)
            events = self._events
            records = records_between(self._settings.kafka, self._topics.events, events.start, events.stop)
            for number, batch in enumerate(_batches(records)):
                if number and number % 1000 == 0:
                    self._say(f"at offset {batch[0].offset} of {self._topics.events}")
                for _ in stage.take(batch):
                    self._release(stage.quarantine)
                    yield stage, stage.output
                    stage.output.clear()

    def _release(self, quarantine: Quarantine) -> None:
        """Release quarantined tables of which later rows, or all dead letters, are in their topics."""
        for entry in quarantine.tables:
            since = EventKey.parse(entry.key.encode()).raw.order
            if any(
                tail is not None and tail.table == entry.name and tail.order > since
                for tail in self._tails.values()
            ):
                quarantine.release(entry.database, entry.table)
                continue
            order, waiting = self._redriven.get(entry.name, ((-1, 0, 0), None))
            if order < since:
                continue
            if waiting is None:
                quarantine.release(entry.database, entry.table)
            elif entry.dead_letter != waiting:
                quarantine.update(replace(entry, dead_letter=waiting))


class _Tail:
    """What a partition ends with, and what tells when a second run has come to it.

    Of a record of a row topic, ``order`` is that of its event, and ``table`` its table.
    """

    def __init__(self, registry: SchemaStore, topics: Topics, topic: str, record: Record) -> None:
        value = record.value or b""
        self.order: _Order = (0, 0, 0)
        self.table = ""
        self._key = record.key
        self._registry = registry
        self._identify: Callable[[bytes], object] | None = None
        self._needle = b""
        if topic == topics.transactions:
            self._identify = self._boundary
        elif topic not in (topics.ddl, topics.schemas, topics.deadletter):
            self._identify = self._row
            source = self._envelope(value)["source"]
            self.order = RawKey(0, source["epoch"], source["file"], source["pos"]).order
            self.table = f"{source['db']}.{source['table']}"
            self._needle = source["file"].encode() + long(source["pos"])
        self._identity = None if self._identify is None else self._identify(value)

    def is_made_of(self, record: OutputRecord, json: JsonFormat | None) -> bool:
        """Return whether a record of a second run is this one, whose rows may be in another format."""
        key, value, _, headers = record
        if value is None or self._needle not in value:
            return False
        if key is not None and json is not None and self._identify == self._row:
            key = json.record(key) if key != self._key else key
        if key != self._key:
            return False
        index, _, count = dict(headers or ()).get(HEADER_CHUNK, b"0/1").partition(b"/")
        if int(index) + 1 != int(count):
            return False
        return self._identify is None or self._identify(value) == self._identity

    def _row(self, value: bytes) -> object:
        row = self._envelope(value)
        source = row["source"]
        return source["epoch"], source["file"], source["pos"], source["sub_index"], source["row"], row["op"]

    def _envelope(self, value: bytes) -> dict[str, Any]:
        found: dict[str, Any] = (
            envelope_of(value) if value[:1] == b"{" else deserialize(self._registry, value)
        )
        return found

    def _boundary(self, value: bytes) -> object:
        boundary = deserialize(self._registry, value)
        return tuple(boundary[name] for name in ("status", "id", "epoch", "file", "pos"))


def _is_in_order(record: Record) -> bool:
    """Return whether a record is no tombstone, and in the order of the events."""
    return record.value is not None and HEADER_REDRIVEN not in dict(record.headers or ())


def _is_redriven(record: Record) -> bool:
    return record.value is not None and HEADER_REDRIVEN in dict(record.headers or ())


def _is_ours(record: Record) -> bool:
    return is_dead_letter_of("rowmapper", record.value)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    rest = iter(records)
    while batch := list(islice(rest, _BATCH)):
        yield batch
