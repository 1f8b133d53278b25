"""``spark.read.format("millrace")``: the data source, its options, and how Spark runs it."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millrace.contract import source_problem
from millrace.rowmapper.definitions import read_definitions
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.spark.decoding import NOWHERE, Decoding, prepare_worker, sections_of
from millrace.spark.files import Fault, Scan, Span, list_files, read_span, scan
from millrace.spark.history import schema_history
from millrace.spark.views import (
    OF_TABLE,
    VIEWS,
    ChangesView,
    CorruptView,
    LogDataError,
    RawView,
    faults_batch,
    newest_row,
)

_MODES: Final = ("FAILFAST", "PERMISSIVE")
_SPAN_BYTES: Final = 64 << 20
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]+)\s*(?:([kmg])b?|b)?", re.IGNORECASE)
_TABLE: Final = re.compile(r"(?:`((?:[^`]|``)+)`|([^.`]+))\.(?:`((?:[^`]|``)+)`|([^`]+))")
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_$]+")
"""Names that mean themselves in the settings of a row mapper."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read, as the user gave them."""

    path: str
    source: str = "log"
    view: str = "changes"
    table: tuple[str, str] | None = None
    mode: str = "FAILFAST"
    definitions: str | None = None
    ignore_missing_files: bool = False
    max_partition_bytes: int = _SPAN_BYTES

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check options; raises SettingsError, which names all that are wrong."""
        values: dict[str, Any] = {}
        problems = []
        for name, text in given.items():
            known = _OPTIONS.get(name.lower())
            if known is None:
                problems.append(f"option {name!r} is not known: expected {', '.join(_NAMES)}")
                continue
            field, read = known
            try:
                values[field] = read(text)
            except ValueError as error:
                problems.append(f"option {name!r} is {text!r}: {error}")
        if "path" not in values:
            problems.append('a path is missing: .load("/var/lib/mysql/mysql-bin.*")')
        if "table" in values and values.setdefault("view", "changes") not in ("changes", "_corrupt"):
            problems.append(f"option 'table' has no meaning for the view {values['view']!r}")
        if problems:
            raise SettingsError(problems)
        return cls(**values)

    @property
    def permissive(self) -> bool:
        """Whether what cannot be read is left out."""
        return self.mode == "PERMISSIVE"


def _one_of(*names: str) -> Any:
    def read(text: str) -> str:
        found = {name.lower(): name for name in names}.get(text.lower())
        if found is None:
            raise ValueError(f"expected {' or '.join(names)}")
        return found

    return read


def _switch(text: str) -> bool:
    return bool(_one_of("true", "false")(text) == "true")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError("expected a number of bytes, as 64m")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]


def _source(text: str) -> str:
    if problem := source_problem(text):
        raise ValueError(f"expected {problem}")
    return text


def parse_table(text: str) -> tuple[str, str]:
    """Read ``database.table``, with backticks around a name that has a dot; raises ValueError."""
    found = _TABLE.fullmatch(text)
    if found is None:
        raise ValueError("expected DATABASE.TABLE, as shop.orders or `a.b`.`c`")
    quoted_database, database, quoted_table, table = found.groups()
    return (
        database or quoted_database.replace("``", "`"),
        table or quoted_table.replace("``", "`"),
    )


_NAMES: Final[Mapping[str, tuple[str, Any]]] = {
    "path": ("path", str),
    "source": ("source", _source),
    "view": ("view", _one_of(*VIEWS)),
    "table": ("table", parse_table),
    "mode": ("mode", _one_of(*_MODES)),
    "definitions": ("definitions", str),
    "ignoreMissingFiles": ("ignore_missing_files", _switch),
    "maxPartitionBytes": ("max_partition_bytes", _size),
}
"""Options, each with its field and what reads it."""

_OPTIONS: Final = {name.lower(): known for name, known in _NAMES.items()}


@dataclass
class _Faults(InputPartition):
    """What the driver could not read."""

    faults: list[Fault]


class MillraceDataSource(DataSource):
    """The format ``millrace``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._parsed = Options.parse(options)
        self._scan: Scan | None = None
        self._decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns of the view, or of the table by its newest definition in the log."""
        prepare_worker()
        options = self._parsed
        self.scan()
        if options.table is None or options.view != "changes":
            return from_arrow_schema(VIEWS[options.view], prefer_timestamp_ntz=True)
        found = self._newest_row(options.table)
        for name in found.names:
            if name.lower() in OF_TABLE.names:
                raise SettingsError([f"{'.'.join(options.table)} has a column {name}: read the view changes"])
        return from_arrow_schema(pa.schema([*found, *OF_TABLE]), prefer_timestamp_ntz=True)

    def _newest_row(self, table: tuple[str, str]) -> pa.Schema:
        decoding = self.decoding(into_rows=True)
        for span in reversed(self.scan().spans):
            found = newest_row(decoding, span.described, read_span(span), table)
            if found is not None:
                return found
        raise SettingsError([f"{self._parsed.path} has no row of {'.'.join(table)}"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the log into columns of a schema."""
        prepare_worker()
        return LogReader(self, schema)

    @property
    def given(self) -> Options:
        """The options."""
        return self._parsed

    def scan(self) -> Scan:
        """Return which files there are and where they are cut: once, so that a DataFrame stays the same."""
        if self._scan is None:
            options = self._parsed
            found = list_files(options.path, ignore_missing=options.ignore_missing_files)
            self._scan = scan(found, options.max_partition_bytes)
            if self._scan.faults and not options.permissive:
                first = self._scan.faults[0]
                raise LogDataError(f'{first.error} (option("mode", "PERMISSIVE") goes on with the next file)')
        return self._scan

    def decoding(self, *, into_rows: bool) -> Decoding:
        """Return how executors decode records."""
        if self._decoding is None:
            options = self._parsed
            sections = sections_of(RowMapperSettings.model_validate({"source": options.source, **NOWHERE}))
            sections["replicate"] |= _selected(options, sections["replicate"])
            history: list[bytes] = []
            if into_rows:
                given = {} if options.definitions is None else read_definitions(Path(options.definitions))
                history = schema_history(options.source, self.scan().defining, given=given)
                self.scan().defining.clear()  # this is sent to each task
            now_ms = int(time.time() * 1000)
            self._decoding = Decoding(options.source, into_rows, now_ms, (), history, sections)
        return self._decoding


def _selected(options: Options, replicate: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by which the row mapper leaves out other tables; more than it must are harmless."""
    if options.table is None or any(replicate.values()) or not all(map(_SIMPLE.fullmatch, options.table)):
        return {}
    return {"do_table": ".".join(options.table)}


class LogReader(DataSourceReader):
    """Reads spans of the log."""

    def __init__(self, source: MillraceDataSource, schema: StructType) -> None:
        self._source: MillraceDataSource | None = source
        self._layout = to_arrow_schema(schema)
        self._options = source.given
        raw = self._options.view == "raw"
        self._decoding = None if raw else source.decoding(into_rows=True)

    def partitions(self) -> list[InputPartition]:
        """Return the spans, each decoded by itself."""
        assert self._source is not None
        found = self._source.scan()
        partitions: list[InputPartition] = list(found.spans)
        if found.faults and self._options.view == "_corrupt":
            partitions.append(_Faults(found.faults))
        return partitions

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a partition into batches."""
        prepare_worker()
        if isinstance(partition, Span):
            yield from self._read_span(partition)
        elif isinstance(partition, _Faults):
            yield faults_batch(partition.faults, self._layout)

    def _read_span(self, span: Span) -> Iterator[pa.RecordBatch]:
        view = self._view()
        if not isinstance(view, RawView) and span.described is not None:
            view.begin(span.described)
        for records in read_span(span, dated=isinstance(view, RawView)):
            yield from view.take(records)
        yield from view.rest()

    def _view(self) -> RawView | CorruptView | ChangesView:
        options, layout = self._options, self._layout
        if options.view == "raw":
            return RawView(layout)
        assert self._decoding is not None
        if options.view == "_corrupt":
            return CorruptView(self._decoding, layout, fail=False)
        return ChangesView(self._decoding, layout, fail=not options.permissive, table=options.table)

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors need."""
        return {**self.__dict__, "_source": None}
