"""Archives of raw events: records of a raw topic in Parquet, for as long as files are kept.

The archive of a source is a folder. Its ``manifest.json`` says from which offset to which it has all
committed records, and names the files that have them, each with its first and last offset. A run writes files
into a folder of its own, and adds them by replacing the manifest. Files that no manifest names are ignored,
so a run that is killed, or a task that is retried, adds no record twice.

Archived records are read from the archive, later ones from the topic: :func:`archived_slice`. Raw offsets are
those of one topic; records that neither has are an error.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace import __version__
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.stage import Record, records_of_columns
from spark_jobs.common.files import file_system
from spark_jobs.common.kafka import RAW_COLUMNS, Bound, TopicSlice, resolve_slice, scan
from spark_jobs.common.places import absolute, read_text, remove, write_text

_SCHEMA: Final = (
    "partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_OFFSETS_PER_FILE: Final = 200_000
_ROW_GROUP_BYTES: Final = 8 << 20
"""Bytes of the largest part of a file that is read as a whole, compressed."""

_OF_RECORD: Final = ["offset", "key", "value", "headers"]


class ArchiveError(UserError):
    """A file of an archive cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.DATA)


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of an archive, by its path in it: which records it has, of which times in ms since 1970."""

    path: str
    first: int
    last: int
    records: int
    bytes: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Archive:
    """All committed records of a topic from offset ``start`` to before ``end``, in files in their order.

    ``last_key`` is the key of the last record, in ASCII.
    """

    folder: str
    topic: str
    start: int
    end: int
    files: Sequence[ArchivedFile] = ()
    last_key: str | None = None

    @property
    def last(self) -> int | None:
        """The offset of the last record."""
        return self.files[-1].last if self.files else None

    def scan(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from an offset to before another as Kafka's source has them."""
        paths = [f"{self.folder}/{one.path}" for one in self.files if one.first < end and one.last >= start]
        if not paths:
            return spark.createDataFrame([], _SCHEMA)
        try:
            found = spark.read.schema(_SCHEMA).parquet(*paths)
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise UserError(
                f"a file that the archive {self.folder} names is missing ({error}); restore it, or read "
                "what the topic still has, without --archive",
                ExitCode.DATA,
            ) from None
        return found.where((sf.col("offset") >= start) & (sf.col("offset") < end))

    def batches(self, count: int, start: int, end: int) -> Iterator[Sequence[Record]]:
        """Yield the records from an offset to before another, in their order, up to ``count`` at once.

        This process reads them itself; they have their offsets for timestamps. Raises
        :class:`ArchiveError` where a file cannot be read.
        """
        for file in self.files:
            if file.first < end and file.last >= start:
                path = f"{self.folder}/{file.path}"
                try:
                    yield from _batches_of(path, count, start, end)
                except (OSError, pa.ArrowException) as error:
                    raise ArchiveError(
                        f"{path}, which the archive names, cannot be read: {error}; restore it, or read what "
                        "the topic still has, without --archive"
                    ) from error

    def offset_at(self, spark: SparkSession, moment: datetime) -> int | None:
        """Return the first offset whose record has this time or a later one; None where none has."""
        millis = int(moment.timestamp() * 1000)
        file = next((one for one in self.files if one.last_ms >= millis), None)
        if file is None:
            return None
        later = self.scan(spark, file.first, file.last + 1).where(sf.unix_millis("timestamp") >= millis)
        return int(later.agg(sf.min("offset")).collect()[0][0])


def _batches_of(path: str, count: int, start: int, end: int) -> Iterator[Sequence[Record]]:
    for number, (first, last) in enumerate(_ranges(path)):
        if first < end and last >= start:
            group = _row_group(path, number)
            offsets = group.column("offset")
            low, high = (
                bisect_left(range(len(offsets)), bound, key=lambda at: offsets[at].as_py())
                for bound in (start, end)
            )
            for at in range(low, high, count):
                yield _records_of(group.slice(at, min(count, high - at)))


def _ranges(path: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last offset of each row group of a file."""
    metadata = _opened(path).metadata
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        known = next(column.statistics for column in columns if column.path_in_schema == "offset")
        yield known.min, known.max


@lru_cache(maxsize=1)
def _opened(path: str) -> pq.ParquetFile:
    system, place = file_system(path)
    return pq.ParquetFile(system.open_input_file(place))


@lru_cache(maxsize=1)
def _row_group(path: str, number: int) -> pa.Table:
    """Read a row group, which is kept: who searches looks at many places in it."""
    return _opened(path).read_row_group(number, _OF_RECORD)


def _records_of(table: pa.Table) -> list[Record]:
    """Return rows as records, with their offsets as timestamps."""
    offsets, keys, values, headers = (table.column(name) for name in _OF_RECORD)
    named: Any = repeat(None)
    if headers.null_count < len(headers):
        pairs = (one and [(each["key"], each["value"]) for each in one] for one in headers.to_pylist())
        named = list(pairs)
    numbers = offsets.to_pylist()
    return records_of_columns(numbers, numbers, keys.to_pylist(), values.to_pylist(), named)


def read_archive(spark: SparkSession, folder: str, source: str) -> Archive | None:
    """Read the manifest of a source's archive in a folder of archives; None where there is none.

    Raises :class:`UserError` if it is not such a manifest.
    """
    place = f"{absolute(folder)}/{source}"
    text = read_text(spark, f"{place}/manifest.json")
    if text is None:
        return None
    topic = f"{source}.raw"
    try:
        found = json.loads(text)
        files = [ArchivedFile(**one) for one in found["files"]]
        archive = Archive(place, found["topic"], found["start"], found["end"], files, found["last_key"])
    except (ValueError, TypeError, KeyError):
        raise SettingsError([f"{place}/manifest.json is not the manifest of an archive"]) from None
    if archive.topic != topic:
        raise SettingsError([f"{place} is an archive of {archive.topic}, not of {topic}"])
    return archive


def archived_slice(
    spark: SparkSession, options: Mapping[str, str], archive: Archive, start: Bound, end: Bound
) -> tuple[TopicSlice, int]:
    """Fix what is read of an archive and of the topic after it, as if they were one topic.

    Gives the slice and the first offset that there is. Raises :class:`UserError` where records between the
    two are missing, or where the topic is another one now.
    """
    first, latest = resolve_slice(spark, options, archive.topic).offsets[0]

    def place(bound: Bound, otherwise: int) -> int:
        if bound is None:
            return otherwise
        wanted = bound if isinstance(bound, int) else archive.offset_at(spark, bound)
        if wanted is None:
            wanted = max(archive.end, resolve_slice(spark, options, archive.topic, bound).offsets[0][0])
        return min(max(wanted, archive.start), max(latest, archive.end))

    begin = place(start, archive.start)
    until = max(begin, place(end, latest))
    bounded = start is not None or end is not None
    if end is None or until > archive.end:
        if begin >= first > archive.end:
            return TopicSlice(archive.topic, {0: (begin, until)}, bounded), first
        _check_follows(
            spark, options, archive, (first, latest),
            f"read the archive alone with --to offset:{archive.end}, or the topic alone without --archive",
        )  # fmt: skip
    return TopicSlice(archive.topic, {0: (begin, until)}, bounded, archive), archive.start


def next_slice(
    spark: SparkSession, options: Mapping[str, str], topic: str, archive: Archive | None
) -> TopicSlice:
    """Fix which records to archive next: those after the archive. Raises as :func:`archived_slice`."""
    first, latest = resolve_slice(spark, options, topic).offsets[0]
    if archive is None:
        return TopicSlice(topic, {0: (first, latest)})
    _check_follows(
        spark, options, archive, (first, latest),
        "archive the rest into another folder, and from now on before the topic's retention deletes it",
    )  # fmt: skip
    return TopicSlice(topic, {0: (archive.end, latest)})


def _check_follows(
    spark: SparkSession, options: Mapping[str, str], archive: Archive, held: tuple[int, int], advice: str
) -> None:
    """Refuse a topic that does not continue an archive; ``advice`` is for one that begins later."""
    topic, (first, latest) = archive.topic, held
    if first > archive.end:
        raise UserError(
            f"records {archive.end} to {first - 1} of {topic} are missing: the archive {archive.folder} ends "
            f"before them, and the topic begins after them; {advice}",
            ExitCode.DATA,
        )
    another = (
        "it is another topic now, or its end was lost; read the archive alone with --to "
        f"offset:{archive.end}, and archive the topic into another folder"
    )
    if latest < archive.end:
        raise UserError(
            f"{topic} ends at offset {latest}, but the archive {archive.folder} has it to {archive.end}: "
            f"{another}",
            ExitCode.DATA,
        )
    if archive.last is None or archive.last < first:
        return
    part = TopicSlice(topic, {0: (archive.last, archive.last + 1)})
    keys = [_ascii(row.key) for row in scan(spark, options, part, whole=True).select("key").collect()]
    if keys != [archive.last_key]:
        found = f"the key {keys[0]}" if keys else "no record"
        raise UserError(
            f"{topic} has {found} at offset {archive.last}, where the archive {archive.folder} has "
            f"{archive.last_key}: {another}",
            ExitCode.DATA,
        )


def append(
    spark: SparkSession,
    options: Mapping[str, str],
    part: TopicSlice,
    folder: str,
    before: Archive | None,
    *,
    run: str,
) -> Archive:
    """Add a slice that follows an archive to it, in files in a folder of run and start; give the archive.

    What was written is read back before the manifest names it. Raises :class:`UserError` where another run
    has added to the archive meanwhile.
    """
    source = part.topic.removesuffix(".raw")
    ((start, end),) = part.offsets.values()
    archive = before or Archive(f"{absolute(folder)}/{source}", part.topic, start, start)
    name = f"{run}-{start}"
    place = f"{archive.folder}/{name}"
    try:
        records = scan(spark, options, part, offsets_each=_OFFSETS_PER_FILE).select(*RAW_COLUMNS)
        writer = records.write.option("compression", "zstd")
        writer.option("parquet.block.size", str(_ROW_GROUP_BYTES)).parquet(place)
        written = _written(spark, place, name)
        grown = replace(archive, end=end, files=[*archive.files, *written])
        if written:
            last = spark.read.schema(_SCHEMA).parquet(place).where(sf.col("offset") == written[-1].last)
            grown = replace(grown, last_key=_ascii(last.select("key").collect()[0].key))
        else:
            remove(spark, place)
        _check_unchanged(before, read_archive(spark, folder, source), archive.folder)
    except BaseException:
        remove(spark, place)
        raise
    _write_manifest(spark, grown)
    return grown


def _check_unchanged(before: Archive | None, now: Archive | None, folder: str) -> None:
    if now != before:
        raise UserError(
            f"another run has added to the archive {folder} meanwhile; run the job again", ExitCode.DATA
        )


def _written(spark: SparkSession, place: str, name: str) -> list[ArchivedFile]:
    """Read back the files of a folder."""
    records = spark.read.schema(_SCHEMA).parquet(place)
    size = sum((sf.coalesce(sf.length(name), sf.lit(0)) for name in ("key", "value")), start=sf.lit(0))
    millis = sf.unix_millis("timestamp")
    of_each = records.groupBy(sf.element_at(sf.split(sf.input_file_name(), "/"), -1).alias("name")).agg(
        sf.min("offset").alias("first"), sf.max("offset").alias("last"), sf.count("*").alias("records"),
        sf.sum(size).alias("bytes"), sf.min(millis).alias("first_ms"), sf.max(millis).alias("last_ms"),
    )  # fmt: skip
    files = [
        ArchivedFile(
            f"{name}/{row.name}", row.first, row.last, row.records, row.bytes, row.first_ms, row.last_ms
        )
        for row in of_each.orderBy("first").collect()
    ]
    for one, other in pairwise(files):
        if one.last >= other.first:
            raise AssertionError(f"{one.path} and {other.path} overlap")
    return files


def _write_manifest(spark: SparkSession, archive: Archive) -> None:
    values: dict[str, Any] = {
        "topic": archive.topic,
        "start": archive.start,
        "end": archive.end,
        "last_key": archive.last_key,
        "version": __version__,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": [asdict(one) for one in archive.files],
    }
    write_text(spark, f"{archive.folder}/manifest.json", json.dumps(values, indent=1) + "\n")


def _ascii(key: bytes | None) -> str | None:
    return None if key is None else bytes(key).decode("ascii", "backslashreplace")
