"""An archive: raw records as a table of Parquet, for as long as its files are kept.

It is what a stream of the view ``raw`` writes: Spark's log of the sink, ``_spark_metadata``, says which files
belong to it. The files of any other table are given as a JSON list, as Spark tells them of a lake format.

Each record has the offset of the one before it. So a record that is missing, or there twice, is found:
between files by the statistics in their footers, within a file as it is read.
"""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.stage import Record, records_of_columns

_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
_BATCH: Final = re.compile(r"([0-9]+)(?:\.compact)?")
_INSIDE: Final = re.compile(r"(?:[^/]*=[^/]*/)*[^/]+$")
"""What a file's path has after the folder of the table, which may have been moved."""

_COLUMNS: Final = ("offset", "previous", "timestamp", "key", "value", "headers")
_MILLIS: Final = pa.timestamp("ms")
_READ_AHEAD: Final = 1 << 20
_AT_ONCE: Final = 16
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


class ArchiveError(UserError):
    """An archive lacks something, or cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.DATA)


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of an archive: its first and its last offset, and the offset of the record before them."""

    path: str
    first: int
    last: int
    previous: int | None
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """All committed records of a raw topic from one offset to the ``last``, in files in their order.

    Before ``end`` there is none in the topic that it lacks.
    """

    place: str
    files: Sequence[ArchivedFile]
    last: int
    end: int

    def __str__(self) -> str:
        return f"the archive {self.place[:200]}"

    @classmethod
    def read(cls, place: str) -> "Archive":
        """Read which files an archive has: of a folder, or of a JSON list of files.

        Raises :class:`SettingsError` where there is none, :class:`ArchiveError` where records are missing.
        """
        found = _listed(place) if place.startswith("[") else _committed(place)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            files = [file for file in pool.map(lambda one: _described(*one), found) if file is not None]
        files.sort(key=lambda file: file.first)
        for one, other in pairwise(files):
            if one.last >= other.first:
                raise ArchiveError(
                    f"{one.path} and {other.path} both have records {other.first} to {one.last}"
                )
            if other.previous != one.last:
                raise ArchiveError(
                    f"records between {one.path} and {other.path} are missing in the archive: after offset "
                    f"{one.last} follows {other.first}, and in the topic {other.previous} is before that"
                )
        last = files[-1].last if files else -1
        return cls(place, files, last, last + 1)

    @property
    def start(self) -> int:
        """The offset of the first record."""
        return self.files[0].first if self.files else 0

    def between(self, start: int, end: int) -> "Archive":
        """Return it with those files alone that have records from an offset to before another."""
        return replace(self, files=[one for one in self.files if one.first < end and one.last >= start])

    def columns(
        self, start: int, end: int, rows: int, names: Sequence[str] = _COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records from an offset to before another in columns, up to ``rows`` at once."""
        last = None
        wanted = list(dict.fromkeys(("offset", "previous", *names)))
        for file in self.between(start, end).files:
            with _in_words(file.path):
                opened = _opened(file.path)
                groups = [number for number, low, high in _groups(opened) if low < end and high >= start]
                for batch in opened.iter_batches(rows, groups, wanted, use_threads=False):
                    offsets = batch.column("offset").to_numpy()
                    _check(file.path, batch, offsets, last)
                    last = int(offsets[-1])
                    low, high = np.searchsorted(offsets, (start, end))
                    if low < high:
                        yield batch.slice(low, high - low).select(names)
                    if high < len(offsets):
                        break

    def batches(self, count: int, start: int, end: int, *, dated: bool = False) -> Iterator[Sequence[Record]]:
        """Yield the records from an offset to before another, up to ``count`` at once.

        Unless they are to be ``dated``, they have offsets for timestamps.
        """
        names = "offset", "key", "value", "headers"
        for batch in self.columns(start, end, count, (*names, "timestamp") if dated else names):
            yield records_of(batch)

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has this time or a later one; None where none has."""
        since = pa.scalar(timestamp_ms, _MILLIS)
        for batch in self.columns(self.start, self.end, 1 << 16, ("offset", "timestamp")):
            times = batch.column("timestamp").cast(_MILLIS, safe=False)
            found = pc.index(pc.greater_equal(times, since), True).as_py()
            if found >= 0:
                return int(batch.column("offset")[found].as_py())
        return None


def file_system(place: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder and the folder's path in it; ``s3a`` is what Spark calls ``s3``."""
    scheme, _, rest = place.partition("://")
    if not rest:
        return fs.LocalFileSystem(), place.removeprefix("file:")
    found, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
    return found, path


def has_archive(place: str) -> bool:
    """Return whether a folder has an archive."""
    return is_folder(f"{place}/{_LOG}")


def is_folder(place: str) -> bool:
    """Return whether there is a folder."""
    system, path = file_system(place)
    return bool(system.get_file_info(path).type == fs.FileType.Directory)


def _listed(place: str) -> list[tuple[str, int | None]]:
    try:
        found = json.loads(place)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SettingsError([f"archive is {place[:200]!r}: expected a folder, or a JSON list of files"])
    return [(path, None) for path in found]


def _committed(place: str) -> list[tuple[str, int | None]]:
    """Return the files that Spark has committed to a table, with their sizes."""
    if not has_archive(place):
        written = "a stream of the view raw into Parquet, as `millrace job archive`, writes one"
        raise SettingsError([f"{place} is no archive, since it has no {_LOG}: {written}"])
    with _in_words(place):
        system, folder = file_system(place)
        names = [info.base_name for info in system.get_file_info(fs.FileSelector(f"{folder}/{_LOG}"))]
        batches = {int(match[1]): name for name in names if (match := _BATCH.fullmatch(name))}
        first = max((number for number, name in batches.items() if name.endswith(_COMPACT)), default=0)
        found: dict[str, int] = {}
        for number in range(first, max(batches, default=-1) + 1):
            if number not in batches:
                raise ArchiveError(f"{place}/{_LOG} lacks batch {number}: records of it are missing")
            name = batches[number]
            with system.open_input_stream(f"{folder}/{_LOG}/{name}") as stream:
                version, *lines = stream.read().decode().splitlines()
            if version != "v1":
                raise ArchiveError(f"{place}/{_LOG}/{name} has the version {version!r}: v1 is expected")
            for status in map(json.loads, lines):
                if (inside := _INSIDE.search(unquote(status["path"]))) is not None:
                    found[f"{place}/{inside[0]}"] = status["size"]
        return list(found.items())


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ArchiveError(
            f"{path}, which belongs to an archive, cannot be read: {error}; restore it, or read what the "
            "topic still has, without the archive"
        ) from error


@lru_cache(maxsize=4)
def _opened(path: str) -> pq.ParquetFile:
    system, place = file_system(path)
    return pq.ParquetFile(system.open_input_file(place), buffer_size=_READ_AHEAD)


def _described(path: str, size: int | None) -> ArchivedFile | None:
    """Return what the footer of a file says; None where it has no record."""
    with _in_words(path):
        system, place = file_system(path)
        with system.open_input_file(place) as stream:
            held = stream.size()
            if size is not None and size != held:
                raise ArchiveError(f"{path} has {held:,} bytes, and {size:,} were committed: restore it")
            opened = pq.ParquetFile(stream)
            if absent := set(_COLUMNS).difference(opened.schema_arrow.names):
                raise ArchiveError(
                    f"{path} has no column {', '.join(sorted(absent))}: an archive has all of the view raw"
                )
            groups = list(_groups(opened))
            if not groups:
                return None
            previous = _statistics(opened, 0, "previous")
            before = None if previous is None or previous.null_count else int(previous.min)
            return ArchivedFile(path, groups[0][1], groups[-1][2], before, opened.metadata.num_rows, held)


def _groups(opened: pq.ParquetFile) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each row group that has rows, with its first and last offset."""
    for number in range(opened.metadata.num_row_groups):
        if opened.metadata.row_group(number).num_rows:
            known = _statistics(opened, number, "offset")
            if known is None or not known.has_min_max:
                raise ValueError("it has no statistics of the column offset")
            yield number, int(known.min), int(known.max)


def _statistics(opened: pq.ParquetFile, number: int, name: str) -> Any:
    group = opened.metadata.row_group(number)
    columns = map(group.column, range(group.num_columns))
    return next(column.statistics for column in columns if column.path_in_schema == name)


def _check(path: str, batch: pa.RecordBatch, offsets: "np.ndarray[Any, Any]", last: int | None) -> None:
    """Raise where a record does not follow the one before it; ``last`` is that before the batch, if known."""
    previous = pc.fill_null(batch.column("previous"), -1).to_numpy()
    follows = np.append(last if last is not None else previous[:1], offsets[:-1])
    wrong = np.flatnonzero(previous != follows)
    if len(wrong):
        at = wrong[0]
        raise ArchiveError(
            f"{path}: record {offsets[at]} follows {follows[at]}, and in the topic {previous[at]}: records "
            "are missing, there twice, or in another order"
        )


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """Return columns as records; where ``timestamp`` is not among them, offsets stand for it."""
    offsets, keys, values, headers, *dated = batch.columns
    numbers = times = offsets.to_pylist()
    for column in dated:
        times = column.cast(_MILLIS, safe=False).cast(pa.int64()).to_pylist()
    named: Sequence[Any] = [None] * len(numbers)
    if headers.null_count < len(headers):
        rows = headers.to_pylist()
        named = [one and [(each["key"], each["value"]) for each in one] for one in rows]
    return records_of_columns(numbers, times, keys.to_pylist(), values.to_pylist(), named)
