"""The frame of a job: options, first checks of Kafka and the registry, results, error messages.

A job is a function that is decorated with :func:`job_command` and gets a :class:`Job` and a Spark session.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, TypeVar

import click
from pydantic import Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace import __version__
from millrace.avro.registry import value_subject
from millrace.avro.service_state import TABLE_TOPIC_PREFIX, TableTopic
from millrace.avro.single_object import SingleObjectError
from millrace.contract import Topics, first_version, is_of_rows, source_problem, version_number
from millrace.kafka.client import Message, connect
from millrace.kafka.read import read_topic, topic_names
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.topics import another_topic, topic_ids
from millrace.rowmapper.settings import RowMapperSettings, RowsSettings
from millrace.runtime.config_option import config_option
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings, RegistrySettings, ServiceSettings, load_settings
from millrace.spark.archive import Archive, has_archive
from millrace.spark.topic import Bound as SourceBound
from millrace.spark.topic import RawTopic
from millrace.text import printable
from spark_jobs.common.faults import Fault, Faults
from spark_jobs.common.index import INDEX, index_page, is_ours, reports_in
from spark_jobs.common.kafka import Bound, TopicSlice, kafka_options, parse_bound, resolve_slice, scan
from spark_jobs.common.lines import reason_of
from spark_jobs.common.places import (
    absolute,
    local_path,
    names_in,
    read_text,
    remove,
    seen_by_executors,
    write_file,
    write_text,
)
from spark_jobs.common.report import Report
from spark_jobs.common.session import SparkSettings, Steps, spark_session

T = TypeVar("T")

_LONGEST_NAME: Final = 200
_NAMED: Final = 10

_AT_THE_OTHER_END: Final = {("--from", "latest"): sys.maxsize, ("--to", "earliest"): 0}
"""Offsets, from which and up to which there is nothing."""

_KEPT: Final = "kept"
"""Folder in that of a run for what is computed once and used several times."""

_START_S: Final = 15
"""How long SIGTERM waits for Spark to start."""

_RECORDS_GONE: Final = re.compile(r"KAFKA_DATA_LOSS[^\n]*|[^\n]*Some data may have been lost[^\n]*")
_INPUT_LOST: Final = re.compile(r"(?<=millrace\.kafka\.errors\.InputLostError: )[^\n]*")
_BROKER_LOST: Final = re.compile(r"(?<=millrace\.kafka\.errors\.BrokerError: )[^\n]*")
"""What our own client says in an executor."""

_SOURCE_LOST: Final = re.compile(
    r"millrace\.(?:spark\.archive\.ArchiveError|runtime\.errors\.UserError): ([^\n]*)"
)
"""What the source ``millrace`` says in a process of its own."""

_KAFKA_LOST: Final = re.compile(
    r"(?<=org\.apache\.kafka\.common\.errors\.)(?!Serialization)\w+Exception[^\n]*"
    r"|(?<=org\.apache\.kafka\.common\.)KafkaException[^\n]*"
    r"|Cannot fetch record for offset[^\n]*"
)
"""What Spark's Kafka source says in the end where brokers do not answer, in the midst of a stack trace."""


_DISK_FULL: Final = re.compile(r"[^\n]*(?:No space left on device|Disk quota exceeded)[^\n]*")
_KUBERNETES: Final = re.compile(
    r"KubernetesClientException: [^\n]*?Message: (?P<refused>(?:(?!\.? Received status)[^\n])*)"
    r"|KubernetesClientException: (?:[^\n]*\n(?!Caused by))*[^\n]*\nCaused by: [\w.$]+: (?P<cause>[^\n]*)"
)
"""What Spark says where Kubernetes refuses it something, or is not reached, in the midst of a stack trace."""


class RawJobSettings(ServiceSettings):
    """What a job on raw events needs to know: how to reach Kafka and write rows, what Spark may use."""

    rows: RowsSettings = RowsSettings()  # type: ignore[call-arg]
    spark: SparkSettings = SparkSettings()  # type: ignore[call-arg]


class JobSettings(RawJobSettings):
    """What a job needs to know: the settings that the services have, and what Spark may use."""

    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))


class TableJobSettings(JobSettings, RowMapperSettings):
    """What a job on row topics needs to know: also what the row mapper selects for them."""


class RowJobSettings(RawJobSettings, RowMapperSettings):
    """What a job needs to know that makes rows of raw events, as the row mapper does."""


Topic = Literal["events", "raw", "transactions"]
"""Which topic of a source a job reads."""

_SETTINGS: Final[Mapping[Topic, type[RawJobSettings]]] = {
    "events": JobSettings,
    "raw": RawJobSettings,
    "transactions": TableJobSettings,
}
_HAS: Final[Mapping[Topic, str]] = {"events": "events", "raw": "events", "transactions": "rows"}
_WRITER: Final[Mapping[Topic, str]] = {"events": "decoder", "raw": "reader", "transactions": "row mapper"}


@dataclass(frozen=True, slots=True)
class Input:
    """The events of one source: where they lie, and the schemas with which they were written, by id.

    Raw events have none. ``first`` is the first offset that the topic has.
    """

    source: str
    part: TopicSlice
    schemas: Mapping[int, dict[str, Any]]
    first: int = 0


_RUN: Final = re.compile(r"run-[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")


def new_run() -> str:
    """Name the folder of a run: the later, the greater."""
    return f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


@dataclass(slots=True)
class Job:
    """What a job works on, and where its results go.

    They are written into ``folder``, which is another one in ``output`` for each run, and become the results
    when they are complete: :meth:`finish` writes them to the manifest. Until then the previous ones remain.
    """

    name: str
    output: str
    kafka: Mapping[str, str]
    inputs: Sequence[Input]
    steps: Steps
    spark: SparkSession
    settings: RawJobSettings
    notes: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    run: str = field(default_factory=new_run)
    shortfall: UserError | None = None
    """With what the command ends although the results are written; records that cannot be read come first."""
    offsets: int = 0
    """Number of offsets of row topics that were read."""

    _begun: float = field(default_factory=time.monotonic)
    _published: bool = field(default=False, init=False)

    @property
    def folder(self) -> str:
        """The folder of this run; one on this machine by its whole path, as executors need it."""
        return f"{absolute(self.output)}/{self.run}"

    @property
    def kept(self) -> str:
        """The folder for what is computed once and used several times."""
        return f"{self.folder}/{_KEPT}"

    @property
    def sources(self) -> list[str]:
        """Names of the sources."""
        return [one.source for one in self.inputs]

    @property
    def facts(self) -> list[str]:
        """What was read, a line per source."""
        return [str(one.part) for one in self.inputs]

    def say_inputs(self) -> None:
        """Say what is read."""
        for fact in self.facts:
            self.steps.say(f"reading {fact}")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print a step of the work, and how long it took once it has ended."""
        with self.steps.step(text):
            yield

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a result as Parquet."""
        frame.write.parquet(f"{self.folder}/{name}")

    def keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Compute a frame once; return it as it lies in files, which survive a lost executor, to the end."""
        # Dictionaries take most of the time of writing, and are for files that are kept longer.
        frame.write.option("parquet.enable.dictionary", "false").parquet(f"{self.kept}/{name}")
        return self.spark.read.schema(frame.schema).parquet(f"{self.kept}/{name}")

    def remove(self, name: str) -> None:
        """Remove what a run has written on its way and no longer needs."""
        remove(self.spark, f"{self.folder}/{name}")

    def finish(self, summary: Mapping[str, Any], report: Report) -> None:
        """Write ``summary.json`` and ``report.html``, publish the results, and say where they are."""
        self.remove(_KEPT)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        input_ = {one.source: _as_input(one.part) for one in self.inputs}
        head = {
            "job": self.name,
            "version": __version__,
            "written_at": now,
            "input": input_,
            "notes": self.notes,
        }
        self.faults.show(report)
        figures = {**head, "faulty_records": self.faults.summary(), **summary}
        text = json.dumps(figures, indent=2, ensure_ascii=False, default=str)
        write_text(self.spark, f"{self.folder}/summary.json", text + "\n")
        footer = f"Written by millrace {__version__}, job {self.name}, at {now}."
        write_text(self.spark, f"{self.folder}/report.html", report.html(footer))
        verdict, mood = report.result or (None, None)
        told = {"verdict": verdict, "mood": mood, "faulty_records": self.faults.number}
        self._publish({**head, **told, "run": self.run})
        if self.offsets:
            speed = self.offsets / (time.monotonic() - self._begun)
            self.steps.say(f"{self.offsets:,} offsets of row topics: {speed:,.0f} offsets/s")
        local = local_path(self.output)
        shown = self.folder if local is None else self.output
        if verdict is not None:
            self.steps.say(verdict)
        self.steps.say(f"report in {shown}/report.html, figures in {shown}/summary.json")
        if local is not None:
            self._write_index(local.absolute().parent)

    def _publish(self, manifest: Mapping[str, Any]) -> None:
        """Let ``manifest.json`` name this run, in one step; of the runs before it the last one stays."""
        place = f"{self.output}/manifest.json"
        before = _run_of(read_text(self.spark, place))
        write_text(self.spark, place, json.dumps(manifest, indent=2, default=str) + "\n")
        self._published = True
        folder = local_path(self.output)
        if folder is not None:
            self._link_results(folder)
        with suppress(Exception):  # the results are there; the next run removes what is left
            for name in names_in(self.spark, self.output):
                if _RUN.fullmatch(name) and name < min(before, self.run):
                    remove(self.spark, f"{self.output}/{name}")

    def _link_results(self, folder: Path) -> None:
        """Let the results be found in a folder of this machine by their names."""
        latest = folder / "latest"
        link = folder / f".{self.run}"
        link.symlink_to(self.run, target_is_directory=True)
        link.replace(latest)
        for result in latest.iterdir():
            _link(folder / result.name, f"latest/{result.name}")

    def _write_index(self, folder: Path) -> None:
        """Write the page over all reports in a folder, unless there is a page of somebody else."""
        page = folder / INDEX
        try:
            if not is_ours(page):
                return
            write_file(page, index_page(reports_in(folder)))
        except OSError:
            return  # the folder is not ours to write in
        self.steps.say(f"all reports beside it: {page}")

    def discard(self) -> None:
        """Remove what a run that failed has written, where it is within reach, unless it is the results."""
        if self._published:
            return
        with suppress(Exception):  # Spark, which reaches what is elsewhere, may have been stopped
            remove(self.spark, self.folder)


def _run_of(manifest: str | None) -> str:
    """Return the name of the run in a manifest; none where it is not one of ours."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(manifest or "{}").get("run", ""))
    return ""


def _as_input(part: TopicSlice) -> dict[str, Any]:
    """Return what ``summary.json`` says of a slice."""
    archived = {} if part.archive is None else {"archive": part.archive.place, "archived": part.archive.end}
    return {"topic": part.topic, "offsets": part.offsets, **archived}


def _link(place: Path, target: str) -> None:
    """Let a result be found under its name, also where an earlier version of Millrace has left its own."""
    if place.is_symlink():
        return
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def job_command(
    name: str,
    *,
    raw: bool = False,
    tables: bool = False,
    appends: bool = False,
    settings_class: type[RawJobSettings] | None = None,
    check: Callable[..., object] | None = None,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a job; its function is called with the job, the session and its own options.

    It reads the events of its sources; with ``raw`` their raw events, without the registry, from an archive
    too; with ``tables`` the whole row topics of tables of one source, and its input is the topic of their
    transactions. One that ``appends`` to an archive reads what follows it, and is called with its folder.
    ``settings_class`` is what it needs to know, if that is not what others need that read the same topics.
    ``check`` is called with its own options before Spark is started, and may raise SettingsError.
    """
    unbounded = tables or appends
    kind: Topic = "raw" if raw else "transactions" if tables else "events"

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.command(name, help=function.__doc__)
        @click.option(
            "--source",
            "sources",
            multiple=True,
            help=f"Source to read{'' if tables else '; may be repeated'}. [MILLRACE_SOURCE]",
        )
        @click.option(
            "--bootstrap-servers", help="Kafka brokers, host:port. [MILLRACE_KAFKA_BOOTSTRAP_SERVERS]"
        )
        @config_option
        @_unless(raw, "--registry-url", help="Schema registry's address. [MILLRACE_REGISTRY_URL]")
        @_unless(
            not raw,
            "--archive",
            required=appends,
            help="Folder of archives, local or any that Spark knows; each source has its own in it."
            if appends
            else "Folder of archives: archived raw events are read there, later ones from the topic.",
        )
        @_unless(
            unbounded,
            "--from",
            "start",
            default="earliest",
            show_default=True,
            help="Where to begin: earliest, an offset, a time such as 2026-01-31T10:00 (UTC if without "
            "zone), or how long ago, as 90m, 24h or 7d.",
        )
        @_unless(
            unbounded,
            "--to",
            "end",
            default="latest",
            show_default=True,
            help="Where to end (exclusive): as --from, or latest.",
        )
        @click.option(
            "--output", help=f"Folder for the results, local or any that Spark knows. [reports/{name}-SOURCE]"
        )
        @click.option("--master", help="Spark master; default is spark-submit's, else local[*].")
        @wraps(function)
        def command(  # noqa: PLR0917 - click calls it by names
            sources: tuple[str, ...],
            bootstrap_servers: str | None,
            output: str | None,
            master: str | None,
            start: str = "earliest",
            end: str = "latest",
            registry_url: str | None = None,
            archive: str | None = None,
            **own: Any,
        ) -> None:
            with errors_in_words(name), _sigterm_in_order(name) as sigterm:
                bounds = _bound("--from", start), _bound("--to", end)
                if check is not None:
                    check(**own)
                settings = _settings(
                    sources, bootstrap_servers, registry_url, kind=settings_class or _SETTINGS[kind]
                )
                names = list(dict.fromkeys(sources or (settings.source,)))
                if tables and len(names) > 1:
                    raise SettingsError([f"--source is {', '.join(names)}: {name} reads one source"])
                topics = _topics(settings)
                schemas = _look_up(settings, topics, names, kind)
                folder = (output or f"reports/{name}-{_joined(names)}").rstrip("/")
                _check_folder(folder)
                if appends and archive is not None:
                    own["archive"] = archive
                    _check_folder(archive, "--archive")
                sigterm.starts = True
                with spark_session(f"millrace {name}", master, settings.spark) as spark:
                    sigterm.take(spark)
                    _check_shared(spark, folder)
                    if appends and archive is not None:
                        _check_shared(spark, archive, "--archive")
                    options = kafka_options(settings.kafka)
                    archived = archive and partial(_archived, settings.kafka, bounds, archive, appends)
                    inputs = list(_inputs(spark, options, schemas, bounds, kind, archived=archived or None))
                    job = Job(name, folder, options, inputs, Steps(spark, name), spark, settings)
                    if not own.get("follow"):  # else it says so of each part, from where it resumes
                        job.say_inputs()
                    spark.sparkContext.setCheckpointDir(job.kept)
                    try:
                        function(job, spark, **own)
                    except BaseException as error:
                        job.discard()
                        if _is_of_kafka(name, error):
                            _check_not_deleted(job, topics)
                        raise
                    if job.faults.number:
                        raise UserError(
                            f"{job.faults.number} records could not be read: see the report; everything "
                            "else was written",
                            ExitCode.FAULTY,
                        )
                    if job.shortfall is not None:
                        raise job.shortfall

        return command

    return decorate  # fmt: skip


def _bound(option: str, text: str) -> Bound:
    if (option, text) in _AT_THE_OTHER_END:
        return _AT_THE_OTHER_END[option, text]
    try:
        return parse_bound(text)
    except ValueError:
        known = "earliest, latest, an offset, a time as 2026-01-31T10:00, or how long ago, as 90m, 24h or 7d"
        both = f"; if it is an offset, write offset:{text}" if text.isdecimal() else ""
        raise SettingsError([f"{option} is {text!r}: expected {known}{both}"]) from None


def _unless(condition: bool, *names: str, **more: Any) -> Callable[[Any], Any]:
    return (lambda function: function) if condition else click.option(*names, **more)


def _settings(
    sources: Sequence[str],
    servers: str | None,
    registry: str | None,
    *,
    kind: type[RawJobSettings] = JobSettings,
) -> RawJobSettings:
    values: dict[str, Any] = {}
    if sources:
        if problems := [f"--source: {problem}" for s in sources if (problem := source_problem(s))]:
            raise SettingsError(problems)
        values["source"] = sources[0]
    if servers:
        values["kafka"] = {"bootstrap_servers": servers}
    if registry:
        values["registry"] = {"url": registry}
    settings = load_settings(kind, **values)
    configure_logging("WARNING")
    return settings


def _joined(names: Sequence[str]) -> str:
    """Name a folder by sources: in as many bytes as file systems take, and for other sources another."""
    text = "+".join(names)
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _check_folder(folder: str, option: str = "--output") -> None:
    """Refuse a folder on this machine that cannot be written, before Spark has worked for nothing."""
    path = local_path(folder)
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror}; name another folder with {option}",
            ExitCode.SETTINGS,
        ) from None


def _check_shared(spark: SparkSession, folder: str, option: str = "--output") -> None:
    """Refuse a folder on this machine where executors on others would write into folders of their own."""
    path = local_path(folder)
    if path is None or str(spark.sparkContext.master).startswith("local"):
        return
    if not seen_by_executors(spark, path.absolute()):
        raise UserError(
            f"executors cannot reach {folder}: name a folder with {option} that all of them can "
            "reach, on a shared disk or in an object store",
            ExitCode.SETTINGS,
        )


def topic_versions(job: Job, firsts: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Return the topics with the rows of tables, of all by default, in order, by the first of each table.

    An incompatible schema opens a new one; a table without rows has none. Raises :class:`UserError` where one
    that the row mapper knows is gone, or is another one than it has written.
    """
    admin, state = connect(job.settings.kafka), Topics(job.sources[0]).state
    notes: dict[str, Message] = {}
    for record in read_topic(job.settings.kafka, state, undecided=False):
        key = record.key() or b""
        if key.startswith(TABLE_TOPIC_PREFIX):
            notes[key.removeprefix(TABLE_TOPIC_PREFIX).decode("ascii", "replace")] = record
    noted = {topic for topic, note in notes.items() if note.value() is not None}
    among = noted | set(topic_names(admin))
    by_first: dict[str, list[str]] = {}
    for topic in among:
        by_first.setdefault(first_version(topic), []).append(topic)
    if firsts is None:
        own = f"{job.sources[0]}."
        firsts = sorted(first for first in by_first if first.startswith(own) and is_of_rows(first))
    versions = {first: sorted(by_first.get(first, ()), key=version_number) for first in firsts}
    known = [topic for each in versions.values() for topic in each if topic in noted]
    found = topic_ids(admin, known)
    for topic in known:
        try:
            written = TableTopic.from_bytes(notes[topic].value() or b"")
        except SingleObjectError as error:
            raise UserError(f"{state}, offset {notes[topic].offset()}: {error}", ExitCode.DATA) from error
        if found.get(topic) != written.id:
            raise UserError(another_topic(topic, gone=topic not in found), ExitCode.DATA)
    return versions


def _topics(settings: RawJobSettings) -> set[str]:
    """Reach Kafka; name the topics that there are."""
    return set(topic_names(connect(settings.kafka)))


def _look_up(
    settings: RawJobSettings, existing: AbstractSet[str], sources: Sequence[str], kind: Topic
) -> dict[str, dict[int, dict[str, Any]]]:
    """Check the topics and reach the registry before Spark, which takes a while; return sources' schemas."""
    for source in sources:
        topic = f"{source}.{kind}"
        if topic not in existing:
            known = sorted(name.removesuffix(f".{kind}") for name in existing if name.endswith(f".{kind}"))
            hint = (
                f"sources there are: {', '.join(known)}" if known else f"no source has any {_HAS[kind]} there"
            )
            raise UserError(f"topic {topic} does not exist; {hint}", ExitCode.KAFKA)
    if not isinstance(settings, JobSettings):
        return {source: {} for source in sources}
    return {source: schemas_of(settings, source, value_subject(f"{source}.{kind}")) for source in sources}


def schemas_of(settings: JobSettings, source: str, *subjects: str) -> dict[int, Any]:
    """Return all schemas of subjects of a source, by id."""
    found: dict[int, Any] = {}
    with open_schemas(settings.kafka, settings.registry, source) as schemas:
        for subject in subjects:
            found |= schemas.subject_schemas(subject)
    return found


def _inputs(
    spark: SparkSession,
    options: Mapping[str, str],
    schemas: Mapping[str, Mapping[int, dict[str, Any]]],
    bounds: tuple[Bound, Bound],
    kind: Topic,
    *,
    archived: Callable[[str], tuple[TopicSlice, int]] | None = None,
) -> Iterator[Input]:
    """Fix which offsets of each source are read: what ``archived`` returns, where there are archives."""
    for source, known in schemas.items():
        if archived is not None:
            part, first = archived(source)
            yield Input(source, part, known, first)
            continue
        part = resolve_slice(spark, options, f"{source}.{kind}", *bounds)
        if kind == "raw":
            (first, _) = resolve_slice(spark, options, part.topic).offsets[0]
            yield Input(source, part, known, first)
            continue
        if part.count and not known:
            raise UserError(
                f"the registry has no schema under {value_subject(part.topic)}; check that "
                f"MILLRACE_REGISTRY_URL is the registry that the {_WRITER[kind]} uses",
                ExitCode.REGISTRY,
            )
        yield Input(source, part, known)


def _archived(
    kafka: KafkaSettings, bounds: tuple[Bound, Bound], folder: str, appends: bool, source: str
) -> tuple[TopicSlice, int]:
    """Fix what is read of a source that has an archive, and the first offset that there is.

    For who ``appends`` to the archive it is what follows it.
    """
    place = f"{absolute(folder)}/{source}"
    archive = None if appends and not has_archive(place) else Archive.read(place)
    start, end = map(_bound_of_source, bounds)
    topic = RawTopic(kafka, source, start, end, archive)
    held, asked = topic.extent()
    begin = asked.start if not appends or topic.archive is None else topic.archive.end
    offsets = {0: (begin, max(begin, asked.stop))}
    return TopicSlice(f"{source}.raw", offsets, bounds != (None, None), topic.archive), held.start


def _bound_of_source(bound: Bound) -> SourceBound:
    if isinstance(bound, datetime):
        return SourceBound(timestamp_ms=int(bound.timestamp() * 1000))
    return SourceBound(bound)


@contextmanager
def errors_in_words(name: str) -> Iterator[None]:
    """End the process with one line and an exit code if a user can act; a bug gets a traceback."""
    interrupts = _Interrupts()
    loggers = [logging.getLogger(of) for of in (None, "py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(interrupts)
    try:
        yield
    except UserError as error:
        for line in error.lines:
            _say(line)
        raise SystemExit(int(error.exit_code)) from None
    except Exception as error:  # noqa: BLE001 - told in full, with the exit code for it
        if interrupts.came or isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        text = str(error)
        words = _disk_words(name, text) or _kafka_words(name, text) or _kubernetes_words(name, text)
        if words is not None:
            line, code = words
            _say(line)
            raise SystemExit(int(code)) from None
        _bug(name, error)
    finally:
        for logger in loggers:
            logger.removeFilter(interrupts)


def _is_of_kafka(name: str, error: BaseException) -> bool:
    """Return whether a job failed because it could not read a topic."""
    if isinstance(error, UserError):
        return error.exit_code in (ExitCode.KAFKA, ExitCode.DATA)
    return isinstance(error, Exception) and _kafka_words(name, str(error)) is not None


def _check_not_deleted(job: Job, before: AbstractSet[str]) -> None:
    """Raise with code 7 where topics that there were before are gone.

    What a broker, Kafka's client or Spark says of a topic that is deleted while it is read depends on the
    moment, and may be that no broker answers. So the cluster is asked.
    """
    try:
        gone = before - _topics(job.settings)
    except UserError:
        return
    read = sorted(topic for topic in gone if topic.startswith(tuple(f"{source}." for source in job.sources)))
    if read:
        what = f"{', '.join(read[:_NAMED])} {'was' if len(read) == 1 else 'were'} deleted"
        raise UserError(
            f"{what} while {job.name} ran; the previous results remain. "
            "docs/how-to/recover.md#a-topic-that-changed says what to do",
            ExitCode.DATA,
        )


def _kafka_words(name: str, text: str) -> tuple[str, ExitCode] | None:
    """Explain a failure of Kafka or an archive while a job ran, if an error of Spark reports one."""
    stands = "; the previous results remain. "
    if (lost := _SOURCE_LOST.search(text)) is not None:
        return lost[1], ExitCode.DATA
    if (lost := _BROKER_LOST.search(text) or _KAFKA_LOST.search(text)) is not None:
        told = " ".join(lost[0].split())[:300]
        advice = "Run the job again once the brokers answer"
        return f"Kafka stopped answering while {name} ran ({told}){stands}{advice}", ExitCode.KAFKA
    if (gone := _INPUT_LOST.search(text) or _RECORDS_GONE.search(text)) is not None:
        told = " ".join(gone[0].split())[:300]
        advice = "Begin later with --from, or raise the topic's retention"
        return f"records were deleted while {name} read them ({told}){stands}{advice}", ExitCode.DATA
    return None


def _disk_words(name: str, text: str) -> tuple[str, ExitCode] | None:
    """Explain that there was no room for what a job writes, if an error reports that."""
    if (full := _DISK_FULL.search(text)) is None:
        return None
    told = " ".join(full[0].split())[:300]
    advice = "Free some in the output folder and in SPARK_LOCAL_DIRS (/tmp), or set them to another disk"
    return (
        f"a disk was full while {name} ran ({told}); the previous results remain. {advice}",
        ExitCode.OUTPUT,
    )


def _kubernetes_words(name: str, text: str) -> tuple[str, ExitCode] | None:
    """Explain why there are no executors, if an error of Spark reports that."""
    if (found := _KUBERNETES.search(text)) is None:
        return None
    told = " ".join((found["refused"] or found["cause"]).split())[:400]
    advice = "check --master, and the rights on pods of the ServiceAccount of the job's pod"
    return f"{name} got no executors from Kubernetes ({told}): {advice}", ExitCode.SETTINGS


class _Interrupts(logging.Filter):
    """Notes a Ctrl-C while Java is asked: Py4J logs it, and raises something else."""

    came = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep records other than a Ctrl-C."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        self.came = self.came or error is not None
        return error is None


class _Sigterm:
    """What SIGTERM does to a job: it stops Spark, so that what waits for Spark fails."""

    def __init__(self, name: str) -> None:
        self.starts = False
        """Whether Spark starts: Java writes a stack trace where its parent ends meanwhile."""
        self.came = False
        self._name = name
        self._spark: SparkSession | None = None
        self._stopping: threading.Thread | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take the signal; a second one ends the job at once."""
        if self.came:
            os._exit(128 + number)
        self.came = True
        if self._spark is not None:
            # The main thread may wait for an answer of the JVM, on the one connection that it has.
            self._stopping = threading.Thread(target=_stop, args=(self._spark,), name="stop", daemon=True)
            self._stopping.start()
        elif self.starts:
            waiting = threading.Timer(_START_S, self._end)
            waiting.daemon = True
            waiting.start()
        else:
            raise SystemExit(128 + number)

    def take(self, spark: SparkSession) -> None:
        """Take the session that has started."""
        self._spark = spark
        if self.came:
            raise SystemExit(128 + signal.SIGTERM)

    def _end(self) -> None:
        """End the job although Spark has not started: its master may not answer."""
        if self._spark is None:
            self.say()
            os._exit(128 + signal.SIGTERM)

    def say(self) -> None:
        """Say that the signal came."""
        _say(f"{self._name} was stopped by SIGTERM; the previous results remain")

    def finish(self) -> None:
        """Wait until Spark has removed what it had begun to write."""
        if self._stopping is not None:
            self._stopping.join()


def _stop(spark: SparkSession) -> None:
    """Stop Spark, and streams before it: one that ends later prints a traceback of Java."""
    with suppress(Exception):  # it takes longer than it may, or has ended already
        spark.sparkContext.setLogLevel("OFF")  # of what is cut off
        for query in spark.streams.active:
            spark.sparkContext.cancelAllJobs()
            query.stop()
    spark.stop()


@contextmanager
def _sigterm_in_order(name: str) -> Iterator[_Sigterm]:
    """Let SIGTERM end the job in order and with one line."""
    sigterm = _Sigterm(name)
    before = signal.signal(signal.SIGTERM, sigterm.handle)
    try:
        yield sigterm
    except (Exception, SystemExit):
        if not sigterm.came:
            raise
        sigterm.finish()
        sigterm.say()
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _bug(name: str, error: Exception) -> None:
    traceback.print_exception(error)
    _say(f"{name} failed because of a bug ({type(error).__name__}), see the traceback above")
    raise SystemExit(int(ExitCode.BUG)) from None


def _say(line: str) -> None:
    sys.stderr.write(f"error: {printable(line)}\n")


def moment(seconds: int | None) -> str | None:
    """Return a time in words, UTC: ``2026-01-31 10:00:00``."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def persisted(frame: DataFrame) -> DataFrame:
    """Compute a frame once and keep it in files of the run's folder, which survive a lost executor.

    The plan that leads to it is forgotten: plans that hold each other several times over cost Spark more than
    the data.
    """
    return frame.checkpoint(eager=True)


def read_each(job: Job, topic: str, read: Callable[[bytes], T], *, key: str | None = None) -> list[T]:
    """Read the values of a topic of one partition in their order, on the driver; of one ``key`` the last.

    What cannot be read is a fault of the job.
    """
    part = resolve_slice(job.spark, job.kafka, topic, missing_is_empty=True)
    if not part.count:
        return []
    found = scan(job.spark, job.kafka, part, whole=True).where("value is not null")
    if key is not None:
        found = found.where(sf.col("key").cast("string").eqNullSafe(key)).orderBy(sf.desc("offset")).limit(1)
    counted = topic in job.faults.taken
    job.faults.taken.add(topic)
    values = []
    for row in found.select("partition", "offset", "key", "value").toLocalIterator():
        try:
            values.append(read(bytes(row.value)))
        except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are read
            if not counted:
                name = None if row.key is None else bytes(row.key)
                job.faults.add(1, [Fault.of(topic, row.partition, row.offset, name, reason_of(error))])
    return values
