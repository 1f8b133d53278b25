"""On one core, without servers: a log file to typed events and values, and through the stages of services."""

import gc
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from prometheus_client import CollectorRegistry

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import RecordSerializer
from millrace.avro.service_state import DecoderState, RowMapperState, TableTopic
from millrace.avro.snapshots import SnapshotMerged
from millrace.binlog.columns.metadata import columns_of
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import RowsEvent, TableMapEvent
from millrace.binlog.file import MAGIC, iter_events
from millrace.binlog.row_images import RowImages
from millrace.binlog.state import StreamState
from millrace.contract import Topics
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.client import connect
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.topics import ensure_topics
from millrace.mysql.packets import EventPiece
from millrace.mysql.position import PositionTracker
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.reader.stage import RawStage
from millrace.rowmapper.ports import Ports
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.takeover import make_stage
from millrace.runtime.imports import spare_garbage_collection
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service
from millrace.runtime.settings import load_settings
from millrace.stage import Output, OutputRecord, Record
from tests.fake_broker import Broker
from tests.stages import Registry

if TYPE_CHECKING:
    from millrace.avro.registry import SchemaRegistry

_BATCH = 500
_REREAD = 100
"""Events, or records, that are taken at once, and that are read a second time; services take as many."""

_SOURCE = "bench"
_NOWHERE = {
    "source": _SOURCE,
    "kafka": {"bootstrap_servers": "nowhere:1"},
    "registry": {"url": "http://nowhere:1"},
}
_KINDS = ("raw", "events", "transactions", "ddl", "deadletter", "catalog", "state")
_END = object()
_T = TypeVar("_T")

ReadRows = Callable[[RowImages, bytes], list[Any]]


@dataclass(frozen=True, slots=True)
class CodecResult:
    """What a log file holds, and the CPU seconds to decode events alone, natural values too, Avro's too."""

    events: int
    rows: int
    megabytes: float
    events_s: float
    natural_s: float
    avro_s: float


def measure_codec(log: Path) -> CodecResult:
    """Decode a log file three times, from its bytes in memory, with every checksum verified."""
    with log.open("rb") as file:
        events = [data for _, data in iter_events(file)]
    events_s, _ = _timed(events, None)
    natural_s, rows = _timed(events, RowImages.decode)
    avro_s, _ = _timed(events, lambda images, data: images.avro(data).rows)
    return CodecResult(len(events), rows, log.stat().st_size / 1e6, events_s, natural_s, avro_s)


def _timed(events: list[bytes], read: ReadRows | None) -> tuple[float, int]:
    state = StreamState()
    readers: dict[tuple[TableMapEvent, bytes, bytes], RowImages] = {}
    rows = 0
    started = time.thread_time()
    for data in events:
        decoded = decode_event(data, state)
        if read is not None and isinstance(decoded.event, RowsEvent):
            assert decoded.table_map is not None
            images = _images(readers, decoded.event, decoded.table_map)
            rows += len(read(images, decoded.event.rows))
    return time.thread_time() - started, rows


def _images(
    readers: dict[tuple[TableMapEvent, bytes, bytes], RowImages], event: RowsEvent, table_map: TableMapEvent
) -> RowImages:
    key = (table_map, event.columns_before_image, event.columns_after_image)
    images = readers.get(key)
    if images is None:
        images = readers[key] = RowImages.of_event(columns_of(table_map), event)
    return images


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a log file holds, and the CPU seconds that each service's stage takes for it."""

    events: int
    rows: int
    cpu_s: dict[str, float]


def measure_stages(log: Path) -> StageResult:
    """Carry a log file through the stages of the three services, wired as theirs, without Kafka.

    What a stage writes is what the next one takes. Kafka's client, commits and the reading of the file are
    left out.
    """
    with _garbage_as_in_a_service(), Broker().installed(), ThreadPoolExecutor(1) as pool:
        stages = _Stages(log, pool)
        stages.run()
    cpu_s = {"reader": stages.reader.cpu_s, "decoder": stages.decoder.cpu_s, "rowmapper": stages.mapper.cpu_s}
    return StageResult(stages.decoder.stage.events, stages.mapper.stage.counters["rows"], cpu_s)


@contextmanager
def _garbage_as_in_a_service() -> Iterator[None]:
    threshold = gc.get_threshold()
    spare_garbage_collection()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


class _Topic:
    """The records of a topic, from the first that may be read again on."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._first = self._taken = 0

    def append(self, written: Sequence[OutputRecord]) -> None:
        end = self._first + len(self._records)
        self._records += [
            Record(offset, timestamp_ms, key, value, headers)
            for offset, (key, value, timestamp_ms, headers) in enumerate(written, end)
        ]

    def batches(self, least: int) -> Iterator[list[Record]]:
        """Yield what was not given yet, as long as there are ``least`` records."""
        while (start := self._taken - self._first) + least <= len(self._records):
            batch = self._records[start : start + _BATCH]
            self._taken += len(batch)
            yield batch

    def read(self, start: int, stop: int) -> Iterator[list[Record]]:
        """Yield records again, in batches as a service reads them."""
        for at in range(start, stop, _REREAD):
            yield self._records[at - self._first : min(at + _REREAD, stop) - self._first]

    def values(self, start: int, stop: int) -> Generator[bytes, None, None]:
        """Yield values again."""
        for record in chain.from_iterable(self.read(start, stop)):
            yield record.value or b""

    def forget(self, before: int) -> None:
        """Let go of the records before an offset."""
        del self._records[: before - self._first]
        self._first = before


class _Measured(Generic[_T]):
    """A stage, the CPU that it takes, and the topic that the next one reads."""

    def __init__(self, stage: _T, output: Output, topic: str) -> None:
        self.stage = stage
        self.written = _Topic()
        self.cpu_s = 0.0
        self._output = output
        self._target = topic, 0

    def run(self, work: Iterator[None]) -> Iterator[None]:
        """Do what a stage has to do; yield wherever it has written something."""
        goes_on = True
        while goes_on:
            started = time.thread_time()
            goes_on = next(work, _END) is not _END
            self.cpu_s += time.thread_time() - started
            self.written.append(self._output.groups.get(self._target, ()))
            self._output.clear()
            yield


class _Stages:
    """The stages of the three services, one after the other."""

    def __init__(self, log: Path, pool: ThreadPoolExecutor) -> None:
        topics, registry = Topics(_SOURCE), cast("SchemaRegistry", Registry())
        reading = load_settings(ReaderSettings, **_NOWHERE, files=str(log))
        mapping = Service("rowmapper", load_settings(RowMapperSettings, **_NOWHERE), get_logger("bench"))
        admin = connect(reading.kafka)
        infos = ensure_topics(admin, reading.topics, {f"{_SOURCE}.{kind}": kind for kind in _KINDS})
        metrics = ReaderMetrics(CollectorRegistry())
        raw = RawStage(topics.raw, infos[topics.raw].record_limit, metrics, None, retry_checksums=False)
        self.reader = _Measured(raw, raw.output, topics.raw)
        # As from a server, which has kernel and tracker, as files have not.
        raw.begin_session(PositionTracker(log.name, len(MAGIC)))
        self._log = log

        serialize = EventSerializer(registry, topics.events)
        form = Format(
            topics,
            serialize,
            RecordSerializer(registry, topics.deadletter, "DeadLetter"),
            infos[topics.events].record_limit,
            infos[topics.deadletter].record_limit,
        )
        decoder = DecoderStage(
            form, DecoderState(0), reread=self.reader.written.values, write_events=serialize.compiled()
        )
        self.decoder = _Measured(decoder, decoder.output, topics.events)

        producer = TransactionalProducer(reading.kafka, _SOURCE, "rowmapper")
        ports = _Ports(mapping, admin, registry, pool, producer, infos, lambda: None, self.decoder.written)
        mapper, _ = make_stage(ports, RowMapperState(0), EventDeserializer(registry))
        self.mapper = _Measured(mapper, mapper.output, "")

    def run(self) -> None:
        """Carry the whole file."""
        now_ms = int(time.time() * 1000)
        with self._log.open("rb") as file:
            pieces = (EventPiece(data, True, True, len(data)) for _, data in iter_events(file))
            while batch := list(islice(pieces, _BATCH)):
                for _ in self.reader.run(self.reader.stage.take(batch, now_ms, due=False)):
                    self._decode(_BATCH)
        self._decode(1)
        self._map(1)

    def _decode(self, least: int) -> None:
        taken = self.reader.written
        for batch in taken.batches(least):
            for _ in self.decoder.run(self.decoder.stage.take(batch)):
                self._map(_BATCH)
            taken.forget(self.decoder.stage.state().place_to_read)

    def _map(self, least: int) -> None:
        taken = self.decoder.written
        for batch in taken.batches(least):
            for _ in self.mapper.run(self.mapper.stage.take(batch)):
                pass
            taken.forget(self.mapper.stage.state().input_offset)


@dataclass(frozen=True, slots=True)
class _Ports(Ports):
    """Those of the row mapper, but for the events that it reads again."""

    events: _Topic

    def noted(self) -> tuple[list[TableTopic], SnapshotMerged]:
        """No table was published before."""
        return [], SnapshotMerged("", 0)

    def replay(self, start: int, stop: int) -> Iterator[Sequence[Record]]:
        """Read records of events a second time."""
        return self.events.read(start, stop)
