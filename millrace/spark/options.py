"""The options of ``spark.read.format("millrace")``, named as Spark's own sources name them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from millrace.binlog.errors import BinlogError
from millrace.binlog.names import parse_table_name
from millrace.binlog_command.criteria import Gtids, TablePattern, parse_gtids
from millrace.contract import source_problem
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import KafkaSettings
from millrace.spark.selected import ALL, OPERATIONS, Selected
from millrace.spark.topic import Bound
from millrace.spark.views import COUNTED, VIEWS

_SPAN_BYTES: Final = 64 << 20
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]+)\s*([kmg]?)b?", re.IGNORECASE)
_KAFKA: Final = "kafka."
_OWN: Final = Bound()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Read = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read. Without a ``path`` an ``archive`` and then the raw topic are read."""

    path: str | None = None
    source: str | None = None
    archive: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)
    view: str = "changes"
    table: tuple[str, str] | None = None
    mode: str = "FAILFAST"
    definitions: str | None = None
    ignore_missing_files: bool = False
    max_partition_bytes: int = _SPAN_BYTES
    start: Bound = _OWN
    end: Bound = _OWN
    min_partitions: int = 1
    max_offsets: int | None = None
    selected: Selected = ALL

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Check options; raises SettingsError, which names all that are wrong."""
        values: dict[str, Any] = {}
        problems = []
        kafka: dict[str, str] = {}
        for name, text in given.items():
            setting = name.lower().removeprefix(_KAFKA).replace(".", "_")
            if name.lower().startswith(_KAFKA) and setting in KafkaSettings.model_fields:
                kafka[setting] = text
                continue
            known = _OPTIONS.get(name.lower())
            if known is None:
                problems.append(f"option {name!r} is not known: expected {', '.join(_NAMES)} or kafka.…")
                continue
            where, read = known
            try:
                values[where] = read(text)
            except ValueError as error:
                problems.append(f"option {name!r} is {text!r}: {error}")
        problems += _contradictions(values, kafka)
        if problems:
            raise SettingsError(problems)
        selected = Selected(**{name: values.pop(name) for name in _SELECTS if name in values})
        return cls(kafka=kafka, selected=selected, **values)

    @property
    def permissive(self) -> bool:
        """Whether what cannot be read is left out."""
        return self.mode == "PERMISSIVE"

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source or "log"


def _contradictions(values: Mapping[str, Any], kafka: Mapping[str, str]) -> list[str]:
    found = []
    if not {"path", "source", "archive"} & set(values):
        found.append(
            'nothing is read: give a path, option("source", …) for a raw topic, or option("archive", …)'
        )
    if "path" not in values and "source" not in values and kafka:
        found.append('an archive is read without Kafka, unless option("source", …) names its topic')
    of_topic = [name for name, (where, _) in _NAMES.items() if where in _OF_TOPIC and where in values]
    of_files = [name for name, (where, _) in _NAMES.items() if where in _OF_FILES and where in values]
    if "path" in values and (of_topic or kafka):
        found.append(f"option {(*of_topic, 'kafka.…')[0]!r} has no meaning for files")
    if "archive" in values and "source" not in values and of_files == ["definitions"]:
        of_files = []  # there is no Kafka to ask
    if "path" not in values and of_files:
        found.append(f"option {of_files[0]!r} has no meaning for a topic")
    view = values.get("view", "changes")
    of_changes = [name for name, (where, _) in _NAMES.items() if where in _SELECTS and where in values]
    if "table" in values and view not in ("changes", "_corrupt"):
        found.append(f"option 'table' has no meaning for the view {view!r}")
    if of_changes and view != "changes":
        found.append(f"option {of_changes[0]!r} has no meaning for the view {view!r}")
    if "table" in values and "tables" in values:
        found.append("option 'tables' has no meaning beside 'table'")
    return found


def _one_of(*names: str) -> _Read:
    def read(text: str) -> str:
        found = {name.lower(): name for name in names}.get(text.lower())
        if found is None:
            raise ValueError(f"expected {' or '.join(names)}")
        return found

    return read


def _switch(text: str) -> bool:
    return bool(_one_of("true", "false")(text) == "true")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError("expected a number above 0")
    return int(text)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError("expected a number of bytes, as 64m")
    return int(found[1]) * _UNITS[found[2].lower()]


def _source(text: str) -> str:
    if problem := source_problem(text):
        raise ValueError(f"expected {problem}")
    return text


def _offset(text: str) -> Bound:
    """Read an offset as Spark's Kafka source takes it: of the only partition, as a number or in JSON."""
    if text.lower() in ("earliest", "latest"):
        return Bound()
    try:
        found = json.loads(text)
        while isinstance(found, dict):
            (found,) = found.values()
        if isinstance(found, int) and found >= 0:
            return Bound(found)
    except ValueError:
        pass
    raise ValueError('expected earliest, latest, an offset, or {"TOPIC": {"0": OFFSET}}')


def _timestamp(text: str) -> Bound:
    return Bound(timestamp_ms=_number(text))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _tables(text: str) -> tuple[TablePattern, ...]:
    return tuple(map(TablePattern.parse, _parts(text)))


def _operations(text: str) -> frozenset[str]:
    found = frozenset(_parts(text))
    if not found <= OPERATIONS:
        raise ValueError("expected some of c, u, d and t, with commas between them")
    return found


def _server_ids(text: str) -> frozenset[int]:
    parts = _parts(text)
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError("expected numbers, with commas between them")
    return frozenset(map(int, parts))


def _gtids(text: str) -> Gtids:
    try:
        return parse_gtids(text)
    except BinlogError as error:
        raise ValueError(str(error)) from None


def _moment(text: str) -> int:
    """Read a time as Spark's ``modifiedAfter`` has it; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_NAMES: Final[Mapping[str, tuple[str, _Read]]] = {
    "path": ("path", str),
    "source": ("source", _source),
    "archive": ("archive", str),
    "view": ("view", _one_of(*VIEWS, "events", *COUNTED)),
    "table": ("table", parse_table_name),
    "mode": ("mode", _one_of("FAILFAST", "PERMISSIVE")),
    "definitions": ("definitions", str),
    "ignoreMissingFiles": ("ignore_missing_files", _switch),
    "maxPartitionBytes": ("max_partition_bytes", _size),
    "startingOffsets": ("start", _offset),
    "endingOffsets": ("end", _offset),
    "startingTimestamp": ("start", _timestamp),
    "endingTimestamp": ("end", _timestamp),
    "minPartitions": ("min_partitions", _number),
    "maxOffsetsPerTrigger": ("max_offsets", _number),
    "tables": ("tables", _tables),
    "operations": ("operations", _operations),
    "serverIds": ("server_ids", _server_ids),
    "gtids": ("gtids", _gtids),
    "committedAfter": ("after_us", _moment),
    "committedBefore": ("before_us", _moment),
}
"""Options, each with its field and what reads it."""

_OF_TOPIC: Final = ("archive", "start", "end", "min_partitions", "max_offsets")
_SELECTS: Final = ("tables", "operations", "server_ids", "gtids", "after_us", "before_us")
_OF_FILES: Final = ("definitions", "ignore_missing_files", "max_partition_bytes")
_OPTIONS: Final = {name.lower(): known for name, known in _NAMES.items()}
