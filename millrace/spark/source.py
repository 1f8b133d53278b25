"""``spark.read.format("millrace")``: the data source, and how Spark runs it.

Spark makes the data source and its readers in processes of their own and pickles them: nothing is kept
between two calls but what the pickled objects have.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millrace.binlog_command.criteria import TablePattern
from millrace.rowmapper.definitions import read_definitions
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import load_settings
from millrace.spark.archive import Archive
from millrace.spark.decoding import NOWHERE, Decoding, prepare_worker, sections_of
from millrace.spark.event_views import EventsView, events_schema
from millrace.spark.files import Fault, Scan, Span, list_files, scan
from millrace.spark.history import defining_records, schema_history
from millrace.spark.options import Options
from millrace.spark.statistics import STATISTICS, SUMS, StatisticsView
from millrace.spark.topic import RawTopic, StreamOffset, TopicSpan
from millrace.spark.views import (
    COUNTED,
    OF_TABLE,
    VIEWS,
    ChangesView,
    CorruptView,
    DecodedView,
    LogDataError,
    RawView,
    faults_batch,
    newest_row,
)


class _Input(Protocol):
    """Where the records come from."""

    def spans(self, *, decoded: bool) -> Sequence[Span | TopicSpan]:
        """Return the parts that are read by themselves."""

    def definitions(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the definitions of tables as read from a server, and the schema history."""


class _Files:
    """Log files; they are looked for once, so that a DataFrame stays the same."""

    def __init__(self, options: Options) -> None:
        assert options.path is not None
        found = list_files(options.path, ignore_missing=options.ignore_missing_files)
        self._found: Scan = scan(found, options.max_partition_bytes)
        self._given = {} if options.definitions is None else read_definitions(Path(options.definitions))
        self._source = options.name
        self._history: Sequence[bytes] | None = None
        if self.faults and not options.permissive and options.view != "_corrupt":
            raise LogDataError(f'{self.faults[0].error} (option("mode", "PERMISSIVE") reads the next file)')

    @property
    def faults(self) -> Sequence[Fault]:
        """What could not be read."""
        return self._found.faults

    def spans(self, *, decoded: bool) -> Sequence[Span]:  # noqa: ARG002 - raw records are cut there too
        """Return the parts that are read by themselves."""
        return self._found.spans

    def definitions(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the schema history, of the statements in the log and the definitions that are given."""
        if self._history is None:
            self._history = schema_history(self._source, self._found.defining, given=self._given)
            self._found.defining.clear()
        return (), self._history


class _Topic:
    """The raw topic, as it is at the time, after what is archived of it; or an archive alone."""

    def __init__(self, topic: RawTopic, options: Options) -> None:
        self.topic = topic
        self._options = options
        self._least = options.min_partitions

    def definitions(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the definitions of tables as read from a server, and the schema history."""
        if self._options.source is not None:
            return self.topic.definitions()
        archive, given = self.topic.archive, self._options.definitions
        statements = () if archive is None else defining_records(archive)
        known = {} if given is None else read_definitions(Path(given))
        return (), schema_history(self._options.name, statements, given=known)

    def spans(self, *, decoded: bool) -> Sequence[TopicSpan]:
        """Return the parts that are read by themselves."""
        return self.topic.spans(self._least, decoded=decoded)


class MillraceDataSource(DataSource):
    """The format ``millrace``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        prepare_worker()
        self.parsed = Options.parse(options)
        self._files: _Files | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns of the view, or of the table by its newest definition in the log."""
        options = self.parsed
        found = self.input()
        if options.table is None or options.view != "changes":
            return from_arrow_schema(_columns_of(options.view), prefer_timestamp_ntz=True)
        columns = self._newest_row(found, options.table)
        for name in columns.names:
            if name.lower() in OF_TABLE.names:
                raise SettingsError([f"{'.'.join(options.table)} has a column {name}: read the view changes"])
        return from_arrow_schema(pa.schema([*columns, *OF_TABLE]), prefer_timestamp_ntz=True)

    def _newest_row(self, log: _Input, table: tuple[str, str]) -> pa.Schema:
        decoding = self.decoding(*log.definitions())
        for span in reversed(log.spans(decoded=True)):
            found = newest_row(decoding, span.described, span.records(), table)
            if found is not None:
                return found
        raise SettingsError([f"{self.parsed.path or log} has no row of {'.'.join(table)}"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the log into columns of a schema."""
        return LogReader(self, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what reads the raw topic as a stream."""
        if self.parsed.path is not None:
            raise SettingsError(
                ['files cannot be read as a stream: read the topic, with option("source", …)']
            )
        return LogStreamReader(self, schema)

    def input(self) -> _Input:
        """Return where the records come from."""
        if self.parsed.path is None:
            return _Topic(self.topic(), self.parsed)
        if self._files is None:
            self._files = _Files(self.parsed)
        return self._files

    def topic(self) -> RawTopic:
        """Return the raw topic of the source, with its archive."""
        options = self.parsed
        archive = None if options.archive is None else Archive.read(options.archive)
        kafka, alone = self._settings().kafka, options.source is None
        return RawTopic(kafka, options.name, options.start, options.end, archive, alone=alone)

    def _settings(self) -> RowMapperSettings:
        options = self.parsed
        kafka = options.kafka if options.source is not None and options.path is None else NOWHERE["kafka"]
        given = {"kafka": kafka} if kafka else {}
        return load_settings(RowMapperSettings, source=options.name, registry=NOWHERE["registry"], **given)

    def decoding(self, catalog: Sequence[bytes], schemas: Sequence[bytes]) -> Decoding:
        """Return how executors decode records."""
        sections = sections_of(self._settings())
        selected, table = self.parsed.selected, self.parsed.table
        if table is not None:
            selected = replace(selected, tables=(TablePattern.parse(".".join(table)),))
        sections["replicate"] |= selected.replicate(sections["replicate"])
        now_ms = int(time.time() * 1000)
        into_rows = self.parsed.view in ("changes", "_corrupt")
        return Decoding(self.parsed.name, into_rows, now_ms, catalog, schemas, sections)


def _columns_of(view: str) -> pa.Schema:
    if view == "events":
        return events_schema()
    if view == "statistics":
        return STATISTICS
    return SUMS[view] if view in SUMS else VIEWS[view]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema of Spark as one of Arrow; Spark 4.2 and later have to be told the time zone."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


class _Reading:
    """How executors read a span into columns."""

    def __init__(self, options: Options, schema: StructType, decoding: Decoding | None) -> None:
        self._options = options
        self._layout = arrow_schema(schema)
        self._decoding = decoding

    def read(self, span: Span | TopicSpan, decoding: Decoding | None = None) -> Iterator[pa.RecordBatch]:
        """Read a span into batches."""
        prepare_worker()
        options, layout = self._options, self._layout
        if options.view == "raw":
            raw = RawView(layout)
            for records in span.linked(previous="previous" in layout.names):
                yield raw.batch(records)
            return
        known = decoding or self._decoding
        assert known is not None
        fail = not options.permissive
        view: DecodedView
        match options.view:
            case "_corrupt":
                view = CorruptView(known, layout, fail=False)
            case "events":
                view = EventsView(known, layout, fail=fail)
            case one if one in COUNTED:
                view = StatisticsView(known, layout, fail=fail, kind=one if one in SUMS else None)
            case _:
                selected = options.selected
                view = ChangesView(known, layout, fail=fail, table=options.table, selected=selected)
        for before in span.prepared() if isinstance(view, ChangesView | CorruptView) else ():
            view.begin(*before)
        if span.described is not None:
            view.begin(span.described)
        dated = isinstance(view, StatisticsView) and view.dated
        for records in span.records(dated=dated):
            yield from view.take(records)
        yield from view.rest()

    def read_faults(self, faults: Sequence[Fault]) -> pa.RecordBatch:
        """Return what the driver could not read."""
        return faults_batch(faults, self._layout)


@dataclass
class _Faults(InputPartition):
    """What the driver could not read."""

    faults: Sequence[Fault]


class LogReader(DataSourceReader):
    """Reads the log as a batch."""

    def __init__(self, source: MillraceDataSource, schema: StructType) -> None:
        options = source.parsed
        self._input: _Input | None = source.input()
        self._decoded = options.view != "raw"
        self._lists_faults = options.view == "_corrupt"
        decoding = source.decoding(*self._input.definitions()) if self._decoded else None
        self._reading = _Reading(options, schema, decoding)

    def partitions(self) -> list[InputPartition]:
        """Return the spans, each decoded by itself."""
        assert self._input is not None
        found: list[InputPartition] = list(self._input.spans(decoded=self._decoded))
        if self._lists_faults and isinstance(self._input, _Files) and self._input.faults:
            found.append(_Faults(self._input.faults))
        return found

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a partition into batches."""
        if isinstance(partition, _Faults):
            yield self._reading.read_faults(partition.faults)
        elif isinstance(partition, Span | TopicSpan):
            yield from self._reading.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need."""
        return {**self.__dict__, "_input": None}


@dataclass
class _Stretch(InputPartition):
    """A span of a micro-batch, and the definitions that are known by then."""

    span: TopicSpan
    decoding: Decoding | None


def _offset_of(reached: StreamOffset) -> dict[str, Any]:
    """Return an offset of a stream as Spark keeps it."""
    return {name: value for name, value in asdict(reached).items() if value is not None}


_LIMITS: Any = None
with suppress(ModuleNotFoundError):  # Spark 4.1 has no such limits
    _LIMITS = import_module("pyspark.sql.streaming.datasource")
_AVAILABLE_NOW: Any = object if _LIMITS is None else _LIMITS.SupportsTriggerAvailableNow
_EVERYTHING: Any = () if _LIMITS is None else _LIMITS.ReadAllAvailable


class LogStreamReader(DataSourceStreamReader, _AVAILABLE_NOW):  # type: ignore[misc]
    """Reads the raw topic as a stream, whose offsets lie where no transaction is open."""

    def __init__(self, source: MillraceDataSource, schema: StructType) -> None:
        prepare_worker()
        self._source: MillraceDataSource | None = source
        self._options = source.parsed
        self._decoded = self._options.view != "raw"
        self._reading = _Reading(self._options, schema, None)
        self._reached: StreamOffset | None = None
        self._until: int | None = None

    @cached_property
    def _topic(self) -> RawTopic:
        assert self._source is not None
        return self._source.topic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where the stream begins."""
        self._reached = self._topic.beginning(decoded=self._decoded)
        return _offset_of(self._reached)

    def latestOffset(  # noqa: N802 - Spark's
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends, at most ``maxOffsetsPerTrigger`` offsets further.

        Spark 4.2 and later say where it begins, and whether it is to have everything. With Spark 4.1 a new
        query asks for this before anything else, and one that is continued has asked for partitions.
        """
        known = self._reached if start is None else StreamOffset(**start)
        begin = known or self._topic.beginning(decoded=self._decoded)
        limits = [] if isinstance(limit, _EVERYTHING) else [self._options.max_offsets]
        if self._until is not None:
            limits.append(max(self._until - begin.offset, 0))
        most = min((one for one in limits if one is not None), default=None)
        end = begin if most == 0 else self._topic.next_end(begin, most, decoded=self._decoded)
        if self._until is not None and end.offset > self._until:
            end = begin
        self._reached = end
        return _offset_of(end)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's
        """Return how much a micro-batch may have; Spark 4.2 and later ask for it."""
        most = self._options.max_offsets
        return _LIMITS.ReadAllAvailable() if most is None else _LIMITS.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Read no further than to where the topic ends now; Spark 4.2 and later ask for it."""
        self._until = self._topic.extent()[1].stop

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the spans of a micro-batch.

        After a restart Spark asks for those between the last offset and itself, which tells where that is.
        """
        begin, stop = StreamOffset(**start), StreamOffset(**end)
        if self._reached is None or self._reached.offset < stop.offset:
            self._reached = stop
        if begin.offset > stop.offset:
            raise LogDataError(f"a micro-batch from offset {begin.offset} back to {stop.offset}")
        if begin.offset == stop.offset:
            return []
        topic, decoding = self._topic, None
        if self._decoded:
            assert self._source is not None
            decoding = self._source.decoding(*topic.definitions())
        least = self._options.min_partitions
        spans = topic.between(begin, stop.offset, least, decoded=self._decoded)
        return [_Stretch(span, decoding) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a span into batches."""
        assert isinstance(partition, _Stretch)
        yield from self._reading.read(partition.span, partition.decoding)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: what Spark has committed stands in its checkpoint alone."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need."""
        return {name: value for name, value in self.__dict__.items() if name != "_topic"} | {"_source": None}
