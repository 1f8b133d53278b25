"""The frame of a job: options, the first look at Kafka and the registry, results, errors in words.

A job is a function that is decorated with :func:`job_command` and gets a :class:`Job` and a Spark session.
"""

import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import click
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace import __version__
from millrace.avro.registry import SchemaRegistry, value_subject
from millrace.contract import Topics, source_problem
from millrace.kafka.client import connect
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import RegistrySettings, ServiceSettings, load_settings
from millrace.text import printable
from spark_jobs.common.kafka import Bound, TopicSlice, kafka_options, parse_bound, resolve_slice
from spark_jobs.common.report import Report
from spark_jobs.common.session import SparkSettings, Steps, spark_session

__all__ = ["EVENT_ERROR", "Job", "JobSettings", "job_command", "moment", "persisted"]

EVENT_ERROR: Final = "EventError: "
"""What stands in front of the words of an executor's error that a user can act on."""

_LONGEST_NAME: Final = 200


class JobSettings(ServiceSettings):
    """What a job needs to know: the settings that the services have, and what Spark may use."""

    registry: RegistrySettings
    spark: SparkSettings = SparkSettings()  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Input:
    """The events of one source: where they lie, and the schemas with which they were written, by id."""

    source: str
    part: TopicSlice
    schemas: Mapping[int, dict[str, Any]]


@dataclass(slots=True)
class Job:
    """What a job works on, and where its results go."""

    name: str
    output: str
    kafka: Mapping[str, str]
    inputs: Sequence[Input]
    steps: Steps
    spark: SparkSession
    notes: list[str] = field(default_factory=list)

    @property
    def sources(self) -> list[str]:
        """Names of the sources."""
        return [one.source for one in self.inputs]

    @property
    def facts(self) -> list[str]:
        """What was read, a line per source."""
        return [str(one.part) for one in self.inputs]

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Tell of a step of the work, when it has ended how long it took."""
        with self.steps.step(text):
            yield

    def write(self, name: str, frame: DataFrame) -> None:
        """Write a result as Parquet, in place of an earlier one."""
        frame.write.mode("overwrite").parquet(f"{self.output}/{name}")

    def finish(self, summary: Mapping[str, Any], report: Report) -> None:
        """Write ``summary.json`` and ``report.html`` and say where they are."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        input_ = {one.source: {"topic": one.part.topic, "offsets": one.part.offsets} for one in self.inputs}
        head = {
            "job": self.name,
            "version": __version__,
            "written_at": now,
            "input": input_,
            "notes": self.notes,
        }
        text = json.dumps({**head, **summary}, indent=2, ensure_ascii=False, default=str)
        write_text(self.spark, f"{self.output}/summary.json", text + "\n")
        footer = f"Written by millrace {__version__}, job {self.name}, at {now}."
        write_text(self.spark, f"{self.output}/report.html", report.html(footer))
        self.steps.say(f"report in {self.output}/report.html, figures in {self.output}/summary.json")


def job_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a job; its function is called with the job, the session and its own options."""

    def decorate(function: Callable[..., None]) -> click.Command:
        @click.command(name, help=function.__doc__)
        @click.option(
            "--source", "sources", multiple=True, help="Source to read; may be repeated. [MILLRACE_SOURCE]"
        )
        @click.option(
            "--bootstrap-servers", help="Kafka brokers, host:port. [MILLRACE_KAFKA_BOOTSTRAP_SERVERS]"
        )
        @click.option("--registry-url", help="Schema registry's address. [MILLRACE_REGISTRY_URL]")
        @click.option(
            "--from",
            "start",
            default="earliest",
            show_default=True,
            help="Where to begin: earliest, an offset, a time as 2026-01-31T10:00 (UTC if without zone), or "
            "how long ago, as 90m, 24h or 7d.",
        )
        @click.option(
            "--to",
            "end",
            default="latest",
            show_default=True,
            help="Where to end, before it: as --from, or latest.",
        )
        @click.option(
            "--output", help=f"Folder for the results, local or any that Spark knows. [reports/{name}-SOURCE]"
        )
        @click.option("--master", help="Spark master; default is spark-submit's, else local[*].")
        @wraps(function)
        def command(  # noqa: PLR0917 - click calls it by names
            sources: tuple[str, ...],
            bootstrap_servers: str | None,
            registry_url: str | None,
            start: str,
            end: str,
            output: str | None,
            master: str | None,
            **own: Any,
        ) -> None:
            with errors_in_words(name), _sigterm_in_order(name) as sigterm:
                bounds = _bound("--from", start), _bound("--to", end)
                settings = _settings(sources, bootstrap_servers, registry_url)
                names = list(dict.fromkeys(sources or (settings.source,)))
                schemas = _look_up(settings, names)
                folder = (output or f"reports/{name}-{_joined(names)}").rstrip("/")
                _check_folder(folder)
                with spark_session(f"millrace {name}", master, settings.spark) as spark:
                    sigterm.spark = spark
                    options = kafka_options(settings.kafka)
                    inputs = list(_inputs(spark, options, schemas, bounds))
                    job = Job(name, folder, options, inputs, Steps(spark, name), spark)
                    for one in inputs:
                        job.steps.say(f"reading {one.part}")
                    function(job, spark, **own)

        return command

    return decorate  # fmt: skip


def _bound(option: str, text: str) -> Bound:
    try:
        return parse_bound(text)
    except ValueError:
        known = "earliest, latest, an offset, a time as 2026-01-31T10:00, or how long ago, as 90m, 24h or 7d"
        raise SettingsError([f"{option} is {text!r}: expected {known}"]) from None


def _settings(sources: Sequence[str], servers: str | None, registry: str | None) -> JobSettings:
    values: dict[str, Any] = {}
    if sources:
        if problems := [f"--source: {problem}" for s in sources if (problem := source_problem(s))]:
            raise SettingsError(problems)
        values["source"] = sources[0]
    if servers:
        values["kafka"] = {"bootstrap_servers": servers}
    if registry:
        values["registry"] = {"url": registry}
    settings = load_settings(JobSettings, **values)
    configure_logging("WARNING")
    return settings


def _joined(names: Sequence[str]) -> str:
    """Name a folder by sources: in as many bytes as file systems take, and for other sources another."""
    text = "+".join(names)
    if len(text) <= _LONGEST_NAME:
        return text
    return f"{text[: _LONGEST_NAME - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _check_folder(folder: str) -> None:
    """Refuse a folder on this machine that cannot be written, before Spark has worked for nothing."""
    path = _local_path(folder)
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror}; name another folder with --output",
            ExitCode.SETTINGS,
        ) from None


def _local_path(path: str) -> Path | None:
    parts = urlsplit(path)
    return Path(parts.path if parts.scheme else path) if parts.scheme in ("", "file") else None


def _look_up(settings: JobSettings, sources: Sequence[str]) -> dict[str, dict[int, dict[str, Any]]]:
    """Reach Kafka and the registry before Spark, which takes a while, and return each source's schemas."""
    admin = connect(settings.kafka)
    existing = admin.list_topics(timeout=settings.kafka.connect_timeout_s).topics
    found = {}
    with SchemaRegistry(settings.registry) as registry:
        for source in sources:
            topic = Topics(source).events
            if topic not in existing:
                known = sorted(name.removesuffix(".events") for name in existing if name.endswith(".events"))
                hint = f"sources there are: {', '.join(known)}" if known else "no source has any events there"
                raise UserError(f"topic {topic} does not exist; {hint}", ExitCode.KAFKA)
            found[source] = registry.subject_schemas(value_subject(topic))
    return found


def _inputs(
    spark: SparkSession,
    options: Mapping[str, str],
    schemas: Mapping[str, Mapping[int, dict[str, Any]]],
    bounds: tuple[Bound, Bound],
) -> Iterator[Input]:
    """Fix which offsets of each source are read."""
    for source, known in schemas.items():
        part = resolve_slice(spark, options, Topics(source).events, *bounds)
        if part.count and not known:
            raise UserError(
                f"the registry has no schema under {value_subject(part.topic)}; check that "
                "MILLRACE_REGISTRY_URL is the registry that the decoder uses",
                ExitCode.REGISTRY,
            )
        yield Input(source, part, known)


@contextmanager
def errors_in_words(name: str) -> Iterator[None]:
    """End the process with one line and an exit code where a user can act; a bug is told in full."""
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
        if isinstance(error, PySparkException) and EVENT_ERROR in text:
            _say(text.rpartition(EVENT_ERROR)[2].splitlines()[0])
            raise SystemExit(int(ExitCode.DATA)) from None
        _bug(name, error)
    finally:
        for logger in loggers:
            logger.removeFilter(interrupts)


class _Interrupts(logging.Filter):
    """Notes a Ctrl-C while Java is asked: Py4J logs it, and raises something else."""

    came = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what is no Ctrl-C."""
        error = record.exc_info[1] if record.exc_info else None
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        self.came = self.came or error is not None
        return error is None


class _Sigterm:
    """What SIGTERM does to a job: it stops Spark, so that what waits for Spark fails."""

    def __init__(self) -> None:
        self.spark: SparkSession | None = None
        self.came = False
        self._stopping: threading.Thread | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take the signal; a second one ends the job at once."""
        if self.came:
            os._exit(128 + number)
        self.came = True
        if self.spark is None:
            raise SystemExit(128 + number)
        # The main thread may wait for an answer of the JVM, on the one connection that it has.
        self._stopping = threading.Thread(target=self.spark.stop, name="stop", daemon=True)
        self._stopping.start()

    def finish(self) -> None:
        """Wait until Spark has removed what it had begun to write."""
        if self._stopping is not None:
            self._stopping.join()


@contextmanager
def _sigterm_in_order(name: str) -> Iterator[_Sigterm]:
    """Let SIGTERM end the job in order and with one line."""
    sigterm = _Sigterm()
    before = signal.signal(signal.SIGTERM, sigterm.handle)
    try:
        yield sigterm
    except (Exception, SystemExit):
        if not sigterm.came:
            raise
        sigterm.finish()
        _say(f"{name} was stopped by SIGTERM; its results are incomplete")
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _bug(name: str, error: Exception) -> None:
    traceback.print_exception(error)
    _say(f"{name} met a bug of its own ({type(error).__name__}), told above")
    raise SystemExit(int(ExitCode.BUG)) from None


def _say(line: str) -> None:
    sys.stderr.write(f"error: {printable(line)}\n")


def moment(seconds: int | None) -> str | None:
    """Return a time in words, UTC: ``2026-01-31 10:00:00``."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def persisted(frame: DataFrame) -> DataFrame:
    """Compute a frame once and keep it on the executors' disks.

    The plan that leads to it is forgotten: plans that hold each other several times over cost Spark more than
    the data.
    """
    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a file, on the local disk or on any file system that Spark knows."""
    file = _local_path(path)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    context: Any = spark.sparkContext._jsc
    stream = place.getFileSystem(context.hadoopConfiguration()).create(place, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
